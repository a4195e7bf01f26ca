"""Models as C programs: their outputs on three machines, what memory they need, and the errors."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import dataclasses
import errno
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from burnt.errors import InputRuntimeError, InputTypeError, UnsupportedError
from burnt.export import CSource, firmware, write_firmware
from burnt.export.c_source import c_source
from burnt.export.firmware import Firmware, Memory, measure_memory
from burnt.inspect import signature_of
from tests.export.models import MODELS
from tests.export.ownership import check_arena
from tests.export.toolchains import AARCH64, CORTEX_M4, HOST, SANITIZED, require
from tests.fixtures import Patch

NAMES = [name if name == "digits" else pytest.param(name, marks=pytest.mark.full) for name in MODELS]


def written(name: str, folder: Path) -> Firmware:
    model, calls = MODELS[name]()
    model.eval()
    first = calls[0]
    signature = signature_of(model, **first) if isinstance(first, dict) else signature_of(model, first)
    return write_firmware(model, signature, folder, inputs=[_leaves(call) for call in calls])


def _leaves(call: Any) -> list[Tensor]:
    if isinstance(call, Tensor):
        return [call]
    return [leaf for value in call.values() for leaf in _leaves(value)]


@pytest.mark.parametrize("name", NAMES)
def test_outputs(name: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The test program that is written compares 20 calls with eager, within 1e-5 of the largest output."""
    result = written(name, tmp_path)
    check_arena(result.source)
    # Compiling everything takes seconds each time; its parts are models, too.
    is_large = name == "everything"
    here = HOST if is_large else SANITIZED
    for machine, toolchain in {"this machine": here, "ARM Linux": AARCH64, "Cortex-M4": CORTEX_M4}.items():
        with subtests.test(machine):
            done = toolchain(tmp_path, "model.c", "test_model.c")
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.endswith("all 20 cases agree\n")
            assert done.stdout.count("case ") == 20 * len(result.source.outputs)
    if not is_large:
        with subtests.test("sizes"):
            _check_sizes(result, tmp_path)
    with subtests.test("symbols"):
        _check_symbols(tmp_path)


_PROBE = """\
#include <stdio.h>
#include "model.h"

extern uint32_t stack_bottom[];
BUFFERS

int main(void) {
    uint32_t *sp, *lowest;
    __asm__ volatile("mov %0, sp" : "=r"(sp));
    for (volatile uint32_t *word = stack_bottom; word < sp; ++word) *word = 0xA5A5A5A5u;
    CALL
    for (lowest = stack_bottom; lowest < sp && *lowest == 0xA5A5A5A5u; ++lowest) continue;
    printf("%d\\n", (int)((char *)sp - (char *)lowest));
    return 0;
}
"""


def _probe(result: Firmware, folder: Path, is_called: bool) -> subprocess.CompletedProcess[str]:
    """Run a program that fills the stack with a pattern, calls the model and prints what that overwrote."""
    parameters = [*result.source.inputs, *result.source.outputs]
    buffers = "\n".join(f"{parameter.kind} {parameter.name}{parameter.dims};" for parameter in parameters)
    call = f"model({', '.join(parameter.name for parameter in parameters)});" if is_called else ""
    (folder / "probe.c").write_text(_PROBE.replace("BUFFERS", buffers).replace("CALL", call))
    done = CORTEX_M4(folder, *(["model.c"] if is_called else []), "probe.c", "-std=gnu99", "-Wno-pedantic")
    assert done.returncode == 0, done.stdout
    return done


def _check_sizes(result: Firmware, folder: Path) -> None:
    """Compare the figures with a program that calls the model, less one that does not."""
    used = int(_probe(result, folder, True).stdout)
    assert used <= result.memory.stack <= used + 1000
    whole = _sections(folder)
    _probe(result, folder, False)
    empty = _sections(folder)
    assert 0 <= whole[0] - empty[0] <= result.memory.flash <= whole[0] - empty[0] + 5000  # of printf, too
    assert 0 <= whole[1] - empty[1] <= result.memory.ram - result.memory.stack <= whole[1] - empty[1] + 8000


