"""Block sizes of matrix products in Triton: what a product looks like, and what is picked for it."""

from __future__ import annotations

import dataclasses
import itertools
import re

from burnt.codegen.triton_blocks import Limits, power

__all__ = ["HOPPER", "ProductConfig", "ProductForm", "pick", "too_much", "variants"]

_PROGRAMS = 132  # that a large GPU runs at once, of this size
_LONG = 1024  # terms of a part, at the least
_MOST_SPLITS = 16
_LARGE_SHARED = 128 << 10
_STEPS = (
    {"bn": -1}, {"bm": -1}, {"bk": 1}, {"bk": -1}, {"warps": -1}, {"warps": 1}, {"bn": 1}, {"split": 1},
    {"bm": 1},
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ProductForm:
    """What the choice of block sizes depends on.

    Args:
        batches, rows, columns, terms: the sizes of the product.
        itemsize: bytes of a factor's element.
        read: tensors that the factors are made of.
    """

    batches: int
    rows: int
    columns: int
    terms: int
    itemsize: int
    read: int = 2

    @property
    def work(self) -> int:
        """Elements that are gone through: what kernels of a plan are weighed by."""
        return self.batches * max(self.rows * self.terms, self.terms * self.columns, self.rows * self.columns)


@dataclasses.dataclass(frozen=True)
class ProductConfig:
    """Block sizes of a product.

    Args:
        bm, bn, bk: rows and columns of a tile, and terms that are taken at once.
        warps: of a program.
        stages: steps that are under way at once.
        split: programs that share a tile's terms; their sums are added by a second kernel.
        group: rows of tiles that are gone through together.
        programs: that go through all tiles (*persistent*); 0 for one to each tile.

    >>> str(ProductConfig(128, 256, 64, warps=8, stages=3))
    '128x256x64 w8 s3'
    >>> ProductConfig.of("64x64x32 w4 s4 k2")
    ProductConfig(bm=64, bn=64, bk=32, warps=4, stages=4, split=2, group=8, programs=0)
    """

    bm: int
    bn: int
    bk: int
    warps: int = 4
    stages: int = 3
    split: int = 1
    group: int = 8
    programs: int = 0

    def __str__(self) -> str:
        split = f" k{self.split}" if self.split > 1 else ""
        programs = f" p{self.programs}" if self.programs else ""
        return f"{self.bm}x{self.bn}x{self.bk} w{self.warps} s{self.stages}{split}{programs}"

    @classmethod
    def of(cls, text: str) -> ProductConfig:
        """The block sizes that a text names.

        Raises:
            ValueError: it names none that a product could have.
        """
        found = re.fullmatch(r"(\d+)x(\d+)x(\d+) w(\d+) s(\d+)(?: k(\d+))?(?: p(\d+))?", text)
        sizes = [int(size or 1) for size in found.groups()[:6]] if found is not None else [0] * 6
        bm, bn, bk, warps, stages, split = sizes
        programs = int(found.group(7) or 0) if found is not None else 0
        blocks = (bm, bn, bk, warps)
        fits = all(0 < size == power(size) for size in blocks) and min(bm, bn, bk) >= 16
        fits = fits and programs < 1 << 16
        if not (
            fits and bm * bn <= 1 << 17 and bk <= 512 and warps <= 32 and 1 <= stages <= 8 and split >= 1
        ):
            raise ValueError(f"block sizes {text!r}: expected those of a product, as in '128x128x64 w8 s3'")
        return cls(bm, bn, bk, warps, stages, split, programs=programs)


HOPPER = Limits(_PROGRAMS, shared=227 << 10)


def pick(form: ProductForm, limits: Limits = HOPPER) -> ProductConfig:
    """Block sizes for a product, without measuring, that a device has room for.

    >>> str(pick(ProductForm(1, 4096, 4096, 4096, itemsize=2)))
    '128x256x64 w8 s3'
    >>> str(pick(ProductForm(1, 64, 64, 65536, itemsize=2)))
    '64x64x64 w4 s4 k16'
    """
    bk = min(128 // form.itemsize, max(power(form.terms), 16))
    sizes = (128, 256), (128, 128), (64, 128), (64, 64), (32, 64), (32, 32), (16, 32), (16, 16)
    for bm, bn in sizes:
        if bm // 2 >= form.rows or bn // 2 >= form.columns:
            continue
        if bn == 256 and limits.shared < _LARGE_SHARED and not limits.rocm:
            continue  # such a device has no asynchronous units: sums and factors compete for registers
        tiles = form.batches * -(-form.rows // bm) * -(-form.columns // bn)
        small = (bm, bn) == (64, 64) or bm < 64
        if tiles < _PROGRAMS and not small:
            continue
        wanted = min(_PROGRAMS // max(tiles, 1), form.terms // _LONG, _MOST_SPLITS)
        split = 1 if wanted < 2 else power(wanted + 1) // 2
        warps = 8 if bm * bn >= 128 * 128 else 4
        most = 2 if limits.rocm else 3 if warps == 8 else 4
        for stages in range(most, 1, -1):
            made = ProductConfig(bm, bn, bk, warps, stages, split)
            if _shared(form, made, limits) <= limits.shared:
                return made
    return ProductConfig(16, 16, bk, 4, 2)


def variants(form: ProductForm, limits: Limits = HOPPER) -> list[ProductConfig]:
    """Block sizes worth measuring: the picked ones, then those that differ in one size, then in two."""
    picked = pick(form, limits)
    # Without asynchronous units nothing of the next tile is under way while one is finished.
    persistent = [] if limits.rocm else [{"programs": limits.multiprocessors}]
    pairs = [a | b for a, b in itertools.combinations(_STEPS, 2) if not a.keys() & b.keys()]
    found = {picked: None}
    steps = [*_STEPS, {"stages": 1}, {"stages": -1}]
    for changes in [*persistent, *steps, *(p | step for p in persistent for step in steps), *pairs]:
        sizes = {
            size: by
            if size == "programs"
            else max(getattr(picked, size) + by, 1)
            if size == "stages"
            else max(getattr(picked, size) << by if by > 0 else getattr(picked, size) >> -by, 1)
            for size, by in changes.items()
        }
        made = dataclasses.replace(picked, **sizes)
        fits = min(made.bm, made.bn, made.bk) >= 16 and 2 <= made.warps <= 16 and made.stages <= 6
        whole = made.bm <= 2 * form.rows and made.bn <= 2 * form.columns and made.bk <= 2 * form.terms
        if made.programs and made.split * _tiles(form, made) <= made.programs:
            continue  # there is a program for each tile
        if fits and whole and made.split <= _MOST_SPLITS and made.split * made.bk <= max(form.terms, made.bk):
            found[made] = None
    return list(found)


def _tiles(form: ProductForm, config: ProductConfig) -> int:
    return form.batches * -(-form.rows // config.bm) * -(-form.columns // config.bn)


def too_much(form: ProductForm, config: ProductConfig, limits: Limits) -> str | None:
    """Why these block sizes cannot be fast on a device, or None; estimated, nothing is compiled.

    >>> too_much(ProductForm(1, 4096, 4096, 4096, 4), ProductConfig(256, 256, 64, 8, 4), Limits(132))
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


def _shared(form: ProductForm, config: ProductConfig, limits: Limits) -> int:
    """Bytes of shared memory: the tiles of both factors, for each step that is under way."""
    steps = max(config.stages - limits.rocm, 1)
    return (config.bm + config.bn) * config.bk * form.itemsize * steps
