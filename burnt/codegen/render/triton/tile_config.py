"""Block sizes of generated kernels without a matmul: the heuristic and the candidates for tuning.

`select_config` is a pure function that always answers. A tuner may replace its choice by one of
`neighbouring_configs`; `why_too_large` rules out those that a device cannot run well. Sizes are powers of
two.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import TypeVar

Config = TypeVar("Config")

# Programs that keep a large GPU busy: a few for each of its 80 to 300 multiprocessors.
_TARGET_PROGRAMS = 512
_MAX_CHUNKS = 128
_MAX_THREADS = 1024  # per program
_MAX_WARPS = 32
_MAX_ELEMENTS = 1 << 20  # per block, Triton's limit
# Longest row that is held at once. Longer ones spill registers, so they are processed in a loop.
_MAX_ROW_ELEMENTS = 16384
# Changes of one size, as powers of two; those that matter most often first.
_STEPS = (
    {"warps": 1}, {"cols": 1}, {"cols": -1}, {"warps": -1}, {"rows": 1}, {"rows": -1}, {"chunks": 1},
    {"chunks": -1}, {"cols": 2}, {"cols": -2}, {"rows": 2}, {"chunks": 2},
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TileStructure:
    """What the choice of block sizes depends on."""

    rows: int  # iterations of the loops whose rows a program may group into a tile
    cols: int  # the most elements that a row has
    programs: int  # iterations of the remaining loops, each with programs of its own
    has_inner_loop: bool  # whether there are reductions, scans or inner loops; else it is elementwise
    is_column_major: bool  # whether memory is contiguous along the rows instead of the columns
    num_tensors: int  # tensors that are read or written along the columns
    itemsize: int  # bytes of the smallest element that is read or written along the columns
    can_chunk: bool  # whether several programs may share a row
    row_chunks: int = 0  # programs among which the rows are divided, as each sums columns; 0 if they are not

    @property
    def work(self) -> int:
        """The number of elements processed, to compare kernels of a plan."""
        return self.rows * self.cols * self.programs


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """Block sizes of a kernel.

    The text is the format that tuning tables store.

    >>> str(TileConfig(4, 256, warps=8)), str(TileConfig(1, 4096, chunks=16))
    ('4x256 w8', '1x4096 w4 c16')
    >>> TileConfig.of("4x256 w8")
    TileConfig(rows=4, cols=256, warps=8, stages=2, chunks=1)
    """

    rows: int  # rows of a tile
    cols: int  # columns of a tile; longer rows are processed in a loop
    warps: int = 4  # warps of a program
    # Iterations of a loop in flight at once. Triton pipelines only the loads of matmul operands, so these
    # kernels compile to the same instructions for any value, and it is not tuned.
    stages: int = 2
    chunks: int = 1  # programs that share a row; a second function combines their partial results

    def __str__(self) -> str:
        chunks = f" c{self.chunks}" if self.chunks > 1 else ""
        return f"{self.rows}x{self.cols} w{self.warps}{chunks}"

    @property
    def options(self) -> dict[str, int]:
        """Triton's compile options.

        Fused multiply-add is off: two kernels that compute the same number must agree to the last bit,
        because an element is compared with a maximum that another kernel found.
        """
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": False}

    @classmethod
    def of(cls, text: str) -> TileConfig:
        """Parse block sizes; raises ValueError if no kernel could have them."""
        match = re.fullmatch(r"(\d+)x(\d+) w(\d+)(?: c(\d+))?", text)
        sizes = [int(size or 1) for size in match.groups()] if match is not None else [0]
        if any(size < 1 or size != next_power_of_two(size) for size in sizes):
            raise ValueError(f"block sizes {text!r}: expected powers of two, such as '4x256 w8 c2'")
        rows, cols, warps, chunks = sizes
        if rows * cols > _MAX_ELEMENTS or warps > _MAX_WARPS or chunks > _MAX_CHUNKS:
            raise ValueError(f"block sizes {text!r}: too large for a program on any GPU")
        return cls(rows, cols, warps, chunks=chunks)


@dataclasses.dataclass(frozen=True)
class Limits:
    """A device's resources."""

    multiprocessors: int  # number of multiprocessors
    registers: int = 1 << 16  # 32-bit registers of a multiprocessor
    max_registers: int = 255  # most registers that a thread may have
    shared_memory: int = 99 << 10  # bytes of shared memory that a program may have
    warp_size: int = 32  # threads of a warp
    is_rocm: bool = False  # whether it is an AMD device, where one iteration fewer of a loop is in flight
    has_tma: bool = False  # whether it has units that copy tiles by tensor descriptor (TMA)


