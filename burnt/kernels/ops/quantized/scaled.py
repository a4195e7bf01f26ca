"""`scaled_linear` and `scaled_conv`: quantized weights and inputs, exact sums of integers, fused scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputRuntimeError, InputValueError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import cast_none
from burnt.kernels.interface.checks import check_floating, check_one_device, check_shape
from burnt.kernels.ops.activation import apply_activation, check_activation
from burnt.kernels.ops.conv.conv import Sizes, expand_sizes
from burnt.kernels.ops.quantized.quantize import (
    check_scale,
    check_values,
    decode,
    encode,
    is_floating,
    quantized_example,
    value_type,
)

EXACT_TERMS = 1 << 10
"""Products of 8-bit integers whose sum float32 holds exactly, 2^24 / 2^14; each zero point adds one bit."""


class Epilogue(NamedTuple):
    """What `scaled_linear` and `scaled_conv` do with sums of products; the fields are arguments of both."""

    x_scale: Tensor
    scale: Tensor
    bias: Tensor | None
    activation: str | None
    out_scale: Tensor | None
    out_zero_point: Tensor | None
    value: str
    dtype: torch.dtype | None


class LinearCall(NamedTuple):
    """The arguments of `scaled_linear`."""

    x: Tensor
    values: Tensor
    x_scale: Tensor
    scale: Tensor
    x_zero_point: Tensor | None = None
    bias: Tensor | None = None
    activation: str | None = None
    out_scale: Tensor | None = None
    out_zero_point: Tensor | None = None
    value: str = "int8"
    dtype: torch.dtype | None = None
    zero_point: Tensor | None = None


class ConvCall(NamedTuple):
    """The arguments of `scaled_conv`."""

    x: Tensor
    values: Tensor
    x_scale: Tensor
    scale: Tensor
    x_zero_point: Tensor | None = None
    bias: Tensor | None = None
    activation: str | None = None
    stride: Sizes = 1
    padding: Sizes = 0
    dilation: Sizes = 1
    groups: int = 1
    out_scale: Tensor | None = None
    out_zero_point: Tensor | None = None
    dtype: torch.dtype | None = None
    zero_point: Tensor | None = None
    value: str = "int8"

    @property
    def sizes(self) -> tuple[list[int], list[int], list[int]]:
        """Stride, padding and dilation, each with one number per axis."""
        axes = self.values.dim() - 2
        stride, padding, dilation = (
            expand_sizes(size, axes) for size in (self.stride, self.padding, self.dilation)
        )
        return stride, padding, dilation

    @property
    def terms(self) -> int:
        """How many products an output sums."""
        return self.values[0].numel() if self.values.shape[0] else 0


def epilogue_of(call: LinearCall | ConvCall) -> Epilogue:
    """Return what is done with the sums."""
    fields = call._asdict()
    return Epilogue(**{name: fields[name] for name in Epilogue._fields})


def exact_linear(x: Tensor, weight: Tensor, terms: int = EXACT_TERMS) -> Tensor:
    """Multiply matrices of integers ``[*, m, k]`` and ``[*, n, k]`` exactly: int64 ``[*, m, n]``.

    float32 holds sums of up to `terms` products; longer ones are added as integers.
    """
    parts = zip(torch.split(x, terms, -1), torch.split(weight, terms, -1), strict=True)
    sums = [(a.float() @ b.float().mT).to(torch.int64) for a, b in parts]
    total = sums[0] if sums else x.new_zeros(*x.shape[:-1], weight.shape[-2], dtype=torch.int64)
    for part in sums[1:]:
        total = total + part
    return total


def _check_common(name: str, call: LinearCall | ConvCall, x_scales_fit: bool, x_scales: str) -> None:
    """Check all but the shapes of x and values; `x_scales` describes scales of x, if there are several."""
    check_activation(name, call.activation)
    floats: dict[str, Tensor | None] = {"x_scale": call.x_scale, "scale": call.scale}
    tensors: dict[str, Tensor | None] = {"x": call.x, "values": call.values, **floats}
    check_one_device(name, **tensors, x_zero_point=call.x_zero_point, bias=call.bias)
    check_floating(name, **floats, bias=call.bias)
    where = f"burnt.kernels.{name}"
    if value_type(name, call.value).bits != 8:
        raise InputValueError(
            f"{name} multiplies values of 8 bits",
            where=where,
            expected="int8, float8_e4m3 or float8_e5m2",
            found=call.value,
        )
    check_values(name, call.values, call.value)
    check_values(name, call.x, call.value)
    if call.x_scale.numel() != 1 and not x_scales_fit:
        raise InputRuntimeError(
            f"x_scale of {name} has the wrong shape",
            where=where,
            expected=f"one element, or {x_scales}",
            found=list(call.x_scale.shape),
        )
    zero = call.x_zero_point
    if zero is not None and (call.value != "int8" or zero.numel() != 1 or zero.dtype != torch.int8):
        raise InputRuntimeError(
            f"x_zero_point of {name} is not one integer",
            where=where,
            expected="None, or with int8 values an int8 tensor with one element",
            found=f"{zero.dtype} {list(zero.shape)} with {call.value}",
        )
    if call.zero_point is not None and call.value != "int8":
        raise InputValueError(
            f"{call.value} has no zero points",
            where=where,
            expected="zero_point=None, or int8 values",
            found=f"zero_point {list(call.zero_point.shape)}",
        )
    columns = call.values[0].numel() if call.values.shape[0] else 0
    check_scale(name, call.values.shape[0], columns, call.scale, call.zero_point, 0)
    check_shape(name, "bias", call.bias, call.values.shape[:1])
    if call.out_scale is None and not is_floating(call.dtype):
        raise InputValueError(
            f"the dtype of {name} is not floating-point",
            where=where,
            expected="a floating-point dtype; out_scale for int8 results",
            found=call.dtype,
        )
    if call.out_zero_point is not None if call.out_scale is None else call.out_scale.numel() != 1:
        raise InputRuntimeError(
            f"out_scale of {name} is not one number",
            where=where,
            expected="a tensor with one element, with or without out_zero_point",
            found="None" if call.out_scale is None else list(call.out_scale.shape),
        )


def _check_linear(*args: Any) -> None:
    call = LinearCall(*args)
    x, values = call.x, call.values
    if values.dim() != 2 or x.dim() < 1 or x.shape[-1] != values.shape[1]:
        raise InputRuntimeError(
            "the shapes of x and values of scaled_linear do not match",
            where="burnt.kernels.scaled_linear",
            expected="x [*, in_features] for values [out_features, in_features]",
            found=f"x {list(x.shape)}, values {list(values.shape)}",
        )
    shape = [*x.shape[:-1], 1]
    _check_common("scaled_linear", call, list(call.x_scale.shape) == shape, str(shape))


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


def finish(sums: Tensor, *epilogue: Any) -> Tensor:
    """Scale sums of products ``[batch, channels, *]``, and do the rest of an `Epilogue`."""
    end = Epilogue(*epilogue)
    wide = torch.promote_types(torch.promote_types(end.x_scale.dtype, end.scale.dtype), torch.float32)
    ones = [1] * (sums.dim() - 2)
    x_scale = end.x_scale.reshape(-1, 1, *ones) if end.x_scale.numel() != 1 else end.x_scale.reshape(())
    out = sums.to(wide) * x_scale.to(wide) * end.scale.to(wide).reshape(-1, *ones)
    if end.bias is not None:
        out = out + end.bias.to(wide).reshape(-1, *ones)
    out = apply_activation(out, end.activation)
    if end.out_scale is None:
        return out if end.dtype is None else out.to(end.dtype)
    smallest = value_type("scaled", end.value).smallest
    return encode(out / end.out_scale.to(out.dtype), end.value, end.out_zero_point, smallest)


def sum_rows(values: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the sums of the rows of a weight ``[rows, columns]`` less its zero points: ``[rows]``."""
    sums = values.sum(1, dtype=dtype)
    return sums if zero_point is None else sums - values.shape[1] * zero_point.reshape(-1).to(dtype)


