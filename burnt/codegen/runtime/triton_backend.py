"""The Triton target: kernels printed as Triton, with block sizes selected by heuristic or given."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.lower.matmul import why_library_call
from burnt.codegen.runtime.target import Built, Target
from burnt.codegen.schedule.passes import OnlineThresholds

__all__ = ["TRITON", "are_blocks", "with_blocks"]


def _build_triton(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    numbers: Sequence[int],
    blocks: Mapping[str, str] | None = None,
) -> Built:
    from burnt.codegen.render.triton.configs import parse_config, select_config
    from burnt.codegen.runtime.triton_compile_pool import limits_of
    from burnt.codegen.runtime.triton_launch import build

    given = {name: parse_config(text) for name, text in (blocks or {}).items()}
    if not torch.cuda.is_available():
        return build(kernels, buffers, numbers, blocks=given)
    limits = limits_of(torch.device("cuda", torch.cuda.current_device()))
    return build(kernels, buffers, numbers, choose=lambda form: select_config(form, limits), blocks=given)


def with_blocks(blocks: Mapping[str, str]) -> Target:
    """Triton, with block sizes of its own for kernels of these names: ``{"softmax_0": "1x2048 w8"}``.

    Raises:
        ValueError: when it builds: a text names no block sizes.
    """
    return dataclasses.replace(TRITON, build=functools.partial(_build_triton, blocks=dict(blocks)))


def are_blocks(blocks: Mapping[Any, Any]) -> bool:
    """Whether something that was read from a table or a file is what `with_blocks` takes.

    >>> are_blocks({"softmax_0": "1x2048 w8"}), are_blocks({"softmax_0": "1x3"}), are_blocks({"BLOCK": 64})
    (True, False, False)
    """
    from burnt.codegen.render.triton.configs import parse_config

    try:
        return all(
            isinstance(name, str) and isinstance(text, str) and bool(parse_config(text))
            for name, text in blocks.items()
        )
    except ValueError:
        return False


def _show_triton(kernels: Sequence[Kernel], numbers: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.render.triton.configs import select_config
    from burnt.codegen.render.triton.kernel import print_kernel, structure_of

    return {
        kernel: print_kernel(kernel, select_config(structure_of(kernel))).text.rstrip("\n")
        for kernel in kernels
    }


def _no_triton() -> str | None:
    try:
        import triton  # noqa: F401 - Linux alone has it
    except ImportError as error:
        return f"no Triton: {error}"
    return None


# Of a row that is held whole, the printer makes two passes of it again.
TRITON = Target(
    "triton",
    _build_triton,
    _no_triton,
    joins=OnlineThresholds(),
    products=why_library_call,
    show=_show_triton,
)
