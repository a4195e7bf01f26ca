"""Launches of hand-written kernels that are built once and repeated with other tensors of the same layout."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.codegen.precision import multiplying
from burnt.kernels.interface.launch import bind_launches
from burnt.kernels.ops.attention import flash_triton
from burnt.kernels.ops.attention.flash_triton import Problem
from burnt.kernels.ops.attention.reference import dot_product_attention
from burnt.kernels.ops.quantized.quantize import quantized_example
from tests.codegen.compare import randn

BLOCKS = {"forward": "16x16 w4 s1", "dots": "16x16 w4 s1", "keys": "16x16 w4 s1", "queries": "16x16 w4 s1"}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"after": 0},
    "softcap and slopes": {"softcap": 0.7, "slopes": torch.tensor([0.3, 1.1])},
    "mask": {"mask": randn(1, 1, 20, 20) > -1},
    "dropout": {"dropout": 0.4, "seed": torch.tensor(5)},
}


def heads(seed: int, layout: str) -> list[Tensor]:
    if layout == "packed":  # three parts of one tensor
        return list(randn(1, 20, 3, 2, 16, seed=seed).permute(2, 0, 3, 1, 4).unbind())
    return [randn(1, 2, 20, 16, seed=seed + i) for i in range(3)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", ["apart", "packed"])
@pytest.mark.parametrize("name", OPTIONS)
def test_attention(name: str, layout: str) -> None:
    flash = dot_product_attention.candidates["flash"]
    rest = dot_product_attention.bind(heads(0, layout), OPTIONS[name])[3:]
    assert flash.binds is not None
    leaves = (0, 1, 2) if layout == "apart" else (0,)

    def given(seed: int) -> list[Tensor]:
        return [t.detach().requires_grad_(i in leaves) for i, t in enumerate(heads(seed, layout))]

    def run(call: Any, seed: int) -> list[Tensor]:
        tensors = given(seed)
        out = call(*tensors, *rest)
        return [out, *torch.autograd.grad(out, [tensors[i] for i in leaves], randn(1, 2, 20, 16, seed=9))]

    bound = flash.binds(BLOCKS, *given(0), *rest)
    assert bound is not None
    first, found = run(bound, 0), run(bound, 5)
    expected = run(functools.partial(flash, config=BLOCKS), 5)
    assert all(map(torch.equal, found, expected))
    assert not torch.equal(first[1], found[1])
    with torch.no_grad():
        bound = flash.binds(BLOCKS, *heads(0, layout), *rest)
        assert bound is not None
        assert torch.equal(bound(*given(5), *rest), expected[0])


def test_attention_whose_saved_tensors_come_back_in_another_layout() -> None:
    """As after `save_on_cpu(pin_memory=True)`."""
    flash = dot_product_attention.candidates["flash"]
    rest = dot_product_attention.bind(heads(0, "packed"), {})[3:]
    given = [t.requires_grad_() for t in heads(0, "packed")]
    assert flash.binds is not None
    bound = flash.binds(BLOCKS, *given, *rest)
    assert bound is not None
    found = []
    for unpack in (lambda t: t, Tensor.contiguous, lambda t: t):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            out = bound(*given, *rest)
        found.append(torch.autograd.grad(out, given, randn(1, 2, 20, 16, seed=9)))
    for gradients in found[1:]:
        assert all(map(torch.equal, gradients, found[0]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_bound", [True, False], ids=["two passes", "one pass"])
def test_attention_multiplies_forward_and_backward_in_one_precision(
    is_bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the call, whatever is set when the backward runs."""
    found = []

    def backward(*args: Any) -> Any:
        found.append(next(a.precision for a in args if isinstance(a, Problem)))
        return original(*args)

    original = flash_triton.backward
    monkeypatch.setattr(flash_triton, "backward", backward)
    flash = dot_product_attention.candidates["flash"]
    given = [t.requires_grad_() for t in heads(0, "apart")]
    rest = dot_product_attention.bind(given, {})[3:]
    assert flash.binds is not None
    blocks = BLOCKS if is_bound else BLOCKS | {"both": "16x16 w4 s1"}
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        with multiplying("tf32"):
            bound = flash.binds(blocks, *given, *rest)
            assert bound is not None
            out = bound(*given, *rest)
        out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
    assert found == ["tf32"] * (1 if is_bound else 2)


def test_second_derivatives_of_attention() -> None:
    flash = dot_product_attention.candidates["flash"]
    tensors = [t.double().float().requires_grad_() for t in heads(0, "apart")]
    rest = dot_product_attention.bind(tensors, {"after": 0})[3:]
    assert flash.binds is not None
    bound = flash.binds(BLOCKS, *tensors, *rest)
    found = []
    for call in (bound, dot_product_attention.reference):
        assert call is not None
        (first,) = torch.autograd.grad(call(*tensors, *rest).sin().sum(), tensors[0], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), tensors[1])[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_what_computes_with_tensors_is_not_bound() -> None:
    flash = dot_product_attention.candidates["flash"]
    q, k, v = heads(0, "apart")
    rest = dot_product_attention.bind((q, k, v), {"lengths": torch.tensor([7, 20])})[3:]
    assert flash.binds is not None
    assert flash.binds(BLOCKS, q, k, v, *rest) is None
    assert flash.binds(BLOCKS, q.mT.contiguous().mT, k, v, *rest[:7], None, *rest[8:]) is None  # q is copied
    assert bind_launches(lambda x: ([], x + 1), (q,), q.device) is None


def test_views_begin_where_their_tensor_does() -> None:
    def build(x: Tensor) -> Any:
        new = x.new_empty(2, 3)
        return [], (x[1:], x.t(), None, new.t())

    x, y = (randn(7, 4, seed=i)[2:] for i in range(2))
    bound = bind_launches(build, (x,), x.device)
    assert bound is not None
    rest, transposed, none, new = bound(y)
    assert torch.equal(rest, y[1:])
    assert torch.equal(transposed, y.t())
    assert none is None
    assert (new.shape, new.stride()) == ((3, 2), (1, 3))


@pytest.mark.parametrize("config", [{"tiles": "16x32x32 w4 s2 k2"}, {"vector": "4x32 w4"}], ids=str)
def test_a_product_with_a_quantized_weight(config: dict[str, str]) -> None:
    candidate = kernels.quantized_linear.candidates["triton"]

    def given(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        parts = quantized_example(torch.device("cpu"), 24, 96, "int4", 32, True)
        return (torch.randn(4, 96)[1:], *parts, torch.randn(24), "gelu", "int4", 32)  # x begins in the middle

    assert candidate.binds is not None
    bound = candidate.binds(config, *given(0))
    assert bound is not None
    found = bound(*given(1))
    x, *rest = given(1)
    unaligned = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    assert unaligned.data_ptr() % 16
    assert torch.equal(bound(unaligned, *rest), found)
    assert torch.equal(found, candidate(*given(1), config=config))
    torch.testing.assert_close(found, kernels.quantized_linear.reference(*given(1)), rtol=1e-4, atol=1e-4)
