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
from burnt.kernels.ops.quantized.scaled import LinearCall, epilogue_of, finish_linear, scaled_linear, sum_rows
from burnt.kernels.ops.quantized.scaled_gpu import sum_unsupported_reason, uses_float8_units
from burnt.kernels.ops.quantized.values import FLOAT8
from burnt.kernels.ops.quantized.weight_only_gpu import DTYPES

_MIN_INT8_ROWS = 17  # of x, which cuBLASLt requires

_finish = fuse(finish_linear)


def _is_one_call(call: LinearCall) -> bool:
    """Whether it is one call of the library, which scales float8 products and returns bfloat16."""
    is_only_scaled = call.bias is None and call.activation is None and call.out_scale is None
    return call.value != "int8" and call.dtype == torch.bfloat16 and is_only_scaled


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


def _unsupported_reason(*args: Any) -> str | None:
    call = LinearCall(*args)
    if call.value == "int8":
        reason = sum_unsupported_reason(call.x.shape[-1], call.x_zero_point, call.zero_point)
    else:
        architecture = device_info(call.x.device).architecture
        has_units = uses_float8_units(architecture, call.value, call.out_scale, call.dtype)
        reason = None if has_units else f"{architecture} has no float8 units, or they are not precise enough"
    return shape_unsupported_reason(call.x, call.values, call.value) or reason


def scaled_linear_library(*args: Any) -> Tensor:
    """Compute `burnt.kernels.scaled_linear`; the arguments are the op's."""
    call = LinearCall(*args)
    rows, weight = call.x.reshape(-1, call.x.shape[-1]).contiguous(), call.values.contiguous()
    shape = (*call.x.shape[:-1], weight.shape[0])
    if call.value == "int8":
        total = _torch.int8_mm(rows, weight)
    else:
        rows, weight = rows.view(FLOAT8[call.value]), weight.view(FLOAT8[call.value])
        if _is_one_call(call):
            row_scale = call.x_scale.float().reshape(-1, 1).expand(rows.shape[0], 1).contiguous()
            column_scale = call.scale.float().reshape(1, -1).expand(1, weight.shape[0]).contiguous()
            return _torch.float8_mm(rows, weight, row_scale, column_scale, torch.bfloat16).view(shape)
        one = torch.ones((), device=rows.device)
        total = _torch.float8_mm(rows, weight, one, one, torch.float32)
    zero = call.zero_point
    column_sums = None if call.x_zero_point is None else sum_rows(weight, zero, torch.int32)
    row_sums = None if zero is None else rows.sum(1, keepdim=True, dtype=torch.int32)
    out: Tensor = _finish(total, call.x_zero_point, column_sums, zero, row_sums, *epilogue_of(call))
    return out.view(shape)


scaled_linear.candidate(
    "torch",
    devices=["cuda"],
    dtypes=DTYPES,
    when=_unsupported_reason,
    best=lambda *args: _is_one_call(LinearCall(*args)),
)(scaled_linear_library)
