"""Candidates of `scaled_linear` and `scaled_conv` on a GPU: ``triton``, and ``torch``, which is cuBLASLt.

int8 results are the reference's to the bit, except where an activation that is not piecewise linear differs
in the last place close to a tie. cuBLASLt's product of float8 matrices is one call if it is only scaled;
other results are scaled, activated and quantized by a generated kernel, from int32 or float32 sums.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import fuse
from burnt.codegen.precision import precision
from burnt.codegen.render.triton.matmul_config import (
    MatmulConfig,
    MatmulStructure,
)
from burnt.codegen.render.triton.tile_config import Limits
from burnt.device import device_info
from burnt.kernels.ops.matmul_gpu import DTYPES, add_candidate
from burnt.kernels.ops.quantized.quantize import FLOAT8
from burnt.kernels.ops.quantized.scaled import (
    ConvCall,
    LinearCall,
    epilogue_of,
    finish_linear,
    scaled_conv,
    scaled_linear,
    sum_rows,
)

Use = Literal["int8", "float8", "float16", "windows"]


def multiplies_float8(architecture: str) -> bool:
    """Whether tensor cores of an architecture multiply float8 numbers of these formats.

    gfx942 has other formats, whose exponents are one larger.

    >>> [multiplies_float8(a) for a in ("sm_80", "sm_89", "sm_90", "sm_120", "gfx942:sramecc+", "gfx950")]
    [False, True, True, True, False, True]
    """
    match = re.fullmatch(r"sm_(\d+)[a-z]?", architecture)
    return int(match[1]) >= 89 if match else architecture.startswith("gfx950")


_TILES = (128, 128), (64, 128), (64, 64), (32, 64), (16, 64), (16, 32)


def structure_of(rows: int, columns: int, terms: int, use: Use = "int8") -> MatmulStructure:
    """Return what the choice of block sizes for a product of 8-bit values depends on.

    `rows` and `columns` are the result's; `terms` are added (of a convolution those of one tap). For
    ``"float16"`` tiles are decoded in registers, for ``"windows"`` they are gathered.

    >>> from burnt.codegen.render.triton.matmul_config import select_config
    >>> str(select_config(structure_of(4096, 4096, 4096)))
    '128x128x128 w8 s3'
    >>> str(select_config(structure_of(16, 4096, 4096)))
    '16x64x128 w4 s4 k4'
    """
    max_terms = {"windows": 64, "float16": 64}.get(use, 128)
    is_convolution, per_byte = use == "windows", int(use == "float16")
    return MatmulStructure(
        1, rows, columns, terms, 1,
        is_convolution=is_convolution, tiles=_TILES, max_terms=max_terms, per_byte=per_byte,
    )  # fmt: skip


_MAX_TERMS = 1 << 17
"""Products of two int8 values whose sum might not fit into int32: each is at most 2^14. With a zero point,
half as many, with one of the weight too an eighth."""


def sum_unsupported_reason(
    terms: int, x_zero_point: Tensor | None, zero_point: Tensor | None = None
) -> str | None:
    """Return why int32 cannot hold a sum of so many products of int8 values, or None."""
    limit = _MAX_TERMS if x_zero_point is None else _MAX_TERMS // 2
    limit = limit if zero_point is None else _MAX_TERMS // 8
    return None if terms < limit else f"sums of {terms} products, which may exceed int32"


def uses_float8_units(
    architecture: str, value: str, out_scale: Tensor | None, dtype: torch.dtype | None
) -> bool:
    """Whether tensor cores multiply float8 values: where their sums are as precise as the result.

    Hopper's add 128 products with 14 bits. That is enough for 8 or 16-bit results, not for float32.
    """
    is_narrow = out_scale is not None or (dtype is not None and dtype.itemsize == 2) or precision() != "ieee"
    return value != "int8" and is_narrow and multiplies_float8(architecture)


def _unsupported_reason(call: LinearCall | ConvCall) -> str | None:
    if call.zero_point is not None:
        return "zero points of the weight"
    return "an empty tensor" if 0 in (call.x.numel(), call.values.numel()) else None


# --- scaled_linear ------------------------------------------------------------------------------------------


def _uses_float8(call: LinearCall, device: torch.device) -> bool:
    return uses_float8_units(device_info(device).architecture, call.value, call.out_scale, call.dtype)


def _linear_unsupported_reason(*args: Any) -> str | None:
    call = LinearCall(*args)
    reason = _unsupported_reason(call)
    if reason is not None or call.value != "int8":
        return reason
    return sum_unsupported_reason(call.x.shape[-1], call.x_zero_point)


def _linear_configs(limits: Limits, *args: Any) -> MatmulStructure:
    call = LinearCall(*args)
    rows, terms = call.x.numel() // call.x.shape[-1], call.x.shape[-1]
    use: Use = "float8" if _uses_float8(call, call.x.device) else "float16"
    return structure_of(rows, call.values.shape[0], terms, "int8" if call.value == "int8" else use)


def _linear_launches(config: dict[str, str], device: torch.device, *args: Any) -> Any:
    from burnt.kernels.ops.quantized.scaled_triton import linear_launches

    call = LinearCall(*args)
    return linear_launches(call, MatmulConfig.of(config["tiles"]), float8=_uses_float8(call, device))


add_candidate(scaled_linear, _linear_launches, _linear_configs, when=_linear_unsupported_reason)


# --- scaled_conv --------------------------------------------------------------------------------------------


def _conv_unsupported_reason(*args: Any) -> str | None:
    call = ConvCall(*args)
    reason = _unsupported_reason(call)
    if reason is not None:
        return reason
    _, padding, dilation = call.sizes
    for size, kernel, pad, step in zip(
        call.x.shape[2:], call.values.shape[2:], padding, dilation, strict=True
    ):
        if size + 2 * pad < (kernel - 1) * step + 1:
            return "a kernel larger than the padded input"
    return sum_unsupported_reason(call.terms, call.x_zero_point)


def _conv_configs(limits: Limits, *args: Any) -> MatmulStructure:
    call = ConvCall(*args)
    rows = call.x.numel() // call.x.shape[1] // math.prod(call.sizes[0])
    columns, terms = call.values.shape[0] // call.groups, call.values.shape[1]
    return structure_of(max(rows, 1), columns, terms, "windows")


def _conv_launches(config: dict[str, str], device: torch.device, *args: Any) -> Any:
    from burnt.kernels.ops.quantized.scaled_triton import conv_launches

    return conv_launches(ConvCall(*args), MatmulConfig.of(config["tiles"]))


add_candidate(scaled_conv, _conv_launches, _conv_configs, when=_conv_unsupported_reason)


# --- scaled_linear by cuBLASLt ------------------------------------------------------------------------------

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
        return f"{terms} terms or {columns} columns, which are not multiples of 16"
    if value == "int8" and rows < _MIN_INT8_ROWS:
        return f"{rows} rows, of at least {_MIN_INT8_ROWS} that cuBLASLt multiplies"
    return None


def _library_unsupported_reason(*args: Any) -> str | None:
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
    when=_library_unsupported_reason,
    best=lambda *args: _is_one_call(LinearCall(*args)),
)(scaled_linear_library)
