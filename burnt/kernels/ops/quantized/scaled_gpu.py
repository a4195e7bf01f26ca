"""Candidates of `scaled_linear` and `scaled_conv` on a GPU: ``triton``, and ``torch``, which is cuBLASLt.

int8 results are the reference's to the bit, except where an activation that is not piecewise linear differs
in the last place close to a tie. cuBLASLt's product of float8 matrices is one call if it is only scaled;
other results are scaled, activated and quantized by a generated kernel, from int32 or float32 sums.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Literal

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import fuse
from burnt.codegen.precision import precision
from burnt.codegen.render.triton.matmul_config import HOPPER, MatmulConfig
from burnt.codegen.render.triton.tile_config import Limits, change_each_size, next_power_of_two
from burnt.codegen.runtime.targets import target_of
from burnt.device import device_info
from burnt.kernels.interface.launch import compile_all, on_meta
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
from burnt.kernels.ops.quantized.weight_only_config import MIN_TERMS_PER_SPLIT, is_reasonable, select_split
from burnt.kernels.ops.quantized.weight_only_gpu import DTYPES

Use = Literal["int8", "float8", "float16", "windows"]


def multiplies_float8(architecture: str) -> bool:
    """Whether tensor cores of an architecture multiply float8 numbers of these formats.

    gfx942 has other formats, whose exponents are one larger.

    >>> [multiplies_float8(a) for a in ("sm_80", "sm_89", "sm_90", "sm_120", "gfx942:sramecc+", "gfx950")]
    [False, True, True, True, False, True]
    """
    match = re.fullmatch(r"sm_(\d+)[a-z]?", architecture)
    return int(match[1]) >= 89 if match else architecture.startswith("gfx950")


def select_config(
    rows: int, columns: int, terms: int, limits: Limits = HOPPER, use: Use = "int8"
) -> MatmulConfig:
    """Select block sizes for a product of 8-bit values by heuristic, such that a device has room for them.

    `rows` and `columns` are the result's; `terms` are added (of a convolution those of one tap). All uses but
    ``"int8"`` need more registers: a second set of sums (``"float8"``), decoded tiles (``"float16"``), or an
    address for each element (``"windows"``).

    >>> str(select_config(4096, 4096, 4096))
    '128x128x128 w8 s3'
    >>> str(select_config(16, 4096, 4096))
    '16x64x128 w4 s4 k2'
    """
    is_rdna = limits.is_rocm and limits.warp_size == 32  # whose threads hold whole rows of an operand
    is_tight = use == "float16" or is_rdna
    most_k = {"windows": 32, "float16": 64}.get(use, 64 if is_rdna else 128)
    block_k = min(most_k, max(next_power_of_two(terms), 32))
    for block_m, block_n in ((128, 128), (64, 128), (64, 64), (32, 64), (16, 64), (16, 32)):
        if block_m // 2 >= max(rows, 16) or block_n // 2 >= max(columns, 32):
            continue
        tiles = -(-rows // block_m) * -(-columns // block_n)
        if tiles < limits.multiprocessors and block_m * block_n > 64 * 64 and rows > 64:
            continue
        split = 1 if use == "windows" else select_split(tiles, terms // MIN_TERMS_PER_SPLIT, limits)
        warps = 8 if block_m * block_n >= (64 if is_tight else 128) * 128 else 4
        # Gathered elements are not copied asynchronously: more stages would hold them in registers.
        most_stages = 2 if limits.is_rocm or use == "windows" else 3 if warps == 8 else 4
        for stages in range(most_stages, 1, -1):
            config = MatmulConfig(block_m, block_n, block_k, warps, stages, split)
            if _fits(config, limits):
                return config
    return MatmulConfig(16, 32, block_k, 4, 2)


def configs(
    rows: int, columns: int, terms: int, limits: Limits = HOPPER, use: Use = "int8"
) -> list[MatmulConfig]:
    """Return block sizes to measure: the selected ones, then those that differ in one size."""
    selected = select_config(rows, columns, terms, limits, use)
    sizes = "block_n", "block_m", "block_k", "warps", "split", "stages"
    return [
        c
        for c in dict.fromkeys([selected, *change_each_size(selected, *sizes)])
        if is_reasonable(c, rows, terms, limits) and (c.split == 1 or use != "windows") and _fits(c, limits)
    ]


def _fits(config: MatmulConfig, limits: Limits) -> bool:
    """Whether the tiles of both operands fit into shared memory, as often as they are in flight."""
    in_flight = max(config.stages - limits.is_rocm, 1)
    return (config.block_m + config.block_n) * config.block_k * in_flight <= limits.shared_memory


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
    target = target_of(call.x.device)
    if isinstance(target, str):
        return target
    if call.zero_point is not None:
        return "zero points of the weight"
    return "an empty tensor" if 0 in (call.x.numel(), call.values.numel()) else None


# --- scaled_linear ------------------------------------------------------------------------------------------


def _uses_float8(call: LinearCall) -> bool:
    return uses_float8_units(device_info(call.x.device).architecture, call.value, call.out_scale, call.dtype)


def _linear_unsupported_reason(*args: Any) -> str | None:
    call = LinearCall(*args)
    reason = _unsupported_reason(call)
    if reason is not None or call.value != "int8":
        return reason
    return sum_unsupported_reason(call.x.shape[-1], call.x_zero_point)


def _linear_configs(*args: Any) -> list[dict[str, str]]:
    from burnt.codegen.runtime.triton_compile_pool import limits_of

    call = LinearCall(*args)
    x, use = call.x, "int8" if call.value == "int8" else "float8" if _uses_float8(call) else "float16"
    sizes = x.numel() // x.shape[-1], call.values.shape[0], x.shape[-1]
    return [{"tiles": str(c)} for c in configs(*sizes, limits_of(x.device), use)]  # type: ignore[arg-type]


def _compile_linear(config: Mapping[str, str], *args: Any) -> Future[None]:
    from burnt.kernels.ops.quantized.scaled_triton import linear_launches

    call = LinearCall(*args)
    rows = call._replace(x=call.x.reshape(-1, call.x.shape[-1]))
    blocks = MatmulConfig.of(config["tiles"])
    launches, _ = linear_launches(LinearCall(*on_meta(*rows)), blocks, float8=_uses_float8(call))
    return compile_all(launches, call.x.device)


@scaled_linear.candidate(
    "triton",
    devices=["cuda"],
    dtypes=DTYPES,
    when=_linear_unsupported_reason,
    configs=_linear_configs,
    compiles=_compile_linear,
)
def _(*args: Any, config: Mapping[str, str]) -> Tensor:
    from burnt.kernels.ops.quantized.scaled_triton import scaled_linear_triton

    call = LinearCall(*args)
    return scaled_linear_triton(call, MatmulConfig.of(config["tiles"]), float8=_uses_float8(call))


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


def _conv_configs(*args: Any) -> list[dict[str, str]]:
    from burnt.codegen.runtime.triton_compile_pool import limits_of

    call = ConvCall(*args)
    rows = call.x.numel() // call.x.shape[1] // math.prod(call.sizes[0])
    columns, terms = call.values.shape[0] // call.groups, call.values.shape[1]
    found = configs(max(rows, 1), columns, terms, limits_of(call.x.device), "windows")
    return [{"tiles": str(blocks)} for blocks in found]


def _compile_conv(config: Mapping[str, str], *args: Any) -> Future[None]:
    from burnt.kernels.ops.quantized.scaled_triton import conv_launches

    launches, _ = conv_launches(ConvCall(*on_meta(*args)), MatmulConfig.of(config["tiles"]))
    return compile_all(launches, args[0].device)


@scaled_conv.candidate(
    "triton",
    devices=["cuda"],
    dtypes=DTYPES,
    when=_conv_unsupported_reason,
    configs=_conv_configs,
    compiles=_compile_conv,
)
def _(*args: Any, config: Mapping[str, str]) -> Tensor:
    from burnt.kernels.ops.quantized.scaled_triton import scaled_conv_triton

    return scaled_conv_triton(ConvCall(*args), MatmulConfig.of(config["tiles"]))


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
