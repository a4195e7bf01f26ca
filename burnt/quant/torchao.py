"""Models that torchao has quantized, as burnt's quantized layers with equal values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from burnt.errors import QuantError
from burnt.kernels.ops.quantized.quantize import pack
from burnt.nn.quantized import Quantized, quantized_class
from burnt.quant.sites import check_model
from burnt.scheme import VALUES, QuantScheme


def from_torchao(model: torch.nn.Module) -> tuple[str, ...]:
    """Replace the layers of a model that torchao has quantized by burnt's, in place.

    Values and scales stay as they are: nothing is rounded again. What ``Int8WeightOnlyConfig``,
    ``Int8DynamicActivationInt8WeightConfig`` and ``IntxWeightOnlyConfig`` (int8, int4, int2) of torchao 0.18
    make is read. A file of its state dict is loaded with torch first, on trust, since it holds classes of
    torchao: ``model.load_state_dict(torch.load(path), assign=True)``.

    Returns:
        the paths of the layers that were replaced.

    Raises:
        ArgumentError: `model` is not a module.
        QuantError: a weight is quantized in another way, or there is none; the model is unchanged.
    """
    check_model(model, "burnt.quant.from_torchao")
    places = [
        (f"{path}.{name}" if path else name, parent, name, child)
        for path, parent in model.named_modules(remove_duplicate=False)
        for name, child in parent._modules.items()
        if child is not None and hasattr(child._parameters.get("weight"), "__tensor_flatten__")
    ]
    if not places:
        raise QuantError(
            "the model has no weights that torchao has quantized",
            where=type(model).__name__,
            expected="a model after torchao.quantization.quantize_(model, ...)",
            found="plain tensors",
        )
    new: dict[int, Quantized] = {}
    for path, _, _, layer in places:
        if id(layer) not in new:
            new[id(layer)] = _convert(path, layer)
    for _, parent, name, layer in places:
        setattr(parent, name, new[id(layer)])
    return tuple(path for path, *_ in places)


def _convert(path: str, layer: torch.nn.Module) -> Quantized:
    weight: Any = layer.get_parameter("weight")
    cls = quantized_class(layer)
    scheme = _scheme(path, weight)
    if cls is None:
        raise _refused(path, f"a {type(layer).__name__}", "Linear, Conv and Embedding layers")
    new = cls(layer, scheme)
    codes = weight.qdata.flatten(1)
    codes = F.pad(codes, (0, scheme.padded_columns(codes.shape[1]) - codes.shape[1]))
    with torch.no_grad():
        new.values.copy_(pack(codes, scheme.value).view(new.values.shape))
        new.scale.copy_(weight.scale.reshape(new.scale.shape))
        if new.zero_point is not None:
            new.zero_point.copy_(weight.zero_point.reshape(new.scale.shape))
    return new


def _scheme(path: str, weight: Any) -> QuantScheme:
    """Return the scheme of one of torchao's tensors, by its attributes: torchao is not imported."""
    kind = type(weight).__name__
    if kind == "Int8Tensor":
        value = "int8"
    elif kind == "IntxUnpackedToInt8Tensor":
        value = str(weight.target_dtype).removeprefix("torch.")
    else:
        raise _refused(path, f"a {kind}", "an Int8Tensor or IntxUnpackedToInt8Tensor")
    if value not in VALUES:
        raise _refused(path, f"values of {value}", "int8, int4 or int2")
    rows, columns = weight.shape[0], math.prod(weight.shape[1:])
    block = tuple(weight.block_size)
    size = math.prod(block[1:])
    if block[0] == rows and size == columns and rows > 1:
        level, group = "tensor", None
    elif block[0] == 1 and size == columns:
        level, group = "channel", None
    elif block[0] == 1 and weight.dim() == 2 and columns % size == 0:
        level, group = "block", size
    else:
        raise _refused(path, f"blocks of {block}", "a scale per tensor, row, or block of a row")
    zero_point = weight.zero_point
    return QuantScheme(
        value,
        level=level,  # type: ignore[arg-type]
        block=group,
        symmetric=zero_point is None or not bool(zero_point.any()),
        scale=str(weight.scale.dtype).removeprefix("torch."),
        activations=_activations(path, weight),
    )


def _activations(path: str, weight: Any) -> Any:
    """Return "dynamic" for inputs with one symmetric int8 scale per row, None for floats."""
    settings = getattr(weight, "act_quant_kwargs", None)
    other = getattr(weight, "activation_quantization", None)
    fixed = [getattr(weight, f"act_{name}", None) for name in ("quant_scale", "pre_scale")]
    if other is not None or any(value is not None for value in fixed):
        raise _refused(path, "static, smoothed or asymmetric inputs", "floating-point or dynamic int8 inputs")
    if settings is None:
        return None
    granularity = type(settings.granularity).__name__
    if granularity != "PerRow" or settings.mapping_type.name != "SYMMETRIC" or settings.reduce_range:
        raise _refused(path, f"inputs quantized by {settings}", "symmetric int8 inputs with a scale per row")
    return "dynamic"


def _refused(path: str, found: str, expected: str) -> QuantError:
    return QuantError(
        "a layer that torchao has quantized cannot be converted", where=path, expected=expected, found=found
    )
