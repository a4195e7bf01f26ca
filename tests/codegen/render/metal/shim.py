"""Run generated Metal as C++: a target like Metal's own, but with a C++ compiler."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.runtime.metal_backend import METAL, build_metal
from tests.codegen.render.compiled_once import compiled_once, folder_of

COMPILER = shutil.which("g++") or shutil.which("clang++")
# As kernels require of Metal: products are rounded before they are added; integer overflow wraps.
_LINK = "-Wl,-z,noseparate-code,-z,norelro"
_FLAGS = ["-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fwrapv", "-fPIC"]
_WARNINGS = ["-Werror", "-Wdouble-promotion", "-Wno-attributes", "-Wno-unknown-pragmas"]
_KERNEL = re.compile(r"^kernel void (\w+)\((.*?)\)\n\{\n(.*?)^\}$", re.M | re.S)
_BUFFER = re.compile(r"(device|constant) (const )?(\w+) \*(\w+) \[\[buffer\((\d+)\)\]\]")


@functools.cache
def _folder() -> Path:
    """Return the folder of compiled Metal, with the shim and its precompiled header."""
    header = Path(__file__).with_name("shim.h").read_bytes()
    version = subprocess.run([str(COMPILER), "--version"], capture_output=True, check=True).stdout
    folder = folder_of("metal", version, _FLAGS, _WARNINGS, _LINK, header)
    compiled_once(folder / "shim.h", lambda begun: begun.write_bytes(header))
    compiled_once(
        folder / "shim.h.gch",
        lambda begun: _compile("-x", "c++-header", "shim.h", "-o", begun.name, folder=folder),
    )
    return folder


def _compile(*arguments: str, folder: Path) -> None:
    result = subprocess.run([str(COMPILER), *_FLAGS, *arguments], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[:4000]


def compile_cpp(text: str) -> ctypes.CDLL:
    """Compile C++ source that includes shim.h to a library, with as few memory mappings as burnt's own."""
    folder = _folder()

    def compile_to(library: Path) -> None:
        source = library.with_suffix(".cpp")
        source.write_text(text)
        _compile(*_WARNINGS, "-shared", _LINK, source.name, "-o", library.name, folder=folder)
        source.unlink()

    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    return ctypes.CDLL(str(compiled_once(folder / f"{name}.so", compile_to)))


def as_cpp(source: str) -> str:
    """Convert Metal source to C++, with ``run_<kernel>(buffers, sizes, threads, group)`` for each kernel."""
    assert not re.search(r"\bdouble\b", re.sub(r"/\*.*?\*/", "", source, flags=re.S))
    text = source.replace("#include <metal_stdlib>\n", "")
    runners = []
    for name, head, body in _KERNEL.findall(text):
        names = dict.fromkeys(_BUFFER.findall(head))
        together = str(re.search("barrier|shuffle|simd_", body) is not None).lower()
        arguments = []
        for space, only, kind, _, slot in names:
            only = "const " if space == "constant" or only else ""
            arguments.append(f"{{({only}{kind} *)held[{slot}], counts[{slot}]}}")
        runners.append(
            f"static void one_{name}(uint3 at) {{ {name}({', '.join([*arguments, 'at'])}); }}\n"
            f'extern "C" const char *run_{name}(void **buffers, long *sizes, uint *threads, uint *group)\n'
            f"{{\n    held = buffers, counts = sizes;\n    run(one_{name}, threads, group, {together});\n"
            f"    return failure;\n}}\n"
        )
    text = _BUFFER.sub(
        lambda m: f"checked<{'const ' if m[1] == 'constant' or m[2] else ''}{m[3]}> {m[4]}", text
    ).replace(" [[thread_position_in_grid]]", "")
    return (
        f'#include "shim.h"\nnamespace metal {{\nstatic void **held;\nstatic long *counts;\n{text}\n'
        f"{''.join(runners)}}}\n"
    )


class Library:
    """Like the result of `torch.mps.compile_shader`: kernels are attributes."""

    def __init__(self, source: str) -> None:
        self.loaded = compile_cpp(as_cpp(source))
        self.heads = {name: head for name, head, _ in _KERNEL.findall(source)}

    def __getattr__(self, name: str) -> Any:
        run = getattr(self.loaded, f"run_{name}")
        run.restype = ctypes.c_char_p
        # The words of checks are only written if a check fails.
        written = {
            int(slot)
            for _, only, _, name, slot in _BUFFER.findall(self.heads[name])
            if not only and name != "failed"
        }

        def call(
            *arguments: Any,
            threads: Sequence[int],
            group_size: Sequence[int],
            arg_casts: dict[int, str] | None = None,
        ) -> None:
            assert len(threads) == len(group_size) == 3
            assert 0 < torch.Size(group_size).numel() <= 1024
            tensors = [_bound(a, (arg_casts or {}).get(i)) for i, a in enumerate(arguments)]
            read = {t.data_ptr() for i, t in enumerate(tensors) if i not in written}
            sizes = []
            for i, tensor in enumerate(tensors):
                left = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
                sizes.append(left)
                if i in written and isinstance(arguments[i], Tensor) and tensor.data_ptr() not in read:
                    # Fill outputs with NaN, or with an unlikely integer.
                    ctypes.memset(
                        tensor.data_ptr(),
                        0xFF if tensor.is_floating_point() else 0x55,
                        left * tensor.itemsize,
                    )
            buffers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
            failure = run(
                buffers,
                (ctypes.c_long * len(sizes))(*sizes),
                (ctypes.c_uint * 3)(*threads),
                (ctypes.c_uint * 3)(*group_size),
            )
            assert not failure, f"{name}: {failure.decode()}"

        return call


def _bound(argument: Any, cast: str | None) -> Tensor:
    """Convert an argument as torch does: in lists, Python integers have 64 bits, floats 32."""
    if isinstance(argument, Tensor):
        return argument
    assert isinstance(argument, list)
    assert argument
    kinds = {None: torch.int64, "int32": torch.int32}
    return torch.tensor(argument, dtype=torch.float32 if isinstance(argument[0], float) else kinds[cast])


@functools.cache
def shader(source: str) -> Library:
    """Compile Metal source to a library."""
    return Library(source)


METAL_SHIM = dataclasses.replace(
    METAL, build=functools.partial(build_metal, shader), why_unavailable=lambda: None
)
