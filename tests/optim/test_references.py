"""Optimizers that torch lacks, against float64 references written from their papers; and Lbfgs, by a loop."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from burnt import Gradients, optim
from burnt.errors import OptimError
from burnt.optim import OptimizerRecord

LR = 0.02
Step = Callable[[Tensor, Tensor, dict[str, Any], int], Tensor]


def lion(p: Tensor, g: Tensor, state: dict[str, Any], t: int) -> Tensor:
    """Chen et al., 2023, algorithm 2, with beta1 0.9, beta2 0.99 and weight decay 0.1."""
    m = state.get("m", torch.zeros_like(p))
    update = (0.9 * m + 0.1 * g).sign()
    state["m"] = 0.99 * m + 0.01 * g
    return p - LR * (update + 0.1 * p)


def adan(p: Tensor, g: Tensor, state: dict[str, Any], t: int) -> Tensor:
    """Xie et al., 2022, algorithm 1, with their betas 0.02, 0.08 and 0.01, and weight decay 0.1."""
    m, v, n = (state.get(name, torch.zeros_like(p)) for name in "mvn")
    difference = g - state.get("g", g)
    m = 0.98 * m + 0.02 * g
    v = 0.92 * v + 0.08 * difference
    n = 0.99 * n + 0.01 * (g + 0.92 * difference) ** 2
    state |= {"m": m, "v": v, "n": n, "g": g}
    denominator = (n / (1 - 0.99**t)).sqrt() + 1e-8
    update = (m / (1 - 0.98**t) + 0.92 * v / (1 - 0.92**t)) / denominator
    return (p - LR * update) / (1 + LR * 0.1)


def lamb(p: Tensor, g: Tensor, state: dict[str, Any], t: int) -> Tensor:
    """You et al., 2020, algorithm 2, with weight decay 0.1."""
    m = 0.9 * state.get("m", torch.zeros_like(p)) + 0.1 * g
    v = 0.999 * state.get("v", torch.zeros_like(p)) + 0.001 * g * g
    state |= {"m": m, "v": v}
    u = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + 0.1 * p
    ratio = p.norm() / u.norm() if p.norm() > 0 and u.norm() > 0 else 1.0
    return p - LR * ratio * u


def schedule_free(y: Tensor, g: Tensor, state: dict[str, Any], t: int) -> Tensor:
    """Defazio et al., 2024, algorithm 1, with 3 steps of warm-up and weight decay 0.1."""
    x, z = state.get("x", y), state.get("z", y)
    v = 0.999 * state.get("v", torch.zeros_like(y)) + 0.001 * g * g
    rate = LR * math.sqrt(1 - 0.999**t) * min(1.0, t / 3)
    z = z - rate * g / (v.sqrt() + 1e-8) - rate * 0.1 * y
    total = state.get("total", 0.0) + rate**2
    x = (1 - rate**2 / total) * x + rate**2 / total * z
    state |= {"x": x, "z": z, "v": v, "total": total}
    return 0.1 * z + 0.9 * x


CASES: list[tuple[Callable[[], optim.Optimizer], Step]] = [
    (lambda: optim.Lion(weight_decay=0.1), lion),
    (lambda: optim.Adan(weight_decay=0.1), adan),
    (lambda: optim.Lamb(weight_decay=0.1), lamb),
    (lambda: optim.ScheduleFreeAdamW(warmup_steps=3, weight_decay=0.1), schedule_free),
]
IDS = ["lion", "adan", "lamb", "schedule-free"]


def gradients(seed: int, params: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        path: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype)
        for path, p in params.items()
    }


def parameters(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    shapes = {"weight": (5, 7), "bias": (5,), "scale": (), "nothing": (0, 3)}
    start = gradients(99, {path: torch.empty(shape) for path, shape in shapes.items()}, dtype)
    return {path: nn.Parameter(p) for path, p in start.items()}


@pytest.mark.parametrize(("build", "reference"), CASES, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_as_in_the_paper(build: Callable[[], optim.Optimizer], reference: Step, dtype: torch.dtype) -> None:
    params, optimizer = parameters(dtype), build()
    exact = {path: p.detach().clone().double() for path, p in params.items()}
    states: dict[str, dict[str, Any]] = {path: {} for path in params}
    for t in range(1, 8):
        grads = gradients(t, params, dtype)
        optimizer.step(LR, params, grads)
        for path, p in params.items():
            exact[path] = reference(exact[path], grads[path].double(), states[path], t)
            # A weight of the sum is a difference of almost equal numbers in the first steps.
            tolerance = 1e-10 if dtype == torch.float64 else 1e-5
            torch.testing.assert_close(p.detach().double(), exact[path], rtol=tolerance, atol=tolerance)
    if isinstance(optimizer, optim.ScheduleFreeAdamW):
        optimizer.eval(params)
        for path, p in params.items():
            torch.testing.assert_close(p.detach().double(), states[path]["x"], rtol=1e-5, atol=1e-6)


def test_adan_without_the_proximal_update() -> None:
    p, g = nn.Parameter(torch.tensor([2.0])), {"p": torch.tensor([3.0])}
    optim.Adan(weight_decay=0.5, no_prox=True).step(0.1, {"p": p}, g)
    torch.testing.assert_close(p.detach(), torch.tensor([2.0 * (1 - 0.05) - 0.1]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("build", "reference"), CASES, ids=IDS)
def test_half_precision_is_rounded_once(
    build: Callable[[], optim.Optimizer], reference: Step, dtype: torch.dtype
) -> None:
    params = parameters(dtype)
    exact = {path: p.detach().clone().double() for path, p in params.items()}
    grads = gradients(1, params, dtype)
    build().step(LR, params, grads)
    for path, p in params.items():
        right = reference(exact[path], grads[path].double(), {}, 1)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(p.detach().double(), right, rtol=eps, atol=eps * 1e-2)


@pytest.mark.parametrize("build", [optim.Lion, optim.Adan, optim.Lamb, optim.ScheduleFreeAdamW])
def test_sparse_gradients_and_complex_parameters_are_refused(build: Callable[[], optim.Optimizer]) -> None:
    sparse = {"w": torch.eye(2).to_sparse()}
    for parameter, grads in (
        (torch.ones(2, 2), sparse),
        (torch.ones(2, dtype=torch.complex64), {"w": torch.ones(2, dtype=torch.complex64)}),
    ):
        p = nn.Parameter(parameter.clone())
        with pytest.raises(OptimError) as caught:
            build().step(0.1, {"w": p}, grads)
        assert str(caught.value).startswith(
            f"{build.__name__} does not support sparse gradients or complex parameters like these\n"
            "  found     it needs dense gradients of real parameters\n"
            "  hint      gradient.to_dense(), torch.view_as_real(parameter), or another optimizer"
        )
        assert torch.equal(p, parameter)


@torch.sparse.check_sparse_tensor_invariants(True)  # torch warns where it is not decided
def test_adagrad_takes_sparse_gradients_and_others_say_that_they_do_not() -> None:
    ours, theirs = (nn.Parameter(torch.ones(4, 2)) for _ in range(2))
    optimizer, reference = optim.Adagrad(), torch.optim.Adagrad([theirs], lr=0.1)
    for rows in ([0, 2], [2, 3], [2, 2]):
        gradient = torch.sparse_coo_tensor(torch.tensor([rows]), torch.ones(2, 2), (4, 2))
        theirs.grad = gradient.clone()
        reference.step()
        optimizer.step(0.1, {"w": ours}, {"w": gradient})
    torch.testing.assert_close(ours, theirs)
    assert float(optimizer.into_record().tensors["w/step"]) == 3
    for build in (optim.Adam, optim.RmsProp, optim.Adafactor):
        with pytest.raises(OptimError, match="does not support sparse gradients") as caught:
            build().step(0.1, {"w": ours}, {"w": gradient})
        assert "hint      gradient.to_dense()" in str(caught.value)


# --- schedule-free: train and eval ----------------------------------------------------------------------


def trained(optimizer: optim.Optimizer, model: nn.Module, steps: range) -> None:
    for step in steps:
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.step(LR, model, Gradients.of(loss, model))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_eval_is_undone_exactly_also_from_a_file(tmp_path: Any) -> None:
    whole, paused = model(), model()
    trained(optim.ScheduleFreeAdamW(), whole, range(8))
    optimizer = optim.ScheduleFreeAdamW()
    trained(optimizer, paused, range(4))
    point = copy.deepcopy(paused)
    optimizer.eval(paused)
    optimizer.eval(paused)  # a second time changes nothing
    assert not same(paused, point)
    optimizer.into_record().save(tmp_path / "optimizer.safetensors")
    resumed, other = copy.deepcopy(paused), optim.ScheduleFreeAdamW()
    other.load_record(OptimizerRecord.load(tmp_path / "optimizer.safetensors"))
    for each, net in ((optimizer, paused), (other, resumed)):
        each.train(net)
        each.train(net)
        assert same(net, point)
        trained(each, net, range(4, 8))
        assert same(net, whole)


def test_a_model_in_evaluation_is_not_stepped() -> None:
    optimizer, net = optim.ScheduleFreeAdamW(), model()
    trained(optimizer, net, range(2))
    optimizer.eval(net)
    with pytest.raises(OptimError) as caught:
        trained(optimizer, net, range(1))
    assert str(caught.value) == (
        "ScheduleFreeAdamW cannot step a model in evaluation\n"
        "  expected  the parameters at which gradients are computed\n"
        "  found     their averages\n"
        "  hint      call optimizer.train(model) after optimizer.eval(model)"
    )


def test_other_optimizers_evaluate_what_they_train() -> None:
    optimizer, net = optim.AdamW(), model()
    trained(optimizer, net, range(2))
    before = copy.deepcopy(net)
    optimizer.eval(net)
    assert same(net, before)
    optimizer.train(net)
    assert same(net, before)


def test_a_rate_of_zero_leaves_schedule_free_parameters_unchanged() -> None:
    p, optimizer = nn.Parameter(torch.ones(2)), optim.ScheduleFreeAdamW()
    optimizer.step(0.0, {"p": p}, {"p": torch.ones(2)})
    assert p.tolist() == [1.0, 1.0]


# --- Lbfgs ----------------------------------------------------------------------------------------------


def rosenbrock(p: Tensor) -> Tensor:
    return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2


def closure_of(p: nn.Parameter) -> Callable[[], tuple[Tensor, dict[str, Tensor]]]:
    def closure() -> tuple[Tensor, dict[str, Tensor]]:
        loss = rosenbrock(p)
        return loss, {"p": torch.autograd.grad(loss, p)[0]}

    return closure


def start(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.tensor([-1.2, 1.0], dtype=dtype))


def steps_of(optimizer: optim.Lbfgs, p: nn.Parameter, count: int, **options: Any) -> Iterator[list[float]]:
    for _ in range(count):
        optimizer.step_with(0.5, {"p": p}, closure_of(p), **options)
        yield p.tolist()


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_steps_as_in_torch_and_resumes_to_the_bit(tmp_path: Any, line_search: Any) -> None:
    options: dict[str, Any] = {"max_iter": 3, "history_size": 4, "line_search_fn": line_search}
    theirs = start()
    reference = torch.optim.LBFGS([theirs], lr=0.5, **options)

    def torch_closure() -> Tensor:
        reference.zero_grad()
        loss = rosenbrock(theirs)
        loss.backward()
        return loss

    expected = []
    for _ in range(8):
        reference.step(torch_closure)  # type: ignore[arg-type]
        expected.append(theirs.tolist())
    p, optimizer = start(), optim.Lbfgs(**options)
    assert list(steps_of(optimizer, p, 8)) == expected
    assert p.grad is None

    p, optimizer = start(), optim.Lbfgs(**options)
    for right in expected:
        optimizer.into_record().save(tmp_path / "optimizer.safetensors")
        optimizer = optim.Lbfgs(**options)
        optimizer.load_record(OptimizerRecord.load(tmp_path / "optimizer.safetensors"))
        p = nn.Parameter(p.detach().clone())
        assert list(steps_of(optimizer, p, 1)) == [right]


def test_lbfgs_resumes_where_gradients_do_not_change() -> None:
    """No curvature is added there, and the scale of the Hessian is that of the step before."""
    results = []
    for interrupted in (False, True):
        p, optimizer = start(), optim.Lbfgs(max_iter=2)
        for slope in (1.0, 2.0, 2.0, 2.0):
            if interrupted:
                record, optimizer = optimizer.into_record(), optim.Lbfgs(max_iter=2)
                optimizer.load_record(record)
            gradient = torch.tensor([-slope, slope])
            optimizer.step_with(0.1, {"p": p}, lambda g=gradient, p=p: ((g * p).sum(), {"p": g.clone()}))
        results.append(p.tolist())
    assert results[0] == results[1]


def test_lbfgs_with_strong_wolfe_solves_what_gradient_descent_does_not() -> None:
    p = start(torch.float64)
    optimizer = optim.Lbfgs(max_iter=60, max_eval=200, line_search_fn="strong_wolfe")
    list(steps_of(optimizer, p, 1))
    torch.testing.assert_close(p.detach(), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-4)


def test_lbfgs_clips_each_gradient_and_returns_the_first_norm() -> None:
    p = start()
    norm = float(torch.autograd.grad(rosenbrock(p), p)[0].norm())
    result = optim.Lbfgs(max_iter=1).step_with(1.0, {"p": p}, closure_of(p), clip_norm=1e-3)
    assert result.norm is not None
    assert float(result.norm) == pytest.approx(norm)
    assert float((p - start()).detach().norm()) == pytest.approx(1e-3, rel=0.1)


def test_lbfgs_refuses_what_it_cannot_do() -> None:
    p, optimizer = start(), optim.Lbfgs()
    with pytest.raises(OptimError, match=r"expected  step_with\(lr, model, closure\)"):
        optimizer.step(1.0, {"p": p}, {"p": torch.ones(2)})
    with pytest.raises(OptimError, match="belongs to no parameter"):
        optimizer.step_with(1.0, {"q": p}, closure_of(p))
    with pytest.raises(OptimError, match="cannot step with this learning rate"):
        optimizer.step_with(-1.0, {"p": p}, closure_of(p))
    list(steps_of(optimizer, p, 2))
    other = optim.Lbfgs()
    other.load_record(optimizer.into_record())
    with pytest.raises(OptimError, match="of another model") as caught:
        other.step_with(1.0, {"p": nn.Parameter(torch.ones(3))}, closure_of(p))
    assert "found     2 values" in str(caught.value)
    with pytest.raises(NotImplementedError, match="steps with gradients"):
        optim.Sgd().step_with(1.0, {"p": p}, closure_of(p))