def _sections(folder: Path) -> tuple[int, int]:
    """Return the bytes in flash and in RAM of the program that was compiled last."""
    done = subprocess.run(["arm-none-eabi-size", "program"], cwd=folder, capture_output=True, text=True)
    text, data, bss = (int(number) for number in done.stdout.splitlines()[1].split()[:3])
    return text + data, data + bss


def _check_symbols(folder: Path) -> None:
    """Assert that the program calls functions of math.h and string.h alone, and defines one of its own."""
    require("gcc", "nm")
    subprocess.run(["gcc", "-std=c99", "-c", "model.c", "-o", "model.o"], cwd=folder, check=True)
    lines = subprocess.run(["nm", "model.o"], cwd=folder, capture_output=True, text=True).stdout.splitlines()
    kinds = [line.split()[-2:] for line in lines]
    called = {name for kind, name in kinds if kind == "U"} - {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    assert all(hasattr(library, name) for name in called), called
    assert [name for kind, name in kinds if kind.isupper() and kind != "U"] == ["model"]


# --- a small model, exported once -------------------------------------------------------------------------


@functools.cache
def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 2)).eval()


@functools.cache
def small_source() -> CSource:
    return c_source(small(), torch.zeros(1, 3))


@pytest.fixture
def write(monkeypatch: Patch, tmp_path: Path) -> Any:
    """Writes the small model to the folder "out"."""

    def write(source: CSource | None = None, **settings: Any) -> Firmware:
        source = source or small_source()
        monkeypatch.setattr(firmware, "c_source", lambda *_: source)
        return write_firmware(small(), None, tmp_path / "out", source.name, **settings)

    return write


def hide(monkeypatch: Patch, *tools: str) -> None:
    """Make programs seem missing; all without names."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in tools or not tools else which(tool))


def test_what_is_written(write: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "main.c").write_text("mine")
    result = write(cases=2)
    assert sorted(os.listdir(tmp_path / "out")) == [
        "Makefile",
        "main.c",
        "model.c",
        "model.h",
        "test_model.c",
    ]
    assert sorted(result.files) == ["Makefile", "model.c", "model.h", "test_model.c"]
    header = (tmp_path / "out" / "model.h").read_text()
    assert f"Needs {result.memory}." in header
    assert "input: in the example from 0 to 0." in header
    require("make", "cc")
    assert result.compared
    done = subprocess.run(["make", "-C", tmp_path / "out"], capture_output=True, text=True)
    assert "all 2 cases agree" in done.stdout


def test_nan_and_infinity(write: Any) -> None:
    """The outputs are NaN or saturated where eager's are."""
    rows = [[float("nan"), 1.0, 2.0], [float("inf"), 0.0, 0.0], [float("-inf"), 1.0, 1e30]]
    assert write(inputs=[[torch.tensor([row])] for row in rows]).compared == bool(shutil.which("make"))


def test_wrong_outputs_are_found_before_anything_is_written(write: Any, tmp_path: Path) -> None:
    require("make", "cc")
    source = small_source()
    for change in ("acc = 0.0f", "acc = 0.0001f"), ("acc = 0.0f", "acc = NAN"), ("tanhf(", "sinhf("):
        text = source.text.replace(*change)
        assert text != source.text
        with pytest.raises(InputRuntimeError, match=r"computes something else[\s\S]*case 0, output: largest"):
            write(dataclasses.replace(source, text=text))
    assert not (tmp_path / "out").exists()


def test_cases_that_do_not_fit(write: Any) -> None:
    x = torch.zeros(1, 3)
    with pytest.raises(InputTypeError, match="expected  input\n  found     input, input 1"):
        write(inputs=[[x, x]])
    with pytest.raises(InputTypeError, match="expected  float32\n  found     float64"):
        write(inputs=[[x], [x.double()]])
    with pytest.raises(InputRuntimeError, match=r"expected  \[1, 3\]\n  found     \[2, 3\]"):
        write(inputs=[[torch.zeros(2, 3)]])


