"""Lowerings of views, concatenation, padding and the like: they change indices and compute nothing."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value, cast, const, index_value
from burnt.codegen.lower.registry import (
    Lowering,
    Scalar,
    Unlowered,
    broadcast,
    full,
    operand,
    register_lowering,
)

aten = torch.ops.aten

# Each element of a `cat` tests all its inputs: with more of them, torch's copies are faster.
_MAX_CAT_INPUTS = 64


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """Reshape: the same elements in the same order."""
    shape = tuple(shape)
    groups = _axis_groups(x.shape, shape)

    def at(index: Index) -> Expr:
        inner = [IndexExpr()] * len(x.shape)
        for (first, *rest), new_axes in groups:
            flat = IndexExpr()
            for axis in new_axes:
                flat = flat * shape[axis] + index[axis]
            for axis in reversed(rest):
                inner[axis] = flat % x.shape[axis]
                flat = flat // x.shape[axis]
            inner[first] = flat
        return x.at(tuple(inner))

    return x if shape == x.shape else Value(shape, x.dtype, at)


def _axis_groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split two shapes into the smallest groups of adjacent axes that hold equally many elements.

    Axes of size 1 are left out. An axis that both shapes have is a group of its own and needs no division,
    which could not be simplified away for an index that may be out of range.
    """
    if 0 in old:
        return []
    old_axes, new_axes = ([axis for axis, size in enumerate(shape) if size > 1] for shape in (old, new))
    groups = []
    while old_axes:
        old_group, new_group = [old_axes.pop(0)], [new_axes.pop(0)]
        while (old_count := math.prod(old[a] for a in old_group)) != (
            new_count := math.prod(new[a] for a in new_group)
        ):
            if old_count < new_count:
                old_group.append(old_axes.pop(0))
            else:
                new_group.append(new_axes.pop(0))
        groups.append((old_group, new_group))
    return groups


@register_lowering(
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten._reshape_alias.default,
    aten.view_copy.default, aten.squeeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims,
    aten.unsqueeze_copy.default, aten.reshape_as.default,
)  # fmt: skip
def _lower_reshape(meta: torch.Tensor, x: Value, *_: Any) -> Value:
    return reshape(x, meta.shape)


@register_lowering(aten.expand.default, aten.expand_copy.default)
def _lower_expand(meta: torch.Tensor, x: Value, *_: Any, **__: Any) -> Value:
    return Value(tuple(meta.shape), x.dtype, broadcast(x, meta.shape))


def permute(x: Value, order: Sequence[int]) -> Value:
    """Permute the axes."""
    order = [axis % len(x.shape) for axis in order]
    shape = tuple(x.shape[axis] for axis in order)

    def at(index: Index) -> Expr:
        inner = [IndexExpr()] * len(order)
        for ix, axis in zip(index, order, strict=True):
            inner[axis] = ix
        return x.at(tuple(inner))

    return Value(shape, x.dtype, at)


@register_lowering(aten.permute.default, aten.permute_copy.default)
def _lower_permute(meta: torch.Tensor, x: Value, order: Sequence[int]) -> Value:
    return permute(x, order)


@register_lowering(aten.transpose.int, aten.transpose_copy.int)
def _lower_transpose(meta: torch.Tensor, x: Value, axis1: int, axis2: int) -> Value:
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return permute(x, order)


@register_lowering(aten.t.default, aten.t_copy.default)
def _lower_t(meta: torch.Tensor, x: Value) -> Value:
    return permute(x, list(range(len(x.shape)))[::-1])


def strided_slice(x: Value, shape: Sequence[int], axis: int, start: int, step: int) -> Value:
    """Slice one axis: element i of the result is element ``start + i * step``."""

    def at(index: Index) -> Expr:
        return x.at((*index[:axis], index[axis] * step + start, *index[axis + 1 :]))

    return Value(tuple(shape), x.dtype, at)


def _normalize_start(size: int, start: int | None) -> int:
    """Return a slice's start as an index from 0 to `size`."""
    return 0 if start is None else max(start + size, 0) if start < 0 else min(start, size)


