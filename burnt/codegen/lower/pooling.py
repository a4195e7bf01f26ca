"""Lowerings of max and average pooling and of their gradients.

Gradients are gathers: an element sums over the pooling windows that contain it, in order, so there are no
atomic additions and results are reproducible. Maxima and sums are separable: a window is reduced over all but
the last axis into a row that kernels hold in scratch memory (`Materialized`), then along the last axis.

A *tap* is an element's position within its window.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from burnt.codegen.ir import (
    Expr,
    Index,
    IndexExpr,
    Materialized,
    Matmul,
    PooledMatmul,
    Reduction,
    Value,
    Var,
    cast,
    const,
    index_value,
    materialized,
    reduction_result,
    walk,
)
from burnt.codegen.ir.expr import extreme
from burnt.codegen.lower.registry import (
    Unlowered,
    compute_dtype,
    overloads,
    register_lowering,
    to_result_dtype,
)
from burnt.codegen.lower.views import masked, range_condition

aten = torch.ops.aten

# Largest window along one axis whose taps are unrolled; a larger one is a loop.
_MAX_UNROLLED_TAPS = 32
# Largest window along one axis whose elements a mean counts one by one, to leave out padding.
_MAX_COUNTED_TAPS = 128
# Largest window, over all axes, for which the index of the maximum is computed.
_MAX_ARGMAX_TAPS = 100
# Window sizes that a matmul kernel can reduce in its epilogue.
_FUSABLE_WINDOW_SIZES = 2, 4, 8, 16
# Operations of an element that is recomputed for every window that contains it.
_MAX_RECOMPUTED_OPS = 24
_EXPENSIVE_OPS = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh",
    "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "pow", "atan2", "fmod",
    "remainder", "reduced", "materialized", "scanned", "uniform", "random",
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class UniformWindows:
    """Pooling windows of one size at a fixed stride, along one axis."""

    size: int  # number of elements of the axis
    num_windows: int  # number of windows
    taps: int  # number of elements of a window
    stride: int  # distance between windows
    padding: int  # padding before the first element
    dilation: int  # distance between taps

    @property
    def span(self) -> int:
        """Number of elements that the windows span, padding included."""
        return (self.num_windows - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def input_index(self, window: IndexExpr, tap: int | IndexExpr) -> IndexExpr:
        """Return the index of a window's tap, which may be out of range."""
        return window * self.stride + IndexExpr.of(tap) * self.dilation - self.padding

    def tap_conditions(self, window: IndexExpr, tap: int | IndexExpr) -> list[Expr]:
        """Return the conditions for a tap to be in its window, apart from the tensor's bounds."""
        return []

    def containing(self, element: IndexExpr) -> list[tuple[IndexExpr, IndexExpr, list[Expr]]]:
        """Return the windows that may contain an element, as (window, tap, conditions)."""
        candidates = []
        padded_index = element + self.padding
        if self.dilation == 1 or self.taps == 1:
            for j in range(-(-self.taps // self.stride)):
                window, tap = padded_index // self.stride - j, padded_index % self.stride + j * self.stride
                conditions = range_conditions((window, self.num_windows), (tap, self.taps))
                candidates.append((window, tap, conditions))
            return candidates
        for k in range(self.taps):
            offset = padded_index - k * self.dilation
            window = offset // self.stride
            conditions = range_conditions((window, self.num_windows))
            if self.stride > 1:
                conditions.append(index_value(offset % self.stride).eq(0))
            candidates.append((window, IndexExpr.of(k), conditions))
        return candidates


@dataclasses.dataclass(frozen=True)
class AdaptiveWindows:
    """Adaptive pooling windows along one axis: ``floor(i * size / n)`` to ``ceil((i + 1) * size / n)``."""

    size: int
    num_windows: int
    padding: int = 0
    dilation: int = 1

    def start(self, window: IndexExpr) -> IndexExpr:
        """Return the index of a window's first element."""
        return (window * self.size) // self.num_windows

    def end(self, window: IndexExpr) -> IndexExpr:
        """Return the index after a window's last element."""
        return (window * self.size + (self.size + self.num_windows - 1)) // self.num_windows

    @functools.cached_property
    def _bounds(self) -> list[tuple[int, int]]:
        windows = [IndexExpr.of(i) for i in range(self.num_windows)]
        return [(self.start(i).const, self.end(i).const) for i in windows]

    @property
    def span(self) -> int:
        """Number of elements that the windows span."""
        return self.size

    @functools.cached_property
    def taps(self) -> int:
        """Number of elements of the largest window."""
        return max(end - start for start, end in self._bounds)

    @functools.cached_property
    def max_overlap(self) -> int:
        """Maximum number of windows that contain one element."""
        return max(
            sum(start <= i for start, _ in self._bounds[i * self.num_windows // self.size :])
            for i in range(self.size)
        )

    def input_index(self, window: IndexExpr, tap: int | IndexExpr) -> IndexExpr:
        """Return the index of a window's tap, which may be after the window's end."""
        return self.start(window) + tap

    def tap_conditions(self, window: IndexExpr, tap: int | IndexExpr) -> list[Expr]:
        """Return the conditions for a tap to be in its window."""
        return [index_value(self.input_index(window, tap) - self.end(window)).lt(0)]

    def containing(self, element: IndexExpr) -> list[tuple[IndexExpr, IndexExpr, list[Expr]]]:
        """Return the windows that may contain an element, as (window, tap, conditions)."""
        candidates = []
        for j in range(self.max_overlap):
            window = (element * self.num_windows) // self.size + j
            tap = element - self.start(window)
            conditions = range_conditions((window, self.num_windows))
            if j:
                conditions.append(index_value(tap).ge(0))
            candidates.append((window, tap, conditions))
        return candidates


Windows: TypeAlias = "UniformWindows | AdaptiveWindows"


def range_conditions(*ranges: tuple[IndexExpr, int]) -> list[Expr]:
    """Return the conditions ``0 <= index < bound``, without those that always hold."""
    conditions = [range_condition(ix, 0, bound) for ix, bound in ranges]
    return [condition for condition in conditions if condition is not None]


def _masked_by_all(conditions: Sequence[Expr], yes: Expr, no: Expr) -> Expr:
    """Return `yes` where all conditions hold, else `no`; loads in `yes` happen only where they hold."""
    for condition in conditions:
        yes = masked(condition, yes, no)
    return yes


# --- reductions over windows ------------------------------------------------------------------------------

_BINARY_OPS = {"max": "maximum", "sum": "add"}


def _combine(op: str, elements: Iterable[Expr]) -> Expr:
    """Return all elements combined by an operation, in order; there is at least one."""
    return functools.reduce(lambda total, element: total.apply(op, element), elements)


def materialize_if_expensive(x: Value) -> Value:
    """Materialize a value that is read several times, unless it is cheap to recompute."""
    element = x.at(tuple(IndexExpr.of(Var(size)) for size in x.shape))
    nodes = list(walk([element]))
    if len(nodes) <= _MAX_RECOMPUTED_OPS and not any(e.op in _EXPENSIVE_OPS for e in nodes):
        return x
    node = Materialized(x, fits_row_scratch=False)
    return Value(x.shape, x.dtype, lambda index: materialized(node, index))


def _lowest(dtype: torch.dtype) -> Expr:
    return const(extreme(dtype, lowest=True), dtype)


def _reduce_axis(
    x: Value, axis: int, windows: Windows, kind: str, fill: Expr, *, padded: bool = False
) -> Value:
    """Reduce over the windows of one axis; `padded`: the axis of `x` includes the padding."""

    def element(index: Index, tap: int) -> Expr:
        input_index = windows.input_index(index[axis], tap)
        conditions = windows.tap_conditions(index[axis], tap)
        if padded:
            input_index = input_index + windows.padding
        else:
            conditions += range_conditions((input_index, windows.size))
        return _masked_by_all(conditions, x.at((*index[:axis], input_index, *index[axis + 1 :])), fill)

    def at(index: Index) -> Expr:
        return _combine(_BINARY_OPS[kind], (element(index, tap) for tap in range(windows.taps)))

    return Value((*x.shape[:axis], windows.num_windows, *x.shape[axis + 1 :]), x.dtype, at)


def _materialize_rows(x: Value, windows: Windows, fill: Expr) -> Value:
    """Materialize a value by rows of its last axis, padding included."""

    def at(index: Index) -> Expr:
        input_index = index[-1] - windows.padding
        conditions = range_conditions((input_index, windows.size))
        return _masked_by_all(conditions, x.at((*index[:-1], input_index)), fill)

    node = Materialized(Value((*x.shape[:-1], windows.span), x.dtype, at), fits_row_scratch=True)
    return Value(node.value.shape, x.dtype, lambda index: materialized(node, index))


def reduce_windows(x: Value, windows: Sequence[Windows], kind: str) -> Value:
    """Return the sum or maximum over windows of the last axes, in the compute dtype."""
    result = _reduce_by_axis(materialize_if_expensive(x), windows, kind)
    if not _can_reduce_in_matmul(windows) or not _depends_on_matmul(x):
        return result

    def body(outer: Index, inner: Index) -> Expr:
        return cast(x.at(_input_index(windows, outer, inner)), result.dtype)

    node = PooledMatmul(kind, result.shape, tuple(w.taps for w in windows), result.dtype, body, result.at)
    return Value(result.shape, result.dtype, lambda index: reduction_result(node, index))


def _input_index(windows: Sequence[Windows], index: Index, taps: Sequence[int | IndexExpr]) -> Index:
    """Return the index of a tap of a window; of both, those of the windows' axes come last."""
    first_axis = len(index) - len(windows)
    triples = zip(windows, index[first_axis:], taps, strict=True)
    return (*index[:first_axis], *(w.input_index(o, k) for w, o, k in triples))


def _tap_conditions(
    windows: Sequence[Windows], index: Sequence[IndexExpr], taps: Sequence[int | IndexExpr]
) -> list[Expr]:
    """Return the conditions for taps to be in their windows and in the tensor."""
    conditions = []
    for w, o, k in zip(windows, index[len(index) - len(windows) :], taps, strict=True):
        conditions += [*w.tap_conditions(o, k), *range_conditions((w.input_index(o, k), w.size))]
    return conditions


def _can_reduce_in_matmul(windows: Sequence[Windows]) -> bool:
    """Whether windows partition the input into sizes that a matmul kernel can reduce."""
    is_partition = all(
        w == UniformWindows(w.size, w.num_windows, w.taps, w.taps, 0, 1) and w.num_windows * w.taps == w.size
        for w in windows
    )
    return is_partition and math.prod(w.taps for w in windows) in _FUSABLE_WINDOW_SIZES


def _depends_on_matmul(x: Value) -> bool:
    element = x.at(tuple(IndexExpr.of(Var(size)) for size in x.shape))
    return any(e.op == "reduced" and isinstance(e.extra[0], Matmul) for e in walk([element]))


def _reduce_by_axis(x: Value, windows: Sequence[Windows], kind: str) -> Value:
    """Reduce over windows, one axis after another; `x` may be read several times."""
    math_dtype = compute_dtype(x.dtype)
    fill = const(0, math_dtype) if kind == "sum" else _lowest(math_dtype)
    value = Value(x.shape, math_dtype, lambda index: cast(x.at(index), math_dtype))
    if any(w.taps > _MAX_UNROLLED_TAPS for w in windows):
        return _reduce_in_loop(value, windows, kind, fill)
    first_axis = len(x.shape) - len(windows)
    *leading, last = windows
    needs_rows = False
    for axis, w in enumerate(leading, first_axis):
        if not _is_identity(w):
            value = _reduce_axis(value, axis, w, kind, fill)
            needs_rows = needs_rows or w.taps > 1
    if _is_identity(last):
        return value
    padded = needs_rows and last.taps > 1
    if padded:
        value = _materialize_rows(value, last, fill)
    return _reduce_axis(value, len(x.shape) - 1, last, kind, fill, padded=padded)


def _is_identity(windows: Windows) -> bool:
    """Whether each window is one element, so that there is nothing to reduce."""
    return windows == UniformWindows(windows.size, windows.size, 1, 1, 0, 1)


def _reduce_in_loop(x: Value, windows: Sequence[Windows], kind: str, fill: Expr) -> Value:
    first_axis = len(x.shape) - len(windows)
    shape = (*x.shape[:first_axis], *(w.num_windows for w in windows))

    def body(outer: Index, inner: Index) -> Expr:
        element = x.at(_input_index(windows, outer, inner))
        return _masked_by_all(_tap_conditions(windows, outer, inner), element, fill)

    node = Reduction(kind, shape, tuple(w.taps for w in windows), x.dtype, body)
    return Value(shape, x.dtype, lambda index: reduction_result(node, index))


# --- windows from torch's arguments -----------------------------------------------------------------------


def per_axis(value: Any, count: int, default: Sequence[int] | None = None) -> list[int]:
    """Expand a setting to a list for `count` axes; it is one number or one for each axis."""
    if not value and default is not None:
        return list(default)
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _uniform_windows(
    sizes: Sequence[int], out: Sequence[int], kernel: Any, stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: Any = False,
) -> list[Windows]:  # fmt: skip
    count = len(sizes)
    kernels = per_axis(kernel, count)
    settings = per_axis(stride, count, kernels), per_axis(padding, count), per_axis(dilation, count)
    return [UniformWindows(*args) for args in zip(sizes, out, kernels, *settings, strict=True)]


class PoolingOp(NamedTuple):
    """A pooling op."""

    rank: int  # number of pooled axes
    is_adaptive: bool  # adaptive pooling; else windows of one size and stride
    is_max: bool  # max pooling with indices; else average pooling
    is_backward: bool  # the gradient, whose first argument is the output gradient

    def windows(self, shape: Sequence[int], out: Sequence[int], settings: Sequence[Any]) -> list[Windows]:
        """Return the windows of the pooled axes, of an input and an output of these shapes."""
        sizes, out = shape[-self.rank :], out[-self.rank :]
        if not self.is_adaptive:
            return _uniform_windows(sizes, out, *settings)
        return [
            UniformWindows(size, n, size // n, size // n, 0, 1) if size % n == 0 else AdaptiveWindows(size, n)
            for size, n in zip(sizes, out, strict=True)
        ]


POOLING_OPS: dict[Any, PoolingOp] = {}
"""Max pooling with indices, adaptive pooling, and their gradients."""


def pooling_windows(node: torch.fx.Node) -> list[Windows]:
    """Return the windows of a node whose op is in `POOLING_OPS`, one per pooled axis."""
    pool = POOLING_OPS[node.target]
    first_input, result = node.all_input_nodes[0].meta["val"], node.meta["val"]
    if pool.is_backward:
        return pool.windows(result.shape, first_input.shape, node.args[2:6])
    return pool.windows(first_input.shape, (result[0] if pool.is_max else result).shape, node.args[1:5])


def can_return_taps(node: torch.fx.Node) -> bool:
    """Whether a max pooling node can return taps instead of indices, which its gradient then reads.

    It does so if the dtype of the indices in `node.meta` is `TAP_DTYPE`.
    """
    return math.prod(w.taps for w in pooling_windows(node)) <= _MAX_ARGMAX_TAPS


# --- maxima -----------------------------------------------------------------------------------------------


# The dtype of saved taps: as wide as float32, so that vectors of both have as many lanes. With 8 bits,
# gradients compiled by gcc take twice as long, and rows of less than 64 elements are not vectorized.
TAP_DTYPE = torch.int32


@dataclasses.dataclass(frozen=True, eq=False)
class MaxIndices(Value):
    """The indices of windows' maxima, as torch returns them."""

    taps: Value  # the same as tap numbers within the windows, of dtype `TAP_DTYPE`
    # The maxima, found together with the indices, in the compute dtype. Maxima alone are cheaper to compute.
    maxima: Value


def _max_indices(x: Value, windows: Sequence[Windows]) -> MaxIndices:
    """Return the indices of maxima: the first of equal ones, and the last NaN."""
    first_axis = len(x.shape) - len(windows)
    shape = (*x.shape[:first_axis], *(w.num_windows for w in windows))
    math_dtype = compute_dtype(x.dtype)
    if math.prod(w.taps for w in windows) > _MAX_ARGMAX_TAPS:
        raise Unlowered
    x = materialize_if_expensive(x)

    def max_and_distance(index: Index, distances: Sequence[int]) -> tuple[Expr, Expr]:
        """Return a maximum and its distance from the first tap; `distances` are between taps, per axis."""
        max_offset = sum(distance * (w.taps - 1) for distance, w in zip(distances, windows, strict=True))
        dtype = _distance_dtype(max_offset, math_dtype)
        # Taps outside of the tensor count as -inf. Start at the first one inside of it, which is torch's
        # index if all elements are -inf.
        offset = const(0, dtype)
        for w, o, distance in zip(windows, index[first_axis:], distances, strict=True):
            start = const(distance * (w.taps - 1), dtype)
            for tap in reversed(range(w.taps - 1)):
                start = _masked_by_all(_tap_conditions([w], [o], [tap]), const(distance * tap, dtype), start)
            offset = start if offset.op == "const" and not offset.extra[0] else offset + start
        maximum: Expr | None = None
        for taps in itertools.product(*(range(w.taps) for w in windows)):
            element = cast(x.at(_input_index(windows, index, taps)), math_dtype)
            element = _masked_by_all(_tap_conditions(windows, index, taps), element, _lowest(math_dtype))
            if maximum is None:
                maximum = element
                continue
            is_greater = element.gt(maximum)
            if math_dtype.is_floating_point:
                is_greater = is_greater | element.ne(element)  # NaN
            # Not `maximum`, which tests for NaN again: gcc vectorizes two selects by one condition.
            maximum = is_greater.where(element, maximum)
            tap_offset = sum(distance * tap for distance, tap in zip(distances, taps, strict=True))
            offset = is_greater.where(tap_offset, offset)
        assert maximum is not None
        return maximum, offset

    index_distances = _tap_distances([w.size for w in windows], [w.dilation for w in windows])
    tap_distances = _tap_distances([w.taps for w in windows], [1] * len(windows))

    def flat(index: Index) -> Expr:
        start = IndexExpr()
        for w, o in zip(windows, index[first_axis:], strict=True):
            start = start * w.size + w.input_index(o, 0)
        _, offset = max_and_distance(index, index_distances)
        if offset.dtype == torch.float32:
            offset = cast(offset, torch.int32)  # gcc does not vectorize float to int64
        return index_value(start) + cast(offset, torch.int64)

    taps = Value(shape, TAP_DTYPE, lambda index: cast(max_and_distance(index, tap_distances)[1], TAP_DTYPE))
    maxima = Value(shape, math_dtype, lambda index: max_and_distance(index, tap_distances)[0])
    return MaxIndices(shape, torch.int64, flat, taps, maxima)


def _tap_distances(sizes: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """Return the distance of one tap along each axis in a contiguous tensor of the given sizes."""
    return [dilation * math.prod(sizes[axis + 1 :]) for axis, dilation in enumerate(dilations)]


def _distance_dtype(max_value: int, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for distances up to `max_value`: the elements' dtype if it is exact, else int64.

    With the same dtype, vectors of distances and of elements have as many lanes.
    """
    if dtype.is_floating_point:
        return dtype if max_value * torch.finfo(dtype).eps < 1 else torch.int64
    return dtype if max_value <= torch.iinfo(dtype).max else torch.int64


def _lower_max_pool(
    pool: PoolingOp, metas: Sequence[torch.Tensor], x: Value, *settings: Any, needs_indices: bool = False
) -> tuple[Value, Value]:
    windows = pool.windows(x.shape, metas[0].shape, settings)
    indices = _max_indices(x, windows)
    maxima = indices.maxima if needs_indices else reduce_windows(x, windows, "max")
    return to_result_dtype(maxima, metas[0]), indices.taps if metas[1].dtype == TAP_DTYPE else indices


def _lower_max_pool_backward(
    pool: PoolingOp, meta: torch.Tensor, grad_out: Value, x: Value, *settings_and_indices: Any
) -> Value:
    """Return for each element the sum of the output gradients of windows whose maximum it is."""
    *settings, indices = settings_and_indices
    windows = pool.windows(meta.shape, grad_out.shape, settings)
    first_axis = len(meta.shape) - len(windows)
    math_dtype = compute_dtype(meta.dtype)
    indices_or_taps = materialize_if_expensive(indices.taps if isinstance(indices, MaxIndices) else indices)
    by_tap = indices_or_taps.dtype == TAP_DTYPE
    grad_out = materialize_if_expensive(grad_out)

    def share(index: Index, window_taps: Sequence[tuple[IndexExpr, IndexExpr, list[Expr]]]) -> Expr:
        """Return an element's gradient from one window along each axis."""
        window_index = (*index[:first_axis], *(window for window, _, _ in window_taps))
        position = IndexExpr()
        for w, i, (_, tap, _) in zip(windows, index[first_axis:], window_taps, strict=True):
            position = position * w.taps + tap if by_tap else position * w.size + i
        is_maximum = indices_or_taps.at(window_index).eq(cast(index_value(position), indices_or_taps.dtype))
        part = is_maximum.where(cast(grad_out.at(window_index), math_dtype), 0)
        conditions = [c for _, _, conditions in window_taps for c in conditions]
        return _masked_by_all(conditions, part, const(0, math_dtype))

    def at(index: Index) -> Expr:
        containing = [w.containing(i) for w, i in zip(windows, index[first_axis:], strict=True)]
        return _combine("add", (share(index, window_taps) for window_taps in itertools.product(*containing)))

    return to_result_dtype(Value(tuple(meta.shape), math_dtype, at), meta)


# --- means ------------------------------------------------------------------------------------------------


def _count_taps(windows: Windows, window: IndexExpr, count_include_pad: bool, dtype: torch.dtype) -> Expr:
    """Return the number of elements along an axis by which a window's sum is divided."""
    counted_padding = windows.padding if count_include_pad else 0
    total = 0
    parts: list[Expr] = []
    for tap in range(windows.taps):
        input_index = windows.input_index(window, tap)
        conditions = windows.tap_conditions(window, tap)
        condition = range_condition(input_index, -counted_padding, windows.size + counted_padding)
        conditions += [] if condition is None else [condition]
        if conditions:
            parts.append(_masked_by_all(conditions, const(1, dtype), const(0, dtype)))
        else:
            total += 1
    return _combine("add", [const(total, dtype), *parts])


def _divisor(
    windows: Sequence[Windows],
    index: Index,
    count_include_pad: bool,
    divisor_override: Any,
    dtype: torch.dtype,
) -> Expr:
    if divisor_override is not None:
        return const(divisor_override, dtype)
    counts = [_count_taps(w, ix, count_include_pad, dtype) for w, ix in zip(windows, index, strict=True)]
    constant = math.prod(int(count.extra[0]) for count in counts if count.op == "const")
    varying = [count for count in counts if count.op != "const"]
    if not varying or constant != 1:
        varying.append(const(constant, dtype))
    return _combine("mul", varying)


def _lower_avg_pool(
    pool: PoolingOp, meta: torch.Tensor, x: Value, kernel: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: Any = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Value:  # fmt: skip
    windows = pool.windows(x.shape, meta.shape, (kernel, stride, padding))
    if not meta.dtype.is_floating_point or any(w.taps > _MAX_COUNTED_TAPS for w in windows):
        raise Unlowered
    math_dtype = compute_dtype(meta.dtype)
    first_axis = len(meta.shape) - len(windows)
    total = reduce_windows(x, windows, "sum")

    def at(index: Index) -> Expr:
        divisor = _divisor(windows, index[first_axis:], count_include_pad, divisor_override, math_dtype)
        return total.at(index) / divisor

    return to_result_dtype(Value(tuple(meta.shape), math_dtype, at), meta)


def _lower_avg_pool_backward(
    pool: PoolingOp, meta: torch.Tensor, grad_out: Value, x: Value, kernel: Any = (), stride: Any = (),
    padding: Any = 0, ceil_mode: Any = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Value:  # fmt: skip
    """Return for each element the sum of its shares of the gradients of windows that contain it."""
    windows = pool.windows(meta.shape, grad_out.shape, (kernel, stride, padding))
    if any(w.taps > _MAX_COUNTED_TAPS for w in windows):
        raise Unlowered
    first_axis = len(meta.shape) - len(windows)
    math_dtype = compute_dtype(meta.dtype)
    grad_out = materialize_if_expensive(grad_out)

    def share(index: Index) -> Expr:
        divisor = _divisor(windows, index[first_axis:], count_include_pad, divisor_override, math_dtype)
        return cast(grad_out.at(index), math_dtype) / divisor

    value = Value(grad_out.shape, math_dtype, share)
    *leading, last = windows
    for axis, w in enumerate(leading, first_axis):
        if not _is_identity(w):
            value = _sum_over_windows(value, axis, w)
    if not _is_identity(last):
        if any(w.taps > 1 for w in leading):
            node = Materialized(value, fits_row_scratch=True)
            value = Value(value.shape, math_dtype, lambda index: materialized(node, index))
        value = _sum_over_windows(value, len(meta.shape) - 1, last)
    return to_result_dtype(value, meta)


def _sum_over_windows(x: Value, axis: int, windows: Windows) -> Value:
    """Return for each element of an axis the sum over the windows that contain it."""

    def at(index: Index) -> Expr:
        parts = (
            _masked_by_all(conditions, x.at((*index[:axis], window, *index[axis + 1 :])), const(0, x.dtype))
            for window, _, conditions in windows.containing(index[axis])
        )
        return _combine("add", parts)

    return Value((*x.shape[:axis], windows.size, *x.shape[axis + 1 :]), x.dtype, at)


# By whether they compute maxima and whether they are gradients.
_LOWERINGS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (True, False): _lower_max_pool,
    (True, True): _lower_max_pool_backward,
    (False, False): _lower_avg_pool,
    (False, True): _lower_avg_pool_backward,
}
# torch decomposes 1d pooling to 2d.
for _rank in (2, 3):
    for _name, _is_adaptive, _is_max in (
        (f"max_pool{_rank}d_with_indices", False, True),
        (f"avg_pool{_rank}d", False, False),
        (f"adaptive_max_pool{_rank}d", True, True),
        (f"_adaptive_avg_pool{_rank}d", True, False),
    ):
        for _op, _is_backward in ((_name, False), (f"{_name}_backward", True)):
            _pool = PoolingOp(_rank, _is_adaptive, _is_max, _is_backward)
            _lowering = _LOWERINGS[_is_max, _is_backward]
            register_lowering(*overloads(_op, "default"))(partial(_lowering, _pool))
            if _is_max or _is_adaptive:
                POOLING_OPS |= dict.fromkeys(overloads(_op, "default"), _pool)
