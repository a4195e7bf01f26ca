"""Run generated C on ARM: a target like the C target, compiled for AArch64 and run in QEMU.

A launch is a process: a file holds the kernel's number, the memory of its tensors and its arguments, and then
the memory as the kernel left it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.render.c.kernel import print_helpers, print_kernel
from burnt.codegen.render.shape_params import with_constant_sizes
from burnt.codegen.runtime import c_compiler
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.host_code import raise_failed_check
from burnt.codegen.runtime.target import BuiltKernels, Launcher, launcher_of
from tests.codegen.render.compiled_once import compiled_once, folder_of

__all__ = ["AARCH64", "build_program", "needs_aarch64"]

_COMPILER, _EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
_missing = [tool for tool in (_COMPILER, _EMULATOR) if shutil.which(tool) is None]
needs_aarch64 = pytest.mark.skipif(
    bool(_missing), reason=f"no {', no '.join(_missing)}: scripts/install-tools"
)

# What the kernels' own flags say about this machine, and about libraries.
_OF_THIS_MACHINE = ("-march=", "-mcpu=", "-mprefer-vector-width=", "-shared", "-fPIC", "-Xpreprocessor")
_FLAGS = [flag for flag in c_compiler.flags() if not flag.startswith(_OF_THIS_MACHINE)]
_FLAGS += [*c_compiler.workaround_flags("gcc"), "-mcpu=cortex-a72", "-fopenmp", "-static"]

# Around each storage, to find writes beyond its ends.
_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { GUARD = 64 };
int main(int count, char **names) {
    int64_t head[3], sizes[256], argument[3];
    unsigned char *storages[256], guard[GUARD];
    burnt_arg arguments[512];
    FILE *file = fopen(names[1], "r+b");
    if (count != 2 || !file || fread(head, 8, 3, file) != 3 || head[1] > 256 || head[2] > 512) return 1;
    memset(guard, 0xA5, GUARD);
    for (int i = 0; i < head[1]; i++) {
        if (fread(&sizes[i], 8, 1, file) != 1) return 1;
        storages[i] = aligned_alloc(64, (sizes[i] + 2 * GUARD + 63) / 64 * 64) + GUARD;
        memcpy(storages[i] - GUARD, guard, GUARD);
        memcpy(storages[i] + sizes[i], guard, GUARD);
        if (fread(storages[i], 1, sizes[i], file) != (size_t)sizes[i]) return 1;
    }
    for (int i = 0; i < head[2]; i++) {
        if (fread(argument, 8, 3, file) != 3) return 1;
        if (argument[0] == 0) arguments[i].p = storages[argument[1]] + argument[2];
        else arguments[i].i = argument[1]; /* a null pointer, or the bits of a double */
    }
    rewind(file);
    kernels[head[0]](arguments);
    for (int i = 0; i < head[1]; i++) {
        if (memcmp(storages[i] - GUARD, guard, GUARD)) return 3;
        if (memcmp(storages[i] + sizes[i], guard, GUARD)) return 4;
        fwrite(storages[i], 1, sizes[i], file);
    }
    return fclose(file) != 0;
}
"""


@functools.cache
def _folder() -> Path:
    version = subprocess.run([_COMPILER, "--version"], capture_output=True, check=True).stdout
    return folder_of("aarch64", version, _FLAGS)


def build_program(source: str, kernels: Sequence[Kernel]) -> Path:
    """Compile kernels with a main function, and return the program."""
    names = ", ".join(kernel.name for kernel in kernels)
    table = f"static void (*const kernels[])(const burnt_arg *) = {{{names}}};"
    text = f"{c_compiler.PREAMBLE}{source}\n{table}\n{_MAIN}"

    def compile_to(program: Path) -> None:
        command = [_COMPILER, *_FLAGS, "-x", "c", "-", "-o", str(program), "-lm"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]

    return compiled_once(_folder() / hashlib.sha256(text.encode()).hexdigest()[:20], compile_to)


def _build(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], number_positions: Sequence[int]
) -> BuiltKernels:
    functions = [f"void {kernel.name}{with_constant_sizes(print_kernel(kernel))}" for kernel in kernels]
    source = "\n".join([print_helpers(), *functions])
    program = build_program(source, kernels)

    def launcher(kernel: Kernel) -> Launcher:
        def launch(slot_tensors: Sequence[Tensor | None], numbers: Sequence[float]) -> None:
            failed = torch.zeros(len(kernel.checks), dtype=torch.int64)
            given: list[Tensor | float | None] = [
                slot_tensors[buffers.index(a)]
                if isinstance(a, Buffer)
                else numbers[number_positions.index(a)]
                for a in kernel.arguments
            ]
            _run(program, kernels.index(kernel), [*given, *([failed] if kernel.checks else [])])
            raise_failed_check(kernel.checks, failed.tolist())

        return launcher_of(launch)

    return BuiltKernels(dict.fromkeys(kernels, source), {kernel: launcher(kernel) for kernel in kernels})


def _run(program: Path, number: int, given: Sequence[Tensor | float | None]) -> None:
    storages: dict[int, Any] = {}
    arguments = b""
    for tensor in given:
        if isinstance(tensor, float):
            arguments += struct.pack("qdq", 2, tensor, 0)
            continue
        if tensor is None or not tensor.untyped_storage().nbytes():
            arguments += struct.pack("qqq", 1, 0, 0)
            continue
        storage = tensor.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage)
        index = list(storages).index(storage.data_ptr())
        arguments += struct.pack("qqq", 0, index, tensor.data_ptr() - storage.data_ptr())
    parts = [struct.pack("qqq", number, len(storages), len(given))]
    for storage in storages.values():
        parts += [struct.pack("q", storage.nbytes()), ctypes.string_at(storage.data_ptr(), storage.nbytes())]
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(b"".join([*parts, arguments]))
        done = subprocess.run(
            [_EMULATOR, str(program), file.name],
            capture_output=True,
            timeout=120,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
        )
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr.decode()}"
        memory = Path(file.name).read_bytes()
    for storage in storages.values():
        ctypes.memmove(storage.data_ptr(), memory[: storage.nbytes()], storage.nbytes())
        memory = memory[storage.nbytes() :]


AARCH64 = dataclasses.replace(C, build=_build, why_unavailable=lambda: None)
