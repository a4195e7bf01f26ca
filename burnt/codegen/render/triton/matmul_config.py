"""Block sizes of Triton matmul kernels: the heuristic and the candidates for tuning."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from typing import Any

from burnt.codegen.render.triton.tile_config import Limits, next_power_of_two, scale_sizes

_NUM_MULTIPROCESSORS = 132  # of an H100; each runs one program of this size at a time
_MIN_TERMS_PER_SPLIT = 1024
_MAX_SPLITS = 128
_MIN_USE = 0.8  # share of the device that a convolution with large tiles must use
_LARGE_SHARED = 128 << 10
_MAX_CANDIDATES = 32  # of a kernel that is written by hand
TILES = (128, 256), (128, 128), (64, 128), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16)
_PATTERN = re.compile(r"(\d+)x(\d+)x(\d+) w(\d+) s(\d+)(?: k(\d+))?(?: g(\d+))?(?: p(\d+))?( d)?")
_STEPS = (
    {"block_n": -1}, {"block_m": -1}, {"block_k": 1}, {"block_k": -1}, {"warps": -1}, {"warps": 1},
    {"block_n": 1}, {"split": 1}, {"split": -1}, {"block_m": 1},
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MatmulStructure:
    """What the choice of block sizes depends on."""

    # The sizes B, M, N and K of the matmul.
    batches: int
    rows: int
    columns: int
    terms: int
    itemsize: int  # bytes of an operand's element
    num_tensors: int = 2  # tensors that the operands are computed from
    num_tma_operands: int = 0  # operands that a tensor descriptor (TMA) can address
    min_rows: int = 16  # fewest rows that a tile may have
    is_exact: bool = False  # whether operands of 32 bits or more are multiplied without rounding (``ieee``)
    is_convolution: bool = False  # whether its terms are of several axes: taps, channels, positions
    tiles: tuple[tuple[int, int], ...] = TILES  # rows and columns to select from, the largest first
    max_terms: int = 0  # most terms per iteration; 0 for 128 bytes of a row
    per_byte: int = 0  # values in a byte of the right operand, which is decoded in registers; 0 if it is not

    @property
    def min_terms(self) -> int:
        """The fewest terms per iteration: those of an instruction, or what a thread decodes at once."""
        return 32 if self.itemsize == 1 or self.per_byte else 16

    @property
    def is_weight_gradient(self) -> bool:
        """Whether it is the gradient of a convolution's weight: its terms are positions."""
        return self.is_convolution and self.terms > self.rows

    @property
    def work(self) -> int:
        """The number of elements processed, to compare kernels of a plan."""
        return self.batches * max(self.rows * self.terms, self.terms * self.columns, self.rows * self.columns)


