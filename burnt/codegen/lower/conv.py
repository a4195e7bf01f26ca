"""Lowerings of convolutions as matmuls, for targets that have matmul kernels.

A convolution is a matmul of its input and its weight (*implicit GEMM*): the taps change the indices at which
the input is read, so nothing is unfolded in memory. Rows are output positions, columns output channels; the
sum is over kernel taps and input channels::

    y[n, o, q]  = sum over k, c     x[n, c, q stride + k dilation - padding] w[o, c, k]
    dx[n, c, h] = sum over k, o     dy[n, o, (h + padding - k dilation) / stride] w[o, c, k]
    dw[o, c, k] = sum over n, q     dy[n, o, q] x[n, c, q stride + k dilation - padding]

The second, also a transposed convolution, is split by *phase*, the position modulo the stride: all elements
of a phase use the same taps, so that hardly a tap is read in vain and nothing is divided. A depthwise
convolution, with one kernel per channel, has no matmul for tensor cores: the taps of an element are summed
where it is used.

Taps outside of the input are multiplied as zeros: with an infinite weight they give NaN; torch skips them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Reduction, Value, ravel, reduction_result, unravel
from burnt.codegen.lower.matmul import matmul_value, register_matmul_lowering
from burnt.codegen.lower.pooling import per_axis, range_conditions
from burnt.codegen.lower.registry import (
    Unlowered,
    cast,
    compute_dtype,
    const,
    meta_tensor,
    pointwise,
    to_result_dtype,
)
from burnt.codegen.lower.views import masked

aten = torch.ops.aten

# Taps of a depthwise kernel that are unrolled; more are a loop.
_MAX_UNROLLED_TAPS = 64

Tap: TypeAlias = (
    "tuple[IndexExpr, IndexExpr, list[Expr]]"  # index in the kernel, index in the input, conditions
)


@dataclasses.dataclass(frozen=True)
class _ConvAxis:
    """One axis of a convolution: output q reads input ``q stride + k dilation - padding`` for tap k."""

    size: int  # of the input
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def phases(self) -> int:
        """Number of classes of output positions, each of which uses its own taps."""
        return 1

    @property
    def taps(self) -> int:
        """Maximum number of taps of an element, over all phases."""
        return self.kernel

    def tap(self, at: IndexExpr, phase: IndexExpr, k: IndexExpr) -> Tap:
        """Return tap number `k` of output ``at * phases + phase``."""
        index = at * self.stride + k * self.dilation - self.padding
        return k, index, range_conditions((index, self.size))


@dataclasses.dataclass(frozen=True)
class _TransposedConvAxis(_ConvAxis):
    """One axis of a transposed convolution: output h reads input ``(h + padding - k dilation) / stride`` for
    tap k, where this is an integer."""

    def __post_init__(self) -> None:
        if math.gcd(self.stride, self.dilation) != 1:
            raise Unlowered  # some phases would have no taps, others several sets

    @property
    def phases(self) -> int:
        return self.stride

    @property
    def taps(self) -> int:
        return -(-self.kernel // self.stride)

    def tap(self, at: IndexExpr, phase: IndexExpr, j: IndexExpr) -> Tap:
        # The first tap k with phase + padding = k dilation (mod stride).
        first = (phase + self.padding) * pow(self.dilation, -1, self.stride) % self.stride
        k = first + j * self.stride
        # A multiple of the stride is added before the division, so that the dividend is not negative.
        base = (phase - first * self.dilation + (self.padding + self.stride * self.dilation)) // self.stride
        index = at + base - (j + 1) * self.dilation
        return k, index, range_conditions((index, self.size), (k, self.kernel))


@dataclasses.dataclass(frozen=True)
class _Groups:
    """The groups of a convolution: how many, and the channels of each."""

    count: int
    in_channels: int
    out_channels: int


WeightElement: TypeAlias = (
    "Callable[[IndexExpr, IndexExpr, IndexExpr, Index], Expr]"  # group, input channel, output channel, taps
)


def _read_input(x: Value, batch: IndexExpr, channel: IndexExpr, taps: Sequence[Tap]) -> Expr:
    """Return the input's element at one tap per axis; 0 outside of the input."""
    element = x.at((batch, channel, *(index for _, index, _ in taps)))
    for condition in (condition for *_, conditions in taps for condition in conditions):
        element = masked(condition, element, const(0, x.dtype))
    return element


