"""Online sums in Metal, in one loop with the reduction they need: rows, columns, chunks, special values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.render.metal import kernel as metal_kernel
from burnt.codegen.schedule.capabilities import OnlineThresholds
from tests.codegen.compare import check_outcome
from tests.codegen.render.metal import shim
from tests.codegen.render.metal.shim import METAL_SHIM
from tests.codegen.schedule.test_online import check_specials, four_of_rows, online, randn, specials, spread

pytestmark = pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with")

ALWAYS = dataclasses.replace(METAL_SHIM, online_thresholds=OnlineThresholds())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are split into chunks from sizes on that a test can afford."""
    monkeypatch.setattr(metal_kernel, "_SPLIT_ELEMENTS", 500)
    monkeypatch.setattr(metal_kernel, "_NUM_CHUNKS", 7)


def columns(x: Tensor) -> tuple[Tensor, ...]:
    return x.var(0), torch.logsumexp(x, 0), torch.softmax(x, 0)


def check(fn: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> None:
    function = Function(fn, target=ALWAYS)
    check_outcome(function, [x], gradient=False, least=float(x.abs().max()))
    assert set(online(function)) == {"exp", "squares"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(40, 2), (40, 97), (7, 300), (3, 1025)])
def test_rows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(four_of_rows, randn(*shape, dtype=dtype) * 3 + 2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(2, 40), (13, 40), (97, 33), (300, 8)])
def test_columns(shape: tuple[int, ...]) -> None:
    check(columns, randn(*shape) - 5)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", [(2, 1025), (5, 503), (3000,)])
def test_chunks(shape: tuple[int, ...]) -> None:
    check(four_of_rows, randn(*shape) + 1)
    check(columns, randn(shape[-1], 9) + 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [90, 700])
def test_elements_that_drift(length: int) -> None:
    ramp, far = torch.linspace(-200, 200, length), torch.full((length,), 1000.0)
    for change in (ramp, -ramp, far, (torch.arange(length) > length // 3) * 1e4):
        check(spread, randn(3, length) + change)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [70, 700])
def test_infinities_and_nan(length: int) -> None:
    check_specials(Function(specials, target=ALWAYS), length)
