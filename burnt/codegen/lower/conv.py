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
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from burnt.codegen.ir import (
    Expr,
    Index,
    IndexExpr,
    Reduction,
    Value,
    cast,
    const,
    ravel,
    reduction_result,
    unravel,
)
from burnt.codegen.lower.matmul import matmul_value, product, register_matmul_lowering
from burnt.codegen.lower.pooling import per_axis, range_conditions
from burnt.codegen.lower.registry import Unlowered, compute_dtype, pointwise, rounded
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
        bounds = [(k, axis.kernel) for axis, (k, *_) in zip(axes, axis_taps, strict=True)]
        for condition in range_conditions(*bounds):
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
        at, phase = _split_by_phase(positions, phases)
        row = ravel((batch, *at), (1, *phase_sizes))
        return matmul.at((*phase, channel // groups.out_channels, row, channel % groups.out_channels))

    return Value(shape, matmul.dtype, at)


def _split_by_phase(positions: Sequence[IndexExpr], phases: Sequence[int]) -> tuple[Index, Index]:
    """Return the numbers of output positions within their phases, and their phases."""
    pairs = list(zip(positions, phases, strict=True))
    return tuple(position // n for position, n in pairs), tuple(position % n for position, n in pairs)


def _convolve_depthwise(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    extents: tuple[int, ...],
    groups: _Groups,
    phases: Sequence[int],
    operands: Callable[..., tuple[Expr, Expr]],
) -> Value:
    """Return a depthwise convolution: each output channel reads one input channel."""

    def term(index: Index, inner: Index) -> Expr:
        batch, channel, *positions = index
        group, out_channel = channel // groups.out_channels, channel % groups.out_channels
        pair = operands(group, batch, *_split_by_phase(positions, phases), out_channel, inner)
        return product(pair, compute_dtype(dtype))

    if math.prod(extents) > _MAX_UNROLLED_TAPS:
        return _sum_terms(shape, extents, term, dtype)
    tap_indices = [unravel(IndexExpr.of(i), extents) for i in range(math.prod(extents))]

    def at(index: Index) -> Expr:
        return rounded(functools.reduce(operator.add, [term(index, inner) for inner in tap_indices]), dtype)

    return Value(shape, dtype, at)


def _sum_terms(
    shape: tuple[int, ...], extents: tuple[int, ...], term: Callable[[Index, Index], Expr], dtype: torch.dtype
) -> Value:
    """Sum terms in the compute dtype of `dtype`; the result has `dtype`."""
    node = Reduction("sum", shape, extents, compute_dtype(dtype), term)
    return Value(shape, dtype, lambda index: rounded(reduction_result(node, index), dtype))


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

        def term(outer: Index, inner: Index) -> Expr:
            channel, _, *taps = outer
            group, out_channel = channel // groups.out_channels, channel % groups.out_channels
            pair = operands(group, out_channel, IndexExpr(), tuple(taps), inner)
            return product(pair, compute_dtype(x.dtype))

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


class _Setting(NamedTuple):
    """The arguments that a convolution and its gradient share, with one number for each axis."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    groups: int

    def axes(self, sizes: Sequence[int], kernel: Sequence[int], *, transposed: bool) -> list[_ConvAxis]:
        """Return the axes of a convolution with these settings, or of a transposed one."""
        kind = _TransposedConvAxis if transposed else _ConvAxis
        settings = [per_axis(value, len(sizes)) for value in (self.stride, self.padding, self.dilation)]
        return [kind(*args) for args in zip(sizes, kernel, *settings, strict=True)]

    def convolve(self, x: Value, weight: Value, sizes: Sequence[int], *, transposed: bool) -> Value:
        """Convolve; a transposed convolution's weight has the input channels first, others the output's."""
        first_size, second_size = weight.shape[0] // self.groups, weight.shape[1]
        in_channels, out_channels = (first_size, second_size) if transposed else (second_size, first_size)

        def weight_at(group: IndexExpr, in_channel: IndexExpr, out_channel: IndexExpr, taps: Index) -> Expr:
            first, second = (in_channel, out_channel) if transposed else (out_channel, in_channel)
            return weight.at((group * first_size + first, second, *taps))

        axes = self.axes(x.shape[2:], weight.shape[2:], transposed=transposed)
        return _convolve(x, weight_at, axes, sizes, _Groups(self.groups, in_channels, out_channels))


@register_matmul_lowering(aten.convolution.default, operands=(0, 1))
def _lower_convolution(
    meta: torch.Tensor, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Value:  # fmt: skip
    if not (meta.numel() and x.numel and weight.numel):
        raise Unlowered
    setting = _Setting(stride, padding, dilation, transposed, groups)
    result = setting.convolve(x, weight, meta.shape[2:], transposed=transposed)
    if bias is None:
        return result
    shape = (bias.shape[0], *[1] * (len(x.shape) - 2))
    bias_value = Value(shape, bias.dtype, lambda index: bias.at(index[:1]))
    return pointwise("add", meta, [result, bias_value], meta.dtype)


@register_matmul_lowering(aten.convolution_backward.default, operands=(0, 1, 2))
def _lower_convolution_backward(
    meta: Any, grad_out: Value, x: Value, weight: Value, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, output_mask: Sequence[bool],
) -> list[Value | None]:  # fmt: skip
    if not (grad_out.numel and x.numel and weight.numel):
        raise Unlowered
    setting = _Setting(stride, padding, dilation, transposed, groups)
    grads: list[Value | None] = [None, None, None]
    if output_mask[0]:
        # The input's gradient of a convolution is a transposed convolution, and the other way around.
        grads[0] = setting.convolve(grad_out, weight, x.shape[2:], transposed=not transposed)
    if output_mask[1]:
        conv_input, conv_grad = (grad_out, x) if transposed else (x, grad_out)
        axes = setting.axes(conv_input.shape[2:], weight.shape[2:], transposed=False)
        channels = _Groups(groups, weight.shape[1], weight.shape[0] // groups)
        grads[1] = _weight_grad(conv_grad, conv_input, axes, channels)
    if output_mask[2]:
        grads[2] = _bias_grad(grad_out)
    return grads
