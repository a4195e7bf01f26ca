"""Turn generated Triton code into callables that launch it with little Python overhead.

A plan's shapes and strides are fixed, so grids and sizes are computed once. The alignment of tensors may
change from call to call. Triton specializes kernels on it, so a compiled kernel is cached for each alignment.
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
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.source import (
    AnyConfig,
    DeviceFunction,
    FailedFlag,
    ScalarArg,
    TritonSource,
    Workspace,
    select_config,
)
from burnt.codegen.runtime.target import BuiltKernels, Launcher, raise_failed_check

_NO_BLOCK_SIZES: Mapping[str, AnyConfig] = MappingProxyType({})


def build(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    number_positions: Sequence[int],
    choose: Callable[[Any], AnyConfig] = select_config,
    blocks: Mapping[str, AnyConfig] = _NO_BLOCK_SIZES,
) -> BuiltKernels:
    """Generate Triton code for kernels and return their launchers; Triton compiles them at the first launch.

    Launchers take the tensors of `buffers` and the numbers of `number_positions`, in order. `choose` selects
    a kernel's block sizes, unless `blocks` has some for its name.
    """
    slots = {buffer: i for i, buffer in enumerate(buffers)}
    scalar_positions = {number: i for i, number in enumerate(number_positions)}
    texts: dict[Kernel, str] = {}
    launch: dict[Kernel, Launcher] = {}
    for kernel in kernels:
        config = blocks.get(kernel.name)
        if config is None or isinstance(config, MatmulConfig) != (kernel.matmul is not None):
            config = choose(structure_of(kernel))  # not given, or for the other kind of kernel
        printed = print_kernel(kernel, config)
        texts[kernel] = printed.text
        launch[kernel] = make_launcher(kernel, printed, slots, scalar_positions)
        if isinstance(config, MatmulConfig) and config.descriptors:
            pointer_source = print_kernel(kernel, dataclasses.replace(config, descriptors=False))
            pointer_launcher = make_launcher(kernel, pointer_source, slots, scalar_positions)
            launch[kernel] = _choose_by_alignment(kernel, slots, launch[kernel], pointer_launcher)
    return BuiltKernels(texts, launch)


@functools.lru_cache(maxsize=4096)
def load(text: str) -> dict[str, Any]:
    """Return the module namespace of generated code. Triton reads functions' source through `linecache`."""
    name = f"<burnt {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "burnt.codegen.generated"}
    exec(compile(text, name, "exec"), namespace)
    return namespace


def make_launcher(
    kernel: Kernel, printed: TritonSource, slots: dict[Buffer, int], scalar_positions: dict[int, int]
) -> Launcher:
    """Return the launcher of a kernel, which takes the tensors of all buffers and all run-time numbers."""
    namespace = load(printed.text)
    calls = [
        _FunctionCall(namespace[f.name], f, printed.config, slots, scalar_positions)
        for f in printed.functions
    ]
    checks = kernel.checks
    if len(calls) == 1 and not checks:
        (only,) = calls
        return lambda slot_tensors, values: only(slot_tensors, values, {})
    failed: dict[torch.device, torch.Tensor] = {}

    def launch(slot_tensors: Sequence[torch.Tensor | None], values: Sequence[float]) -> None:
        named_tensors: dict[str, torch.Tensor] = {}
        if checks:
            device = next(t.device for t in slot_tensors if t is not None)
            if device not in failed:
                # The device writes to pinned host memory, so that it can be read without synchronizing.
                words = torch.zeros(len(checks), dtype=torch.int64)
                failed[device] = words if device.type == "cpu" else words.pin_memory()
            named_tensors["failed"] = failed[device]
            _raise_and_reset(checks, failed[device])
        for call in calls:
            call(slot_tensors, values, named_tensors)
        if checks:
            _raise_and_reset(checks, failed[device])

    return launch


def _choose_by_alignment(
    kernel: Kernel, slots: dict[Buffer, int], with_descriptors: Launcher, without_descriptors: Launcher
) -> Launcher:
    """Return a launcher that uses tensor descriptors if all of a matmul's inputs are 16-byte aligned."""
    assert kernel.matmul is not None
    read_buffers = {e.extra[0] for e in walk([kernel.matmul.body]) if e.op == "load"}
    read_slots = [slots[buffer] for buffer in read_buffers]

    def launch(slot_tensors: Sequence[torch.Tensor | None], values: Sequence[float]) -> None:
        is_aligned = not any(slot_tensors[slot].data_ptr() & 15 for slot in read_slots)  # type: ignore[union-attr]
        (with_descriptors if is_aligned else without_descriptors)(slot_tensors, values)

    return launch


def _allocate_workspace(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Allocate memory for a kernel's tensor descriptors, on the current stream, like the launch."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _raise_and_reset(checks: Sequence[Check], failed: torch.Tensor) -> None:
    """Raise the error of the first failed check, and reset all.

    The device runs asynchronously, so the error of one call may be raised by a later one, at the latest by
    the first call after a synchronization.
    """
    words = failed.tolist()
    if any(words):
        failed.zero_()
        raise_failed_check(checks, words)


class _FunctionCall:
    """A Triton function with everything that is the same in every call."""

    def __init__(
        self,
        function: Any,
        printed: DeviceFunction,
        config: AnyConfig,
        slots: dict[Buffer, int],
        scalar_positions: dict[int, int],
    ) -> None:
        self.function = function
        self.buffers = [slots[a] for a in printed.arguments if isinstance(a, Buffer)]
        self.workspaces = [a for a in printed.arguments if isinstance(a, Workspace)]
        self.may_fail = any(isinstance(a, FailedFlag) for a in printed.arguments)
        self.numbers = [scalar_positions[a.position] for a in printed.arguments if isinstance(a, ScalarArg)]
        self.sizes = [a for a in printed.arguments if isinstance(a, int)]
        self.constants = printed.constants
        self.trailing = [*self.sizes, *printed.constants.values()]
        self.grid = (printed.programs, 1, 1)
        self.options = config.options
        self.uses_descriptors = isinstance(config, MatmulConfig) and config.descriptors
        self.compiled: dict[Any, Any] = {}
        self.is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"

    def __call__(
        self, slot_tensors: Sequence[Any], values: Sequence[float], named_tensors: dict[str, torch.Tensor]
    ) -> None:
        tensors = [slot_tensors[slot] for slot in self.buffers]
        # A function that reduces partial results only may take no buffers of its own.
        device = next(t.device for t in slot_tensors if t is not None)
        for work in self.workspaces:
            if work.name not in named_tensors:
                named_tensors[work.name] = torch.empty(work.size, dtype=work.dtype, device=device)
            tensors.append(named_tensors[work.name])
        if self.may_fail:
            tensors.append(named_tensors["failed"])
        numbers = [values[position] for position in self.numbers]
        if self.is_interpreted:
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
            launchable = self.function.warmup(
                *tensors, *numbers, *self.sizes, grid=self.grid, **self.constants, **self.options
            )
            compiled = self.compiled[key] = launchable[self.grid]
        if self.uses_descriptors:
            # Triton's allocator is a context variable, which the user's code may have set: use a copy.
            context = contextvars.copy_context()
            context.run(triton.set_allocator, _allocate_workspace)
            context.run(lambda: compiled(*addresses, *numbers, *self.trailing))
        else:
            compiled(*addresses, *numbers, *self.trailing)
