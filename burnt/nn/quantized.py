"""Layers with quantized weights: what `burnt.quantize` puts in the place of Linear, Conv and Embedding.

The weight is three buffers, plain tensors: ``values``, ``scale`` and, for asymmetric schemes, ``zero_point``.
They save, move and copy like any buffer, and are never quantized again. ``layer.weight`` computes the weight
they stand for.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.config import qualified_name
from burnt.errors import ConfigError, RecordError
from burnt.kernels.interface.autocast import autocast_dtype
from burnt.module import Module
from burnt.nn.checks import explain_input, input_error
from burnt.nn.conv import Conv1d, Conv2d, Conv3d, ConvBase, convolve, pad
from burnt.nn.embedding import Embedding
from burnt.nn.linear import Linear
from burnt.scheme import QuantScheme

_WEIGHT = ("values", "scale", "zero_point")
_BUFFERS = (*_WEIGHT, "input_scale", "input_zero_point")


@dataclasses.dataclass(eq=False, repr=False)
class _Twins:
    """The layers with one weight. An object of its own: modules in a list would become submodules."""

    layers: list[Quantized]


class Quantized(Module, init=False):
    """Base of the layers with quantized weights.

    Args:
        layer: the layer to take the place of; its weight may be on the meta device.
        scheme: what its weight becomes. Values are zeros until `set_weight`, or until a record is loaded.

    Casts of the module change neither the values nor their scales, but `weight_dtype`, as they would change
    the weight. `origin` is the class of the original layer, by qualified name.
    """

    values: Tensor  # buffer: int8 in the shape of the weight, output channels first; packed uint8 otherwise
    scale: Tensor  # buffer: [rows, blocks], in the dtype that the scheme says
    zero_point: Tensor | None  # buffer: int8 in the shape of `scale`; None for symmetric schemes
    input_scale: Tensor | None  # buffer: one element, for static activations
    input_zero_point: Tensor | None  # buffer: one int8 element, for static int8 activations
    bias: Tensor | None  # parameter, as in the original layer

    def __init__(self, layer: torch.nn.Module, scheme: QuantScheme) -> None:
        super().__init__()
        weight = getattr(layer, "weight")  # noqa: B009  # torch types it as a module or a tensor
        self.scheme = scheme
        self.origin = qualified_name(type(layer))
        self.is_transposed = has_transposed_weight(layer)
        self.weight_shape: tuple[int, ...] = tuple(weight.t().shape if self.is_transposed else weight.shape)
        self.rows, self.columns = self.weight_shape[0], math.prod(self.weight_shape[1:])
        device = weight.device
        shape = _values_shape(self.weight_shape, scheme)
        values_dtype = torch.int8 if scheme.value == "int8" else torch.uint8
        scale_dtype: torch.dtype = getattr(torch, scheme.scale)
        scale_shape = scheme.scale_shape(self.rows, self.columns)
        self.register_buffer("values", torch.zeros(shape, dtype=values_dtype, device=device))
        self.register_buffer("scale", torch.ones(scale_shape, dtype=scale_dtype, device=device))
        zero_point = None if scheme.symmetric else torch.zeros(scale_shape, dtype=torch.int8, device=device)
        self.register_buffer("zero_point", zero_point)
        is_static = scheme.activations == "static" and not isinstance(self, QuantizedEmbedding)
        has_zero_point = is_static and not scheme.type.is_float
        self.register_buffer("input_scale", torch.ones((1, 1), device=device) if is_static else None)
        self.register_buffer(
            "input_zero_point",
            torch.zeros((1, 1), dtype=torch.int8, device=device) if has_zero_point else None,
        )
        self.weight_dtype: torch.dtype = weight.dtype
        bias = getattr(layer, "bias", None)
        self.register_parameter("bias", bias)
        self.is_frozen = not weight.requires_grad
        self.training = layer.training
        self._twins = _Twins([self])

    @property
    def weight(self) -> Tensor:
        """The weight that the values stand for, in the original's shape, computed at each access."""
        block = self.scheme.block or 0
        matrix = kernels.dequantize(
            self.values.flatten(1),
            self.scale,
            self.zero_point,
            self.scheme.value,
            block,
            self.columns,
            self.weight_dtype,
        )
        return matrix.t() if self.is_transposed else matrix.view(self.weight_shape)

    def set_weight(self, weight: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Self:
        """Quantize a weight ``[rows, columns]``, see `weight_matrix`, into the layer's buffers.

        The scale has the shape of the layer's; asymmetric schemes have a `zero_point`, int8.
        """
        scheme = self.scheme
        padded = F.pad(weight, (0, scheme.padded_columns(self.columns) - self.columns))
        scale = scale.to(self.scale.dtype)
        values = kernels.quantize(padded, scale, zero_point, scheme.value, scheme.block or 0, scheme.narrow)
        self.values.copy_(values.view(self.values.shape))
        self.scale.copy_(scale)
        if zero_point is not None and self.zero_point is not None:
            self.zero_point.copy_(zero_point)
        return self

    def restore(self) -> torch.nn.Module:
        """Return a layer of the original class with the dequantized weight.

        Raises:
            RecordError: the original class cannot be imported.
        """
        layer: torch.nn.Module = self._original()
        with torch.no_grad():
            layer.weight = torch.nn.Parameter(self.weight, requires_grad=not self.is_frozen)
            layer._parameters["bias"] = self._parameters["bias"]
        layer.train(self.training)
        return layer

    def quantization(self) -> dict[str, Any]:
        """Return what records keep of the layer besides its tensors."""
        return {
            "origin": self.origin,
            "scheme": self.scheme.to_dict(),
            "bias": self.bias is not None,
            "dtype": str(self.weight_dtype).removeprefix("torch."),
        }

    @abc.abstractmethod
    def _original(self) -> Any:
        """Return a layer of the original class, without values."""

    def tie(self, other: Quantized) -> None:
        """Share the weight of another layer, from now on and after both were moved: see `weight_key`."""
        for name in _WEIGHT:
            self._buffers[name] = other._buffers[name]
        other._twins.layers.append(self)
        self._twins = other._twins

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast; quantized tensors are moved only. Layers with the same weight keep the same one."""
        before = {name: self._buffers[name] for name in _BUFFERS}
        self.weight_dtype = fn(torch.empty(0, dtype=self.weight_dtype, device=self.values.device)).dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        for twin in self._twins.layers:
            for name in _WEIGHT:
                if twin._buffers[name] is before[name]:
                    twin._buffers[name] = self._buffers[name]
        return self

    @property
    def input_value(self) -> str:
        """The type of quantized inputs."""
        if self.scheme.type.bits == 8:
            return self.scheme.value
        return "float8_e4m3" if self.scheme.type.is_float else "int8"

    def extra_repr(self) -> str:
        """Return sizes and scheme."""
        return f"{self._sizes_text()}, bias={self.bias is not None}, scheme={self.scheme.name}"

    def _sizes_text(self) -> str:
        return f"{self.columns}, {self.rows}"


class QuantizedMap(Quantized, init=False):
    """Base of the layers whose inputs may be quantized too: linear maps and convolutions."""

    def _forward(self, input: Tensor) -> Tensor:
        if self.scheme.activations is None:
            return self._weight_only(input)
        if torch.is_grad_enabled() and (
            input.requires_grad or (self.bias is not None and self.bias.requires_grad)
        ):
            output: Tensor = _StraightThrough.apply(input, self.bias, self)  # type: ignore[no-untyped-call]
            return output
        return self._quantized_forward(input, self.bias)

    @abc.abstractmethod
    def _weight_only(self, input: Tensor) -> Tensor:
        """Compute the output of the input as it is, with the dequantized weight."""

    @abc.abstractmethod
    def _quantized_forward(self, input: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the output of the quantized input."""

    @abc.abstractmethod
    def _input_gradient(self, input: Tensor, grad_out: Tensor) -> Tensor:
        """Return the gradient of the input, as if it was not quantized."""

    def _quantize_input(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the values of inputs ``[rows, columns]``, their scales (one, or one for each row) and zero
        point."""
        value = self.input_value
        if self.input_scale is not None:
            values = kernels.quantize(input, self.input_scale, self.input_zero_point, value)
            return values, self.input_scale, self.input_zero_point
        if self.scheme.activations == "dynamic_tensor":
            return kernels.quantize_tensor(input)
        return *kernels.quantize_rows(input, value), None

    def _dequantize_input(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return inputs ``[rows, columns]`` as they are after quantization."""
        values, scale, zero_point = self._quantize_input(rows)
        return kernels.dequantize(values, scale, zero_point, self.input_value, 0, None, dtype)


class QuantizedLinear(QuantizedMap):
    """A linear map whose weight is quantized, and with dynamic or static schemes its input too.

    Args:
        layer: a `torch.nn.Linear`, or Hugging Face's Conv1D.
        scheme: how the weight and the activations are quantized.

    Shapes:
        input ``[*, in_features]``, floating-point; output ``[*, out_features]`` in the input's dtype.

    Gradients flow to the input and the bias; through the rounding of inputs they pass unchanged
    (straight-through).

    >>> layer = QuantizedLinear(torch.nn.Linear(64, 8), QuantScheme.parse("int4-block32"))
    >>> layer(torch.zeros(2, 64)).shape, layer.values.shape, layer.values.dtype
    (torch.Size([2, 8]), torch.Size([8, 32]), torch.uint8)
    """

    def __init__(self, layer: torch.nn.Module, scheme: QuantScheme) -> None:
        super().__init__(layer, scheme)
        self.in_features, self.out_features = self.columns, self.rows

    @property
    def nf(self) -> int:
        """Hugging Face's name of `out_features`."""
        return self.rows

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[*, in_features]`` to ``[*, out_features]``."""
        if input.shape[-1:] != (self.columns,):  # kernels would take a few columns more, the padding's
            raise input_error(self, input) or AssertionError(input.shape)
        return self._forward(input)

    def _weight_only(self, input: Tensor) -> Tensor:
        return self._linear(input, self.bias)

    def _linear(self, input: Tensor, bias: Tensor | None) -> Tensor:
        scheme = self.scheme
        values = self.values if self.values.dim() == 2 else self.values.flatten(1)
        return kernels.quantized_linear(
            input, values, self.scale, self.zero_point, bias, None, scheme.value, scheme.block or 0
        )

    def _quantized_forward(self, input: Tensor, bias: Tensor | None) -> Tensor:
        rows, dtype, scheme = input.reshape(-1, self.columns), _output_dtype(input), self.scheme
        if scheme.type.bits < 8 or scheme.block is not None:
            output = self._linear(self._dequantize_input(rows, dtype), bias)
        else:
            values, scale, zero_point = self._quantize_input(rows)
            output = kernels.scaled_linear(
                values,
                self.values,
                scale,
                self.scale,
                zero_point,
                bias,
                None,
                None,
                None,
                scheme.value,
                dtype,
                self.zero_point,
            )
        return output.reshape(*input.shape[:-1], self.rows)

    def _input_gradient(self, input: Tensor, grad_out: Tensor) -> Tensor:
        weight = self.weight.t() if self.is_transposed else self.weight
        return grad_out.to(input.dtype) @ weight.to(input.dtype)

    def _original(self) -> Any:
        settings: dict[str, Any] = {"device": "meta", "dtype": self.weight_dtype}
        if self.origin == _HF_CONV1D:
            with torch.device("meta"):
                return _import_class(self.origin)(self.rows, self.columns)
        return _import_class(self.origin)(self.columns, self.rows, self.bias is not None, **settings)


class QuantizedConv(ConvBase, QuantizedMap, init=False):
    """A convolution of one to three axes whose weight is quantized, and with dynamic or static schemes its
    input.

    Args:
        layer: a `torch.nn.Conv1d`, `Conv2d` or `Conv3d`.
        scheme: how the weight and the activations are quantized. Only int8 is computed with integers; other
            values are dequantized first. `dynamic` inputs have a scale for each sample,
            `dynamic_tensor` ones a single one.

    Shapes:
        as in the original layer.

    >>> layer = QuantizedConv(torch.nn.Conv2d(3, 8, 3), QuantScheme.parse("int8"))
    >>> layer(torch.zeros(2, 3, 5, 5)).shape
    torch.Size([2, 8, 3, 3])
    """

    def __init__(self, layer: torch.nn.Module, scheme: QuantScheme) -> None:
        Quantized.__init__(self, layer, scheme)
        for name in _CONV_FIELDS:
            setattr(self, name, getattr(layer, name))

    @explain_input
    def forward(self, input: Tensor) -> Tensor:
        """Convolve ``[batch, in_channels, *axes]``, or one sample without batch axis."""
        return self._forward(input)

    def _weight_only(self, input: Tensor) -> Tensor:
        return convolve(self, input)

    def _quantized_forward(self, input: Tensor, bias: Tensor | None) -> Tensor:
        has_batch = input.dim() == len(self.weight_shape)
        dtype = _output_dtype(input)
        batch, padding = pad(self, input if has_batch else input.unsqueeze(0))
        samples = batch.flatten(1)
        if self.scheme.value == "int8" and self.scheme.block is None:
            by_tensor = self.scheme.activations == "dynamic_tensor"
            values, scale, zero_point = self._quantize_input(batch if by_tensor else samples)
            output = kernels.scaled_conv(
                values.view(batch.shape),
                self.values,
                scale,
                self.scale,
                zero_point,
                bias,
                None,
                self.stride,
                padding,
                self.dilation,
                self.groups,
                None,
                None,
                dtype,
                self.zero_point,
            )
        else:
            numbers = self._dequantize_input(samples, dtype).view(batch.shape)
            output = self._dequantized_conv(numbers, padding, None if bias is None else bias.to(dtype))
        return output if has_batch else output.squeeze(0)

    def _dequantized_conv(self, input: Tensor, padding: Any, bias: Tensor | None) -> Tensor:
        conv = (F.conv1d, F.conv2d, F.conv3d)[len(self.stride) - 1]
        weight = self.weight.to(input.dtype)
        return conv(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def _input_gradient(self, input: Tensor, grad_out: Tensor) -> Tensor:
        pull_back: Any = torch.func.vjp(lambda x: self._dequantized_conv(*pad(self, x), None), input)[1]
        grad: Tensor = pull_back(grad_out.to(input.dtype))[0]
        return grad

    def _original(self) -> Any:
        cls = _import_class(self.origin)
        settings = {name: getattr(self, name) for name in _CONV_FIELDS}
        return cls(**settings, bias=self.bias is not None, device="meta", dtype=self.weight_dtype)

    def _sizes_text(self) -> str:
        return f"{self.in_channels}, {self.rows}, kernel_size={self.kernel_size}, stride={self.stride}"


_CONV_FIELDS = (
    *("in_channels", "out_channels", "kernel_size", "stride"),
    *("padding", "dilation", "groups", "padding_mode"),
)


class QuantizedEmbedding(Quantized):
    """A table of vectors that are quantized row by row; indices select rows, which are then dequantized.

    Args:
        layer: a `torch.nn.Embedding` without ``max_norm``.
        scheme: how the table is quantized; `activations` does not apply.

    Shapes:
        input integers ``[*]``, output ``[*, embedding_dim]``.

    >>> QuantizedEmbedding(torch.nn.Embedding(10, 4), QuantScheme())(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, layer: torch.nn.Module, scheme: QuantScheme) -> None:
        super().__init__(layer, scheme)
        self.padding_idx = layer.padding_idx
        self.num_embeddings, self.embedding_dim = self.rows, self.columns

    def extra_repr(self) -> str:
        """Return sizes, as torch's Embedding does, and the scheme."""
        return f"{self.num_embeddings}, {self.embedding_dim}, scheme={self.scheme.name}"

    @explain_input
    def forward(self, input: Tensor) -> Tensor:
        """Return the vectors of the ids `input` ``[*]``: ``[*, embedding_dim]``."""
        value, block = self.scheme.value, self.scheme.block or 0
        table = self.values.flatten(1), self.scale, self.zero_point
        return kernels.quantized_embedding(input, *table, value, block, self.columns, self.weight_dtype)

    def _original(self) -> Any:
        cls = _import_class(self.origin)
        sizes: dict[str, Any] = {"device": "meta", "dtype": self.weight_dtype}
        return cls(self.rows, self.columns, self.padding_idx, **sizes)


class _StraightThrough(torch.autograd.Function):
    """The quantized forward with the gradient of the layer that quantizes only its weight."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, bias: Tensor | None, layer: QuantizedMap) -> Tensor:
        return layer._quantized_forward(input, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None, QuantizedMap], output: Tensor) -> None:
        input, bias, ctx.layer = inputs
        ctx.save_for_backward(input, bias)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        input, bias = ctx.saved_tensors
        layer: QuantizedMap = ctx.layer
        needs_input, needs_bias, _ = ctx.needs_input_grad
        grad_input = layer._input_gradient(input, grad_out) if needs_input else None
        channels_last = grad_out.movedim(1 - len(layer.weight_shape), -1)
        grad_bias = channels_last.reshape(-1, layer.rows).sum(0).to(bias.dtype) if needs_bias else None
        return grad_input, grad_bias, None


def _output_dtype(input: Tensor) -> torch.dtype:
    """Return the dtype of a layer's output: the input's, or the one that autocast computes in."""
    dtype = autocast_dtype(input.device.type)
    return input.dtype if dtype is None or input.dtype == torch.float64 else dtype


def weight_key(layer: torch.nn.Module, scheme: QuantScheme) -> tuple[object, ...]:
    """Return a key that is equal for layers with the same weight, quantized in the same way: see
    `Quantized.tie`."""
    weight = layer.get_parameter("weight")
    return id(weight), dataclasses.replace(scheme, activations=None), has_transposed_weight(layer)


def _values_shape(weight_shape: tuple[int, ...], scheme: QuantScheme) -> tuple[int, ...]:
    """Return the shape of the values of a weight ``[output channels, ...]``."""
    columns = math.prod(weight_shape[1:])
    padded = scheme.padded_columns(columns)
    is_packed = scheme.type.bits < 8 or padded != columns
    return (weight_shape[0], padded // scheme.type.per_byte) if is_packed else weight_shape


def weight_matrix(layer: torch.nn.Module) -> Tensor:
    """Return a layer's weight as the matrix that a scheme sees: ``[output channels, all other axes]``."""
    weight: Tensor = layer.get_parameter("weight").detach()
    return weight.t() if has_transposed_weight(layer) else weight.flatten(1)


def has_transposed_weight(layer: torch.nn.Module) -> bool:
    """Whether a layer's weight is ``[in_features, out_features]``, as in Hugging Face's Conv1D."""
    return qualified_name(type(layer)) == _HF_CONV1D


FOLDED = "folded"
"""The origin, in records, of a layer that was folded into the one before it."""


class Folded(torch.nn.Identity):
    """What stays of a batch norm that was folded into the layer before it: the identity."""

    def quantization(self) -> dict[str, Any]:
        """Return what records keep of it."""
        return {"origin": FOLDED}


_HF_CONV1D = "transformers.pytorch_utils.Conv1D"

LAYERS: dict[str, type[Quantized]] = {
    **dict.fromkeys(map(qualified_name, (torch.nn.Linear, Linear)), QuantizedLinear),
    _HF_CONV1D: QuantizedLinear,
    **dict.fromkeys(
        map(qualified_name, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, Conv1d, Conv2d, Conv3d)),
        QuantizedConv,
    ),
    **dict.fromkeys(map(qualified_name, (torch.nn.Embedding, Embedding)), QuantizedEmbedding),
}
"""The quantized class of each layer class, by qualified name. Subclasses may compute something else."""


def quantized_class(layer: torch.nn.Module) -> type[Quantized] | None:
    """Return the class that takes the place of a layer when it is quantized, or None."""
    return LAYERS.get(qualified_name(type(layer)))


def build_quantized(
    layer: torch.nn.Module, entry: Mapping[str, Any], shape: tuple[int, ...] | None = None
) -> torch.nn.Module:
    """Return the quantized layer for a layer of a model, from what a record says of it.

    A layer that is quantized by the same scheme is returned unchanged. `entry` is a result of
    `Quantized.quantization`, `shape` that of the values in the record, if it is known: damaged metadata could
    ask for any amount of memory. What does not fit, and a damaged entry, is a RecordError.
    """
    if entry.get("origin") == FOLDED:
        return layer if isinstance(layer, Folded) else Folded()
    try:
        scheme = QuantScheme.from_dict(entry["scheme"])
        has_bias = bool(entry["bias"])
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            "what the file says of a quantized layer is damaged",
            expected="a scheme, and whether there is a bias",
            found=str(error)[:200],
        ) from None
    if isinstance(layer, Quantized):
        if layer.scheme == scheme:
            return layer
        raise RecordError(
            "a layer of the model is quantized by another scheme",
            expected=scheme.name,
            found=layer.scheme.name,
            hint="load into a model that is not quantized, or quantized like the one that was saved",
        )
    cls = quantized_class(layer)
    if cls is None or LAYERS.get(str(entry.get("origin")), cls) is not cls:
        raise RecordError(
            "a layer of the model cannot be quantized as the file has it",
            expected=f"a {entry.get('origin') or 'Linear, Conv or Embedding'}",
            found=qualified_name(type(layer)),
            hint="build the model as it was before burnt.quantize",
        )
    matrix = weight_matrix(layer)
    own = (
        (matrix.shape[0], *layer.get_parameter("weight").shape[1:]) if cls is QuantizedConv else matrix.shape
    )
    if shape is not None and _values_shape(tuple(own), scheme) != shape:
        raise RecordError(
            "a quantized layer has another size in the model than in the file",
            expected=f"values {shape} of {scheme.name}",
            found=f"a {type(layer).__name__} with a weight {tuple(layer.get_parameter('weight').shape)}",
            hint="build the model with the sizes of the file",
        )
    new = cls(layer, scheme)
    if has_bias and new.bias is None:  # a batch norm was folded into the layer
        new._parameters["bias"] = torch.nn.Parameter(
            torch.zeros(new.rows, dtype=new.weight_dtype, device=new.values.device)
        )
    return new


def _import_class(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise RecordError(
            "the class of the original layer cannot be imported",
            expected=name,
            found=str(error),
            hint="install or import what defines it",
        ) from None
