"""Block sizes of generated Triton kernels: what a kernel looks like, and what is picked for it.

`pick` is a pure function that always answers; a tuner may answer in its place. Sizes are powers of two.
"""

from __future__ import annotations

import dataclasses

__all__ = ["Config", "Form", "pick", "power"]

# Programs that keep a large GPU busy: a few for each of its 80 to 300 multiprocessors.
_PROGRAMS = 512
_MOST_CHUNKS = 128
# The most elements of a row that are held at once. Beyond, registers spill: the row is walked in steps.
_WHOLE_ROW = 16384


@dataclasses.dataclass(frozen=True)
class Form:
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


@dataclasses.dataclass(frozen=True)
class Config:
    """Block sizes of a kernel.

    Args:
        rows: turns that a program takes together.
        cols: elements along the walk that it takes at once; where a turn has more, it loops.
        warps: warps of a program.
        stages: how many steps of a loop are under way at once.
        chunks: programs that share a turn; their parts are folded by a second kernel.
    """

    rows: int
    cols: int
    warps: int = 4
    stages: int = 2
    chunks: int = 1


def pick(form: Form) -> Config:
    """Block sizes for a kernel, without measuring.

    >>> pick(Form(4096, 1024, 1, folds=True, across=False, tiles=1, itemsize=4, chunks=True))
    Config(rows=1, cols=1024, warps=4, stages=2, chunks=1)
    """
    rows, cols = power(form.rows), power(form.cols)
    if not form.folds:
        return _elementwise(form, rows, cols)
    if form.across:
        # 128 bytes of each line of memory at least, and some lines under way.
        height = min(rows, max(32, 128 // form.itemsize))
        width = min(cols, 2048 // height)
        height = min(rows, 2048 // width)
        return Config(height, width, _warps(height * width), chunks=_chunks(form, height, width))
    limit = _WHOLE_ROW
    for tiles in (2, 4):
        limit = limit // 2 if form.tiles > tiles else limit
    if cols <= limit:
        height = min(rows, max(1024 // cols, 1))
        return Config(height, cols, _warps(height * cols), chunks=1)
    width = limit // 4
    return Config(1, width, _warps(width), chunks=_chunks(form, 1, width))


def _elementwise(form: Form, rows: int, cols: int) -> Config:
    block = 2048 if form.itemsize == 1 else 1024
    if form.across:
        # A square, so that both walks of memory take whole lines.
        height = min(rows, 32)
        return Config(height, min(cols, block // height))
    width = min(cols, block)
    return Config(min(rows, block // width), width)


def _chunks(form: Form, height: int, width: int) -> int:
    """Programs for a turn: as many as keep a GPU busy, each with a few steps to walk."""
    if not form.chunks:
        return 1
    programs = form.programs * -(-form.rows // height)
    wanted = min(_PROGRAMS // max(programs, 1), form.cols // (4 * width), _MOST_CHUNKS)
    return 1 if wanted < 2 else power(wanted + 1) // 2


def _warps(elements: int) -> int:
    """8 elements for each thread, up to 16 for larger tiles."""
    return min(max(power(elements) // 256, 1), 4) if elements <= 2048 else min(elements // 512, 16)


def power(size: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(size - 1, 0).bit_length()
