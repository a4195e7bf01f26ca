"""Convolutions of one to three axes, with what comes after them: `conv` and `conv_transpose`.

What follows a convolution in a residual block, batch norm with fixed statistics, bias, residual and
activation, is a scale and a shift of each channel, a sum and a function: the tail of the convolution's own
kernel. On a CPU that kernel is oneDNN's (`burnt.kernels.ops.conv.onednn`), with weights that were scaled and
put into its own layout once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputRuntimeError, InputTypeError
from burnt.kernels.dispatch.op import Op, op
from burnt.kernels.interface.autocast import cast_all
from burnt.kernels.interface.checks import (
    check_floating,
    check_one_device,
    check_one_dtype,
    check_residual_dtype,
)
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.activation import activated, check_activation
from burnt.kernels.ops.conv.onednn import AxisSizes, Sizes, convolved, each, why_not_onednn, why_not_packed

__all__ = ["conv", "conv_transpose", "folded_norm"]

P = ParamSpec("P")
R = TypeVar("R")

_CONV = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def folded_norm(
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    conv_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Batch norm with fixed statistics as the `scale` and `bias` of a convolution before it.

    .. math:: s = w / \sqrt{\sigma^2 + \epsilon}, \quad b' = b + (b_c - \mu)\,s

    Args:
        mean: ``[channels]``, as `var`.
        var: ``[channels]``.
        weight: ``[channels]``, or None for ones.
        bias: ``[channels]``, or None for zeros.
        eps: added to the variance.
        conv_bias: ``[channels]``, the convolution's own bias.

    Returns:
        scale and bias, both ``[channels]``, of the mean's dtype.

    >>> x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    >>> mean, var = torch.randn(4), torch.rand(4) + 0.5
    >>> scale, bias = folded_norm(mean, var)
    >>> made = conv(x, w, bias, scale)
    >>> torch.allclose(made, F.batch_norm(F.conv2d(x, w), mean, var), atol=1e-4)
    True
    """
    scale = torch.rsqrt(var + eps) if weight is None else weight * torch.rsqrt(var + eps)
    shift = -mean * scale if conv_bias is None else (conv_bias - mean) * scale
    return scale, shift if bias is None else shift + bias


# --- what both check --------------------------------------------------------------------------------------


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
            f"x and weight of {name} are not of the same axes",
            where=f"burnt.kernels.{name}",
            expected="x [batch, channels, *axes] or [channels, *axes], weight [channels, channels, *axes], "
            "of one to three axes",
            found=f"x {list(x.shape)}, weight {list(weight.shape)}",
        )


def _check_sizes(name: str, axes: int, **sizes: Sizes) -> None:
    for what, given in sizes.items():
        least = 0 if "padding" in what else 1
        listed: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
        if not all(hasattr(size, "__index__") for size in listed):
            raise InputTypeError(
                f"{what} of {name} is no whole number",
                where=f"burnt.kernels.{name}",
                expected=f"a whole number of at least {least}" + f", or {axes} of them" * (axes > 1),
                found=repr(given),
            )
        if len(listed) not in (1, axes) or any(size < least for size in listed):
            raise InputRuntimeError(
                f"{what} of {name} does not fit its axes",
                where=f"burnt.kernels.{name}",
                expected=f"a number of at least {least}, or {axes} of them",
                found=given,
            )


def _check_channels(name: str, channels: int, **tensors: Tensor | None) -> None:
    for what, tensor in tensors.items():
        if tensor is not None and list(tensor.shape) != [channels]:
            raise InputRuntimeError(
                f"{what} of {name} is not one number for each channel",
                where=f"burnt.kernels.{name}",
                expected=[channels],
                found=list(tensor.shape),
            )


def _wrong_channels(name: str, x: Tensor, weight: Tensor, groups: int, expected: str) -> InputRuntimeError:
    return InputRuntimeError(
        f"x and weight of {name} do not have the same channels",
        where=f"burnt.kernels.{name}",
        expected=expected,
        found=f"x {list(x.shape)}, weight {list(weight.shape)}, {groups} groups",
    )


def _by_channel(parameter: Tensor, axes: int) -> Tensor:
    """``[channels]`` as it broadcasts to ``[*, channels, *axes]``."""
    return parameter.view(-1, *[1] * axes)


# --- conv -------------------------------------------------------------------------------------------------


