"""Launches of the matmul template with operands and epilogues written by hand."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from burnt.codegen.render.triton.layout import INT32_INDEX_LIMIT
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.matmul_template import matmul, reduce_split_k
from burnt.kernels.interface.launch import Launch

_EPILOGUE_ELEMENTS = 32  # elements of a tile that a thread's epilogue handles at a time
_SPLIT_K_ELEMENTS = 1024  # elements of a tile whose split-K partial sums are added


def matmul_launches(
    args: tuple[Any, ...],
    out: Tensor,
    sizes: tuple[int, int, int, int],
    config: MatmulConfig,
    left: Any,
    right: Any,
    epilogue: Any,
    settings: tuple[Any, ...] | None,
    precision: str,
    options: dict[str, Any],
    **constants: Any,
) -> list[Launch]:
    """Return the launches of a product; `sizes` are the numbers of batches, rows, columns and terms.

    `args`, the functions, `settings` and further `constants` are as in `matmul_template`; `out`, which the
    epilogue writes, gives the device; `options` are Triton's.
    """
    batches, rows, columns, terms = sizes
    tiles = config.split * batches * triton.cdiv(rows, config.block_m) * triton.cdiv(columns, config.block_n)
    parts = partial_sums(out, config.split, sizes[:3], precision)
    constants = {
        "left": left, "right": right, "describe_left": None, "describe_right": None, "locate": None,
        "GROUPS": 0,
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
        "GROUP": config.group, "PROGRAMS": config.programs,
        "WIDTH": max(_EPILOGUE_ELEMENTS * 32 * config.warps // config.block_m, 16),
        "EVEN_K": terms % config.block_k == 0, "PRECISION": precision,
        "epilogue": epilogue, "SPLIT_K": config.split, "SETTINGS": settings,
        "INT64_INDICES": _max_offset(args) > INT32_INDEX_LIMIT, **constants,
    }  # fmt: skip
    grid = (min(config.programs or tiles, tiles),)
    first = Launch(matmul, grid, (args, parts, *sizes), constants, config.options | options)
    return [first, *reduce_launches(args, parts, sizes[:3], config.split, epilogue, settings, options)]


def partial_sums(out: Tensor, split: int, sizes: tuple[int, ...], precision: str) -> Tensor:
    """Return memory for the sums of `split` parts of the terms; `out` itself for one part."""
    dtype = torch.int32 if precision == "int8" else torch.float32
    return out.new_empty(split, *sizes, dtype=dtype) if split > 1 else out


def reduce_launches(
    args: tuple[Any, ...],
    parts: Tensor,
    sizes: tuple[int, ...],
    split: int,
    epilogue: Any,
    settings: tuple[Any, ...] | None,
    options: dict[str, Any],
) -> list[Launch]:
    """Return the launch that adds the sums of several parts of the terms; none for one part."""
    if split == 1:
        return []
    batches, rows, columns = sizes
    width = min(triton.next_power_of_2(columns), 128)
    height = _SPLIT_K_ELEMENTS // width
    wide = _max_offset(args) > INT32_INDEX_LIMIT
    constants = {"epilogue": epilogue, "SPLIT_K": split, "SETTINGS": settings, "INT64_INDICES": wide}
    constants |= {"HEIGHT": height, "WIDTH": width}
    grid = (batches * triton.cdiv(rows, height) * triton.cdiv(columns, width),)
    return [Launch(reduce_split_k, grid, (args, parts, *sizes), constants, options)]


def _max_offset(argument: Any) -> int:
    """Return the largest offset of an element in a tensor, or in those of a tuple."""
    if isinstance(argument, tuple):
        return max(map(_max_offset, argument), default=0)
    if not isinstance(argument, Tensor):
        return 0
    return sum((size - 1) * step for size, step in zip(argument.shape, argument.stride(), strict=True))
