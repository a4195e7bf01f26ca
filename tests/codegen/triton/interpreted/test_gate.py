"""The equivalence gate for Triton: random programs, run by the interpreter, do what eager torch does."""

from __future__ import annotations

import numpy as np
import pytest

from burnt.codegen.function import Function
from burnt.codegen.target import TRITON
from tests.codegen.compare import judge
from tests.codegen.programs import Program, program
from tests.codegen.test_gate import REGRESSIONS

PER_TEST = 20
DEFAULT, FULL = 60, 1200

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]


def fuse(fn):  # type: ignore[no-untyped-def]
    return Function(fn, target=TRITON)


def run(seeds: range) -> None:
    with np.errstate(all="ignore"):
        for seed in seeds:
            judge(program(seed), fuse)


@pytest.mark.parametrize("first", range(0, DEFAULT, PER_TEST))
def test_random_programs(first: int) -> None:
    run(range(first, first + PER_TEST))


@pytest.mark.full
@pytest.mark.parametrize("first", range(DEFAULT, FULL, PER_TEST))
def test_more_random_programs(first: int) -> None:
    run(range(first, first + PER_TEST))


@pytest.mark.parametrize("name", REGRESSIONS)
def test_what_went_wrong_once(name: str) -> None:
    arguments, lines, results, gradients = REGRESSIONS[name]
    families = frozenset({"f16"} if "f16" in arguments[0] else {"f32"})
    with np.errstate(all="ignore"):
        judge(Program(0, arguments, lines, results, gradients, families), fuse)
