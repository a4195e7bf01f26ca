"""Block sizes of the Triton kernels for `quantized_linear`: the heuristic and the candidates for tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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


class LinearSizes(NamedTuple):
    """What the choice of block sizes depends on: rows of x, columns of the result, terms of a sum, values per
    byte.

    `block` terms share a scale, 0 for whole rows; `itemsize` are the bytes of an element of x.
    """

    rows: int
    columns: int
    terms: int
    per_byte: int = 1
    block: int = 0
    itemsize: int = 2

    @property
    def structure(self) -> MatmulStructure:
        """What the choice of block sizes of the product depends on."""
        # Threads hold the decoded tile: with float32, half as many columns and terms.
        is_narrow = self.itemsize == 2
        max_terms = 32 if not is_narrow else 128 if self.per_byte == 2 else 64
        return MatmulStructure(
            1, self.rows, self.columns, self.terms, self.itemsize,
            tiles=_TILES if is_narrow else _TILES[1:], max_terms=max_terms, per_byte=self.per_byte,
        )  # fmt: skip


def select_config(sizes: LinearSizes, limits: Limits = HOPPER) -> dict[str, str]:
    """Select a kernel and its block sizes by heuristic, such that a device has room for them.

    Those of the matrix-vector kernel are a `TileConfig`: rows of the weight, bytes of each for an iteration,
    warps, and the programs that share a row.

    >>> select_config(LinearSizes(1, 4096, 4096, per_byte=2, block=32))
    {'vector': '4x512 w4'}
    >>> select_config(LinearSizes(64, 4096, 4096, per_byte=2, block=32))
    {'tiles': '64x64x128 w4 s4 k4'}
    """
    if sizes.rows == 1:
        return {"vector": str(_select_vector(sizes, limits))}
    return {"tiles": str(matmul_config.select_config(sizes.structure, limits))}


def configs(sizes: LinearSizes, limits: Limits = HOPPER) -> list[dict[str, str]]:
    """Return block sizes to measure: the selected ones, then those that differ in one size."""
    found: dict[tuple[str, str], None] = dict.fromkeys(select_config(sizes, limits).items())
    if sizes.rows <= _MAX_VECTOR_ROWS:
        found |= dict.fromkeys(("vector", str(c)) for c in _vector_neighbours(sizes, limits))
    tiles = matmul_config.configs_to_measure(sizes.structure, limits)
    found |= dict.fromkeys(("tiles", str(c)) for c in tiles)
    return [{kernel: text} for kernel, text in found]


def _row_bytes(sizes: LinearSizes) -> int:
    return -(-sizes.terms // sizes.per_byte)


def _smallest_group(sizes: LinearSizes) -> int:
    """Return the bytes that share a scale, at most the 16 that a thread reads at once."""
    return min(16, sizes.block // sizes.per_byte) if sizes.block else 16


def _select_vector(sizes: LinearSizes, limits: Limits) -> TileConfig:
    width = max(min(512, next_power_of_two(_row_bytes(sizes))), _smallest_group(sizes))
    tile_bytes = _VECTOR_WARPS * limits.warp_size * _THREAD_BYTES
    rows = min(max(tile_bytes // width, 1), next_power_of_two(sizes.columns))
    programs = sizes.rows * -(-sizes.columns // rows)
    # Enough programs share the terms of an output to use the device.
    most = min(limits.multiprocessors // programs, _row_bytes(sizes) // width, _MAX_SPLITS)
    return TileConfig(rows, width, _VECTOR_WARPS, chunks=max(next_power_of_two(most + 1) // 2, 1))


def _vector_neighbours(sizes: LinearSizes, limits: Limits) -> Iterator[TileConfig]:
    selected = _select_vector(sizes, limits)
    changed = change_each_size(selected, "rows", "cols", "warps", "chunks")
    changed += [scale_sizes(selected, {"rows": change, "warps": change}) for change in (1, -1)]
    for config in [selected, *changed]:
        is_possible = (
            _smallest_group(sizes) <= config.cols <= next_power_of_two(_row_bytes(sizes))
            and config.rows * config.cols <= 8192
            and config.chunks <= _MAX_SPLITS
            and (config.chunks == 1 or config.chunks * config.cols <= _row_bytes(sizes))
        )
        if is_possible:
            yield config
