"""How candidates are judged: in parts where the reference needs too much memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from burnt.kernels.autotune.accuracy import ReferenceResult
from burnt.kernels.ops.attention import reference as definition
from burnt.kernels.ops.attention.reference import dot_product_attention


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def arguments(
    batch: int, heads: int, kv: int, queries: int, keys: int, gradients: bool = True, **options: Any
) -> list[Any]:
    shapes = (batch, heads, queries, 16), (batch, kv, keys, 16), (batch, kv, keys, 8)
    q, k, v = (drawn(*shape, seed=i).requires_grad_(gradients) for i, shape in enumerate(shapes))
    return list(dot_product_attention.bind((q, k, v), options))


CASES: dict[str, Callable[[], list[Any]]] = {
    "plain": lambda: arguments(3, 4, 4, 20, 33),
    "inference": lambda: arguments(3, 4, 4, 20, 33, gradients=False),
    "keys that heads share": lambda: arguments(2, 6, 2, 20, 33, after=3),
    "all keys shared": lambda: arguments(2, 5, 1, 20, 33, bottom_right=True, after=0),
    "a mask for all": lambda: arguments(2, 4, 2, 20, 33, mask=drawn(20, 33) > 0),
    "a mask of batches, with a gradient": lambda: arguments(
        2, 4, 2, 20, 33, mask=drawn(2, 1, 20, 33).requires_grad_()
    ),
    "a mask of heads": lambda: arguments(2, 4, 2, 20, 33, mask=drawn(4, 1, 33)),
    "slopes and a softcap": lambda: arguments(
        2, 4, 4, 20, 33, softcap=2.0, slopes=drawn(4).abs().requires_grad_()
    ),
    "lengths": lambda: arguments(3, 4, 2, 20, 33, lengths=torch.tensor([33, 5, 0])),
    "packed": lambda: arguments(
        1, 4, 2, 20, 20, q_starts=torch.tensor([0, 3, 20]), k_starts=torch.tensor([0, 9, 20])
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_parts_make_up_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = CASES[name]()
    whole = ReferenceResult(dot_product_attention, args)
    monkeypatch.setattr(definition, "_MAX_PART_SCORES", 0)
    judged = ReferenceResult(dot_product_attention, args)
    assert len(whole.exact) == len(judged.exact) == len(judged.eager)
    for right, found in zip(whole.exact, judged.exact, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
    for right, found in zip(whole.eager, judged.eager, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    assert judged.largest == pytest.approx(whole.largest, rel=1e-6)
    assert (judged.structure, judged.aliased_results, judged.has_matmul) == (
        whole.structure,
        whole.aliased_results,
        whole.has_matmul,
    )


@pytest.mark.parametrize("at", range(6))
def test_what_is_wrong_in_any_part_is_found(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition, "_MAX_PART_SCORES", 20 * 33)
    args = arguments(2, 3, 3, 20, 33)
    truth = ReferenceResult(dot_product_attention, args)

    def right(*given: Any) -> Tensor:
        return dot_product_attention.reference(*given)

    def wrong(*given: Any) -> Tensor:
        result = right(*given)
        scale = torch.ones(6)
        scale[at] = 1.01
        return result * scale.view(2, 3, 1, 1)

    def wrong_gradient(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        scale = torch.zeros(6)
        scale[at] = 0.01
        moved = k * scale.view(2, 3, 1, 1)
        return right(q, k + moved - moved.detach(), v, *rest)

    assert truth.find_error(right) is None
    assert "result 0: off by" in str(truth.find_error(wrong))
    assert "result 2: off by" in str(truth.find_error(wrong_gradient))  # of the keys


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes that torch's allocator holds at once for a call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    held = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@pytest.mark.full
def test_the_memory_of_a_reference_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 4 x 32 x 4096 x 4096 all scores five times, in float64, are 88 GB."""
    args = arguments(2, 8, 8, 256, 256)
    head = 256 * 256 * 8
    whole = peak_of(lambda: ReferenceResult(dot_product_attention, args))
    assert whole > 5 * 16 * head
    monkeypatch.setattr(definition, "_MAX_PART_SCORES", 2 * 256 * 256)
    parts = peak_of(lambda: ReferenceResult(dot_product_attention, args))
    results = 2 * sum(a.numel() * 8 for a in args[:3]) + 2 * 2 * 8 * 256 * 8 * 8
    assert parts < 8 * 2 * head + 2 * results, (parts, whole)
    assert parts < whole / 4
