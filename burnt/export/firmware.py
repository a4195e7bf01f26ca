"""write_firmware: a model as C99 for a microcontroller, with a test program and what memory it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnt._files import replacing
from burnt._version import __version__
from burnt.errors import UnsupportedError
from burnt.export.c_source import CSource, Layer, c_source

__all__ = ["Firmware", "Memory", "measure_memory", "write_firmware"]

TOLERANCE = 1e-5
"""Largest difference from eager that the test program accepts, relative to the largest output or 1."""

_CORTEX_M = ("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
_FLAGS = ("-std=c99", "-Os", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Memory:
    """What a model needs on a device, in bytes.

    Args:
        flash: code and constants.
        ram: static memory, the stack of a call, its inputs and outputs.
        stack: the part of `ram` that is the stack of a call.
        compiler: what measured it, ``"arm-none-eabi-gcc for cortex-m4"``; None if no compiler was found, and
            code and stack are not counted.
    """

    flash: int
    ram: int
    stack: int
    compiler: str | None

    def __str__(self) -> str:
        by = f"by {self.compiler}" if self.compiler else "weights and results alone: no C compiler was found"
        return f"flash {self.flash:,} bytes, RAM {self.ram:,} bytes ({self.stack:,} of them stack; {by})"


@dataclass(frozen=True)
class Firmware:
    """The result of `write_firmware`.

    Args:
        folder: what was written to.
        files: the names of the files.
        memory: what the model needs.
        source: the C program.
    """

    folder: Path
    files: Sequence[str]
    memory: Memory
    source: CSource


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
) -> Firmware:
    """Write a model as C99 without allocation, threads or files.

    The folder gets ``NAME.c`` with the weights as constants, ``NAME.h``, ``test_NAME.c`` with inputs and
    eager's outputs, and a ``Makefile``: ``make test`` runs it on this machine.

    Args:
        model: any module, taken in evaluation mode; one item per call.
        example: its inputs as `burnt.onnx.export` takes them, such as a `Signature`.
        folder: where to write; other files in it stay.
        name: the function's name, a C identifier.
        ram: refuse a model that needs more bytes of RAM than this.
        flash: the same for flash.
        cases: the number of test cases with random inputs within the ranges of the example.
        inputs: test cases with these inputs instead, ``[1, ...]`` each.

    Raises:
        UnsupportedError: the model does not fit `ram` or `flash`, or cannot be printed as C; then nothing is
            written.
        OSError: the folder cannot be written.
    """
    source = c_source(model, example, name)
    memory = measure_memory(source)
    _require_fit("RAM", memory.ram, ram, source, lambda layer: layer.result)
    _require_fit("flash", memory.flash, flash, source, lambda layer: layer.weights)
    drawn = inputs or [source.signature.example(1, seed=seed) for seed in range(cases)]
    contents = {
        f"{name}.c": f'#include "{name}.h"\n\n{source.text}',
        f"{name}.h": _header(source, memory),
        f"test_{name}.c": _test_program(source, model, drawn),
        "Makefile": _makefile(name),
    }
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for file, text in contents.items():
        with replacing(target / file) as temporary:
            temporary.write_text(text, encoding="ascii")
    return Firmware(target, list(contents), memory, source)


def measure_memory(source: CSource) -> Memory:
    """Return what a program needs, measured by compiling it for a Cortex-M4, or else for this machine."""
    signature = source.signature
    buffers = sum(
        torch.empty(info.shape, dtype=info.torch_dtype, device="meta").nbytes
        for info in (*signature.inputs, *signature.outputs)
    )
    for command, label in (
        (_CORTEX_M, "arm-none-eabi-gcc for cortex-m4"),
        (("gcc",), "gcc for this machine"),
        (("cc",), "cc for this machine"),
    ):
        if shutil.which(command[0]) is not None:
            flash, static, stack = _compile(command, source)
            return Memory(flash, static + stack + buffers, stack, label)
    return Memory(source.weights, source.arena + buffers, 0, None)


def _compile(command: Sequence[str], source: CSource) -> tuple[int, int, int]:
    """Return the bytes of code and constants, of static memory, and of the stack."""
    with tempfile.TemporaryDirectory(prefix="burnt-c-") as folder:
        file = Path(folder, "model.c")
        file.write_text(source.text, encoding="ascii")
        done = subprocess.run(
            [*command, *_FLAGS, "-fstack-usage", "-c", file.name, "-o", "model.o"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise UnsupportedError(
                "the generated C does not compile", where=" ".join(command), found=done.stderr[:500]
            )
        size = str(Path(shutil.which(command[0]) or command[0]).with_name(_size_tool(command[0])))
        table = subprocess.run([size, "model.o"], cwd=folder, capture_output=True, text=True, check=True)
        text, data, bss = (int(number) for number in table.stdout.splitlines()[1].split()[:3])
        frames = {
            line.split("\t")[0].rpartition(":")[2]: int(line.split("\t")[1])
            for line in Path(folder, "model.su").read_text().splitlines()
        }
    # The function calls the layers' functions, each of which calls no more than one of libm.
    own = frames.pop(source.name, 0)
    return text + data, data + bss, own + max(frames.values(), default=0)


def _size_tool(compiler: str) -> str:
    return f"{compiler.rpartition('-')[0]}-size" if "-" in compiler else "size"


def _require_fit(what: str, needed: int, limit: int | None, source: CSource, key: Any) -> None:
    if limit is None or needed <= limit:
        return
    largest: list[Layer] = sorted(source.layers, key=key, reverse=True)[:3]
    raise UnsupportedError(
        f"the model does not fit into the {what}",
        expected=f"at most {limit:,} bytes",
        found=f"{needed:,} bytes",
        origin=[f"{layer.path}: {key(layer):,} bytes" for layer in largest],
        hint=f"make these layers smaller; --{what.lower()} is the limit",
    )


def _header(source: CSource, memory: Memory) -> str:
    guard = f"{source.name.upper()}_H"
    return f"""\