def _convolve(
    x: Value, weight: WeightElement, axes: Sequence[_ConvAxis], sizes: Sequence[int], groups: _Groups
) -> Value:
    """Return the convolution, ``[batch, groups.count * groups.out_channels, *sizes]``."""
    shape = (x.shape[0], groups.count * groups.out_channels, *sizes)
    phases = [axis.phases for axis in axes]
    # Elements of a phase along each axis.
    phase_sizes = [-(-size // phase) for size, phase in zip(sizes, phases, strict=True)]

    def operands(
        group: IndexExpr, batch: IndexExpr, at: Index, phase: Index, out_channel: IndexExpr, inner: Index
    ) -> tuple[Expr, Expr]:
        *taps, channel = inner
        axis_taps = [axis.tap(q, r, k) for axis, q, r, k in zip(axes, at, phase, taps, strict=True)]
        element = _read_input(x, batch, group * groups.in_channels + channel, axis_taps)
        operand = weight(group, channel, out_channel, tuple(k for k, *_ in axis_taps))
        # A phase with fewer taps than others reads neither operand at the missing ones.
        for condition in range_conditions(
            *((k, axis.kernel) for axis, (k, *_) in zip(axes, axis_taps, strict=True))
        ):
            operand = masked(condition, operand, const(0, operand.dtype))
        return element, operand

    extents = (*(axis.taps for axis in axes), groups.in_channels)
    if groups.in_channels == 1:
        return _convolve_depthwise(shape, x.dtype, extents, groups, phases, operands)

    def body(outer: Index, inner: Index) -> tuple[Expr, Expr]:
        *phase, group, row, out_channel = outer
        batch, *at = unravel(row, (shape[0], *phase_sizes))
        return operands(group, batch, tuple(at), tuple(phase), out_channel, inner)

    matmul_shape = (*phases, groups.count, shape[0] * math.prod(phase_sizes), groups.out_channels)
    matmul = matmul_value(matmul_shape, extents, body, x.dtype)

    def at(index: Index) -> Expr:
        batch, channel, *positions = index
        phase = [position % n for position, n in zip(positions, phases, strict=True)]
        row = ravel(
            (batch, *(position // n for position, n in zip(positions, phases, strict=True))),
            (1, *phase_sizes),
        )
        return matmul.at((*phase, channel // groups.out_channels, row, channel % groups.out_channels))

    return Value(shape, matmul.dtype, at)


def _convolve_depthwise(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    extents: tuple[int, ...],
    groups: _Groups,
    phases: Sequence[int],
    operands: Callable[..., tuple[Expr, Expr]],
) -> Value:
    """Return a depthwise convolution: each output channel reads one input channel."""
    math_dtype = compute_dtype(dtype)

    def term(index: Index, inner: Index) -> Expr:
        batch, channel, *positions = index
        at = tuple(position // n for position, n in zip(positions, phases, strict=True))
        phase = tuple(position % n for position, n in zip(positions, phases, strict=True))
        pair = operands(
            channel // groups.out_channels, batch, at, phase, channel % groups.out_channels, inner
        )
        return Expr.make("mul", [cast(operand, math_dtype) for operand in pair], math_dtype)

    if math.prod(extents) > _MAX_UNROLLED_TAPS:
        return _sum_terms(shape, extents, term, dtype)
    tap_indices = [unravel(IndexExpr.of(i), extents) for i in range(math.prod(extents))]

    def at(index: Index) -> Expr:
        terms = [term(index, inner) for inner in tap_indices]
        return functools.reduce(lambda a, b: Expr.make("add", (a, b), math_dtype), terms)

    return to_result_dtype(Value(shape, math_dtype, at), meta_tensor(shape, dtype))


def _sum_terms(
    shape: tuple[int, ...],
    extents: tuple[int, ...],
    term: Callable[[Index, Index], Expr],
    dtype: torch.dtype,
) -> Value:
    """Sum terms in the compute dtype of `dtype`; the result has `dtype`."""
    math_dtype = compute_dtype(dtype)
    node = Reduction("sum", shape, extents, math_dtype, term)
    return to_result_dtype(
        Value(shape, math_dtype, lambda index: reduction_result(node, index)), meta_tensor(shape, dtype)
    )


def _weight_grad(grad_out: Value, x: Value, axes: Sequence[_ConvAxis], groups: _Groups) -> Value:
    """Return the weight gradient, ``[groups.count * groups.out_channels, groups.in_channels, *kernel]``."""
    kernel = tuple(axis.kernel for axis in axes)
    shape = (groups.count * groups.out_channels, groups.in_channels, *kernel)
    extents = (grad_out.shape[0], *grad_out.shape[2:])

    def operands(
        group: IndexExpr, out_channel: IndexExpr, channel: IndexExpr, taps: Index, inner: Index
    ) -> tuple[Expr, Expr]:
        batch, *at = inner
        axis_taps = [axis.tap(q, IndexExpr(), k) for axis, q, k in zip(axes, at, taps, strict=True)]
        element = _read_input(x, batch, group * groups.in_channels + channel, axis_taps)
        return grad_out.at((batch, group * groups.out_channels + out_channel, *at)), element

    columns = groups.in_channels * math.prod(kernel)
    if groups.in_channels == 1:
        math_dtype = compute_dtype(x.dtype)

        def term(outer: Index, inner: Index) -> Expr:
            channel, _, *taps = outer
            pair = operands(
                channel // groups.out_channels, channel % groups.out_channels, IndexExpr(), tuple(taps), inner
            )
            return Expr.make("mul", [cast(operand, math_dtype) for operand in pair], math_dtype)

        return _sum_terms(shape, extents, term, x.dtype)

    def body(outer: Index, inner: Index) -> tuple[Expr, Expr]:
        group, row, column = outer
        channel, *taps = unravel(column, (groups.in_channels, *kernel))
        return operands(group, row, channel, tuple(taps), inner)

    matmul = matmul_value((groups.count, groups.out_channels, columns), extents, body, x.dtype)

    def at(index: Index) -> Expr:
        out_channel, *rest = index
        column = ravel(rest, (1, *kernel))
        return matmul.at((out_channel // groups.out_channels, out_channel % groups.out_channels, column))

    return Value(shape, matmul.dtype, at)


def _bias_grad(grad_out: Value) -> Value:
    """Return the bias gradient, ``[channels]``: the sum over all other axes."""
    math_dtype = compute_dtype(grad_out.dtype)
    extents = (grad_out.shape[0], *grad_out.shape[2:])

    def body(outer: Index, inner: Index) -> Expr:
        return cast(grad_out.at((inner[0], outer[0], *inner[1:])), math_dtype)

    return _sum_terms(grad_out.shape[1:2], extents, body, grad_out.dtype)


@register_matmul_lowering(aten.convolution.default, operands=(0, 1))
def _lower_convolution(
    meta: torch.Tensor,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    axes = _conv_axes(x.shape[2:], weight.shape[2:], stride, padding, dilation, transposed=transposed)
    if not (meta.numel() and x.numel and weight.numel):
        raise Unlowered
    result = _convolve_with_weight(x, weight, axes, meta.shape[2:], groups, in_channels_first=transposed)
    if bias is None:
        return result
    bias_value = Value((bias.shape[0], *[1] * len(axes)), bias.dtype, lambda index: bias.at(index[:1]))
    return pointwise("add", meta, [result, bias_value], meta.dtype)


def _conv_axes(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    transposed: bool,
) -> list[_ConvAxis]:
    settings = [per_axis(value, len(sizes)) for value in (stride, padding, dilation)]
    return [
        (_TransposedConvAxis if transposed else _ConvAxis)(*args)
        for args in zip(sizes, kernel, *settings, strict=True)
    ]


def _convolve_with_weight(
    x: Value,
    weight: Value,
    axes: Sequence[_ConvAxis],
    sizes: Sequence[int],
    groups: int,
    *,
    in_channels_first: bool,
) -> Value:
    """Convolve; the weight's first axis is output channels, or input channels if `in_channels_first`."""
    first_size, second_size = weight.shape[0] // groups, weight.shape[1]
    group_channels = (
        _Groups(groups, first_size, second_size)
        if in_channels_first
        else _Groups(groups, second_size, first_size)
    )

    def weight_at(group: IndexExpr, in_channel: IndexExpr, out_channel: IndexExpr, taps: Index) -> Expr:
        first, second = (in_channel, out_channel) if in_channels_first else (out_channel, in_channel)
        return weight.at((group * first_size + first, second, *taps))

    return _convolve(x, weight_at, axes, sizes, group_channels)


@register_matmul_lowering(aten.convolution_backward.default, operands=(0, 1, 2))
def _lower_convolution_backward(
    meta: Sequence[torch.Tensor | None],
    grad_out: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    if not (grad_out.numel and x.numel and weight.numel):
        raise Unlowered
    # The input's gradient of a convolution is a transposed convolution, and the other way around.
    first, second = weight.shape[0] // groups, weight.shape[1]
    grads: list[Value | None] = [None, None, None]
    if output_mask[0]:
        axes = _conv_axes(
            grad_out.shape[2:], weight.shape[2:], stride, padding, dilation, transposed=not transposed
        )  # fmt: skip
        grads[0] = _convolve_with_weight(
            grad_out, weight, axes, x.shape[2:], groups, in_channels_first=not transposed
        )
    if output_mask[1]:
        conv_input, conv_grad = (grad_out, x) if transposed else (x, grad_out)
        axes = _conv_axes(conv_input.shape[2:], weight.shape[2:], stride, padding, dilation, transposed=False)
        grads[1] = _weight_grad(conv_grad, conv_input, axes, _Groups(groups, second, first))
    if output_mask[2]:
        grads[2] = _bias_grad(grad_out)
    return grads
