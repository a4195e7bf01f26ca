"""Printed Triton kernels as callables: the text becomes functions, a launch is as little Python as can be.

A plan's shapes and strides are fixed, so grids and sizes are computed once. What may differ from call to call
is the alignment of the tensors, which Triton specialises a kernel on: a compiled kernel is kept for each.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.print_triton import Function, Printed, Work, form_of, print_kernel
from burnt.codegen.target import Built, Launch
from burnt.codegen.triton_blocks import Config, Form, pick

__all__ = ["build", "load"]


def build(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    numbers: Sequence[int],
    choose: Callable[[Form], Config] = pick,
) -> Built:
    """Kernels that can run.

    Args:
        kernels: what to print.
        buffers: in the order in which launches get them.
        numbers: positions of run-time numbers, in the order in which launches get them.
        choose: gives a kernel's block sizes.
    """
    slots = {buffer: i for i, buffer in enumerate(buffers)}
    places = {number: i for i, number in enumerate(numbers)}
    texts: dict[Kernel, str] = {}
    launch: dict[Kernel, Launch] = {}
    for kernel in kernels:
        printed = print_kernel(kernel, choose(form_of(kernel)))
        texts[kernel] = printed.text
        launch[kernel] = launcher(printed, slots, places)
    return Built("\n\n".join(texts.values()), texts, launch)


@functools.lru_cache(maxsize=4096)
def load(text: str) -> dict[str, Any]:
    """The functions of a text. Triton reads their source, which `linecache` holds for it."""
    name = f"<burnt {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "burnt.codegen.generated"}
    exec(compile(text, name, "exec"), space)
    return space


def launcher(printed: Printed, slots: dict[Buffer, int], places: dict[int, int]) -> Launch:
    """A callable of a kernel: of all buffers and all run-time numbers."""
    space = load(printed.text)
    calls = [_call(space[f.name], f, printed.config, slots, places) for f in printed.functions]
    if len(calls) == 1:
        return lambda memory, values: calls[0](memory, values, {})

    def launch(memory: Sequence[torch.Tensor | None], values: Sequence[float]) -> None:
        works: dict[str, torch.Tensor] = {}
        for call in calls:
            call(memory, values, works)

    return launch


_Call = Callable[[Sequence[Any], Sequence[float], dict[str, torch.Tensor]], None]


def _call(
    function: Any, printed: Function, config: Config, slots: dict[Buffer, int], places: dict[int, int]
) -> _Call:
    buffers = [slots[a] for a in printed.arguments if isinstance(a, Buffer)]
    works = [a for a in printed.arguments if isinstance(a, Work)]
    numbers = [places[a[1]] for a in printed.arguments if type(a) is tuple]
    sizes = [a for a in printed.arguments if isinstance(a, int)]
    grid = (printed.programs, 1, 1)
    blocks = printed.constants
    options = {"num_warps": config.warps, "num_stages": config.stages}
    trailing = [*sizes, *blocks.values()]
    known: dict[Any, Any] = {}
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"

    def call(memory: Sequence[Any], values: Sequence[float], held: dict[str, torch.Tensor]) -> None:
        tensors = [memory[slot] for slot in buffers]
        device = tensors[0].device
        for work in works:
            if work.name not in held:
                held[work.name] = torch.empty(work.size, dtype=work.dtype, device=device)
            tensors.append(held[work.name])
        given = [values[place] for place in numbers]
        if interpreted:
            function[grid](*tensors, *given, *sizes, **blocks)
            return
        addresses = [t.data_ptr() for t in tensors]
        unaligned = 0
        for address in addresses:
            unaligned |= address & 15
        key = device.index if not unaligned else (device.index, *[a & 15 == 0 for a in addresses])
        compiled = known.get(key)
        if torch.cuda.current_device() != device.index:
            with torch.cuda.device(device):
                call(memory, values, held)
            return
        if compiled is None:
            made = function.warmup(*tensors, *given, *sizes, grid=grid, **blocks, **options)
            compiled = known[key] = made[grid]
        compiled(*addresses, *given, *trailing)

    return call
