"""Linear goes by `burnt.kernels.linear` where that pays, and by torch's call where calls are recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels, nn
from burnt.errors import InputRuntimeError
from tests import processors
from tests.nn.case import record_calls

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of the calls for which a candidate is chosen."""
    return record_calls(monkeypatch, kernels.linear)


def gradients(layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    result = layer(x)
    return [result, *torch.autograd.grad(result.square().sum(), [x, *layer.parameters()])]


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
def test_large_products_are_the_best_candidates(
    processor: str, calls: list[tuple[Any, ...]], bias: bool
) -> None:
    layer, x = nn.Linear(128, 200, bias), torch.randn(3, 40, 128)
    exact = torch.nn.Linear(128, 200, bias, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    for ours, theirs in zip(gradients(layer, x), gradients(exact, x.double()), strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-4)
    (args,) = calls
    chosen = kernels.linear.chosen(*args).candidate.name
    assert chosen == ("onednn" if processor == "AMD AVX-512" else "library")


def test_mkl_is_left_where_the_processor_has_more() -> None:
    """On a Zen 3 its products take three quarters of the time of oneDNN's, on a Zen 4 twice as long."""
    known = [processors.named(name) for name in processors.NAMES]
    assert [p.name for p in known if p.mkl_is_slow] == ["AMD AVX-512"]
    assert not any(replace(p, has_mkl=False).mkl_is_slow for p in known)


def test_small_ones_and_what_is_recorded_are_torchs(processor: str, calls: list[tuple[Any, ...]]) -> None:
    layer, x = nn.Linear(128, 200), torch.randn(120, 128)
    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x[:2]), torch.nn.functional.linear(x[:2], layer.weight, layer.bias))
    torch.testing.assert_close(torch.vmap(layer)(x.view(2, 60, 128)).flatten(0, 1), expected)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.testing.assert_close(torch.compile(layer, backend=backend, fullgraph=True)(x), expected)
    assert any("linear" in name and "burnt" not in name for name in seen), seen
    assert calls == []


def test_autocast_computes_in_its_dtype() -> None:
    layer, x = nn.Linear(128, 200), torch.randn(120, 128)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(
        InputRuntimeError,
        match=r"the shapes of x and weight of linear do not match(.|\n)*found +x \[120, 100\]",
    ):
        nn.Linear(128, 200)(torch.randn(120, 100))
