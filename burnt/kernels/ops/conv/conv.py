"""Convolutions over one to three axes with a fused epilogue: `conv` and `conv_transpose`.

In a residual block a convolution is followed by batch norm with fixed statistics, bias, residual and
activation. These are a scale and a shift per channel, a sum and a function: the epilogue of the convolution
kernel.

On a CPU the candidate ``onednn packed`` computes images and volumes in channels-last layout, without
gradients. oneDNN fuses the activations that it supports; the weight is scaled, converted to oneDNN's own
layout, and cached until it changes. The residual is added after the kernel: fused into it, it makes kernels
up to a third slower and never faster (8 x 64 to 256 channels x 56 x 56: 4.3 ms instead of 3.1, two threads of
a Zen 5).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.device import processor
from burnt.errors import InputRuntimeError, InputTypeError
from burnt.kernels.dispatch.op import Op, op
from burnt.kernels.interface.autocast import cast_all
from burnt.kernels.interface.checks import (
    check_floating,
    check_one_device,
    check_one_dtype,
    check_residual_dtype,
    check_shape,
)
from burnt.kernels.interface.derived import derive
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.activation import apply_activation, check_activation

Sizes = int | Sequence[int]

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
EPILOGUES = {  # activations fused by oneDNN. relu is not among them: oneDNN's returns 0 for NaN.
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "hardswish": ("hardswish", ""),
}


def expand_sizes(sizes: Sizes, axes: int) -> list[int]:
    """Return one number per axis."""
    sizes_list = [sizes] if isinstance(sizes, int) else list(sizes)
    return sizes_list * axes if len(sizes_list) == 1 else sizes_list


def unsupported_reason(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    """Return why oneDNN cannot compute a convolution with a packed weight, or None."""
    bias, scale, residual, *_ = rest
    if wants_gradient(x, weight, bias, scale, residual):
        return "a gradient is required: the weight changes with every step"
    if x.dtype not in processor().onednn:
        return f"oneDNN does not support {str(x.dtype).removeprefix('torch.')} on this machine"
    if x.dim() != weight.dim() or x.dim() not in _CHANNELS_LAST:
        return "x is not a batch of images or volumes"
    channels_last = _CHANNELS_LAST[x.dim()]
    if not x.is_contiguous(memory_format=channels_last) or x.is_contiguous():
        return "x is not channels-last"
    if residual is not None and residual.dtype != x.dtype:
        return "the residual has another dtype than x"
    if residual is not None and not residual.is_contiguous(memory_format=channels_last):
        return "the residual is not channels-last"
    if any(t is not None and t.is_inference() for t in (weight, bias, scale)):
        return "changes of the weight cannot be detected (inference tensor)"
    if weight.dim() == 5 and weight[0, 0].numel() == 1 and torch.get_num_threads() == 1:
        return "a 1 x 1 x 1 kernel in one thread, where torch returns another memory layout"
    return None if x.numel() and weight.numel() else "an empty tensor"


def packed_conv(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """Compute `burnt.kernels.conv`."""
    bias, scale, residual, activation, stride, padding, dilation, groups = rest
    stride, padding, dilation = (expand_sizes(sizes, x.dim() - 2) for sizes in (stride, padding, dilation))
    sizes = padding, stride, dilation, groups

    def pack() -> Tensor:
        plain = weight.detach()
        if scale is not None:
            plain = plain * scale.detach().view(-1, *[1] * (plain.dim() - 1))
        plain = plain.contiguous(memory_format=_CHANNELS_LAST[plain.dim()])
        return _torch.onednn_packed_conv(plain, x.shape, *sizes)

    uses_per_element = x.numel() // x.shape[1] // math.prod(stride)
    state = _torch.state_of(weight, uses_per_element), _torch.state_of(scale), str(sizes)
    packed = derive(weight, "conv", state, pack, keep_alive=scale)
    fused_activation = activation if residual is None and activation in EPILOGUES else None
    output = _torch.onednn_conv(x, packed, bias, *sizes, *EPILOGUES[fused_activation])
    if residual is not None:
        output = output.add_(residual)
    if activation != fused_activation:
        output = output.relu_() if activation == "relu" else apply_activation(output, activation)
    return output


P = ParamSpec("P")
R = TypeVar("R")

_CONV = (F.conv1d, F.conv2d, F.conv3d)
_CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def folded_norm(
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    conv_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Fold a batch norm with fixed statistics into the `scale` and `bias` of the preceding convolution.

    .. math:: s = w / \sqrt{\sigma^2 + \epsilon}, \quad b' = b + (b_c - \mu)\,s

    Args:
        mean: running mean, ``[channels]``.
        var: running variance, ``[channels]``.
        weight: ``[channels]``, or None for ones.
        bias: ``[channels]``, or None for zeros.
        eps: number added to the variance.
        conv_bias: ``[channels]``, the convolution's own bias, or None.

    Returns:
        The pair ``(scale, bias)``, both ``[channels]``, in the dtype of `mean`.

    >>> x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    >>> mean, var = torch.randn(4), torch.rand(4) + 0.5
    >>> scale, bias = folded_norm(mean, var)
    >>> y = conv(x, w, bias, scale)
    >>> torch.allclose(y, F.batch_norm(F.conv2d(x, w), mean, var), atol=1e-4)
    True
    """
    scale = torch.rsqrt(var + eps) if weight is None else weight * torch.rsqrt(var + eps)
    shift = -mean * scale if conv_bias is None else (conv_bias - mean) * scale
    return scale, shift if bias is None else shift + bias


