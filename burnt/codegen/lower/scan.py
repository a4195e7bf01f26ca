"""Lowerings of cumulative sums, products, extremes and logarithms of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from burnt.codegen.ir import Expr, Scan, Value, scan_result
from burnt.codegen.lower.registry import Unlowered, cast, compute_dtype, const, lowered

aten = torch.ops.aten


def _scan(kind: str, x: Value, axis: int, dtype: torch.dtype, inside: torch.dtype) -> Value:
    """A scan along an axis of the elements in the dtype `inside`, given in `dtype`."""
    if dtype.is_complex:
        raise Unlowered
    axis = axis % len(x.shape) if x.shape else 0
    places = kind.startswith("arg")
    if not x.shape or x.shape[axis] == 1:
        # The only element there is; a place is 0.
        first = const(0, dtype)
        return Value(
            x.shape, dtype, lambda index: first if places else _given(cast(x.at(index), inside), dtype)
        )
    result = torch.int64 if places else inside
    node = Scan(kind, x.shape, axis, result, lambda index: cast(x.at(index), inside))
    return Value(x.shape, dtype, lambda index: _given(scan_result(node, index), dtype))


def _given(element: Expr, dtype: torch.dtype) -> Expr:
    if element.dtype == dtype:
        return element
    return Expr.make("as" if element.dtype == compute_dtype(dtype) else "cast", (element,), dtype)


@lowered(aten.cumsum.default)
def _cumsum(meta: torch.Tensor, x: Value, axis: int, *, dtype: Any = None) -> Value:
    return _scan("sum", x, axis, meta.dtype, compute_dtype(meta.dtype))


@lowered(aten.cumprod.default)
def _cumprod(meta: torch.Tensor, x: Value, axis: int, *, dtype: Any = None) -> Value:
    return _scan("prod", x, axis, meta.dtype, compute_dtype(meta.dtype))


@lowered(aten.logcumsumexp.default)
def _logcumsumexp(meta: torch.Tensor, x: Value, axis: int) -> Value:
    if not meta.dtype.is_floating_point:
        raise Unlowered
    return _scan("logsumexp", x, axis, meta.dtype, compute_dtype(meta.dtype))


@lowered(aten.cummax.default)
def _cummax(metas: Sequence[torch.Tensor], x: Value, axis: int) -> tuple[Value, Value]:
    inside = compute_dtype(x.dtype)
    return _scan("max", x, axis, x.dtype, inside), _scan("argmax", x, axis, torch.int64, inside)


@lowered(aten.cummin.default)
def _cummin(metas: Sequence[torch.Tensor], x: Value, axis: int) -> tuple[Value, Value]:
    inside = compute_dtype(x.dtype)
    return _scan("min", x, axis, x.dtype, inside), _scan("argmin", x, axis, torch.int64, inside)
