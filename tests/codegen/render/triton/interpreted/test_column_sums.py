"""Column sums of a matmul's result, as partial sums of its kernel, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import explain
from burnt.codegen.function import Function
from burnt.codegen.precision import multiplying
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from tests.codegen.render.triton.products import agree, always

pytestmark = pytest.mark.timeout(900)


def normalised(x: Tensor, w: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(F.conv2d(x, w, padding=1), None, None, g, b, training=True).relu()


def statistics(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    result = a @ b
    var, mean = torch.var_mean(result, 0)
    return result, mean, var.sqrt(), result.sum(0)


def far_from_zero(a: Tensor, b: Tensor) -> Tensor:
    """A mean far from 0: sums of squares cancel unless they are relative to the mean."""
    return torch.var(a @ b + 100, 0)


def layers(x: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The bias gradient is a column sum of the second layer's matmul."""
    return torch.tanh(F.linear(x, v, b)) @ w


def weighted(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Two column sums, one with a factor per column."""
    result = torch.relu(a @ b)
    return result, result.sum(0), (result * c).abs().sum(0)


def every_third(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Elements that depend on their index."""
    result = torch.relu(a @ b).view(4, 32, 33)
    rows = torch.arange(4)[:, None, None] + 2 * torch.arange(32)[:, None]
    return result, torch.where((rows + torch.arange(33)) % 3 == 0, result, 0).sum((0, 1))


def about_the_mean(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Two column sums, one of which depends on the other."""
    result = torch.relu(a @ b)
    return result, (result - result.mean(0)).abs().sum(0)


def about_another(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """A column sum of a value that is not available in the matmul's kernel."""
    result = torch.relu(a @ b)
    return result, (result - (result.amax(0) + c).amax()).sum(0)


CASES: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]], bool]] = {
    "batch norm": (normalised, [(4, 16, 8, 8), (32, 16, 3, 3), (32,), (32,)], False),
    "statistics": (statistics, [(192, 40), (40, 50)], False),
    "weighted": (weighted, [(128, 24), (24, 33), (33,)], False),
    "every third": (every_third, [(128, 24), (24, 33)], False),
    "far from zero": (far_from_zero, [(256, 24), (24, 33)], False),
    "a bias": (layers, [(128, 24), (48, 24), (48, 20), (48,)], True),
}


def arguments(name: str, dtype: torch.dtype) -> list[Tensor]:
    source = torch.Generator().manual_seed(7)
    result = [torch.randn(s, generator=source) / max(s[-1], 9) ** 0.5 for s in CASES[name][1]]
    return [(t.to(memory_format=torch.channels_last) if t.dim() == 4 else t).to(dtype) for t in result]


def steps(
    fn: Callable[..., Any], args: Sequence[Tensor], *, backward: bool = False
) -> list[tuple[str, bool]]:
    """The kinds of a plan's kernels, and whether they store partial column sums."""
    args = [a.clone().requires_grad_(backward) for a in args]
    with torch.set_grad_enabled(backward):
        shown = explain(Function(fn, target=always()), *args, timed=False)
    shown = shown.backward if backward else shown
    assert shown is not None
    return [(s.kind, "store_row_sums(" in shown.source(s.name)) for s in shown.steps]


@pytest.mark.sample(2, full=6)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)], ids=str
)
# 100 and what is added to it are not told apart in 16 bits: that one is run in float32, below.
@pytest.mark.parametrize("name", [name for name in CASES if name != "far from zero"])
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    agree(name, CASES[name][0], arguments(name, dtype), always())


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_read_again(name: str) -> None:
    fn, _, backward = CASES[name]
    found = steps(fn, arguments(name, torch.float32), backward=backward)
    assert ("matmul", True) in found
    assert [kind for kind, _ in found if kind == "reduction"] == ["reduction"], found


@pytest.mark.sample(1, full=5)
@pytest.mark.parametrize(
    "text",
    ["16x16x16 w4 s2", "64x32x16 w4 s2 k2", "128x16x32 w4 s2", "64x16x16 w4 s2 p3", "128x256x16 w4 s2 d"],
)
@pytest.mark.parametrize("name", ["batch norm", "statistics", "far from zero"])
def test_block_sizes(name: str, text: str) -> None:
    """Tiles of one chunk of rows and of several, some beyond the end; too small ones are enlarged."""
    target = always(MatmulConfig.of(text))
    agree(name, CASES[name][0], arguments(name, torch.float32), target, gradients=False)


def test_what_is_left_to_a_kernel_of_its_own() -> None:
    def sums(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        result = torch.relu(a @ b)
        return result, result.sum(-2)

    def largest(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        result = torch.relu(a @ b)
        return result, result.amax(0)

    assert ("matmul", True) in steps(sums, [torch.randn(128, 32), torch.randn(32, 48)])
    assert ("matmul", True) not in steps(sums, [torch.randn(100, 32), torch.randn(32, 48)])  # runs of 64
    assert ("matmul", True) not in steps(sums, [torch.randn(3, 64, 32), torch.randn(3, 32, 48)])  # of a batch
    assert ("matmul", True) not in steps(largest, [torch.randn(128, 32), torch.randn(32, 48)])


@pytest.mark.parametrize(
    ("fn", "shapes"), [(about_the_mean, [(128, 24), (24, 33)]), (about_another, [(128, 24), (24, 33), (33,)])]
)
def test_sums_of_what_comes_later(fn: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> None:
    args = [torch.randn(s, generator=torch.Generator().manual_seed(3)) for s in shapes]
    assert ("matmul", True) not in steps(fn, args)
    agree(fn.__name__, fn, args, always(), gradients=False)


def test_in_the_precision_that_was_set() -> None:
    with multiplying("flex32"):
        args = [torch.randint(-2, 3, s).float() for s in ((128, 32), (32, 48))]
        result = Function(statistics, target=always())(*args)
    for ours, theirs in zip(result, statistics(*(a.double() for a in args)), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)
