"""The schedules, against torch's schedulers and other references, as values and as JSON."""

import copy
import math
import pickle
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as theirs
from torch.testing._internal.common_optimizers import optim_db

import burnt
from burnt import optim
from burnt.errors import ConfigError, OptimError
from burnt.optim import (
    Constant,
    Cosine,
    CosineRestarts,
    Cyclic,
    Exponential,
    Function,
    InverseSqrt,
    Linear,
    Mean,
    Multiplicative,
    MultiStep,
    Noam,
    OneCycle,
    Polynomial,
    Product,
    Schedule,
    Sequential,
    Step,
    Sum,
    TorchSchedule,
    Warmup,
    WarmupStableDecay,
)
from tests.messages import raises

rates = st.floats(1e-6, 10.0)
counts = st.integers(1, 60)


def torch_rates(make, lr: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR calls step(epoch), which torch itself deprecates
        scheduler = make(optimizer)
        result = []
        for _ in range(steps):
            result.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return result


def ours(schedule: Schedule, steps: int) -> list[float]:
    return [schedule(step) for step in range(steps)]


@given(rates, counts, rates)
def test_cosine_is_cosine_annealing_down_to_its_end_and_stays(lr, steps, end):
    expected = torch_rates(lambda o: theirs.CosineAnnealingLR(o, steps, eta_min=end), lr, steps + 1)
    assert ours(Cosine(lr, steps, end), steps + 1) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert ours(Cosine(lr, steps, end), 3 * steps)[steps:] == [pytest.approx(end)] * (2 * steps)


@given(rates, st.floats(0.01, 1.0), st.floats(0.0, 1.0), counts)
def test_linear_is_linear_lr(lr, start, end, steps):
    expected = torch_rates(lambda o: theirs.LinearLR(o, start, end, steps), lr, steps + 5)
    assert ours(Linear(lr * start, lr * end, steps), steps + 5) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(rates, counts, counts, counts)
def test_sequential_is_sequential_lr(lr, first, second, third):
    def make(optimizer):
        parts = [
            theirs.LinearLR(optimizer, 0.1, 1.0, first),
            theirs.CosineAnnealingLR(optimizer, second),
            theirs.ConstantLR(optimizer, 0.5, 10_000),
        ]
        return theirs.SequentialLR(optimizer, parts, [first, first + second])

    schedule = Sequential(
        (
            (Linear(0.1 * lr, lr, steps=first), first),
            (Cosine(lr, steps=second), second),
            (Constant(0.5 * lr), 1),
        )
    )
    steps = first + second + third
    assert ours(schedule, steps) == pytest.approx(torch_rates(make, lr, steps), rel=1e-6, abs=1e-9)


@given(counts, rates, counts, st.floats(0.0, 1e-6))
def test_warmup_rises_to_what_follows(steps, lr, then, start):
    schedule = Warmup(steps, Cosine(lr, then), start)
    rise = ours(schedule, steps)
    expected = [start + (lr - start) * (i + 1) / steps for i in range(steps)]
    assert rise == pytest.approx(expected)
    assert rise[-1] == pytest.approx(lr)
    assert ours(schedule, steps + then)[steps:] == ours(Cosine(lr, then), then)


def halves(step: int) -> float:
    return 0.5**step


def wave(step: int) -> float:
    return 1 + 0.5 * math.sin(step)


# torch's class, its arguments after the optimizer, the optimizer's rate, our twin, the number of steps
TWINS: list[tuple[str, dict[str, Any], float, Schedule, int]] = [
    ("ConstantLR", {"factor": 0.3, "total_iters": 7}, 0.2, Sequential(((0.2 * 0.3, 7), (0.2, 1))), 300),
    ("LinearLR", {"start_factor": 0.1, "total_iters": 40}, 0.2, Linear(0.02, 0.2, 40), 300),
    ("ExponentialLR", {"gamma": 0.97}, 0.2, Exponential(0.2, 0.97), 300),
    ("ExponentialLR", {"gamma": 1.01}, 0.2, Exponential(0.2, 1.01), 300),
    ("StepLR", {"step_size": 30}, 0.5, Step(0.5, 30), 300),
    ("StepLR", {"step_size": 1, "gamma": 0.99}, 0.5, Step(0.5, 1, 0.99), 300),
    ("MultiStepLR", {"milestones": [1, 40, 200]}, 0.5, MultiStep(0.5, (1, 40, 200)), 300),
    ("MultiStepLR", {"milestones": [30], "gamma": 2.0}, 0.5, MultiStep(0.5, (30,), gamma=2.0), 300),
    ("PolynomialLR", {"total_iters": 90}, 0.5, Polynomial(0.5, 90), 300),
    ("PolynomialLR", {"total_iters": 200, "power": 2.5}, 0.5, Polynomial(0.5, 200, power=2.5), 300),
    ("PolynomialLR", {"total_iters": 200, "power": 0.5}, 0.5, Polynomial(0.5, 200, power=0.5), 300),
    ("CosineAnnealingLR", {"T_max": 299, "eta_min": 0.01}, 0.5, Cosine(0.5, 299, end=0.01), 300),
    ("CosineAnnealingWarmRestarts", {"T_0": 13}, 0.5, CosineRestarts(0.5, 13), 300),
    ("CosineAnnealingWarmRestarts", {"T_0": 1}, 0.5, CosineRestarts(0.5, 1), 30),
    (
        "CosineAnnealingWarmRestarts",
        {"T_0": 5, "T_mult": 2, "eta_min": 0.01},
        0.5,
        CosineRestarts(0.5, 5, multiplier=2, end=0.01),
        300,
    ),
    ("CosineAnnealingWarmRestarts", {"T_0": 1, "T_mult": 3}, 0.5, CosineRestarts(0.5, 1, multiplier=3), 400),
    ("OneCycleLR", {"max_lr": 0.7, "total_steps": 300}, 0.1, OneCycle(0.7, 300), 300),
    (
        "OneCycleLR",
        {"max_lr": 0.7, "total_steps": 211, "anneal_strategy": "linear", "pct_start": 0.47},
        0.1,
        OneCycle(0.7, 211, anneal_strategy="linear", pct_start=0.47),
        211,
    ),
    (
        "OneCycleLR",
        {"max_lr": 0.7, "total_steps": 100, "three_phase": True, "div_factor": 5, "final_div_factor": 50},
        0.1,
        OneCycle(0.7, 100, three_phase=True, div_factor=5, final_div_factor=50),
        100,
    ),
    (
        "OneCycleLR",
        {"max_lr": 0.7, "total_steps": 97, "three_phase": True, "anneal_strategy": "linear"},
        0.1,
        OneCycle(0.7, 97, three_phase=True, anneal_strategy="linear"),
        97,
    ),
    ("OneCycleLR", {"max_lr": 0.7, "epochs": 3, "steps_per_epoch": 7}, 0.1, OneCycle(0.7, 21), 21),
    ("OneCycleLR", {"max_lr": 0.7, "total_steps": 9, "pct_start": 0.0}, 0.1, OneCycle(0.7, 9, 0.0), 9),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.4, "step_size_up": 17}, 9.0, Cyclic(0.1, 0.4, 17), 300),
    (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 0.4, "step_size_up": 5, "step_size_down": 12, "mode": "triangular2"},
        9.0,
        Cyclic(0.1, 0.4, 5, 12, mode="triangular2"),
        300,
    ),
    (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 0.4, "step_size_up": 20, "mode": "exp_range", "gamma": 0.99},
        9.0,
        Cyclic(0.1, 0.4, 20, mode="exp_range", gamma=0.99),
        300,
    ),
    ("LambdaLR", {"lr_lambda": wave}, 0.3, Product((0.3, wave)), 300),
    ("MultiplicativeLR", {"lr_lambda": wave}, 0.3, Multiplicative(0.3, wave), 60),
]