@dataclasses.dataclass(frozen=True)
class MatmulConfig:
    """Block sizes of a matmul.

    >>> str(MatmulConfig(128, 256, 64, warps=8, stages=3))
    '128x256x64 w8 s3'
    >>> config = MatmulConfig.of("128x128x64 w4 s4 p132 d")
    >>> config.programs, config.descriptors
    (132, True)
    """

    # Rows and columns of a tile, and terms per iteration.
    block_m: int
    block_n: int
    block_k: int
    warps: int = 4  # warps of a program
    stages: int = 3  # iterations in flight at once
    split: int = 1  # programs that share the terms of a tile (split-K); a second function adds their sums
    group: int = 8  # rows of tiles that are processed together, so that they share operands in the L2 cache
    programs: int = 0  # number of persistent programs, which loop over the tiles; 0 for a program per tile
    descriptors: bool = False  # whether operands are loaded by tensor descriptor (TMA) where possible

    def __str__(self) -> str:
        text = f"{self.block_m}x{self.block_n}x{self.block_k} w{self.warps} s{self.stages}"
        text += f" k{self.split}" if self.split > 1 else ""
        text += f" g{self.group}" if self.group != 8 else ""
        text += f" p{self.programs}" if self.programs else ""
        return text + " d" * self.descriptors

    @property
    def options(self) -> dict[str, int]:
        """Triton's compile options; fused multiply-add stays on, so products are added unrounded."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    @classmethod
    @functools.cache
    def of(cls, text: str) -> MatmulConfig:
        """Parse block sizes; raises ValueError if no matmul could have them."""
        match = _PATTERN.fullmatch(text)
        if match is not None:
            *sizes, group, programs, descriptors = match.groups()
            m, n, k, warps, stages, split = (int(size or 1) for size in sizes)
            config = cls(
                m, n, k, warps, stages, split, int(group or 8), int(programs or 0), bool(descriptors)
            )
            if config.is_possible:
                return config
        raise ValueError(f"block sizes {text!r}: expected those of a matmul, such as '128x128x64 w8 s3'")

    @property
    def is_possible(self) -> bool:
        """Whether a program could have these sizes on any device."""
        blocks = self.block_m, self.block_n, self.block_k
        powers = all(0 < size == next_power_of_two(size) for size in (*blocks, self.warps))
        return (
            powers
            and min(blocks) >= 16
            and self.block_m * self.block_n <= 1 << 17
            and self.block_k <= 512
            and self.warps <= 32
            and 1 <= self.stages <= 8
            and self.split >= 1
            and 1 <= self.group <= 64
            and self.programs < 1 << 16
        )


HOPPER = Limits(_NUM_MULTIPROCESSORS, shared_memory=227 << 10, has_tma=True)


def select_config(structure: MatmulStructure, limits: Limits = HOPPER) -> MatmulConfig:
    """Select block sizes for a matmul by heuristic, such that a device has room for them.

    >>> str(select_config(MatmulStructure(1, 4096, 4096, 4096, itemsize=2)))
    '128x256x64 w8 s3'
    >>> str(select_config(MatmulStructure(1, 64, 64, 65536, itemsize=2)))
    '64x64x64 w4 s4 k64'
    >>> str(select_config(MatmulStructure(1, 64, 576, 100_352, itemsize=2, is_convolution=True)))
    '64x64x64 w4 s4 k44 g1'
    >>> str(select_config(MatmulStructure(1, 4096, 4096, 4096, itemsize=4, is_exact=True)))
    '128x128x16 w8 s3'
    """
    # NVIDIA and RDNA devices have no matrix units for exact float32: threads multiply elements one by one
    # and hold the operands of a whole block_k. More than 16 terms or 64 accumulators per thread spill up to
    # 6 KiB.
    uses_scalar_units = structure.is_exact and not (limits.is_rocm and limits.warp_size == 64)
    max_terms = structure.max_terms or 128 // structure.itemsize
    if limits.is_rocm and limits.warp_size == 32:
        max_terms = min(max_terms, 64)  # RDNA's threads hold whole rows of an operand
    block_k = min(
        16 if uses_scalar_units else max_terms, max(next_power_of_two(structure.terms), structure.min_terms)
    )
    block_sizes = list(structure.tiles)
    if structure.is_convolution and structure.tiles == TILES:
        # Rows are more than columns, and threads have addresses to hold. Of the gradient of a weight,
        # Triton 3.6 waits for each product of 128x128.
        block_sizes[:3] = [(128, 128), (128, 64)][structure.is_weight_gradient :]
    for block_m, block_n in block_sizes:
        if (
            block_m // 2 >= max(structure.rows, 16)
            or block_n // 2 >= max(structure.columns, 16)
            or block_m < structure.min_rows
        ):
            continue
        if block_n == 256 and limits.shared_memory < _LARGE_SHARED and not limits.is_rocm:
            continue  # no asynchronous matrix units: accumulators and operands compete for registers
        if block_n == 256 and limits.is_rocm and structure.num_tensors > 4:
            continue  # not enough registers for the operands' inputs
        if uses_scalar_units and (
            block_n == 256 or (block_m * block_n == 128 * 128 and structure.num_tensors > 4)
        ):
            continue
        num_tiles = _num_tiles(structure, MatmulConfig(block_m, block_n, block_k))
        is_small = (block_m, block_n) == (64, 64) or block_m < 64
        # Where few tiles are no reason for smaller ones, terms are split; threads have more to hold.
        is_wide = structure.is_convolution or structure.per_byte > 0
        if num_tiles < _NUM_MULTIPROCESSORS and not is_small and not is_wide:
            continue
        has_eight_warps = block_m * block_n >= (64 * 128 if uses_scalar_units or is_wide else 128 * 128)
        warps = 8 if has_eight_warps else 4
        max_stages = 2 if limits.is_rocm else 3 if warps == 8 else 4
        group = 1 if structure.is_convolution else 8  # all weights fit into the L2 cache
        for stages in range(max_stages, 1, -1):
            config = MatmulConfig(block_m, block_n, block_k, warps, stages, group=group)
            if _shared_bytes(structure, config, limits) > limits.shared_memory:
                continue
            split = _select_split(structure, config, limits)
            config = dataclasses.replace(config, split=split)
            places = _count_places(structure, config, limits)
            use = split * num_tiles / (-(-split * num_tiles // places) * places)
            if structure.is_convolution and not is_small and use < _MIN_USE:
                break
            if limits.has_tma and structure.num_tma_operands == 2:
                # Persistent programs load the next tile while they compute the end of this one.
                is_persistent = split == 1 and num_tiles > limits.multiprocessors
                programs = limits.multiprocessors if is_persistent else 0
                return dataclasses.replace(config, programs=programs, descriptors=True)
            return config
    return MatmulConfig(structure.min_rows, 16, block_k, 4, 2)


def _count_places(structure: MatmulStructure, config: MatmulConfig, limits: Limits) -> int:
    """Return how many programs run at once, by an estimate of what a multiprocessor has room for."""
    threads = config.warps * limits.warp_size
    # A thread holds its sums, and addresses in some 48 registers.
    by_registers = limits.registers // (threads * (48 + config.block_m * config.block_n // threads))
    reserved = 0 if limits.is_rocm else 1 << 10  # bytes of shared memory per program
    shared_memory = _shared_bytes(structure, config, limits) + reserved
    return limits.multiprocessors * max(
        min(by_registers, (limits.shared_memory + reserved) // shared_memory), 1
    )


def _select_split(structure: MatmulStructure, config: MatmulConfig, limits: Limits) -> int:
    """Return how many programs share the terms of a tile: as many as run at once, if tiles are few."""
    num_tiles = max(_num_tiles(structure, config), 1)
    places = _count_places(structure, config, limits)
    if 2 * num_tiles > (places if structure.is_weight_gradient else limits.multiprocessors):
        return 1
    return max(min(places // num_tiles, structure.terms // _MIN_TERMS_PER_SPLIT, _MAX_SPLITS), 1)


def neighbouring_configs(structure: MatmulStructure, limits: Limits = HOPPER) -> list[MatmulConfig]:
    """Return block sizes to measure: the selected ones, then those that differ in one size, then in two.

    Those that differ in at most one size may also have persistent programs, load by descriptor, or both, or
    neither.
    """
    selected = select_config(structure, limits)
    # Persistent programs pay off only if loads of the next tile overlap the epilogue of this one, which
    # takes asynchronous units.
    persistent: dict[str, Any] = {"programs": limits.multiprocessors, "descriptors": False}
    modes: list[dict[str, Any]] = [{"programs": 0, "descriptors": False}]
    modes += [] if limits.is_rocm else [persistent]
    # With one operand by TMA and one computed in registers, 0.1 % of the elements are wrong on an H100 with
    # three or more stages (Triton 3.6): the next copy seems to arrive before the multiplication has ended.
    if limits.has_tma and structure.num_tma_operands == 2:
        modes += [{**mode, "descriptors": True} for mode in modes]
    steps = [*_STEPS, {"stages": 1}, {"stages": -1}]
    pairs = [a | b for a, b in itertools.combinations(_STEPS, 2) if not a.keys() & b.keys()]
    changed = [scale_sizes(selected, step) for step in steps]
    changed += [dataclasses.replace(selected, group=group) for group in (4, 16)]
    nearest = [selected, *(dataclasses.replace(selected, **mode) for mode in modes), *changed]
    nearest += [dataclasses.replace(config, **mode) for config in changed for mode in modes]
    configs = {selected: None}
    for candidate in [*nearest, *(scale_sizes(selected, pair) for pair in pairs)]:
        config = candidate
        if selected.split > 1 and config.split == selected.split:  # other tiles fill the device otherwise
            config = dataclasses.replace(config, split=_select_split(structure, config, limits))
        fits = (
            config.block_m >= structure.min_rows
            and config.block_n >= 16
            and structure.min_terms <= config.block_k <= 2 * (structure.max_terms or 256)
            and config.block_m * config.block_n <= 2 * math.prod(structure.tiles[0])
            and 2 <= config.warps <= 16
            and config.stages <= 6
        )
        is_covered = (
            config.block_m <= max(2 * structure.rows, 16)
            and config.block_n <= max(2 * structure.columns, 16)
            and config.block_k <= max(2 * structure.terms, structure.min_terms)
        )
        if config.programs and config.split * _num_tiles(structure, config) <= config.programs:
            continue  # every tile has a program already
        if (
            fits
            and is_covered
            and config.split <= _MAX_SPLITS
            and config.split * config.block_k <= max(structure.terms, config.block_k)
        ):
            configs[config] = None
    return list(configs)


def configs_to_measure(structure: MatmulStructure, limits: Limits = HOPPER) -> list[MatmulConfig]:
    """Return block sizes of a kernel written by hand: the selected ones, then the nearest that fit."""
    nearest = neighbouring_configs(structure, limits)
    found = [config for config in nearest if why_too_large(structure, config, limits) is None]
    return found[:_MAX_CANDIDATES] or [select_config(structure, limits)]


def _num_tiles(structure: MatmulStructure, config: MatmulConfig) -> int:
    return structure.batches * -(-structure.rows // config.block_m) * -(-structure.columns // config.block_n)


def why_too_large(structure: MatmulStructure, config: MatmulConfig, limits: Limits) -> str | None:
    """Return why these block sizes cannot be fast on a device, or None. An estimate: nothing is compiled.

    >>> why_too_large(MatmulStructure(1, 4096, 4096, 4096, 4), MatmulConfig(256, 256, 64, 8, 4), Limits(132))
    '272 registers per thread, of 255 available'
    """
    threads = config.warps * limits.warp_size
    registers = 16 + config.block_m * config.block_n // threads
    if structure.per_byte:
        registers += config.block_n * config.block_k // threads
    available = min(limits.max_registers, limits.registers // threads)
    if registers > available:
        return f"{registers} registers per thread, of {available} available"
    shared_memory = _shared_bytes(structure, config, limits)
    if shared_memory > limits.shared_memory:
        return f"{shared_memory} bytes of shared memory, of {limits.shared_memory} available"
    return None


def _shared_bytes(structure: MatmulStructure, config: MatmulConfig, limits: Limits) -> int:
    """Return the bytes of shared memory: the tiles of both operands, for each iteration in flight.

    A packed tile is decoded, and may be written once more.
    """
    stages = max(config.stages - limits.is_rocm, 1)
    left, right = (n * config.block_k * structure.itemsize for n in (config.block_m, config.block_n))
    if structure.per_byte:
        return stages * (left + config.block_n * config.block_k // structure.per_byte) + right
    return (left + right) * stages
