"""Block sizes of the FlashAttention kernels: the default for each GPU, and candidates for the tuner."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence

from burnt.codegen.render.triton.tile_config import Limits, change_sizes, next_power_of_two

KERNELS = ("forward", "dots", "keys", "queries", "both")
"""`both` computes the gradients that `keys` and `queries` do, where it is given and the call allows it."""


@dataclasses.dataclass(frozen=True)
class FlashConfig:
    """Block sizes of a kernel: queries and keys per tile, warps, and pipeline stages of the loop over blocks.

    `ahead`, of the forward kernel: the products of the next block of keys begin before this block's softmax.

    >>> str(FlashConfig(128, 64, warps=8, stages=3, ahead=True)), FlashConfig.of("64x32 w4 s2")
    ('128x64 w8 s3 a', FlashConfig(m=64, n=32, warps=4, stages=2, ahead=False))
    """

    m: int
    n: int
    warps: int = 4
    stages: int = 2
    ahead: bool = False

    def __str__(self) -> str:
        return f"{self.m}x{self.n} w{self.warps} s{self.stages}" + " a" * self.ahead

    @property
    def options(self) -> dict[str, int]:
        """Triton's compile options."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    @classmethod
    @functools.cache
    def of(cls, text: str) -> FlashConfig:
        """Parse block sizes from their `str`; raise a ValueError if the text is malformed."""
        found = re.fullmatch(r"(\d+)x(\d+) w(\d+) s(\d+)( a)?", text)
        if found is None:
            raise ValueError(f"block sizes {text!r}: expected a text such as '128x64 w8 s3'")
        m, n, warps, stages = map(int, found.groups()[:4])
        return cls(m, n, warps, stages, ahead=found[5] is not None)


# Block sizes of each kernel for head sizes (the larger of keys and values) up to 64, 128 and 256. Found by
# compiling for the targets: the largest of a few tiles that do not spill registers and fit in shared memory.
# On RDNA, large heads spill even with the smallest tiles (tests/codegen/render/triton/spills.txt). Variants
# that hold more per tile have rows where the usual ones would spill: `added` for an additive mask, `scored`
# for a score function.
_WIDTHS = (64, 128, 256)
_Table = dict[str, str]
_HOPPER: _Table = {  # and later: several warps share a matmul, which reads its operands from shared memory
    "forward": "128x64 w8 s3 a, 128x64 w8 s3 a, 64x32 w8 s2",
    "keys": "64x128 w8 s2, 32x128 w8 s2, 16x32 w8 s2",
    "queries": "128x64 w8 s3, 128x64 w8 s2, 32x16 w4 s1",
    "both": "64x128 w8 s2, 64x128 w8 s2, ",
}
_AMPERE: _Table = {
    "forward": "128x64 w8 s3, 128x64 w8 s3, 64x32 w8 s2",
    "forward, added": "128x32 w8 s3, 128x32 w8 s3, 64x32 w8 s2",
    "keys": "32x64 w4 s2, 32x64 w8 s2, 16x32 w8 s1",
    "queries": "128x64 w8 s3, 64x32 w4 s2, 32x16 w4 s1",
}
_CDNA: _Table = {
    "forward": "128x64 w4 s1, 128x32 w4 s1, 32x32 w4 s1",
    "keys": "32x64 w4 s1, 32x64 w4 s1, 16x16 w4 s1",
    "queries": "64x32 w4 s1, 64x32 w4 s1, 16x16 w4 s1",
}
_RDNA: _Table = {
    "forward": "128x64 w8 s1, 64x32 w8 s1, 16x16 w8 s1",
    "forward, added": "128x64 w8 s1, 64x32 w16 s1, 16x16 w8 s1",
    "keys": "32x32 w8 s1, 16x16 w8 s2, 16x16 w8 s2",
    "keys, scored": "16x32 w8 s1, 16x16 w8 s2, 16x16 w8 s2",
    "queries": "64x32 w8 s1, 32x16 w8 s1, 16x16 w8 s1",
    "queries, added": "64x32 w8 s1, 32x16 w16 s2, 16x16 w8 s1",
}
_FLOAT32: _Table = {
    "forward": "64x32 w8 s2, 32x16 w8 s1, 16x16 w8 s1",
    "keys": "32x32 w8 s1, 16x16 w8 s1, 16x16 w8 s2",
    "queries": "32x32 w4 s1, 32x16 w8 s1, 16x16 w8 s1",
}
_CDNA_FLOAT32: _Table = {  # 4 warps have twice the registers of 8 each
    "forward": "64x32 w8 s2, 32x16 w8 s1, 16x16 w8 s1",
    "keys": "32x32 w8 s1, 16x16 w8 s1, 16x16 w4 s1",
    "queries": "32x32 w4 s1, 32x16 w8 s1, 16x16 w4 s1",
}
_RDNA_FLOAT32: _Table = {  # RDNA has no float32 matrix instructions: all operands are in registers
    "forward": "32x16 w8 s1, 16x16 w8 s1, 16x16 w8 s1",
    "keys": "16x16 w8 s1, 16x16 w8 s1, 16x16 w8 s1",
    "queries": "16x16 w8 s1, 16x16 w16 s1, 16x16 w16 s1",
}
_HOPPER_SHARED_BYTES = 200 << 10