@pytest.mark.parametrize(
    ("name", "options", "lr", "schedule", "steps"),
    TWINS,
    ids=[f"{name}-{number}" for number, (name, *_) in enumerate(TWINS)],
)
def test_twin_of_torch_at_every_step(name, options, lr, schedule, steps):
    expected = torch_rates(lambda optimizer: getattr(theirs, name)(optimizer, **options), lr, steps)
    assert ours(schedule, steps) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    # In any order: nothing but the step matters.
    assert [schedule(step) for step in reversed(range(steps))] == ours(schedule, steps)[::-1]
    adapted = TorchSchedule(lambda optimizer: getattr(theirs, name)(optimizer, **options), lr)
    assert ours(adapted, steps) == expected


def test_every_scheduler_of_torch_has_a_twin_here_or_below():
    elsewhere = {"SequentialLR", "ChainedScheduler", "ReduceLROnPlateau", "LRScheduler"}
    assert {name for name, *_ in TWINS} == set(theirs.__all__) - elsewhere


def test_product_is_chained_scheduler():
    def make(optimizer):
        constant = theirs.ConstantLR(optimizer, factor=0.1, total_iters=20)
        return theirs.ChainedScheduler([constant, theirs.ExponentialLR(optimizer, gamma=0.98)])

    schedule = Product((Sequential(((0.1, 20), (1.0, 1))), Exponential(0.3, 0.98)))
    assert ours(schedule, 200) == pytest.approx(torch_rates(make, 0.3, 200), rel=1e-9)
    assert ours(TorchSchedule(make, 0.3), 200) == torch_rates(make, 0.3, 200)


