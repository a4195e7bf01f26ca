"""Formulas of optimizers: their kernels in C against torch's operations in float64, and what a trace is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputRuntimeError, InputUnsupportedError
from burnt.kernels.optim import foreach_c
from burnt.kernels.optim import formula as updates
from burnt.kernels.optim.formula import Scope, Trace, Update, apply_eagerly, lerp, sqrt, trace
from burnt.kernels.optim.steps import adafactor_step, lamb_step, number_options, update_step

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler works here")

SHAPES = [(0,), (1,), (), (31, 17), (1030,)]
ADAM_LIKE = {"betas": (0.9, 0.99), "eps": 1e-3}
CASES: list[tuple[Update, dict[str, Any]]] = [
    (updates.RMS_PROP, {"alpha": 0.9, "eps": 1e-3, "weight_decay": 0.0, "momentum": 0.0, "centered": False}),
    (updates.RMS_PROP, {"alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.9, "centered": True}),
    (updates.ADAGRAD, {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-3}),
    (updates.ADADELTA, {"rho": 0.9, "eps": 1e-3, "weight_decay": 0.1}),
    (updates.ADAMAX, ADAM_LIKE | {"weight_decay": 0.1}),
    (
        updates.NADAM,
        ADAM_LIKE | {"weight_decay": 0.1, "momentum_decay": 4e-3, "decoupled_weight_decay": True},
    ),
    (updates.RADAM, ADAM_LIKE | {"weight_decay": 0.1, "decoupled_weight_decay": False}),
    (updates.RADAM, ADAM_LIKE | {"betas": (0.9, 0.5), "weight_decay": 0.0, "decoupled_weight_decay": False}),
    (updates.ADAN, {"betas": (0.98, 0.92, 0.99), "eps": 1e-3, "weight_decay": 0.1, "no_prox": False}),
    (updates.ADAN, {"betas": (0.98, 0.92, 0.99), "eps": 1e-3, "weight_decay": 0.1, "no_prox": True}),
    (updates.LION, {"betas": (0.9, 0.99), "weight_decay": 0.1}),
    (updates.SCHEDULE_FREE_ADAMW, ADAM_LIKE | {"weight_decay": 0.1, "warmup_steps": 4}),
    (updates.SCHEDULE_FREE_ADAMW, ADAM_LIKE | {"weight_decay": 0.0, "warmup_steps": 0}),
]
IDS = [f"{update.name}-{i}" for i, (update, _) in enumerate(CASES)]


def drawn(dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def begin(
    update: Update, options: dict[str, Any], dtype: torch.dtype
) -> tuple[list[Tensor], dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Parameters, states and scalars as in the middle of a training."""
    absent = {
        "grad_avg": not options.get("centered", True),
        "momentum_buffer": not options.get("momentum", True),
    }
    states = {
        name: [t.abs() if name != "z" and name != "x" else t for t in drawn(dtype, 20 + i)]
        for i, name in enumerate(update.elements)
        if name != "param" and not absent.get(name)
    }
    if options.get("centered"):  # a variance is not negative
        states["square_avg"] = [
            a * a + t for a, t in zip(states["grad_avg"], states["square_avg"], strict=True)
        ]
    scalars = {
        name: [
            torch.tensor(0.5 if name == "mu_product" else float(i), dtype=torch.float32)
            for i in range(len(SHAPES))
        ]
        for name in update.scalars
    }
    scalars |= {name: [t.double() for t in scalars[name]] for name in update.wide}
    return drawn(dtype, 0), states, scalars


