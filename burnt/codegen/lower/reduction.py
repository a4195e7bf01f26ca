"""Lowerings of reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Reduction, Value, reduction_result
from burnt.codegen.ir import index_value as place_of
from burnt.codegen.lower.registry import (
    LOWERINGS,
    SHORT,
    Lowering,
    Scalar,
    Unlowered,
    cast,
    compute_dtype,
    filled,
    lowered,
    meta_of,
    pointwise,
)
from burnt.codegen.lower.views import reshaped

aten = torch.ops.aten


def reduction(
    kind: str, x: Value, axes: Sequence[int] | None, keepdim: bool, dtype: torch.dtype, inside: torch.dtype
) -> Value:
    """A fold over axes (all of them for None or an empty list), computed in `inside`, given in `dtype`."""
    rank = len(x.shape)
    if not x.numel:
        return _of_nothing(kind, x, axes, keepdim, dtype)
    over = sorted({axis % rank for axis in axes}) if axes and rank else list(range(rank))
    kept = [axis for axis in range(rank) if axis not in over]

    def body(outer: Index, inner: Index) -> Expr:
        index: list[IndexExpr] = [IndexExpr()] * rank
        for ix, axis in zip(outer, kept, strict=True):
            index[axis] = ix
        for ix, axis in zip(inner, over, strict=True):
            index[axis] = ix
        return cast(x.at(tuple(index)), inside)

    result_inside = torch.int64 if kind in ("argmax", "argmin") else inside
    node = Reduction(
        kind, tuple(x.shape[a] for a in kept), tuple(x.shape[a] for a in over), result_inside, body
    )
    shape = tuple(1 if a in over else s for a, s in enumerate(x.shape)) if keepdim else node.shape

    def at(index: Index) -> Expr:
        outer = tuple(index[a] for a in kept) if keepdim else index
        made = reduction_result(node, outer)
        if dtype == result_inside:
            return made
        return Expr.make("as" if dtype in SHORT else "cast", (made,), dtype)

    return Value(shape, dtype, at)


_NOTHING = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def _of_nothing(kind: str, x: Value, axes: Sequence[int] | None, keepdim: bool, dtype: torch.dtype) -> Value:
    """The fold of an empty tensor: its shape as torch says, filled with what a fold begins with."""
    shape = torch.empty(x.shape, device="meta").sum(list(axes or ()), keepdim=keepdim).shape
    if kind not in _NOTHING and shape.numel():
        raise Unlowered  # torch says that there is no largest element
    return filled(shape, _NOTHING.get(kind, 0), dtype)


@lowered(aten.sum.dim_IntList, aten.sum.default)
def _sum(
    meta: torch.Tensor, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    return reduction("sum", x, axes, keepdim, meta.dtype, compute_dtype(meta.dtype))


def counted(size: int) -> Value:
    """A number of elements as an operand: it comes from a shape, so kernels take it as one."""
    return Value((), torch.int64, lambda index: place_of(IndexExpr(const=size)))


@lowered(aten.mean.dim, aten.mean.default)
def _mean(
    meta: torch.Tensor, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    total = reduction("sum", x, axes, keepdim, meta.dtype, compute_dtype(meta.dtype))
    count = x.numel // max(total.numel, 1) if x.numel else 0
    return pointwise("div", meta, [total, counted(count)], meta.dtype)


@lowered(aten.amax.default)
def _amax(meta: torch.Tensor, x: Value, axes: Any = (), keepdim: bool = False) -> Value:
    return reduction("max", x, axes, keepdim, meta.dtype, compute_dtype(meta.dtype))


@lowered(aten.amin.default)
def _amin(meta: torch.Tensor, x: Value, axes: Any = (), keepdim: bool = False) -> Value:
    return reduction("min", x, axes, keepdim, meta.dtype, compute_dtype(meta.dtype))


@lowered(aten.max.default)
def _max(meta: torch.Tensor, x: Value) -> Value:
    return _amax(meta, x)


@lowered(aten.min.default)
def _min(meta: torch.Tensor, x: Value) -> Value:
    return _amin(meta, x)


@lowered(aten.prod.default, aten.prod.dim_int)
def _prod(
    meta: torch.Tensor, x: Value, axis: int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    return reduction(
        "prod", x, None if axis is None else [axis], keepdim, meta.dtype, compute_dtype(meta.dtype)
    )


def _axes(axis: Any) -> list[int] | None:
    return None if axis is None else [axis] if isinstance(axis, int) else list(axis)


@lowered(aten.any.default, aten.any.dim, aten.any.dims)
def _any(meta: torch.Tensor, x: Value, axis: Any = None, keepdim: bool = False) -> Value:
    return reduction("any", x, _axes(axis), keepdim, meta.dtype, torch.bool)


@lowered(aten.all.default, aten.all.dim, aten.all.dims)
def _all(meta: torch.Tensor, x: Value, axis: Any = None, keepdim: bool = False) -> Value:
    return reduction("all", x, _axes(axis), keepdim, meta.dtype, torch.bool)


def _arg(kind: str) -> Lowering:
    def lower(meta: torch.Tensor, x: Value, axis: int | None = None, keepdim: bool = False) -> Value:
        return reduction(
            kind, x, None if axis is None else [axis], keepdim, torch.int64, compute_dtype(x.dtype)
        )

    return lower


LOWERINGS[aten.argmax.default] = _arg("argmax")
LOWERINGS[aten.argmin.default] = _arg("argmin")


def _extreme(kind: str) -> Lowering:
    def lower(
        metas: Sequence[torch.Tensor], x: Value, axis: int, keepdim: bool = False
    ) -> tuple[Value, Value]:
        inside = compute_dtype(x.dtype)
        places = reduction(f"arg{kind}", x, [axis], keepdim, torch.int64, inside)
        return reduction(kind, x, [axis], keepdim, x.dtype, inside), places

    return lower


LOWERINGS[aten.max.dim] = _extreme("max")
LOWERINGS[aten.min.dim] = _extreme("min")


@lowered(aten.aminmax.default)
def _aminmax(
    metas: Sequence[torch.Tensor], x: Value, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    axes = _axes(dim)
    if axes is None and keepdim:
        axes = list(range(len(x.shape)))
    return _amin(metas[0], x, axes, keepdim), _amax(metas[1], x, axes, keepdim)


@lowered(aten.var_mean.correction)
def _var_mean(
    metas: Sequence[torch.Tensor], x: Value, axes: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    meta = metas[0]
    inside = compute_dtype(meta.dtype)
    total = reduction("sum", x, axes, True, inside, inside)
    count = x.numel // max(total.numel, 1) if x.numel else 0
    wide = torch.empty(x.shape, dtype=inside, device="meta")
    narrow = torch.empty(total.shape, dtype=inside, device="meta")
    mean = pointwise("div", narrow, [total, counted(count)], inside)
    centred = pointwise("sub", wide, [x, mean], inside)
    squares = reduction("sum", pointwise("mul", wide, [centred, centred], inside), axes, True, inside, inside)
    by: Any
    if isinstance(correction, Scalar):
        by = pointwise("sub", meta_of((), inside), [counted(count), correction], inside)
        by = pointwise("maximum", meta_of((), inside), [by, 0], inside)
    else:
        by = max(count - (1 if correction is None else correction), 0)
        by = counted(by) if isinstance(by, int) else by
    variance = pointwise("div", narrow, [squares, by], inside)

    def given(value: Value) -> Value:
        shaped = reshaped(value, meta.shape)
        if meta.dtype == inside:
            return shaped
        return Value(shaped.shape, meta.dtype, lambda index: Expr.make("as", (shaped.at(index),), meta.dtype))

    # Beside an infinity it is infinite, as that of `mean`; torch's, made element by element, is NaN.
    return given(variance), given(mean)


@lowered(aten.var.correction)
def _var(
    meta: torch.Tensor, x: Value, axes: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> Value:
    return _var_mean([meta], x, axes, correction=correction, keepdim=keepdim)[0]
