"""Block sizes of the Triton kernels for `quantized_linear`: the heuristic and the candidates for tuning."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from burnt.codegen.render.triton.matmul_config import HOPPER, MatmulConfig
from burnt.codegen.render.triton.tile_config import Limits, change_each_size, next_power_of_two, scale_sizes

_VECTOR_WARPS, _THREAD_BYTES = 4, 16  # of the matrix-vector kernel: a thread reads 16 bytes at once
_MAX_VECTOR_ROWS = 4
"""Rows of x up to which the matrix-vector kernel is worth measuring: it reads the weight for each of them."""
_MAX_SPLITS = 16
MIN_TERMS_PER_SPLIT = 1024
_PATTERN = re.compile(r"(\d+)x(\d+) w(\d+) k(\d+)")


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


@dataclasses.dataclass(frozen=True)
class VectorConfig:
    """Block sizes of the matrix-vector kernel: rows of the weight, bytes of each for an iteration, and warps.

    `split` programs share a row; a second kernel adds their sums.

    >>> str(VectorConfig(4, 512)), VectorConfig.of("8x256 w2 k4").split
    ('4x512 w4 k1', 4)
    """

    rows: int
    bytes: int
    warps: int = 4
    split: int = 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.bytes} w{self.warps} k{self.split}"

    @property
    def options(self) -> dict[str, int]:
        """Triton's compile options."""
        return {"num_warps": self.warps, "num_stages": 2}

    @classmethod
    @functools.cache
    def of(cls, text: str) -> VectorConfig:
        """Parse block sizes; raise a ValueError if the text is malformed."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"block sizes {text!r}: expected such as '4x512 w4 k1'")
        return cls(*map(int, match.groups()))


def select_config(sizes: LinearSizes, limits: Limits = HOPPER) -> dict[str, str]:
    """Select a kernel and its block sizes by heuristic, such that a device has room for them.

    >>> select_config(LinearSizes(1, 4096, 4096, per_byte=2, block=32))
    {'vector': '4x512 w4 k1'}
    >>> select_config(LinearSizes(64, 4096, 4096, per_byte=2, block=32))
    {'tiles': '64x64x128 w4 s3 k2'}
    """
    if sizes.rows == 1:
        return {"vector": str(_select_vector(sizes, limits))}
    return {"tiles": str(_select_tiles(sizes, limits))}


def configs(sizes: LinearSizes, limits: Limits = HOPPER) -> list[dict[str, str]]:
    """Return block sizes to measure: the selected ones, then those that differ in one size."""
    found: dict[tuple[str, str], None] = dict.fromkeys(select_config(sizes, limits).items())
    if sizes.rows <= _MAX_VECTOR_ROWS:
        found |= dict.fromkeys(("vector", str(c)) for c in _vector_neighbours(sizes, limits))
    found |= dict.fromkeys(("tiles", str(c)) for c in _tile_neighbours(sizes, limits))
    return [{kernel: text} for kernel, text in found]


def _row_bytes(sizes: LinearSizes) -> int:
    return -(-sizes.terms // sizes.per_byte)


def _smallest_group(sizes: LinearSizes) -> int:
    """Return the bytes that share a scale, at most the 16 that a thread reads at once."""
    return min(16, sizes.block // sizes.per_byte) if sizes.block else 16


def _select_vector(sizes: LinearSizes, limits: Limits) -> VectorConfig:
    width = max(min(512, next_power_of_two(_row_bytes(sizes))), _smallest_group(sizes))
    tile_bytes = _VECTOR_WARPS * limits.warp_size * _THREAD_BYTES
    rows = min(max(tile_bytes // width, 1), next_power_of_two(sizes.columns))
    programs = sizes.rows * -(-sizes.columns // rows)
    return VectorConfig(
        rows, width, _VECTOR_WARPS, select_split(programs, _row_bytes(sizes) // width, limits)
    )


def _vector_neighbours(sizes: LinearSizes, limits: Limits) -> Iterator[VectorConfig]:
    selected = _select_vector(sizes, limits)
    changed = change_each_size(selected, "rows", "bytes", "warps", "split")
    changed += [scale_sizes(selected, {"rows": change, "warps": change}) for change in (1, -1)]
    for config in [selected, *changed]:
        is_possible = (
            _smallest_group(sizes) <= config.bytes <= next_power_of_two(_row_bytes(sizes))
            and config.rows * config.bytes <= 8192
            and config.split <= _MAX_SPLITS
            and (config.split == 1 or config.split * config.bytes <= _row_bytes(sizes))
        )
        if is_possible:
            yield config


def _select_tiles(sizes: LinearSizes, limits: Limits) -> MatmulConfig:
    block_m = min(max(next_power_of_two(sizes.rows), 16), 128)
    block_n = 128 if block_m == 128 and sizes.itemsize == 2 else 64 if sizes.columns > 32 else 32
    block_k = {4: 32, 2: 64}[sizes.itemsize] * (2 if sizes.per_byte == 2 and sizes.itemsize == 2 else 1)
    if limits.is_rocm and limits.warp_size == 32:
        block_k = min(block_k, 64)  # RDNA's threads hold whole rows of an operand
    tiles = -(-sizes.rows // block_m) * -(-sizes.columns // block_n)
    split = select_split(tiles, sizes.terms // MIN_TERMS_PER_SPLIT, limits)
    warps = 8 if block_m * block_n >= 128 * 128 else 4
    while block_k > 32:
        for stages in (2,) if limits.is_rocm else (3, 2):
            config = MatmulConfig(block_m, block_n, block_k, warps, stages, split)
            if _shared_bytes(sizes, config, limits) <= limits.shared_memory:
                return config
        block_k //= 2
    return MatmulConfig(min(block_m, 64), min(block_n, 64), 32, 4, 2, split)


def _tile_neighbours(sizes: LinearSizes, limits: Limits) -> Iterator[MatmulConfig]:
    selected = _select_tiles(sizes, limits)
    yield selected
    sizes_to_change = "block_n", "block_k", "block_m", "warps", "stages", "split"
    for config in change_each_size(selected, *sizes_to_change):
        if (
            is_reasonable(config, sizes.rows, sizes.terms, limits)
            and config.block_m * config.block_n <= 1 << 15
            and _shared_bytes(sizes, config, limits) <= limits.shared_memory
        ):
            yield config


def is_reasonable(config: MatmulConfig, rows: int, terms: int, limits: Limits) -> bool:
    """Whether block sizes are worth measuring for a product, if a device has room for them."""
    return (
        16 <= config.block_m <= max(2 * rows, 16)
        and config.block_n >= 16
        and 32 <= config.block_k <= 256
        and 2 <= config.warps <= 8
        and 2 <= config.stages <= 5
        and config.split <= _MAX_SPLITS
        and (config.split == 1 or config.split * config.block_k <= terms)
        and config.block_m * config.block_n // (config.warps * limits.warp_size) <= 128
    )


def select_split(programs: int, parts: int, limits: Limits) -> int:
    """Select how many programs share the terms of an output, of at most `parts`: enough to use the device."""
    most = min(limits.multiprocessors // programs, parts, _MAX_SPLITS)
    return 1 if most < 2 else next_power_of_two(most + 1) // 2


def _shared_bytes(sizes: LinearSizes, config: MatmulConfig, limits: Limits) -> int:
    """Return the bytes of shared memory: tiles of x and of packed values in flight, and a decoded tile."""
    in_flight = max(config.stages - limits.is_rocm, 1)
    x_bytes = config.block_m * config.block_k * sizes.itemsize
    values = config.block_n * config.block_k
    return in_flight * (x_bytes + values // sizes.per_byte) + values * sizes.itemsize
