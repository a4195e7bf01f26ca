"""The schedules, against torch's schedulers, as values and as JSON."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as theirs

import burnt
from burnt.errors import ConfigError
from burnt.optim import Constant, Cosine, Linear, Schedule, Sequential, Warmup

rates = st.floats(1e-6, 10.0)
counts = st.integers(1, 60)


def torch_rates(make, lr: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
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


SCHEDULES = [
    Constant(0.1),
    Linear(1.0, 0.0, 10),
    Cosine(0.1, 5, 0.01),
    Warmup(3, Cosine(0.1, 7)),
    Warmup(3, Sequential(((Constant(0.1), 2), (Linear(0.1, 0.0, 5), 5)))),
    Sequential(((Warmup(2, Constant(0.5)), 4), (Cosine(0.5, 6), 6))),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_through_json_alone_and_in_a_config(schedule):
    class Experiment(burnt.Config):
        schedule: Constant | Linear | Cosine | Sequential | Warmup

    assert type(schedule).from_json(schedule.to_json()) == schedule
    again = Experiment.from_json(Experiment(schedule=schedule).to_json()).schedule
    assert again == schedule
    assert ours(again, 30) == ours(schedule, 30)
    assert all(math.isfinite(rate) and rate >= 0 for rate in ours(schedule, 1000))


@pytest.mark.parametrize(
    ("make", "where", "words"),
    [
        (lambda: Constant(-0.1), "lr", ["Constant", "finite rate of at least 0", "-0.1"]),
        (lambda: Constant(-1), "lr", ["Constant", "finite rate of at least 0", "-1"]),
        (lambda: Constant(float("nan")), "lr", ["Constant", "nan"]),
        (lambda: Linear(1.0, float("inf"), 3), "end", ["Linear", "inf"]),
        (lambda: Linear(1.0, 0.0, 0), "steps", ["Linear", "at least 1", "0"]),
        (lambda: Cosine(0.1, steps=-3), "steps", ["Cosine", "at least 1", "-3"]),
        (lambda: Cosine("fast", steps=3), "lr", ["Cosine", "fast"]),
        (lambda: Warmup(0, Constant(0.1)), "steps", ["Warmup", "at least 1"]),
        (lambda: Warmup(3, Constant(0.1), start=-1.0), "start", ["Warmup", "-1.0"]),
        (lambda: Sequential(()), "parts", ["Sequential", "at least one", "()"]),
        (lambda: Sequential(((Constant(0.1), 0),)), "parts", ["Sequential", "at least 1 step"]),
        (lambda: Cosine.from_json('{"type": "Cosine", "lr": 0.1, "steps": 0}'), "steps", ["at least 1"]),
    ],
)
def test_values_that_cannot_be(make, where, words):
    with pytest.raises(ConfigError) as caught:
        make()
    message = str(caught.value)
    assert f"in        {where}" in message
    for word in words:
        assert word in message


def test_a_schedule_that_says_nothing():
    class Mine(Schedule):
        pass

    with pytest.raises(NotImplementedError, match="Mine does not implement"):
        Mine()(0)