@needs_compiler
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)],
    ids=str,
)
@pytest.mark.parametrize(("update", "options"), CASES, ids=IDS)
def test_kernels_match_the_formula_in_float64(
    update: Update, options: dict[str, Any], dtype: torch.dtype
) -> None:
    params, states, scalars = begin(update, options, dtype)
    average = drawn(dtype, 9)
    numbers = number_options(**options, lr=0.05)
    for step in range(3):
        grads = drawn(dtype, 30 + step)
        exact = {
            name: [t.to(torch.float64, copy=True) for t in column]
            for name, column in {"param": params, "grad": grads, **states}.items()
        }
        exact_scalars = {name: [t.clone() for t in column] for name, column in scalars.items()}
        exact_average = [t.clone().double() for t in average]
        norm = math.sqrt(sum(float(g.square().sum()) for g in exact["grad"])) / 8
        for g in exact["grad"]:
            g.mul_(1 / 8 * min(1.0, 2.0 / (norm + 1e-6)))
        apply_eagerly(update, exact, numbers, exact_scalars)
        before = [t.clone() for t in grads]
        result = update_step(
            update.name, update, params, grads, states, scalars, lr=0.05, max_norm=2.0, grad_scale=8.0,
            ema=average, ema_decay=0.75, candidate="burnt", **options,
        )  # fmt: skip
        assert float(result.norm) == pytest.approx(norm)
        assert all(map(torch.equal, grads, before))
        for name, column in scalars.items():
            for ours, right in zip(column, exact_scalars[name], strict=True):
                torch.testing.assert_close(ours, right, rtol=1e-6, atol=0)
        eps = 4 * torch.finfo(dtype).eps if dtype != torch.float64 else 1e-13
        for name, column in (states | {"param": params, "ema": average}).items():
            theirs = exact.get(name) or [
                e.lerp(p, 0.25) for e, p in zip(exact_average, exact["param"], strict=True)
            ]
            for ours, right in zip(column, theirs, strict=True):
                torch.testing.assert_close(
                    ours.double(), right, rtol=eps, atol=2 * eps, msg=lambda m, n=name: f"{n}: {m}"
                )


