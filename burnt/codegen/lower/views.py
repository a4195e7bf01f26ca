"""Lowerings of views and what is made of parts: they change indices and cost nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value
from burnt.codegen.ir import index_value as place_of
from burnt.codegen.lower.registry import Scalar, Unlowered, broadcast, cast, const, filled, lowered, operand

aten = torch.ops.aten

# Parts of a tensor, among which each element chooses: beyond, torch's own copies are the better way.
_MOST_PARTS = 64


def reshaped(x: Value, shape: Sequence[int]) -> Value:
    """The same elements in the same order under another shape."""
    shape = tuple(shape)
    groups = _groups(x.shape, shape)

    def at(index: Index) -> Expr:
        inner = [IndexExpr()] * len(x.shape)
        for (first, *rest), theirs in groups:
            flat = IndexExpr()
            for axis in theirs:
                flat = flat * shape[axis] + index[axis]
            for axis in reversed(rest):
                inner[axis] = flat % x.shape[axis]
                flat = flat // x.shape[axis]
            inner[first] = flat
        return x.at(tuple(inner))

    return x if shape == x.shape else Value(shape, x.dtype, at)


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest neighbouring axes of two shapes that hold as many elements, without those of size 1.

    An axis that both have needs no division, which an index that may be outside of it would not lose.
    """
    if 0 in old:
        return []
    ours, theirs = ([axis for axis, size in enumerate(shape) if size > 1] for shape in (old, new))
    found = []
    while ours:
        one, other = [ours.pop(0)], [theirs.pop(0)]
        while (count := math.prod(old[a] for a in one)) != (wanted := math.prod(new[a] for a in other)):
            if count < wanted:
                one.append(ours.pop(0))
            else:
                other.append(theirs.pop(0))
        found.append((one, other))
    return found


@lowered(
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten._reshape_alias.default,
    aten.view_copy.default, aten.squeeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims,
    aten.unsqueeze_copy.default, aten.reshape_as.default,
)  # fmt: skip
def _reshape(meta: torch.Tensor, x: Value, *_: Any) -> Value:
    return reshaped(x, meta.shape)


@lowered(aten.expand.default, aten.expand_copy.default)
def _expand(meta: torch.Tensor, x: Value, *_: Any, **__: Any) -> Value:
    return Value(tuple(meta.shape), x.dtype, broadcast(x, meta.shape))


def permuted(x: Value, order: Sequence[int]) -> Value:
    """The axes in another order."""
    order = [axis % len(x.shape) for axis in order]
    shape = tuple(x.shape[axis] for axis in order)

    def at(index: Index) -> Expr:
        inner = [IndexExpr()] * len(order)
        for ix, axis in zip(index, order, strict=True):
            inner[axis] = ix
        return x.at(tuple(inner))

    return Value(shape, x.dtype, at)


@lowered(aten.permute.default, aten.permute_copy.default)
def _permute(meta: torch.Tensor, x: Value, order: Sequence[int]) -> Value:
    return permuted(x, order)


@lowered(aten.transpose.int, aten.transpose_copy.int)
def _transpose(meta: torch.Tensor, x: Value, a: int, b: int) -> Value:
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    order[a], order[b] = order[b], order[a]
    return permuted(x, order)


@lowered(aten.t.default, aten.t_copy.default)
def _t(meta: torch.Tensor, x: Value) -> Value:
    return permuted(x, list(range(len(x.shape)))[::-1])


def moved(x: Value, shape: Sequence[int], axis: int, start: int, step: int) -> Value:
    """A stretch of an axis: element i is element ``start + i * step``."""
    return Value(
        tuple(shape),
        x.dtype,
        lambda index: x.at((*index[:axis], index[axis] * step + start, *index[axis + 1 :])),
    )


def _start(size: int, start: int | None) -> int:
    return 0 if start is None else max(start + size, 0) if start < 0 else min(start, size)


