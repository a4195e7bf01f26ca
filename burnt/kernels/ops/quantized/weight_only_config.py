"""Block sizes of the Triton kernels for `quantized_linear`: the heuristic and the candidates for tuning."""

from __future__ import annotations

from collections.abc import Iterator

from burnt.codegen.render.triton import matmul_config
from burnt.codegen.render.triton.matmul_config import HOPPER, MatmulStructure
from burnt.codegen.render.triton.tile_config import (
    Limits,
    TileConfig,
    change_each_size,
    next_power_of_two,
    scale_sizes,
)

_VECTOR_WARPS, _THREAD_BYTES = 4, 16  # of the matrix-vector kernel: a thread reads 16 bytes at once
_MAX_VECTOR_ROWS = 4
"""Rows of x up to which the matrix-vector kernel is worth measuring: it reads the weight for each of them."""
_MAX_SPLITS = 16
_TILES = (128, 128), (64, 64), (32, 64), (16, 64), (16, 32)


def structure_of(
    rows: int, columns: int, terms: int, per_byte: int = 1, itemsize: int = 2
) -> MatmulStructure:
    """Return what the choice of block sizes depends on, for x ``[rows, terms]`` with elements of `itemsize`
    bytes, and `columns` rows of packed values.
    """
    # Threads hold the decoded tile: with float32, half as many columns and terms.
    tiles, max_terms = (_TILES, 128 if per_byte == 2 else 64) if itemsize == 2 else (_TILES[1:], 32)
    return MatmulStructure(
        1, rows, columns, terms, itemsize, tiles=tiles, max_terms=max_terms, per_byte=per_byte
    )


def select_config(structure: MatmulStructure, block: int, limits: Limits = HOPPER) -> dict[str, str]:
    """Select a kernel and its block sizes by heuristic, such that a device has room for them.

    `block` terms share a scale, 0 for whole rows. Sizes of the matrix-vector kernel are a `TileConfig`: rows
    of the weight, bytes of each for an iteration, warps, and the programs that share a row.

    >>> select_config(structure_of(1, 4096, 4096, per_byte=2), block=32)
    {'vector': '4x512 w4'}
    >>> select_config(structure_of(64, 4096, 4096, per_byte=2), block=32)
    {'tiles': '64x64x128 w4 s4 k4'}
    """
    if structure.rows == 1:
        return {"vector": str(next(_vector_configs(structure, block, limits)))}
    return {"tiles": str(matmul_config.select_config(structure, limits))}


def configs(structure: MatmulStructure, block: int, limits: Limits = HOPPER) -> list[dict[str, str]]:
    """Return block sizes to measure: the selected ones, then those that differ little."""
    found = [select_config(structure, block, limits)]
    if structure.rows <= _MAX_VECTOR_ROWS:
        found += [{"vector": str(c)} for c in _vector_configs(structure, block, limits)]
    found += [{"tiles": str(c)} for c in matmul_config.configs_to_measure(structure, limits)]
    return [config for i, config in enumerate(found) if config not in found[:i]]


def _vector_configs(structure: MatmulStructure, block: int, limits: Limits) -> Iterator[TileConfig]:
    row_bytes = -(-structure.terms // structure.per_byte)
    group = min(16, block // structure.per_byte) if block else 16  # bytes that share a scale, and a thread
    width = max(min(512, next_power_of_two(row_bytes)), group)
    tile_bytes = _VECTOR_WARPS * limits.warp_size * _THREAD_BYTES
    rows = min(max(tile_bytes // width, 1), next_power_of_two(structure.columns))
    programs = structure.rows * -(-structure.columns // rows)
    # Enough programs share the terms of an output to use the device.
    most = min(limits.multiprocessors // programs, row_bytes // width, _MAX_SPLITS)
    selected = TileConfig(rows, width, _VECTOR_WARPS, chunks=max(next_power_of_two(most + 1) // 2, 1))
    yield selected
    changed = change_each_size(selected, "rows", "cols", "warps", "chunks")
    changed += [scale_sizes(selected, {"rows": change, "warps": change}) for change in (1, -1)]
    for config in changed:
        is_possible = (
            group <= config.cols <= next_power_of_two(row_bytes)
            and config.rows * config.cols <= 8192
            and config.chunks <= _MAX_SPLITS
            and (config.chunks == 1 or config.chunks * config.cols <= row_bytes)
        )
        if is_possible:
            yield config
