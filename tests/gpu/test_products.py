"""Attention with its options, the loss of a last layer, Muon, and a model that is swapped, on a GPU.

`pytest tests/gpu/test_products.py --device cpu` rehearses it with the candidates of a CPU.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import burnt
from burnt import kernels
from burnt.kernels.interface.binding import bind_candidate
from burnt.kernels.interface.tuning_key import runnable_candidates
from burnt.swapping import measure

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

ATTENTION = kernels.dot_product_attention


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """The same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_gradients(fn: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Results and gradients in float64 on the CPU."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = fn(*leaves)
    pull = drawn(*out.shape, seed=9).to(out)
    return [t.detach().double().cpu() for t in (out, *torch.autograd.grad(out, leaves, pull))]


def judged(found: list[Tensor], eager: list[Tensor], exact: list[Tensor], dtype: torch.dtype) -> None:
    """The error is at most 4 times that of eager torch, and some roundings of the largest value."""
    eps = torch.finfo(dtype).eps
    for ours, theirs, truth in zip(found, eager, exact, strict=True):
        limit = 4 * (theirs - truth).abs().max() + 8 * eps * truth.abs().max()
        assert (ours - truth).abs().max() <= limit


# --- attention

QUERIES, KEYS = 131, 97  # no multiples of a block
STARTS = torch.tensor([0, 40, 40, 57, 131], dtype=torch.int32)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal, bottom right": {"after": 0, "bottom_right": True},
    "window": {"before": 17, "after": 5},
    "soft cap": {"softcap": 0.8, "after": 0},
    "ALiBi": {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]), "after": 0},
    "mask": {"mask": drawn(QUERIES, KEYS, seed=5) > 0},
    "lengths": {"lengths": torch.tensor([0, 61])},
    "packed": {"q_starts": STARTS, "k_starts": STARTS, "after": 0},
    "dropout": {"dropout": 0.4, "seed": torch.tensor(-7)},
}


def heads(packed: bool, kv: int = 2) -> list[Tensor]:
    batch, keys = (1, QUERIES) if packed else (2, KEYS)
    shapes = (batch, 4, QUERIES, 32), (batch, kv, keys, 32), (batch, kv, keys, 32)
    return [drawn(*shape, seed=n) for n, shape in enumerate(shapes)]


def placed(options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in options.items()}


def launch_flash(tensors: list[Tensor], options: dict[str, Any]) -> None:
    from burnt.codegen.render.triton.matmul_config import HOPPER
    from burnt.kernels.ops.attention import flash_triton
    from burnt.kernels.ops.attention.flash import make_problem
    from burnt.kernels.ops.attention.flash_config import select_config

    q, k, v = tensors
    problem = make_problem(q, k, **options)
    blocks = select_config(q.shape[-1], q.itemsize, HOPPER, has_score=problem.score is not None)
    out, lse = flash_triton.forward(q, k, v, problem, blocks)
    flash_triton.backward(out, q, k, v, out, lse, problem, blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", OPTIONS)
def test_attention_with_options_and_grouped_queries(
    name: str, dtype: torch.dtype, device: torch.device, launched_only: bool
) -> None:
    """Whatever can compute it, forward and gradients, next to the definition in float64."""
    tensors, options = heads(name == "packed"), OPTIONS[name]
    if launched_only:
        launch_flash([t.to(dtype) for t in tensors], options)
        return
    exact = with_gradients(lambda *qkv: ATTENTION.reference(*qkv, **options), tensors)
    there = placed(options, device)
    narrow = [t.to(device, dtype) for t in tensors]
    eager = with_gradients(lambda *qkv: ATTENTION.reference(*qkv, **there), narrow)
    judged(with_gradients(lambda *qkv: ATTENTION(*qkv, **there), narrow), eager, exact, dtype)
    leaves = [t.detach().requires_grad_() for t in narrow]
    args = ATTENTION.bind(leaves, there)
    able = {c.name: c for c in runnable_candidates(ATTENTION, args)}
    del able["generated"]  # tests/gpu/test_tuning.py has those
    assert {"library", "tiled"} | ({"flash"} if device.type == "cuda" else set()) <= able.keys()
    for candidate in able.values():
        call = bind_candidate(ATTENTION, candidate, candidate.alternatives(args)[0].config, args)
        found = with_gradients(lambda *qkv, call=call: call(*ATTENTION.bind(qkv, there)), narrow)
        judged(found, eager, exact, dtype)


@pytest.mark.parametrize("kv", [1, 4])
def test_attention_with_a_function_of_the_scores(kv: int, device: torch.device) -> None:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.tanh(s / 2) * 2 - (h + 1) * 0.01 * (i - j).abs()

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t.repeat_interleave(4 // kv, 1) for t in (k, v))
        h, i, j = (torch.arange(n) for n in (4, QUERIES, KEYS))
        scores = score(q @ k.mT * 32**-0.5, h, h.view(4, 1, 1), i.view(-1, 1), j)
        return scores.masked_fill(j > i.view(-1, 1), -torch.inf).softmax(-1) @ v

    tensors = heads(False, kv)
    exact = with_gradients(plain, tensors)
    narrow = [t.to(device, torch.float32) for t in tensors]
    for found, truth in zip(
        with_gradients(lambda *qkv: kernels.attention(*qkv, causal=True, score=score), narrow),
        exact,
        strict=True,
    ):
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)


# --- the loss of a last layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_loss_of_a_last_layer(dtype: torch.dtype, reduction: str, device: torch.device) -> None:
    """Also without gradients, and through the candidate that never has all logits."""
    x, weight = drawn(301, 48), drawn(1003, 48, seed=1) * 48**-0.5
    target = torch.arange(301) * 7 % 1003
    target[::9] = -100

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        logits, labels = F.linear(x, weight), target.to(x.device)
        return F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=0.1)

    def ours(x: Tensor, weight: Tensor, fn: Any = kernels.linear_cross_entropy) -> Tensor:
        result: Tensor = fn(x, weight, target.to(x.device), None, -100, reduction, 0.1, 0.0, False)
        return result

    exact = with_gradients(plain, [x, weight])
    narrow = [t.to(device, dtype) for t in (x, weight)]
    eager = with_gradients(plain, narrow)
    judged(with_gradients(ours, narrow), eager, exact, dtype)
    chunked = kernels.linear_cross_entropy.candidates["chunked"]
    judged(with_gradients(lambda *t: ours(*t, fn=chunked), narrow), eager, exact, dtype)
    with torch.no_grad():
        judged([ours(*narrow).double().cpu()], eager[:1], exact[:1], dtype)


