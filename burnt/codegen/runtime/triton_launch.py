"""Load generated Triton code, and launch its functions from a plan's generated host code.

A plan's shapes and strides are fixed, so grids and sizes are computed once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import linecache
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from burnt.codegen.ir import Buffer, Check, Kernel, walk
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.source import (
    AnyConfig,
    FailedFlag,
    ScalarArg,
    TritonSource,
    Workspace,
    select_config,
)
from burnt.codegen.runtime.bound_launch import IS_INTERPRETED, BoundLaunch, Pointer, add_launch
from burnt.codegen.runtime.host_code import HostCode, raise_failed_check
from burnt.codegen.runtime.target import BuiltKernels, Launcher

_NO_BLOCK_SIZES: Mapping[str, AnyConfig] = MappingProxyType({})


def build(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    number_positions: Sequence[int],
    choose: Callable[[Any], AnyConfig] = select_config,
    blocks: Mapping[str, AnyConfig] = _NO_BLOCK_SIZES,
) -> BuiltKernels:
    """Generate Triton code for kernels and return their launchers; Triton compiles them at the first launch.

    Launchers take variables for `buffers` and for the numbers of `number_positions`, in order. `choose`
    selects a kernel's block sizes, unless `blocks` has some for its name.
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
    """Return the launcher of a kernel, given the positions of all buffers and of all run-time numbers."""
    namespace, checks = load(printed.text), kernel.checks
    stand_ins: dict[type, Callable[[Any], Any]] = {
        Buffer: lambda b: Pointer.of(torch.empty_strided(b.shape, b.strides, dtype=b.dtype, device="meta")),
        Workspace: lambda w: Pointer(w.dtype, w.size * w.dtype.itemsize),
        FailedFlag: lambda _: Pointer(torch.int64, len(checks) * 8),
        ScalarArg: lambda _: 0.5,
        int: lambda size: size,
    }

    def append(code: HostCode, tensors: Sequence[str], numbers: Sequence[str]) -> None:
        variables: dict[Any, str] = {}
        if checks:
            # The device writes to pinned host memory, so that it can be read without synchronizing.
            failed = torch.zeros(len(checks), dtype=torch.int64, pin_memory=code.device.type != "cpu")
            variables[FailedFlag()] = code.name(failed)
        for function in printed.functions:
            for a in function.arguments:
                if isinstance(a, Workspace) and a not in variables:
                    variables[a] = f"{a.name}_{len(code.lines)}"
                    code.empty(variables[a], (a.size,), (1,), a.dtype)
            arguments = []
            for a in function.arguments:
                if isinstance(a, ScalarArg):
                    arguments.append(numbers[scalar_positions[a.position]])
                elif not isinstance(a, int):
                    tensor = tensors[slots[a]] if isinstance(a, Buffer) else variables[a]
                    arguments.append(tensor if IS_INTERPRETED else code.address(tensor))
            bound = BoundLaunch(
                namespace[function.name],
                (function.programs,),
                tuple(stand_ins[type(a)](a) for a in function.arguments),
                function.constants,
                printed.config.options,
            )
            add_launch(code, bound, arguments)
        code.lines += [f"{name} = None" for a, name in variables.items() if isinstance(a, Workspace)]
        if checks:
            words = (ctypes.c_int64 * len(checks)).from_address(failed.data_ptr())
            any_failed = " or ".join(f"{code.name(words)}[{i}]" for i in range(len(checks)))
            code.lines.append(f"if {any_failed}:")
            code.lines.append(f"    {code.call(_raise_and_reset, code.name(checks), code.name(failed))}")

    return append


def _choose_by_alignment(
    kernel: Kernel, slots: dict[Buffer, int], with_descriptors: Launcher, without_descriptors: Launcher
) -> Launcher:
    """Return a launcher that uses tensor descriptors if all of a matmul's inputs are 16-byte aligned."""
    assert kernel.matmul is not None
    read_buffers = {e.extra[0] for e in walk([kernel.matmul.body]) if e.op == "load"}
    read_slots = [slots[buffer] for buffer in read_buffers]

    def append(code: HostCode, tensors: Sequence[str], numbers: Sequence[str]) -> None:
        addresses = " | ".join([code.address(tensors[slot]) for slot in read_slots])
        start = len(code.lines)
        blocks = []
        for launcher in (without_descriptors, with_descriptors):
            launcher(code, tensors, numbers)
            blocks.append([f"    {line}" for line in code.lines[start:]])
            del code.lines[start:]
        code.lines += [f"if ({addresses}) & 15:", *blocks[0], "else:", *blocks[1]]

    return append


def _raise_and_reset(checks: Sequence[Check], failed: torch.Tensor) -> None:
    """Raise the error of the first failed check, and reset all.

    The device runs asynchronously, so the error of one call may be raised by a later one, at the latest by
    the first call after a synchronization.
    """
    words = failed.tolist()
    failed.zero_()
    raise_failed_check(checks, words)
