"""Convolutional nets through burnt.compile: norms over channels-last, what is stored once, layouts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from burnt.codegen.schedule.scheduler import TorchCall
from burnt.fusion import backend
from burnt.fusion.layout import use_channels_last

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


def convolutions(plan: CompiledPlan) -> list[TorchCall]:
    called = [step for step in plan.plan.steps if isinstance(step, TorchCall)]
    return [step for step in called if "convolution" in str(step.node.target)]


class SumOfResults(nn.Module):
    """The sum of a model's results, each under a weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return sum(r.float().cos().mean() * (i + 1) for i, r in enumerate(self.model(x)))  # type: ignore[return-value]


class Chain(nn.Module):
    """Three convolutions, one by groups and one next to a view, and results of several layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, groups=16, stride=2)
        self.third, self.norm = nn.Conv2d(16, 8, 3), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a = self.norm(self.first(x).relu())
        b = self.second(a)
        flat = b.view(b.shape[0], -1)  # a view that channels-last does not allow
        c = self.third(b)
        return a, flat * 2, c.permute(0, 2, 3, 1), c.mean((2, 3))


def test_layout_of_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Chain(), torch.randn(2, 3, 15, 15)
    strides = [r.stride() for r in model(x)]
    forward, backward = check_training(SumOfResults(model), x, monkeypatch)
    assert [len(convolutions(plan)) for plan in (forward, backward)] == [3, 3]
    for step in (*convolutions(forward), *convolutions(backward)):
        for buffer in step.inputs.values():
            if len(buffer.shape) == 4:
                assert torch.empty_strided(buffer.shape, buffer.strides, device="meta").is_contiguous(
                    memory_format=torch.channels_last
                )
    compiled = backend.compile(model.eval(), fullgraph=True)
    with torch.no_grad():
        results, expected = compiled(x), model(x)
    assert [r.stride() for r in results] == strides
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("columns", [24, 100, pytest.param(320, marks=pytest.mark.full)])
def test_columns_that_stream_through_memory(columns: int) -> None:
    def standardize(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        return (x - mean) * (variance + 1e-5).rsqrt() * scale, mean

    x, scale = torch.randn(3001, columns) + 3, torch.randn(columns)
    ours = backend.compile(standardize)(x, scale)
    for a, truth in zip(ours, standardize(x.double(), scale.double()), strict=True):
        torch.testing.assert_close(a, truth.float(), rtol=2e-6, atol=2e-6)


def joint_like(fn: Any, *inputs: Tensor) -> torch.fx.GraphModule:
    return make_fx(fn, tracing_mode="fake")(*inputs)


def test_layout_pays_where_there_are_several_large_convolutions() -> None:
    x, weight = torch.randn(2, 4, 9, 9), torch.randn(4, 4, 3, 3)

    def chain(x: Tensor, weight: Tensor, count: int) -> Tensor:
        for _ in range(count):
            x = torch.convolution(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return x

    def is_changed(count: int, x: Tensor = x, weight: Tensor = weight) -> bool:
        graph = joint_like(lambda x, weight: chain(x, weight, count), x, weight)
        return use_channels_last(graph) is not graph

    assert is_changed(3)
    assert not is_changed(2)
    assert not is_changed(3, *(t.to(memory_format=torch.channels_last) for t in (x, weight)))  # they have it
    assert not is_changed(3, x[:1, :, :3, :3], weight)  # weights are larger than images
    assert not is_changed(3, x.double(), weight.double())  # oneDNN has no float64
    graph = use_channels_last(joint_like(lambda x, weight: chain(x, weight, 3), x, weight))
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert len(copies) == 3  # of the first image, the weight, and the result
    torch.testing.assert_close(graph(x, weight), chain(x, weight, 3))
