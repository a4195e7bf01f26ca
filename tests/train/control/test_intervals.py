"""Durations and intervals in seconds, and `Every`: with a clock that the test moves."""

import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import ConfigError
from burnt.store.control import send
from burnt.train import (
    Duration,
    EarlyStopping,
    Every,
    Interrupted,
    KeepBest,
    KeepLast,
    Learner,
    Position,
    RunReader,
    StepOutput,
    SupervisedTraining,
)
from burnt.train.checkpoints.checkpoint import Saved
from burnt.train.control import control
from tests.train.cases import AtStep, refused

STEP_SECONDS = 10.0


class Clock:
    """The trainings' clock: each training step takes 10 seconds, each validation batch 1."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.steps: list[float] = []

    def step(self, model: nn.Module, batch) -> StepOutput:
        loss = model(batch.x).square().mean()
        if not loss.is_meta:
            self.now += STEP_SECONDS if model.training else 1.0
            self.steps += [self.now] if model.training else []
        return StepOutput(loss, targets=batch.x)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()

    def sleep(seconds: float) -> None:  # only a paused training sleeps
        clock.now += 100.0
        send(clock.folder, "resume")

    monkeypatch.setattr(control, "time", SimpleNamespace(perf_counter=lambda: clock.now, sleep=sleep))
    return clock


def run(folder, clock: Clock, **settings):
    data = Loader(TensorDataset(x=torch.randn(12, 3)), 4)  # 3 steps an epoch
    learner = Learner(nn.Linear(3, 1), optim.Sgd(), 0.01, step=clock.step)
    defaults = {"monitor": "off", "device": "cpu", "check": False}
    return SupervisedTraining(folder, train=data, valid=data, **{**defaults, **settings}).run(learner)


def measured_at(folder) -> list[int]:
    with RunReader(folder) as reader:
        return list(reader.points("loss", "valid").steps)


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("45 s", 45, "45 s"),
        ("0.5 s", 0.5, "0.5 s"),
        ("90 min", 5400, "90 min"),
        ("2h", 7200, "2 h"),
        ("120 minutes", 7200, "2 h"),
        ("1.5 hours", 5400, "90 min"),
        ("1 day", 86400, "1 day"),
        ("48 h", 172800, "2 days"),
        ("90 seconds", 90, "90 s"),
    ],
)
def test_durations_by_time(text, seconds, shown):
    duration = Duration.parse(text)
    assert (duration.count, duration.unit, str(duration)) == (seconds, "seconds", shown)
    assert Duration.parse(str(duration)) == duration
    assert duration.last_step(Position(), 7) is None
    assert [duration.over(Position(seconds=s)) for s in (seconds - 0.1, seconds)] == [False, True]


def test_the_earlier_of_two_durations_counts():
    both = Duration.parse("2 epochs or 30 steps or 1 h")
    assert Duration(2, "epochs") | Duration(30, "steps") | Duration(3600, "seconds") == both
    assert (str(both), both.epochs, both.seconds) == ("2 epochs or 30 steps or 1 h", 2, 3600)
    assert Duration.parse("30 steps").epochs is None
    over = [both.over(p) for p in (Position(29, 1), Position(20, 2), Position(30, 1), Position(seconds=3600))]
    assert over == [False, True, True, True]
    assert (both.last_step(Position(), 7), both.last_step(Position(), 20)) == (14, 30)
    assert both.last_step(Position(), None) == 30
    assert both.due(Position(30, 1, 3), epoch_ended=False)
    assert both.due(Position(31, 1, 3, seconds=3601), epoch_ended=False, since=3599)
    assert not both.due(Position(31, 1, 3, seconds=3601), epoch_ended=False, since=3600)


@pytest.mark.parametrize("name", ["patience", "warmup"])
def test_a_patience_is_one_duration(name):
    with pytest.raises(ConfigError) as caught:
        EarlyStopping("loss", **{"patience": "1 epoch", name: "3 epochs or 2 h"})
    assert str(caught.value) == (
        "this setting takes one duration\n"
        f"  in        {name}\n"
        '  expected  such as "3 epochs", "500 steps" or "2 h"\n'
        "  found     3 epochs or 2 h"
    )


def test_a_time_that_is_over_ends_the_training_after_the_step(tmp_path, clock):
    result = run(tmp_path / "run", clock, duration="65 s", validate_every="9 epochs")
    # 10 s each: the seventh step is the first to end after 65 s; a validation follows.
    assert (result.reason, result.position.step, result.position.seconds) == ("finished", 7, 73.0)
    with RunReader(tmp_path / "run") as reader:
        progress = reader.progress()
    assert (progress.total_steps, progress.total_epochs) == (None, None)
    assert (progress.data["seconds"], progress.data["total_seconds"]) == (73.0, 65.0)
    steps = run(tmp_path / "other", clock, duration="2 epochs or 65 s", validate_every="9 epochs")
    assert steps.position.step == 6
    with RunReader(tmp_path / "other") as reader:
        assert (reader.progress().total_steps, reader.progress().total_epochs) == (6, 2)


def test_time_is_counted_over_resumes_and_without_pauses(tmp_path, clock):
    folder = clock.folder = tmp_path / "run"
    commands = AtStep({2: lambda _: send(folder, "pause"), 4: lambda _: send(folder, "stop")})
    settings = {"duration": "65 s", "validate_every": "9 epochs"}
    first = run(folder, clock, callbacks=[commands], **settings)
    assert (first.reason, first.position.step, first.position.seconds) == ("stopped", 4, 40.0)
    assert clock.now == 1140.0  # the pause took 100 s
    clock.now += 3600.0
    second = run(folder, clock, resume=True, **settings)
    assert (second.reason, second.position.step, second.position.seconds) == ("finished", 7, 73.0)


def test_intervals_in_seconds(tmp_path, clock):
    result = run(
        tmp_path / "run", clock, duration="12 steps", validate_every="25 s", checkpoint_every="35 s",
        checkpoints=[KeepLast(99)],
    )  # fmt: skip
    # A validation takes 3 s: after steps 3 (30 to 33 s), 5 (53 to 56 s), 7 (76 to 79 s), 10, 12.
    assert measured_at(tmp_path / "run") == [3, 5, 7, 10, 12]
    assert [saved.position.step for saved in result.checkpoints] == [4, 7, 10, 12]


def test_multiples_that_pass_in_a_validation_are_left_out(tmp_path, clock):
    run(tmp_path / "run", clock, duration="8 steps", validate_every="12 s")
    # The third step ends at 33 s and its validation at 36 s, so that the fourth one has passed no multiple.
    assert measured_at(tmp_path / "run") == [2, 3, 5, 6, 8]


@pytest.mark.full
def test_an_interval_goes_on_after_a_resume(tmp_path, clock):
    whole = tmp_path / "whole"
    settings = {"duration": "12 steps", "validate_every": "45 s", "checkpoint_every": "1 step"}
    run(whole, clock, **settings)
    folder = clock.folder = tmp_path / "run"
    run(folder, clock, callbacks=[AtStep({4: lambda _: send(folder, "stop")})], **settings)
    run(folder, clock, resume=True, **settings)
    assert measured_at(folder) == measured_at(whole) == [5, 9, 12]


def test_patience_in_seconds(tmp_path, clock):
    stopping = EarlyStopping("loss", patience="50 s", min_delta=100.0)
    result = run(tmp_path / "run", clock, duration="99 epochs", stopping=stopping)
    # The first value comes after 33 s; those of later validations after 66 and 99 s.
    assert (result.reason, result.position.step, stopping.waited) == ("stopped early", 9, 66.0)
    assert stopping.reason.endswith("for 50 s")


# Every


def at(step: int, epoch: int = 0, batch: int = 1, seconds: float = 0.0) -> Saved:
    return Saved(None, Position(step, epoch, batch, seconds=seconds), {})


@pytest.mark.parametrize(
    ("interval", "kept"),
    [
        ("4 steps", [4, 8]),
        ("1 epoch", [5]),
        ("2 epochs", []),
        ("10 s", [4, 8]),
        ("1 epoch or 8 steps", [5, 8]),
    ],
)
def test_every_keeps_the_checkpoints_at_its_multiples(interval, kept):
    saved = [
        at(0, 0, 0),
        at(3, seconds=9),
        at(4, seconds=11),
        at(5, 1, 0, seconds=12),
        at(8, 1, 3, seconds=20),
    ]
    keeper = Every(interval)
    assert [entry.position.step for entry in keeper.keep(saved)] == kept
    # What is left after the others are removed is kept again.
    assert [e.position.step for e in keeper.keep([e for e in saved if e.position.step in kept])] == kept


def test_every_saves_whatever_the_other_interval(tmp_path, clock, capsys):
    result = run(
        tmp_path / "run", clock, duration="4 epochs", checkpoint_every="9 epochs", monitor="plain",
        checkpoints=[KeepLast(1), Every("5 steps")], validate_every="99 epochs",
    )  # fmt: skip
    assert [saved.path.name for saved in result.checkpoints] == [
        "step-00000005", "step-00000010", "step-00000012",
    ]  # fmt: skip
    assert (
        "step-00000005 (every 5 steps), step-00000010 (every 5 steps), step-00000012 (newest)"
        in capsys.readouterr().out
    )


@pytest.mark.full
def test_every_by_time_and_by_epochs(tmp_path, clock):
    result = run(tmp_path / "time", clock, duration="12 steps", checkpoint_every="99 epochs",
                 checkpoints=[Every("35 s")], validate_every="99 epochs")  # fmt: skip
    assert [saved.position.step for saved in result.checkpoints] == [4, 7, 11, 12]
    result = run(tmp_path / "epochs", clock, duration="12 steps", checkpoint_every="1 step",
                 checkpoints=[Every("2 epochs")], validate_every="99 epochs")  # fmt: skip
    assert [saved.position.step for saved in result.checkpoints] == [6, 12]


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_keepers_keep_at_least_one(count):
    for build in (KeepLast, lambda count: KeepBest("loss", count=count)):
        with refused(ConfigError, "at least 1", "checkpoints=None saves none"):
            build(count)


def test_every_needs_an_interval():
    with pytest.raises(ConfigError, match="in        Every"):
        Every("500")


def test_an_interrupted_validation_by_time_is_repeated(tmp_path, clock):
    folder = tmp_path / "run"
    settings = {"duration": "9 steps", "validate_every": "25 s", "checkpoint_every": "99 epochs"}

    def stop_in_validation(model, batch):
        if not model.training:
            signal.raise_signal(signal.SIGINT)
        return clock.step(model, batch)

    data = Loader(TensorDataset(x=torch.randn(12, 3)), 4)
    with pytest.raises(Interrupted):
        SupervisedTraining(
            folder, train=data, valid=data, monitor="off", device="cpu", check=False, **settings
        ).run(
            Learner(nn.Linear(3, 1), optim.Sgd(), 0.01, step=clock.step, validation_step=stop_in_validation)
        )
    assert run(folder, clock, resume=True, **settings).position.step == 9
    assert measured_at(folder)[0] == 3