def less_zero_point(values: Tensor, zero_point: Tensor) -> Tensor:
    """Subtract zero points ``[rows, 1]`` or ``[1, 1]`` from values ``[rows, ...]``: int16."""
    return values.to(torch.int16) - zero_point.reshape(-1, *[1] * (values.dim() - 1))


def finish_linear(
    sums: Tensor,
    x_zero_point: Tensor | None,
    column_sums: Tensor | None,
    zero_point: Tensor | None,
    row_sums: Tensor | None,
    *epilogue: Any,
) -> Tensor:
    """Subtract what zero points add to sums ``[rows, out_features]``, and `finish` them.

    `column_sums`, ``[out_features]``, are of the weight's rows less `zero_point`; `row_sums`, ``[rows, 1]``,
    of `x`.
    """
    if x_zero_point is not None and column_sums is not None:
        sums = sums - x_zero_point.to(sums.dtype) * column_sums
    if zero_point is not None and row_sums is not None:
        sums = sums - row_sums * zero_point.to(sums.dtype).reshape(-1)
    return finish(sums, *epilogue)


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
        out_zero_point: one int8 element, the zero point of the result.
        value: type of the values: ``"int8"``, ``"float8_e4m3"`` or ``"float8_e5m2"``.
        dtype: dtype of the result, None for float32, unless `out_scale` is given.
        zero_point: int8, in the shape of `scale`; only with int8 values.

    Returns:
        ``[*, out_features]``, in `dtype`; with `out_scale` values of 8 bits.

    Raises:
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
    epilogue = (x_scale, scale, bias, activation, out_scale, out_zero_point, value, dtype)
    out = finish_linear(sums, x_zero_point, column_sums, zero_point, row_sums, *epilogue)
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

    Libraries' convolutions may transform their inputs (Winograd), which rounds. `terms` is as in
    `exact_linear`.
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


