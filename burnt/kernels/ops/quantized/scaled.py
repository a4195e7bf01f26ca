"""`scaled_linear` and `scaled_conv`: quantized weights and inputs, exact sums of integers, fused scales."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputRuntimeError, InputValueError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import cast_none
from burnt.kernels.interface.checks import check_floating, check_one_device
from burnt.kernels.ops.activation import apply_activation, check_activation
from burnt.kernels.ops.conv.onednn import Sizes, expand_sizes
from burnt.kernels.ops.quantized.quantize import check_scale, is_floating, quantized_example
from burnt.kernels.ops.quantized.values import check_values, decode, encode, value_type
from burnt.kernels.ops.quantized.weight_only import check_bias

_EXACT = 1 << 10  # products of 8-bit integers whose sum float32 holds exactly: 2^24 / 2^14


def exact_linear(x: Tensor, weight: Tensor, terms: int = _EXACT) -> Tensor:
    """Multiply matrices of integers ``[*, m, k]`` and ``[*, n, k]`` exactly: int64 ``[*, m, n]``.

    float32 holds sums of up to `terms` products; longer ones are added as integers.
    """
    parts = zip(torch.split(x, terms, -1), torch.split(weight, terms, -1), strict=True)
    sums = [(a.float() @ b.float().mT).to(torch.int64) for a, b in parts]
    total = sums[0] if sums else x.new_zeros(*x.shape[:-1], weight.shape[-2], dtype=torch.int64)
    for part in sums[1:]:
        total = total + part
    return total


def _check_output(
    name: str, out_scale: Tensor | None, out_zero_point: Tensor | None, dtype: torch.dtype | None
) -> None:
    if out_scale is None and not is_floating(dtype):
        raise InputValueError(
            f"the dtype of {name} is not floating-point",
            where=f"burnt.kernels.{name}",
            expected="a floating-point dtype; out_scale for int8 results",
            found=dtype,
        )
    if (out_scale is None and out_zero_point is not None) or (
        out_scale is not None and out_scale.numel() != 1
    ):
        raise InputRuntimeError(
            f"out_scale of {name} is not one number",
            where=f"burnt.kernels.{name}",
            expected="a tensor with one element, with or without out_zero_point",
            found="None" if out_scale is None else list(out_scale.shape),
        )


def _check_linear(
    x: Tensor,
    values: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    x_zero_point: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    out_scale: Tensor | None,
    out_zero_point: Tensor | None,
    value: str,
    dtype: torch.dtype | None,
    zero_point: Tensor | None,
) -> None:
    name = "scaled_linear"
    check_activation(name, activation)
    check_one_device(
        name, x=x, values=values, x_scale=x_scale, scale=scale, x_zero_point=x_zero_point, bias=bias
    )
    check_floating(name, x_scale=x_scale, scale=scale)
    kind = value_type(name, value)
    if kind.bits != 8:
        raise InputValueError(
            f"{name} multiplies values of 8 bits",
            where=f"burnt.kernels.{name}",
            expected="int8, float8_e4m3 or float8_e5m2",
            found=value,
        )
    check_values(name, values, value)
    check_values(name, x, value)
    if values.dim() != 2 or x.dim() < 1 or x.shape[-1] != values.shape[1]:
        raise InputRuntimeError(
            f"the shapes of x and values of {name} do not match",
            where=f"burnt.kernels.{name}",
            expected="x [*, in_features] for values [out_features, in_features]",
            found=f"x {list(x.shape)}, values {list(values.shape)}",
        )
    if x_scale.numel() != 1 and list(x_scale.shape) != [*x.shape[:-1], 1]:
        raise InputRuntimeError(
            f"x_scale of {name} has the wrong shape",
            where=f"burnt.kernels.{name}",
            expected=f"one element, or {[*x.shape[:-1], 1]}",
            found=list(x_scale.shape),
        )
    _check_zero_point(name, x_zero_point, value)
    _check_integers(name, zero_point, value)
    check_scale(name, values.shape[0], values.shape[1], scale, zero_point, 0)
    check_bias(name, values.shape[0], bias)
    _check_output(name, out_scale, out_zero_point, dtype)


def _check_zero_point(name: str, x_zero_point: Tensor | None, value: str) -> None:
    if x_zero_point is None:
        return
    if value != "int8" or x_zero_point.numel() != 1 or x_zero_point.dtype != torch.int8:
        raise InputRuntimeError(
            f"x_zero_point of {name} is not one integer",
            where=f"burnt.kernels.{name}",
            expected="None, or with int8 values an int8 tensor with one element",
            found=f"{x_zero_point.dtype} {list(x_zero_point.shape)} with {value}",
        )


def _check_integers(name: str, zero_point: Tensor | None, value: str) -> None:
    if zero_point is not None and value != "int8":
        raise InputValueError(
            f"{value} has no zero points",
            where=f"burnt.kernels.{name}",
            expected="zero_point=None, or int8 values",
            found=f"zero_point {list(zero_point.shape)}",
        )


def _linear_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for m, k, n, value, zero in [
        (1024, 1024, 1024, "int8", False),
        (512, 768, 3072, "int8", True),
        (64, 256, 128, "float8_e4m3", False),
        (5, 7, 3, "int8", True),
        (1, 2100, 9, "int8", False),
    ]:
        values, scale, _ = quantized_example(device, n, k, value)
        x, x_scale, _ = quantized_example(device, m, k, value)
        zero_point = torch.tensor(3, dtype=torch.int8, device=device) if zero else None
        x_scale = x_scale[:1, 0] if zero else x_scale
        bias = torch.randn(n, device=device)
        rest = (bias, None, None, None, value, torch.float32, None)
        examples.append((x, values, x_scale, scale, zero_point, *rest))
    return examples


def _finish(
    out: Tensor,
    activation: str | None,
    out_scale: Tensor | None,
    out_zero_point: Tensor | None,
    value: str,
    dtype: torch.dtype | None,
) -> Tensor:
    out = apply_activation(out, activation)
    if out_scale is None:
        return out if dtype is None else out.to(dtype)
    return encode(out / out_scale.to(out.dtype), value, out_zero_point, value_type("scaled", value).smallest)


def sum_rows(values: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the sums of the rows of a weight ``[rows, columns]`` less its zero points: ``[rows]``."""
    sums = values.sum(1, dtype=dtype)
    return sums if zero_point is None else sums - values.shape[1] * zero_point.reshape(-1).to(dtype)


