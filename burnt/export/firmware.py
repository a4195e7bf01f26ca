"""write_firmware: a model as C99 for a microcontroller, with a test program and what memory it needs."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnt._files import replacing
from burnt._torch import restored_modes
from burnt._version import __version__
from burnt.data.description import TableDescription
from burnt.errors import InputRuntimeError, UnsupportedError
from burnt.export.c_source import CSource, Layer, Parameter, c_source
from burnt.export.columns import header_columns
from burnt.inspect.signature import Signature

_MARK = "written by burnt"  # in each file, which the next call may replace

TOLERANCE = 1e-5
"""Largest difference from eager that the test program accepts, relative to the largest output or 1."""

# Bytes of stack that functions of the C library take on a Cortex-M4 with newlib, measured for those of
# math.h: pow of doubles takes the most but for sin, cos and tan, which reduce large angles.
_LIBRARY_STACK = 160
_TRIGONOMETRY_STACK = 832


@dataclass(frozen=True)
class _Toolchain:
    """A compiler that measures code."""

    label: str
    command: tuple[str, ...]
    link: tuple[str, ...]
    size: str

    def is_there(self) -> bool:
        return shutil.which(self.command[0]) is not None and shutil.which(self.size) is not None


_CORTEX_M4 = _Toolchain(
    "for a Cortex-M4, with what it calls of the C library",
    ("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    ("-nostartfiles", "-Wl,--gc-sections", "--specs=nosys.specs", "-lm"),
    "arm-none-eabi-size",
)
_HOST = _Toolchain("for this machine, without the C library", ("gcc",), ("-c",), "size")


@dataclass(frozen=True)
class Memory:
    """What a model needs on a device, in bytes; without a compiler only the weights, and no stack."""

    flash: int  # code and constants
    ram: int  # static memory, the stack of a call, its inputs and outputs
    stack: int  # the part of `ram` that is the stack of a call
    compiled: str | None  # what was compiled to measure it

    def __str__(self) -> str:
        how = f"compiled {self.compiled}" if self.compiled else "without code and stack: no gcc was found"
        return f"flash {self.flash:,} bytes, RAM {self.ram:,} bytes, {self.stack:,} of them stack ({how})"


@dataclass(frozen=True)
class Firmware:
    """The result of `write_firmware`.

    Args:
        folder: the folder with the files.
        files: the names of the files.
        memory: the bytes of RAM and flash that the model needs.
        source: the model as C source.
        compared: whether the test program ran here; not without a C compiler.
    """

    folder: Path
    files: Sequence[str]
    memory: Memory
    source: CSource
    compared: bool


def write_firmware(
    model: nn.Module,
    example: Any,
    folder: str | os.PathLike[str],
    name: str = "model",
    *,
    ram: int | None = None,
    flash: int | None = None,
    cases: int = 4,
    inputs: Sequence[Sequence[Tensor]] = (),
    columns: TableDescription | None = None,
    classes: Sequence[str] | None = None,
) -> Firmware:
    """Write a model as C99 without allocation, threads or files.

    The folder gets ``NAME.c`` with the weights as constants, ``NAME.h``, ``test_NAME.c`` with inputs and
    eager's outputs, and a ``Makefile``: ``make test`` runs the test on this machine. Where a C compiler is
    found, the test is run before anything is written.

    Args:
        model: any module, taken in evaluation mode; one item per call.
        example: its inputs as `burnt.onnx.export` takes them, such as a `Signature`.
        folder: where to write; other files in it stay.
        name: the function's name, a C identifier.
        ram: refuse a model that needs more bytes of RAM than this.
        flash: refuse a model that needs more bytes of flash than this.
        cases: the number of test cases with random inputs within the ranges of the example.
        inputs: test cases with these inputs instead, one tensor ``[1, ...]`` for each input.
        columns: what encodes the columns of a table as the inputs; the header says how, with the names of
            all categories.
        classes: their names, for the header.

    Raises:
        UnsupportedError: the model does not fit `ram` or `flash`, or cannot be printed as C.
        InputRuntimeError, InputTypeError: a test case does not fit the model, or the C computes something
            else than the model.
        OSError: the folder cannot be written. After any other error, nothing was written.
    """
    target = Path(folder)
    _refuse_foreign_files(
        [target / file for file in (f"{name}.c", f"{name}.h", f"test_{name}.c", "Makefile")]
    )
    source = c_source(model, example, name)
    memory = measure_memory(source)
    _require_fit("RAM", memory.ram, ram, source, lambda layer: layer.result)
    _require_fit("flash", memory.flash, flash, source, lambda layer: layer.weights)
    signature = source.signature
    if inputs:
        drawn = [_checked(case, signature) for case in inputs]
    else:
        drawn = [signature.example(1, seed=seed) for seed in range(cases)]
    contents = {
        f"{name}.c": _program(source),
        f"{name}.h": _header(source, memory, header_columns(source, columns, classes)),
        f"test_{name}.c": _test_program(source, model, drawn),
        "Makefile": _makefile(name),
    }
    compared = _compare(contents, model)
    target.mkdir(parents=True, exist_ok=True)
    for file, text in contents.items():
        with replacing(target / file) as temporary:
            temporary.write_text(text, encoding="ascii")
    return Firmware(target, list(contents), memory, source, compared)


def _checked(case: Sequence[Tensor], signature: Signature) -> list[Tensor]:
    """Return a test case if it fits the function, whose number of items is fixed."""
    infos = tuple(replace(info, batch_axis=None) for info in signature.inputs)
    names = [info.name for info in infos] + [f"input {i}" for i in range(len(infos), len(case))]
    return replace(signature, inputs=infos).check(dict(zip(names, case, strict=False)))


def _compare(contents: Mapping[str, str], model: nn.Module) -> bool:
    """Run the test program on this machine; return False if there is no C compiler."""
    if not all(shutil.which(tool) for tool in ("cc", "make")):
        return False
    with tempfile.TemporaryDirectory(prefix="burnt-c-") as folder:
        for file, text in contents.items():
            Path(folder, file).write_text(text, encoding="ascii")
        environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CFLAGS")}
        done = subprocess.run(
            ["make", "CFLAGS=-std=c99 -O1"], cwd=folder, env=environment, capture_output=True, text=True
        )
    if done.returncode:
        lines = (done.stderr + done.stdout).splitlines()
        raise InputRuntimeError(
            "the C computes something else than the model",
            where=type(model).__name__,
            expected=f"a largest error of {TOLERANCE:g} of the largest output, or of 1",
            found="\n".join(line for line in lines if "case" in line or "error" in line)[:500],
            hint="please report the model: burnt or its C generator is wrong",
        )
    return True


def measure_memory(source: CSource) -> Memory:
    """Return what a program needs, measured by compiling it for a Cortex-M4, or else for this machine."""
    signature = source.signature
    buffers = sum(
        torch.empty(info.shape, dtype=info.torch_dtype, device="meta").nbytes
        for info in (*signature.inputs, *signature.outputs)
    )
    failure: UnsupportedError | None = None
    for toolchain in (_CORTEX_M4, _HOST):
        # On macOS gcc is clang, and size prints other columns.
        if toolchain.is_there() and (toolchain is not _HOST or sys.platform == "linux"):
            try:
                flash, static, stack = _compile(toolchain, source)
            except UnsupportedError as error:  # such as a compiler without newlib
                failure = failure or error
                continue
            return Memory(flash, static + stack + buffers, stack, toolchain.label)
    if failure is not None:
        raise failure
    return Memory(source.weights, source.arena + buffers, 0, None)


def _compile(toolchain: _Toolchain, source: CSource) -> tuple[int, int, int]:
    """Return the bytes of code and constants, of static memory, and of the stack."""
    flags = ("-std=c99", "-Os", "-w", "-ffunction-sections", "-fdata-sections", "-fstack-usage")
    with tempfile.TemporaryDirectory(prefix="burnt-c-") as name:
        folder = Path(name)
        (folder / f"{source.name}.c").write_text(_program(source), encoding="ascii")
        (folder / f"{source.name}.h").write_text(_header(source, None), encoding="ascii")
        entry = () if "-c" in toolchain.link else (f"-Wl,-e,{source.name}",)
        command = [*toolchain.command, *flags, f"{source.name}.c", *toolchain.link, *entry, "-o", "measured"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise UnsupportedError(
                "the generated C does not compile",
                where=" ".join(toolchain.command),
                found=done.stderr.strip()[:500],
            )
        sizes = subprocess.run(
            [toolchain.size, "measured"], cwd=folder, capture_output=True, text=True, check=True
        )
        text, data, bss = (int(number) for number in sizes.stdout.splitlines()[1].split()[:3])
        (usage,) = folder.glob("*.su")
        stack = _stack(usage.read_text(), source)
    return text + data, data + bss, stack


def _stack(usage: str, source: CSource) -> int:
    """Return an upper bound of the stack from what ``-fstack-usage`` wrote.

    The function calls one layer's function at a time, which calls small helpers, which call the C library.
    """
    own, layers, helpers = 0, [0], 0
    for line in usage.splitlines():
        place, size, _ = line.split("\t")
        function = place.rpartition(":")[2]
        if function == source.name:
            own = int(size)
        elif function.startswith("node"):
            layers.append(int(size))
        else:
            helpers += int(size)
    trigonometric = re.search(r"\b(sin|cos|tan)f?\(", source.text)
    library = _TRIGONOMETRY_STACK if trigonometric else _LIBRARY_STACK
    return own + max(layers) + helpers + library


def _require_fit(
    what: str, needed: int, limit: int | None, source: CSource, key: Callable[[Layer], int]
) -> None:
    if limit is None or needed <= limit:
        return
    largest = [layer for layer in sorted(source.layers, key=key, reverse=True)[:3] if key(layer)]
    raise UnsupportedError(
        f"the model does not fit into the {what}",
        expected=f"at most {limit:,} bytes",
        found=f"{needed:,} bytes",
        origin=[f"{layer.path}: {key(layer):,} bytes" for layer in largest],
        hint=f"make these layers smaller; --{what.lower()} is the limit",
    )


def _program(source: CSource) -> str:
    """Return the C with weights that other files do not see, so that a program may have several models."""
    text = re.sub(r"^extern const .*\n", "", source.text, flags=re.MULTILINE)
    text = re.sub(r"^const ", "static const ", text, flags=re.MULTILINE)
    return f'/* {_MARK} */\n#include "{source.name}.h"\n\n{text}'


def _header(source: CSource, memory: Memory | None, columns: str = "") -> str:
    guard = f"{source.name.upper()}_H"
    needs = f"\n * Needs {memory}." if memory else ""
    ranges = "".join(
        f"\n * {parameter.name}: in the example from {info.range[0]:g} to {info.range[1]:g}."
        for parameter, info in zip(source.inputs, source.signature.inputs, strict=True)
        if info.range is not None and not info.columns
    )
    return f"""\
