"""What runs a model in a page: its C as WebAssembly, with weights in 16 bits or not; onnxruntime-web."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from burnt.errors import UnsupportedError
from burnt.export.c_source import CSource

INSTALL = "apt install clang lld wasi-libc libclang-rt-14-dev-wasm32 (Debian 12)"

_FLAGS = ("--target=wasm32-wasi", "-mexec-model=reactor", "-std=c99", "-O3", "-nostartfiles")
# Below the data, so that a stack that is too small ends in an error instead of overwriting weights.
_STACK = ("-Wl,--stack-first", "-Wl,-z,stack-size=1048576")
_LINK = ("-Wl,--no-entry", *_STACK, "-Wl,--strip-all")

_WEIGHT = re.compile(
    r"^const EMX_UNUSED float (\w+)((?:\[\d+\]){2,}) = \{(.*?)^\};$", re.MULTILINE | re.DOTALL
)
_DECLARATION = re.compile(r"^extern const float (\w+).*\n", re.MULTILINE)

_EXPAND = {
    "bfloat16": """\
static float burnt_expand(uint16_t bits) {
    union { uint32_t i; float f; } value;
    value.i = (uint32_t)bits << 16;
    return value.f;
}
""",
    # Subnormal numbers have no hidden bit: their value is a multiple of 2^-24.
    "float16": """\
static float burnt_expand(uint16_t bits) {
    union { uint32_t i; float f; } value;
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) value.i = sign | 0x7f800000u | (rest & 0x3ffu) << 13;
    else if (rest >= 0x400u) value.i = sign | ((rest << 13) + 0x38000000u);
    else { value.f = (float)rest * 0x1p-24f; value.i |= sign; }
    return value.f;
}
""",
}


def compile_wasm(source: CSource, weights: str = "float32") -> bytes:
    """Compile a model's C to WebAssembly: a module without imports.

    It exports ``memory``; ``init()``, to be called once; ``run()``; and for input or output i the functions
    ``input_i()`` and ``output_i()``, which return the address of its buffer. Matrices are stored as
    `weights`, ``"float32"``, or ``"float16"`` or ``"bfloat16"``, to which they are rounded already, and which
    ``init()`` expands.
    """
    for tool in ("clang", "wasm-ld"):
        if shutil.which(tool) is None:
            raise UnsupportedError(
                "compiling to WebAssembly needs clang with wasm32-wasi", found=f"no {tool}", hint=INSTALL
            )
    text, expansions = source.text, ""
    if weights != "float32":
        text, expansions = _store_in_16_bits(text, weights)
    with tempfile.TemporaryDirectory(prefix="burnt-wasm-") as folder:
        Path(folder, "model.c").write_text(text + _entry_points(source, expansions), encoding="utf-8")
        done = subprocess.run(
            ["clang", *_FLAGS, *_LINK, "model.c", "-o", "model.wasm", "-lm"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise UnsupportedError(
                "clang cannot compile the model to WebAssembly", found=done.stderr[:500], hint=INSTALL
            )
        return Path(folder, "model.wasm").read_bytes()


def _entry_points(source: CSource, expansions: str) -> str:
    buffers = {f"input_{i}": parameter for i, parameter in enumerate(source.inputs)}
    buffers |= {f"output_{i}": parameter for i, parameter in enumerate(source.outputs)}
    lines = []
    for role, parameter in buffers.items():
        lines += [
            f"static {parameter.kind} buffer_{role}{parameter.dims};",
            f'__attribute__((export_name("{role}")))',
            f"void *address_of_{role}(void) {{ return buffer_{role}; }}",
        ]
    arguments = ", ".join(f"buffer_{role}" for role in buffers)
    lines += [
        f'__attribute__((export_name("init"))) void burnt_init(void) {{ {expansions} }}',
        f'__attribute__((export_name("run"))) void burnt_run(void) {{ {source.name}({arguments}); }}',
    ]
    return "\n" + "\n".join(lines) + "\n"


def _store_in_16_bits(text: str, weights: str) -> tuple[str, str]:
    """Store the float matrices of a C program in 16 bits; return it with the statements that expand them."""
    dtype: torch.dtype = getattr(torch, weights)
    statements: list[str] = []

    def stored(match: re.Match[str]) -> str:
        name, dims, values = match.groups()
        literals = re.findall(r"-?0x[0-9a-f.]+p[-+]?\d+", values)
        exact = torch.tensor([float.fromhex(literal) for literal in literals])
        if len(exact) != math.prod(int(size) for size in re.findall(r"\d+", dims)):  # some are infinite
            return match[0]
        rounded = exact.to(dtype)
        if not torch.equal(rounded.float(), exact):  # a constant that no weight was rounded to
            return match[0]
        bits = ", ".join(str(b & 0xFFFF) for b in rounded.view(torch.int16).tolist())
        statements.append(
            f"for (int i = 0; i < {len(exact)}; ++i) ((float *){name})[i] = burnt_expand({name}_bits[i]);"
        )
        return f"static const uint16_t {name}_bits[{len(exact)}] = {{{bits}}};\nfloat {name}{dims};"

    changed = _WEIGHT.sub(stored, text)
    variables = set(re.findall(r"^float (\w+)", changed, re.MULTILINE))
    changed = _DECLARATION.sub(lambda match: "" if match[1] in variables else match[0], changed)
    return "#include <stdint.h>\n" + _EXPAND[weights] + changed, " ".join(statements)


VERSION = "1.30.0"

_SCRIPT = "dist/ort.wasm.bundle.min.mjs"
_WASM = "dist/ort-wasm-simd-threaded.wasm"


@dataclass(frozen=True)
class OnnxRuntimeWeb:
    """The files of the package that run a model on the CPU."""

    version: str
    script: bytes
    wasm: bytes

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read the package from its folder, or from the archive that ``npm pack`` makes."""
        names = ("package.json", _SCRIPT, _WASM)
        try:
            if Path(path).is_dir():
                contents = [Path(path, name).read_bytes() for name in names]
            else:
                with tarfile.open(path) as archive:
                    members = (archive.extractfile(f"package/{name}") for name in names)
                    contents = [member.read() for member in members if member is not None]
            description, script, wasm = contents
            return cls(json.loads(description)["version"], script, wasm)
        except (OSError, tarfile.TarError, KeyError, ValueError) as error:
            raise UnsupportedError(
                "this is not a package onnxruntime-web",
                where=os.fspath(path),
                expected=f"a folder with {', '.join(names)}, or the archive of it",
                found=str(error),
                hint=f"npm pack onnxruntime-web@{VERSION}",
            ) from error

    @classmethod
    def from_npm(cls) -> Self:
        """Fetch the package by npm, which keeps it in its cache."""
        command = ["npm", "pack", "--silent", f"onnxruntime-web@{VERSION}"]
        hint = f"on a machine with npm: `{' '.join(command)}`, then --onnxruntime-web FILE"
        if shutil.which("npm") is None:
            raise UnsupportedError("the page needs onnxruntime-web", found="no npm to fetch it", hint=hint)
        with tempfile.TemporaryDirectory(prefix="burnt-npm-") as folder:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise UnsupportedError("npm cannot fetch onnxruntime-web", found=done.stderr[:500], hint=hint)
            return cls.read(Path(folder, f"onnxruntime-web-{VERSION}.tgz"))