def less_zero_point(values: Tensor, zero_point: Tensor) -> Tensor:
    """Subtract zero points ``[rows, 1]`` or ``[1, 1]`` from values ``[rows, ...]``: int16."""
    return values.to(torch.int16) - zero_point.reshape(-1, *[1] * (values.dim() - 1))


def finish_linear(
    sums: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    x_zero_point: Tensor | None,
    column_sums: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    out_scale: Tensor | None,
    out_zero_point: Tensor | None,
    value: str,
    dtype: torch.dtype | None,
    zero_point: Tensor | None = None,
    row_sums: Tensor | None = None,
) -> Tensor:
    """Scale the sums of products ``[rows, out_features]``, and do what `scaled_linear` does with the result.

    Args:
        sums: integers for int8, else floating-point.
        x_scale: as in `scaled_linear`, as are the arguments without a comment.
        scale: see `x_scale`.
        x_zero_point: see `x_scale`.
        column_sums: ``[out_features]``: sums of the weight's rows less `zero_point`, with `x_zero_point`.
        bias: see `x_scale`.
        activation: see `x_scale`.
        out_scale: see `x_scale`.
        out_zero_point: see `x_scale`.
        value: see `x_scale`.
        dtype: see `x_scale`.
        zero_point: see `x_scale`.
        row_sums: ``[rows, 1]``: sums of the rows of `x`, with `zero_point`.
    """
    wide = torch.promote_types(torch.promote_types(x_scale.dtype, scale.dtype), torch.float32)
    if x_zero_point is not None and column_sums is not None:
        sums = sums - x_zero_point.to(sums.dtype) * column_sums
    if zero_point is not None and row_sums is not None:
        sums = sums - row_sums * zero_point.to(sums.dtype).reshape(-1)
    row_scale = x_scale.reshape(-1, 1) if x_scale.numel() != 1 else x_scale.reshape(())
    out = sums.to(wide) * row_scale.to(wide) * scale.to(wide).reshape(-1)
    if bias is not None:
        out = out + bias.to(wide)
    return _finish(out, activation, out_scale, out_zero_point, value, dtype)


