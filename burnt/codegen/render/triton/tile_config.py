"""Block sizes of generated Triton kernels: what a kernel looks like, and what is picked for it.

`select_config` is a pure function that always answers; a tuner may take one of `neighbouring_configs` in its
place, of which `why_too_large` leaves out what a device has no room for. Sizes are powers of two.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

__all__ = [
    "Limits",
    "TileConfig",
    "TileStructure",
    "neighbouring_configs",
    "next_power_of_two",
    "select_config",
    "why_too_large",
]

# Programs that keep a large GPU busy: a few for each of its 80 to 300 multiprocessors.
_PROGRAMS = 512
_MOST_CHUNKS = 128
_MOST_THREADS = 1024  # of a program
_MOST_WARPS = 32
_MOST_ELEMENTS = 1 << 20  # of a block, for Triton
# The most elements of a row that are held at once. Beyond, registers spill: the row is walked in steps.
_WHOLE_ROW = 16384
# Changes of one size, by powers of two, those that matter more often first.
_STEPS = (
    {"warps": 1}, {"cols": 1}, {"cols": -1}, {"warps": -1}, {"rows": 1}, {"rows": -1}, {"chunks": 1},
    {"chunks": -1}, {"cols": 2}, {"cols": -2}, {"rows": 2}, {"chunks": 2},
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TileStructure:
    """What the choice of block sizes depends on.

    Args:
        rows: turns of the loops that a program may take several of.
        cols: elements that a turn walks along, at the most.
        programs: turns of further loops, each a program's own.
        folds: whether elements of a turn are folded.
        across: memory runs along the rows, not along what a turn walks.
        tiles: tensors that are read along the walk.
        itemsize: bytes of the smallest element that is read or written along it.
        chunks: whether a turn may be shared by several programs.
    """

    rows: int
    cols: int
    programs: int
    folds: bool
    across: bool
    tiles: int
    itemsize: int
    chunks: bool

    @property
    def work(self) -> int:
        """Elements that are gone through: what kernels of a plan are weighed by."""
        return self.rows * self.cols * self.programs


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """Block sizes of a kernel.

    Args:
        rows: turns that a program takes together.
        cols: elements along the walk that it takes at once; where a turn has more, it loops.
        warps: warps of a program.
        stages: how many steps of a loop are under way at once. Triton does that for the operands of matrix
            products alone: these kernels have the same instructions whatever it is, so it is not tuned.
        chunks: programs that share a turn; their parts are folded by a second kernel.

    Its text is what tables of measured kernels hold.

    >>> str(TileConfig(4, 256, warps=8)), str(TileConfig(1, 4096, chunks=16))
    ('4x256 w8', '1x4096 w4 c16')
    >>> TileConfig.of("4x256 w8")
    TileConfig(rows=4, cols=256, warps=8, stages=2, chunks=1)
    """

    rows: int
    cols: int
    warps: int = 4
    stages: int = 2
    chunks: int = 1

    def __str__(self) -> str:
        chunks = f" c{self.chunks}" if self.chunks > 1 else ""
        return f"{self.rows}x{self.cols} w{self.warps}{chunks}"

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told besides the block sizes.

        Nothing is contracted: a number that two kernels compute must be the same in both, since a maximum is
        looked for among such.
        """
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": False}

    @classmethod
    def of(cls, text: str) -> TileConfig:
        """The block sizes that a text names.

        Raises:
            ValueError: it names none that a kernel could have.
        """
        found = re.fullmatch(r"(\d+)x(\d+) w(\d+)(?: c(\d+))?", text)
        sizes = [int(size or 1) for size in found.groups()] if found is not None else [0]
        if any(size < 1 or size != next_power_of_two(size) for size in sizes):
            raise ValueError(f"block sizes {text!r}: expected powers of two, as in '4x256 w8 c2'")
        rows, cols, warps, chunks = sizes
        if rows * cols > _MOST_ELEMENTS or warps > _MOST_WARPS or chunks > _MOST_CHUNKS:
            raise ValueError(f"block sizes {text!r}: more than a program of any GPU can have")
        return cls(rows, cols, warps, chunks=chunks)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a device has for programs.

    Args:
        multiprocessors: how many run programs at once.
        registers: of 32 bits, of a multiprocessor.
        own: of these, the most that a thread may have.
        shared: bytes that a program may share among its threads.
        lanes: threads of a warp.
        rocm: whether it is one of AMD's, where fewer steps of a loop are under way at once.
        copies: whether it has units that copy tiles by themselves, as a tensor descriptor tells them (TMA).
        specializes: whether its compiler can have some warps of a program copy while others multiply.
    """

    multiprocessors: int
    registers: int = 1 << 16
    own: int = 255
    shared: int = 99 << 10
    lanes: int = 32
    rocm: bool = False
    copies: bool = False
    specializes: bool = False


def select_config(form: TileStructure) -> TileConfig:
    """Block sizes for a kernel, without measuring.

    >>> select_config(TileStructure(4096, 1024, 1, folds=True, across=False, tiles=1, itemsize=4,
    ...                             chunks=True))
    TileConfig(rows=1, cols=1024, warps=4, stages=2, chunks=1)
    """
    rows, cols = next_power_of_two(form.rows), next_power_of_two(form.cols)
    if not form.folds:
        return _elementwise(form, rows, cols)
    if form.across:
        # 128 bytes of each line of memory at least, and some lines under way.
        height = min(rows, max(32, 128 // form.itemsize))
        width = min(cols, 2048 // height)
        height = min(rows, 2048 // width)
        return TileConfig(height, width, _warps(height * width), chunks=_chunks(form, height, width))
    limit = _WHOLE_ROW
    for tiles in (2, 4):
        limit = limit // 2 if form.tiles > tiles else limit
    if cols <= limit:
        height = min(rows, max(1024 // cols, 1))
        return TileConfig(height, cols, _warps(height * cols), chunks=1)
    width = limit // 4
    return TileConfig(1, width, _warps(width), chunks=_chunks(form, 1, width))


def _elementwise(form: TileStructure, rows: int, cols: int) -> TileConfig:
    block = 2048 if form.itemsize == 1 else 1024
    if form.across:
        # A square, so that both walks of memory take whole lines; taller where there are few columns.
        width = min(cols, block // min(rows, 32))
        return TileConfig(min(rows, block // width), width)
    width = min(cols, block)
    return TileConfig(min(rows, block // width), width)


def _chunks(form: TileStructure, height: int, width: int) -> int:
    """Programs for a turn: as many as keep a GPU busy, each with a few steps to walk."""
    if not form.chunks:
        return 1
    programs = form.programs * -(-form.rows // height)
    wanted = min(_PROGRAMS // max(programs, 1), form.cols // (4 * width), _MOST_CHUNKS)
    return 1 if wanted < 2 else next_power_of_two(wanted + 1) // 2


def _warps(elements: int) -> int:
    """8 elements for each thread, up to 16 for larger tiles."""
    return (
        min(max(next_power_of_two(elements) // 256, 1), 4) if elements <= 2048 else min(elements // 512, 16)
    )


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(size - 1, 0).bit_length()


# --- other sizes than the picked ones ---------------------------------------------------------------------


def neighbouring_configs(form: TileStructure) -> list[TileConfig]:
    """Block sizes worth measuring: the picked ones, then those that differ in one size, then in two.

    >>> [str(v) for v in neighbouring_configs(TileStructure(4096, 1024, 1, True, False, 1, 4, True))][:4]
    ['1x1024 w4', '1x1024 w8', '1x512 w4', '1x1024 w2']
    """
    picked = select_config(form)
    pairs = [a | b for a, b in itertools.combinations(_STEPS, 2) if not a.keys() & b.keys()]
    found = {picked: None}
    for changes in [*_STEPS, *pairs]:
        sizes = {size: _moved(getattr(picked, size), by) for size, by in changes.items()}
        made = _fitting(form, dataclasses.replace(picked, **sizes))
        if made is not None:
            found[made] = None
    return list(found)


def _moved(size: int, by: int) -> int:
    return size << by if by > 0 else max(size >> -by, 1)


def _fitting(form: TileStructure, config: TileConfig) -> TileConfig | None:
    """Block sizes no larger than what is walked; None where programs would have nothing to do."""
    rows, cols = (
        min(config.rows, next_power_of_two(form.rows)),
        min(config.cols, next_power_of_two(form.cols)),
    )
    chunked = config.chunks > 1
    idle = chunked and (not form.chunks or config.chunks > _MOST_CHUNKS or cols * config.chunks > form.cols)
    if idle or config.warps > _MOST_WARPS:
        return None
    return dataclasses.replace(config, rows=rows, cols=cols)


def why_too_large(form: TileStructure, config: TileConfig, limits: Limits) -> str | None:
    """Why these block sizes cannot be fast on a device, or None; estimated, nothing is compiled.

    >>> why_too_large(TileStructure(4096, 16384, 1, True, False, 4, 2, False), TileConfig(1, 16384, 4),
    ...               Limits(132))
    '336 registers a thread, where there are 255'
    """
    threads = config.warps * limits.lanes
    if threads > _MOST_THREADS:
        return f"{threads} threads, where there are {_MOST_THREADS}"
    registers = _registers(form, config, limits)
    most = min(limits.own, limits.registers // threads)
    if registers > most:
        return f"{registers} registers a thread, where there are {most}"
    shared = _shared(form, config)
    if shared > limits.shared:
        return f"{shared} bytes of shared memory, where there are {limits.shared}"
    programs = _programs(form, config)
    if programs < min(limits.multiprocessors, _programs(form, select_config(form))):
        return f"{programs} programs for {limits.multiprocessors} multiprocessors"
    return None


def _registers(form: TileStructure, config: TileConfig, limits: Limits) -> int:
    """Registers of a thread: for its elements of all tensors that live at once, and some for addresses.

    In an elementwise kernel all tensors do; folds are done with half of them before the others are read.
    """
    elements = min(config.rows, next_power_of_two(form.rows)) * min(config.cols, next_power_of_two(form.cols))
    each = max(elements // (config.warps * limits.lanes), 1)
    live = (form.tiles + 1) / 2 if form.folds else form.tiles
    return 16 + int(each * max(live, 1) * max(form.itemsize // 4, 1))


def _shared(form: TileStructure, config: TileConfig) -> int:
    """Bytes of shared memory: what warps hand each other of a fold, or a tile that is turned around."""
    rows, cols = (
        min(config.rows, next_power_of_two(form.rows)),
        min(config.cols, next_power_of_two(form.cols)),
    )
    size = max(form.itemsize, 4)
    return rows * config.warps * size if form.folds else rows * cols * size * form.across


def _programs(form: TileStructure, config: TileConfig) -> int:
    programs = form.programs * -(-form.rows // config.rows)
    return programs * (config.chunks if form.folds else -(-form.cols // config.cols))
