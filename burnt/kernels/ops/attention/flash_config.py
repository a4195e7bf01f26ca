"""Block sizes of flash attention in Triton: what is picked without measuring, and what else may be better."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

from burnt.codegen.render.triton.tile_config import Limits, next_power_of_two

__all__ = ["KERNELS", "FlashConfig", "configs", "select_config"]

KERNELS = ("forward", "dots", "keys", "queries")


@dataclasses.dataclass(frozen=True)
class FlashConfig:
    """Block sizes of a kernel.

    Args:
        m: queries of a tile.
        n: its keys.
        warps: of a program.
        stages: steps of its loop that are under way at once.

    >>> str(FlashConfig(128, 64, warps=8, stages=3)), FlashConfig.of("64x32 w4 s2")
    ('128x64 w8 s3', FlashConfig(m=64, n=32, warps=4, stages=2))
    """

    m: int
    n: int
    warps: int = 4
    stages: int = 2

    def __str__(self) -> str:
        return f"{self.m}x{self.n} w{self.warps} s{self.stages}"

    @classmethod
    def of(cls, text: str) -> FlashConfig:
        """The block sizes that a text names.

        Raises:
            ValueError: it names none.
        """
        found = re.fullmatch(r"(\d+)x(\d+) w(\d+) s(\d+)", text)
        if found is None:
            raise ValueError(f"block sizes {text!r}: expected such as '128x64 w8 s3'")
        return cls(*map(int, found.groups()))


# By kernel: for the wider of a head's sizes in keys and values, at most this, block sizes. Found by compiling
# for the targets: the largest tiles of a few that leave all in registers and shared memory. RDNA's wide heads
# do not fit even into the smallest ones, and spill: tests/codegen/render/triton/spills.txt lists what does.
# What carries more beside a tile of scores has rows of its own where the others would spill: `added` for a
# mask that is added, `scored` for a function of the scores.
_Table = dict[str, dict[int, FlashConfig]]
_HOPPER: _Table = {  # and what comes after: products of several warps at once, read from shared memory
    "forward": {
        64: FlashConfig(128, 64, 8, 3),
        128: FlashConfig(128, 64, 8, 3),
        256: FlashConfig(64, 32, 8, 2),
    },
    "keys": {64: FlashConfig(64, 128, 8, 2), 128: FlashConfig(32, 128, 8, 2), 256: FlashConfig(16, 32, 8, 2)},
    "queries": {
        64: FlashConfig(128, 64, 8, 3),
        128: FlashConfig(128, 64, 8, 2),
        256: FlashConfig(32, 16, 4, 1),
    },
}
_AMPERE: _Table = {
    "forward": {
        64: FlashConfig(128, 64, 8, 3),
        128: FlashConfig(128, 64, 8, 3),
        256: FlashConfig(64, 32, 8, 2),
    },
    "forward, added": {64: FlashConfig(128, 32, 8, 3), 128: FlashConfig(128, 32, 8, 3)},
    "keys": {64: FlashConfig(32, 64, 4, 2), 128: FlashConfig(32, 64, 8, 2), 256: FlashConfig(16, 32, 8, 1)},
    "queries": {
        64: FlashConfig(128, 64, 8, 3),
        128: FlashConfig(64, 32, 4, 2),
        256: FlashConfig(32, 16, 4, 1),
    },
}
_CDNA: _Table = {
    "forward": {
        64: FlashConfig(128, 64, 4, 1),
        128: FlashConfig(128, 32, 4, 1),
        256: FlashConfig(32, 32, 4, 1),
    },
    "keys": {64: FlashConfig(32, 64, 4, 1), 128: FlashConfig(32, 64, 4, 1), 256: FlashConfig(16, 16, 4, 1)},
    "queries": {
        64: FlashConfig(64, 32, 4, 1),
        128: FlashConfig(64, 32, 4, 1),
        256: FlashConfig(16, 16, 4, 1),
    },
}
_RDNA: _Table = {
    "forward": {
        64: FlashConfig(128, 64, 8, 1),
        128: FlashConfig(64, 32, 8, 1),
        256: FlashConfig(16, 16, 8, 1),
    },
    "forward, added": {128: FlashConfig(64, 32, 16, 1)},
    "keys": {64: FlashConfig(32, 32, 8, 1), 128: FlashConfig(16, 16, 8, 2), 256: FlashConfig(16, 16, 8, 2)},
    "keys, scored": {64: FlashConfig(16, 32, 8, 1)},
    "queries": {
        64: FlashConfig(64, 32, 8, 1),
        128: FlashConfig(32, 16, 8, 1),
        256: FlashConfig(16, 16, 8, 1),
    },
    "queries, added": {128: FlashConfig(32, 16, 16, 2)},
}
_FLOAT32: _Table = {
    "forward": {
        64: FlashConfig(64, 32, 8, 2),
        128: FlashConfig(32, 16, 8, 1),
        256: FlashConfig(16, 16, 8, 1),
    },
    "keys": {64: FlashConfig(32, 32, 8, 1), 128: FlashConfig(16, 16, 8, 1), 256: FlashConfig(16, 16, 8, 2)},
    "queries": {
        64: FlashConfig(32, 32, 4, 1),
        128: FlashConfig(32, 16, 8, 1),
        256: FlashConfig(16, 16, 8, 1),
    },
}
_CDNA_FLOAT32: _Table = {  # 4 warps have twice the registers of 8 each
    "forward": _FLOAT32["forward"],
    "keys": _FLOAT32["keys"] | {256: FlashConfig(16, 16, 4, 1)},
    "queries": _FLOAT32["queries"] | {256: FlashConfig(16, 16, 4, 1)},
}
_RDNA_FLOAT32: _Table = {  # which has no matrix products of float32: all terms are in registers
    "forward": {
        64: FlashConfig(32, 16, 8, 1),
        128: FlashConfig(16, 16, 8, 1),
        256: FlashConfig(16, 16, 8, 1),
    },
    "keys": {64: FlashConfig(16, 16, 8, 1), 128: FlashConfig(16, 16, 8, 1), 256: FlashConfig(16, 16, 8, 1)},
    "queries": {
        64: FlashConfig(16, 16, 8, 1),
        128: FlashConfig(16, 16, 16, 1),
        256: FlashConfig(16, 16, 16, 1),
    },
}
_LARGE_SHARED = 200 << 10


def select_config(
    size: int, itemsize: int, limits: Limits, *, added: bool = False, scored: bool = False
) -> dict[str, FlashConfig]:
    """Block sizes of all kernels, without measuring.

    Args:
        size: the wider of a head's sizes in keys and in values, 256 at most.
        itemsize: bytes of an element.
        limits: what the device has.
        added: whether a mask is added to the scores.
        scored: whether there is a function of them.

    >>> select_config(128, 2, Limits(132, shared_memory=227 << 10))["forward"]
    FlashConfig(m=128, n=64, warps=8, stages=3)
    """
    rdna = limits.is_rocm and limits.warp_size == 32
    if itemsize == 4:
        table = _RDNA_FLOAT32 if rdna else _CDNA_FLOAT32 if limits.is_rocm else _FLOAT32
    elif limits.is_rocm:
        table = _RDNA if rdna else _CDNA
    else:
        table = _HOPPER if limits.shared_memory >= _LARGE_SHARED else _AMPERE
    width = next(known for known in (64, 128, 256) if size <= known)
    found = {"dots": FlashConfig(16 if itemsize == 4 else 32, 16, 4, 1)}
    kinds = [kind for kind, present in (("added", added), ("scored", scored)) if present]
    for kernel in ("forward", "keys", "queries"):
        blocks = table[kernel][width]
        for kind in kinds:
            blocks = table.get(f"{kernel}, {kind}", {}).get(width, blocks)
        while blocks.stages > 1 and shared(kernel, blocks, width, itemsize) > limits.shared_memory:
            blocks = dataclasses.replace(blocks, stages=blocks.stages - 1)
        found[kernel] = blocks
    return found


def shared(kernel: str, blocks: FlashConfig, width: int, itemsize: int) -> int:
    """Bytes of shared memory, about: what stays, and what is read ahead for each step under way."""
    stays, moves = (blocks.n, blocks.m) if kernel == "keys" else (blocks.m, blocks.n)
    there = 1 if kernel == "forward" else 2
    return (there * stays + 2 * moves * blocks.stages) * next_power_of_two(width) * itemsize


def held(kernel: str, blocks: FlashConfig, width: int) -> int:
    """Numbers that a program holds for certain: a tile of scores, and the sums that it adds to."""
    sums = blocks.n * 2 * width if kernel == "keys" else blocks.m * width
    return sums + blocks.m * blocks.n


def configs(
    size: int,
    itemsize: int,
    limits: Limits,
    kernels: Sequence[str] = ("forward", "keys", "queries"),
    *,
    added: bool = False,
    scored: bool = False,
) -> list[dict[str, str]]:
    """Block sizes worth measuring, as the tuner's table has them: the picked ones, then others of one kernel.

    The kernels take turns, so that as many of each are among the first few.

    Args:
        size: the wider of a head's sizes in keys and in values, 256 at most.
        itemsize: bytes of an element.
        limits: what the device has.
        kernels: those that run; the others' block sizes are the picked ones.
        added: as for `select_config`.
        scored: as for `select_config`.

    >>> configs(64, 2, Limits(132, shared_memory=227 << 10))[0]["forward"]
    '128x64 w8 s3'
    """
    picked = select_config(size, itemsize, limits, added=added, scored=scored)
    others: list[list[dict[str, FlashConfig]]] = []
    for kernel in kernels:
        own = picked[kernel]
        others.append([])
        for change in (
            {"n": own.n * 2}, {"n": own.n // 2}, {"m": own.m * 2}, {"m": own.m // 2},
            {"warps": own.warps * 2}, {"warps": own.warps // 2}, {"stages": own.stages + 1},
            {"stages": own.stages - 1},
        ):  # fmt: skip
            other = dataclasses.replace(own, **change)
            fits = min(other.m, other.n) >= 16 and max(other.m, other.n) <= 256 and other.stages >= 1
            room = shared(kernel, other, next_power_of_two(size), itemsize) <= limits.shared_memory
            threads = other.warps * limits.warp_size
            most = min(limits.max_registers, limits.registers // threads)
            room = room and held(kernel, other, next_power_of_two(size)) <= most * threads
            if fits and room and 2 <= other.warps <= 16 and other.stages <= 5:
                others[-1].append({**picked, kernel: other})
    turns = itertools.chain.from_iterable(itertools.zip_longest(*others))
    found = [picked, *(sizes for sizes in turns if sizes is not None)]
    return [{name: str(blocks) for name, blocks in sizes.items()} for sizes in found]
