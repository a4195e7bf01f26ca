"""How plans call kernels in C: equal ones compiled once, successive ones by one call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.runtime import c_library
from burnt.codegen.runtime.compiled_plan import CompiledPlan


def plan_of(function: Function, *args: object) -> CompiledPlan:
    plan = function.plan(*args)
    assert plan is not None
    return plan


def norms(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.softmax(a, -1) @ a for a in (x, y, z))


def test_equal_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []
    load = c_library.load
    monkeypatch.setattr(
        c_library, "load", lambda source, names: sources.append(source) or load(source, names)
    )
    args = [torch.randn(7, 7) for _ in range(3)]
    plan = plan_of(Function(norms), *args)
    assert len(plan.kernels) == 3
    assert len({text.partition("(")[2] for text in plan.texts.values()}) == 1
    assert sum("void kernel" in line for line in sources[-1].splitlines()) == 1
    for found, expected in zip(plan(args, []), norms(*args), strict=True):
        torch.testing.assert_close(found, expected)

    def others(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return norms(x, y, z)

    plan_of(Function(others), *args)
    assert len({s for s in sources if "void kernel" in s}) == 1, "the source depends on the function's name"


def test_successive_kernels_are_one_call() -> None:
    def sums(x: Tensor, indices: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        a = x[indices] * scale
        b = a.cumsum(-1)
        return b, torch.softmax(b.cumsum(0), 0), a.sum(0) * 0.5

    x, indices = torch.randn(9, 5), torch.tensor([3, 8, 0, -1])
    plan = plan_of(Function(sums), x, indices, 0.25)
    assert len(plan.kernels) > 2
    for scale in (0.25, 3.0):
        for found, expected in zip(plan([x, indices], [scale]), sums(x, indices, scale), strict=True):
            torch.testing.assert_close(found, expected)
    with pytest.raises(IndexError, match="index 9 is out of range"):
        plan([x, torch.tensor([0, 9, 1, 2])], [0.25])