@op(check=_check_linear, examples=_linear_examples, autocast=cast_none)
def scaled_linear(
    x: Tensor,
    values: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    x_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    out_scale: Tensor | None = None,
    out_zero_point: Tensor | None = None,
    value: str = "int8",
    dtype: torch.dtype | None = None,
    zero_point: Tensor | None = None,
) -> Tensor:
    r"""Multiply quantized inputs by a quantized weight: :math:`f((x - z_x) (W - z_w)^\top s_x s_w + b)`.

    Args:
        x: ``[*, in_features]``, values of 8 bits: int8, or uint8 for float8.
        values: ``[out_features, in_features]``, values of the same type.
        x_scale: one element, or ``[*, 1]``: a scale for each row of `x`, floating-point.
        scale: ``[out_features, 1]`` or ``[1, 1]``, floating-point.
        x_zero_point: one int8 element; only with int8 values.
        bias: ``[out_features]``, floating-point.
        activation: a key of `burnt.kernels.ACTIVATIONS`, applied to the scaled sum.
        out_scale: one element: the result is quantized again, by this scale.
        out_zero_point: one int8 element, of the result.
        value: ``"int8"``, ``"float8_e4m3"`` or ``"float8_e5m2"``.
        dtype: of the result, None for float32, unless `out_scale` is given.
        zero_point: int8, in the shape of `scale`; only with int8 values.

    Returns:
        ``[*, out_features]``, in `dtype`; with `out_scale` values of 8 bits.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not match.
        InputValueError: `value` does not have 8 bits, or `dtype` is not floating-point.

    Integers are summed exactly (float8 products in float32), then scaled in float32, also under autocast.
    Gradients flow to the scales and the bias.

    >>> x, weight = torch.tensor([[100, -100]], dtype=torch.int8), torch.tensor([[2, -3]], dtype=torch.int8)
    >>> scaled_linear(x, weight, torch.tensor(0.5), torch.tensor([[0.5]]))
    tensor([[125.]])
    """
    rows = x.reshape(-1, x.shape[-1])
    column_sums = row_sums = None
    if value == "int8":
        sums = exact_linear(rows, values)
        column_sums = None if x_zero_point is None else sum_rows(values, zero_point, torch.int64)
        row_sums = None if zero_point is None else rows.sum(1, keepdim=True, dtype=torch.int64)
    else:
        wide = torch.promote_types(torch.promote_types(x_scale.dtype, scale.dtype), torch.float32)
        sums = decode(rows, value, wide) @ decode(values, value, wide).t()
    rest = (bias, activation, out_scale, out_zero_point, value, dtype)
    out = finish_linear(sums, x_scale, scale, x_zero_point, column_sums, *rest, zero_point, row_sums)
    return out.reshape(*x.shape[:-1], values.shape[0])


_MAX_CONV_AXES = 3


