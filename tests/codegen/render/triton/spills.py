"""Which kernels spill registers with their selected block sizes, and how many bytes.

    python -m tests.codegen.render.triton.spills            # compile all, and write spills.txt
    python -m tests.codegen.render.triton.spills 'sm_90'    # only entries that match the pattern

It compiles flash attention with its options and float32 matmuls, for GPUs that need not be present. The list
must match: `test_spills.py` fails for a kernel that starts or stops spilling. It is valid for one version of
Triton, which includes the assembler.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from burnt.codegen.ir import Kernel
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.source import select_config as select_matmul_config
from burnt.kernels.ops.attention.flash_config import select_config
from tests.codegen.render.triton import attention
from tests.codegen.render.triton.ahead import TARGETS, Compiled, compiled, limits_of, planned

LIST = Path(__file__).with_suffix(".txt")
ATTENTION = ("forward", "keys", "queries")
_HEAD = "# Triton {version}; written by: python -m tests.codegen.render.triton.spills"
_COLUMNS = "kernel | variant | dtype | size | target | config | bytes"


class Entry(NamedTuple):
    """A kernel with its selected block sizes.

    Args:
        kernel: an attention kernel, or ``"product"`` for a matmul.
        variant: the options of attention, or the name of the matmul's kernel.
        dtype: ``"bf16"`` or ``"f32"``.
        size: the head size, or the matmul's rows, columns and terms.
        target: the architecture.
    """

    kernel: str
    variant: str
    dtype: str
    size: str
    target: str


class Spill(NamedTuple):
    """The block sizes of an entry, and how many bytes it spills."""

    config: str
    nbytes: int


# --- what is compiled


def gelu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def linear_of_norm(x: Tensor, g: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.layer_norm(x, (1024,), g, b), w)


def relu_of_conv(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.conv2d(x, w, b, padding=1))


@functools.cache
def products() -> dict[tuple[str, str], Kernel]:
    """Float32 matmul kernels, forward and backward, by name and size."""

    def last(*shape: int) -> Tensor:
        return torch.zeros(shape).to(memory_format=torch.channels_last)

    zeros = torch.zeros
    calls = [
        (gelu_of_linear, (zeros(4096, 1024), zeros(4096, 1024), zeros(4096))),
        (linear_of_norm, (zeros(4096, 1024), zeros(1024), zeros(1024), zeros(4096, 1024))),
        (relu_of_conv, (last(32, 128, 28, 28), last(128, 128, 3, 3), zeros(128))),
    ]
    found = {}
    for fn, args in calls:
        for kernel in planned(fn, *args, gradients=True, products=True):
            if kernel.matmul is not None:
                structure = structure_of(kernel)
                found[kernel.name, f"{structure.rows}x{structure.columns}x{structure.terms}"] = kernel
    return found


def entries() -> list[Entry]:
    """All entries: about 240 kernels, a second or two each."""
    found = [*_of_attention()]
    for target, (name, size) in itertools.product(("sm_80", "sm_90", "gfx1100"), products()):
        found.append(Entry("product", name, "f32", size, target))
    return list(dict.fromkeys(found))


def _of_attention() -> Iterator[Entry]:
    for target in TARGETS:
        # gfx90a and gfx950 have the block sizes of gfx942, and its registers; sm_100 and sm_120 are slow to
        # compile for.
        is_like_gfx942 = target in ("gfx90a", "gfx950")
        slow = target in ("sm_100", "sm_120")
        for dtype, size, kernel in itertools.product(("bf16", "f32"), ("64", "128", "256"), ATTENTION):
            wide = (dtype, size) == ("f32", "256")
            if (dtype, size) == ("bf16", "128") or not (is_like_gfx942 or (slow and wide)):
                yield Entry(kernel, "causal", dtype, size, target)
        yield Entry("dots", "causal", "bf16", "128", target)
    for target, variant, kernel in itertools.product(("sm_90", "gfx942"), attention.VARIANTS, ATTENTION):
        yield Entry(kernel, variant, "bf16", "128", target)
    fewer = itertools.product(("sm_80", "sm_100", "sm_120", "gfx1100"), ("mask, added", "softcap"), ATTENTION)
    for target, variant, kernel in fewer:
        yield Entry(kernel, variant, "bf16", "128", target)


def compiled_entry(entry: Entry, folder: Path) -> tuple[str, list[Compiled]]:
    """Return the selected block sizes of an entry and its compiled functions."""
    limits = limits_of(entry.target)
    if entry.kernel == "product":
        kernel = products()[entry.variant, entry.size]
        config = select_matmul_config(structure_of(kernel), limits)
        return str(config), compiled([print_kernel(kernel, config)], entry.target, folder)
    size, dtype = int(entry.size), attention.DTYPES[entry.dtype]
    options = attention.VARIANTS[entry.variant]
    added = options.get("mask", torch.bool) != torch.bool
    picked = select_config(
        size, dtype.itemsize, limits, has_additive_mask=added, has_score="score" in options
    )
    blocks = picked[entry.kernel]
    result = attention.compiled(entry.kernel, blocks, dtype, size, entry.variant, entry.target, folder)
    return str(blocks), [result]


def spill_of(entry: Entry, folder: Path) -> Spill:
    """Return the block sizes of an entry and the most bytes that one of its functions spills."""
    config, functions = compiled_entry(entry, folder)
    return Spill(config, max(f.spilled for f in functions))


# --- the list


def parse(text: str) -> dict[Entry, Spill]:
    """Parse a list."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            *entry, config, nbytes = line.split(" | ")
            found[Entry(*entry)] = Spill(config, int(nbytes))
    return found


def format_list(spills: Mapping[Entry, Spill]) -> str:
    """Format a list as the text of a file."""
    lines = [" | ".join([*entry, config, str(nbytes)]) for entry, (config, nbytes) in sorted(spills.items())]
    return "\n".join([_HEAD.format(version=triton.__version__), f"# {_COLUMNS}", *lines, ""])


def version_of(text: str) -> str:
    """Return the Triton version of a list."""
    found = re.match(re.escape(_HEAD).replace(re.escape("{version}"), r"(\S+)"), text)
    if found is None:
        raise ValueError(f"{LIST}: its first line is not {_HEAD!r}")
    return found[1]


def main(pattern: str = "") -> None:
    """Write the list anew for the entries that match a pattern."""
    listed = parse(LIST.read_text(encoding="utf-8"))
    chosen = [entry for entry in entries() if re.search(pattern, " | ".join(entry))]
    found = {entry: listed[entry] for entry in entries() if entry in listed and entry not in chosen}
    with tempfile.TemporaryDirectory() as folder:
        for number, entry in enumerate(chosen, 1):
            print(f"\r{number}/{len(chosen)}", end="", file=sys.stderr, flush=True)
            spill = spill_of(entry, Path(folder))
            if spill.nbytes:
                found[entry] = spill
    LIST.write_text(format_list(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
