"""Compile generated kernels for GPUs that need not be present: code, registers, spills, shared memory."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.jit import MockTensor

from burnt.codegen.function import Function
from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.source import TritonSource, select_config
from burnt.codegen.render.triton.tile_config import Limits
from burnt.codegen.runtime import triton_ahead
from burnt.codegen.runtime.target import BuiltKernels
from burnt.codegen.runtime.triton_ahead import compiling_for as driven
from burnt.codegen.runtime.triton_backend import ARCHITECTURES, TRITON
from burnt.codegen.runtime.triton_compile_pool import compile_job, source_jobs
from tests.codegen.render.triton.machine_code import MachineCode, disassembled

TARGETS = ARCHITECTURES
SHARED = {name: architecture.shared_memory for name, architecture in ARCHITECTURES.items()}


def limits_of(target: str) -> Limits:
    """Return the limits of an architecture, with an H100's or an MI300's number of multiprocessors."""
    return ARCHITECTURES[target].limits


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A function compiled for a target.

    Args:
        name: of the function.
        assembly: its text.
        registers: per thread.
        spilled: bytes per thread spilled from registers.
        shared: bytes of shared memory per program.
        cubin: the file of the machine code, for NVIDIA.
    """

    name: str
    assembly: str
    registers: int
    spilled: int
    shared: int
    cubin: Path | None = None

    @property
    def code(self) -> MachineCode:
        """The machine code, of a kernel for NVIDIA."""
        assert self.cubin is not None
        return disassembled(self.cubin.read_bytes())

    @property
    def doubles(self) -> list[str]:
        """The float64 instructions in it."""
        return sorted(set(re.findall(r"\S*\.f64\S*|v_\S*_f64\S*", self.assembly)))


def planned(
    fn: Callable[..., Any], *args: Any, gradients: bool = False, products: bool = False
) -> list[Kernel]:
    """Return the kernels of a function, forward and backward, without running it.

    Args:
        fn, args: the function and its arguments.
        gradients: whether to differentiate with respect to all floating-point tensors.
        products: whether every matmul is a kernel, even if it would be torch's own call by default.
    """
    all_kernels: list[Kernel] = []

    def build(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> BuiltKernels:
        all_kernels.extend(kernels)
        return BuiltKernels(dict.fromkeys(kernels, ""), dict.fromkeys(kernels, lambda *_: None))

    inputs = [
        a.detach().requires_grad_() if gradients and isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    ]
    target = dataclasses.replace(TRITON, build=build, why_unavailable=lambda: None)
    if products:
        target = dataclasses.replace(target, why_torch_matmul=lambda node: None)
    results = Function(fn, target=target)(*inputs)
    if gradients:
        roots = [r for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad]
        grad_inputs = [a for a in inputs if isinstance(a, Tensor) and a.requires_grad]
        torch.autograd.grad(roots, grad_inputs, [torch.ones_like(r) for r in roots], allow_unused=True)
    return all_kernels


def printed(fn: Callable[..., Any], *args: Any, gradients: bool = False) -> list[TritonSource]:
    """Return the kernels of a function, forward and backward, as Triton."""
    return [print_kernel(k, select_config(structure_of(k))) for k in planned(fn, *args, gradients=gradients)]


def compiled(kernels: Sequence[TritonSource], target: str, folder: Path) -> list[Compiled]:
    """Compile every function of some kernels for a target."""
    with driven(TARGETS[target]):
        jobs = [job for kernel in kernels for job in source_jobs(kernel)]
        return [measured(compile_job(job), job.name, target, folder) for job in jobs]


def compiled_as_written(function: Any, arguments: Sequence[Any], target: str, folder: Path) -> Compiled:
    """Compile a hand-written kernel; tensor arguments are given as their dtypes."""
    with driven(TARGETS[target]):
        given = [MockTensor(a) if isinstance(a, torch.dtype) else a for a in arguments]
        compiled_kernel = triton.JITFunction(function.fn).warmup(*given, grid=(1,))
        return measured(compiled_kernel, function.fn.__name__, target, folder)


def compiled_launch(launch: Any, target: str, folder: Path) -> Compiled:
    """Compile what a `Launch` of hand-written kernels launches, with tensors on the meta device."""
    with driven(TARGETS[target]):
        given = _mocked(launch.arguments)
        jit = triton.JITFunction(launch.kernel.fn)
        compiled_kernel = jit.warmup(*given, grid=(1,), **launch.constants, **launch.options)
        return measured(compiled_kernel, launch.kernel.fn.__name__, target, folder)


def _mocked(argument: Any) -> Any:
    """Replace the tensors of nested tuples by their dtypes."""
    if isinstance(argument, tuple):
        return tuple(map(_mocked, argument))
    return MockTensor(argument.dtype) if isinstance(argument, Tensor) else argument


def measured(kernel: Any, name: str, target: str, folder: Path) -> Compiled:
    """Return the resources of a kernel that Triton compiled."""
    found = triton_ahead.measured(kernel, name, target)
    file = None
    if found.cubin is not None:
        file = folder / f"{name}.cubin"
        file.write_bytes(found.cubin)
    return Compiled(**{**found._asdict(), "cubin": file})
