"""Compile generated Triton kernels for GPUs that need not be present: assembly, registers, spills, memory."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from burnt.codegen.frontend.trace import PLANNING_LOCK
from burnt.codegen.ir import Expr, Kernel
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.source import TritonSource, select_config
from burnt.codegen.runtime.triton_backend import ARCHITECTURES, Architecture
from burnt.codegen.runtime.triton_compile_pool import CompileOnlyDriver, Job, compile_job, source_jobs
from burnt.errors import CompileError


class MachineCode(NamedTuple):
    """A function compiled for an architecture."""

    name: str
    assembly: str  # its text
    registers: int  # per thread
    spilled: int  # bytes per thread that registers are spilled to
    shared: int  # bytes of shared memory per program
    cubin: bytes | None = None  # the file of the machine code, for NVIDIA


@contextlib.contextmanager
def compiling_for(architecture: Architecture) -> Iterator[None]:
    """Context in which Triton compiles for an architecture, and launches nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    before = driver._active  # `driver.active` would fail without a GPU
    driver.set_active(CompileOnlyDriver(GPUTarget(*architecture[:3])))
    try:
        yield
    finally:
        driver._active = before


def printed_for(kernel: Kernel, architecture: str) -> TritonSource:
    """Return the Triton source of a scheduled kernel with the block sizes selected for an architecture."""
    return print_kernel(kernel, select_config(structure_of(kernel), ARCHITECTURES[architecture].limits))


def compile_kernel(kernel: Kernel, architecture: str) -> MachineCode:
    """Compile a scheduled kernel: the assembly of its functions, and the most that one of them needs.

    Kernels that differ in name only are compiled once.
    """
    with PLANNING_LOCK:
        Expr.restore_interned(kernel.exprs)
        printed = printed_for(kernel, architecture)
        Expr.clear_interned()
    jobs = [json.dumps(job).replace(kernel.name, "kernel") for job in source_jobs(printed)]
    try:
        found = [_compile_once(job, architecture) for job in jobs]
    except Exception as error:  # of any kind: Triton raises its own
        where, what = f"{kernel.name}, for {architecture}", f"{type(error).__name__}: {error}"
        raise CompileError("a kernel does not compile", where=where, found=what) from error
    assembly = re.sub(r"\bkernel(?=\b|_)", kernel.name, "\n".join(code.assembly for code in found))
    registers, spilled, shared = map(max, zip(*[c[2:5] for c in found], strict=True))
    return MachineCode(kernel.name, assembly, registers, spilled, shared)


@functools.lru_cache(1024)
def _compile_once(job: str, architecture: str) -> MachineCode:
    function = Job(*json.loads(job))
    with compiling_for(ARCHITECTURES[architecture]):
        return measured(compile_job(function), function.name, architecture)


def measured(compiled: Any, name: str, architecture: str) -> MachineCode:
    """Return the assembly of a kernel that Triton compiled, and what it needs."""
    import triton

    language = ARCHITECTURES[architecture].assembly
    assembly, shared = compiled.asm[language], compiled.metadata.shared
    if language == "amdgcn":
        fields = {key: int(value) for key, value in re.findall(r"\.(vgpr\w*_count):\s+(\d+)", assembly)}
        return MachineCode(name, assembly, fields["vgpr_count"], 4 * fields["vgpr_spill_count"], shared)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    spilled = usage["STACK"] + usage["LOCAL"]
    return MachineCode(name, assembly, usage["REG"], spilled, shared, compiled.asm["cubin"])