@lowered(aten.slice.Tensor, aten.slice_copy.Tensor)
def _slice(
    meta: torch.Tensor,
    x: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    axis %= len(x.shape)
    return moved(x, meta.shape, axis, _start(x.shape[axis], start), step)


@lowered(aten.select.int, aten.select_copy.int)
def _select(meta: torch.Tensor, x: Value, axis: int, at: int) -> Value:
    axis %= len(x.shape)
    place = IndexExpr.of(at % x.shape[axis])
    return Value(tuple(meta.shape), x.dtype, lambda index: x.at((*index[:axis], place, *index[axis:])))


@lowered(aten.flip.default)
def _flip(meta: torch.Tensor, x: Value, axes: Sequence[int]) -> Value:
    for axis in axes if x.shape else ():
        axis %= len(x.shape)
        x = moved(x, x.shape, axis, x.shape[axis] - 1, -1)
    return x


@lowered(aten.repeat.default)
def _repeat(meta: torch.Tensor, x: Value, times: Sequence[int]) -> Value:
    skip = len(times) - len(x.shape)
    return Value(
        tuple(meta.shape),
        x.dtype,
        lambda index: x.at(
            tuple(ix % size if size else IndexExpr() for ix, size in zip(index[skip:], x.shape, strict=True))
        ),
    )


def within(ix: IndexExpr, low: int, high: int) -> Expr | None:
    """Whether ``low <= ix < high``; None where it always is."""
    first, last = ix.bounds()
    place = place_of(ix)
    tests = []
    if first < low:
        tests.append(Expr.make("ge", (place, const(low, torch.int64)), torch.bool))
    if last >= high:
        tests.append(Expr.make("lt", (place, const(high, torch.int64)), torch.bool))
    if len(tests) == 2:
        return Expr.make("and", tests, torch.bool)
    return tests[0] if tests else None


def chosen(test: Expr | None, yes: Expr, no: Expr) -> Expr:
    """`yes` where the test holds, and only there evaluated."""
    return yes if test is None else Expr.make("masked", (test, yes, no), yes.dtype)


@lowered(aten.constant_pad_nd.default)
def _pad(meta: torch.Tensor, x: Value, pads: Sequence[int], value: Any = 0) -> Value:
    if isinstance(value, Scalar):
        raise Unlowered
    before = [0] * len(x.shape)
    for i in range(len(pads) // 2):
        before[-1 - i] = pads[2 * i]
    fill = const(value, meta.dtype)

    def at(index: Index) -> Expr:
        inner = tuple(ix - b for ix, b in zip(index, before, strict=True))
        result = x.at(inner)
        for ix, size in zip(inner, x.shape, strict=True):
            result = chosen(within(ix, 0, size), result, fill)
        return result

    return Value(tuple(meta.shape), meta.dtype, at)


@lowered(aten.cat.default)
def _cat(meta: torch.Tensor, parts: Sequence[Value], axis: int = 0) -> Value:
    if len(parts) > _MOST_PARTS:
        raise Unlowered
    axis %= len(meta.shape)
    starts, start = [], 0
    parts = [p for p in parts if p.shape != (0,) or len(meta.shape) == 1]
    for part in parts:
        starts.append(start)
        start += part.shape[axis]
    functions = [operand(part, part.shape, meta.dtype) for part in parts]

    def at(index: Index) -> Expr:
        result = const(0, meta.dtype)
        for part, fn, begin in reversed(list(zip(parts, functions, starts, strict=True))):
            if not part.shape[axis]:
                continue
            here = fn((*index[:axis], index[axis] - begin, *index[axis + 1 :]))
            # Each part by both its ends: outside of them there is nothing to load.
            result = chosen(within(index[axis], begin, begin + part.shape[axis]), here, result)
        return result

    return Value(tuple(meta.shape), meta.dtype, at)


@lowered(aten.stack.default)
def _stack(meta: torch.Tensor, parts: Sequence[Value], axis: int = 0) -> Value:
    axis %= len(meta.shape)
    shape = tuple(1 if a == axis else s for a, s in enumerate(meta.shape))
    return _cat(meta, [reshaped(part, shape) for part in parts], axis)


@lowered(operator.getitem)
def _getitem(meta: Any, parts: Sequence[Any], at: int) -> Any:
    return parts[at]


@lowered(
    aten.split.Tensor, aten.split_with_sizes.default, aten.unsafe_split.Tensor, aten.split_copy.Tensor,
    aten.split_with_sizes_copy.default, aten.unsafe_split_with_sizes.default,
)  # fmt: skip
def _split(metas: Sequence[torch.Tensor], x: Value, sizes: Any, axis: int = 0) -> list[Value]:
    axis %= len(x.shape)
    parts, start = [], 0
    for meta in metas:
        parts.append(moved(x, meta.shape, axis, start, 1))
        start += meta.shape[axis]
    return parts


@lowered(aten.unbind.int, aten.unbind_copy.int)
def _unbind(metas: Sequence[torch.Tensor], x: Value, axis: int = 0) -> list[Value]:
    return [_select(meta, x, axis, i) for i, meta in enumerate(metas)]


# --- writing to a part ----------------------------------------------------------------------------------


def written(x: Value, part: Value, axis: int, start: int, step: int = 1) -> Value:
    """`x` with `part` in the places ``start + i * step`` of an axis."""
    size = part.shape[axis]

    def at(index: Index) -> Expr:
        if not size:
            return x.at(index)
        from_start = index[axis] - start
        test = within(from_start, 0, (size - 1) * step + 1)
        if step > 1:
            whole = Expr.make("eq", (place_of(from_start % step), const(0, torch.int64)), torch.bool)
            test = whole if test is None else Expr.make("and", (test, whole), torch.bool)
        here = part.at((*index[:axis], from_start // step, *index[axis + 1 :]))
        return chosen(test, cast(here, x.dtype), x.at(index))

    return Value(x.shape, x.dtype, at)


@lowered(aten.slice_scatter.default)
def _slice_scatter(
    meta: torch.Tensor,
    x: Value,
    part: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    axis %= len(x.shape)
    return written(x, part, axis, _start(x.shape[axis], start), step)


@lowered(aten.select_scatter.default)
def _select_scatter(meta: torch.Tensor, x: Value, part: Value, axis: int, at: int) -> Value:
    axis %= len(x.shape)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return written(x, reshaped(part, shape), axis, at % x.shape[axis])


@lowered(aten.slice_backward.default)
def _slice_backward(
    meta: torch.Tensor, part: Value, shape: Sequence[int], axis: int, start: int, end: int, step: int
) -> Value:
    return _slice_scatter(meta, filled(shape, 0, meta.dtype), part, axis, start, end, step)


@lowered(aten.select_backward.default)
def _select_backward(meta: torch.Tensor, part: Value, shape: Sequence[int], axis: int, at: int) -> Value:
    return _select_scatter(meta, filled(shape, 0, meta.dtype), part, axis, at)


# --- diagonals, triangles, windows ----------------------------------------------------------------------


@lowered(aten.diagonal.default, aten.diagonal_copy.default)
def _diagonal(meta: torch.Tensor, x: Value, offset: int = 0, a: int = 0, b: int = 1) -> Value:
    a, b = a % len(x.shape), b % len(x.shape)

    def at(index: Index) -> Expr:
        rest = iter(index[:-1])
        along = {a: index[-1] + max(-offset, 0), b: index[-1] + max(offset, 0)}
        return x.at(tuple(along[axis] if axis in along else next(rest) for axis in range(len(x.shape))))

    return Value(tuple(meta.shape), x.dtype, at)


@lowered(aten.diagonal_scatter.default)
def _diagonal_scatter(
    meta: torch.Tensor, x: Value, part: Value, offset: int = 0, a: int = 0, b: int = 1
) -> Value:
    a, b = a % len(x.shape), b % len(x.shape)
    down, right = max(-offset, 0), max(offset, 0)

    def at(index: Index) -> Expr:
        along = index[a] - down
        rest = tuple(ix for axis, ix in enumerate(index) if axis not in (a, b))
        test = Expr.make("eq", (place_of(along), place_of(index[b] - right)), torch.bool)
        inside = within(along, 0, part.shape[-1])
        if inside is not None:
            test = Expr.make("and", (test, inside), torch.bool)
        return chosen(test, cast(part.at((*rest, along)), x.dtype), x.at(index))

    return Value(x.shape, x.dtype, at)


@lowered(aten.diagonal_backward.default)
def _diagonal_backward(
    meta: torch.Tensor, part: Value, shape: Sequence[int], offset: int, a: int, b: int
) -> Value:
    return _diagonal_scatter(meta, filled(shape, 0, meta.dtype), part, offset, a, b)


@lowered(aten.diag_embed.default)
def _diag_embed(meta: torch.Tensor, x: Value, offset: int = 0, a: int = -2, b: int = -1) -> Value:
    return _diagonal_scatter(meta, filled(meta.shape, 0, meta.dtype), x, offset, a, b)


def _triangle(meta: torch.Tensor, x: Value, test: str, offset: int) -> Value:
    zero = const(0, x.dtype)

    def at(index: Index) -> Expr:
        row, column = place_of(index[-2] + offset), place_of(index[-1])
        return chosen(Expr.make(test, (column, row), torch.bool), x.at(index), zero)

    return Value(x.shape, x.dtype, at)


@lowered(aten.tril.default)
def _tril(meta: torch.Tensor, x: Value, offset: int = 0) -> Value:
    return _triangle(meta, x, "le", offset)


@lowered(aten.triu.default)
def _triu(meta: torch.Tensor, x: Value, offset: int = 0) -> Value:
    return _triangle(meta, x, "ge", offset)


@lowered(aten.roll.default)
def _roll(meta: torch.Tensor, x: Value, by: Sequence[int], axes: Sequence[int] = ()) -> Value:
    if not axes:
        return reshaped(_roll(meta, reshaped(x, (x.numel,)), by, [0]), x.shape)
    shifts = [0] * len(x.shape)
    for shift, axis in zip(by, axes, strict=True):
        shifts[axis] += shift

    def at(index: Index) -> Expr:
        parts = [
            (ix - shift % size) % size if size and shift % size else ix
            for ix, shift, size in zip(index, shifts, x.shape, strict=True)
        ]
        return x.at(tuple(parts))

    return Value(x.shape, x.dtype, at)


@lowered(aten.unfold.default, aten.unfold_copy.default)
def _unfold(meta: torch.Tensor, x: Value, axis: int, size: int, step: int) -> Value:
    if not x.shape:
        return Value(tuple(meta.shape), x.dtype, lambda index: x.at(()))
    axis %= len(x.shape)
    return Value(
        tuple(meta.shape),
        x.dtype,
        lambda index: x.at((*index[:axis], index[axis] * step + index[-1], *index[axis + 1 : -1])),
    )