SCHEDULER_INPUTS = [
    pytest.param(make, id=f"{info.optim_cls.__name__}-{i}-{j}")
    for info in optim_db
    for i, group in enumerate(info.scheduler_inputs or ())
    for j, make in enumerate(group)
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("make", SCHEDULER_INPUTS)
def test_torchs_own_samples_through_the_adapter(make):
    # torch applies several of them, one after the other, and passes some a metric.
    if isinstance(make(torch.optim.SGD([torch.zeros(1)], 0.1)), theirs.ReduceLROnPlateau):
        with pytest.raises(ConfigError, match=r"burnt\.train\.Plateau"):
            TorchSchedule(make, 0.1)
    else:
        assert ours(TorchSchedule(make, 0.1), 300) == torch_rates(make, 0.1, 300)


# --- references other than torch


def test_noam_by_its_formula():
    schedule = Noam(0.5, warmup_steps=10, model_size=64)
    for n in range(1, 100):
        expected = 0.5 / 8 * (1 / math.sqrt(n) if n >= 10 else n / (10 * math.sqrt(10)))
        assert schedule(n - 1) == pytest.approx(expected)
    # The numbers of Burn's defaults at the peak: 512 ** -0.5 * 4000 ** -0.5.
    assert Noam(1.0)(3999) == pytest.approx(0.000698771, rel=1e-5)
    assert max(range(10_000), key=Noam(1.0)) == 3999


@pytest.mark.full
def test_inverse_sqrt_after_a_warmup_is_that_of_transformers():
    optimization = pytest.importorskip("transformers.optimization")
    expected = torch_rates(lambda o: optimization.get_inverse_sqrt_schedule(o, 25), 0.3, 300)
    assert ours(Warmup(25, InverseSqrt(0.3, 25)), 300)[25:] == pytest.approx(expected[25:])


@pytest.mark.full
def test_warmup_stable_decay_is_that_of_transformers():
    optimization = pytest.importorskip("transformers.optimization")
    for shape, theirs_name in (("linear", "linear"), ("cosine", "cosine"), ("sqrt", "1-sqrt")):
        expected = torch_rates(
            lambda o, name=theirs_name: optimization.get_wsd_schedule(
                o, 0, 40, num_stable_steps=60, decay_type=name
            ),
            0.3,
            130,
        )
        schedule = WarmupStableDecay(0.3, 100, warmup=0, decay=40, shape=shape)
        assert ours(schedule, 130) == pytest.approx(expected, abs=1e-12), shape
    assert ours(WarmupStableDecay(0.3, 100, 10, 40), 60)[:60] == ours(Warmup(10, 0.3), 60)


def test_sums_products_and_means_by_hand():
    first, second = Linear(1.0, 0.0, 4), Step(0.5, 2, 0.5)
    lines = [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    steps = [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    pairs = list(zip(lines, steps, strict=True))
    assert ours(Sum((first, second)), 6) == [a + b for a, b in pairs]
    assert ours(Product((first, second)), 6) == [a * b for a, b in pairs]
    assert ours(Mean((first, second)), 6) == [(a + b) / 2 for a, b in pairs]
    assert ours(Sum((first, 2.0, halves)), 3) == [4.0, 3.25, 2.75]


def test_numbers_and_functions_inside_others():
    assert Warmup(2, 1) == Warmup(2, Constant(1.0))
    assert ours(Warmup(2, halves), 5) == [0.5, 1.0, 1.0, 0.5, 0.25]
    schedule = Sequential([(halves, 2), (0.1, 3)])
    assert schedule.parts == ((Function(halves), 2), (Constant(0.1), 3))
    assert ours(schedule, 4) == [1.0, 0.5, 0.1, 0.1]
    assert repr(schedule) == "Sequential(parts=((Function(halves), 2), (Constant(lr=0.1), 3)))"
    assert pickle.loads(pickle.dumps(schedule)) == schedule


# --- as values


SCHEDULES = [
    Constant(0.1),
    Linear(1.0, 0.0, 10),
    Cosine(0.1, 5, 0.01),
    CosineRestarts(0.1, 5, multiplier=2, end=0.01),
    Cyclic(0.1, 0.4, 5, 12, mode="triangular2"),
    Exponential(0.1, 0.99),
    InverseSqrt(0.1, 100),
    Mean((Linear(1.0, 0.0, 10), Constant(0.1))),
    MultiStep(0.1, (3, 7)),
    Noam(1.0, 10, 64),
    OneCycle(0.1, 20, three_phase=True),
    Polynomial(0.1, 10, power=2.0, end=0.01),
    Product((Cosine(0.1, 7), Step(1.0, 3))),
    Step(0.1, 3),
    Sum((Cosine(0.1, 7), Warmup(3, Constant(0.1)))),
    WarmupStableDecay(0.1, 20, 4, 5, shape="sqrt"),
    Warmup(3, Cosine(0.1, 7)),
    Warmup(3, Sequential(((Constant(0.1), 2), (Linear(0.1, 0.0, 5), 5)))),
    Warmup(3, Warmup(2, OneCycle(0.1, 9)), start=0.01),
    Sequential(((Warmup(2, Constant(0.5)), 4), (Cosine(0.5, 6), 6))),
]


class Experiment(burnt.Config):
    schedule: Schedule
    more: list[Schedule] = []
    named: dict[str, Schedule | None] = {}
    rate: float | Schedule = 0.1


class Saw(Schedule):
    height: float
    shift: float = -1.0

    def __call__(self, step: int) -> float:
        return self.height * (step % 3)


class HighSaw(Saw):
    def __call__(self, step: int) -> float:
        return 10 * super().__call__(step)


def test_the_table_has_every_schedule():
    of_functions = {"Function", "Multiplicative", "TorchSchedule"}
    names = {name for name in optim.__all__ if isinstance(getattr(optim, name), type(Schedule))}
    assert names - {"Schedule"} - of_functions == {type(schedule).__name__ for schedule in SCHEDULES}


@pytest.mark.parametrize("schedule", [*SCHEDULES, Saw(height=1.0)], ids=lambda s: type(s).__name__)
def test_as_a_value(schedule):
    assert type(schedule).from_json(schedule.to_json()) == schedule
    outer = Experiment(
        schedule=schedule,
        more=[Warmup(2, schedule), Product((schedule, 0.5))],
        named={"a": schedule, "b": None},
        rate=Sequential(((schedule, 5), (0.1, 1))),
    )
    again = Experiment.from_json(outer.to_json())
    assert again == outer
    assert type(again.more) is list
    assert ours(again.schedule, 30) == ours(schedule, 30)
    assert ours(again.more[0], 30) == ours(outer.more[0], 30)
    assert all(math.isfinite(rate) and rate >= 0 for rate in ours(schedule, 1000))
    assert schedule(10**9) >= 0  # far beyond the last step
    assert eval(repr(schedule), {**vars(optim), "Saw": Saw}) == schedule
    for twin in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule), schedule.replace()):
        assert twin == schedule
        assert hash(twin) == hash(schedule)


def test_a_union_of_some_schedules_takes_only_these():
    class Listed(burnt.Config):
        schedule: Cosine | Warmup | None = None

    listed = Listed(schedule=Warmup(3, Sequential([(0.1, 2), (OneCycle(0.1, 9), 1)])))
    assert Listed.from_json(listed.to_json()) == listed
    assert Listed.from_dict({"schedule": {"type": "Cosine", "lr": 1, "steps": 3}}).schedule == Cosine(1.0, 3)
    with pytest.raises(ConfigError) as caught:
        Listed.from_json('{"schedule": {"type": "Linear", "start": 1, "end": 0, "steps": 3}}')
    assert "expected  'Cosine' or 'Warmup'\n  found     'Linear'" in str(caught.value)


LAST = [
    (Linear(1.0, 0.2, 10), 10, 0.2),
    (Cosine(1.0, 10, 0.2), 10, 0.2),
    (Polynomial(1.0, 10, end=0.2), 10, 0.2),
    (OneCycle(1.0, 10, pct_start=1.0), 9, 1.0),
    (OneCycle(1.0, 10), 9, 1 / 25 / 1e4),
    (OneCycle(1.0, 10, three_phase=True), 9, 1 / 25 / 1e4),
    (WarmupStableDecay(1.0, 10, 2, 3, end=0.2), 10, 0.2),
    (WarmupStableDecay(1.0, 10, 2, 0, end=0.2), 10, 0.2),
    (MultiStep(1.0, (3, 5)), 5, 0.01),
]


@pytest.mark.parametrize(("schedule", "step", "rate"), LAST)
def test_after_the_last_step_it_stays(schedule, step, rate):
    assert schedule(step - 1) != pytest.approx(rate)
    assert ours(schedule, 3 * step)[step:] == pytest.approx([rate] * (2 * step))


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        (Constant(0.1), 0.1),
        (InverseSqrt(0.1, 5), 0.1),
        (Noam(1.0, 16, 16), 1 / 256),
        (OneCycle(0.1, 10, pct_start=0.1), 0.1),  # where torch divides by zero
        (OneCycle(0.1, 1), 0.1 / 25 / 1e4),
        (WarmupStableDecay(0.1, 10, 4, 2), 0.025),
        (WarmupStableDecay(0.1, 10, 0, 2), 0.1),
    ],
)
def test_at_step_0(schedule, rate):
    assert schedule(0) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("make", "where", "words"),
    [
        (lambda: Constant(-0.1), "lr", ["Constant", "finite rate of at least 0", "-0.1"]),
        (lambda: Constant(-1), "lr", ["Constant", "finite rate of at least 0", "-1"]),
        (lambda: Constant(float("nan")), "lr", ["Constant", "nan"]),
        (lambda: Linear(1.0, float("inf"), 3), "end", ["Linear", "inf"]),
        (lambda: Linear(-1.0, 0.0, 3), "start", ["Linear", "-1.0"]),
        (lambda: Linear(1.0, 0.0, 0), "steps", ["Linear", "at least 1", "0"]),
        (lambda: Cosine(0.1, steps=-3), "steps", ["Cosine", "at least 1", "-3"]),
        (lambda: Cosine(0.1, 3, end=-0.1), "end", ["Cosine", "-0.1"]),
        (lambda: Cosine("fast", steps=3), "lr", ["Cosine", "fast"]),
        (lambda: CosineRestarts(-0.1, 3), "lr", ["CosineRestarts", "-0.1"]),
        (lambda: CosineRestarts(0.1, 0), "steps", ["CosineRestarts", "at least 1"]),
        (lambda: CosineRestarts(0.1, 3, multiplier=0), "multiplier", ["CosineRestarts", "at least 1"]),
        (lambda: CosineRestarts(0.1, 3, end=-1.0), "end", ["CosineRestarts", "-1.0"]),
        (lambda: Cyclic(-0.1, 0.2), "base_lr", ["Cyclic", "-0.1"]),
        (lambda: Cyclic(0.1, float("inf")), "max_lr", ["Cyclic", "inf"]),
        (lambda: Cyclic(0.3, 0.2), "max_lr", ["Cyclic", "at least base_lr, 0.3", "0.2"]),
        (lambda: Cyclic(0.1, 0.2, 0), "steps_up", ["Cyclic", "at least 1"]),
        (lambda: Cyclic(0.1, 0.2, 3, 0), "steps_down", ["Cyclic", "at least 1"]),
        (lambda: Cyclic(0.1, 0.2, mode="square"), "mode", ["Cyclic", "'square'", "triangular2"]),
        (lambda: Cyclic(0.1, 0.2, gamma=-1.0), "gamma", ["Cyclic", "finite factor of at least 0", "-1.0"]),
        (lambda: Exponential(-0.1, 0.9), "lr", ["Exponential", "-0.1"]),
        (lambda: Exponential(0.1, -0.9), "gamma", ["Exponential", "factor", "-0.9"]),
        (lambda: InverseSqrt(-0.1, 9), "lr", ["InverseSqrt", "-0.1"]),
        (lambda: InverseSqrt(0.1, 0), "timescale", ["InverseSqrt", "at least 1"]),
        (lambda: MultiStep(-0.1, (3,)), "lr", ["MultiStep", "-0.1"]),
        (lambda: MultiStep(0.1, ()), "milestones", ["MultiStep", "ascending order", "()"]),
        (lambda: MultiStep(0.1, (3, 3)), "milestones", ["MultiStep", "ascending order", "(3, 3)"]),
        (lambda: MultiStep(0.1, (0, 3)), "milestones", ["MultiStep", "from 1"]),
        (lambda: MultiStep(0.1, (3,), gamma=-1.0), "gamma", ["MultiStep", "-1.0"]),
        (lambda: Multiplicative(-0.1, halves), "lr", ["Multiplicative", "-0.1"]),
        (lambda: Multiplicative("a", halves), "lr", ["Multiplicative", "'a' (str)"]),
        (lambda: Multiplicative(0.1, 0.5), "function", ["Multiplicative", "a function", "0.5"]),
        (lambda: Noam(-1.0), "factor", ["Noam", "factor", "-1.0"]),
        (lambda: Noam(1.0, warmup_steps=0), "warmup_steps", ["Noam", "at least 1"]),
        (lambda: Noam(1.0, model_size=0), "model_size", ["Noam", "at least 1"]),
        (lambda: OneCycle(-0.1, 9), "lr", ["OneCycle", "-0.1"]),
        (lambda: OneCycle(0.1, 0), "steps", ["OneCycle", "at least 1"]),
        (lambda: OneCycle(0.1, 9, pct_start=1.5), "pct_start", ["OneCycle", "from 0 to 1", "1.5"]),
        (
            lambda: OneCycle(0.1, 9, pct_start=0.6, three_phase=True),
            "pct_start",
            ["OneCycle", "from 0 to 0.5", "0.6"],
        ),
        (lambda: OneCycle(0.1, 9, anneal_strategy="exp"), "anneal_strategy", ["OneCycle", "'exp'", "linear"]),
        (lambda: OneCycle(0.1, 9, div_factor=0.0), "div_factor", ["OneCycle", "above 0"]),
        (lambda: OneCycle(0.1, 9, final_div_factor=-1.0), "final_div_factor", ["OneCycle", "above 0"]),
        (lambda: Polynomial(-0.1, 9), "lr", ["Polynomial", "-0.1"]),
        (lambda: Polynomial(0.1, 0), "steps", ["Polynomial", "at least 1"]),
        (lambda: Polynomial(0.1, 9, power=0.0), "power", ["Polynomial", "finite power above 0", "0.0"]),
        (lambda: Polynomial(0.1, 9, end=-1.0), "end", ["Polynomial", "-1.0"]),
        (lambda: Step(-0.1, 9), "lr", ["Step", "-0.1"]),
        (lambda: Step(0.1, 0), "every", ["Step", "at least 1"]),
        (lambda: Step(0.1, 9, gamma=float("nan")), "gamma", ["Step", "nan"]),
        (lambda: WarmupStableDecay(-0.1, 9, 2, 2), "lr", ["WarmupStableDecay", "-0.1"]),
        (lambda: WarmupStableDecay(0.1, 0, 0, 0), "steps", ["WarmupStableDecay", "at least 1"]),
        (lambda: WarmupStableDecay(0.1, 9, -1, 2), "warmup", ["WarmupStableDecay", "at least 0"]),
        (lambda: WarmupStableDecay(0.1, 9, 2, -1), "decay", ["WarmupStableDecay", "at least 0"]),
        (lambda: WarmupStableDecay(0.1, 9, 5, 5), "decay", ["WarmupStableDecay", "within 9 steps"]),
        (lambda: WarmupStableDecay(0.1, 9, 2, 2, end=-1.0), "end", ["WarmupStableDecay", "-1.0"]),
        (lambda: WarmupStableDecay(0.1, 9, 2, 2, shape="log"), "shape", ["WarmupStableDecay", "'log'"]),
        (lambda: Warmup(0, Constant(0.1)), "steps", ["Warmup", "at least 1"]),
        (lambda: Warmup(3, Constant(0.1), start=-1.0), "start", ["Warmup", "-1.0"]),
        (lambda: Warmup(3, "fast"), "then", ["Warmup cannot be built", "a schedule", "'fast' (str)"]),
        (lambda: Warmup(3, "1e-3"), "then", ["a number instead of text: 0.001"]),
        (
            lambda: Warmup(3, theirs.StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 3)),
            "then",
            ["torch.optim.lr_scheduler.StepLR", "burnt.optim.Step(lr, every, gamma)", "optim.TorchSchedule("],
        ),
        (lambda: Warmup(3, True), "then", ["Warmup cannot be built", "a schedule", "True (bool)"]),
        (lambda: Warmup(3, -0.1), "then.lr", ["Warmup cannot be built", "finite rate of at least 0", "-0.1"]),
        (
            lambda: Warmup(3, Cosine),
            "then",
            ["Warmup cannot be built", "a schedule", "burnt.optim.Cosine(lr, steps"],
        ),
        (lambda: Sequential(()), "parts", ["Sequential", "at least one", "()"]),
        (lambda: Sequential(((Constant(0.1), 0),)), "parts", ["Sequential", "at least 1 step"]),
        (lambda: Sequential((Constant(0.1), 3)), "parts[0]", ["Sequential", "Constant(lr=0.1)"]),
        (lambda: Sequential(((Constant(0.1), 2.5),)), "parts[0][1]", ["Sequential", "int", "2.5"]),
        (lambda: Sum(()), "parts", ["Sum", "at least one schedule", "()"]),
        (lambda: Product(0.1), "parts", ["Product", "0.1"]),
        (lambda: Mean((0.1, "fast")), "parts[1]", ["Mean", "'fast'"]),
        (lambda: Function(0.1), "function", ["Function", "a function of the finished steps", "0.1"]),
        (lambda: TorchSchedule(theirs.StepLR, 0.1), "make", ["TorchSchedule", "step_size"]),
        (lambda: TorchSchedule(lambda o: theirs.ExponentialLR(o, 0.9), "a"), "lr", ["'a' (str)"]),
        (lambda: TorchSchedule(0.1, 0.1), "make", ["TorchSchedule", "a function"]),
        (lambda: TorchSchedule(lambda o: None, 0.1), "make", ["a scheduler of the optimizer", "None"]),
        (lambda: TorchSchedule(theirs.ReduceLROnPlateau, 0.1), "make", ["burnt.train.Plateau"]),
        (lambda: TorchSchedule(lambda o: theirs.ExponentialLR(o, 0.9), -0.1), "lr", ["-0.1"]),
        (lambda: Cosine.from_json('{"type": "Cosine", "lr": 0.1, "steps": 0}'), "steps", ["at least 1"]),
    ],
)
def test_values_that_cannot_be(make, where, words):
    with raises(ConfigError, f"in        {where}\n", *words):
        make()


