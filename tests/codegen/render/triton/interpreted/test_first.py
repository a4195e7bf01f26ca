"""Cases of `tests/gpu/first.py`, which a GPU runs first, run by the interpreter: what they compare."""

from __future__ import annotations

import pytest
import torch

from burnt.kernels.ops.rnn import layer, loop_triton
from burnt.kernels.optim import foreach, foreach_triton
from tests.gpu import first

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the CPU go through the kernels of a GPU."""
    monkeypatch.setattr(layer, "_loop_module", lambda x: loop_triton)
    monkeypatch.setattr(foreach, "HostPasses", foreach_triton.DevicePasses)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["muon, bfloat16", "lstm all steps, float32", "product few rows, split"])
def test_a_case_passes(name: str) -> None:
    first.check(name, CPU)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    ["flash d64, soft cap", "flash d64, mask", "flash d64, lengths", "adamw, float32", "sgd, bfloat16",
     "embedding, bfloat16", "gru a step, bfloat16"],
)  # fmt: skip
def test_more_cases_pass(name: str) -> None:
    first.check(name, CPU)


def test_an_error_of_the_size_of_a_bfloat16_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    make = first.CASES["lstm all steps, float32"]

    def wrong(device: torch.device) -> first.Case:
        case = make(device)
        return case._replace(ours=lambda: [t.bfloat16().to(t.dtype) for t in case.ours()])

    monkeypatch.setitem(first.CASES, "wrong", wrong)
    with pytest.raises(AssertionError, match=r"result 0 .* limit .* elements"):
        first.check("wrong", CPU)
