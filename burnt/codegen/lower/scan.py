"""Lowerings of cumulative sums, products, extremes and logarithms of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from burnt.codegen.ir import Expr, Scan, Value, scan_result
from burnt.codegen.lower.registry import Unlowered, cast, compute_dtype, const, register_lowering

aten = torch.ops.aten


def _scan(kind: str, x: Value, axis: int, dtype: torch.dtype, math_dtype: torch.dtype) -> Value:
    """Scan along an axis, computing in `math_dtype`; the result has `dtype`."""
    if dtype.is_complex:
        raise Unlowered
    axis = axis % len(x.shape) if x.shape else 0
    is_arg = kind.startswith("arg")
    if not x.shape or x.shape[axis] == 1:
        # One element: it is the result, and its index is 0.
        zero = const(0, dtype)
        return Value(
            x.shape,
            dtype,
            lambda index: zero if is_arg else _to_result_dtype(cast(x.at(index), math_dtype), dtype),
        )
    result_dtype = torch.int64 if is_arg else math_dtype
    node = Scan(kind, x.shape, axis, result_dtype, lambda index: cast(x.at(index), math_dtype))
    return Value(x.shape, dtype, lambda index: _to_result_dtype(scan_result(node, index), dtype))


def _to_result_dtype(element: Expr, dtype: torch.dtype) -> Expr:
    """Convert a result to its dtype; 16-bit floats are rounded when stored."""
    if element.dtype == dtype:
        return element
    return Expr.make("as" if element.dtype == compute_dtype(dtype) else "cast", (element,), dtype)


@register_lowering(aten.cumsum.default)
def _lower_cumsum(meta: torch.Tensor, x: Value, axis: int, *, dtype: Any = None) -> Value:
    return _scan("sum", x, axis, meta.dtype, compute_dtype(meta.dtype))


@register_lowering(aten.cumprod.default)
def _lower_cumprod(meta: torch.Tensor, x: Value, axis: int, *, dtype: Any = None) -> Value:
    return _scan("prod", x, axis, meta.dtype, compute_dtype(meta.dtype))


@register_lowering(aten.logcumsumexp.default)
def _lower_logcumsumexp(meta: torch.Tensor, x: Value, axis: int) -> Value:
    if not meta.dtype.is_floating_point:
        raise Unlowered
    return _scan("logsumexp", x, axis, meta.dtype, compute_dtype(meta.dtype))


@register_lowering(aten.cummax.default)
def _lower_cummax(metas: Sequence[torch.Tensor], x: Value, axis: int) -> tuple[Value, Value]:
    math_dtype = compute_dtype(x.dtype)
    return _scan("max", x, axis, x.dtype, math_dtype), _scan("argmax", x, axis, torch.int64, math_dtype)


@register_lowering(aten.cummin.default)
def _lower_cummin(metas: Sequence[torch.Tensor], x: Value, axis: int) -> tuple[Value, Value]:
    math_dtype = compute_dtype(x.dtype)
    return _scan("min", x, axis, x.dtype, math_dtype), _scan("argmin", x, axis, torch.int64, math_dtype)
