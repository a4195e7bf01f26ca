"""Printed Triton kernels as callables: the text becomes functions, a launch is as little Python as can be.

A plan's shapes and strides are fixed, so grids and sizes are computed once. What may differ from call to call
is the alignment of the tensors, which Triton specialises a kernel on: a compiled kernel is kept for each.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import hashlib
import linecache
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import triton

from burnt.codegen.ir import Buffer, Check, Kernel, walk
from burnt.codegen.render.triton.configs import AnyConfig, select_config
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.source import DeviceFunction, FailedFlag, ScalarArg, TritonSource, Workspace
from burnt.codegen.runtime.target import Built, Launch

__all__ = ["build", "load"]

_NO_BLOCKS: Mapping[str, AnyConfig] = MappingProxyType({})


def build(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    numbers: Sequence[int],
    choose: Callable[[Any], AnyConfig] = select_config,
    blocks: Mapping[str, AnyConfig] = _NO_BLOCKS,
) -> Built:
    """Kernels that can run.

    Args:
        kernels: what to print.
        buffers: in the order in which launches get them.
        numbers: positions of run-time numbers, in the order in which launches get them.
        choose: gives a kernel's block sizes.
        blocks: block sizes of kernels by name, for which `choose` is not asked.
    """
    slots = {buffer: i for i, buffer in enumerate(buffers)}
    places = {number: i for i, number in enumerate(numbers)}
    texts: dict[Kernel, str] = {}
    launch: dict[Kernel, Launch] = {}
    for kernel in kernels:
        config = blocks.get(kernel.name)
        if config is None or isinstance(config, MatmulConfig) != (kernel.matmul is not None):
            config = choose(structure_of(kernel))  # none was named, or that of a kernel of another kind
        printed = print_kernel(kernel, config)
        texts[kernel] = printed.text
        launch[kernel] = launcher(kernel, printed, slots, places)
        if isinstance(config, MatmulConfig) and config.descriptors:
            plain = print_kernel(kernel, dataclasses.replace(config, descriptors=False, specialized=False))
            through_pointers = launcher(kernel, plain, slots, places)
            launch[kernel] = _where_aligned(kernel, slots, launch[kernel], through_pointers)
    return Built("\n\n".join(texts.values()), texts, launch)


@functools.lru_cache(maxsize=4096)
def load(text: str) -> dict[str, Any]:
    """The functions of a text. Triton reads their source, which `linecache` holds for it."""
    name = f"<burnt {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "burnt.codegen.generated"}
    exec(compile(text, name, "exec"), space)
    return space


def launcher(
    kernel: Kernel, printed: TritonSource, slots: dict[Buffer, int], places: dict[int, int]
) -> Launch:
    """A callable of a kernel: of all buffers and all run-time numbers."""
    space = load(printed.text)
    calls = [_Call(space[f.name], f, printed.config, slots, places) for f in printed.functions]
    checks = kernel.checks
    if len(calls) == 1 and not checks:
        (only,) = calls
        return lambda memory, values: only(memory, values, {})
    failed: dict[torch.device, torch.Tensor] = {}

    def launch(memory: Sequence[torch.Tensor | None], values: Sequence[float]) -> None:
        held: dict[str, torch.Tensor] = {}
        if checks:
            device = next(t.device for t in memory if t is not None)
            if device not in failed:
                # The device writes into the host's memory, which is read without waiting for it.
                words = torch.zeros(len(checks), dtype=torch.int64)
                failed[device] = words if device.type == "cpu" else words.pin_memory()
            held["failed"] = failed[device]
            raise_failed_check(checks, failed[device])
        for call in calls:
            call(memory, values, held)
        if checks:
            raise_failed_check(checks, failed[device])

    return launch


def _where_aligned(kernel: Kernel, slots: dict[Buffer, int], copied: Launch, otherwise: Launch) -> Launch:
    """A launch where all that a product reads lies at addresses that descriptors can hold, or another one."""
    assert kernel.matmul is not None
    read = {e.extra[0] for e in walk([kernel.matmul.body]) if e.op == "load"}
    places = [slots[buffer] for buffer in read]  # type: ignore[index]  # a load's first is its buffer

    def launch(memory: Sequence[torch.Tensor | None], values: Sequence[float]) -> None:
        aligned = not any(memory[place].data_ptr() & 15 for place in places)  # type: ignore[union-attr]
        (copied if aligned else otherwise)(memory, values)

    return launch


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Memory for the descriptors that a kernel makes. It is the current stream's, as the launch is."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def raise_failed_check(checks: Sequence[Check], failed: torch.Tensor) -> None:
    """Raise what has failed. On a device that is known once it got there: by a later call, at the latest by
    the first one after it was waited for."""
    for check, word in zip(checks, failed.tolist(), strict=True):
        if word:
            failed.zero_()
            raise check.error(word >> 1)


class _Call:
    """A function with what does not change from call to call."""

    def __init__(
        self,
        function: Any,
        printed: DeviceFunction,
        config: AnyConfig,
        slots: dict[Buffer, int],
        places: dict[int, int],
    ) -> None:
        self.function = function
        self.buffers = [slots[a] for a in printed.arguments if isinstance(a, Buffer)]
        self.works = [a for a in printed.arguments if isinstance(a, Workspace)]
        self.may_fail = any(isinstance(a, FailedFlag) for a in printed.arguments)
        self.numbers = [places[a.position] for a in printed.arguments if isinstance(a, ScalarArg)]
        self.sizes = [a for a in printed.arguments if isinstance(a, int)]
        self.constants = printed.constants
        self.trailing = [*self.sizes, *printed.constants.values()]
        self.grid = (printed.programs, 1, 1)
        self.options = config.options
        self.describes = isinstance(config, MatmulConfig) and config.descriptors
        self.compiled: dict[Any, Any] = {}
        self.interpreted = os.environ.get("TRITON_INTERPRET") == "1"

    def __call__(self, memory: Sequence[Any], values: Sequence[float], held: dict[str, torch.Tensor]) -> None:
        tensors = [memory[slot] for slot in self.buffers]
        # A part that folds what no tensor is read for has none of its own.
        device = next(t.device for t in memory if t is not None)
        for work in self.works:
            if work.name not in held:
                held[work.name] = torch.empty(work.size, dtype=work.dtype, device=device)
            tensors.append(held[work.name])
        if self.may_fail:
            tensors.append(held["failed"])
        numbers = [values[place] for place in self.numbers]
        if self.interpreted:
            self.function[self.grid](*tensors, *numbers, *self.sizes, **self.constants)
        elif device.index == torch.cuda.current_device():
            self.launch(tensors, numbers, device.index)
        else:
            with torch.cuda.device(device):
                self.launch(tensors, numbers, device.index)

    def launch(self, tensors: list[torch.Tensor], numbers: list[float], device: int) -> None:
        """Launch on the current device and stream."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        unaligned = 0
        for address in addresses:
            unaligned |= address
        key = (device, *[address & 15 for address in addresses]) if unaligned & 15 else device
        compiled = self.compiled.get(key)
        if compiled is None:
            made = self.function.warmup(
                *tensors, *numbers, *self.sizes, grid=self.grid, **self.constants, **self.options
            )
            compiled = self.compiled[key] = made[self.grid]
        if self.describes:
            # Triton asks for their memory by way of a context variable, which may be somebody else's.
            context = contextvars.copy_context()
            context.run(triton.set_allocator, _scratch)
            context.run(lambda: compiled(*addresses, *numbers, *self.trailing))
        else:
            compiled(*addresses, *numbers, *self.trailing)
