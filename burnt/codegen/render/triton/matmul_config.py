"""Block sizes of matrix products in Triton: what a product looks like, and what is picked for it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

from burnt.codegen.render.triton.tile_config import Limits, next_power_of_two

__all__ = [
    "HOPPER",
    "MatmulConfig",
    "MatmulStructure",
    "neighbouring_configs",
    "select_config",
    "why_too_large",
]

_PROGRAMS = 132  # that a large GPU runs at once, of this size
_LONG = 1024  # terms of a part, at the least
_MOST_SPLITS = 16
_LARGE_SHARED = 128 << 10
_TILE = 4096  # elements of a tile that a warp multiplies, at the most
_TEXT = re.compile(r"(\d+)x(\d+)x(\d+) w(\d+) s(\d+)(?: k(\d+))?(?: p(\d+))?( d)?( ws)?")
_STEPS = (
    {"bn": -1}, {"bm": -1}, {"bk": 1}, {"bk": -1}, {"warps": -1}, {"warps": 1}, {"bn": 1}, {"split": 1},
    {"bm": 1},
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MatmulStructure:
    """What the choice of block sizes depends on.

    Args:
        batches, rows, columns, terms: the sizes of the product.
        itemsize: bytes of a factor's element.
        read: tensors that the factors are made of.
        described: factors that lie in memory as a tensor descriptor can tell.
        least: rows of a tile.
        exact: factors of 32 bits or more are multiplied as they are (``ieee``).
    """

    batches: int
    rows: int
    columns: int
    terms: int
    itemsize: int
    read: int = 2
    described: int = 0
    least: int = 16
    exact: bool = False

    @property
    def work(self) -> int:
        """Elements that are gone through: what kernels of a plan are weighed by."""
        return self.batches * max(self.rows * self.terms, self.terms * self.columns, self.rows * self.columns)


@dataclasses.dataclass(frozen=True)
class MatmulConfig:
    """Block sizes of a product.

    Args:
        bm, bn, bk: rows and columns of a tile, and terms that are taken at once.
        warps: of a program.
        stages: steps that are under way at once.
        split: programs that share a tile's terms; their sums are added by a second kernel.
        group: rows of tiles that are gone through together.
        programs: that go through all tiles (*persistent*); 0 for one to each tile.
        descriptors: factors that a tensor descriptor can tell of are copied by units of their own (TMA).
        specialized: some warps copy, others multiply.

    >>> str(MatmulConfig(128, 256, 64, warps=8, stages=3))
    '128x256x64 w8 s3'
    >>> made = MatmulConfig.of("128x128x64 w4 s4 p132 d ws")
    >>> made.programs, made.descriptors, made.specialized
    (132, True, True)
    """

    bm: int
    bn: int
    bk: int
    warps: int = 4
    stages: int = 3
    split: int = 1
    group: int = 8
    programs: int = 0
    descriptors: bool = False
    specialized: bool = False

    def __str__(self) -> str:
        text = f"{self.bm}x{self.bn}x{self.bk} w{self.warps} s{self.stages}"
        text += f" k{self.split}" if self.split > 1 else ""
        text += f" p{self.programs}" if self.programs else ""
        return text + " d" * self.descriptors + " ws" * self.specialized

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told besides the block sizes; products go into their sums unrounded."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    @classmethod
    def of(cls, text: str) -> MatmulConfig:
        """The block sizes that a text names.

        Raises:
            ValueError: it names none that a product could have.
        """
        found = _TEXT.fullmatch(text)
        if found is not None:
            bm, bn, bk, warps, stages, split = (int(size or 1) for size in found.groups()[:6])
            programs, copied, specialized = found.groups()[6:]
            made = cls(bm, bn, bk, warps, stages, split)
            made = dataclasses.replace(
                made, programs=int(programs or 0), descriptors=bool(copied), specialized=bool(specialized)
            )
            if made.is_possible:
                return made
        raise ValueError(f"block sizes {text!r}: expected those of a product, as in '128x128x64 w8 s3'")

    @property
    def is_possible(self) -> bool:
        """Whether a program could have these sizes on any device."""
        blocks = self.bm, self.bn, self.bk
        powers = all(0 < size == next_power_of_two(size) for size in (*blocks, self.warps))
        return (
            powers
            and min(blocks) >= 16
            and self.bm * self.bn <= 1 << 17
            and self.bk <= 512
            and self.warps <= 32
            and 1 <= self.stages <= 8
            and self.split >= 1
            and self.programs < 1 << 16
            and (self.descriptors or not self.specialized)
        )


HOPPER = Limits(_PROGRAMS, shared=227 << 10, copies=True)


def select_config(form: MatmulStructure, limits: Limits = HOPPER) -> MatmulConfig:
    """Block sizes for a product, without measuring, that a device has room for.

    >>> str(select_config(MatmulStructure(1, 4096, 4096, 4096, itemsize=2)))
    '128x256x64 w8 s3'
    >>> str(select_config(MatmulStructure(1, 64, 64, 65536, itemsize=2)))
    '64x64x64 w4 s4 k16'
    >>> str(select_config(MatmulStructure(1, 4096, 4096, 4096, itemsize=4, exact=True)))
    '128x128x16 w8 s3'
    """
    # NVIDIA's and RDNA's devices have no matrix units for exact factors: a thread multiplies them one by one,
    # and holds what all terms of a step need. More than 16 terms or 64 sums a thread spill up to 6 KiB.
    scalar = form.exact and not (limits.rocm and limits.lanes == 64)
    bk = min(16 if scalar else 128 // form.itemsize, max(next_power_of_two(form.terms), 16))
    sizes = (128, 256), (128, 128), (64, 128), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16)
    for bm, bn in sizes:
        if bm // 2 >= form.rows or bn // 2 >= form.columns or bm < form.least:
            continue
        if bn == 256 and limits.shared < _LARGE_SHARED and not limits.rocm:
            continue  # such a device has no asynchronous units: sums and factors compete for registers
        if bn == 256 and limits.rocm and form.read > 4:
            continue  # nor registers for what factors are computed of
        if scalar and (bn == 256 or (bm * bn == 128 * 128 and form.read > 4)):
            continue
        tiles = form.batches * -(-form.rows // bm) * -(-form.columns // bn)
        small = (bm, bn) == (64, 64) or bm < 64
        if tiles < _PROGRAMS and not small:
            continue
        wanted = min(_PROGRAMS // max(tiles, 1), form.terms // _LONG, _MOST_SPLITS)
        split = 1 if wanted < 2 else next_power_of_two(wanted + 1) // 2
        warps = 8 if bm * bn >= (64 * 128 if scalar else 128 * 128) else 4
        most = 2 if limits.rocm else 3 if warps == 8 else 4
        for stages in range(most, 1, -1):
            made = MatmulConfig(bm, bn, bk, warps, stages, split)
            if _shared(form, made, limits) <= limits.shared:
                return made
    return MatmulConfig(form.least, 16, bk, 4, 2)


def neighbouring_configs(form: MatmulStructure, limits: Limits = HOPPER) -> list[MatmulConfig]:
    """Block sizes worth measuring: the picked ones, then those that differ in one size, then in two.

    Those with specialized warps come last: Triton's tracker has wrong results of them (issues 8311, 9728).
    """
    picked = select_config(form, limits)
    ways = _ways(form, limits)
    steps = [*_STEPS, {"stages": 1}, {"stages": -1}]
    pairs = [a | b for a, b in itertools.combinations(_STEPS, 2) if not a.keys() & b.keys()]
    nearest = [picked, *(way(picked) for way in ways)]
    changed = [_moved(picked, step) for step in steps]
    changed += [way(made) for made in changed for way in ways]
    found = {picked: None}
    for made in [*nearest, *changed, *(_moved(picked, pair) for pair in pairs)]:
        fits = (
            made.bm >= form.least
            and min(made.bn, made.bk) >= 16
            and 2 <= made.warps <= 16
            and made.stages <= 6
        )
        whole = made.bm <= 2 * form.rows and made.bn <= 2 * form.columns and made.bk <= 2 * form.terms
        if made.programs and made.split * _tiles(form, made) <= made.programs:
            continue  # there is a program for each tile
        if fits and whole and made.split <= _MOST_SPLITS and made.split * made.bk <= max(form.terms, made.bk):
            found[made] = None
    return sorted(found, key=lambda config: config.specialized)


def _ways(form: MatmulStructure, limits: Limits) -> list[Callable[[MatmulConfig], MatmulConfig]]:
    """Other ways than a program for each tile and loads through pointers."""

    def several(config: MatmulConfig) -> MatmulConfig:
        return dataclasses.replace(config, programs=limits.multiprocessors)

    def copied(config: MatmulConfig) -> MatmulConfig:
        return dataclasses.replace(config, descriptors=True)

    def specialized(config: MatmulConfig) -> MatmulConfig:
        # Hopper's compiler gives work of its own to 4 warps that multiply, and to no other number.
        # It halves tiles of 128 rows or 256 columns, which fails for 64 rows and in batches (Triton 3.7).
        bm = 64 if form.batches > 1 else max(config.bm, 64)
        bn = min(config.bn, (2 if bm == 64 else 4) * _TILE // bm)
        return dataclasses.replace(config, bm=bm, bn=bn, warps=4, descriptors=True, specialized=True)

    def several_specialized(config: MatmulConfig) -> MatmulConfig:
        # For Blackwell the compiler fails where programs also share the terms of their tiles (Triton 3.7).
        return specialized(config) if config.split > 1 else several(specialized(config))

    # Without asynchronous units nothing of the next tile is under way while one is finished.
    found: list[Callable[[MatmulConfig], MatmulConfig]] = [] if limits.rocm else [several]
    if limits.copies and form.described:
        found += [copied, lambda config: several(copied(config))]
        if form.described == 2 and limits.specializes:
            found += [specialized, several_specialized]
    return found


def _moved(config: MatmulConfig, changes: dict[str, int]) -> MatmulConfig:
    """With sizes changed by powers of two, stages one by one."""
    sizes: dict[str, Any] = {}
    for size, by in changes.items():
        now: int = getattr(config, size)
        sizes[size] = max(now + by if size == "stages" else now << by if by > 0 else now >> -by, 1)
    return dataclasses.replace(config, **sizes)


def _tiles(form: MatmulStructure, config: MatmulConfig) -> int:
    return form.batches * -(-form.rows // config.bm) * -(-form.columns // config.bn)


def why_too_large(form: MatmulStructure, config: MatmulConfig, limits: Limits) -> str | None:
    """Why these block sizes cannot be fast on a device, or None; estimated, nothing is compiled.

    >>> why_too_large(MatmulStructure(1, 4096, 4096, 4096, 4), MatmulConfig(256, 256, 64, 8, 4), Limits(132))
    '272 registers a thread, where there are 255'
    """
    threads = config.warps * limits.lanes
    registers = 16 + config.bm * config.bn // threads
    most = min(limits.own, limits.registers // threads)
    if registers > most:
        return f"{registers} registers a thread, where there are {most}"
    shared = _shared(form, config, limits)
    if shared > limits.shared:
        return f"{shared} bytes of shared memory, where there are {limits.shared}"
    return None


def _shared(form: MatmulStructure, config: MatmulConfig, limits: Limits) -> int:
    """Bytes of shared memory: the tiles of both factors, for each step that is under way."""
    steps = max(config.stages - limits.rocm, 1)
    return (config.bm + config.bn) * config.bk * form.itemsize * steps
