"""Programs whose indices pass 2^31, of tensors without memory: scheduled and printed, and never run.

Every index of every kernel is worked out at the corners of its loops, by Python's integers. Where a number
turns up on the way that 32 bits do not hold, the kernel's text has to compute with 64.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from burnt.codegen.function import CacheEntry, Function
from burnt.codegen.ir import Buffer, IndexExpr, Kernel, Split, Store, Var, index_exprs, walk
from burnt.codegen.render.c.kernel import print_helpers, print_kernel
from burnt.codegen.render.metal.kernel import print_kernel as print_metal
from burnt.codegen.render.shape_params import with_constant_sizes
from burnt.codegen.render.triton.source import select_config
from burnt.codegen.runtime import c_compiler
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.runtime.metal_backend import METAL
from burnt.codegen.runtime.target import BuiltKernels, Target
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.errors import UnsupportedError
from tests.codegen.programs import program

DEFAULT, FULL, PER_TEST = 5, 300, 5
TARGETS = {target.name: target for target in (C, TRITON, METAL)}

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's remarks on what programs do


def planned(seed: int, target: Target) -> tuple[list[Kernel], Sequence[Buffer], Sequence[int]]:
    """The kernels of a program, the buffers and the numbers that they take."""
    found: list[tuple[list[Kernel], Sequence[Buffer], Sequence[int]]] = []

    def build(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> BuiltKernels:
        found.append((list(kernels), buffers, numbers))
        return BuiltKernels(dict.fromkeys(kernels, ""), dict.fromkeys(kernels, lambda *_: None))

    fn, args = program(seed, "far").built()
    tensors = [a for a in args if isinstance(a, Tensor)]
    target = dataclasses.replace(target, build=build, why_unavailable=lambda: None)
    # Not by a call: of a device that nothing runs on, no signature is made.
    result: CacheEntry = Function(fn, target=target)._build_entry(args, tensors, [])
    if result.fallback_reason is not None and "cannot be traced" not in result.fallback_reason:
        assert any(known in result.fallback_reason for known in KNOWN), (
            f"{result.fallback_reason}\n{program(seed, 'far').source}"
        )
    return found[0] if found else ([], [], [])


# Why a program may be run as the eager function that it is.
KNOWN = ("returns a view of an argument that it modifies in place", "elements share memory")


def corners(loops: Sequence[Var]) -> Iterator[dict[Var, int]]:
    """The ends of all loops, or of as many as there is time for."""
    for ends in itertools.islice(itertools.product(*[(v.extent - 1, 0) for v in loops]), 256):
        yield dict(zip(loops, ends, strict=True))


def worked_out(place: IndexExpr, at: dict[Var, int], seen: list[int]) -> int:
    """An index; `seen` gets every number on the way."""
    total = place.const
    for atom, factor in place.terms.items():
        if isinstance(atom, Split):
            inner = worked_out(atom.inner, at, seen)
            value = inner // atom.divisor if atom.kind == "/" else inner % atom.divisor
        elif isinstance(atom, Var):
            value = at[atom]
        else:
            value = 0  # looked up
        total += factor * value
        seen += [value, factor * value, total]
    return total


def farthest(kernel: Kernel) -> int:
    """The largest number that turns up while indices are computed, and how many turns its loops have."""
    most = 0
    for step in kernel.steps:
        loops = (*kernel.outer, *step.inner)
        most = max(most, math.prod(v.extent for v in kernel.outer), math.prod(v.extent for v in step.inner))
        indices = [ix for e in walk([step.body]) for ix in index_exprs(e)]
        indices += [step.offset] if isinstance(step, Store) else []
        for index in dict.fromkeys(indices):
            own = [v for v in loops if v in index.variables()]
            if index.variables() - set(own):
                continue
            for at in corners(own):
                seen: list[int] = []
                worked_out(index, at, seen)
                most = max([most, *map(abs, seen)])
    return most


def check_c(kernels: list[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int], folder: Path) -> None:
    functions = [f"void {kernel.name}{with_constant_sizes(print_kernel(kernel))}" for kernel in kernels]
    text = print_helpers() + "".join(functions)
    assert not re.search(
        r"\b(int|int32_t|uint32_t|unsigned|long) (i\d+|block|end|next|tile|chunk|iteration)\b", text
    )
    compiler = find_compiler()
    if compiler is not None:  # which knows where a constant does not fit
        file = folder / "kernels.c"
        file.write_text(c_compiler.PREAMBLE + text)
        command = [
            compiler.path,
            "-std=gnu11",
            "-fsyntax-only",
            "-fopenmp",
            "-Werror=overflow",
            "-w",
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]


def check_triton(kernels: list[Kernel], *_: object) -> None:
    from burnt.codegen.render.triton.kernel import print_kernel, structure_of
    from tests.codegen.render.triton.addresses import check, launches_of

    for kernel in kernels:
        result = print_kernel(kernel, select_config(structure_of(kernel)))
        assert all(f.programs < 2**31 for f in result.functions), "more programs than a grid takes"
        if kernel.matmul is None and farthest(kernel) >= 2**31:
            for line in result.text.splitlines():
                ids = line.count("tl.program_id(0)") == line.count("tl.program_id(0).to(tl.int64)")
                # Rows are added to a number of 64 bits; columns may begin at 0.
                columns = re.findall(
                    r"= (?:start(?: \* \w+)? \+ )?tl\.arange\(0, \w+\)(?:\[[^]]*\])?(.*)", line
                )
                assert ids, result.text
                assert all(rest.startswith(".to(tl.int64)") for rest in columns), result.text
        for launch in launches_of(result):
            last = launch.grid[0] - 1
            programs = sorted({0, min(1, last), last // 2, last})
            assert not (found := check(launch, programs=programs).overflows), f"{found}\n{result.text}"


def check_metal(kernels: list[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int], _: Path) -> None:
    for kernel in kernels:
        try:
            result = print_metal(kernel, numbers)
        except UnsupportedError:
            continue  # float64, or more tensors than Metal binds
        for dispatch in result:
            text = with_constant_sizes(dispatch.text)
            assert max(dispatch.threads) < 2**32, f"more threads than a grid counts\n{text}"
            if farthest(kernel) >= 2**31:
                assert dispatch.wide, text
                assert not re.search(r"\b(int|uint) (i\d+|row|chunk|first|end|block|start)\b", text), text


CHECKS = {"c": check_c, "triton": check_triton, "metal": check_metal}


def check(seed: int, name: str, folder: Path) -> int:
    if name == "triton":
        pytest.importorskip("triton", reason="Triton exists for Linux alone")
    kernels, buffers, numbers = planned(seed, TARGETS[name])
    if kernels:
        try:
            CHECKS[name](kernels, buffers, numbers, folder)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{program(seed, 'far').source}") from None
    return sum(farthest(kernel) >= 2**31 for kernel in kernels)


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, DEFAULT, PER_TEST))
@pytest.mark.parametrize("name", TARGETS)
def test_random_programs_past_32_bits(name: str, first: int, tmp_path: Path) -> None:
    far = sum(check(seed, name, tmp_path) for seed in range(first, first + PER_TEST))
    assert far >= PER_TEST, "too few kernels reach as far as this is about"


@pytest.mark.full
@pytest.mark.parametrize("first", range(DEFAULT, FULL, PER_TEST))
@pytest.mark.parametrize("name", TARGETS)
def test_more_programs_past_32_bits(name: str, first: int, tmp_path: Path) -> None:
    for seed in range(first, first + PER_TEST):
        check(seed, name, tmp_path)