def _check_conv(*args: Any) -> None:
    call = ConvCall(*args)
    x, values, groups = call.x, call.values, call.groups
    axes = values.dim() - 2
    channels = values.shape[1] * groups if values.dim() > 1 else "channels"
    if not 1 <= axes <= _MAX_CONV_AXES or x.dim() != values.dim() or x.shape[1] != values.shape[1] * groups:
        raise InputRuntimeError(
            "the shapes of x and values of scaled_conv do not match",
            where="burnt.kernels.scaled_conv",
            expected=f"x [batch, {channels}, *axes], values "
            "[out_channels, channels / groups, *kernel] with 1 to 3 axes",
            found=f"x {list(x.shape)}, values {list(values.shape)}, {groups} groups",
        )
    samples = f"one for each of {x.shape[0]} samples"
    _check_common("scaled_conv", call, call.x_scale.numel() == x.shape[0], samples)


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
        x_zero_point: one int8 element; padding stands for the number 0, which is this value.
        stride: step between windows; like the next two a number, or one per axis.
        padding: number of zeros on each side.
        dilation: step between the elements of a window.
        groups: number of groups that the channels are divided into.
        scale, bias, activation, out_scale, out_zero_point, dtype, zero_point: the same arguments as in
            `scaled_linear`.

    Returns:
        ``[batch, out_channels, *axes]``, in `dtype`; with `out_scale` int8.

    Errors and precision are as in `scaled_linear`.

    >>> x = torch.tensor([[[1, 2, 3]]], dtype=torch.int8)
    >>> scaled_conv(x, torch.tensor([[[1, -1]]], dtype=torch.int8), torch.tensor(0.5), torch.tensor([[2.0]]))
    tensor([[[-1., -1.]]])
    """
    call = ConvCall(
        x, values, x_scale, scale, x_zero_point, bias, activation, stride, padding, dilation, groups,
        out_scale, out_zero_point, dtype, zero_point,
    )  # fmt: skip
    numbers, terms = x.float(), EXACT_TERMS
    if x_zero_point is not None:
        numbers, terms = numbers - x_zero_point.float(), terms // 2  # differences have one bit more
    weight = values
    if zero_point is not None:
        weight, terms = less_zero_point(values, zero_point), terms // 2
    return finish(exact_conv(numbers, weight, *call.sizes, groups, terms), *epilogue_of(call))
