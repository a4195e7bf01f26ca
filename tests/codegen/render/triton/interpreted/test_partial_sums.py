"""Column sums as partial sums of the kernel that processes the same rows, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import explain
from burnt.codegen.function import Function
from burnt.codegen.runtime.triton_backend import TRITON, with_block_sizes
from tests.codegen.render.triton.products import agree, runs_alike


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def with_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.rms_norm(total, weight.shape, weight), total


def biased(x: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(x + bias)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """A product with a factor for each row, and one for each column."""
    return x * gate * x.mean(-1, keepdim=True)


def shifted(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The rows beyond the end would add 1 to each sum."""
    result = torch.exp(x * bias)
    return result, result.sum(0)


# The rows and columns are no multiples of a tile's.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "layer norm": (normalised, [(83, 96), (96,), (96,)]),
    "three axes": (normalised, [(3, 19, 50), (50,), (50,)]),
    "fewer rows than a tile": (normalised, [(9, 40), (40,), (40,)]),
    "rms norm": (with_residual, [(61, 72), (61, 72), (72,)]),
    "a bias": (biased, [(2, 7, 5, 64), (64,)]),
    "shifted": (shifted, [(45, 36), (36,)]),
    "gated": (gated, [(70, 33), (33,)]),
}


def arguments(name: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    source = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=source).to(dtype) for shape in CASES[name][1]]


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    agree(name, CASES[name][0], arguments(name, dtype), TRITON)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [name for name in CASES if name != "shifted"])
def test_no_tensor_is_read_for_the_sums_alone(name: str) -> None:
    args = [a.requires_grad_() for a in arguments(name)]
    shown = explain(Function(CASES[name][0], target=TRITON), *args, timed=False).backward
    assert shown is not None
    rows, *sums = shown.steps
    assert "p0 = p0 + " in shown.source(rows.name)
    for step in sums:
        read = {
            line.split("tl.load(")[1][0]
            for line in shown.source(step.name).splitlines()
            if "tl.load(" in line
        }
        assert read == {"t"}  # partial sums only


@pytest.mark.sample(1)
@pytest.mark.parametrize("text", ["1x64 w4", "16x128 w4", "64x16 w1 c2"])
def test_block_sizes(text: str) -> None:
    """Tiles of one row and of several; a tile always holds whole rows, and a chunk is not shared."""
    target = with_block_sizes({f"normalised_backward_{i}": text for i in range(2)})
    agree("layer norm", normalised, arguments("layer norm"), target)


def test_results_do_not_depend_on_the_order_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs_alike(normalised, arguments("layer norm"), TRITON, monkeypatch)


@pytest.mark.parametrize("shape", [(7, 64), (100, 24), (9, 8200)], ids=str)
def test_what_is_left_to_a_kernel_of_its_own(shape: tuple[int, int]) -> None:
    """Too few rows for chunks, columns that leave threads idle, and more than registers hold."""
    args = [torch.randn(shape, requires_grad=True), torch.randn(shape[1:], requires_grad=True)]
    shown = explain(Function(biased, target=TRITON), *args, timed=False).backward
    assert shown is not None
    assert all("p0 = p0 + " not in shown.source(step.name) for step in shown.steps)