def select_config(structure: TileStructure) -> TileConfig:
    """Select block sizes for a kernel by heuristic, without measuring.

    >>> select_config(TileStructure(4096, 1024, 1, has_inner_loop=True, is_column_major=False,
    ...                             num_tensors=1, itemsize=4, can_chunk=True))
    TileConfig(rows=1, cols=1024, warps=4, stages=2, chunks=1)
    """
    rows, cols = next_power_of_two(structure.rows), next_power_of_two(structure.cols)
    if not structure.has_inner_loop:
        return _select_elementwise(structure, rows, cols)
    if structure.is_column_major:
        # At least 128 contiguous bytes per column, with several columns in flight.
        height = min(rows, max(32, 128 // structure.itemsize))
        width = min(cols, 2048 // height)
        height = min(rows, 2048 // width)
        return TileConfig(
            height, width, _num_warps(height * width), chunks=_num_chunks(structure, height, width)
        )
    if structure.row_chunks:
        height = min(next_power_of_two(-(-structure.rows // structure.row_chunks)), max(4096 // cols, 1))
        return TileConfig(height, cols, _num_warps(height * cols))
    max_cols = _MAX_ROW_ELEMENTS
    for count in (2, 4):
        max_cols = max_cols // 2 if structure.num_tensors > count else max_cols
    if cols <= max_cols:
        height = min(rows, max(1024 // cols, 1))
        return TileConfig(height, cols, _num_warps(height * cols), chunks=1)
    width = max_cols // 4
    return TileConfig(1, width, _num_warps(width), chunks=_num_chunks(structure, 1, width))


def _select_elementwise(structure: TileStructure, rows: int, cols: int) -> TileConfig:
    block = 2048 if structure.itemsize == 1 else 1024
    if structure.is_column_major:
        # A square tile reads whole cache lines in both memory orders; taller where there are few columns.
        width = min(cols, block // min(rows, 32))
        return TileConfig(min(rows, block // width), width)
    width = min(cols, block)
    return TileConfig(min(rows, block // width), width)


def _num_chunks(structure: TileStructure, height: int, width: int) -> int:
    """Return how many programs share a row: enough to keep a GPU busy, each with a few iterations."""
    if not structure.can_chunk:
        return 1
    programs = structure.programs * -(-structure.rows // height)
    chunks = min(_TARGET_PROGRAMS // max(programs, 1), structure.cols // (4 * width), _MAX_CHUNKS)
    return 1 if chunks < 2 else next_power_of_two(chunks + 1) // 2


def _num_warps(elements: int) -> int:
    """Return the warps for a tile: 8 elements per thread, up to 16 for larger tiles."""
    return (
        min(max(next_power_of_two(elements) // 256, 1), 4) if elements <= 2048 else min(elements // 512, 16)
    )


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


# --- candidates for tuning --------------------------------------------------------------------------------


def neighbouring_configs(structure: TileStructure) -> list[TileConfig]:
    """Return block sizes to measure: the selected ones, then those that differ in one size, then in two.

    >>> [str(v) for v in neighbouring_configs(TileStructure(4096, 1024, 1, True, False, 1, 4, True))][:4]
    ['1x1024 w4', '1x1024 w8', '1x512 w4', '1x1024 w2']
    """
    selected = select_config(structure)
    pairs = [a | b for a, b in itertools.combinations(_STEPS, 2) if not a.keys() & b.keys()]
    configs = {selected: None}
    for changes in [*_STEPS, *pairs]:
        config = _clamp_config(structure, scale_sizes(selected, changes))
        if config is not None:
            configs[config] = None
    return list(configs)


def scale_sizes(config: Config, changes: Mapping[str, int]) -> Config:
    """Change sizes by powers of two, the number of stages by one."""
    sizes: dict[str, int] = {}
    for size, change in changes.items():
        value: int = getattr(config, size)
        if size == "stages":
            value += change
        else:
            value = value << change if change > 0 else value >> -change
        sizes[size] = max(value, 1)
    return dataclasses.replace(config, **sizes)  # type: ignore[type-var]


def change_each_size(config: Config, *sizes: str) -> list[Config]:
    """Return configs that differ in one size: twice or half of it, one stage more or less."""
    return [scale_sizes(config, {size: change}) for size in sizes for change in (1, -1)]


def change_sizes(config: Config, *sizes: str) -> list[Config]:
    """Return the configs of `change_each_size`, then those that differ in two sizes."""
    steps = [{size: change} for size in sizes for change in (1, -1)]
    pairs = [a | b for a, b in itertools.combinations(steps, 2) if not a.keys() & b.keys()]
    return [scale_sizes(config, changes) for changes in [*steps, *pairs]]


def _clamp_config(structure: TileStructure, config: TileConfig) -> TileConfig | None:
    """Limit block sizes to the kernel's extents; None where programs would be idle."""
    rows, cols = (
        min(config.rows, next_power_of_two(structure.rows)),
        min(config.cols, next_power_of_two(structure.cols)),
    )
    if structure.row_chunks:
        cols = next_power_of_two(structure.cols)
        rows = min(rows, next_power_of_two(-(-structure.rows // structure.row_chunks)))
    is_chunked = config.chunks > 1
    has_idle_programs = is_chunked and (
        not structure.can_chunk or config.chunks > _MAX_CHUNKS or cols * config.chunks > structure.cols
    )
    if has_idle_programs or config.warps > _MAX_WARPS:
        return None
    return dataclasses.replace(config, rows=rows, cols=cols)


def why_too_large(structure: TileStructure, config: TileConfig, limits: Limits) -> str | None:
    """Return why these block sizes cannot be fast on a device, or None. An estimate: nothing is compiled.

    >>> why_too_large(TileStructure(4096, 16384, 1, True, False, 4, 2, False), TileConfig(1, 16384, 4),
    ...               Limits(132))
    '336 registers per thread, of 255 available'
    """
    threads = config.warps * limits.warp_size
    if threads > _MAX_THREADS:
        return f"{threads} threads, of {_MAX_THREADS} allowed"
    registers = _registers_per_thread(structure, config, limits)
    available = min(limits.max_registers, limits.registers // threads)
    if registers > available:
        return f"{registers} registers per thread, of {available} available"
    shared_memory = _shared_bytes(structure, config)
    if shared_memory > limits.shared_memory:
        return f"{shared_memory} bytes of shared memory, of {limits.shared_memory} available"
    programs = _num_programs(structure, config)
    if programs < min(limits.multiprocessors, _num_programs(structure, select_config(structure))):
        return f"{programs} programs for {limits.multiprocessors} multiprocessors"
    return None


def _registers_per_thread(structure: TileStructure, config: TileConfig, limits: Limits) -> int:
    """Estimate the registers of a thread: its elements of all tensors live at once, and 16 for addresses.

    In an elementwise kernel all tensors are live; a reduction is done with half of them before it reads the
    others.
    """
    elements = min(config.rows, next_power_of_two(structure.rows)) * min(
        config.cols, next_power_of_two(structure.cols)
    )
    elements_per_thread = max(elements // (config.warps * limits.warp_size), 1)
    live_tensors = (structure.num_tensors + 1) / 2 if structure.has_inner_loop else structure.num_tensors
    return 16 + int(elements_per_thread * max(live_tensors, 1) * max(structure.itemsize // 4, 1))


def _shared_bytes(structure: TileStructure, config: TileConfig) -> int:
    """Estimate the shared memory: what warps exchange in a reduction, or a tile that is transposed."""
    rows, cols = (
        min(config.rows, next_power_of_two(structure.rows)),
        min(config.cols, next_power_of_two(structure.cols)),
    )
    size = max(structure.itemsize, 4)
    return (
        rows * config.warps * size
        if structure.has_inner_loop
        else rows * cols * size * structure.is_column_major
    )


def _num_programs(structure: TileStructure, config: TileConfig) -> int:
    if structure.row_chunks:
        return structure.row_chunks
    programs = structure.programs * -(-structure.rows // config.rows)
    return programs * (config.chunks if structure.has_inner_loop else -(-structure.cols // config.cols))
