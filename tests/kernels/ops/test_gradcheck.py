"""Gradients of matmuls, convolutions and `linear_cross_entropy` against finite differences in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.kernels.dispatch.op import Op
from burnt.kernels.interface.binding import bind_candidate
from burnt.kernels.interface.candidate import OPS, Candidate
from burnt.kernels.ops.loss import fused_linear_cross_entropy


def randn(*shape: int) -> Tensor:
    source = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=source, dtype=torch.float64).requires_grad_()


LABELS = torch.tensor([0, 4, -100, 2, 4, 1])
CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "linear": ("linear", (randn(3, 4), randn(5, 4), randn(5), randn(3, 5), "gelu")),
    "linear, bare": ("linear", (randn(2, 3, 4), randn(5, 4), None, None, None)),
    "matmul": ("matmul", (randn(3, 4), randn(4, 5))),
    "matmul, batches": ("matmul", (randn(2, 1, 3, 4), randn(2, 4, 5))),
    "matmul, a vector": ("matmul", (randn(3, 4), randn(4))),
    "bmm": ("bmm", (randn(2, 3, 4), randn(2, 4, 5))),
    "grouped_matmul": (
        "grouped_matmul",
        (randn(5, 3), randn(3, 3, 4), torch.tensor([2, 2, 4])),
    ),
    "conv": (
        "conv",
        (randn(2, 4, 5, 4), randn(4, 2, 3, 2), randn(4), randn(4), randn(2, 4, 3, 5), "silu", [2, 1], 1, 1,
         2),
    ),
    "conv, dilated": ("conv", (randn(1, 2, 7), randn(3, 2, 3), randn(3), None, None, None, 1, 1, 2, 1)),
    "conv_transpose": (
        "conv_transpose",
        (randn(2, 4, 3, 2), randn(4, 2, 3, 2), randn(4), "silu", [2, 1], 1, [1, 0], 2, 1),
    ),
    "loss": ("linear_cross_entropy", (randn(6, 3), randn(5, 3), LABELS, randn(5), -100, "mean", 0.0, 0.0,
                                      False)),
    "loss, smoothed": ("linear_cross_entropy", (randn(6, 3), randn(5, 3), LABELS, None, -100, "sum", 0.1,
                                                0.01, True)),
    "losses": ("linear_cross_entropy", (randn(6, 3), randn(5, 3), LABELS, randn(5), -100, "none", 0.1, 0.0,
                                        False)),
}  # fmt: skip


def candidates() -> Iterator[Any]:
    for name, (of, args) in CASES.items():
        for candidate in OPS[of].candidates.values():
            if candidate.name == "generated" and find_compiler() is None:
                continue
            if candidate.why_not(args) is None:
                yield pytest.param(OPS[of], candidate, args, id=f"{name}-{candidate.name}")


@pytest.mark.sample(4)
@pytest.mark.parametrize(("op", "candidate", "args"), [*candidates()])
def test_gradients_match_finite_differences(
    op: Op[..., Any], candidate: Candidate, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_linear_cross_entropy, "_CHUNK_BYTES", {"cpu": 1})
    monkeypatch.setattr(fused_linear_cross_entropy, "_MIN_ROWS", 2)  # three chunks
    call = bind_candidate(op, candidate, None, args)
    tensors = [a for a in args if isinstance(a, Tensor) and a.requires_grad]

    def run(*tensors_in: Tensor) -> Tensor:
        leaves = iter(tensors_in)
        output: Tensor = call(
            *[next(leaves) if isinstance(a, Tensor) and a.requires_grad else a for a in args]
        )
        return output

    assert torch.autograd.gradcheck(run, tensors)


def test_every_op_is_covered() -> None:
    checked = {(p.values[0].name, p.values[1].name) for p in candidates()}
    assert {("linear_cross_entropy", "chunked"), ("linear", "library"), ("matmul", "library")} <= checked
    assert {of for of, _ in checked} == {
        "linear",
        "matmul",
        "conv",
        "conv_transpose",
        "linear_cross_entropy",
        "bmm",
        "grouped_matmul",
    }