def test_the_logits_are_never_there_as_a_whole(device: torch.device) -> None:
    rows, width, classes = (16_384, 64, 65_536) if device.type == "cuda" else (64, 16, 512)
    x = torch.randn(rows, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    target = torch.arange(rows, device=device) % classes

    def step() -> None:
        loss = kernels.linear_cross_entropy(x, weight, target)
        torch.autograd.grad(loss, [x, weight])

    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        assert torch.cuda.max_memory_allocated() - before < rows * classes * 2


# --- Muon


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_steps_of_muon_beside_those_of_torch(dtype: torch.dtype, device: torch.device) -> None:
    shapes, rate = [(1, 1), (33, 7), (64, 160), (61, 61)], 0.1
    ours = [drawn(*shape, seed=n).to(device, dtype) for n, shape in enumerate(shapes)]
    theirs = [torch.nn.Parameter(t.clone()) for t in ours]
    reference = torch.optim.Muon(theirs, lr=rate)
    buffers = [torch.zeros_like(t) for t in ours]
    for turn in range(3):
        grads = [drawn(*s, seed=10 * turn + n).to(device, dtype) for n, s in enumerate(shapes)]
        result = kernels.muon_step(ours, grads, buffers, lr=rate, max_norm=5.0)
        for parameter, gradient in zip(theirs, grads, strict=True):
            parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, 5.0)
        reference.step()
        assert result.norm is not None
        torch.testing.assert_close(result.norm, norm.float(), rtol=0.01, atol=0.0)
    assert result.by.startswith("burnt")
    # An element of a direction has the 8 bits of bfloat16; three steps.
    for found, other in zip(ours, theirs, strict=True):
        longest = rate * math.sqrt(max(1, other.shape[0] / other.shape[1]))
        limit = 3 * longest * 0.02 + torch.finfo(dtype).eps * 8
        assert float((found.double() - other.detach().double()).abs().max()) < limit


# --- a model that is swapped


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is right is swapped, however slow: this model is small."""
    monkeypatch.setattr(measure, "_GAIN", 0.0)
    monkeypatch.setattr(measure, "_EVEN", 0.0)
    monkeypatch.setattr(measure, "_ROUNDS", range(1, 2))
    monkeypatch.setattr(measure, "_SECONDS", 0.0)
    monkeypatch.setattr(measure, "_SHORTEST", 0.0)


def test_a_llama_is_swapped_and_unswapped(always: None, device: torch.device) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).to(device)
    twin = copy.deepcopy(model)
    tokens = (torch.arange(66) * 7 % 61).view(2, 33).to(device)
    batch = {"input_ids": tokens, "labels": tokens}
    report = burnt.swap(model, verify=batch)
    kinds = {row.kind for row in report.rows if row.state == "swapped"}
    assert kinds >= {"loss", "attention", "gated_unit", "rms_norm_by_hand", "linear"}, report
    assert report.left == {}
    losses: list[list[float]] = []
    for each in (model, twin):
        optimizer = torch.optim.AdamW(each.parameters(), lr=3e-3)
        losses.append([])
        for _ in range(8):
            loss = each(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-3, atol=2e-4)
    assert losses[0][-1] < losses[0][0]
    burnt.unswap(model)
    torch.testing.assert_close(model(**batch).logits, twin(**batch).logits, rtol=0.05, atol=0.05)
