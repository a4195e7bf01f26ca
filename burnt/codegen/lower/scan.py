"""Lowerings of cumulative sums, products, extremes and logarithms of sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from burnt.codegen.ir import Scan, Value, cast, scan_result
from burnt.codegen.lower.registry import Unlowered, compute_dtype, full, register_lowering, rounded

aten = torch.ops.aten


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
