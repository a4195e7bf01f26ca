"""Processors that tests give to the rules that choose a kernel, so that no test depends on the machine.

The fixture `processor` (`tests/conftest.py`) runs a test for each of them. They change what is chosen, and
nothing else: the C compiler and torch's libraries ask the CPU itself, and oneDNN raises where it is given a
dtype that this machine has no instructions for. A test that computes by it gives a processor `within_reach`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `tests/conftest.py` reads the names in processes that need no torch
    from burnt.device import Processor

# The vendor, the instruction set of torch's own kernels, what oneDNN multiplies, and whether there is MKL.
# oneDNN emulates bfloat16 by AVX-512; float16 takes AVX512-FP16, which comes with AMX.
_KNOWN = {
    "Intel AVX2": ("Intel", "AVX2", "float32", True),
    "Intel AVX-512": ("Intel", "AVX512", "float32 bfloat16", True),
    "Intel AMX": ("Intel", "AVX512", "float32 bfloat16 float16", True),
    "AMD AVX2": ("AMD", "AVX2", "float32", True),
    "AMD AVX-512": ("AMD", "AVX512", "float32 bfloat16", True),
    "ARM NEON": ("ARM", "DEFAULT", "float32", False),
}
NAMES = tuple(_KNOWN)
WIDE = frozenset({"Intel AVX-512", "Intel AMX", "AMD AVX-512"})
"""Those whose vectors have 512 bits."""
BFLOAT16 = frozenset({"Intel AVX-512", "Intel AMX", "AMD AVX-512"})
"""Those whose oneDNN multiplies bfloat16."""


def named(name: str) -> Processor:
    """The processor of a name."""
    import torch

    from burnt.device import Processor

    vendor, capability, dtypes, has_mkl = _KNOWN[name]
    onednn = frozenset(getattr(torch, dtype) for dtype in dtypes.split())
    return Processor(name, vendor, capability, onednn, has_mkl)


def within_reach(processor: Processor) -> Processor:
    """The processor, without the dtypes that oneDNN refuses on this machine."""
    from burnt.device import _detect_processor

    return dataclasses.replace(processor, onednn=processor.onednn & _detect_processor().onednn)


@contextlib.contextmanager
def as_if(processor: Processor) -> Iterator[None]:
    """Choose as on this processor; nothing that was chosen before is kept, nor afterwards."""
    from burnt import device

    before = device._override
    give(processor)
    try:
        yield
    finally:
        give(before)


def give(processor: Processor | None) -> None:
    """Choose as on this processor from now on; None: this machine's."""
    from burnt import device
    from burnt.kernels.interface.candidate import OPS

    device._override = processor
    for op in OPS.values():
        op.forget()