/* {source.name}: a model as C, {_MARK} {__version__}.{needs}
 * Not reentrant: results between layers are in static memory.{ranges}
 */
#ifndef {guard}
#define {guard}

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{columns}{source.declaration()};

#ifdef __cplusplus
}}
#endif

#endif
"""


_CHECK_NUMBERS = """\
static int check_KIND(int number, const char *output, const KIND *found, const KIND *expected, size_t count) {
    double largest = 1.0, error = 0.0;
    for (size_t i = 0; i < count; ++i) {
        const double a = found[i], b = expected[i];
        if (isfinite(b) && fabs(b) > largest) largest = fabs(b);
        if (a == b || (isnan(a) && isnan(b))) continue;
        if (isnan(a) || isnan(b)) error = INFINITY;
        else if (fabs(a - b) > error) error = fabs(a - b);
    }
    printf("case %d, %s: largest error %.2g of %.2g\\n", number, output, error, largest);
    return !(error <= TOLERANCE * largest);
}
"""

_CHECK_INTEGERS = """\
static int check_KIND(int number, const char *output, const KIND *found, const KIND *expected, size_t count) {
    size_t wrong = 0;
    for (size_t i = 0; i < count; ++i) wrong += found[i] != expected[i];
    printf("case %d, %s: %u wrong of %u\\n", number, output, (unsigned)wrong, (unsigned)count);
    return wrong != 0;
}
"""


def _test_program(source: CSource, model: nn.Module, cases: Sequence[Sequence[Tensor]]) -> str:
    """Return a program that compares the C function with what the module returned."""
    arrays, calls = [], []
    found = [replace(output, name=f"found_{output.name}") for output in source.outputs]
    for number, (inputs, outputs) in enumerate(zip(cases, _run(model, source.signature, cases), strict=True)):
        given = [replace(parameter, name=f"in{number}_{parameter.name}") for parameter in source.inputs]
        expected = [
            replace(parameter, name=f"expected{number}_{parameter.name}") for parameter in source.outputs
        ]
        for parameter, tensor in zip([*given, *expected], [*inputs, *outputs], strict=True):
            arrays.append(_array(parameter, tensor))
        arguments = ", ".join(parameter.name for parameter in [*given, *found])
        calls.append(f"    {source.name}({arguments});")
        for output, ours, theirs, tensor in zip(source.outputs, found, expected, outputs, strict=True):
            pointers = f"(const {ours.kind} *){ours.name}, (const {ours.kind} *){theirs.name}"
            check = f'check_{ours.kind}({number}, "{output.name}", {pointers}, {tensor.numel()})'
            calls.append(f"    failed |= {check};")
    checks = [
        (_CHECK_NUMBERS if kind in ("float", "double") else _CHECK_INTEGERS).replace("KIND", kind)
        for kind in dict.fromkeys(output.kind for output in found)
    ]
    return f"""\
