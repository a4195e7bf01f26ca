"""The Triton target: generate Triton kernels, with block sizes from a heuristic or from the caller."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.lower.matmul import why_library_call
from burnt.codegen.render.triton.tile_config import Limits
from burnt.codegen.runtime.target import BuiltKernels, Target
from burnt.codegen.schedule.capabilities import OnlineThresholds, PartialSumLimits


def _build_triton(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    number_positions: Sequence[int],
    blocks: Mapping[str, str] | None = None,
) -> BuiltKernels:
    from burnt.codegen.render.triton.source import parse_config, select_config
    from burnt.codegen.runtime.triton_compile_pool import limits_of
    from burnt.codegen.runtime.triton_launch import build

    configs = {name: parse_config(text) for name, text in (blocks or {}).items()}
    if not torch.cuda.is_available():
        return build(kernels, buffers, number_positions, blocks=configs)
    limits = limits_of(torch.device("cuda", torch.cuda.current_device()))
    return build(
        kernels, buffers, number_positions, choose=lambda form: select_config(form, limits), blocks=configs
    )


def with_block_sizes(blocks: Mapping[str, str]) -> Target:
    """Return the Triton target with other block sizes for some kernels: ``{"softmax_0": "1x2048 w8"}``."""
    return dataclasses.replace(TRITON, build=functools.partial(_build_triton, blocks=dict(blocks)))


def are_block_sizes(blocks: Mapping[Any, Any]) -> bool:
    """Whether a mapping, as read from a table or a file, is a valid argument of `with_block_sizes`.

    >>> are_block_sizes({"softmax_0": "1x2048 w8"}), are_block_sizes({"softmax_0": "1x3"})
    (True, False)
    >>> are_block_sizes({"BLOCK": 64})
    False
    """
    from burnt.codegen.render.triton.source import parse_config

    try:
        return all(
            isinstance(name, str) and isinstance(text, str) and bool(parse_config(text))
            for name, text in blocks.items()
        )
    except ValueError:
        return False


def _show_triton(kernels: Sequence[Kernel], number_positions: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.render.triton.kernel import print_kernel, structure_of
    from burnt.codegen.render.triton.source import select_config

    return {
        kernel: print_kernel(kernel, select_config(structure_of(kernel))).text.rstrip("\n")
        for kernel in kernels
    }


def _why_no_triton() -> str | None:
    try:
        import triton  # noqa: F401 - only Linux has it
    except ImportError as error:
        return f"no Triton: {error}"
    return None


# About two programs for each multiprocessor, whose partial sums are in registers.
_PARTIAL_SUMS = PartialSumLimits(max_chunks=256, min_chunk_rows=4, min_columns=32, max_columns=8192)


# All thresholds are 0: the printer goes back to two passes for a row that fits one block.
TRITON = Target(
    "triton",
    _build_triton,
    _why_no_triton,
    partial_sums=_PARTIAL_SUMS,
    online_thresholds=OnlineThresholds(),
    why_torch_matmul=why_library_call,
    show=_show_triton,
)


class Architecture(NamedTuple):
    """A kind of GPU that Triton compiles for."""

    backend: str  # ``"cuda"`` or ``"hip"``
    arch: int | str  # as Triton names it
    warp_size: int
    shared_memory: int  # bytes per program

    @property
    def assembly(self) -> str:
        """The language of its assembly: ``"ptx"`` or ``"amdgcn"``."""
        return "ptx" if self.backend == "cuda" else "amdgcn"

    @property
    def limits(self) -> Limits:
        """What it sets for kernels, with the number of multiprocessors of an H100 or an MI300."""
        if self.backend == "cuda":
            return Limits(132, shared_memory=self.shared_memory)
        return Limits(304, 2048 * self.warp_size, 256, self.shared_memory, self.warp_size, is_rocm=True)


ARCHITECTURES = {
    "sm_80": Architecture("cuda", 80, 32, 163 << 10),
    "sm_90": Architecture("cuda", 90, 32, 227 << 10),
    "sm_100": Architecture("cuda", 100, 32, 227 << 10),
    "sm_120": Architecture("cuda", 120, 32, 99 << 10),
    "gfx90a": Architecture("hip", "gfx90a", 64, 64 << 10),
    "gfx942": Architecture("hip", "gfx942", 64, 64 << 10),
    "gfx950": Architecture("hip", "gfx950", 64, 160 << 10),
    "gfx1100": Architecture("hip", "gfx1100", 32, 64 << 10),
}