def _check_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> None:
    _check_tensors("conv", x, weight, activation, bias=bias, scale=scale, residual=residual)
    axes, channels = weight.dim() - 2, weight.shape[0]
    _check_sizes("conv", axes, stride=stride, padding=padding, dilation=dilation)
    _check_sizes("conv", 1, groups=groups)
    if groups < 1 or channels % groups or x.shape[-axes - 1] != weight.shape[1] * groups:
        expected = (
            f"x of {weight.shape[1]} channels for each group, and a multiple of {groups} channels of weight"
        )
        raise _wrong_channels("conv", x, weight, groups, expected)
    _check_channels("conv", channels, bias=bias, scale=scale)
    made = [
        (size + 2 * pad - dilate * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, dilate in zip(
            x.shape[-axes:],
            weight.shape[2:],
            each(stride, axes),
            each(padding, axes),
            each(dilation, axes),
            strict=True,
        )
    ]
    if min(made) < 1:
        raise InputRuntimeError(
            "the kernel of conv is larger than x with its padding",
            where="burnt.kernels.conv",
            expected="an output of at least one element along each axis",
            found=f"x {list(x.shape)}, weight {list(weight.shape)}, padding {padding}, dilation {dilation}",
        )
    shape = [*x.shape[: -axes - 1], channels, *made]
    if residual is not None and list(residual.shape) != shape:
        raise InputRuntimeError(
            "residual of conv has another shape than what it is added to",
            where="burnt.kernels.conv",
            expected=shape,
            found=list(residual.shape),
        )


def _examples_of_conv(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for shape, channels, kernel, step in [
        ((8, 64, 56, 56), 64, 3, 1),
        ((8, 64, 56, 56), 128, 1, 1),
        ((2, 5, 17, 13), 7, 3, 2),
    ]:
        for last in (False, True):
            x = torch.randn(shape, device=device)
            weight = torch.randn(channels, shape[1], kernel, kernel, device=device) / shape[1] ** 0.5
            if last:
                x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
            bias, scale = torch.randn(channels, device=device), torch.rand(channels, device=device)
            sizes = (step, kernel // 2, 1, 1)
            made.append((x, weight, bias, None, None, None, *sizes))
            residual = torch.randn_like(F.conv2d(x, weight, None, step, kernel // 2))
            made.append((x, weight, bias, scale, residual, "relu", *sizes))
    return made


def _conv_is_all(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    *rest: Any,
) -> bool:
    """Nothing is computed beside it: torch's libraries are hard to beat at that."""
    return scale is None and residual is None and activation is None


def _autocast_conv(
    dtype: torch.dtype,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    *rest: Any,
) -> tuple[Any, ...]:
    """The residual is added to what was computed, as it is."""
    return (*cast_all(dtype, x, weight, bias, scale), *rest)


class _OfWords(Op[P, R]):
    """An op whose argument `padding` may be a word, as torch's functions have it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As `Op` does."""
        given: Any = args
        if kwargs or len(args) != self.arity or isinstance(args[self.positions["padding"]], str):
            given = self.bind(args, kwargs)
        return super().__call__(*given)  # type: ignore[call-arg]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """As `Op` does, the padding as numbers.

        Raises:
            InputRuntimeError: a word that says no padding here.
        """
        full = super().bind(args, kwargs)
        at = self.positions["padding"]
        if not isinstance(full[at], str):
            return full
        named = dict(zip(self.positions, full, strict=True))
        x, padding = _padded(named["x"], named["weight"], full[at], named["stride"], named["dilation"])
        return (x, *full[1:at], padding, *full[at + 1 :])


def _padded(x: Tensor, weight: Tensor, padding: str, stride: Sizes, dilation: Sizes) -> tuple[Tensor, Sizes]:
    """What a word says as numbers, and `x` with a zero more on the right where the sides differ."""
    if padding == "valid":
        return x, 0
    axes = weight.dim() - 2
    steps = each(stride, axes)
    if padding != "same" or any(step != 1 for step in steps):
        raise InputRuntimeError(
            "the padding of conv says no numbers",
            where="burnt.kernels.conv",
            expected="'valid', 'same' with a stride of 1, or numbers",
            found=f"{padding!r}, and a stride of {stride}",
        )
    spans = [apart * (size - 1) for size, apart in zip(weight.shape[2:], each(dilation, axes), strict=False)]
    if any(span % 2 for span in spans):
        x = F.pad(x, [side for span in reversed(spans) for side in (0, span % 2)])
    return x, [span // 2 for span in spans]


@functools.partial(
    _OfWords,
    check=_check_conv,
    examples=_examples_of_conv,
    library_best=_conv_is_all,
    autocast=_autocast_conv,
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
    r"""A convolution (cross-correlation), :math:`f(s\,(W \star x) + b + r)`.

    Args:
        x: ``[batch, in_channels, *axes]`` or ``[in_channels, *axes]``, one to three axes, of a
            floating-point dtype.
        weight: ``[out_channels, in_channels / groups, *kernel]``, of the same dtype, as the others.
        bias: ``[out_channels]``.
        scale: ``[out_channels]``, of each channel before the bias: `folded_norm` makes both of a batch norm.
        residual: of the result's shape, added before the activation, as residual blocks do; of float32, too,
            where `x` has 16 bits.
        activation: a key of `burnt.kernels.ACTIVATIONS`.
        stride: elements between outputs, as the next two for all axes or for each.
        padding: zeros on each side; ``"valid"`` for none, ``"same"`` for as many as keep the size, with a
            stride of 1.
        dilation: elements between those that the kernel looks at.
        groups: blocks of channels, each seen by as many outputs.

    Returns:
        ``[batch, out_channels, *(size + 2 padding - dilation (kernel - 1) - 1) // stride + 1]``, as `x`, or
        as the residual where that is wider.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputTypeError: a size that is no whole number.
        InputUnsupportedError: not of a floating-point dtype.
        InputValueError: an activation that is not known.

    As `torch.nn.functional.conv1d` to ``conv3d``, with what often follows in the same kernel.

    >>> conv(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2), torch.tensor([-5.0]), activation="relu").sum()
    tensor(0.)
    """
    axes = weight.dim() - 2
    plain = _CONV[min(axes, 3) - 1](
        x, weight, bias if scale is None else None, stride, padding, dilation, groups
    )
    if scale is not None:
        # Under autocast the convolution is of another dtype than they.
        plain = plain * _by_channel(scale, axes).to(plain.dtype)
        plain = plain if bias is None else plain + _by_channel(bias, axes).to(plain.dtype)
    return activated(plain if residual is None else plain + residual, activation)


# --- conv on a CPU ----------------------------------------------------------------------------------------


def _why_not_onednn(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, residual: Tensor | None, *rest: Any
) -> str | None:
    return why_not_onednn(x, weight, residual)


@conv.candidate("onednn", devices=["cpu"], when=_why_not_onednn, best=lambda *_: False, differentiable=True)
def _by_onednn(x: Tensor, weight: Tensor, *rest: Any, packed: bool = False) -> Tensor:
    bias, scale, residual, activation, stride, padding, dilation, groups = rest
    sizes = AxisSizes.of(weight, stride, padding, dilation, groups)
    return convolved(x, weight, bias, scale, residual, activation, sizes, packed)


def _why_not_packed(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, residual: Tensor | None, *rest: Any
) -> str | None:
    if wants_gradient(x, weight, bias, scale, residual):
        return "a gradient is wanted: the weight changes with each step"
    return why_not_packed(x, weight, residual, kept=(weight, bias, scale))


def _packed_best(x: Tensor, weight: Tensor, *rest: Any) -> bool:
    return isinstance(weight, torch.nn.Parameter) and weight.dim() > 3


conv.candidate(
    "onednn packed", devices=["cpu"], when=_why_not_packed, best=_packed_best, differentiable=True
)(functools.partial(_by_onednn, packed=True))


# --- conv_transpose ---------------------------------------------------------------------------------------


def _check_transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> None:
    name = "conv_transpose"
    _check_tensors(name, x, weight, activation, bias=bias)
    axes = weight.dim() - 2
    _check_sizes(name, axes, stride=stride, padding=padding, output_padding=output_padding, dilation=dilation)
    _check_sizes(name, 1, groups=groups)
    if groups < 1 or weight.shape[0] % groups or x.shape[-axes - 1] != weight.shape[0]:
        expected = f"x of {weight.shape[0]} channels, a multiple of the groups"
        raise _wrong_channels(name, x, weight, groups, expected)
    _check_channels(name, weight.shape[1] * groups, bias=bias)
    added = zip(each(output_padding, axes), each(stride, axes), each(dilation, axes), strict=True)
    if any(more >= max(step, dilate) for more, step, dilate in added):
        raise InputRuntimeError(
            "output_padding of conv_transpose reaches beyond what it may choose between",
            where="burnt.kernels.conv_transpose",
            expected="less than stride or dilation",
            found=f"output_padding {output_padding}, stride {stride}, dilation {dilation}",
        )
    made = [
        (size - 1) * step - 2 * pad + dilate * (kernel - 1) + 1 + more
        for size, kernel, step, pad, dilate, more in zip(
            x.shape[-axes:],
            weight.shape[2:],
            *(each(sizes, axes) for sizes in (stride, padding, dilation, output_padding)),
            strict=True,
        )
    ]
    if min(made) < 1:
        raise InputRuntimeError(
            "the padding of conv_transpose cuts off all that there is",
            where=f"burnt.kernels.{name}",
            expected="an output of at least one element along each axis",
            found=f"{made}, of x {list(x.shape)}, weight {list(weight.shape)}, padding {padding}",
        )


def _examples_of_transposed(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for shape, channels, kernel, step in [((8, 64, 28, 28), 32, 4, 2), ((2, 5, 7, 6), 3, 3, 1)]:
        x = torch.randn(shape, device=device)
        weight = torch.randn(shape[1], channels, kernel, kernel, device=device) / shape[1] ** 0.5
        made.append((x, weight, torch.randn(channels, device=device), "relu", step, 1, 0, 1, 1))
    return made


@op(
    check=_check_transposed,
    examples=_examples_of_transposed,
    library_best=lambda x, weight, bias, activation, *rest: activation is None,
    autocast=cast_all,
)
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
    r"""The gradient of `conv` with respect to its input, as a layer that makes images larger.

    Args:
        x: ``[batch, in_channels, *axes]`` or ``[in_channels, *axes]``, one to three axes, of a
            floating-point dtype.
        weight: ``[in_channels, out_channels / groups, *kernel]``, of the same dtype, as the bias.
        bias: ``[out_channels]``.
        activation: a key of `burnt.kernels.ACTIVATIONS`.
        stride: elements between inputs as the output has them, as the others for all axes or for each.
        padding: elements of the output that are cut off on each side.
        output_padding: elements added at the end of each axis, less than `stride` or `dilation`.
        groups: blocks of channels, each seen by as many outputs.
        dilation: elements between those that the kernel writes.

    Returns:
        ``[batch, out_channels, *axes]`` of ``(size - 1) stride - 2 padding + dilation (kernel - 1) + 1 +
        output_padding`` elements.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputTypeError: a size that is no whole number.
        InputUnsupportedError: not of a floating-point dtype.
        InputValueError: an activation that is not known.

    As `torch.nn.functional.conv_transpose1d` to ``conv_transpose3d``.

    >>> conv_transpose(torch.ones(1, 1, 2), torch.tensor([[[1.0, 2.0]]]), stride=2)
    tensor([[[1., 2., 1., 2.]]])
    """
    transposed = _TRANSPOSED[min(weight.dim(), 5) - 3]
    made = transposed(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return activated(made, activation)


# --- conv_transpose on a CPU ------------------------------------------------------------------------------


def _why_not_transposed(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    return why_not_onednn(x, weight)


@conv_transpose.candidate(
    "onednn", devices=["cpu"], when=_why_not_transposed, best=lambda *_: False, differentiable=True
)
def _transposed_by_onednn(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, *rest: Any, packed: bool = False
) -> Tensor:
    stride, padding, output_padding, groups, dilation = rest
    sizes = AxisSizes.of(weight, stride, padding, dilation, groups, output_padding)
    return convolved(x, weight, bias, None, None, activation, sizes, packed)


def _why_not_transposed_packed(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> str | None:
    if wants_gradient(x, weight, bias):
        return "a gradient is wanted: the weight changes with each step"
    return why_not_packed(x, weight, None, kept=(weight, bias))


conv_transpose.candidate(
    "onednn packed",
    devices=["cpu"],
    when=_why_not_transposed_packed,
    best=lambda *_: False,
    differentiable=True,
)(functools.partial(_transposed_by_onednn, packed=True))
