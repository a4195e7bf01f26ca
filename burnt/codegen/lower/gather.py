"""Lowerings of look-ups by tensors of indices, and of their gradients where these are comparisons.

An index that is an element itself is `burnt.codegen.ir.Computed`. It is checked where it is used: what is out
of range fails as in torch, and is never read. Where each place gets at most one element, writing to computed
places is no scatter: an element asks whether it is meant, and the kernel stays one without collisions.
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
    bounds_checked,
    reduction_result,
)
from burnt.codegen.ir import index_value as place_of
from burnt.codegen.lower.reduction import reduction
from burnt.codegen.lower.registry import (
    Unlowered,
    as_result,
    broadcast,
    cast,
    compute_dtype,
    const,
    filled,
    lowered,
    meta_of,
    operand,
    pointwise,
)
from burnt.codegen.lower.views import reshaped

aten = torch.ops.aten

_INDICES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def looked_up(place: Expr, check: Check, shown: Expr | None = None) -> IndexExpr:
    """A computed index of an axis of `check.size`, counted from the end where `check.low` is negative."""
    size = place_of(IndexExpr(const=check.size))
    shown = cast(place, torch.int64) if shown is None else shown
    lowest = place_of(IndexExpr(const=check.low)) if check.low else const(0, torch.int64)
    test = Expr.make(
        "and",
        (
            Expr.make("ge", (shown, lowest), torch.bool),
            Expr.make("lt", (shown, size), torch.bool),
        ),
        torch.bool,
    )
    legal = bounds_checked(check, test, shown, const(0, torch.int64), shown)
    if check.low:
        below = Expr.make("lt", (legal, const(0, torch.int64)), torch.bool)
        legal = Expr.make("where", (below, Expr.make("add", (legal, size), torch.int64), legal), torch.int64)
    return IndexExpr({Computed(legal, check.size): 1})


def at_computed(x: Value, index: Sequence[IndexExpr]) -> Expr:
    """An element at computed places. A check that the element does not depend on is made all the same."""
    made = x.at(tuple(index))
    for axis, ix in enumerate(index):
        if not ix.computed():
            continue
        without = x.at((*index[:axis], IndexExpr(), *index[axis + 1 :]))
        if without is made:  # the axis is expanded
            same = Expr.make("ge", (place_of(ix), const(0, torch.int64)), torch.bool)
            made = Expr.make("where", (same, made, made), made.dtype)
    return made


def _indices(index: Value) -> None:
    if index.dtype not in _INDICES:
        raise Unlowered


def _axis(meta: torch.Tensor, op: str, x: Value, axis: int, *, negative: bool = False) -> Check:
    """The check of an index of an axis."""
    size = x.shape[axis]
    if not size and meta.numel():
        raise Unlowered  # no index is in range
    return Check(op, size, axis, -size if negative else 0)


@lowered(aten.gather.default)
def _gather(meta: torch.Tensor, x: Value, axis: int, index: Value, **_: Any) -> Value:
    _indices(index)
    if not x.shape:
        x = reshaped(x, (1,))
        flat = _gather(torch.empty(meta.numel(), device="meta"), x, 0, reshaped(index, (meta.numel(),)))
        return reshaped(flat, tuple(meta.shape))
    axis %= len(x.shape)
    check = _axis(meta, "gather", x, axis)

    def at(place: Index) -> Expr:
        return at_computed(x, (*place[:axis], looked_up(index.at(place), check), *place[axis + 1 :]))

    return Value(tuple(meta.shape), x.dtype, at)


@lowered(aten.index_select.default)
def _index_select(meta: torch.Tensor, x: Value, axis: int, index: Value) -> Value:
    _indices(index)
    if not x.shape:
        raise Unlowered
    axis %= len(x.shape)
    check = _axis(meta, "index_select", x, axis)

    def at(place: Index) -> Expr:
        chosen = index.at(place[axis : axis + 1] if index.shape else ())
        return at_computed(x, (*place[:axis], looked_up(chosen, check), *place[axis + 1 :]))

    return Value(tuple(meta.shape), x.dtype, at)


@lowered(aten.embedding.default)
def _embedding(meta: torch.Tensor, weight: Value, indices: Value, *_: Any) -> Value:
    _indices(indices)
    check = _axis(meta, "embedding", weight, 0)

    def at(place: Index) -> Expr:
        return at_computed(weight, (looked_up(indices.at(place[:-1]), check), place[-1]))

    return Value(tuple(meta.shape), weight.dtype, at)


@lowered(aten.take.default)
def _take(meta: torch.Tensor, x: Value, index: Value) -> Value:
    _indices(index)
    flat = reshaped(x, (x.numel,))
    check = _axis(meta, "take", flat, 0, negative=True)
    return Value(
        tuple(meta.shape), x.dtype, lambda place: at_computed(flat, (looked_up(index.at(place), check),))
    )


@lowered(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(meta: torch.Tensor, x: Value, indices: Sequence[Value | None]) -> Value:
    given = [i for i in indices if i is not None]
    for index in given:
        _indices(index)  # a mask makes a shape that depends on values
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in given))  # type: ignore[no-untyped-call]
    # The broadcast axes stand where the indexed ones stood, if these are neighbours; else in front.
    start = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    parts = {axis: broadcast(index, shape) for axis, index in zip(axes, given, strict=True)}
    checks = {axis: _axis(meta, "index", x, axis, negative=True) for axis in axes}

    def at(place: Index) -> Expr:
        inner, rest = place[start : start + len(shape)], iter(place[:start] + place[start + len(shape) :])
        return at_computed(
            x,
            [
                looked_up(parts[axis](inner), checks[axis]) if axis in parts else next(rest)
                for axis in range(len(x.shape))
            ],
        )

    return Value(tuple(meta.shape), x.dtype, at)


# --- negative log-likelihood ----------------------------------------------------------------------------


def from_memory(value: Value) -> Value:
    """A value that a reduction over other rows reads from memory: a fold of nothing but itself."""
    inside = compute_dtype(value.dtype)
    node = Reduction("sum", value.shape, (), inside, lambda outer, inner: cast(value.at(outer), inside))
    return Value(value.shape, inside, lambda index: reduction_result(node, index))


class _Targets:
    """Class indices ``[N, ...]`` for logits ``[N, C, ...]`` or ``[C]``, of which one value is left out."""

    def __init__(self, x: Value, target: Value, weight: Value | None, ignored: int) -> None:
        _indices(target)
        self.axis = 1 if len(x.shape) > 1 else 0
        self.shape = tuple(s for a, s in enumerate(x.shape) if a != self.axis)
        self.check = Check("nll_loss", x.shape[self.axis], self.axis)
        self.target = reshaped(target, self.shape)
        self.weights, self.ignored, self.dtype = weight, ignored, compute_dtype(x.dtype)

    def at(self, place: Index) -> tuple[Expr, Expr]:
        """The class at a place, as int64, and whether it counts."""
        found = cast(self.target.at(place), torch.int64)
        counts = Expr.make("ne", (found, const(self.ignored, torch.int64)), torch.bool)
        return found, counts

    def legal(self, place: Index) -> tuple[IndexExpr, Expr]:
        """An index that may be read, and whether it counts."""
        found, counts = self.at(place)
        first = const(0, torch.int64)
        return looked_up(Expr.make("where", (counts, found, first), torch.int64), self.check), counts

    def weight(self, place: Index) -> Expr:
        """What the element counts for."""
        legal, counts = self.legal(place)
        one = const(1, self.dtype) if self.weights is None else cast(self.weights.at((legal,)), self.dtype)
        return Expr.make("where", (counts, one, const(0, self.dtype)), self.dtype)


@lowered(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll_loss(
    metas: Sequence[torch.Tensor],
    x: Value,
    target: Value,
    weight: Value | None,
    reduced_by: int,
    ignored: int,
) -> tuple[Value, Value]:
    meta, targets = metas[0], _Targets(x, target, weight, ignored)
    axis, inside = targets.axis, targets.dtype

    def loss(place: Index) -> Expr:
        legal, counts = targets.legal(place)
        likelihood = cast(at_computed(x, (*place[:axis], legal, *place[axis:])), inside)
        value = Expr.make("neg", (likelihood,), inside)
        if weight is not None:
            value = Expr.make("mul", (value, targets.weight(place)), inside)
        return Expr.make("where", (counts, value, const(0, inside)), inside)

    losses = Value(targets.shape, inside, loss)
    if reduced_by == 0:
        return as_result(reshaped(losses, meta.shape), meta), as_result(filled((), 0, inside), metas[1])
    total = reduction("sum", from_memory(losses), None, False, inside, inside)
    count = reduction("sum", Value(targets.shape, inside, targets.weight), None, False, inside, inside)
    if reduced_by == 1:
        total = pointwise("div", meta_of((), inside), [total, count], inside)
    return as_result(total, meta), as_result(count, metas[1])


@lowered(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _nll_loss_backward(
    meta: torch.Tensor,
    cotangent: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduced_by: int,
    ignored: int,
    total: Value,
) -> Value:
    targets = _Targets(x, target, weight, ignored)
    axis, inside = targets.axis, targets.dtype
    pulled = reshaped(cotangent, targets.shape) if reduced_by == 0 else cotangent

    def at(place: Index) -> Expr:
        row = (*place[:axis], *place[axis + 1 :])
        found, counts = targets.at(row)
        meant = Expr.make(
            "and", (counts, Expr.make("eq", (found, place_of(place[axis])), torch.bool)), torch.bool
        )
        value = cast(pulled.at(row if reduced_by == 0 else ()), inside)
        if reduced_by == 1:
            value = Expr.make("div", (value, cast(total.at(()), inside)), inside)
        if weight is not None:
            value = Expr.make("mul", (value, targets.weight(row)), inside)
        value = Expr.make("neg", (value,), inside)
        return Expr.make("where", (meant, value, const(0, inside)), inside)

    return as_result(Value(x.shape, inside, at), meta)


# --- writing to computed places -------------------------------------------------------------------------


def placed(shape: Sequence[int], op: str, axis: int, index: Value, yes: Value, no: Value) -> Value:
    """`yes` at the place of an axis that an index of size 1 there says, and `no` elsewhere."""
    shape, axis = tuple(shape), axis % len(shape)
    if index.shape != (*shape[:axis], 1, *shape[axis + 1 :]):
        raise Unlowered
    check = Check(op, shape[axis], axis)

    def at(place: Index) -> Expr:
        first = (*place[:axis], IndexExpr(), *place[axis + 1 :])
        ((meant, _),) = looked_up(index.at(first), check).terms.items()
        assert isinstance(meant, Computed)
        here = Expr.make("eq", (meant.expr, place_of(place[axis])), torch.bool)
        return Expr.make("where", (here, yes.at(first), no.at(place)), no.dtype)

    return Value(shape, no.dtype, at)


@lowered(aten.scatter.src, aten.scatter.value)
def _scatter(meta: torch.Tensor, x: Value, axis: int, index: Value, source: Any) -> Value:
    if not x.shape:
        raise Unlowered
    if not isinstance(source, Value):
        fixed = operand(source, (), x.dtype)
        source = Value(index.shape, x.dtype, lambda place: fixed(()))
    return placed(x.shape, "scatter", axis, index, source, x)


@lowered(aten.scatter_add.default)
def _scatter_add(meta: torch.Tensor, x: Value, axis: int, index: Value, source: Value) -> Value:
    if not x.shape:
        raise Unlowered
    zero = filled(x.shape, 0, x.dtype)
    added = placed(x.shape, "scatter_add", axis, index, source, zero)
    return pointwise("add", meta, [x, added], x.dtype)


@lowered(aten.value_selecting_reduction_backward.default)
def _selected_backward(
    meta: torch.Tensor, cotangent: Value, axis: int, index: Value, shape: Sequence[int], keepdim: bool
) -> Value:
    if not meta.shape:
        return cotangent
    axis %= len(meta.shape)
    first = tuple(1 if a == axis else s for a, s in enumerate(meta.shape))
    zero = filled(meta.shape, 0, meta.dtype)
    return placed(meta.shape, "max", axis, reshaped(index, first), reshaped(cotangent, first), zero)