/* {_MARK}. Compares {source.name} with the model in PyTorch: exit code 0 if all outputs agree. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "{source.name}.h"

#define TOLERANCE {TOLERANCE:g}

{chr(10).join(arrays)}

{chr(10).join(f"static {output};" for output in found)}

{chr(10).join(checks)}
int main(void) {{
    int failed = 0;
{chr(10).join(calls)}
    printf(failed ? "FAILED\\n" : "all {len(cases)} cases agree\\n");
    return failed;
}}
"""


def _run(model: nn.Module, signature: Signature, cases: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Return the module's outputs for each case, in evaluation mode."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with restored_modes(model), torch.no_grad():
        model.eval()
        return [signature.call(model, [tensor.to(device) for tensor in case]) for case in cases]


def _array(parameter: Parameter, tensor: Tensor) -> str:
    """Return the definition of a constant array with the values of a tensor."""
    values = [_literal(value) for value in tensor.flatten().tolist()]
    for size in reversed(re.findall(r"\d+", parameter.dims)):
        values = ["{" + ", ".join(values[i : i + int(size)]) + "}" for i in range(0, len(values), int(size))]
    return textwrap.fill(f"static const {parameter} = {values[0]};", 110, subsequent_indent="    ")


def _literal(value: float | int | bool) -> str:
    if not isinstance(value, float):
        return str(int(value))
    if math.isfinite(value):
        return value.hex()
    return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"


def _refuse_foreign_files(files: Sequence[Path]) -> None:
    """Raise if files that would be replaced were written by another program."""
    for file in files:
        if file.is_file() and _MARK.encode() not in file.read_bytes():
            raise UnsupportedError(
                "a file of this name is there, and burnt has not written it",
                where=str(file),
                expected=f"no such file, or one that says {_MARK!r}",
                hint="write to another folder",
            )


def _makefile(name: str) -> str:
    return f"""\
# {_MARK}. On this machine:  make test
# For a device:     make {name}.o CC=arm-none-eabi-gcc CFLAGS="-std=c99 -Os -mcpu=cortex-m4 -mthumb"
# and link {name}.o into your program.
CC ?= cc
CFLAGS ?= -std=c99 -O2 -Wall -Wextra

test: test_{name}
\t./test_{name}

test_{name}: test_{name}.o {name}.o
\t$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lm

%.o: %.c {name}.h
\t$(CC) $(CFLAGS) -c -o $@ $<

clean:
\trm -f *.o test_{name}

.PHONY: test clean
"""
