"""Lowerings of pooling: extremes and sums over windows, and their gradients.

Everything is in gather form: an element of a gradient sums over the windows that contain it, in their order,
so nothing is added atomically and results do not vary. Extremes and sums are separable: a window's rows are
folded first, over all axes but the last, into a row that kernels keep (`Materialized`), then along it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
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
    materialized,
    reduction_result,
    walk,
)
from burnt.codegen.ir import index_value as place_of
from burnt.codegen.lower.registry import Unlowered, cast, compute_dtype, const, lowered, overloads
from burnt.codegen.lower.views import chosen, within

aten = torch.ops.aten

# Taps of one axis that are written out one by one; more are a loop.
_MOST_TAPS = 32
# Taps of one axis that are counted one by one where a mean leaves some out.
_MOST_COUNTED = 128
# Taps of a whole window of which the place of the largest is found.
_MOST_PLACES = 100
# Elements of a window that a product's kernel folds.
_POOLED = 2, 4, 8, 16
# Operations of an element that is computed again for every window that it is in.
_CHEAP = 24
_COSTLY = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh",
    "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "pow", "atan2", "fmod",
    "remainder", "reduced", "kept", "scanned", "uniform", "random",
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Even:
    """Windows of one length at even distances.

    Args:
        size: elements of the axis.
        out: how many windows there are.
        taps: elements of a window.
        stride: from one window to the next.
        before: padding that the first window begins with.
        dilation: from one tap to the next.
    """

    size: int
    out: int
    taps: int
    stride: int
    before: int
    dilation: int

    @property
    def reach(self) -> int:
        """How many elements the windows reach over, padding included."""
        return (self.out - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def place(self, window: IndexExpr, tap: int | IndexExpr) -> IndexExpr:
        """The element that a tap of a window is; it may lie outside."""
        return window * self.stride + IndexExpr.of(tap) * self.dilation - self.before

    def within(self, window: IndexExpr, tap: int | IndexExpr) -> list[Expr]:
        """What has to hold for a tap to be in its window, the tensor's edges apart."""
        return []

    def over(self, element: IndexExpr) -> list[tuple[IndexExpr, IndexExpr, list[Expr]]]:
        """The windows that may contain an element: which, as which tap, and what has to hold."""
        found = []
        at = element + self.before
        if self.dilation == 1 or self.taps == 1:
            for j in range(-(-self.taps // self.stride)):
                window, tap = at // self.stride - j, at % self.stride + j * self.stride
                found.append((window, tap, inside_all((window, self.out), (tap, self.taps))))
            return found
        for k in range(self.taps):
            first = at - k * self.dilation
            window = first // self.stride
            tests = inside_all((window, self.out))
            if self.stride > 1:
                tests.append(_compared("eq", first % self.stride, 0))
            found.append((window, IndexExpr.of(k), tests))
        return found


@dataclasses.dataclass(frozen=True)
class Adaptive:
    """Windows that share an axis out: from ``floor(i * size / out)`` to ``ceil((i + 1) * size / out)``."""

    size: int
    out: int
    before: int = 0
    dilation: int = 1

    def start(self, window: IndexExpr) -> IndexExpr:
        """The first element of a window."""
        return (window * self.size) // self.out

    def end(self, window: IndexExpr) -> IndexExpr:
        """The element after a window's last."""
        return (window * self.size + (self.size + self.out - 1)) // self.out

    @functools.cached_property
    def _each(self) -> list[tuple[int, int]]:
        firsts = [IndexExpr.of(i) for i in range(self.out)]
        return [(self.start(i).const, self.end(i).const) for i in firsts]

    @property
    def reach(self) -> int:
        """How many elements the windows reach over."""
        return self.size

    @functools.cached_property
    def taps(self) -> int:
        """Elements of the largest window."""
        return max(end - start for start, end in self._each)

    @functools.cached_property
    def most(self) -> int:
        """The largest number of windows that share an element."""
        return max(
            sum(start <= i for start, _ in self._each[i * self.out // self.size :]) for i in range(self.size)
        )

    def place(self, window: IndexExpr, tap: int | IndexExpr) -> IndexExpr:
        """The element that a tap of a window is; it may lie after the window."""
        return self.start(window) + tap

    def within(self, window: IndexExpr, tap: int | IndexExpr) -> list[Expr]:
        """What has to hold for a tap to be in its window."""
        return [_compared("lt", self.place(window, tap) - self.end(window), 0)]

    def over(self, element: IndexExpr) -> list[tuple[IndexExpr, IndexExpr, list[Expr]]]:
        """The windows that may contain an element: which, as which tap, and what has to hold."""
        found = []
        for j in range(self.most):
            window = (element * self.out) // self.size + j
            tap = element - self.start(window)
            tests = inside_all((window, self.out))
            if j:
                tests.append(_compared("ge", tap, 0))
            found.append((window, tap, tests))
        return found


Axis: TypeAlias = "Even | Adaptive"


def _compared(op: str, ix: IndexExpr, bound: int) -> Expr:
    return Expr.make(op, (place_of(ix), const(bound, torch.int64)), torch.bool)


def inside_all(*ranges: tuple[IndexExpr, int]) -> list[Expr]:
    """That indices lie between 0 and a bound, as far as it is not known."""
    found = [within(ix, 0, bound) for ix, bound in ranges]
    return [test for test in found if test is not None]


def _guarded(tests: Sequence[Expr], yes: Expr, no: Expr) -> Expr:
    for test in tests:
        yes = chosen(test, yes, no)
    return yes


# --- folds over windows -----------------------------------------------------------------------------------

_COMBINE = {"max": "maximum", "sum": "add"}


def settled(x: Value) -> Value:
    """A value that may be read several times: as it is where that is cheap, else kept in memory."""
    element = x.at(tuple(IndexExpr.of(Var(size)) for size in x.shape))
    nodes = list(walk([element]))
    if len(nodes) <= _CHEAP and not any(e.op in _COSTLY for e in nodes):
        return x
    held = Materialized(x, rows=False)
    return Value(x.shape, x.dtype, lambda index: materialized(held, index))


def _lowest(dtype: torch.dtype) -> Expr:
    return const(float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min, dtype)


def _along(x: Value, axis: int, windows: Axis, kind: str, fill: Expr, *, padded: bool = False) -> Value:
    """A fold over the windows of one axis; `padded`: its elements begin with the padding."""

    def at(index: Index) -> Expr:
        result: Expr | None = None
        for tap in range(windows.taps):
            place = windows.place(index[axis], tap)
            tests = windows.within(index[axis], tap)
            if padded:
                place = place + windows.before
            else:
                tests += inside_all((place, windows.size))
            element = _guarded(tests, x.at((*index[:axis], place, *index[axis + 1 :])), fill)
            result = element if result is None else Expr.make(_COMBINE[kind], (result, element), x.dtype)
        assert result is not None
        return result

    shape = (*x.shape[:axis], windows.out, *x.shape[axis + 1 :])
    return Value(shape, x.dtype, at)


def _row_of(x: Value, windows: Axis, fill: Expr) -> Value:
    """A value whose last axis, padding included, is kept."""

    def at(index: Index) -> Expr:
        place = index[-1] - windows.before
        return _guarded(inside_all((place, windows.size)), x.at((*index[:-1], place)), fill)

    held = Materialized(Value((*x.shape[:-1], windows.reach), x.dtype, at), rows=True)
    return Value(held.value.shape, x.dtype, lambda index: materialized(held, index))


def folded(x: Value, windows: Sequence[Axis], kind: str) -> Value:
    """The sum or maximum over windows of the last axes, in the dtype that is computed in."""
    made = _folded(settled(x), windows, kind)
    if not _shares_out(windows) or not _of_product(x):
        return made
    first = len(x.shape) - len(windows)

    def body(outer: Index, inner: Index) -> Expr:
        places = [w.place(o, k) for w, o, k in zip(windows, outer[first:], inner, strict=True)]
        return cast(x.at((*outer[:first], *places)), made.dtype)

    node = PooledMatmul(kind, made.shape, tuple(w.taps for w in windows), made.dtype, body, made.at)
    return Value(made.shape, made.dtype, lambda index: reduction_result(node, index))


def _shares_out(windows: Sequence[Axis]) -> bool:
    """Whether windows share the elements out, as many to each as a tile of a product takes together."""
    apart = all(w == Even(w.size, w.out, w.taps, w.taps, 0, 1) and w.out * w.taps == w.size for w in windows)
    return apart and math.prod(w.taps for w in windows) in _POOLED


def _of_product(x: Value) -> bool:
    """Whether an element is made of one of a matrix product's."""
    element = x.at(tuple(IndexExpr.of(Var(size)) for size in x.shape))
    return any(e.op == "reduced" and isinstance(e.extra[0], Matmul) for e in walk([element]))


def _folded(x: Value, windows: Sequence[Axis], kind: str) -> Value:
    """The same of a value that may be read several times."""
    inside = compute_dtype(x.dtype)
    fill = const(0, inside) if kind == "sum" else _lowest(inside)
    value = Value(x.shape, inside, lambda index: cast(x.at(index), inside))
    if any(w.taps > _MOST_TAPS for w in windows):
        return _looped(value, windows, kind, fill)
    first = len(x.shape) - len(windows)
    *lead, last = windows
    several = False
    for axis, w in enumerate(lead, first):
        if not _is_whole(w):
            value = _along(value, axis, w, kind, fill)
            several = several or w.taps > 1
    if _is_whole(last):
        return value
    if several and last.taps > 1:
        return _along(_row_of(value, last, fill), len(x.shape) - 1, last, kind, fill, padded=True)
    return _along(value, len(x.shape) - 1, last, kind, fill)


def _is_whole(windows: Axis) -> bool:
    """Whether each window is the element itself."""
    return windows == Even(windows.size, windows.size, 1, 1, 0, 1)


def _looped(x: Value, windows: Sequence[Axis], kind: str, fill: Expr) -> Value:
    """A fold over windows as a loop, for large ones."""
    first = len(x.shape) - len(windows)
    shape = (*x.shape[:first], *(w.out for w in windows))

    def body(outer: Index, inner: Index) -> Expr:
        places = [w.place(o, k) for w, o, k in zip(windows, outer[first:], inner, strict=True)]
        tests = [t for w, o, k in zip(windows, outer[first:], inner, strict=True) for t in w.within(o, k)]
        tests += inside_all(*((p, w.size) for p, w in zip(places, windows, strict=True)))
        return _guarded(tests, x.at((*outer[:first], *places)), fill)

    node = Reduction(kind, shape, tuple(w.taps for w in windows), x.dtype, body)
    return Value(shape, x.dtype, lambda index: reduction_result(node, index))


def _given(x: Value, dtype: torch.dtype) -> Value:
    """In a dtype of 16 bits what was computed in 32."""
    if x.dtype == dtype:
        return x
    return Value(x.shape, dtype, lambda index: Expr.make("as", (x.at(index),), dtype))


# --- windows of torch's arguments -------------------------------------------------------------------------


def per_axis(value: Any, count: int, default: Sequence[int] | None = None) -> list[int]:
    """A setting for each of `count` axes, of one for all or of one for each."""
    if not value and default is not None:
        return list(default)
    given = [value] if isinstance(value, int) else list(value)
    return given * count if len(given) == 1 else given


def _even(
    shape: Sequence[int],
    out: Sequence[int],
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
) -> list[Axis]:
    """The windows of the last axes of `shape`, as many as `out` is long."""
    count = len(out)
    kernels = per_axis(kernel, count)
    steps = per_axis(stride, count, kernels)
    pads, gaps = per_axis(padding, count), per_axis(dilation, count)
    sizes = shape[len(shape) - count :]
    return [Even(*each) for each in zip(sizes, out, kernels, steps, pads, gaps, strict=True)]


def _adaptive(shape: Sequence[int], out: Sequence[int]) -> list[Axis]:
    sizes = shape[len(shape) - len(out) :]
    return [
        Even(size, n, size // n, size // n, 0, 1) if size % n == 0 else Adaptive(size, n)
        for size, n in zip(sizes, out, strict=True)
    ]


# --- maxima -----------------------------------------------------------------------------------------------


# A place within its window, as it is stored: as wide as a float, so that vectors of both have as many lanes.
# With 8 bits, gradients of gcc take twice as long, and rows of less than 64 elements have no vectors.
TAP = torch.int32


@dataclasses.dataclass(frozen=True, eq=False)
class Places(Value):
    """Where the maxima of windows are, as torch's indices.

    Args:
        taps: the same as numbers of taps within their windows, of dtype `TAP`.
        maxima: the maxima as they are found with their places, in the dtype that is computed in: to find them
            by themselves takes less.
    """

    taps: Value
    maxima: Value


def _places(x: Value, windows: Sequence[Axis]) -> Places:
    """The places of maxima: of the first among equals, of the last NaN."""
    first = len(x.shape) - len(windows)
    shape = (*x.shape[:first], *(w.out for w in windows))
    inside = compute_dtype(x.dtype)
    if math.prod(w.taps for w in windows) > _MOST_PLACES:
        raise Unlowered
    x = settled(x)

    def found(index: Index, steps: Sequence[int]) -> tuple[Expr, Expr]:
        """A maximum, and how far it is from the window's first tap, with a step's length for each axis."""
        outer = index[first:]
        farthest = sum(step * (w.taps - 1) for step, w in zip(steps, windows, strict=True))
        dtype = _holding(farthest, inside)
        # What is not there counts as -inf at the first place that is: torch's answer where all are -inf.
        far = const(0, dtype)
        for w, o, step in zip(windows, outer, steps, strict=True):
            begin = const(step * (w.taps - 1), dtype)
            for tap in reversed(range(w.taps - 1)):
                begin = _guarded(_there([w], [o], [tap]), const(step * tap, dtype), begin)
            far = begin if far.op == "const" and not far.extra[0] else Expr.make("add", (far, begin), dtype)
        best: Expr | None = None
        for taps in itertools.product(*(range(w.taps) for w in windows)):
            places = [w.place(o, k) for w, o, k in zip(windows, outer, taps, strict=True)]
            element = cast(x.at((*index[:first], *places)), inside)
            element = _guarded(_there(windows, outer, taps), element, _lowest(inside))
            if best is None:
                best = element
                continue
            better = Expr.make("gt", (element, best), torch.bool)
            if inside.is_floating_point:
                nan = Expr.make("ne", (element, element), torch.bool)
                better = Expr.make("or", (better, nan), torch.bool)
            # Not a maximum, which asks for NaN once more: gcc makes vectors of choices by one test.
            best = Expr.make("where", (better, element, best), inside)
            here = const(sum(step * tap for step, tap in zip(steps, taps, strict=True)), dtype)
            far = Expr.make("where", (better, here, far), dtype)
        assert best is not None
        return best, far

    lengths = _steps([w.size for w in windows], [w.dilation for w in windows])
    counts = _steps([w.taps for w in windows], [1] * len(windows))

    def flat(index: Index) -> Expr:
        begin = IndexExpr()
        for w, o in zip(windows, index[first:], strict=True):
            begin = begin * w.size + w.place(o, 0)
        _, far = found(index, lengths)
        if far.dtype == torch.float32:
            far = cast(far, torch.int32)  # gcc has no vectors of int64 from floats
        return Expr.make("add", (place_of(begin), cast(far, torch.int64)), torch.int64)

    taps = Value(shape, TAP, lambda index: cast(found(index, counts)[1], TAP))
    maxima = Value(shape, inside, lambda index: found(index, counts)[0])
    return Places(shape, torch.int64, flat, taps, maxima)


def _steps(sizes: Sequence[int], along: Sequence[int]) -> list[int]:
    """How far a step along each axis goes, counted in elements of the last one."""
    return [step * math.prod(sizes[axis + 1 :]) for axis, step in enumerate(along)]


def _holding(most: int, dtype: torch.dtype) -> torch.dtype:
    """The dtype for whole numbers beside elements of a dtype: the same, if it can hold them.

    A vector of the one has as many lanes as one of the other then.
    """
    if dtype.is_floating_point:
        return dtype if most * torch.finfo(dtype).eps < 1 else torch.int64
    return dtype if most <= torch.iinfo(dtype).max else torch.int64


def _there(windows: Sequence[Axis], outer: Sequence[IndexExpr], taps: Sequence[int]) -> list[Expr]:
    """What has to hold for taps to be elements of their windows."""
    tests = []
    for w, o, k in zip(windows, outer, taps, strict=True):
        tests += [*w.within(o, k), *inside_all((w.place(o, k), w.size))]
    return tests


def _max_pool(
    metas: Sequence[torch.Tensor], x: Value, windows: Sequence[Axis], keeps_places: bool
) -> tuple[Value, Value]:
    places = _places(x, windows)
    maxima = places.maxima if keeps_places else folded(x, windows, "max")
    return _given(maxima, metas[0].dtype), places.taps if metas[1].dtype == TAP else places


def _max_pool_backward(meta: torch.Tensor, grad: Value, windows: Sequence[Axis], indices: Value) -> Value:
    """To each element what the windows got of which it is the maximum."""
    first = len(meta.shape) - len(windows)
    inside = compute_dtype(meta.dtype)
    places = settled(indices.taps if isinstance(indices, Places) else indices)
    by_tap = places.dtype == TAP
    grad = settled(grad)

    def at(index: Index) -> Expr:
        total: Expr | None = None
        for each in itertools.product(*(w.over(i) for w, i in zip(windows, index[first:], strict=True))):
            where = (*index[:first], *(window for window, _, _ in each))
            number = IndexExpr()
            for w, i, (_, tap, _) in zip(windows, index[first:], each, strict=True):
                number = number * w.taps + tap if by_tap else number * w.size + i
            ours = Expr.make("eq", (places.at(where), cast(place_of(number), places.dtype)), torch.bool)
            zero = const(0, inside)
            part = Expr.make("where", (ours, cast(grad.at(where), inside), zero), inside)
            part = _guarded([t for _, _, tests in each for t in tests], part, zero)
            total = part if total is None else Expr.make("add", (total, part), inside)
        assert total is not None
        return total

    return _given(Value(tuple(meta.shape), inside, at), meta.dtype)


class Pool(NamedTuple):
    """An op on windows.

    Args:
        rank: over how many axes.
        adaptive: whether windows share the axes out.
        maxima: whether it is about maxima and their places; else about means.
        gradient: whether it is the gradient, first of whose arguments is the cotangent.
    """

    rank: int
    adaptive: bool
    maxima: bool
    gradient: bool


POOLS: dict[Any, Pool] = {}
"""Maxima over windows with their places, adaptive pools, and their gradients."""


def windows_of(node: torch.fx.Node) -> list[Axis]:
    """The windows of a node that is one of `POOLS`."""
    pool = POOLS[node.target]
    given, made = node.all_input_nodes[0].meta["val"], node.meta["val"]
    x, out = (made, given) if pool.gradient else (given, made[0] if pool.maxima else made)
    sizes = tuple(out.shape[len(out.shape) - pool.rank :])
    if pool.adaptive:
        return _adaptive(x.shape, sizes)
    first = 2 if pool.gradient else 1
    settings: list[Any] = list(node.args[first : first + 4])
    return _even(x.shape, sizes, *settings)


def has_taps(node: torch.fx.Node) -> bool:
    """Whether the places of a node's maxima can be had as numbers of taps.

    They are where `node.meta` describes the places as of dtype `TAP`, and then the gradient takes them.
    """
    return math.prod(w.taps for w in windows_of(node)) <= _MOST_PLACES


def _spatial(metas: Sequence[torch.Tensor], rank: int) -> tuple[int, ...]:
    return tuple(metas[0].shape[len(metas[0].shape) - rank :])


def _max_pools(rank: int) -> None:
    @lowered(*overloads(f"max_pool{rank}d_with_indices", "default"))
    def forward(
        metas: Any,
        x: Value,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil: Any = 0,
        keeps_places: bool = False,
    ) -> tuple[Value, Value]:
        windows = _even(x.shape, _spatial(metas, rank), kernel, stride, padding, dilation)
        return _max_pool(metas, x, windows, keeps_places)

    @lowered(*overloads(f"max_pool{rank}d_with_indices_backward", "default"))
    def backward(
        meta: torch.Tensor, grad: Value, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any,
        ceil: Any, indices: Value,
    ) -> Value:  # fmt: skip
        windows = _even(meta.shape, grad.shape[len(grad.shape) - rank :], kernel, stride, padding, dilation)
        return _max_pool_backward(meta, grad, windows, indices)

    @lowered(*overloads(f"adaptive_max_pool{rank}d", "default"))
    def adaptive(metas: Any, x: Value, size: Any, keeps_places: bool = False) -> tuple[Value, Value]:
        return _max_pool(metas, x, _adaptive(x.shape, _spatial(metas, rank)), keeps_places)

    @lowered(*overloads(f"adaptive_max_pool{rank}d_backward", "default"))
    def adaptive_backward(meta: torch.Tensor, grad: Value, x: Value, indices: Value) -> Value:
        windows = _adaptive(meta.shape, grad.shape[len(grad.shape) - rank :])
        return _max_pool_backward(meta, grad, windows, indices)


# --- means ------------------------------------------------------------------------------------------------


def _count(windows: Axis, window: IndexExpr, include_padding: bool, dtype: torch.dtype) -> Expr:
    """How many elements of an axis a window's sum is divided by."""
    after = windows.before if include_padding else 0
    total = 0
    parts: list[Expr] = []
    for tap in range(windows.taps):
        place = windows.place(window, tap)
        tests = windows.within(window, tap)
        test = within(place, -after, windows.size + after)
        tests += [] if test is None else [test]
        if tests:
            parts.append(_guarded(tests, const(1, dtype), const(0, dtype)))
        else:
            total += 1
    result = const(total, dtype)
    for part in parts:
        result = Expr.make("add", (result, part), dtype)
    return result


def _divisor(
    windows: Sequence[Axis], index: Index, include_padding: bool, override: Any, dtype: torch.dtype
) -> Expr:
    """What the sum over a window is divided by."""
    if override is not None:
        return const(override, dtype)
    whole = 1
    result: Expr | None = None
    for w, ix in zip(windows, index, strict=True):
        count = _count(w, ix, include_padding, dtype)
        if count.op == "const":
            whole *= int(count.extra[0])  # type: ignore[call-overload]
        else:
            result = count if result is None else Expr.make("mul", (result, count), dtype)
    if result is None:
        return const(whole, dtype)
    return result if whole == 1 else Expr.make("mul", (result, const(whole, dtype)), dtype)


def _mean(
    meta: torch.Tensor, x: Value, windows: Sequence[Axis], include_padding: bool = True, override: Any = None
) -> Value:
    if not meta.dtype.is_floating_point or any(w.taps > _MOST_COUNTED for w in windows):
        raise Unlowered
    inside = compute_dtype(meta.dtype)
    first = len(meta.shape) - len(windows)
    total = folded(x, windows, "sum")

    def at(index: Index) -> Expr:
        by = _divisor(windows, index[first:], include_padding, override, inside)
        return Expr.make("div", (total.at(index), by), inside)

    return _given(Value(tuple(meta.shape), inside, at), meta.dtype)


def _mean_backward(
    meta: torch.Tensor,
    grad: Value,
    windows: Sequence[Axis],
    include_padding: bool = True,
    override: Any = None,
) -> Value:
    """To each element its share of every window that it is in."""
    if any(w.taps > _MOST_COUNTED for w in windows):
        raise Unlowered
    first = len(meta.shape) - len(windows)
    inside = compute_dtype(meta.dtype)
    grad = settled(grad)

    def share(index: Index) -> Expr:
        by = _divisor(windows, index[first:], include_padding, override, inside)
        return Expr.make("div", (cast(grad.at(index), inside), by), inside)

    value = Value(grad.shape, inside, share)
    *lead, last = windows
    for axis, w in enumerate(lead, first):
        if not _is_whole(w):
            value = _spread(value, axis, w)
    if not _is_whole(last):
        if any(w.taps > 1 for w in lead):
            held = Materialized(value, rows=True)
            value = Value(value.shape, inside, lambda index: materialized(held, index))
        value = _spread(value, len(meta.shape) - 1, last)
    return _given(Value(tuple(meta.shape), inside, value.at), meta.dtype)


def _spread(x: Value, axis: int, windows: Axis) -> Value:
    """For each element of an axis the sum over the windows that it is in."""

    def at(index: Index) -> Expr:
        total: Expr | None = None
        for window, _, tests in windows.over(index[axis]):
            part = _guarded(tests, x.at((*index[:axis], window, *index[axis + 1 :])), const(0, x.dtype))
            total = part if total is None else Expr.make("add", (total, part), x.dtype)
        assert total is not None
        return total

    return Value((*x.shape[:axis], windows.size, *x.shape[axis + 1 :]), x.dtype, at)


def _avg_pools(rank: int) -> None:
    @lowered(*overloads(f"avg_pool{rank}d", "default"))
    def forward(
        meta: torch.Tensor, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil: Any = False,
        include_padding: bool = True, override: Any = None,
    ) -> Value:  # fmt: skip
        windows = _even(x.shape, meta.shape[len(meta.shape) - rank :], kernel, stride, padding)
        return _mean(meta, x, windows, include_padding, override)

    @lowered(*overloads(f"avg_pool{rank}d_backward", "default"))
    def backward(
        meta: torch.Tensor, grad: Value, x: Value, kernel: Any, stride: Any, padding: Any, ceil: Any,
        include_padding: bool, override: Any,
    ) -> Value:  # fmt: skip
        windows = _even(meta.shape, grad.shape[len(grad.shape) - rank :], kernel, stride, padding)
        return _mean_backward(meta, grad, windows, include_padding, override)

    @lowered(*overloads(f"_adaptive_avg_pool{rank}d", "default"))
    def adaptive(meta: torch.Tensor, x: Value, size: Any) -> Value:
        return _mean(meta, x, _adaptive(x.shape, meta.shape[len(meta.shape) - rank :]))

    @lowered(*overloads(f"_adaptive_avg_pool{rank}d_backward", "default"))
    def adaptive_backward(meta: torch.Tensor, grad: Value, x: Value) -> Value:
        return _mean_backward(meta, grad, _adaptive(meta.shape, grad.shape[len(grad.shape) - rank :]))


# torch itself makes pools of one dimension ones of two.
for _rank in (2, 3):
    _max_pools(_rank)
    _avg_pools(_rank)
    for _gradient in (False, True):
        _suffix = "_backward" if _gradient else ""
        for _op in overloads(f"max_pool{_rank}d_with_indices{_suffix}", "default"):
            POOLS[_op] = Pool(_rank, adaptive=False, maxima=True, gradient=_gradient)
        for _op in overloads(f"adaptive_max_pool{_rank}d{_suffix}", "default"):
            POOLS[_op] = Pool(_rank, adaptive=True, maxima=True, gradient=_gradient)
        for _op in overloads(f"_adaptive_avg_pool{_rank}d{_suffix}", "default"):
            POOLS[_op] = Pool(_rank, adaptive=True, maxima=False, gradient=_gradient)