def test_a_model_that_does_not_fit(write: Any, tmp_path: Path) -> None:
    memory = measure_memory(small_source())
    assert write(ram=memory.ram, flash=memory.flash).memory == memory
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(UnsupportedError) as caught:
        write(flash=memory.flash - 1)
    assert str(caught.value) == (
        "the model does not fit into the flash\n"
        f"  expected  at most {memory.flash - 1:,} bytes\n"
        f"  found     {memory.flash:,} bytes\n"
        "  from      0: 640 bytes\n"
        "            2: 328 bytes\n"
        "  hint      make these layers smaller; --flash is the limit"
    )
    with pytest.raises(UnsupportedError, match=r"the RAM[\s\S]*from      [01]: 160 bytes"):
        write(ram=100)
    assert not (tmp_path / "out").exists()


def test_memory_without_compilers(write: Any, monkeypatch: Patch) -> None:
    hide(monkeypatch)
    result = write()
    buffers = 4 * (3 + 2)
    assert result.memory == Memory(640 + 328, small_source().arena + buffers, 0, None)
    assert "without code and stack: no gcc was found" in str(result.memory)
    assert not result.compared


def test_memory_without_a_compiler_for_arm(monkeypatch: Patch) -> None:
    require("gcc", "size")
    hide(monkeypatch, "arm-none-eabi-gcc")
    memory = measure_memory(small_source())
    assert memory.compiled == "for this machine, without the C library"
    assert 968 < memory.flash < 5000
    assert memory.ram == small_source().arena + 20 + memory.stack


def test_a_compiler_for_arm_without_a_c_library(monkeypatch: Patch, tmp_path: Path) -> None:
    """Debian has newlib in a package of its own."""
    require("gcc", "size")
    for tool in ("gcc", "size"):
        (tmp_path / f"arm-none-eabi-{tool}").write_text("#!/bin/sh\necho no math.h >&2; exit 1\n")
        (tmp_path / f"arm-none-eabi-{tool}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert measure_memory(small_source()).compiled == "for this machine, without the C library"
    hide(monkeypatch, "gcc")
    with pytest.raises(UnsupportedError, match=r"does not compile[\s\S]*found     no math.h"):
        measure_memory(small_source())


def test_a_full_disk(write: Any, monkeypatch: Patch, tmp_path: Path) -> None:
    @contextlib.contextmanager
    def full(path: Path) -> Iterator[Path]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        yield path

    monkeypatch.setattr(firmware, "replacing", full)
    with pytest.raises(OSError, match=r"No space left on device: .*model\.c"):
        write()


def test_two_models_in_a_program_and_cpp(write: Any, tmp_path: Path) -> None:
    require("gcc", "g++")
    source = small_source()
    write()
    write(dataclasses.replace(source, name="other", text=re.sub(r"\bmodel\b", "other", source.text)))
    (tmp_path / "out" / "main.cpp").write_text(
        '#include "model.h"\n#include "other.h"\n'
        "int main() {\n    float x[1][3] = {{1, 2, 3}}, a[1][2], b[1][2];\n"
        "    model(x, a);\n    other(x, b);\n"
        "    return a[0][0] != b[0][0] || a[0][1] != b[0][1];\n}\n"
    )
    commands = (
        "gcc -std=c99 -c model.c other.c && g++ -Wall -Wextra -Werror main.cpp *.o -lm -o both && ./both"
    )
    done = subprocess.run(commands, shell=True, cwd=tmp_path / "out", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_model_keeps_its_mode(write: Any) -> None:
    small().train()
    write()
    assert small().training
    small().eval()


def test_files_of_somebody_else_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all:\n\techo mine\n")
    with pytest.raises(UnsupportedError, match="burnt has not written it") as caught:
        write_firmware(torch.nn.Linear(2, 1), torch.rand(1, 2), tmp_path)
    assert str(tmp_path / "Makefile") in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["Makefile"]
    (tmp_path / "Makefile").unlink()
    for _ in range(2):
        write_firmware(torch.nn.Linear(2, 1), torch.rand(1, 2), tmp_path)
