"""Lowerings of gathers (indexing by tensors, embeddings, nll_loss) and of collision-free scatters.

An index that is read from a tensor is a `burnt.codegen.ir.Computed`. It is checked where it is used: an index
out of range raises as in torch, and is never read. A scatter that writes at most one element per row is a
comparison: each output element tests whether its position is the index, so no writes collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from burnt.codegen.ir import (
    Check,
    Computed,
    Expr,
    Index,
    IndexExpr,
    Reduction,
    Value,
    cast,
    checked_value,
    const,
    index_value,
    reduction_result,
)
from burnt.codegen.lower.reduction import reduce_axes
from burnt.codegen.lower.registry import (
    Unlowered,
    broadcast,
    compute_dtype,
    full,
    meta_tensor,
    operand,
    pointwise,
    register_lowering,
    to_result_dtype,
)
from burnt.codegen.lower.views import reshape

aten = torch.ops.aten

_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def checked_index(index: Expr, check: Check, reported: Expr | None = None) -> IndexExpr:
    """Return a checked index into an axis of `check.size`; a negative `check.low` allows negative ones."""
    size = index_value(IndexExpr(const=check.size))
    reported = cast(index, torch.int64) if reported is None else reported
    low = index_value(IndexExpr(const=check.low)) if check.low else const(0, torch.int64)
    is_in_range = reported.ge(low) & reported.lt(size)
    valid = checked_value(check, is_in_range, reported, const(0, torch.int64), reported)
    if check.low:
        valid = valid.lt(0).where(valid + size, valid)
    return IndexExpr({Computed(valid, check.size): 1})


def element_at(x: Value, index: Sequence[IndexExpr]) -> Expr:
    """Return an element at computed indices; indices that the element ignores are checked, too."""
    result = x.at(tuple(index))
    for axis, ix in enumerate(index):
        if not ix.computed_exprs():
            continue
        at_zero = x.at((*index[:axis], IndexExpr(), *index[axis + 1 :]))
        if at_zero is result:  # the axis is expanded, so the element does not use the index
            result = index_value(ix).ge(0).where(result, result)
    return result


def _require_index_dtype(index: Value) -> None:
    if index.dtype not in _INDEX_DTYPES:
        raise Unlowered


def _index_check(meta: torch.Tensor, op: str, x: Value, axis: int, *, allow_negative: bool = False) -> Check:
    size = x.shape[axis]
    if not size and meta.numel():
        raise Unlowered  # every index is out of range
    return Check(op, size, axis, -size if allow_negative else 0)


@register_lowering(aten.gather.default)
def _lower_gather(meta: torch.Tensor, x: Value, axis: int, index: Value, **_: Any) -> Value:
    _require_index_dtype(index)
    if not x.shape:
        x = reshape(x, (1,))
        flat = _lower_gather(torch.empty(meta.numel(), device="meta"), x, 0, reshape(index, (meta.numel(),)))
        return reshape(flat, tuple(meta.shape))
    axis %= len(x.shape)
    check = _index_check(meta, "gather", x, axis)

    def at(coords: Index) -> Expr:
        return element_at(x, (*coords[:axis], checked_index(index.at(coords), check), *coords[axis + 1 :]))

    return Value(tuple(meta.shape), x.dtype, at)


@register_lowering(aten.index_select.default)
def _lower_index_select(meta: torch.Tensor, x: Value, axis: int, index: Value) -> Value:
    _require_index_dtype(index)
    if not x.shape:
        raise Unlowered
    axis %= len(x.shape)
    check = _index_check(meta, "index_select", x, axis)

    def at(coords: Index) -> Expr:
        row_index = index.at(coords[axis : axis + 1] if index.shape else ())
        return element_at(x, (*coords[:axis], checked_index(row_index, check), *coords[axis + 1 :]))

    return Value(tuple(meta.shape), x.dtype, at)


@register_lowering(aten.embedding.default)
def _lower_embedding(meta: torch.Tensor, weight: Value, indices: Value, *_: Any) -> Value:
    _require_index_dtype(indices)
    check = _index_check(meta, "embedding", weight, 0)

    def at(coords: Index) -> Expr:
        return element_at(weight, (checked_index(indices.at(coords[:-1]), check), coords[-1]))

    return Value(tuple(meta.shape), weight.dtype, at)


@register_lowering(aten.take.default)
def _lower_take(meta: torch.Tensor, x: Value, index: Value) -> Value:
    _require_index_dtype(index)
    flat = reshape(x, (x.numel,))
    check = _index_check(meta, "take", flat, 0, allow_negative=True)

    def at(coords: Index) -> Expr:
        return element_at(flat, (checked_index(index.at(coords), check),))

    return Value(tuple(meta.shape), x.dtype, at)


@register_lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def _lower_index(meta: torch.Tensor, x: Value, indices: Sequence[Value | None]) -> Value:
    index_tensors = [i for i in indices if i is not None]
    for index in index_tensors:
        _require_index_dtype(index)  # not a bool mask: its result has a data-dependent shape
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in index_tensors))  # type: ignore[no-untyped-call]
    # The broadcast axes replace the indexed ones if these are adjacent; otherwise they come first.
    start = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    index_at = {axis: broadcast(index, shape) for axis, index in zip(axes, index_tensors, strict=True)}
    checks = {axis: _index_check(meta, "index", x, axis, allow_negative=True) for axis in axes}

    def at(coords: Index) -> Expr:
        stop = start + len(shape)
        inner, others = coords[start:stop], iter(coords[:start] + coords[stop:])
        by_axis = {axis: checked_index(index_at[axis](inner), checks[axis]) for axis in axes}
        return element_at(x, [by_axis.get(axis) or next(others) for axis in range(len(x.shape))])

    return Value(tuple(meta.shape), x.dtype, at)


# --- negative log-likelihood ----------------------------------------------------------------------------


def materialize(value: Value) -> Value:
    """Wrap a value in a reduction over no axes, so that a reduction over it reads it from memory."""
    math_dtype = compute_dtype(value.dtype)
    node = Reduction(
        "sum", value.shape, (), math_dtype, lambda outer, inner: cast(value.at(outer), math_dtype)
    )
    return Value(value.shape, math_dtype, lambda index: reduction_result(node, index))


class _NllTarget:
    """The target of `nll_loss`: class indices ``[N, ...]`` for an input ``[N, C, ...]`` or ``[C]``."""

    def __init__(self, x: Value, target: Value, weight: Value | None, ignore_index: int) -> None:
        _require_index_dtype(target)
        self.axis = 1 if len(x.shape) > 1 else 0
        self.shape = tuple(s for a, s in enumerate(x.shape) if a != self.axis)
        self.check = Check("nll_loss", x.shape[self.axis], self.axis)
        self.classes = reshape(target, self.shape)
        self.class_weights, self.ignore_index, self.dtype = weight, ignore_index, compute_dtype(x.dtype)

    def at(self, coords: Index) -> tuple[Expr, Expr]:
        """Return the class, as int64, and the condition that it is not ignored."""
        target_class = cast(self.classes.at(coords), torch.int64)
        return target_class, target_class.ne(self.ignore_index)

    def valid_index(self, coords: Index) -> tuple[IndexExpr, Expr]:
        """Return the class as a checked index, 0 where it is ignored, and the condition that it is not."""
        target_class, is_counted = self.at(coords)
        return checked_index(is_counted.where(target_class, 0), self.check), is_counted

    def weight(self, coords: Index) -> Expr:
        """Return the weight of an element: 0 where its class is ignored."""
        valid, is_counted = self.valid_index(coords)
        weights = self.class_weights
        weight = const(1, self.dtype) if weights is None else cast(weights.at((valid,)), self.dtype)
        return is_counted.where(weight, 0)


@register_lowering(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _lower_nll_loss(
    metas: Sequence[torch.Tensor],
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
) -> tuple[Value, Value]:
    meta, targets = metas[0], _NllTarget(x, target, weight, ignore_index)
    axis, math_dtype = targets.axis, targets.dtype

    def loss_at(coords: Index) -> Expr:
        valid, is_counted = targets.valid_index(coords)
        log_prob = cast(element_at(x, (*coords[:axis], valid, *coords[axis:])), math_dtype)
        value = -log_prob
        if weight is not None:
            value = value * targets.weight(coords)
        return is_counted.where(value, 0)

    losses = Value(targets.shape, math_dtype, loss_at)
    if reduction == 0:
        return to_result_dtype(reshape(losses, meta.shape), meta), full((), 0, metas[1].dtype)
    weights = Value(targets.shape, math_dtype, targets.weight)
    total, count = (
        reduce_axes("sum", value, None, False, math_dtype, math_dtype)
        for value in (materialize(losses), weights)
    )
    if reduction == 1:
        total = pointwise("div", meta_tensor((), math_dtype), [total, count], math_dtype)
    return to_result_dtype(total, meta), to_result_dtype(count, metas[1])


@register_lowering(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _lower_nll_loss_backward(
    meta: torch.Tensor,
    grad_out: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total: Value,
) -> Value:
    targets = _NllTarget(x, target, weight, ignore_index)
    axis, math_dtype = targets.axis, targets.dtype
    grads = reshape(grad_out, targets.shape) if reduction == 0 else grad_out

    def at(coords: Index) -> Expr:
        sample = (*coords[:axis], *coords[axis + 1 :])
        target_class, is_counted = targets.at(sample)
        value = cast(grads.at(sample if reduction == 0 else ()), math_dtype)
        if reduction == 1:
            value = value / cast(total.at(()), math_dtype)
        if weight is not None:
            value = value * targets.weight(sample)
        return (is_counted & target_class.eq(index_value(coords[axis]))).where(-value, 0)

    return to_result_dtype(Value(x.shape, math_dtype, at), meta)


# --- scatters without collisions ------------------------------------------------------------------------


def scatter_one_per_row(
    shape: Sequence[int], op: str, axis: int, index: Value, yes: Value, no: Value
) -> Value:
    """Return `yes` where the position along an axis equals `index` (size 1 along it), else `no`."""
    shape, axis = tuple(shape), axis % len(shape)
    if index.shape != (*shape[:axis], 1, *shape[axis + 1 :]):
        raise Unlowered
    check = Check(op, shape[axis], axis)

    def at(coords: Index) -> Expr:
        index_coords = (*coords[:axis], IndexExpr(), *coords[axis + 1 :])
        ((target, _),) = checked_index(index.at(index_coords), check).terms.items()
        assert isinstance(target, Computed)
        return target.expr.eq(index_value(coords[axis])).where(yes.at(index_coords), no.at(coords))

    return Value(shape, no.dtype, at)


@register_lowering(aten.scatter.src, aten.scatter.value)
def _lower_scatter(meta: torch.Tensor, x: Value, axis: int, index: Value, source: Any) -> Value:
    if not x.shape:
        raise Unlowered
    if not isinstance(source, Value):
        source = Value(index.shape, x.dtype, operand(source, (), x.dtype))
    return scatter_one_per_row(x.shape, "scatter", axis, index, source, x)


@register_lowering(aten.scatter_add.default)
def _lower_scatter_add(meta: torch.Tensor, x: Value, axis: int, index: Value, source: Value) -> Value:
    if not x.shape:
        raise Unlowered
    zero = full(x.shape, 0, x.dtype)
    scattered = scatter_one_per_row(x.shape, "scatter_add", axis, index, source, zero)
    return pointwise("add", meta, [x, scattered], x.dtype)


@register_lowering(aten.value_selecting_reduction_backward.default)
def _lower_value_selecting_reduction_backward(
    meta: torch.Tensor, grad_out: Value, axis: int, index: Value, shape: Sequence[int], keepdim: bool
) -> Value:
    if not meta.shape:
        return grad_out
    axis %= len(meta.shape)
    keepdim_shape = tuple(1 if a == axis else s for a, s in enumerate(meta.shape))
    zero = full(meta.shape, 0, meta.dtype)
    return scatter_one_per_row(
        meta.shape, "max", axis, reshape(index, keepdim_shape), reshape(grad_out, keepdim_shape), zero
    )
