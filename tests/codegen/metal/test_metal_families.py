"""The ops of `burnt.kernels` in Metal, run on the shim: values and gradients beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.codegen.function import Function
from burnt.codegen.schedule import Call
from tests.codegen.metal import shim
from tests.codegen.metal.shim import METAL_SHIM

pytestmark = pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def norm(*shape: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    return randn(*shape), randn(size, seed=1), randn(size, seed=2)


TARGET = torch.tensor([3, -100, 0, 52, 7])
IMAGES = randn(2, 4, 7, 9)
ROPE = (randn(2, 3, 5, 8), randn(5, 4, seed=1), randn(5, 4, seed=2))

# An op's reference with its other arguments, tensors, and of which of its kernels' steps torch has to run.
FAMILIES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "softmax": (lambda x: kernels.softmax.reference(x, -1), (randn(5, 53),)),
    "softmax of columns": (lambda x: kernels.softmax.reference(x, 0), (randn(13, 11),)),
    "softmax of one": (lambda x: kernels.softmax.reference(x, -1), (randn(5, 1),)),
    "log_softmax": (lambda x: kernels.log_softmax.reference(x, -1), (randn(5, 300),)),
    "layer_norm": (kernels.layer_norm.reference, norm(5, 53, size=53)),
    "layer_norm and residual": (
        lambda x, w, b, r: kernels.layer_norm.reference(x, w, b, 1e-5, r, "gelu"),
        (*norm(5, 53, size=53), randn(5, 53, seed=3)),
    ),
    "rms_norm": (kernels.rms_norm.reference, norm(3, 7, 53, size=53)[:2]),
    "rms_norm and residual": (
        lambda x, w, r: kernels.rms_norm.reference(x, w, 1e-6, r),
        (*norm(5, 300, size=300)[:2], randn(5, 300, seed=3)),
    ),
    "group_norm": (
        lambda x, w, b: kernels.group_norm.reference(x, 2, w, b, 1e-5, None, "silu"),
        norm(2, 4, 3, 5, size=4),
    ),
    "batch_norm_training": (kernels.batch_norm_training.reference, norm(5, 4, 3, 7, size=4)),
    "batch_norm_inference": (
        lambda x, m, v, w, b: kernels.batch_norm_inference.reference(x, m, v.exp(), w, b),
        (*norm(5, 4, 7, size=4), randn(4, seed=3), randn(4, seed=4)),
    ),
    "cross_entropy": (lambda x: kernels.cross_entropy.reference(x, TARGET), (randn(5, 53),)),
    "cross_entropy, smoothed": (
        lambda x, w: kernels.cross_entropy.reference(x, TARGET, w.exp(), -100, "sum", 0.1, 0.01),
        (randn(5, 53), randn(53, seed=1)),
    ),
    "gelu": (kernels.gelu.reference, (randn(5, 53),)),
    "gelu by tanh": (lambda x: kernels.gelu.reference(x, "tanh"), (randn(5, 53),)),
    "silu": (kernels.silu.reference, (randn(5, 53),)),
    "relu2": (kernels.relu2.reference, (randn(5, 53),)),
    "swiglu": (kernels.swiglu.reference, (randn(5, 53), randn(5, 53, seed=1))),
    "swiglu of halves": (lambda x: kernels.swiglu.reference(x, None), (randn(5, 26),)),
    "geglu": (kernels.geglu.reference, (randn(5, 53), randn(5, 53, seed=1))),
    "rope": (kernels.rope.reference, ROPE),
    "rope, interleaved": (lambda *a: kernels.rope.reference(*a, True), ROPE),
    "max_pool": (lambda x: kernels.max_pool.reference(x, 3, 2, 1), (IMAGES,)),
    "avg_pool": (lambda x: kernels.avg_pool.reference(x, (2, 3), 2, 1, True, False), (IMAGES,)),
    "adaptive_avg_pool": (lambda x: kernels.adaptive_avg_pool.reference(x, (3, 4)), (IMAGES,)),
    "adaptive_max_pool": (lambda x: kernels.adaptive_max_pool.reference(x, (3, 4)), (IMAGES,)),
    "reduce_sum": (lambda x: kernels.reduce_sum.reference(x, None), (randn(5, 53),)),
    "reduce_mean": (lambda x: kernels.reduce_mean.reference(x, [0, 2]), (randn(5, 7, 11),)),
    "reduce_max": (lambda x: kernels.reduce_max.reference(x, 0), (randn(5, 53),)),
    "reduce_min": (lambda x: kernels.reduce_min.reference(x, -1, True), (randn(5, 53),)),
    "reduce_prod": (lambda x: kernels.reduce_prod.reference(x, 1), (randn(5, 13),)),
    "reduce_var": (lambda x: kernels.reduce_var.reference(x, 1), (randn(5, 53),)),
    "reduce_std": (lambda x: kernels.reduce_std.reference(x, None, 0), (randn(5, 53),)),
    "reduce_logsumexp": (lambda x: kernels.reduce_logsumexp.reference(x, 0), (randn(5, 53),)),
    "reduce_argmax": (lambda x: kernels.reduce_argmax.reference(x, 1), (randn(5, 53),)),
    "reduce_argmin": (lambda x: kernels.reduce_argmin.reference(x, None), (randn(5, 53),)),
    "reduce_any": (lambda x: kernels.reduce_any.reference(x > 1, 1), (randn(5, 53),)),
    "reduce_all": (lambda x: kernels.reduce_all.reference(x > -1, 0), (randn(5, 53),)),
    "cumsum": (lambda x: kernels.cumsum.reference(x, 1), (randn(5, 53),)),
    "cumsum of columns": (lambda x: kernels.cumsum.reference(x, 0), (randn(13, 53),)),
    "cumprod": (lambda x: kernels.cumprod.reference(x, 1), (randn(5, 13),)),
    "embedding": (
        lambda w: kernels.embedding.reference(torch.tensor([[0, 5, 5], [12, 3, 1]]), w, 3),
        (randn(13, 7),),
    ),
}

# Ops that torch runs in the backward pass, because no kernel says them: its way around zeros.
PLAIN = {"reduce_prod", "cumprod"}
SAMPLE = ("layer_norm and residual", "cross_entropy, smoothed", "max_pool", "cumsum", "embedding")


def run(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> list[Tensor]:
    """The results, and the gradients for fixed cotangents."""
    wanted = [a.clone().requires_grad_() for a in args]
    made = fn(*wanted)
    results = list(made) if isinstance(made, tuple) else [made]
    roots = [r for r in results if r.requires_grad]
    # Exact in every dtype, and different for each element.
    pull = [(torch.arange(r.numel()) % 7 - 2.5).div(4).to(r.dtype).reshape(r.shape) for r in roots]
    grads = torch.autograd.grad(roots, wanted, pull, allow_unused=True) if roots else []
    assert all(g is not None for g in grads)
    return [t.detach() for t in (*results, *grads) if t is not None]


def check(name: str, dtype: torch.dtype) -> None:
    fn, args = FAMILIES[name]
    given = tuple(a.to(dtype) for a in args)
    fused = Function(fn, target=METAL_SHIM)
    truth = run(fn, tuple(a.double() for a in given))
    eager, ours = run(fn, given), run(fused, given)
    eps = torch.finfo(dtype).eps
    for found, theirs, exact in zip(ours, eager, truth, strict=True):
        assert found.dtype == theirs.dtype
        if not found.is_floating_point():
            assert torch.equal(found, exact)
            continue
        tolerance = 4 * float((theirs.double() - exact).abs().max()) + 4 * eps * float(exact.abs().max())
        assert float((found.double() - exact).abs().max()) <= tolerance, name
    plan = fused.plan(*[g.clone().requires_grad_() for g in given])
    assert plan is not None, fused.why_plain(*given)
    steps = [*plan.plan.steps, *(s for b in plan.backward.values() for s in b.plan.plan.steps)]
    assert any(isinstance(step, Call) for step in steps) == (name in PLAIN)


@pytest.mark.parametrize("name", SAMPLE)
def test_families(name: str) -> None:
    check(name, torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in SAMPLE])
def test_more_families(name: str) -> None:
    check(name, torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "rms_norm and residual", "geglu", "max_pool", "cumsum", "rope"])
def test_families_in_16_bits(name: str, dtype: torch.dtype) -> None:
    check(name, dtype)


def test_dropout() -> None:
    fused = Function(lambda x: kernels.dropout.reference(x, 0.25, True), target=METAL_SHIM)
    made, gradient = run(fused, (torch.ones(64, 53),))
    assert made.unique().tolist() == [0.0, float(torch.tensor(1 / 0.75))]
    assert 0.2 < float((made == 0).float().mean()) < 0.3
    assert torch.equal(gradient == 0, (made == 0))
