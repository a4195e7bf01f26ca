"""Block sizes of the Triton kernels for `scaled_linear` and `scaled_conv`, and how float8 is multiplied."""

from __future__ import annotations

import re
from typing import Literal

from burnt.codegen.render.triton.matmul_config import HOPPER, MatmulConfig
from burnt.codegen.render.triton.tile_config import Limits, change_each_size, next_power_of_two
from burnt.kernels.ops.quantized.weight_only_config import MIN_TERMS_PER_SPLIT, is_reasonable, select_split

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
