"""Steps of recurrent layers in Triton, one per launch or all in one, compared with their definition."""

from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.kernels import gru_layer, lstm_layer
from burnt.kernels.ops.rnn import layer, loop_triton

SHAPES = [
    (1, 1, 1, 1),
    (2, 2, 3, 67),
    pytest.param((3, 2, 4, 16), marks=pytest.mark.full),
    pytest.param((2, 3, 2, 33), marks=pytest.mark.full),
]
OPS: dict[str, Any] = {"lstm": lstm_layer, "gru": gru_layer}


def given(
    kind: str, shape: tuple[int, ...], bias: bool, start: bool, lengths: bool, reverse: bool
) -> list[Any]:
    source = torch.Generator().manual_seed(1)
    batch, steps, features, width = shape

    def randn(*size: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(size, generator=source, dtype=torch.float64) * scale).bfloat16().double()

    rows = width * (4 if kind == "lstm" else 3)
    result: list[Any] = [randn(batch, steps, features), randn(rows, features, scale=features**-0.5)]
    result += [randn(rows, width, scale=width**-0.5), *[randn(rows) if bias else None for _ in range(2)]]
    result += [randn(batch, width) if start else None for _ in range(2 if kind == "lstm" else 1)]
    return [*result, torch.randint(1, steps + 1, (batch,), generator=source) if lengths else None, reverse]


def outcome(call: Any, args: list[Any], dtype: torch.dtype, cotangents: int = 3) -> list[Tensor]:
    args = [
        a.to(dtype).requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args
    ]
    results = call(*args)
    source = torch.Generator().manual_seed(2)
    pulls = [torch.randn(r.shape, generator=source, dtype=torch.float64).to(dtype) for r in results]
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    result = torch.autograd.grad(results[:cotangents], wanted, pulls[:cotangents], allow_unused=True)
    return [r.detach() for r in results] + [torch.zeros(()) if g is None else g for g in result]


def check(
    kind: str, args: list[Any], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, **more: Any
) -> None:
    monkeypatch.setattr(layer, "_loop_module", lambda x: loop_triton)
    monkeypatch.setattr(layer, "_compute_dtype", lambda x: x.dtype)
    exact = outcome(OPS[kind].reference, args, torch.float64, **more)
    theirs = outcome(OPS[kind].reference, args, dtype, **more)
    ours = outcome(OPS[kind].candidates["steps"], args, dtype, **more)
    for i, (found, eager, right) in enumerate(zip(ours, theirs, exact, strict=True)):
        slack = 4 * torch.finfo(dtype).eps * max(1.0, float(right.abs().max()))
        assert found.dtype == dtype
        assert (found - right).abs().max() <= 4 * (eager - right).abs().max() + slack, i


@pytest.mark.sample
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize(
    ("lengths", "reverse"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.full),
        pytest.param(False, True, marks=pytest.mark.full),
    ],
)
def test_steps(kind: str, lengths: bool, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_triton, "_STEP_BLOCK", 64)
    args = given(kind, (19, 3, 5, 7), True, True, lengths, reverse)
    check(kind, args, monkeypatch, torch.float32)


@pytest.mark.sample
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_without_bias_or_state(
    kind: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for reverse in (True, False):
        check(kind, given(kind, shape, False, False, False, reverse), monkeypatch, torch.float32)


@pytest.mark.sample
@pytest.mark.parametrize("kind", OPS)
def test_16_bits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(kind, given(kind, (5, 3, 4, 13), True, True, True, True), monkeypatch, torch.bfloat16)


@pytest.mark.sample
@pytest.mark.parametrize("kind", OPS)
def test_outputs_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = given(kind, (3, 4, 4, 5), True, True, False, False)
    check(kind, args, monkeypatch, torch.float32, cotangents=1)
    with torch.no_grad():
        plain = OPS[kind].candidates["steps"](*[a.float() if isinstance(a, Tensor) else a for a in args])
    exact = OPS[kind].reference(*args)
    for found, right in zip(plain, exact, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