def exact_conv(
    numbers: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    terms: int,
) -> Tensor:
    """Convolve integers exactly, as a product of their windows: int64 ``[batch, out_channels, *axes]``.

    Libraries' convolutions may transform their inputs (Winograd), which rounds.

    Args:
        numbers: ``[batch, channels, *axes]``, of any dtype.
        weight: ``[out_channels, channels / groups, *kernel]``, integers of any dtype.
        stride: one number for each axis, as are the next two.
        padding: see `stride`.
        dilation: see `stride`.
        groups: of the channels.
        terms: as in `exact_linear`.
    """
    axes = weight.dim() - 2
    windows = F.pad(numbers, [size for pad in reversed(padding) for size in (pad, pad)])
    for axis in range(axes):
        spread = (weight.shape[2 + axis] - 1) * dilation[axis] + 1
        windows = windows.unfold(2 + axis, spread, stride[axis])[..., :: dilation[axis]]
    batch, _, *positions = windows.shape[: 2 + axes]
    # As [batch, groups, *axes, channels, *kernel], then as a matrix for each group.
    windows = windows.reshape(batch, groups, weight.shape[1], *windows.shape[2:]).movedim(2, 2 + axes)
    rows = windows.flatten(2 + axes).transpose(0, 1).flatten(1, 1 + axes)
    columns = weight.shape[0] // groups
    matrices = weight.reshape(groups, columns, weight[0].numel())
    sums = exact_linear(rows, matrices, terms).reshape(groups, batch, math.prod(positions), columns)
    return sums.permute(1, 0, 3, 2).contiguous().view(batch, weight.shape[0], *positions)


def _check_conv(
    x: Tensor,
    values: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    x_zero_point: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    out_scale: Tensor | None,
    out_zero_point: Tensor | None,
    dtype: torch.dtype | None,
    zero_point: Tensor | None,
) -> None:
    name = "scaled_conv"
    check_activation(name, activation)
    check_one_device(
        name, x=x, values=values, x_scale=x_scale, scale=scale, x_zero_point=x_zero_point, bias=bias
    )
    check_floating(name, x_scale=x_scale, scale=scale)
    check_values(name, values, "int8")
    check_values(name, x, "int8")
    axes = values.dim() - 2
    channels = values.shape[1] * groups if values.dim() > 1 else "channels"
    if not 1 <= axes <= _MAX_CONV_AXES or x.dim() != values.dim() or x.shape[1] != values.shape[1] * groups:
        raise InputRuntimeError(
            f"the shapes of x and values of {name} do not match",
            where=f"burnt.kernels.{name}",
            expected=f"x [batch, {channels}, *axes], values "
            "[out_channels, channels / groups, *kernel] with 1 to 3 axes",
            found=f"x {list(x.shape)}, values {list(values.shape)}, {groups} groups",
        )
    if x_scale.numel() != 1 and x_scale.numel() != x.shape[0]:
        raise InputRuntimeError(
            f"x_scale of {name} has the wrong shape",
            where=f"burnt.kernels.{name}",
            expected=f"one element, or one for each of {x.shape[0]} samples",
            found=list(x_scale.shape),
        )
    _check_zero_point(name, x_zero_point, "int8")
    check_scale(name, values.shape[0], values[0].numel() if values.shape[0] else 0, scale, zero_point, 0)
    check_bias(name, values.shape[0], bias)
    _check_output(name, out_scale, out_zero_point, dtype)


def _conv_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for shape, weight_shape, stride, padding, groups, zero in [
        ((8, 64, 28, 28), (64, 64, 3, 3), 1, 1, 1, False),
        ((2, 8, 9, 9), (12, 4, 3, 3), 2, 1, 2, True),
        ((2, 3, 11), (5, 3, 3), 1, 1, 1, True),
        ((1, 2, 5, 5, 5), (3, 2, 2, 2, 2), 1, 0, 1, False),
    ]:
        x = torch.randint(-128, 128, shape, dtype=torch.int8, device=device)
        values = torch.randint(-127, 128, weight_shape, dtype=torch.int8, device=device)
        scale = torch.rand(weight_shape[0], 1, device=device) * 0.01 + 0.001
        x_scale = torch.tensor(0.02, device=device)
        zero_point = torch.tensor(-5, dtype=torch.int8, device=device) if zero else None
        bias = torch.randn(weight_shape[0], device=device)
        sizes = ([stride] * (len(shape) - 2), [padding] * (len(shape) - 2), [1] * (len(shape) - 2), groups)
        rest = (bias, None, *sizes, None, None, torch.float32, None)
        examples.append((x, values, x_scale, scale, zero_point, *rest))
    return examples


