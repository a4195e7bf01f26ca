"""The random programs of the codegen gate, through `burnt.compile`.

Programs that draw random numbers are left out: the numbers are others than those of `fuse`, for which the
gate has a reference. A seed that fails here gets an entry of its own in `tests.codegen.test_random_programs`
if `fuse` fails too, and else in `test_cases.py`.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import burnt
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import FusionWarning
from tests.codegen.compare import judge
from tests.codegen.programs import program
from tests.codegen.test_random_programs import REGRESSIONS, regression
from tests.codegen.test_random_writes import outcome, source_of

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: torch runs the graphs"),
]
PER_TEST = 10


def draws(source: str) -> bool:
    return re.search("dropout|rand|bernoulli", source) is not None


def compiled(fn: Any, **options: Any) -> Any:
    """A compiled function that fails where torch would run a graph."""
    torch._dynamo.reset()
    function = burnt.compile(fn, **options)

    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FusionWarning)
            return function(*args)

    return call


@pytest.mark.parametrize(
    ("first", "count", "grammar"),
    [
        (5, 2, "plain"),
        (3, 2, "wider"),
        *(
            pytest.param(first, PER_TEST, grammar, marks=pytest.mark.full)
            for grammar, last in (("plain", 300), ("wider", 150))
            for first in range(0, last, PER_TEST)
        ),
    ],
)
def test_random_programs(first: int, count: int, grammar: str) -> None:
    for seed in range(first, first + count):
        if not draws((made := program(seed, grammar)).source):
            judge(made, compiled)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [name for name, (_, lines, *_) in REGRESSIONS.items() if not draws(str(lines))]
)
def test_what_went_wrong_once(name: str) -> None:
    judge(regression(name), compiled)


@pytest.mark.parametrize(
    ("first", "count"),
    [(4, 2), *(pytest.param(first, PER_TEST, marks=pytest.mark.full) for first in range(0, 120, PER_TEST))],
)
def test_what_random_programs_write(first: int, count: int) -> None:
    """Where torch's own backend of the same graphs does what eager torch does, burnt does, too."""
    for seed in range(first, first + count):
        source, space = source_of(seed), {"torch": torch}
        exec(source, space)
        for requires_grad in (True, False):
            expected = outcome(space["fn"], requires_grad)  # type: ignore[arg-type]
            found = outcome(compiled(space["fn"]), requires_grad)
            try:
                check(found, expected)
            except AssertionError:
                torch._dynamo.reset()
                of_torch = outcome(torch.compile(space["fn"], backend="aot_eager"), requires_grad)  # type: ignore[call-overload]
                with pytest.raises(AssertionError):
                    check(of_torch, expected)
                check(found, of_torch)


def check(found: Any, expected: Any) -> None:
    """Compare strides, which results require a gradient, values and gradients."""
    if expected is None:  # torch forbids to use some views from no_grad
        return
    assert found is not None
    assert found[0] == expected[0]
    assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
    if expected[2] is not None:
        assert_close(found[2], expected[2], rtol=1e-3, atol=1e-4)
