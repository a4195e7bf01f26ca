"""Random programs in Triton, run by the interpreter, compute what eager torch does."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterable

import pytest
import torch

from burnt.codegen.function import Function
from burnt.codegen.render.triton import layout as triton_layout
from burnt.codegen.render.triton.tile_config import TileConfig, TileStructure, select_config
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.codegen.runtime.triton_launch import build
from tests.codegen.compare import judge, judge_fresh
from tests.codegen.programs import program
from tests.codegen.render.triton.products import always
from tests.codegen.test_random_programs import REGRESSIONS, regression

PER_TEST = 4
DEFAULT, FULL = 40, 1200
# A variance of 429 elements in steps of 4: its rounding adds up to more than the judge's nudges move it.
MANY_STEPS = {1977}

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]


def fuse(fn):  # type: ignore[no-untyped-def]
    return Function(fn, target=TRITON)


def chosen(*configs: TileConfig):  # type: ignore[no-untyped-def]
    """Functions whose kernels get these block sizes in turn, whatever suits them."""
    turns = itertools.cycle(configs)

    def choose(form: TileStructure) -> TileConfig:
        config = next(turns)
        # The interpreter takes a program at a time: not thousands of them.
        few = form.rows * form.programs * form.cols < 4000
        return config if few else select_config(form)

    return dataclasses.replace(TRITON, build=functools.partial(build, choose=choose))


def run(seeds: Iterable[int], target: Target = TRITON, grammar: str = "plain") -> None:
    for seed in seeds:
        judge(program(seed, grammar), functools.partial(Function, target=target))


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, DEFAULT, PER_TEST))
def test_random_programs(first: int) -> None:
    run(range(first, first + PER_TEST))


def test_programs_of_the_wider_grammar() -> None:
    """Empty tensors, random numbers, 16-bit gradients, and a kernel for every matmul."""
    run(range(10, 12), always(), "wider")


@pytest.mark.full
@pytest.mark.parametrize(
    "config",
    [
        TileConfig(4, 8),
        pytest.param(TileConfig(1, 4, chunks=4), marks=pytest.mark.full),
        pytest.param(TileConfig(16, 2, chunks=2), marks=pytest.mark.full),
    ],
    ids=["loops", "chunks", "rows"],
)
def test_other_block_sizes(config: TileConfig) -> None:
    """Loops, and rows shared by programs, instead of whole rows."""
    run(range(500, 504), chosen(config))


@pytest.mark.full
def test_indices_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_layout, "INT32_INDEX_LIMIT", 10)
    run(range(600, 603))


@pytest.mark.sample(0, full=12)
@pytest.mark.full
@pytest.mark.parametrize("first", range(DEFAULT, FULL, PER_TEST))
def test_more_random_programs(first: int) -> None:
    """Of all of them 12, which BURNT_SEED draws; `--fuzz` draws fresh ones."""
    run(range(first, first + PER_TEST))


@pytest.mark.sample(0, full=10)
@pytest.mark.full
@pytest.mark.parametrize("first", range(12, 616, PER_TEST))
def test_more_programs_of_the_wider_grammar(first: int) -> None:
    """Of all of them 10, which BURNT_SEED draws; `--fuzz` draws fresh ones."""
    run(range(first, first + PER_TEST), always(), "wider")


@pytest.mark.sample(0, full=12)
@pytest.mark.full
@pytest.mark.parametrize("first", range(FULL, 2 * FULL, PER_TEST))
def test_more_random_programs_with_other_block_sizes(first: int) -> None:
    """Of all of them 12, which BURNT_SEED draws; `--fuzz` draws fresh ones."""
    seeds = [seed for seed in range(first, first + PER_TEST) if seed not in MANY_STEPS]
    run(seeds, chosen(TileConfig(2, 4, chunks=2), TileConfig(4, 8), TileConfig(1, 16, chunks=4)))


def by_extreme(values, x):
    return torch.where(values == values.amax(-1, keepdim=True), x, 2 * x)


@pytest.mark.sample(2, full=6)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.cumsum(1).amax(1).max() * 2,
        lambda x: by_extreme(x.cumsum(-1), x),
        lambda x: by_extreme(x - x.mean(0), x) * (x - x.mean(0)).amin(),
        lambda x: math.prod(x.sum(-1).aminmax()),
        lambda x: x.cumsum(-1).norm(float("inf")),
    ],
    ids=["saved", "compared", "centred", "both", "norm"],
)
@pytest.mark.parametrize("first", range(3))
def test_maximum_of_sums_with_any_block_sizes(fn: Callable[[torch.Tensor], torch.Tensor], first: int) -> None:
    """If kernels summed in another order, the maximum would equal no element: gradients of 0 or 0 / 0."""
    sizes = [TileConfig(2, 4, chunks=2), TileConfig(4, 8), TileConfig(1, 16, chunks=4)]
    fused = Function(fn, target=chosen(*sizes[first:], *sizes[:first]))
    actual = []
    for each in (fused, fn):
        x = torch.linspace(-3, 1, 93).square().sin().reshape(3, 31).requires_grad_()
        result = each(x)
        actual.append((result, *torch.autograd.grad(result.square().sum(), x)))
    torch.testing.assert_close(*actual, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2,), (7, 2), (7, 5)])
def test_a_variance_in_chunks_of_short_rows(shape: tuple[int, ...]) -> None:
    """Sizes up to 2 are literals in a kernel's text."""
    x = torch.randn(shape)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = Function(lambda x: x.var(-1), target=chosen(TileConfig(1, 16, chunks=4)))(x)
    assert not [str(w.message) for w in caught]  # that it runs as plain torch
    torch.testing.assert_close(result, x.var(-1))


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", REGRESSIONS)
def test_regressions(name: str) -> None:
    judge(regression(name), fuse)


if "BURNT_FUZZ_MINUTES" in os.environ:

    @pytest.mark.timeout(0)
    def test_fresh_programs() -> None:
        judge_fresh(float(os.environ["BURNT_FUZZ_MINUTES"]), functools.partial(Function, target=always()))


def test_a_partial_reduction_without_loads() -> None:
    split = chosen(TileConfig(1, 16, chunks=4))
    fused = Function(lambda x: torch.zeros_like(x).ceil().var(0, correction=0) + x.sum(0), target=split)
    x = torch.randn(255)
    torch.testing.assert_close(fused(x), x.sum())
    of_nothing = Function(lambda x: torch.zeros_like(x).ceil().var(0, correction=0), target=split)
    assert of_nothing(x) == 0
