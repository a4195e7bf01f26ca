"""Online sums in Metal, in one loop with the reduction they need: rows, columns, chunks, special values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel, OnlineReduction
from burnt.codegen.render.metal import kernel as metal_kernel
from burnt.codegen.schedule.capabilities import OnlineThresholds
from tests.codegen.render.metal import shim
from tests.codegen.render.metal.shim import METAL_SHIM

pytestmark = pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with")

ALWAYS = dataclasses.replace(METAL_SHIM, online_thresholds=OnlineThresholds())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are split into chunks from sizes on that a test can afford."""
    monkeypatch.setattr(metal_kernel, "_SPLIT_ELEMENTS", 500)
    monkeypatch.setattr(metal_kernel, "_NUM_CHUNKS", 7)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def spread(x: Tensor) -> tuple[Tensor, ...]:
    return x.var(-1), torch.logsumexp(x, -1), torch.softmax(x, -1), x.mean(-1)


def columns(x: Tensor) -> tuple[Tensor, ...]:
    return x.var(0), torch.logsumexp(x, 0), torch.softmax(x, 0)


def check(fn: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> None:
    function = Function(fn, target=ALWAYS)
    for ours, eager, truth in zip(function(x), fn(x), fn(x.double()), strict=True):
        assert ours.dtype == eager.dtype
        error = float((eager.double() - truth.double()).abs().max())
        largest = float(max(truth.double().abs().max(), x.double().abs().max()))
        slack = 4 * error + 4 * torch.finfo(eager.dtype).eps * largest
        assert float((ours.double() - truth.double()).abs().max()) <= slack
    (entry,) = function._entries.values()
    assert entry.forward is not None
    steps = [s for k in entry.forward.plan.steps if isinstance(k, Kernel) for s in k.steps]
    assert {step.kind for step in steps if isinstance(step, OnlineReduction)} == {"exp", "squares"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(40, 2), (40, 97), (7, 300), (3, 1025)])
def test_rows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(spread, randn(*shape, dtype=dtype) * 3 + 2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(2, 40), (13, 40), (97, 33), (300, 8)])
def test_columns(shape: tuple[int, ...]) -> None:
    check(columns, randn(*shape) - 5)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", [(2, 1025), (5, 503), (3000,)])
def test_chunks(shape: tuple[int, ...]) -> None:
    check(spread, randn(*shape) + 1)
    check(columns, randn(shape[-1], 9) + 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [90, 700])
def test_elements_that_drift(length: int) -> None:
    ramp, far = torch.linspace(-200, 200, length), torch.full((length,), 1000.0)
    for change in (ramp, -ramp, far, (torch.arange(length) > length // 3) * 1e4):
        check(lambda x: (x.var(-1), torch.logsumexp(x, -1)), randn(3, length) + change)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [70, 700])
def test_infinities_and_nan(length: int) -> None:
    x, infinity = randn(8, length), float("inf")
    x[0] = -infinity
    x[1, : length // 2] = -infinity
    x[2, length // 2 :] = -infinity
    x[3, 0] = infinity
    x[4, -1] = infinity
    x[5, 30] = float("nan")
    x[6] = infinity
    x[7], x[7, -1] = -infinity, 2.5

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        peak = x.amax(-1, keepdim=True)
        return torch.logsumexp(x, -1), (x - peak).exp().sum(-1), x.var(-1)

    for given in (x, x.T.contiguous().T):
        for ours, eager in zip(Function(fn, target=ALWAYS)(given), fn(given), strict=True):
            torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-5, atol=1e-5)
