"""Lowerings of reductions (sums, products, extremes and indices, variances) and of cumulative ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from burnt.codegen.ir import (
    Expr,
    Index,
    IndexExpr,
    Reduction,
    Scan,
    Value,
    cast,
    index_value,
    reduction_result,
    scan_result,
)
from burnt.codegen.lower.registry import (
    Lowering,
    Scalar,
    Unlowered,
    compute_dtype,
    full,
    meta_tensor,
    pointwise,
    register_lowering,
    rounded,
    to_result_dtype,
)
from burnt.codegen.lower.views import reshape

aten = torch.ops.aten


def reduce_axes(
    kind: str,
    x: Value,
    axes: Sequence[int] | None,
    keepdim: bool,
    dtype: torch.dtype,
    math_dtype: torch.dtype,
) -> Value:
    """Reduce over axes (None or an empty list: all) in `math_dtype`; the result has `dtype`."""
    rank = len(x.shape)
    if not x.numel:
        return _reduce_empty(kind, x, axes, keepdim, dtype)
    reduced_axes = sorted({axis % rank for axis in axes}) if axes and rank else list(range(rank))
    kept_axes = [axis for axis in range(rank) if axis not in reduced_axes]

    def body(outer: Index, inner: Index) -> Expr:
        index: list[IndexExpr] = [IndexExpr()] * rank
        for ix, axis in zip(outer, kept_axes, strict=True):
            index[axis] = ix
        for ix, axis in zip(inner, reduced_axes, strict=True):
            index[axis] = ix
        return cast(x.at(tuple(index)), math_dtype)

    reduction_dtype = torch.int64 if kind in ("argmax", "argmin") else math_dtype
    kept, extents = (tuple(x.shape[a] for a in axes) for axes in (kept_axes, reduced_axes))
    reduction = Reduction(kind, kept, extents, reduction_dtype, body)
    shape = tuple(1 if a in reduced_axes else s for a, s in enumerate(x.shape)) if keepdim else kept

    def at(index: Index) -> Expr:
        outer = tuple(index[a] for a in kept_axes) if keepdim else index
        return rounded(reduction_result(reduction, outer), dtype)

    return Value(shape, dtype, at)


_IDENTITY = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def _reduce_empty(
    kind: str, x: Value, axes: Sequence[int] | None, keepdim: bool, dtype: torch.dtype
) -> Value:
    """Return the reduction of an empty tensor: the shape that torch gives, filled with the identity."""
    shape = torch.empty(x.shape, device="meta").sum(list(axes or ()), keepdim=keepdim).shape
    if kind not in _IDENTITY and shape.numel():
        raise Unlowered  # torch raises: an empty tensor has no extreme
    return full(shape, _IDENTITY.get(kind, 0), dtype)


def count_value(size: int) -> Value:
    """Return a number of elements as a value: an index expression, so that kernels take it as a size."""
    return Value((), torch.int64, lambda index: index_value(IndexExpr(const=size)))


@register_lowering(aten.mean.dim, aten.mean.default)
def _lower_mean(
    meta: torch.Tensor, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    total = _lower_reduction("sum", meta, x, axes, keepdim)
    count = x.numel // max(total.numel, 1) if x.numel else 0
    return pointwise("div", meta, [total, count_value(count)], meta.dtype)


def _lower_reduction(
    kind: str, meta: torch.Tensor, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    math_dtype = compute_dtype(x.dtype if kind.startswith("arg") else meta.dtype)
    return reduce_axes(kind, x, _as_axis_list(axes), keepdim, meta.dtype, math_dtype)


def _lower_reduction_with_index(
    kind: str, metas: Sequence[torch.Tensor], x: Value, axis: int, keepdim: bool = False
) -> tuple[Value, Value]:
    values = _lower_reduction(kind, metas[0], x, axis, keepdim)
    return values, _lower_reduction(f"arg{kind}", metas[1], x, axis, keepdim)


def _any_or_all(kind: str, meta: torch.Tensor, x: Value, axis: Any = None, keepdim: bool = False) -> Value:
    axes = _as_axis_list(axis)
    if axes == []:  # unlike in other reductions: each element by itself
        return to_result_dtype(pointwise("ne", meta_tensor(x.shape, torch.bool), [x, 0], x.dtype), meta)
    return reduce_axes(kind, x, axes, keepdim, meta.dtype, torch.bool)


def _as_axis_list(axis: Any) -> list[int] | None:
    """Return one axis or several as a list; None is all axes."""
    return None if axis is None else [axis] if isinstance(axis, int) else list(axis)


for _kind in ("max", "min"):
    _whole, _dim = getattr(aten, f"a{_kind}").default, getattr(aten, _kind)
    register_lowering(_whole, _dim.default)(partial(_lower_reduction, _kind))
    register_lowering(_dim.dim)(partial(_lower_reduction_with_index, _kind))
    register_lowering(getattr(aten, f"arg{_kind}").default)(partial(_lower_reduction, f"arg{_kind}"))
register_lowering(aten.sum.default, aten.sum.dim_IntList)(partial(_lower_reduction, "sum"))
register_lowering(aten.prod.default, aten.prod.dim_int)(partial(_lower_reduction, "prod"))
for _kind in ("any", "all"):
    _packet = getattr(aten, _kind)
    register_lowering(_packet.default, _packet.dim, _packet.dims)(partial(_any_or_all, _kind))


def _variance(
    meta: torch.Tensor, x: Value, axes: Any, correction: Any, math_dtype: torch.dtype
) -> tuple[Value, Value]:
    """Return the variance of `x`, whose squares are summed in `math_dtype`, and the mean.

    Both have the result's shape, and the dtypes `math_dtype` and that in which the result is computed.
    """
    mean_dtype = compute_dtype(meta.dtype)
    total = reduce_axes("sum", x, axes, True, mean_dtype, mean_dtype)
    count = x.numel // max(total.numel, 1) if x.numel else 0
    full_meta, full_mean_meta = (meta_tensor(x.shape, dtype) for dtype in (math_dtype, mean_dtype))
    mean = pointwise("div", meta_tensor(total.shape, mean_dtype), [total, count_value(count)], mean_dtype)
    centred = pointwise("sub", full_mean_meta, [x, mean], mean_dtype)
    squares = reduce_axes(
        "sum", pointwise("mul", full_meta, [centred, centred], math_dtype), axes, True, math_dtype, math_dtype
    )
    divisor: Any
    if isinstance(correction, Scalar):
        divisor = pointwise("sub", meta_tensor((), math_dtype), [count_value(count), correction], math_dtype)
        divisor = pointwise("maximum", meta_tensor((), math_dtype), [divisor, 0], math_dtype)
    else:
        divisor = max(count - (1 if correction is None else correction), 0)
        divisor = count_value(divisor) if isinstance(divisor, int) else divisor
    variance = pointwise("div", meta_tensor(total.shape, math_dtype), [squares, divisor], math_dtype)
    return reshape(variance, meta.shape), reshape(mean, meta.shape)


@register_lowering(aten.var_mean.correction)
def _lower_var_mean(
    metas: Sequence[torch.Tensor], x: Value, axes: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, mean = _variance(metas[0], x, axes, correction, compute_dtype(metas[0].dtype))
    # The mean of elements with an infinity is infinite, as that of `mean`; torch's running mean gives NaN.
    return to_result_dtype(variance, metas[0]), to_result_dtype(mean, metas[1])


@register_lowering(aten.std_mean.correction)
def _lower_std_mean(
    metas: Sequence[torch.Tensor],
    x: Value,
    axes: Any = None,
    *,
    correction: Any = 1,
    keepdim: bool = False,
    has_fast_float64: bool = False,
) -> tuple[Value, Value]:
    meta = metas[0]
    # The squares of float32 values may leave the range of float32 where their root does not. As in torch,
    # they are summed in float64 on a CPU, and in float32 on other devices, where float64 is slow or missing.
    needs_range = has_fast_float64 and meta.dtype in (torch.float32, torch.bfloat16)
    math_dtype = torch.float64 if needs_range else compute_dtype(meta.dtype)
    variance, mean = _variance(meta, x, axes, correction, math_dtype)
    deviation = pointwise("sqrt", meta_tensor(variance.shape, math_dtype), [variance], math_dtype)
    deviation = to_result_dtype(deviation, meta_tensor(variance.shape, compute_dtype(meta.dtype)))
    return to_result_dtype(deviation, meta), to_result_dtype(mean, metas[1])


def _first_of(lower_both: Lowering, meta: torch.Tensor, x: Value, axes: Any = None, **options: Any) -> Value:
    value: Value = lower_both([meta, meta], x, axes, **options)[0]
    return value


register_lowering(aten.var.correction)(partial(_first_of, _lower_var_mean))
register_lowering(aten.std.correction)(partial(_first_of, _lower_std_mean))

FLOAT64_OPS = frozenset({aten.std.correction, aten.std_mean.correction})
"""Ops whose lowering takes ``has_fast_float64``: whether the target computes in float64 at little cost."""


def _scan(kind: str, x: Value, axis: int, dtype: torch.dtype, math_dtype: torch.dtype) -> Value:
    """Scan along an axis, computing in `math_dtype`; the result has `dtype`."""
    if dtype.is_complex:
        raise Unlowered
    axis = axis % len(x.shape) if x.shape else 0
    is_arg = kind.startswith("arg")
    if not x.shape or x.shape[axis] == 1:
        # One element: it is the result, and its index is 0.
        if is_arg:
            return full(x.shape, 0, dtype)
        return Value(x.shape, dtype, lambda index: rounded(cast(x.at(index), math_dtype), dtype))
    result_dtype = torch.int64 if is_arg else math_dtype
    node = Scan(kind, x.shape, axis, result_dtype, lambda index: cast(x.at(index), math_dtype))
    return Value(x.shape, dtype, lambda index: rounded(scan_result(node, index), dtype))


def _lower_scan(kind: str, meta: torch.Tensor, x: Value, axis: int, *, dtype: Any = None) -> Value:
    if kind == "logsumexp" and not meta.dtype.is_floating_point:
        raise Unlowered
    return _scan(kind, x, axis, meta.dtype, compute_dtype(meta.dtype))


def _lower_extreme_scan(kind: str, metas: Sequence[torch.Tensor], x: Value, axis: int) -> tuple[Value, Value]:
    math_dtype = compute_dtype(x.dtype)
    return _scan(kind, x, axis, x.dtype, math_dtype), _scan(f"arg{kind}", x, axis, torch.int64, math_dtype)


register_lowering(aten.cumsum.default)(partial(_lower_scan, "sum"))
register_lowering(aten.cumprod.default)(partial(_lower_scan, "prod"))
register_lowering(aten.logcumsumexp.default)(partial(_lower_scan, "logsumexp"))
register_lowering(aten.cummax.default)(partial(_lower_extreme_scan, "max"))
register_lowering(aten.cummin.default)(partial(_lower_extreme_scan, "min"))