def test_every_field_of_a_schedule_has_its_error():
    # In the table above, by the names it uses: a new field needs a line there.
    made = {}
    for mark in test_values_that_cannot_be.pytestmark:
        if mark.name == "parametrize":
            for make, where, _ in mark.args[1]:
                made.setdefault(make.__code__.co_names[0], set()).add(
                    where.partition("[")[0].partition(".")[0]
                )
    # Checked by its type alone.
    made["OneCycle"].add("three_phase")
    for name in optim.__all__:
        cls = getattr(optim, name)
        if isinstance(cls, type) and issubclass(cls, Schedule) and cls is not Schedule:
            assert set(cls.__struct_fields__) <= made[name], name


# --- in JSON, by the tag


@pytest.mark.parametrize(
    ("document", "where", "words"),
    [
        ({}, "then", ["Schedule", "nothing"]),
        ({"then": {}}, "then.type", ["'Constant' or 'Function' or", "'Saw'", "nothing"]),
        (
            {"then": {"type": "Cosin", "lr": 0.1}},
            "then.type",
            ["'Cosin'", "did you mean 'Cosine'?", "'HighSaw'"],
        ),
        (
            {"then": {"type": "Cosine", "lr": 0.1, "step": 3}},
            "then.step",
            ["an unknown key", "did you mean 'steps'? Known: lr, steps, end", "then.steps: nothing"],
        ),
        ({"then": {"type": "Cosine", "lr": "a", "steps": 3}}, "then.lr", ["float", "'a' (str)"]),
        ({"then": {"type": "Cosine", "lr": 0.1, "steps": 0}}, "then.steps", ["at least 1", "0"]),
        ({"then": {"type": "Schedule"}}, "then.type", ["'Schedule'", "'Cosine' or"]),
        ({"then": "Cosine"}, "then", ["a schedule", "'Cosine' (str)", "burnt.optim.Cosine(lr"]),
        ({"then": None}, "then", ["a schedule", "None"]),
        (
            {"then": {"type": "Sequential", "parts": [[{"type": "Saw", "high": 1}, 3]]}},
            "then.parts[0][0].high",
            ["an unknown key", "did you mean 'height'?"],
        ),
        (
            {"then": {"type": "Sequential", "parts": [[{"type": "Saw", "height": 1}]]}},
            "then.parts[0]",
            ["tuple[Schedule, int]"],
        ),
        (
            {"then": {"type": "Sequential", "parts": [[0.1, 3], [{"type": "Constant", "lr": -1}, 3]]}},
            "then.parts[1][0].lr",
            ["finite rate of at least 0"],
        ),
        ({"then": {"type": "Function", "function": "math.sin"}}, "then.function", ["math.sin"]),
        ({"type": "Cosine", "then": 0.1}, "type", ["Warmup", "'Cosine'"]),
    ],
)
def test_json_that_is_no_schedule(document, where, words):
    with raises(ConfigError, f"in        {where}\n", *words, match="^Warmup cannot be read"):
        Warmup.from_dict({"type": "Warmup", "steps": 3, **document})
    if where.startswith("then"):
        with raises(ConfigError, f"in        schedule.{where}\n"):
            Experiment.from_dict({"schedule": {"type": "Warmup", "steps": 3, **document}})


