"""How plans call kernels in C: equal ones compiled once, successive ones by one call."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import burnt
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


# --- memory -----------------------------------------------------------------------------------------------


class Steps(nn.Module):
    """Elementwise ops, norms and products in turn, so that kernels follow kernels and calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12))
        self.norm, self.batch = nn.LayerNorm(12), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(F.gelu(x @ self.weight)) + x
        z = torch.softmax(y @ self.weight, -1).cumsum(0)
        z = F.silu(z @ self.weight.t()) + y.flip(0)
        return self.batch(z.unflatten(0, (-1, 3))) @ self.weight


def compiled_plans(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> tuple[nn.Module, list[CompiledPlan]]:
    plans: list[CompiledPlan] = []
    init = CompiledPlan.__init__

    def noted(self: CompiledPlan, *args: Any) -> None:
        init(self, *args)
        plans.append(self)

    monkeypatch.setattr(CompiledPlan, "__init__", noted)
    torch._dynamo.reset()
    return burnt.compile(model, fullgraph=True), plans


def test_dead_memory_is_taken_and_arguments_change_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Steps()
    eager, exact, x = copy.deepcopy(model), copy.deepcopy(model).double(), torch.randn(30, 12)
    compiled, plans = compiled_plans(monkeypatch, model)
    versions = [b._version for b in model.buffers()]
    for _ in range(3):
        for call, given in ((compiled, x), (eager, x), (exact, x.double())):
            call(given).square().mean().backward()
    forward, backward = plans
    assert len(forward.mutated) == 3
    assert set(forward.mutated) <= set(forward.shared.values()), "statistics are copied"
    assert any(kernel.in_place for kernel in backward.kernels)
    for (name, found), torchs, right in zip(
        [*model.named_parameters(), *model.named_buffers()],
        [*eager.parameters(), *eager.buffers()],
        [*exact.parameters(), *exact.buffers()],
        strict=True,
    ):
        found, torchs, right = (t if t.grad is None else t.grad for t in (found, torchs, right))
        assert (found - right).abs().max() <= 4 * (torchs - right).abs().max() + 1e-6, name
    assert all(b._version > v for b, v in zip(model.buffers(), versions, strict=True))


def overwritten(x: Tensor) -> tuple[Tensor, ...]:
    """Products die in kernels that read them at the place that they write, and at another one."""
    a, b, c, d = (x @ x + i for i in range(4))
    rows = torch.softmax(c @ c, -1)
    return a.exp() * 2, b.exp() + b.flip(0), rows, (d @ d) - (d @ d).sum(-1, keepdim=True), (x @ x).t().exp()


@pytest.mark.sample
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [3, 40, 300])
def test_kernels_write_where_they_read_only_at_the_same_place(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(0)
    x = (torch.randn(size, size) / size).to(dtype)
    plan = plan_of(Function(overwritten), x)
    for found, expected in zip(plan([x], []), overwritten(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2 if dtype == torch.float16 else 1e-5, atol=1e-5)
    assert sum(len(kernel.in_place) for kernel in plan.kernels) >= 3


def test_memory_is_taken_under_another_shape() -> None:
    def batched(x: Tensor, w: Tensor) -> Tensor:
        return torch.bmm((x @ x).view(30, 10, 300).exp(), w)

    x, w = torch.randn(300, 300) / 300, torch.randn(30, 300, 20)
    plan = plan_of(Function(batched), x, w)
    assert len(plan.shared) == 1
    torch.testing.assert_close(plan([x, w], [])[0], batched(x, w), rtol=1e-4, atol=1e-3)


def test_a_view_by_torch_keeps_memory_from_being_overwritten() -> None:
    def seen(x: Tensor) -> Tensor:
        product = x @ x
        return product * 2 + product.as_strided((300, 300), (1, 300))

    def changed(x: Tensor) -> None:
        x.copy_(x.view(torch.int32).flip(0).to(x.dtype))

    x = torch.randn(300, 300)
    torch.testing.assert_close(plan_of(Function(seen), x)([x], [])[0], seen(x), rtol=1e-4, atol=1e-3)
    found, expected = torch.randn(2000).expand(2, -1).clone()
    plan_of(Function(changed), found)([found], [])
    changed(expected)
    torch.testing.assert_close(found, expected)


def test_threads_and_calls_within_calls_share_a_plan() -> None:
    plan = plan_of(Function(norms), *[torch.randn(20, 20)] * 3)
    given = [[torch.randn(20, 20) for _ in range(3)] for _ in range(16)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda args: plan(args, []), given * 8))
    for args, results in zip(given * 8, found, strict=True):
        for result, expected in zip(results, norms(*args), strict=True):
            torch.testing.assert_close(result, expected)


def test_what_frees_memory_comes_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of a norm's weights are results, which are stored when what they read is there."""
    model = nn.Sequential(*[m for _ in range(4) for m in (nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.SiLU())])
    compiled, plans = compiled_plans(monkeypatch, model)
    compiled(torch.randn(5, 4, 9, 9)).sum().backward()
    backward = plans[1]
    large = [b for b in backward.slots if b.shape == (5, 4, 9, 9) and b not in backward.plan.inputs]
    for buffer in large:
        users = [i for i, step in enumerate(backward.prepared_steps) if buffer in step.buffers]
        assert users[-1] - users[0] <= 3, (buffer, users)


def test_a_third_size_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []
    load = c_library.load
    monkeypatch.setattr(
        c_library, "load", lambda source, names: sources.append(source) or load(source, names)
    )
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU())
    compiled = burnt.compile(model, dynamic=True)
    for rows in (32, 48, 80, 112):
        x = torch.randn(rows, 6)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
    generated = [source for source in sources if "void kernel" in source]
    assert len(generated) == 4
    assert len(set(generated)) == 2