# --- checks of both ops -----------------------------------------------------------------------------------


def _check_tensors(
    name: str, x: Tensor, weight: Tensor, activation: str | None, **others: Tensor | None
) -> None:
    check_activation(name, activation)
    check_floating(name, x=x, weight=weight)
    check_one_device(name, x=x, weight=weight, **others)
    check_residual_dtype(name, x, others.pop("residual", None))
    check_one_dtype(name, x=x, weight=weight, **others)
    axes = weight.dim() - 2
    if not 1 <= axes <= 3 or x.dim() not in (axes + 1, axes + 2):
        raise InputRuntimeError(
            f"x and weight of {name} do not have matching axes",
            where=f"burnt.kernels.{name}",
            expected="x [batch, channels, *axes] or [channels, *axes], weight [channels, channels, *axes], "
            "with one to three axes",
            found=f"x {list(x.shape)}, weight {list(weight.shape)}",
        )


def _check_sizes(name: str, axes: int, **sizes: Sizes) -> None:
    for size_name, value in sizes.items():
        minimum = 0 if "padding" in size_name else 1
        sizes_list: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
        if not all(hasattr(size, "__index__") for size in sizes_list):
            raise InputTypeError(
                f"{size_name} of {name} is not an integer",
                where=f"burnt.kernels.{name}",
                expected=f"an integer of at least {minimum}" + f", or {axes} of them" * (axes > 1),
                found=repr(value),
            )
        if len(sizes_list) not in (1, axes) or any(size < minimum for size in sizes_list):
            raise InputRuntimeError(
                f"{size_name} of {name} is not valid",
                where=f"burnt.kernels.{name}",
                expected=f"an integer of at least {minimum}, or {axes} of them",
                found=value,
            )


def _channels_error(name: str, x: Tensor, weight: Tensor, groups: int, expected: str) -> InputRuntimeError:
    return InputRuntimeError(
        f"the channels of x and weight of {name} do not match",
        where=f"burnt.kernels.{name}",
        expected=expected,
        found=f"x {list(x.shape)}, weight {list(weight.shape)}, {groups} groups",
    )


def _by_channel(parameter: Tensor, axes: int) -> Tensor:
    """View ``[channels]`` so that it broadcasts to ``[*, channels, *axes]``."""
    return parameter.view(-1, *[1] * axes)


# --- conv -------------------------------------------------------------------------------------------------


def _check_conv(*args: Any) -> None:
    x, weight, bias, scale, residual, activation, stride, padding, dilation, groups = args
    _check_tensors("conv", x, weight, activation, bias=bias, scale=scale, residual=residual)
    axes, channels = weight.dim() - 2, weight.shape[0]
    _check_sizes("conv", axes, stride=stride, padding=padding, dilation=dilation)
    _check_sizes("conv", 1, groups=groups)
    if groups < 1 or channels % groups or x.shape[-axes - 1] != weight.shape[1] * groups:
        expected = (
            f"x with {weight.shape[1]} channels per group, and weight.shape[0] a multiple of {groups} groups"
        )
        raise _channels_error("conv", x, weight, groups, expected)
    check_shape("conv", "bias", bias, [channels])
    check_shape("conv", "scale", scale, [channels])
    step, pad, dilate = (expand_sizes(sizes, axes) for sizes in (stride, padding, dilation))
    output_sizes = [
        (size + 2 * p - d * (kernel - 1) - 1) // s + 1
        for size, kernel, s, p, d in zip(x.shape[-axes:], weight.shape[2:], step, pad, dilate, strict=True)
    ]
    if min(output_sizes) < 1:
        raise InputRuntimeError(
            "the kernel of conv is larger than the padded x",
            where="burnt.kernels.conv",
            expected="an output of at least one element along each axis",
            found=f"x {list(x.shape)}, weight {list(weight.shape)}, padding {padding}, dilation {dilation}",
        )
    shape = [*x.shape[: -axes - 1], channels, *output_sizes]
    check_shape("conv", "residual", residual, shape)


