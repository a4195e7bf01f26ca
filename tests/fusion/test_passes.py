"""Which library computes products and the gradients of attention, in burnt's plans and in Inductor's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx

import burnt
import burnt.device
from burnt._torch import onednn_conv
from burnt.fusion import inductor
from burnt.fusion.passes import run_passes
from burnt.kernels.ops.matmul import onednn_addmm, onednn_mm

aten = torch.ops.aten
CAST = torch.ops.prims.convert_element_type.default
SLOW_MKL = dataclasses.replace(
    burnt.device.processor(),
    vendor="AMD",
    capability="AVX512",
    has_mkl=True,
    onednn=frozenset((torch.float32, torch.bfloat16)),
)


@pytest.fixture(autouse=True)
def slow_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burnt.device, "_override", SLOW_MKL)


def graph_of(fn: Callable[..., Any], *args: Tensor) -> torch.fx.GraphModule:
    return make_fx(fn, tracing_mode="fake")(*args)


def targets(graph: Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_large_products_are_onednns_and_equal() -> None:
    def fn(x: Tensor, w: Tensor, bias: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.addmm(bias, x, w.t())
        return torch.mm(h, w), torch.mm(v, v)

    args = randn(128, 96), randn(112, 96), randn(112), randn(5, 5)
    graph = graph_of(fn, *args)
    run_passes(graph.graph)
    graph.recompile()
    assert [t for t in targets(graph.graph) if t is not aten.t.default] == [
        onednn_addmm,
        onednn_mm,
        aten.mm.default,  # small
    ]
    for found, expected in zip(graph(*args), fn(*(a.double() for a in args)), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_the_choice_is_explained() -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        found = burnt.explain(burnt.compile(nn.Linear(96, 112)), randn(128, 96))
    (step,) = (step for step in found.steps if step.kind == "library")
    assert (step.name, step.why) == ("onednn_addmm", "oneDNN is faster here than the library of torch's call")


@pytest.mark.parametrize("change", [{"vendor": "Intel"}, {"capability": "AVX2"}, {"has_mkl": False}])
def test_other_processors_keep_torchs_products(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burnt.device, "_override", dataclasses.replace(SLOW_MKL, **change))
    graph = graph_of(torch.mm, randn(128, 128), randn(128, 128)).graph
    run_passes(graph)
    assert targets(graph) == [aten.mm.default]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.mm(x.double(), x.double()),
        lambda x: torch.addmm(x, x, x),  # a bias for each element
        lambda x: torch.addmm(x[0], x, x, alpha=2),
        lambda x: torch.addmm(x[0, :1], x, x),  # it is broadcast
    ],
)
def test_what_onednn_does_not_compute(fn: Callable[..., Any]) -> None:
    graph = graph_of(fn, randn(128, 128)).graph
    run_passes(graph)
    assert not {onednn_mm, onednn_addmm} & set(targets(graph))


@pytest.mark.parametrize("take", [lambda v: v[:1].expand(128), lambda v: v[::2]])
def test_a_bias_that_is_not_contiguous(take: Callable[[Tensor], Tensor]) -> None:
    a, b, bias = randn(128, 128), randn(128, 128), take(randn(256))
    torch.testing.assert_close(onednn_addmm(bias, a, b), torch.addmm(bias, a, b), rtol=1e-4, atol=1e-4)
    images, weight = randn(2, 8, 5, 5), randn(128, 8, 3, 3)
    found = onednn_conv(images, weight, bias, [0, 0], [1, 1], [1, 1], 1)
    torch.testing.assert_close(found, nn.functional.conv2d(images, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("columns", "is_copied"), [(64, False), (2048, True)])
def test_a_column_major_operand_is_copied_if_that_pays(columns: int, is_copied: bool) -> None:
    graph = graph_of(lambda g, x: g.t() @ x, randn(64, 128), randn(64, columns)).graph
    run_passes(graph)
    assert (targets(graph)[-2:] == [aten.clone.default, onednn_mm]) == is_copied
    assert (targets(graph)[-1] is aten.mm.default) != is_copied


def test_transposes_of_transposes_are_dropped() -> None:
    graph = graph_of(lambda x: x.t().t() + 1, randn(2, 3)).graph
    run_passes(graph)
    assert targets(graph) == [aten.add.Tensor]


def attention_gradients(
    length: int, dtype: torch.dtype
) -> tuple[torch.fx.GraphModule, list[Tensor], list[Tensor]]:
    """Return the graph, its arguments, and the gradients in float64."""
    q, k, v, grad = (torch.randn(2, 2, length, 16) for _ in range(4))
    q, k, v, grad = (t.to(dtype) for t in (q, k, v, grad))
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    expected = nn.functional.scaled_dot_product_attention(*exact, is_causal=True)

    def fn(*args: Tensor) -> Any:
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(*args, 0.0, True)

    args = [grad, q, k, v, out, lse]
    return graph_of(fn, *args), args, list(torch.autograd.grad(expected, exact, grad.double()))


def test_short_attention_in_bfloat16_is_differentiated_in_float32() -> None:
    torch.manual_seed(0)
    graph, args, expected = attention_gradients(24, torch.bfloat16)
    before = graph(*args)
    run_passes(graph.graph)
    graph.recompile()
    assert targets(graph.graph).count(CAST) == 8
    for found, own, exact in zip(graph(*args), before, expected, strict=True):
        assert found.dtype == torch.bfloat16
        error, own_error = (float((t.double() - exact).square().mean()) for t in (found, own))
        assert error <= own_error * 1.01


@pytest.mark.parametrize(("length", "dtype"), [(160, torch.bfloat16), (24, torch.float32)])
def test_other_attention_is_differentiated_as_it_is(length: int, dtype: torch.dtype) -> None:
    graph, _, _ = attention_gradients(length, dtype)
    run_passes(graph.graph)
    assert CAST not in targets(graph.graph)


@pytest.mark.full  # 4 s
def test_the_passes_serve_inductor() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 112), nn.GELU(), nn.Linear(112, 96))
    x = torch.randn(128, 96)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    seen: list[list[Any]] = []
    own = burnt.inductor_pass()

    class Watch(type(own)):  # type: ignore[misc]
        def __call__(self, graph: Graph) -> None:
            super().__call__(graph)
            seen.append(targets(graph))

        def uuid(self) -> None:
            return None  # nothing comes from the cache: the pass runs

    torch._dynamo.reset()
    with config.patch(post_grad_custom_post_pass=Watch(), compile_threads=1):
        compiled = torch.compile(model)
        found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    forward, backward = seen
    assert forward.count(torch.ops.burnt.onednn_addmm.default) == 2
    assert backward.count(torch.ops.burnt.onednn_mm.default) == 1
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_inductor_keeps_its_cache_by_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = burnt.inductor_pass().uuid()
    assert burnt.inductor_pass().uuid() == before
    monkeypatch.setattr(burnt.device, "_override", dataclasses.replace(SLOW_MKL, vendor="Intel"))
    assert burnt.inductor_pass().uuid() != before


def test_a_pass_registers_what_inductors_cached_graphs_call(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(inductor, "_ops", lambda: registered.append(True))
    burnt.inductor_pass()
    assert registered  # Inductor does not run the pass for a graph of its cache