@needs_compiler
@pytest.mark.sample(4)
@pytest.mark.parametrize(("update", "options"), CASES, ids=IDS)
def test_torch_steps_what_kernels_do_not_support(update: Update, options: dict[str, Any]) -> None:
    """Both candidates, from a parameter's first step on, and through a step that is skipped."""
    kept = []
    for candidate in ("burnt", "torch"):
        params, states, scalars = begin(update, options, torch.float32)
        for column in scalars.values():
            torch._foreach_zero_(column)
        for name in scalars:
            if name == "mu_product":
                torch._foreach_add_(scalars[name], 1)
        bad = drawn(torch.float32, 30)
        bad[3][30, 16] = math.inf
        everything = [*params, *(t for c in (*states.values(), *scalars.values()) for t in c)]
        before = [t.clone() for t in everything]
        result = update_step(
            "step",
            update,
            params,
            bad,
            states,
            scalars,
            lr=0.05,
            grad_scale=4.0,
            candidate=candidate,
            **options,
        )
        assert result.skipped
        assert all(map(torch.equal, everything, before))
        for step in range(2):
            result = update_step(
                "step", update, params, drawn(torch.float32, 31 + step), states, scalars, lr=0.05,
                candidate=candidate, **options,
            )  # fmt: skip
        assert result.by == ("burnt" if candidate == "burnt" else "torch: requested")
        kept.append(everything)
    for ours, theirs in zip(*kept, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("candidate", ["burnt", "torch"])
def test_a_skipped_step_of_lamb_and_adafactor_changes_nothing(candidate: str) -> None:
    params, grads = drawn(torch.float32, 0), drawn(torch.float32, 1)
    grads[3][30, 16] = math.nan
    first, second, steps = drawn(torch.float32, 2), drawn(torch.float32, 3), [torch.ones(()) for _ in SHAPES]
    everything = [*params, *first, *second, *steps]
    before = [t.clone() for t in everything]
    assert lamb_step(params, grads, first, second, steps, lr=0.1, grad_scale=2.0, candidate=candidate).skipped
    none = [None] * len(params)
    assert adafactor_step(params, grads, none, none, first, steps, lr=0.1, grad_scale=2.0).skipped
    assert all(map(torch.equal, everything, before))
    assert lamb_step([], [], [], [], [], lr=0.1, candidate=candidate).norm is None


def test_bad_input() -> None:
    options: dict[str, Any] = {"betas": (0.9, 0.99), "weight_decay": 0.0, "lr": 0.1}
    p, g, m = ([torch.ones(2)] for _ in range(3))
    with pytest.raises(InputRuntimeError) as caught:
        update_step("Lion", updates.LION, p, g, {"exp_avg": [torch.ones(3)]}, {}, **options)
    assert str(caught.value) == (
        "exp_avgs of Lion does not match the parameters\n"
        "  in        burnt.optim.Lion\n"
        "  expected  exp_avgs[0]: float32 (2,) on cpu, like params[0]\n"
        "  found     float32 (3,) on cpu"
    )
    with pytest.raises(InputRuntimeError, match="steps of Adagrad does not match the parameters"):
        update_step("Adagrad", updates.ADAGRAD, p, g, {"sum": m}, {"step": [torch.ones(2)]}, **options)
    with pytest.raises(InputUnsupportedError, match="a step counter that is float32"):
        update_step(
            "ScheduleFreeAdamW", updates.SCHEDULE_FREE_ADAMW, p, g, {"z": m, "x": m, "exp_avg_sq": m},
            {"step": [torch.ones(())], "weight_sum": [torch.ones(())]}, candidate="burnt", eps=1e-8,
            warmup_steps=0, **options,
        )  # fmt: skip


# --- traces ---------------------------------------------------------------------------------------------


def traced(weight_decay: float, lr: float = 0.1) -> Trace:
    options = number_options(betas=(0.9, 0.99), weight_decay=weight_decay, lr=lr)
    return trace(updates.LION, ["param", "grad", "exp_avg"], options)


def test_one_trace_serves_all_values_of_an_option_but_zero() -> None:
    assert traced(0.1) is traced(0.2, lr=0.5) is not traced(0.0)
    assert traced(0.0) is traced(0.0, lr=0.0)
    assert traced(0.1).numbers == ("beta1", "beta2", "weight_decay", "lr")
    assert traced(0.0).numbers == ("beta1", "beta2", "lr")
    assert traced(0.1).written == ["param", "exp_avg"]


def test_terms_are_computed_as_rarely_as_they_can_be() -> None:
    def formula(s: Any, o: Any) -> None:
        s.step = s.step + 1
        s.param = s.param - o.lr / (1 - o.beta1) * sqrt(s.step) * s.grad

    terms = list(
        trace(
            Update("f", formula, ("param",), ("step",)), ["param", "grad"], {"lr": 0.1, "beta1": 0.9}
        ).terms()
    )
    scopes = {(term.op, term.scope) for term in terms}
    assert ("divide", Scope.STEP) in scopes
    assert ("sqrt", Scope.TENSOR) in scopes
    assert ("multiply", Scope.ELEMENT) in scopes
    assert len({id(term) for term in terms}) == len(terms)


def test_a_formula_branches_only_on_options() -> None:
    def formula(s: Any, o: Any) -> None:
        s.param = s.param if s.grad else lerp(s.param, s.grad, o.lr)

    with pytest.raises(TypeError, match="can only branch on options other than lr"):
        trace(Update("f", formula, ("param",)), ["param", "grad"], {"lr": 0.1})


@needs_compiler
def test_more_tensors_than_a_block_and_of_several_blocks() -> None:
    shapes = [(3,), (2 * foreach_c.BLOCK + 5,), *[(7,)] * 200]
    params = [torch.ones(shape) for shape in shapes]
    momenta, grads = ([torch.full(shape, value) for shape in shapes] for value in (0.0, -2.0))
    options: dict[str, Any] = {"betas": (0.9, 0.99), "weight_decay": 0.0}
    update_step("lion", updates.LION, params, grads, {"exp_avg": momenta}, {}, lr=0.5, **options)
    assert all(bool((p == 1.5).all()) for p in params)
    torch.testing.assert_close(momenta, [torch.full(shape, -0.02) for shape in shapes])