/* {source.name}: written by burnt {__version__}. {source.signature}
 * Needs {memory}.
 * Not reentrant: results between layers are in static memory.
 */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{source.declaration()};

#ifdef __cplusplus
}}
#endif

#endif
"""


def _test_program(source: CSource, model: nn.Module, cases: Sequence[Sequence[Tensor]]) -> str:
    """Return a program that compares the C function with what the module returned."""
    signature, arrays, calls = source.signature, [], []
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            device = next((p.device for p in model.parameters()), torch.device("cpu"))
            results = [signature.call(model, [tensor.to(device) for tensor in case]) for case in cases]
    finally:
        model.train(training)
    declaration = source.declaration()
    parameters = re.findall(r"(?:const )?(\w+) (\w+)((?:\[\d+\])+)", declaration.partition("(")[2])
    outputs = parameters[len(signature.inputs) :]
    for number, (case, result) in enumerate(zip(cases, results, strict=True)):
        names: list[str] = []
        for (kind, name, dims), tensor in zip(parameters, [*case, *result], strict=True):
            prefix = "in" if len(names) < len(case) else "expected"
            symbol = f"{prefix}{number}_{name}"
            values = ", ".join(_literal(value) for value in tensor.flatten().tolist()) or "0"
            arrays.append(f"static const {kind} {symbol}{dims} = {_braced(values, dims)};")
            names.append(symbol)
        given = [*names[: len(case)], *(f"out_{name}" for _, name, _ in outputs)]
        calls.append(f"    {source.name}({', '.join(given)});")
        for (kind, name, _), symbol in zip(outputs, names[len(case) :], strict=True):
            found, expected = f"(const {kind} *)out_{name}", f"(const {kind} *){symbol}"
            count = f"sizeof {symbol} / sizeof({kind})"
            calls.append(f"    failed |= compare({number}, {found}, {expected}, {count});")
    kinds = {kind for kind, _, _ in outputs}
    if len(kinds) != 1:
        raise UnsupportedError(
            "the test program compares outputs of one dtype", found=", ".join(sorted(kinds))
        )
    kind = kinds.pop()
    buffers = "\n".join(f"static {kind} out_{name}{dims};" for kind, name, dims in outputs)
    return f"""\
/* Compares {source.name} with outputs of the model in PyTorch. Exit code 0: all are within the tolerance. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "{source.name}.h"

{chr(10).join(arrays)}

{buffers}

static int compare(int number, const {kind} *found, const {kind} *expected, size_t count) {{
    double largest = 1.0, error = 0.0;
    for (size_t i = 0; i < count; ++i) {{
        double difference = fabs((double)found[i] - (double)expected[i]);
        if (fabs((double)expected[i]) > largest) largest = fabs((double)expected[i]);
        if (!(difference <= error)) error = difference;
    }}
    printf("case %d: largest error %.2g of %.2g\\n", number, error, largest);
    return !(error <= {TOLERANCE:g} * largest);
}}

int main(void) {{
    int failed = 0;
{chr(10).join(calls)}
    printf(failed ? "FAILED\\n" : "all {len(cases)} cases agree\\n");
    return failed;
}}
"""


def _literal(value: float | int | bool) -> str:
    if isinstance(value, float):
        return f"{value.hex()}" if value == value and abs(value) != float("inf") else _special(value)
    return str(int(value))


def _special(value: float) -> str:
    return "NAN" if value != value else "INFINITY" if value > 0 else "-INFINITY"


def _braced(values: str, dims: str) -> str:
    """Return values in as many braces as the array has axes; C fills nested arrays in order."""
    depth = dims.count("[")
    return "{" * depth + values + "}" * depth if depth == 1 else _nested(values.split(", "), dims)


def _nested(values: list[str], dims: str) -> str:
    sizes = [int(size) for size in re.findall(r"\d+", dims)]
    for size in reversed(sizes[1:]):
        values = ["{" + ", ".join(values[i : i + size]) + "}" for i in range(0, len(values), size)]
    return "{" + ", ".join(values) + "}"


def _makefile(name: str) -> str:
    return f"""\
# make test                             on this machine
# make CC=arm-none-eabi-gcc {name}.o      for a device: link {name}.o into your program
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