def select_config(
    size: int, itemsize: int, limits: Limits, *, has_additive_mask: bool = False, has_score: bool = False
) -> dict[str, FlashConfig]:
    """Return the default block sizes of all kernels, without measuring.

    `size` is the larger head size of keys and values, at most 256; `itemsize` the bytes per element.

    >>> select_config(128, 2, Limits(132, shared_memory=227 << 10))["forward"]
    FlashConfig(m=128, n=64, warps=8, stages=3, ahead=True)
    """
    rdna = limits.is_rocm and limits.warp_size == 32
    if itemsize == 4:
        table = _RDNA_FLOAT32 if rdna else _CDNA_FLOAT32 if limits.is_rocm else _FLOAT32
    elif limits.is_rocm:
        table = _RDNA if rdna else _CDNA
    else:
        table = _HOPPER if limits.shared_memory >= _HOPPER_SHARED_BYTES else _AMPERE
    column = next(n for n, width in enumerate(_WIDTHS) if size <= width)
    configs = {"dots": FlashConfig(16 if itemsize == 4 else 32, 16, 4, 1)}
    variants = ["added"] * has_additive_mask + ["scored"] * has_score
    for kernel in ("forward", "keys", "queries", *(["both"] if limits.has_tma else [])):
        row = table.get(kernel, ", , ")
        for variant in variants:
            row = table.get(f"{kernel}, {variant}", row)
        text = row.split(", ")[column]
        if not text:
            continue
        blocks = FlashConfig.of(text)
        limit = limits.shared_memory
        while blocks.stages > 1 and shared_memory_bytes(kernel, blocks, _WIDTHS[column], itemsize) > limit:
            blocks = dataclasses.replace(blocks, stages=blocks.stages - 1)
        configs[kernel] = blocks
    return configs


def shared_memory_bytes(kernel: str, blocks: FlashConfig, width: int, itemsize: int) -> int:
    """Estimate the shared memory in bytes: resident tensors, and the blocks loaded by each pipeline stage."""
    resident, streamed = (blocks.n, blocks.m) if kernel in ("keys", "both") else (blocks.m, blocks.n)
    resident_tensors, width = 1 if kernel == "forward" else 2, next_power_of_two(width)
    num_streamed = 2 * blocks.stages + blocks.ahead
    loaded = (resident_tensors * resident + streamed * num_streamed) * width * itemsize
    # `both` passes gradients of scores to a product, and those of queries to TMA, through shared memory.
    return loaded + (blocks.m * blocks.n * itemsize + blocks.m * width * 4 if kernel == "both" else 0)


def min_accumulator_elements(kernel: str, blocks: FlashConfig, width: int) -> int:
    """Return how many numbers a program holds at least: a tile of scores and the accumulators."""
    accumulators = blocks.n * 2 * width if kernel in ("keys", "both") else blocks.m * width
    return accumulators + blocks.m * blocks.n * (2 if blocks.ahead else 1)


def configs(
    size: int,
    itemsize: int,
    limits: Limits,
    kernels: Sequence[str] = ("forward", "keys", "queries"),
    *,
    has_additive_mask: bool = False,
    has_score: bool = False,
) -> list[dict[str, str]]:
    """Return block sizes worth measuring, as text: the default, then variations of one kernel at a time.

    A variation changes one size, or two; the former are first.

    `kernels` are those that run; they alternate, so that the first few choices include variations of each.
    The other arguments are as in `select_config`.

    >>> configs(64, 2, Limits(132, shared_memory=227 << 10))[0]["forward"]
    '128x64 w8 s3 a'
    """
    default = select_config(size, itemsize, limits, has_additive_mask=has_additive_mask, has_score=has_score)
    neighbours: list[list[dict[str, FlashConfig]]] = []
    if "both" in kernels and "both" in default:
        kernels = ("forward", "both")
        neighbours.append([{name: blocks for name, blocks in default.items() if name != "both"}])
    width = next_power_of_two(size)
    for kernel in kernels:
        if kernel not in default:
            continue
        current = default[kernel]
        changed = change_sizes(current, "n", "m", "warps", "stages")
        if kernel == "forward":
            toggled = [dataclasses.replace(c, ahead=not c.ahead) for c in (current, *changed)]
            changed = [toggled[0], *itertools.chain.from_iterable(zip(changed, toggled[1:], strict=True))]
        neighbours.append([])
        for config in dict.fromkeys(changed):
            threads = config.warps * limits.warp_size
            registers = min(limits.max_registers, limits.registers // threads) * threads
            if (
                config != current
                and min(config.m, config.n) >= 16
                and max(config.m, config.n) <= 256
                and 2 <= config.warps <= 16
                and config.stages <= 5
                and shared_memory_bytes(kernel, config, width, itemsize) <= limits.shared_memory
                and min_accumulator_elements(kernel, config, width) <= registers
            ):
                neighbours[-1].append({**default, kernel: config})
    interleaved = itertools.chain.from_iterable(itertools.zip_longest(*neighbours))
    all_configs = [default, *(choice for choice in interleaved if choice is not None)]
    return [{name: str(blocks) for name, blocks in choice.items()} for choice in all_configs]
