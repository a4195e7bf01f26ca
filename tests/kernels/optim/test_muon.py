"""`muon_step` against torch's Muon, and `orthogonalized` against singular values."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from burnt import Gradients, optim
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputRuntimeError, InputValueError, OptimError
from burnt.kernels import muon_step, orthogonalized
from tests.processors import BFLOAT16

CANDIDATES = [
    pytest.param(
        "burnt",
        marks=pytest.mark.skipif(
            find_compiler() is None, reason="no C compiler works here: torch runs the steps"
        ),
    ),
    "torch",
]
SHAPES = [(1, 1), (7, 3), (16, 40), (0, 5), (61, 61)]


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


@pytest.mark.parametrize("shape", [(12, 12), (5, 30), (30, 5), (1, 9)])
def test_singular_values_approach_one_and_vectors_are_preserved(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    result = orthogonalized(matrix).double()
    u, _, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = torch.linalg.svdvals(result)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    diagonal = u.T @ result @ v.T
    assert float((diagonal - diagonal.diag().diag()).abs().max()) < 0.1


@pytest.mark.parametrize("shape", [(33, 7), (64, 160), (61, 61)])
def test_bfloat16_sums_are_fused_into_matmuls(shape: tuple[int, int], processor: str) -> None:
    """torch fuses these sums as well: its error is a third of that of separate matmuls and sums.

    Where oneDNN does not multiply bfloat16 the iteration is in float32.
    """
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    exact = matrix.double() / matrix.double().norm()
    exact = exact.t() if shape[0] > shape[1] else exact
    for _ in range(5):
        square = exact @ exact.t()
        exact = 3.4445 * exact + (-4.7750 * square + 2.0315 * square @ square) @ exact
    exact = exact.t() if shape[0] > shape[1] else exact
    result = orthogonalized(matrix)
    assert result.dtype == (torch.bfloat16 if processor in BFLOAT16 else torch.float32)
    parameter = nn.Parameter(torch.zeros(shape))
    parameter.grad = matrix
    torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0, momentum=0.0).step()
    theirs = -parameter.detach().double() / max(1, shape[0] / shape[1]) ** 0.5
    error, other = (float((t - exact).abs().max()) for t in (result.double(), theirs))
    assert error < 1.5 * other


@pytest.mark.sample(8)
@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": False, "momentum": 0.5, "weight_decay": 0.0},
        {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5)},
        {"adjust_lr_fn": "original", "eps": 1e-3},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_match_torch(candidate: str, options: Any, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not options.get("nesterov", True):
        return  # torch normalizes its momentum buffer in place if it is bfloat16 already
    p = drawn(0, dtype)
    theirs = [nn.Parameter(t.clone()) for t in p if t.numel()]
    reference = torch.optim.Muon(theirs, lr=0.1, **options)
    buffers, e = [torch.zeros_like(t) for t in p], [torch.zeros_like(t) for t in p]
    for index in range(3):
        g = drawn(index + 1, dtype)
        result = muon_step(
            p, g, buffers, lr=0.1, max_norm=5.0, ema=e, ema_decay=0.0, candidate=candidate, **options
        )
        assert result.by.startswith(candidate)
        for t, gradient in zip(theirs, (x for x in g if x.numel()), strict=True):
            t.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, 5.0)
        reference.step()
        assert result.norm is not None
        torch.testing.assert_close(result.norm, norm.float(), rtol=0.01, atol=0.0)
    # torch iterates in bfloat16, with a significand of 8 bits; three steps with lr = 0.1.
    for ours, other in zip((t for t in p if t.numel()), theirs, strict=True):
        rate = 0.1 * (0.2 * math.sqrt(max(other.shape)) if "match_rms_adamw" in options.values() else 1)
        rate *= math.sqrt(max(1, other.shape[0] / other.shape[1]))
        tolerance = 3 * rate * 0.02 + torch.finfo(dtype).eps * 8
        assert float((ours.double() - other.detach().double()).abs().max()) < tolerance
    for average, parameter in zip(e, p, strict=True):
        torch.testing.assert_close(average, parameter)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_scaled_gradient_that_is_not_finite_skips_the_step(candidate: str) -> None:
    p, g, m, e = drawn(0), drawn(1), drawn(2), drawn(3)
    g[2][3, 3] = math.nan
    tensors = [*p, *m, *e]
    before = [t.clone() for t in tensors]
    assert muon_step(p, g, m, lr=0.1, grad_scale=2.0, ema=e, candidate=candidate).skipped
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_bad_input() -> None:
    p = [torch.ones(2, 2)]
    with pytest.raises(InputRuntimeError, match="use AdamW for other parameters, and for embeddings"):
        muon_step([torch.ones(3)], [torch.ones(3)], [torch.ones(3)], lr=0.1)
    with pytest.raises(InputValueError, match="'original', 'match_rms_adamw'"):
        muon_step(p, p, p, lr=0.1, adjust_lr_fn="mine")
    with pytest.raises(InputValueError, match="a number from 0 to 99"):
        muon_step(p, p, p, lr=0.1, ns_steps=100)


def test_the_optimizer_resumes_from_its_record_and_rejects_other_shapes_than_matrices() -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False))
    model, x = copy.deepcopy(whole), torch.randn(5, 4)
    optimizer = optim.Muon(momentum=0.9)
    for _ in range(4):
        optimizer.step(0.02, whole, Gradients.of(whole(x).square().mean(), whole), clip_norm=1.0)
    first, second = optim.Muon(momentum=0.9), optim.Muon(momentum=0.9)
    for step in range(4):
        if step == 2:
            second.load_record(first.into_record())
            first = second
        first.step(0.02, model, Gradients.of(model(x).square().mean(), model), clip_norm=1.0)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
    assert set(first.into_record().tensors) == {"0.weight/momentum_buffer", "1.weight/momentum_buffer"}
    with pytest.raises(OptimError, match="cannot step this model") as caught:
        optimizer.step(0.1, nn.Linear(2, 3), {})
    assert "matrices only" in str(caught.value)
    assert "bias" in str(caught.value)
    with pytest.raises(OptimError, match="weight decay"):
        optim.Muon(weight_decay=-1.0)