@register_lowering(aten.slice.Tensor, aten.slice_copy.Tensor)
def _lower_slice(
    meta: torch.Tensor,
    x: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    axis %= len(x.shape)
    return strided_slice(x, meta.shape, axis, _normalize_start(x.shape[axis], start), step)


@register_lowering(aten.select.int, aten.select_copy.int)
def _lower_select(meta: torch.Tensor, x: Value, axis: int, position: int) -> Value:
    axis %= len(x.shape)
    fixed = IndexExpr.of(position % x.shape[axis])
    return Value(tuple(meta.shape), x.dtype, lambda index: x.at((*index[:axis], fixed, *index[axis:])))


@register_lowering(aten.flip.default)
def _lower_flip(meta: torch.Tensor, x: Value, axes: Sequence[int]) -> Value:
    for axis in axes if x.shape else ():
        axis %= len(x.shape)
        x = strided_slice(x, x.shape, axis, x.shape[axis] - 1, -1)
    return x


@register_lowering(aten.repeat.default)
def _lower_repeat(meta: torch.Tensor, x: Value, repeats: Sequence[int]) -> Value:
    num_new_axes = len(repeats) - len(x.shape)

    def at(index: Index) -> Expr:
        pairs = zip(index[num_new_axes:], x.shape, strict=True)
        return x.at(tuple(ix % size if size else IndexExpr() for ix, size in pairs))

    return Value(tuple(meta.shape), x.dtype, at)


def range_condition(ix: IndexExpr, low: int, high: int) -> Expr | None:
    """Return the condition ``low <= ix < high``, or None if it always holds."""
    first, last = ix.bounds()
    index = index_value(ix)
    lower = index.ge(low) if first < low else None
    upper = index.lt(high) if last >= high else None
    return lower & upper if lower is not None and upper is not None else lower or upper


def masked(condition: Expr | None, yes: Expr, no: Expr) -> Expr:
    """Return `yes` where the condition holds, else `no`; loads in `yes` happen only where it holds."""
    return yes if condition is None else Expr.make("masked", (condition, yes, no), yes.dtype)


@register_lowering(aten.constant_pad_nd.default)
def _lower_constant_pad(meta: torch.Tensor, x: Value, pads: Sequence[int], value: Any = 0) -> Value:
    if isinstance(value, Scalar):
        raise Unlowered
    before = [0] * len(x.shape)
    for i in range(len(pads) // 2):
        before[-1 - i] = pads[2 * i]
    fill = const(value, meta.dtype)

    def at(index: Index) -> Expr:
        inner = tuple(ix - pad for ix, pad in zip(index, before, strict=True))
        result = x.at(inner)
        for ix, size in zip(inner, x.shape, strict=True):
            result = masked(range_condition(ix, 0, size), result, fill)
        return result

    return Value(tuple(meta.shape), meta.dtype, at)


@register_lowering(aten.cat.default)
def _lower_cat(meta: torch.Tensor, parts: Sequence[Value], axis: int = 0) -> Value:
    if len(parts) > _MAX_CAT_INPUTS:
        raise Unlowered
    axis %= len(meta.shape)
    parts = [part for part in parts if part.numel]  # torch also takes empty ones of shape (0,)
    ends = list(itertools.accumulate(part.shape[axis] for part in parts))
    operands = [operand(part, part.shape, meta.dtype) for part in parts]

    def at(index: Index) -> Expr:
        result = const(0, meta.dtype)
        for part, part_at, end in reversed(list(zip(parts, operands, ends, strict=True))):
            start = end - part.shape[axis]
            element = part_at((*index[:axis], index[axis] - start, *index[axis + 1 :]))
            # Test both ends of each part, since nothing may be loaded outside of it.
            result = masked(range_condition(index[axis], start, end), element, result)
        return result

    return Value(tuple(meta.shape), meta.dtype, at)


@register_lowering(aten.stack.default)
def _lower_stack(meta: torch.Tensor, parts: Sequence[Value], axis: int = 0) -> Value:
    axis %= len(meta.shape)
    shape = tuple(1 if a == axis else s for a, s in enumerate(meta.shape))
    return _lower_cat(meta, [reshape(part, shape) for part in parts], axis)


@register_lowering(operator.getitem)
def _lower_getitem(meta: Any, parts: Sequence[Any], index: int) -> Any:
    return parts[index]


@register_lowering(
    aten.split.Tensor, aten.split_with_sizes.default, aten.unsafe_split.Tensor, aten.split_copy.Tensor,
    aten.split_with_sizes_copy.default, aten.unsafe_split_with_sizes.default,
)  # fmt: skip
def _lower_split(metas: Sequence[torch.Tensor], x: Value, sizes: Any, axis: int = 0) -> list[Value]:
    axis %= len(x.shape)
    parts, start = [], 0
    for meta in metas:
        parts.append(strided_slice(x, meta.shape, axis, start, 1))
        start += meta.shape[axis]
    return parts


# --- writing to a slice ---------------------------------------------------------------------------------


def write_slice(x: Value, part: Value, axis: int, start: int, step: int = 1) -> Value:
    """Return `x` with `part` written at ``start + i * step`` of an axis."""
    size = part.shape[axis]

    def at(index: Index) -> Expr:
        if not size:
            return x.at(index)
        offset = index[axis] - start
        condition = range_condition(offset, 0, (size - 1) * step + 1)
        if step > 1:
            is_on_step = index_value(offset % step).eq(0)
            condition = is_on_step if condition is None else condition & is_on_step
        element = part.at((*index[:axis], offset // step, *index[axis + 1 :]))
        return masked(condition, cast(element, x.dtype), x.at(index))

    return Value(x.shape, x.dtype, at)


@register_lowering(aten.slice_scatter.default)
def _lower_slice_scatter(
    meta: torch.Tensor,
    x: Value,
    part: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    axis %= len(x.shape)
    return write_slice(x, part, axis, _normalize_start(x.shape[axis], start), step)


@register_lowering(aten.select_scatter.default)
def _lower_select_scatter(meta: torch.Tensor, x: Value, part: Value, axis: int, position: int) -> Value:
    axis %= len(x.shape)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return write_slice(x, reshape(part, shape), axis, position % x.shape[axis])


# --- diagonals, triangles, roll, unfold -----------------------------------------------------------------


@register_lowering(aten.diagonal.default, aten.diagonal_copy.default)
def _lower_diagonal(meta: torch.Tensor, x: Value, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
    axis1, axis2 = axis1 % len(x.shape), axis2 % len(x.shape)

    def at(index: Index) -> Expr:
        rest = iter(index[:-1])
        by_axis = {axis1: index[-1] + max(-offset, 0), axis2: index[-1] + max(offset, 0)}
        return x.at(tuple(by_axis[axis] if axis in by_axis else next(rest) for axis in range(len(x.shape))))

    return Value(tuple(meta.shape), x.dtype, at)


@register_lowering(aten.diagonal_scatter.default)
def _lower_diagonal_scatter(
    meta: torch.Tensor, x: Value, part: Value, offset: int = 0, axis1: int = 0, axis2: int = 1
) -> Value:
    axis1, axis2 = axis1 % len(x.shape), axis2 % len(x.shape)
    row_offset, column_offset = max(-offset, 0), max(offset, 0)

    def at(index: Index) -> Expr:
        position = index[axis1] - row_offset
        rest = tuple(ix for axis, ix in enumerate(index) if axis not in (axis1, axis2))
        condition = index_value(position).eq(index_value(index[axis2] - column_offset))
        is_in_range = range_condition(position, 0, part.shape[-1])
        if is_in_range is not None:
            condition = condition & is_in_range
        return masked(condition, cast(part.at((*rest, position)), x.dtype), x.at(index))

    return Value(x.shape, x.dtype, at)


def _scatter_to_zeros(
    scatter: Lowering, meta: torch.Tensor, part: Value, shape: Sequence[int], *args: Any
) -> Value:
    """Lower the gradient of a view: its gradient, scattered into zeros."""
    value: Value = scatter(meta, full(shape, 0, meta.dtype), part, *args)
    return value


register_lowering(aten.slice_backward.default)(partial(_scatter_to_zeros, _lower_slice_scatter))
register_lowering(aten.select_backward.default)(partial(_scatter_to_zeros, _lower_select_scatter))
register_lowering(aten.diagonal_backward.default)(partial(_scatter_to_zeros, _lower_diagonal_scatter))


@register_lowering(aten.diag_embed.default)
def _lower_diag_embed(
    meta: torch.Tensor, x: Value, offset: int = 0, axis1: int = -2, axis2: int = -1
) -> Value:
    return _lower_diagonal_scatter(meta, full(meta.shape, 0, meta.dtype), x, offset, axis1, axis2)


def _mask_triangle(comparison: str, meta: torch.Tensor, x: Value, offset: int = 0) -> Value:
    """Keep the elements where ``column <comparison> row + offset`` holds, and zero the others."""

    def at(index: Index) -> Expr:
        row, column = index_value(index[-2] + offset), index_value(index[-1])
        return masked(column.apply(comparison, row, dtype=torch.bool), x.at(index), const(0, x.dtype))

    return Value(x.shape, x.dtype, at)


register_lowering(aten.tril.default)(partial(_mask_triangle, "le"))
register_lowering(aten.triu.default)(partial(_mask_triangle, "ge"))


@register_lowering(aten.roll.default)
def _lower_roll(meta: torch.Tensor, x: Value, shifts: Sequence[int], axes: Sequence[int] = ()) -> Value:
    if not x.numel:
        return x  # torch does not look at shifts and axes, which need not be as many
    if not axes:
        return reshape(_lower_roll(meta, reshape(x, (x.numel,)), shifts, [0]), x.shape)
    axis_shifts = [0] * len(x.shape)
    for shift, axis in zip(shifts, axes, strict=True):
        axis_shifts[axis] += shift

    def at(index: Index) -> Expr:
        triples = zip(index, axis_shifts, x.shape, strict=True)
        return x.at(tuple((ix - n % size) % size if n % size else ix for ix, n, size in triples))

    return Value(x.shape, x.dtype, at)


@register_lowering(aten.unfold.default, aten.unfold_copy.default)
def _lower_unfold(meta: torch.Tensor, x: Value, axis: int, size: int, step: int) -> Value:
    if not x.shape:
        return Value(tuple(meta.shape), x.dtype, lambda index: x.at(()))
    axis %= len(x.shape)

    def at(index: Index) -> Expr:
        return x.at((*index[:axis], index[axis] * step + index[-1], *index[axis + 1 : -1]))

    return Value(tuple(meta.shape), x.dtype, at)