def _conv_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for shape, channels, kernel, step in [
        ((8, 64, 56, 56), 64, 3, 1),
        ((8, 64, 56, 56), 128, 1, 1),
        ((2, 5, 17, 13), 7, 3, 2),
    ]:
        for use_channels_last in (False, True):
            x = torch.randn(shape, device=device)
            weight = torch.randn(channels, shape[1], kernel, kernel, device=device) / shape[1] ** 0.5
            if use_channels_last:
                x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
            bias, scale = torch.randn(channels, device=device), torch.rand(channels, device=device)
            sizes = (step, kernel // 2, 1, 1)
            examples.append((x, weight, bias, None, None, None, *sizes))
            residual = torch.randn_like(F.conv2d(x, weight, None, step, kernel // 2))
            examples.append((x, weight, bias, scale, residual, "relu", *sizes))
    return examples


def _autocast_conv(dtype: torch.dtype, *args: Any) -> tuple[Any, ...]:
    """Cast all but the residual, which is added in its own dtype."""
    return (*cast_all(dtype, *args[:4]), *args[4:])


def _is_small(x: Tensor, weight: Tensor, *rest: Any) -> bool:
    """Whether selecting a faster convolution takes longer than it saves; for complex numbers none exists."""
    multiplications = x.numel() * weight.numel() // max(x.shape[1 - weight.dim()], 1)
    return multiplications < 1 << 20 or weight.is_complex()


class _OpWithNamedPadding(Op[P, R]):
    """An op whose argument `padding` may be ``"same"`` or ``"valid"``, as in torch's functions."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the op; see `Op`."""
        call_args: Any = args
        if kwargs or len(args) != self.arity or isinstance(args[self.positions["padding"]], str):
            call_args = self.bind(args, kwargs)
        return super().__call__(*call_args)  # type: ignore[call-arg]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Bind arguments like `Op`, with the padding converted to numbers."""
        bound_args = super().bind(args, kwargs)
        index = self.positions["padding"]
        if not isinstance(bound_args[index], str):
            return bound_args
        by_name = dict(zip(self.positions, bound_args, strict=True))
        x, padding = _resolve_padding(
            by_name["x"], by_name["weight"], bound_args[index], by_name["stride"], by_name["dilation"]
        )
        return (x, *bound_args[1:index], padding, *bound_args[index + 1 :])


def _resolve_padding(
    x: Tensor, weight: Tensor, padding: str, stride: Sizes, dilation: Sizes
) -> tuple[Tensor, Sizes]:
    """Convert ``"same"`` or ``"valid"`` to numbers; if "same" is asymmetric, pad `x` by a zero at the end."""
    if padding == "valid":
        return x, 0
    axes = weight.dim() - 2
    steps = expand_sizes(stride, axes)
    if padding != "same" or any(step != 1 for step in steps):
        raise InputRuntimeError(
            "this padding of conv is not supported",
            where="burnt.kernels.conv",
            expected="'valid', 'same' with a stride of 1, or numbers",
            found=f"{padding!r}, and a stride of {stride}",
        )
    spans = [
        dilate * (size - 1)
        for size, dilate in zip(weight.shape[2:], expand_sizes(dilation, axes), strict=False)
    ]
    if any(span % 2 for span in spans):
        x = F.pad(x, [side for span in reversed(spans) for side in (0, span % 2)])
    return x, [span // 2 for span in spans]


@functools.partial(
    _OpWithNamedPadding, check=_check_conv, examples=_conv_examples, small=_is_small, autocast=_autocast_conv
)
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    r"""Convolve (cross-correlate) `x`, with an optional epilogue: :math:`f(s\,(W \star x) + b + r)`.

    Args:
        x: ``[batch, in_channels, *axes]`` or ``[in_channels, *axes]``, with one to three axes,
            floating-point.
        weight: ``[out_channels, in_channels / groups, *kernel]``, in the dtype of `x`, like the arguments
            below.
        bias: ``[out_channels]``, added to the result.
        scale: ``[out_channels]``, multiplied before the bias is added; `folded_norm` computes scale and bias
            from a batch norm.
        residual: a tensor of the result's shape, added before the activation, as in residual blocks; may be
            float32 if `x` has 16 bits.
        activation: the activation applied last, a key of `burnt.kernels.ACTIVATIONS`.
        stride: step between windows; like the next two one number, or one per axis.
        padding: number of zeros on each side; ``"valid"`` is none, ``"same"`` keeps the size and needs a
            stride of 1.
        dilation: step between the elements of a window.
        groups: number of groups that the channels are divided into; each is convolved separately.

    Returns:
        ``[batch, out_channels, *(size + 2 padding - dilation (kernel - 1) - 1) // stride + 1]``, in the dtype
        of `x`, or of the residual if that is wider.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not match, or a size is out of range.
        InputTypeError: a size is not an integer.

    Like `torch.nn.functional.conv1d` to ``conv3d``, with the epilogue fused into the kernel.

    >>> conv(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2), torch.tensor([-5.0]), activation="relu").sum()
    tensor(0.)
    """
    axes = weight.dim() - 2
    output = _CONV[min(axes, 3) - 1](
        x, weight, bias if scale is None else None, stride, padding, dilation, groups
    )
    if scale is not None:
        # Under autocast the convolution returns another dtype than scale and bias have.
        output = output * _by_channel(scale, axes).to(output.dtype)
        output = output if bias is None else output + _by_channel(bias, axes).to(output.dtype)
    return apply_activation(output if residual is None else output + residual, activation)


conv.candidate(
    "onednn packed",
    devices=["cpu"],
    when=unsupported_reason,
    best=lambda x, weight, *_: isinstance(weight, torch.nn.Parameter),
    differentiable=True,
)(packed_conv)


# --- conv_transpose ---------------------------------------------------------------------------------------


def _check_conv_transpose(*args: Any) -> None:
    x, weight, bias, activation, stride, padding, output_padding, groups, dilation = args
    name = "conv_transpose"
    _check_tensors(name, x, weight, activation, bias=bias)
    axes = weight.dim() - 2
    _check_sizes(name, axes, stride=stride, padding=padding, output_padding=output_padding, dilation=dilation)
    _check_sizes(name, 1, groups=groups)
    if groups < 1 or weight.shape[0] % groups or x.shape[-axes - 1] != weight.shape[0]:
        expected = f"x with {weight.shape[0]} channels, divisible by the number of groups"
        raise _channels_error(name, x, weight, groups, expected)
    check_shape(name, "bias", bias, [weight.shape[1] * groups])
    step, pad, dilate, more = (
        expand_sizes(sizes, axes) for sizes in (stride, padding, dilation, output_padding)
    )
    if any(extra >= max(s, d) for extra, s, d in zip(more, step, dilate, strict=True)):
        raise InputRuntimeError(
            "output_padding of conv_transpose is too large",
            where="burnt.kernels.conv_transpose",
            expected="less than stride or dilation",
            found=f"output_padding {output_padding}, stride {stride}, dilation {dilation}",
        )
    output_sizes = [
        (size - 1) * s - 2 * p + d * (kernel - 1) + 1 + extra
        for size, kernel, s, p, d, extra in zip(
            x.shape[-axes:], weight.shape[2:], step, pad, dilate, more, strict=True
        )
    ]
    if min(output_sizes) < 1:
        raise InputRuntimeError(
            "the output of conv_transpose would be empty",
            where=f"burnt.kernels.{name}",
            expected="an output of at least one element along each axis",
            found=f"{output_sizes}, of x {list(x.shape)}, weight {list(weight.shape)}, padding {padding}",
        )


def _conv_transpose_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for shape, channels, kernel, step in [((8, 64, 28, 28), 32, 4, 2), ((2, 5, 7, 6), 3, 3, 1)]:
        x = torch.randn(shape, device=device)
        weight = torch.randn(shape[1], channels, kernel, kernel, device=device) / shape[1] ** 0.5
        examples.append((x, weight, torch.randn(channels, device=device), "relu", step, 1, 0, 1, 1))
    return examples


@op(check=_check_conv_transpose, examples=_conv_transpose_examples, small=_is_small, autocast=cast_all)
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """Apply a transposed convolution: the gradient of `conv` with respect to its input, used for upsampling.

    Args:
        weight: ``[in_channels, out_channels / groups, *kernel]``, in the dtype of `x`, like the bias.
        stride: step between the windows that inputs write to; like the others one number, or one per axis.
        padding: number of output elements cut off on each side.
        output_padding: number of elements added at the end of each axis, less than `stride` or `dilation`.
        x, bias, activation, groups, dilation: the same arguments as in `conv`.

    Returns:
        ``[batch, out_channels, *axes]``, with ``(size - 1) stride - 2 padding + dilation (kernel - 1) + 1 +
        output_padding`` elements along each axis, in the dtype of `x`.

    Errors are as in `conv`. Like `torch.nn.functional.conv_transpose1d` to ``conv_transpose3d``.

    >>> conv_transpose(torch.ones(1, 1, 2), torch.tensor([[[1.0, 2.0]]]), stride=2)
    tensor([[[1., 2., 1., 2.]]])
    """
    convolve = _CONV_TRANSPOSE[min(weight.dim(), 5) - 3]
    output = convolve(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return apply_activation(output, activation)
