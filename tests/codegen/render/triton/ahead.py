"""Compile generated kernels for GPUs that need not be present: code, registers, spills, shared memory."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from burnt.codegen.function import Function
from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.source import FailedFlag, ScalarArg, TritonSource, Workspace, select_config
from burnt.codegen.render.triton.tile_config import Limits
from burnt.codegen.runtime.target import BuiltKernels
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.codegen.runtime.triton_launch import load
from tests.codegen.render.triton.machine_code import MachineCode, disassembled

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
    "gfx1100": GPUTarget("hip", "gfx1100", 32),
}
# Bytes of shared memory per program.
SHARED = {
    "sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_120": 99 << 10, "gfx90a": 64 << 10,
    "gfx942": 64 << 10, "gfx950": 160 << 10, "gfx1100": 64 << 10,
}  # fmt: skip


def limits_of(target: str) -> Limits:
    """Return the limits of an architecture, with an H100's or an MI300's number of multiprocessors."""
    if target.startswith("gfx"):
        lanes = TARGETS[target].warp_size
        return Limits(304, 2048 * lanes, 256, SHARED[target], lanes, is_rocm=True)
    return Limits(132, shared_memory=SHARED[target])


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


class _Driver:
    """The part of a Triton driver that compiling needs; nothing is launched."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


@contextmanager
def driven(target: GPUTarget) -> Iterator[None]:
    """Make Triton compile for this target."""
    before = driver._active  # `driver.active` would fail without a GPU
    driver.set_active(_Driver(target))
    try:
        yield
    finally:
        driver._active = before


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
    results = []
    with driven(TARGETS[target]):
        for kernel in kernels:
            space = load(kernel.text)
            for function in kernel.functions:
                arguments = [_argument(a) for a in function.arguments]
                jit = triton.JITFunction(space[function.name].fn)
                compiled_kernel = jit.warmup(
                    *arguments, grid=(1,), **function.constants, **kernel.config.options
                )
                results.append(measured(compiled_kernel, function.name, target, folder))
    return results


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


def _argument(argument: Any) -> Any:
    if isinstance(argument, Buffer | Workspace):
        return MockTensor(argument.dtype)
    if isinstance(argument, FailedFlag):
        return MockTensor(torch.int64)
    return 1.5 if isinstance(argument, ScalarArg) else argument


def measured(kernel: Any, name: str, target: str, folder: Path) -> Compiled:
    """Return the resources of a kernel that Triton compiled."""
    shared = kernel.metadata.shared
    if target.startswith("sm"):
        file = folder / f"{name}.cubin"
        file.write_bytes(kernel.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        output = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
        usage = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", output))
        spilled = int(usage["STACK"]) + int(usage["LOCAL"])
        return Compiled(name, kernel.asm["ptx"], int(usage["REG"]), spilled, shared, file)
    assembly = kernel.asm["amdgcn"]

    def number(field: str) -> int:
        return int(re.search(rf"\.{field}:\s+(\d+)", assembly)[1])  # type: ignore[index]

    return Compiled(name, assembly, number("vgpr_count"), 4 * number("vgpr_spill_count"), shared)
