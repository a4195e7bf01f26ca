"""Under autocast every candidate serves: arguments are cast once, results are of torch's dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.kernels.interface.candidate import OPS
from burnt.swapping.patterns.lazy_logits import Logits


def given(*shape: int, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return (numbers / shape[-1] ** 0.5).requires_grad_()


LABELS = torch.arange(48) % 40
LOSS: Any = ("mean", 0.0, 0.0, False)
CASES: dict[str, tuple[str, tuple[Any, ...], torch.dtype]] = {
    "linear": ("linear", (given(32, 24), given(48, 24), given(48), None, "gelu"), torch.bfloat16),
    "linear, residual": (
        "linear",
        (given(32, 24), given(48, 24), given(48), given(32, 48), None),
        torch.float32,
    ),
    "matmul": ("matmul", (given(2, 32, 24), given(24, 48)), torch.bfloat16),
    "bmm": ("bmm", (given(2, 32, 24), given(2, 24, 48)), torch.bfloat16),
    "grouped_matmul": (
        "grouped_matmul",
        (given(32, 24), given(3, 24, 48), torch.tensor([10, 10, 32])),
        torch.bfloat16,
    ),
    "conv": (
        "conv",
        (given(2, 8, 9, 9), given(6, 8, 3, 3), given(6), given(6), None, "relu", 1, 1, 1, 1),
        torch.bfloat16,
    ),
    "conv, residual": (
        "conv",
        (given(2, 8, 9, 9), given(6, 8, 3, 3), given(6), None, given(2, 6, 9, 9), "silu", 1, 1, 1, 1),
        torch.float32,
    ),
    "conv_transpose": (
        "conv_transpose",
        (given(2, 8, 5, 5), given(8, 6, 3, 3), given(6), "relu", 2, 1, 0, 1, 1),
        torch.bfloat16,
    ),
    "loss": (
        "linear_cross_entropy",
        (given(48, 24), given(40, 24), LABELS, given(40), -100, *LOSS),
        torch.float32,
    ),
    "losses": (
        "linear_cross_entropy",
        (given(48, 24), given(40, 24), LABELS, given(40), -100, "none", *LOSS[1:]),
        torch.float32,
    ),
    "lstm": (
        "lstm_layer",
        (given(3, 5, 8), given(24, 8), given(24, 6), given(24), given(24), given(3, 6), given(3, 6), None,
         False),
        torch.bfloat16,
    ),
    "gru": (
        "gru_layer",
        (given(3, 5, 8), given(18, 8), given(18, 6), given(18), given(18), None, None, True),
        torch.float32,
    ),
    "attention": (
        "dot_product_attention",
        (given(1, 2, 16, 8), given(1, 2, 16, 8, seed=1), given(1, 2, 16, 8, seed=2), None, None, 0, False,
         None, None, None, None, None, None, 0.0, None),
        torch.bfloat16,
    ),
}  # fmt: skip


def results(call: Any, args: tuple[Any, ...], *, inside: bool) -> list[Tensor]:
    """Results, and gradients that are taken while autocast is still on, or after it."""
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    with torch.autocast("cpu", torch.bfloat16):
        result = call(*args)
        result = list(result) if isinstance(result, tuple) else [result]
        total = sum(m.float().square().mean() for m in result)
        found = torch.autograd.grad(total, wanted) if inside else ()
    return [*(m.detach() for m in result), *(found or torch.autograd.grad(total, wanted))]


@pytest.mark.sample(3)
@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
@pytest.mark.parametrize("name", CASES)
def test_every_candidate_is_as_the_definition(
    name: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, args, dtype = CASES[name]
    op = OPS[of]
    expected = results(op.reference, args, inside=inside)
    assert expected[0].dtype == dtype
    ran = []
    with torch.autocast("cpu", torch.bfloat16):
        cast, without = op.under_autocast(args)
        with without:
            able = [c for c in op.candidates.values() if c.why_not(cast) is None]
    for candidate in able:
        # The library's serves what a candidate calls in turn.
        kept = [candidate] if candidate.name == "generated" else [op.candidates["library"], candidate]
        monkeypatch.setattr(op, "candidates", {c.name: c for c in kept})
        monkeypatch.setattr(candidate, "best", None)
        op.forget()
        found = results(op, args, inside=inside)
        monkeypatch.undo()
        op.forget()
        ran.append(candidate.name)
        for ours, right in zip(found, expected, strict=True):
            assert ours.dtype == right.dtype
            torch.testing.assert_close(
                ours.float(), right.float(), rtol=2e-2, atol=2e-2 * float(right.detach().abs().max())
            )
    assert set(ran) - {"library", "generated"} or of.startswith("conv"), "none by hand"


@pytest.mark.parametrize("name", CASES)
def test_a_call_that_is_recorded_is_of_the_same_dtypes(name: str) -> None:
    of, args, dtype = CASES[name]
    op = OPS[of]
    with torch.autocast("cpu", torch.bfloat16):
        direct, recorded = op(*args), op.call_torch_op(args)
    for one, other in zip(
        direct if isinstance(direct, tuple) else [direct],
        recorded if isinstance(recorded, tuple) else [recorded],
        strict=True,
    ):
        assert one.dtype == other.dtype == dtype


def test_torch_has_these_dtypes() -> None:
    x, weight, images = given(48, 24), given(40, 24), given(1, 2, 5, 5)
    lstm = torch.nn.GRU(24, 6)
    with torch.autocast("cpu", torch.bfloat16):
        logits = F.linear(x, weight)
        assert logits.dtype == kernels.linear(x, weight).dtype == torch.bfloat16
        pair = F.cross_entropy(logits, LABELS), kernels.linear_cross_entropy(x, weight, LABELS)
        assert pair[0].dtype == pair[1].dtype == torch.float32
        torch.testing.assert_close(*pair)
        assert F.conv_transpose2d(images, given(2, 3, 2, 2)).dtype == torch.bfloat16
        assert lstm(x)[0].dtype == kernels.gru(x[None], [[*lstm.parameters()]])[0].dtype == torch.float32, (
            "states stay as wide as they begin"
        )
        assert kernels.gru(x[None].bfloat16(), [[*lstm.parameters()]])[0].dtype == torch.bfloat16
        wide = kernels.linear(x.double(), weight.double())
    assert wide.dtype == torch.float64, "autocast leaves float64 alone"


def test_what_is_chosen_and_explained_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = given(32, 24), given(48, 24)
    seen = []
    name = "told of autocast"

    @kernels.linear.candidate(name, dtypes=[torch.bfloat16])
    def mine(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        seen.append((x.dtype, torch.is_autocast_enabled("cpu")))
        return F.linear(x, weight)

    try:
        with torch.autocast("cpu", torch.bfloat16):
            kernels.linear(x, weight)
            assert kernels.linear.chosen(x, weight).candidate.name == name
            assert kernels.explain(kernels.linear, x, weight).winner == name
        assert seen == [(torch.bfloat16, False)]
        assert kernels.linear.chosen(x, weight).candidate.name != name
    finally:
        kernels.linear.discard(name)


def test_deferred_logits_are_cast_by_the_op() -> None:
    head = torch.nn.Linear(24, 40)
    x = given(48, 24)
    with torch.autocast("cpu", torch.bfloat16):
        logits = Logits(x, head)
        inside = logits.cross_entropy(LABELS, -100, "mean")
    outside = logits.cross_entropy(LABELS, -100, "mean")
    right = F.cross_entropy(logits.tensor(), LABELS)
    assert inside.dtype == torch.float32
    assert outside.dtype == right.dtype == torch.bfloat16, "as torch has it of such logits"
    torch.testing.assert_close(outside, right, rtol=2e-2, atol=0)
    torch.testing.assert_close(inside, right.float(), rtol=2e-2, atol=0)
