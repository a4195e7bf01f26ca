"""Lowerings of convolutions, for targets that print matrix products.

A convolution is the product of its input, read through windows, and its weight: the windows change the
indices of a factor, so nothing is unfolded in memory (*implicit GEMM*). Rows are the places of an image,
columns the channels of the output, terms the taps and the channels of the input::

    y[n, o, q]  = sum over k, c     x[n, c, q stride + k dilation - padding] w[o, c, k]
    dx[n, c, h] = sum over k, o     dy[n, o, (h + padding - k dilation) / stride] w[o, c, k]
    dw[o, c, k] = sum over n, q     dy[n, o, q] x[n, c, q stride + k dilation - padding]

The second, which is a transposed convolution, too, goes by the *phases* of the stride: elements that are
alike modulo the stride are reached by the same taps, so that hardly a tap is looked at in vain and nothing
is divided. Where each channel has a kernel of its own (depthwise), there is nothing to multiply by units for
products: the taps of an element are added up where it is needed.

Taps outside of an image are zeros that are multiplied: beside a weight that is infinite they make NaN, where
torch leaves them out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Reduction, Value, ravel, reduction_result, unravel
from burnt.codegen.lower.matmul import lowers_matmul, matmul_value
from burnt.codegen.lower.pooling import inside_all, per_axis
from burnt.codegen.lower.registry import Unlowered, as_result, cast, compute_dtype, const, meta_of, pointwise
from burnt.codegen.lower.views import chosen

aten = torch.ops.aten

# Taps of a depthwise kernel that are written out one by one; more are a loop.
_MOST_TAPS = 64

Tap: TypeAlias = (
    "tuple[IndexExpr, IndexExpr, list[Expr]]"  # of the kernel; the element that it is at; what has to hold
)


@dataclasses.dataclass(frozen=True)
class _Windows:
    """How an axis is read by a convolution: window q has taps at ``q stride + k dilation - padding``."""

    size: int  # elements that are read
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def phases(self) -> int:
        """Kinds of elements, each with taps of its own."""
        return 1

    @property
    def taps(self) -> int:
        """Taps of an element of any phase, at most."""
        return self.kernel

    def tap(self, at: IndexExpr, phase: IndexExpr, k: IndexExpr) -> Tap:
        """Tap number `k` of element ``at * phases + phase``."""
        place = at * self.stride + k * self.dilation - self.padding
        return k, place, inside_all((place, self.size))


@dataclasses.dataclass(frozen=True)
class _Spread(_Windows):
    """How an axis is read by a transposed convolution: element h is tap k of window ``(h + padding -
    k dilation) / stride``, where this is whole."""

    def __post_init__(self) -> None:
        if math.gcd(self.stride, self.dilation) != 1:
            raise Unlowered  # some phases have no taps, others several sets of them

    @property
    def phases(self) -> int:
        return self.stride

    @property
    def taps(self) -> int:
        return -(-self.kernel // self.stride)

    def tap(self, at: IndexExpr, phase: IndexExpr, j: IndexExpr) -> Tap:
        # The first tap k with phase + padding = k dilation modulo the stride.
        first = (phase + self.padding) * pow(self.dilation, -1, self.stride) % self.stride
        k = first + j * self.stride
        # Divided once something is added that leaves no number below 0.
        base = (phase - first * self.dilation + (self.padding + self.stride * self.dilation)) // self.stride
        place = at + base - (j + 1) * self.dilation
        return k, place, inside_all((place, self.size), (k, self.kernel))


@dataclasses.dataclass(frozen=True)
class _Groups:
    """Blocks of channels: how many, and what each takes and makes."""

    count: int
    taken: int
    made: int


Weight: TypeAlias = (
    "Callable[[IndexExpr, IndexExpr, IndexExpr, Index], Expr]"  # group, channel taken, channel made, taps
)


def _read(x: Value, batch: IndexExpr, channel: IndexExpr, taps: Sequence[Tap]) -> Expr:
    """The element that taps are at; 0 outside of the image."""
    element = x.at((batch, channel, *(place for _, place, _ in taps)))
    for test in (test for *_, tests in taps for test in tests):
        element = chosen(test, element, const(0, x.dtype))
    return element


def _convolved(
    x: Value, weight: Weight, windows: Sequence[_Windows], sizes: Sequence[int], groups: _Groups
) -> Value:
    """``[batch, groups.count * groups.made, *sizes]`` of an input read through windows."""
    shape = (x.shape[0], groups.count * groups.made, *sizes)
    phases = [w.phases for w in windows]
    # What a phase has of each axis.
    parts = [-(-size // phase) for size, phase in zip(sizes, phases, strict=True)]

    def factors(
        group: IndexExpr, batch: IndexExpr, at: Index, phase: Index, made: IndexExpr, inner: Index
    ) -> tuple[Expr, Expr]:
        *taps, channel = inner
        found = [w.tap(q, r, k) for w, q, r, k in zip(windows, at, phase, taps, strict=True)]
        element = _read(x, batch, group * groups.taken + channel, found)
        factor = weight(group, channel, made, tuple(k for k, *_ in found))
        # A phase with fewer taps than others reads neither factor at those that it has not.
        for test in inside_all(*((k, w.kernel) for w, (k, *_) in zip(windows, found, strict=True))):
            factor = chosen(test, factor, const(0, factor.dtype))
        return element, factor

    extents = (*(w.taps for w in windows), groups.taken)
    if groups.taken == 1:
        return _depthwise(shape, x.dtype, extents, groups, phases, factors)

    def body(outer: Index, inner: Index) -> tuple[Expr, Expr]:
        *phase, group, row, made = outer
        batch, *at = unravel(row, (shape[0], *parts))
        return factors(group, batch, tuple(at), tuple(phase), made, inner)

    folded = (*phases, groups.count, shape[0] * math.prod(parts), groups.made)
    product = matmul_value(folded, extents, body, x.dtype)

    def at(index: Index) -> Expr:
        batch, channel, *places = index
        phase = [place % n for place, n in zip(places, phases, strict=True)]
        row = ravel((batch, *(place // n for place, n in zip(places, phases, strict=True))), (1, *parts))
        return product.at((*phase, channel // groups.made, row, channel % groups.made))

    return Value(shape, product.dtype, at)


def _depthwise(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    extents: tuple[int, ...],
    groups: _Groups,
    phases: Sequence[int],
    factors: Callable[..., tuple[Expr, Expr]],
) -> Value:
    """A convolution of which each channel reads one."""
    inside = compute_dtype(dtype)

    def term(index: Index, inner: Index) -> Expr:
        batch, channel, *places = index
        at = tuple(place // n for place, n in zip(places, phases, strict=True))
        phase = tuple(place % n for place, n in zip(places, phases, strict=True))
        both = factors(channel // groups.made, batch, at, phase, channel % groups.made, inner)
        return Expr.make("mul", [cast(factor, inside) for factor in both], inside)

    if math.prod(extents) > _MOST_TAPS:
        return _sum(shape, extents, term, dtype)
    each = [unravel(IndexExpr.of(i), extents) for i in range(math.prod(extents))]

    def at(index: Index) -> Expr:
        terms = [term(index, inner) for inner in each]
        return functools.reduce(lambda a, b: Expr.make("add", (a, b), inside), terms)

    return as_result(Value(shape, inside, at), meta_of(shape, dtype))


def _sum(
    shape: tuple[int, ...],
    extents: tuple[int, ...],
    term: Callable[[Index, Index], Expr],
    dtype: torch.dtype,
) -> Value:
    """A fold of terms in the dtype that is computed in, given in another."""
    inside = compute_dtype(dtype)
    fold = Reduction("sum", shape, extents, inside, term)
    return as_result(Value(shape, inside, lambda index: reduction_result(fold, index)), meta_of(shape, dtype))


def _weight_gradient(dy: Value, x: Value, windows: Sequence[_Windows], groups: _Groups) -> Value:
    """``[groups.count * groups.made, groups.taken, *kernel]``: what each tap multiplied, weighted."""
    kernel = tuple(w.kernel for w in windows)
    shape = (groups.count * groups.made, groups.taken, *kernel)
    extents = (dy.shape[0], *dy.shape[2:])

    def factors(
        group: IndexExpr, made: IndexExpr, channel: IndexExpr, taps: Index, inner: Index
    ) -> tuple[Expr, Expr]:
        batch, *at = inner
        found = [w.tap(q, IndexExpr(), k) for w, q, k in zip(windows, at, taps, strict=True)]
        element = _read(x, batch, group * groups.taken + channel, found)
        return dy.at((batch, group * groups.made + made, *at)), element

    columns = groups.taken * math.prod(kernel)
    if groups.taken == 1:
        inside = compute_dtype(x.dtype)

        def term(outer: Index, inner: Index) -> Expr:
            channel, _, *taps = outer
            both = factors(channel // groups.made, channel % groups.made, IndexExpr(), tuple(taps), inner)
            return Expr.make("mul", [cast(factor, inside) for factor in both], inside)

        return _sum(shape, extents, term, x.dtype)

    def body(outer: Index, inner: Index) -> tuple[Expr, Expr]:
        group, row, column = outer
        channel, *taps = unravel(column, (groups.taken, *kernel))
        return factors(group, row, channel, tuple(taps), inner)

    product = matmul_value((groups.count, groups.made, columns), extents, body, x.dtype)

    def at(index: Index) -> Expr:
        made, *rest = index
        column = ravel(rest, (1, *kernel))
        return product.at((made // groups.made, made % groups.made, column))

    return Value(shape, product.dtype, at)


def _bias_gradient(dy: Value) -> Value:
    """``[channels]``: the sum over all else."""
    inside = compute_dtype(dy.dtype)
    extents = (dy.shape[0], *dy.shape[2:])

    def body(outer: Index, inner: Index) -> Expr:
        return cast(dy.at((inner[0], outer[0], *inner[1:])), inside)

    return _sum(dy.shape[1:2], extents, body, dy.dtype)


@lowers_matmul(aten.convolution.default, factors=(0, 1))
def _convolution(
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
    how = _windows(x.shape[2:], weight.shape[2:], stride, padding, dilation, spread=transposed)
    if not (meta.numel() and x.numel and weight.numel):
        raise Unlowered
    made = _with_weight(x, weight, how, meta.shape[2:], groups, swapped=transposed)
    if bias is None:
        return made
    by_channel = Value((bias.shape[0], *[1] * len(how)), bias.dtype, lambda index: bias.at(index[:1]))
    return pointwise("add", meta, [made, by_channel], meta.dtype)


def _windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    spread: bool,
) -> list[_Windows]:
    given = [per_axis(value, len(sizes)) for value in (stride, padding, dilation)]
    return [(_Spread if spread else _Windows)(*each) for each in zip(sizes, kernel, *given, strict=True)]


def _with_weight(
    x: Value,
    weight: Value,
    windows: Sequence[_Windows],
    sizes: Sequence[int],
    groups: int,
    *,
    swapped: bool,
) -> Value:
    """A convolution whose weight begins with the channels made, or, `swapped`, with those taken."""
    first, second = weight.shape[0] // groups, weight.shape[1]
    form = _Groups(groups, first, second) if swapped else _Groups(groups, second, first)

    def read(group: IndexExpr, taken: IndexExpr, made: IndexExpr, taps: Index) -> Expr:
        one, other = (taken, made) if swapped else (made, taken)
        return weight.at((group * first + one, other, *taps))

    return _convolved(x, read, windows, sizes, form)


@lowers_matmul(aten.convolution_backward.default, factors=(0, 1, 2))
def _convolution_backward(
    meta: Sequence[torch.Tensor | None],
    dy: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> list[Value | None]:
    if not (dy.numel and x.numel and weight.numel):
        raise Unlowered
    # What is convolved in the forward is spread in the backward, and the other way around.
    first, second = weight.shape[0] // groups, weight.shape[1]
    found: list[Value | None] = [None, None, None]
    if wanted[0]:
        how = _windows(
            dy.shape[2:], weight.shape[2:], stride, padding, dilation, spread=not transposed
        )  # fmt: skip
        found[0] = _with_weight(dy, weight, how, x.shape[2:], groups, swapped=not transposed)
    if wanted[1]:
        read, given = (dy, x) if transposed else (x, dy)
        how = _windows(read.shape[2:], weight.shape[2:], stride, padding, dilation, spread=False)
        found[1] = _weight_gradient(given, read, how, _Groups(groups, second, first))
    if wanted[2]:
        found[2] = _bias_gradient(dy)
    return found