def test_a_number_in_json_is_constant():
    assert Warmup.from_json('{"steps": 3, "then": 0.1}') == Warmup(3, 0.1)


def test_from_the_command_line():
    made = Experiment.from_assignments(["schedule.type=Cosine", "schedule.lr=0.1", "schedule.steps=9"])
    assert made.schedule == Cosine(0.1, 9)
    assert made.override(["schedule.steps=12"]).schedule == Cosine(0.1, 12)
    assert made.override(["schedule=1e-3"]).schedule == Constant(1e-3)
    assert made.override(['schedule={"type": "Saw", "height": 2}']).schedule == Saw(height=2.0)
    with pytest.raises(ConfigError, match="schedule") as caught:
        made.override(["schedule=fast"])
    assert "'fast' (str)" in str(caught.value)


@pytest.mark.parametrize(
    "schedule",
    [
        Function(halves),
        Warmup(3, halves),
        Multiplicative(0.1, halves),
        Sequential(((TorchSchedule(lambda o: theirs.ExponentialLR(o, 0.9), 0.1), 3),)),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_a_function_cannot_be_saved(schedule):
    name = type(schedule).__name__
    with raises(ConfigError, f"{name} cannot be saved as JSON", "a function", "of burnt.optim.Schedule"):
        schedule.to_json()
    assert " at 0x" not in repr(schedule)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_of_schedules_with_computed_rates(copied):
    for schedule in (Multiplicative(0.1, halves), TorchSchedule(lambda o: theirs.ExponentialLR(o, 0.9), 0.1)):
        rates = ours(schedule, 5)
        assert ours(copied(schedule), 8)[:5] == rates


def test_a_default_that_cannot_be_saved_is_named():
    class Run(burnt.Config):
        schedule: Schedule = Function(halves)

    assert Run.from_json("{}").schedule(0) == halves(0)
    with pytest.raises(ConfigError) as caught:
        Run.from_assignments([])
    assert str(caught.value).startswith("the default of Run.schedule cannot be saved as JSON")


def test_two_schedules_of_one_name(monkeypatch):
    namespace = {"__module__": "elsewhere", "__qualname__": "Saw", "__annotations__": {}}
    other = type(Schedule)("Saw", (Schedule,), namespace)
    with pytest.raises(ConfigError) as caught:
        Warmup.from_json('{"steps": 3, "then": {"type": "Saw", "height": 1}}')
    assert "two Configs have the same tag" in str(caught.value)
    assert f"{Saw.__module__}.Saw and elsewhere.Saw" in str(caught.value)
    # Defined again, as by running a cell of a notebook again, the newest counts.
    namespace = {"__module__": __name__, "__qualname__": "Twice", "__call__": lambda self, step: 1.0}
    first, second = (type(Schedule)("Twice", (Schedule,), dict(namespace)) for _ in range(2))
    assert type(Experiment.from_dict({"schedule": {"type": "Twice"}}).schedule) is second is not first
    assert issubclass(other, Schedule)  # still alive above


def test_a_schedule_that_says_nothing():
    class Mine(Schedule):
        pass

    with pytest.raises(NotImplementedError, match="Mine does not implement"):
        Mine()(0)


# --- torch's schedulers


def test_a_torch_scheduler_that_ends_says_so():
    schedule = TorchSchedule(lambda optimizer: theirs.OneCycleLR(optimizer, 0.1, total_steps=5), lr=0.1)
    assert len(ours(schedule, 6)) == 6
    with pytest.raises(OptimError) as caught:
        schedule(6)
    assert "OneCycleLR has no learning rate for step 6" in str(caught.value)
    assert "as many steps as the training has" in str(caught.value)


def test_a_torch_scheduler_of_another_optimizer_is_refused():
    other = torch.optim.SGD([torch.zeros(1)], 0.1)
    with pytest.raises(ConfigError, match="TorchSchedule cannot be built") as caught:
        TorchSchedule(lambda optimizer: theirs.ExponentialLR(other, 0.9), 0.1)
    assert "a scheduler of the optimizer that it is given" in str(caught.value)


def test_torch_schedules_are_parts_of_others():
    schedule = Warmup(2, TorchSchedule(lambda optimizer: theirs.ExponentialLR(optimizer, 0.5), lr=1.0))
    assert ours(schedule, 5) == [0.5, 1.0, 1.0, 0.5, 0.25]
    assert repr(schedule).startswith("Warmup(steps=2, then=TorchSchedule(test_torch_schedules_are_parts")


# --- drawings


def test_the_pictures_of_the_docs_are_those_of_the_schedules():
    root = Path(__file__).parents[2]
    pictures = runpy.run_path(str(root / "scripts" / "schedules"))["pictures"]()
    assert pictures.keys() == {path.name for path in (root / "docs" / "images").glob("schedule-*.svg")}
    for name, svg in pictures.items():
        assert (root / "docs" / "images" / name).read_text() == svg, f"{name}: run scripts/schedules"
    page = (root / "docs" / "optimizers.md").read_text()
    assert all(f"(images/{name})" in page for name in pictures)
    # A row for each: those of functions have no picture.
    assert {f"| `{name}" for name in optim.__all__ if isinstance(getattr(optim, name), type(Schedule))} <= {
        line.partition("(")[0] for line in page.splitlines()
    } | {"| `Schedule"}


def test_a_drawing_shows_the_rates():
    drawing = optim.plot(Linear(1.0, 0.0, 100), 100)
    assert drawing.lines == [("Linear(start=1.0, end=0.0, steps=100)", list(range(101)),
                              ours(Linear(1.0, 0.0, 100), 101))]  # fmt: skip
    several = optim.plot([0.1, wave, Cosine(0.1, 5)], 5)
    assert [line.name for line in several.lines] == ["0.1", "wave", "Cosine(lr=0.1, steps=5, end=0.0)"]
    assert [line.name for line in optim.plot({"a": 0.1, "b": wave}, 5).lines] == ["a", "b"]
    twice = optim.plot([lambda step: 0.1, lambda step: 0.2], 1)
    assert [line.ys for line in twice.lines] == [[0.1, 0.1], [0.2, 0.2]]
    long = optim.plot(Constant(0.1), 10**6).lines[0]
    assert (len(long.xs), long.xs[0], long.xs[-1]) == (2001, 0, 10**6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optim.plot(0.1, 0), ["in        steps", "at least 1"]),
        (lambda: optim.plot([], 9), ["no schedule to draw"]),
        (lambda: optim.plot("fast", 9), ["not a schedule to draw", "'f'"]),
        (lambda: optim.plot({"a": None}, 9), ["not a schedule to draw", "in        a", "None"]),
    ],
)
def test_what_cannot_be_drawn(call, words):
    with raises(OptimError, *words):
        call()
