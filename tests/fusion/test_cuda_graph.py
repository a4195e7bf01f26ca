"""burnt.compile(graph=True): refused without a GPU; what is copied, kept and captured again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import burnt
from burnt.errors import FusionError, FusionWarning
from burnt.fusion import backend, cuda_graph
from burnt.kernels.autotune.timers import NotCapturedError

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def without_gradients(afresh: None) -> Iterator[None]:
    with torch.no_grad():
        yield


class Replayed:
    """Stands for a CUDA graph: it runs what was captured again, on the same tensors."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.replay = call


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    """Capture on a CPU; the list has what was captured."""
    found: list[Replayed] = []

    def capture(calls: Sequence[Callable[[], object]]) -> Replayed:
        (call,) = calls
        for _ in range(3):  # to warm up, to see whether it synchronizes, and to capture
            call()
        found.append(Replayed(call))
        return found[-1]

    monkeypatch.setattr(cuda_graph, "capture_graph", capture)
    monkeypatch.setattr(backend, "_check_devices", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    return found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_cpu_is_refused() -> None:
    with pytest.raises(Exception, match="cannot be captured as a CUDA graph") as caught:
        burnt.compile(nn.Linear(2, 2), graph=True)(torch.ones(1, 2))
    error = caught.value.inner_exception  # type: ignore[attr-defined]
    assert isinstance(error, FusionError)
    assert "tensors on cpu" in str(error)
    with pytest.raises(FusionError, match="which verify= does not see"):
        burnt.compile(nn.Linear(2, 2), graph=True, verify=True)


@pytest.mark.parametrize("mode", [pytest.param("train", marks=pytest.mark.full), "infer"])
def test_inputs_and_results_are_copied_and_parameters_are_not(mode: Any, captured: list[Replayed]) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    compiled = burnt.compile(model, graph=True, mode=mode)
    inputs = [torch.randn(3, 4).t() for _ in range(3)]
    results = [compiled(x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, model(x))
    assert len(captured) == 1
    model[0].weight.mul_(2)
    torch.testing.assert_close(compiled(inputs[0]), model(inputs[0]))
    assert len(captured) == 1  # the same address
    model[0].weight.data = model[0].weight + 1
    torch.testing.assert_close(compiled(inputs[0]), model(inputs[0]))
    assert len(captured) == 2


def test_warming_up_changes_nothing(captured: list[Replayed]) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(x.sum())
            return self.count * x

    model, x = Counter(), torch.ones(2)
    compiled = burnt.compile(model, graph=True)
    for i in range(1, 4):
        assert torch.equal(compiled(x), torch.full((2,), 2.0 * i))
        assert torch.equal(model.count, torch.full((2,), 2.0 * i))
    assert len(captured) == 1


@pytest.mark.full
def test_each_replay_draws_other_numbers(captured: list[Replayed]) -> None:
    compiled = burnt.compile(lambda x: nn.functional.dropout(x) * 2, graph=True)
    first, second = (compiled(torch.ones(100)) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(compiled(torch.ones(100)), first)
    assert len(captured) == 1


@pytest.mark.full
def test_what_cannot_be_captured(captured: list[Replayed], monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(calls: Sequence[Callable[[], object]]) -> Any:
        raise NotCapturedError("a call waits for the device")

    monkeypatch.setattr(cuda_graph, "capture_graph", capture)
    with pytest.raises(
        FusionError, match=r"graph\d+_inference cannot be captured(.|\n)*waits for the device"
    ):
        burnt.compile(torch.sin, graph=True)(torch.ones(3))
    monkeypatch.undo()


@pytest.mark.full
def test_calls_with_gradients_are_not_captured(captured: list[Replayed]) -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.enable_grad(), pytest.warns(FusionWarning, match="needs gradients, and is compiled without"):
        burnt.compile(lambda x: x.sin(), graph=True)(x).sum().backward()
    torch.testing.assert_close(x.grad, x.cos())
    assert not captured


def test_the_last_graphs_are_kept(captured: list[Replayed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "_MAX_GRAPHS", 2)
    place = torch.empty(2)
    call = cuda_graph.replayed(
        lambda given: [torch.mul(*given, out=place)], "f", torch.device("cpu"), frozenset({1}), []
    )
    weights = [torch.full((2,), float(i)) for i in range(3)]
    for i in (0, 1, 2, 2, 0):
        (result,) = call([torch.ones(2), weights[i]])
        assert torch.equal(result, weights[i])
        assert result.data_ptr() != place.data_ptr()
    assert len(captured) == 4
