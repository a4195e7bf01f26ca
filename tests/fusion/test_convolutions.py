"""Convolutional nets through burnt.compile: norms over channels-last, what is stored once, layouts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from burnt.fusion import backend

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: torch runs graphs")


def train(model: nn.Module, call: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, all gradients and all buffers of one training step."""
    x = x.detach().requires_grad_()
    out = call(x)
    (out * out.detach().cos()).sum().backward()
    assert x.grad is not None
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [out.detach(), x.grad, *grads, *(b for b in model.buffers() if b.is_floating_point())]


def check_training(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch | None = None
) -> list[CompiledPlan]:
    """Compare a training step with eager torch's and with float64; return the plans."""
    plans: list[CompiledPlan] = []

    class Recorded(CompiledPlan):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]
            plans.append(self)

    if monkeypatch is not None:
        monkeypatch.setattr(backend, "CompiledPlan", Recorded)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    ours = train(model, backend.compile(model, fullgraph=True), x)
    for a, b, truth in zip(ours, train(eager, eager, x), train(exact, exact, x.double()), strict=True):
        assert a.stride() == b.stride()
        slack = 1e-5 * max(float(truth.abs().max()), 1)
        assert float((a - truth).abs().max()) <= 4 * float((b - truth).abs().max()) + slack
    return plans


@pytest.mark.parametrize("channels", [24, pytest.param(100, marks=pytest.mark.full)])
def test_norms_over_channels_last(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        nn.Conv2d(4, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.Hardswish(),
        nn.Conv2d(channels, 4, 1),
    ).to(memory_format=torch.channels_last)
    x = torch.randn(4, 4, 20, 20).to(memory_format=torch.channels_last)
    forward, backward = check_training(model, x, monkeypatch)
    for plan in (forward, backward):
        # The statistics, and in the backward the sums, are computed once, next to all that reads them.
        sums = [k for k in plan.plan.steps if isinstance(k, Kernel) and len(k.reductions) > 1]
        assert len(sums) == 1
    # The activation's argument is computed again in the backward, not saved next to its result.
    big = channels * 4 * 20 * 20
    assert (
        sum(b.shape[1:2] == (channels,) and torch.Size(b.shape).numel() == big for b in backward.plan.inputs)
        == 2
    )


@pytest.mark.parametrize("columns", [24, 100, pytest.param(320, marks=pytest.mark.full)])
def test_columns_that_stream_through_memory(columns: int) -> None:
    def standardize(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        return (x - mean) * (variance + 1e-5).rsqrt() * scale, mean

    x, scale = torch.randn(3001, columns) + 3, torch.randn(columns)
    ours = backend.compile(standardize)(x, scale)
    for a, truth in zip(ours, standardize(x.double(), scale.double()), strict=True):
        torch.testing.assert_close(a, truth.float(), rtol=2e-6, atol=2e-6)