@op(check=_check_conv, examples=_conv_examples, autocast=cast_none)
def scaled_conv(
    x: Tensor,
    values: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    x_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    out_scale: Tensor | None = None,
    out_zero_point: Tensor | None = None,
    dtype: torch.dtype | None = None,
    zero_point: Tensor | None = None,
) -> Tensor:
    """Convolve int8 inputs with an int8 kernel, with fused scales, bias and activation.

    Args:
        x: ``[batch, channels, *axes]``, int8, with one to three axes.
        values: ``[out_channels, channels / groups, *kernel]``, int8.
        x_scale: one element, or one for each sample of the batch, floating-point.
        scale: ``[out_channels, 1]`` or ``[1, 1]``, floating-point.
        x_zero_point: one int8 element; padding stands for the number 0, which is this value.
        bias: ``[out_channels]``, floating-point.
        activation: a key of `burnt.kernels.ACTIVATIONS`, applied to the scaled sum.
        stride: a number, or one per axis, as are the next two.
        padding: zeros on both sides.
        dilation: of the kernel.
        groups: of the channels.
        out_scale: one element: the result is quantized again, by this scale.
        out_zero_point: one int8 element, of the result.
        dtype: of the result, None for float32, unless `out_scale` is given.
        zero_point: int8, in the shape of `scale`.

    Returns:
        ``[batch, out_channels, *axes]``, in `dtype`; with `out_scale` int8.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not match.
        InputValueError: `dtype` is not floating-point, or `activation` unknown.

    Integers are summed exactly, then scaled in float32.

    >>> x = torch.tensor([[[1, 2, 3]]], dtype=torch.int8)
    >>> scaled_conv(x, torch.tensor([[[1, -1]]], dtype=torch.int8), torch.tensor(0.5), torch.tensor([[2.0]]))
    tensor([[[-1., -1.]]])
    """
    axes = values.dim() - 2
    numbers, terms = x.float(), _EXACT
    if x_zero_point is not None:
        numbers, terms = numbers - x_zero_point.float(), _EXACT // 2  # differences have one bit more
    weight = values
    if zero_point is not None:
        weight = less_zero_point(values, zero_point)
        terms //= 2
    step, around, spread = (expand_sizes(size, axes) for size in (stride, padding, dilation))
    total = exact_conv(numbers, weight, step, around, spread, groups, terms)
    return finish_conv(total, x_scale, scale, bias, activation, out_scale, out_zero_point, dtype)


def finish_conv(
    sums: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_scale: Tensor | None,
    out_zero_point: Tensor | None,
    dtype: torch.dtype | None,
) -> Tensor:
    """Scale the sums of products of `scaled_conv`, with arguments as there, and add its epilogue."""
    wide = torch.promote_types(torch.promote_types(x_scale.dtype, scale.dtype), torch.float32)
    ones = [1] * (sums.dim() - 2)
    sample_scale = x_scale.reshape(-1, 1, *ones) if x_scale.numel() != 1 else x_scale.reshape(())
    out = sums.to(wide) * sample_scale.to(wide) * scale.to(wide).reshape(-1, *ones)
    if bias is not None:
        out = out + bias.to(wide).reshape(-1, *ones)
    return _finish(out, activation, out_scale, out_zero_point, "int8", dtype)
