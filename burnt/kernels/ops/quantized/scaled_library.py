"""The candidate ``torch`` of `scaled_linear` on a GPU: cuBLASLt's products of 8-bit values.

A product of float8 matrices whose result is only scaled is one call. Other results are scaled, activated and
quantized by a generated kernel, from the library's int32 or float32 sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import fuse
from burnt.device import device_info
from burnt.kernels.ops.quantized.scaled import finish_linear, scaled_linear, sum_rows
from burnt.kernels.ops.quantized.scaled_gpu import result_dtype, sum_unsupported_reason, uses_float8_units
from burnt.kernels.ops.quantized.values import FLOAT8
from burnt.kernels.ops.quantized.weight_only_gpu import DTYPES

_MIN_INT8_ROWS = 17  # of x, which cuBLASLt requires

_finish = fuse(finish_linear)


def _is_only_scaled(bias: Tensor | None, activation: str | None, out_scale: Tensor | None) -> bool:
    return bias is None and activation is None and out_scale is None


def shape_unsupported_reason(x: Tensor, values: Tensor, value: str) -> str | None:
    """Return why cuBLASLt does not multiply these values, whatever the device; None if it does."""
    rows, (columns, terms) = x.numel() // max(x.shape[-1], 1), values.shape
    if value == "float8_e5m2":
        return "cuBLASLt does not multiply e5m2 by e5m2"
    if 0 in (rows, columns, terms):
        return "an empty tensor"
    if terms % 16 or columns % 16:
        return f"{terms} terms or {columns} columns, which are no multiples of 16"
    if value == "int8" and rows < _MIN_INT8_ROWS:
        return f"{rows} rows, of at least {_MIN_INT8_ROWS} that cuBLASLt multiplies"
    return None


def _unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    _, _, x_zero_point, _, _, out_scale, _, value, dtype, zero_point = rest
    if value == "int8":
        reason = sum_unsupported_reason(x.shape[-1], x_zero_point, zero_point)
    else:
        architecture = device_info(x.device).architecture
        has_units = uses_float8_units(architecture, value, out_scale, dtype)
        reason = None if has_units else f"{architecture} has no float8 units, or they are not precise enough"
    return shape_unsupported_reason(x, values, value) or reason


def _is_best(x: Tensor, values: Tensor, *rest: Any) -> bool:
    """Whether it is one call of the library."""
    _, _, _, bias, activation, out_scale, _, value, dtype, _ = rest
    is_bfloat16 = result_dtype(dtype) == torch.bfloat16
    return value != "int8" and is_bfloat16 and _is_only_scaled(bias, activation, out_scale)


def scaled_linear_library(
    x: Tensor,
    values: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    x_zero_point: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    out_scale: Tensor | None,
    out_zero_point: Tensor | None,
    value: str,
    dtype: torch.dtype | None,
    zero_point: Tensor | None = None,
) -> Tensor:
    """Compute `burnt.kernels.scaled_linear`; the arguments are the op's."""
    rows, weight = x.reshape(-1, x.shape[-1]).contiguous(), values.contiguous()
    shape = (*x.shape[:-1], values.shape[0])
    if value == "int8":
        total = _torch.int8_mm(rows, weight)
    else:
        rows, weight = rows.view(FLOAT8[value]), weight.view(FLOAT8[value])
        if result_dtype(dtype) == torch.bfloat16 and _is_only_scaled(bias, activation, out_scale):
            row_scale = x_scale.float().reshape(-1, 1).expand(rows.shape[0], 1).contiguous()
            column_scale = scale.float().reshape(1, -1).expand(1, weight.shape[0]).contiguous()
            return _torch.float8_mm(rows, weight, row_scale, column_scale, torch.bfloat16).view(shape)
        one = torch.ones((), device=x.device)
        total = _torch.float8_mm(rows, weight, one, one, torch.float32)
    column_sums = None if x_zero_point is None else sum_rows(weight, zero_point, torch.int32)
    row_sums = None if zero_point is None else rows.sum(1, keepdim=True, dtype=torch.int32)
    out: Tensor = _finish(
        total,
        x_scale,
        scale,
        x_zero_point,
        column_sums,
        bias,
        activation,
        out_scale,
        out_zero_point,
        value,
        dtype,
        zero_point,
        row_sums,
    )
    return out.view(shape)


@scaled_linear.candidate("torch", devices=["cuda"], dtypes=DTYPES, when=_unsupported_reason, best=_is_best)
def _(*args: Any) -> Tensor:
    return scaled_linear_library(*args)
