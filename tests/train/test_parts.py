"""Durations, early stopping, keepers, random states and checkpoints, each on its own."""

import functools
import json
import math
import os
import pathlib
import random
import shutil
import signal

import numpy as np
import pytest
import torch
from torch import nn

import burnt
from burnt import optim
from burnt.errors import ArgumentError, CheckpointError, ConfigError, MetricError
from burnt.train import (
    Checkpoints,
    Duration,
    EarlyStopping,
    KeepBest,
    KeepLast,
    Plateau,
    Position,
    Saved,
    TrainingState,
)
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.control.end_reason import Interruption
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss
from burnt.train.metrics.monitored_metric import Monitored
from burnt.train.step import StepOutput
from tests.train.cases import refused

# durations


@pytest.mark.parametrize(
    ("text", "count", "unit", "shown"),
    [
        ("10 epochs", 10, "epochs", "10 epochs"),
        ("1 epoch", 1, "epochs", "1 epoch"),
        (" 500steps ", 500, "steps", "500 steps"),
        ("1_000 steps", 1000, "steps", "1000 steps"),
        (Duration(3, "steps"), 3, "steps", "3 steps"),
    ],
)
def test_durations(text, count, unit, shown):
    duration = Duration.parse(text)
    assert (duration.count, duration.unit, str(duration)) == (count, unit, shown)


@pytest.mark.parametrize(
    "text",
    ["10", "0 epochs", "-1 epochs", "1.5 epochs", "2 weeks", "", "epochs", 10, None, "0 s", "2 ms", "2 h or",
     "or 2 h", "2 h and 3 epochs", "1:30:00"],
)  # fmt: skip
def test_what_is_no_duration(text):
    with pytest.raises(ConfigError) as caught:
        Duration.parse(text, "checkpoint_every")
    assert str(caught.value) == (
        "a duration needs a number and a unit\n"
        "  in        checkpoint_every\n"
        '  expected  such as "10 epochs", "500 steps" or "2 h"\n'
        f"  found     {text!r}"
        + (f'\n  hint      did you mean "{text} epochs" or "{text} steps"?' if isinstance(text, int) else "")
    )


def test_what_is_due_when():
    epochs, steps = Duration(2, "epochs"), Duration(3, "steps")
    assert [n for n in range(7) if steps.due(Position(step=n), epoch_ended=False)] == [3, 6]
    assert not epochs.due(Position(epoch=2), epoch_ended=False)
    assert [n for n in (1, 2, 3, 4) if epochs.due(Position(epoch=n), epoch_ended=True)] == [2, 4]
    assert [steps.over(Position(step=n, epoch=9)) for n in (2, 3, 4)] == [False, True, True]
    assert [epochs.over(Position(step=9, epoch=n)) for n in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("duration", "at", "batches", "last"),
    [
        ("2 epochs", Position(), 7, 14),
        ("2 epochs", Position(10, 1, 3), 7, 14),
        ("2 epochs", Position(14, 2, 0), 7, 14),
        ("2 epochs", Position(), None, None),
        ("3 steps", Position(), 7, 3),
        ("3 steps", Position(2, 0, 2), None, 3),
        # The first epochs of a resumed run had another batch size; a finished run was resumed.
        ("20 epochs", Position(130, 10, 0), 2, 150),
        ("2 epochs", Position(130, 10, 0), 2, 130),
        ("3 steps", Position(130, 10, 0), 2, 130),
    ],
)
def test_the_last_step_of_a_duration(duration, at, batches, last):
    assert Duration.parse(duration).last_step(at, batches) == last


def test_the_epoch_of_a_position():
    shown = [Position(0, 0, 0), Position(3, 0, 3), Position(5, 1, 0), Position(6, 1, 1)]
    assert [position.current_epoch for position in shown] == [1, 1, 1, 2]


# stopping


def stops(stopping, values) -> list[bool]:
    return [stopping.update(value, Position(step=10 * i, epoch=i)) for i, value in enumerate(values, 1)]


def test_early_stopping_waits_for_its_patience():
    assert stops(EarlyStopping(Loss(), "2 epochs"), [5, 4, 4, 4]) == [False, False, False, True]
    assert stops(EarlyStopping(Accuracy(), "1 epoch"), [0.5, 0.6, 0.6]) == [False, False, True]
    assert stops(EarlyStopping(Loss(), "25 steps"), [5, 6, 6, 6]) == [False, False, False, True]
    assert stops(EarlyStopping(Loss(), "1 epoch", min_delta=0.5), [5, 4.6, 4.4]) == [False, True, False]


def test_nan_is_never_better_and_anything_is_better_than_nan():
    nan = math.nan
    stopping = EarlyStopping(Loss(), "3 epochs")
    assert stops(stopping, [nan, 5, nan, nan, nan]) == [False, False, False, False, True]
    assert (stopping.best, stopping.best_at) == (5, 2)
    assert stops(EarlyStopping(Loss(), "2 epochs"), [nan, nan]) == [False, True]
    assert not Monitored(Loss(), None, "KeepBest").is_better(nan, nan)


# plateau


@pytest.mark.parametrize("seed", range(12))
def test_plateau_is_torchs(seed):
    generator = random.Random(seed)
    metric = generator.choice([Loss(), Accuracy()])
    values = [generator.choice([generator.random(), 0.5, math.nan, math.inf, 0.0]) for _ in range(200)]
    patience, cooldown = generator.randrange(5), generator.randrange(4)
    shared = {
        "factor": generator.choice([0.1, 0.5]),
        "threshold": generator.choice([0.0, 1e-4, 0.2]),
        "threshold_mode": generator.choice(["rel", "abs"]),
        "min_lr": generator.choice([0.0, 1e-3]),
    }
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, "max" if metric.higher_is_better else "min", patience=patience, cooldown=cooldown,
        eps=0.0, **shared,
    )  # fmt: skip
    counted = Plateau(0.3, metric, patience + 1, cooldown=cooldown, **shared)
    by_epochs = Plateau(0.3, metric, f"{patience + 1} epochs", cooldown=cooldown, **shared)
    by_steps = Plateau(0.3, metric, f"{10 * (patience + 1)} steps", cooldown=cooldown, **shared)
    for i, value in enumerate(values, 1):
        before = optimizer.param_groups[0]["lr"]
        theirs.step(value)
        after = optimizer.param_groups[0]["lr"]
        for ours in (counted, by_epochs, by_steps):
            assert ours.update(value, Position(step=10 * i, epoch=i)) == (after != before), i
            assert ours(10 * i) == pytest.approx(after, rel=1e-12), i
    assert 0 < optimizer.param_groups[0]["lr"] < 0.3


def test_plateau_scales_a_schedule_and_stops_at_its_lowest_rate():
    plateau = Plateau(optim.Warmup(10, optim.Linear(1.0, 0.0, 100)), Loss(), 1, factor=0.5, min_lr=0.2)
    assert plateau(0) == 0.1  # nothing was reduced yet: the schedule alone holds
    stops(plateau, [1.0, 1.0])
    assert plateau.scale == 0.5
    assert [plateau(step) for step in (0, 9, 10, 30)] == [0.1, 0.5, 0.5, 0.4]
    assert plateau(85) == 0.2  # 0.25 * 0.5 is below min_lr
    assert plateau(100) == pytest.approx(0.1)  # the schedule itself is below it


def test_plateau_of_one_metric_value_per_step():
    plateau = Plateau(1.0, Loss(), 2)
    values = [1.0, 1.0, 1.0]
    assert [plateau.update(value, Position(step=5, epoch=1)) for value in values] == [False] * 3
    assert [plateau.update(value, Position(step=6 + i)) for i, value in enumerate(values)] == [
        False, True, False,
    ]  # fmt: skip


def test_plateau_of_negative_values():
    # A loss that falls below 0: a worse value is not an improvement, whatever the relative threshold.
    assert stops(Plateau(1.0, Loss(), 1, threshold=0.1), [-1.0, -0.95, -1.05, -1.2]) == [
        False, True, True, False,
    ]  # fmt: skip


def test_plateau_cools_down_in_its_own_unit():
    plateau = Plateau(1.0, Loss(), "1 epoch", cooldown="30 steps")
    assert stops(plateau, [1.0] * 9) == [False, True, False, False, False, True, False, False, False]


def test_plateau_goes_on_from_its_state():
    values = [5.0, 6.0, 4.0, 4.5, math.nan, 4.1, 4.2, 4.3, 4.4, 4.5, 4.6]
    for patience, cooldown in ((2, 1), ("2 epochs", "15 steps")):
        make = functools.partial(Plateau, 0.1, Loss(), patience, cooldown=cooldown)
        whole = make()
        expected = stops(whole, values)
        assert sum(expected) >= 2
        for cut in range(len(values)):
            first, second = make(), make()
            stops(first, values[:cut])
            second.load_state(json.loads(json.dumps(first.state())))
            rest = [
                second.update(v, Position(step=10 * i, epoch=i)) for i, v in enumerate(values[cut:], cut + 1)
            ]
            assert rest == expected[cut:]
            assert (second.state(), second(7)) == (whole.state(), whole(7))
    whole.reset()
    assert (whole.state(), whole(7)) == (make().state(), 0.1)


def test_plateau_as_text():
    assert repr(Plateau(optim.Cosine(0.1, 9), Loss(), "2 epochs")) == (
        "Plateau(Cosine(lr=0.1, steps=9, end=0.0), 'valid/loss', patience='2 epochs', factor=0.1, "
        "threshold=0.0001, threshold_mode='rel', cooldown='0 validations', min_lr=0.0)"
    )


@pytest.mark.parametrize(
    ("arguments", "where", "words"),
    [
        ({"schedule": "fast"}, "schedule", ["a number, such as 1e-3, a schedule", "'fast'"]),
        ({"schedule": -0.1}, "lr", ["finite rate of at least 0", "-0.1"]),
        ({"patience": 0}, "patience", ["at least 1", "0"]),
        ({"patience": "soon"}, "patience", ["10 epochs", "'soon'"]),
        ({"cooldown": -1}, "cooldown", ["at least 0", "-1"]),
        ({"cooldown": "1 lap"}, "cooldown", ["'1 lap'"]),
        ({"factor": 1.0}, "factor", ["above 0 and below 1", "1.0"]),
        ({"factor": 0.0}, "factor", ["above 0 and below 1", "0.0"]),
        ({"threshold": -1.0}, "threshold", ["at least 0", "-1.0"]),
        ({"threshold_mode": "percent"}, "threshold_mode", ["'rel' or 'abs'", "'percent'"]),
        ({"min_lr": math.nan}, "min_lr", ["finite rate", "nan"]),
    ],
)
def test_what_is_no_plateau(arguments, where, words):
    with pytest.raises(ConfigError) as caught:
        Plateau(**{"schedule": 0.1, "metric": Loss(), "patience": 3, **arguments})
    message = str(caught.value)
    assert f"in        {where}\n" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("outer", [optim.Warmup, optim.Multiplicative])
def test_plateau_inside_a_schedule_is_refused(outer):
    with pytest.raises(ConfigError, match=f"{outer.__name__} cannot be built") as caught:
        outer(3, Plateau(0.1, Loss(), 3))
    assert "wrap the other way round, as in Plateau(Warmup(...))" in str(caught.value)


def test_plateau_needs_its_metric_in_a_custom_loop():
    with pytest.raises(MetricError, match="Plateau has only the name of its metric"):
        Plateau(0.1, "loss", 3).update(1.0, Position())
    with refused(ArgumentError, "mode", "the metric defines which values are better"):
        Plateau(0.1, "loss", 3, mode="min")


# keepers


def saved(path="x", step=0, **values) -> Saved:
    return Saved(path, Position(step=step), {name.replace("_", "/"): value for name, value in values.items()})


def test_keepers_choose():
    losses = [3.0, math.nan, 1.0, 2.0, 1.0]
    all_saved = [saved(step=i, valid_loss=loss) for i, loss in enumerate(losses)] + [saved(step=9)]
    assert [s.position.step for s in KeepLast(2).keep(all_saved)] == [4, 9]
    assert [s.position.step for s in KeepBest(Loss(), count=3).keep(all_saved)] == [2, 4, 3]
    assert [s.position.step for s in KeepBest(Loss(), count=9).keep(all_saved)] == [2, 4, 3, 0]
    best = KeepBest(Accuracy(), split="train").keep([saved(step=i, train_accuracy=i / 10) for i in range(3)])
    assert [s.position.step for s in best] == [2]


class Net(burnt.Module):
    layer: nn.Linear

    def forward(self, x):
        return self.layer(x)


def net() -> Net:
    return Net(nn.Linear(2, 2))


def save(checkpoints: Checkpoints, model: nn.Module, step: int, loss: float = 1.0, **document) -> Saved:
    metrics = [Loss()]
    metrics[0].update(StepOutput(torch.tensor(loss), count=4))
    record = optim.AdamW().into_record()
    position = Position(step, 0, step)
    rng = RandomStates.capture()
    return checkpoints.save(
        TrainingState(model, record, metrics, position, {"valid/loss": loss}, rng, document=document)
    )


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_no_keeper_wants_goes_and_the_newest_always_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path / "deep" / "checkpoints", [KeepBest(Loss())])
    model = net()
    for step, loss in enumerate([5.0, 3.0, math.nan, 4.0], 1):
        save(checkpoints, model, step, loss)
    assert names(checkpoints.folder) == ["step-00000002", "step-00000004"]
    assert [s.values["valid/loss"] for s in checkpoints.saved()] == [3.0, 4.0]
    assert checkpoints.newest().name == "step-00000004"


def test_what_is_among_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, [KeepLast(9), KeepBest(Loss(), count=2)])
    for step, loss in enumerate([5.0, 3.0, math.nan], 1):
        save(checkpoints, net(), step, loss)
    for step, values, expected in [
        (4, {"valid/loss": 4.0}, True),
        (4, {"valid/loss": 6.0}, False),
        (4, {"valid/loss": math.nan}, False),
        (4, {"train/loss": 1.0}, False),
        (2, {"valid/loss": 6.0}, True),  # it would replace the one of its own step
    ]:
        assert checkpoints.is_best(Position(step), values) == expected, (step, values)


def test_many_steps_are_still_in_order(tmp_path):
    checkpoints = Checkpoints(tmp_path, [KeepLast(3)])
    for step in (99_999_999, 100_000_000, 100_000_001):
        save(checkpoints, net(), step)
    assert checkpoints.newest().name == "step-100000001"
    assert [s.position.step for s in checkpoints.saved()] == [99_999_999, 100_000_000, 100_000_001]


def test_a_checkpoint_brings_everything_back(tmp_path):
    model, other = net(), net()
    checkpoints = Checkpoints(tmp_path)
    earlier = RandomStates.capture()
    torch.rand(3)
    random.random()
    metric, again = Loss(), Loss()
    metric.update(StepOutput(torch.tensor(0.1), count=3))
    optimizer = optim.AdamW()
    optimizer.step(0.1, model, {"layer.bias": torch.ones(2)})
    at = Position(7, 1, 2)
    state, document = optimizer.into_record(), {"mine": [1, 2]}
    training = TrainingState(model, state, [metric], at, {"valid/loss": 0.5}, earlier, document=document)
    returned = checkpoints.save(training)
    drawn = torch.rand(2).tolist(), random.random(), np.random.rand()
    at.step = 8
    assert returned.position == Position(7, 1, 2)
    loaded = checkpoints.load(checkpoints.newest(), other, [again])
    assert torch.equal(other.layer.weight, model.layer.weight)
    assert (again.count, again.total.item(), again.total.dtype) == (3, metric.total.item(), torch.float64)
    assert loaded.position == Position(7, 1, 2)
    assert loaded.document["mine"] == [1, 2]
    assert loaded.optimizer.tensors.keys() == {f"layer.bias/{n}" for n in ("step", "exp_avg", "exp_avg_sq")}
    assert torch.equal(loaded.epoch_rng.tensors["torch"], earlier.tensors["torch"])
    assert loaded.epoch_rng.document == earlier.document
    loaded.rng.restore()
    assert (torch.rand(2).tolist(), random.random(), np.random.rand()) == drawn


def test_a_checkpoint_is_a_model_file(tmp_path):
    class NetConfig(burnt.Config):
        size: int = 2

        def init(self) -> Net:
            return Net(nn.Linear(self.size, 2))

    model = NetConfig(size=5).init()
    where = save(Checkpoints(tmp_path), model, 1).path
    again = Net.load(where / "model.safetensors", config=NetConfig(size=5))
    assert torch.equal(again.layer.weight, model.layer.weight)


@pytest.mark.sample
@pytest.mark.parametrize("file", ["model.safetensors", "training.safetensors"])
@pytest.mark.parametrize("keep", [0, 3, 8, 100, -1])
def test_a_truncated_checkpoint_says_so_and_the_older_one_works(tmp_path, file, keep):
    model = net()
    checkpoints = Checkpoints(tmp_path, [KeepLast(2)])
    save(checkpoints, model, 1)
    newest = save(checkpoints, model, 2).path
    whole = (newest / file).read_bytes()
    (newest / file).write_bytes(whole[:keep])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(checkpoints.newest(), model, [Loss()])
    message = str(caught.value)
    assert message.startswith("the checkpoint step-00000002 cannot be used: ")
    assert str(newest / file) in message
    if keep in (100, -1):
        assert f"found     {len(whole[:keep])} bytes" in message
    if keep == -1:
        assert f"expected  {len(whole)} bytes" in message
    assert f"hint      remove the folder {newest} to resume from step-00000001" in message
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # Nothing else is harmed by it: another may be saved, and the older one is good.
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    assert checkpoints.load(checkpoints.newest(), model, [Loss()]).position.step == 1


def test_the_size_of_a_checkpoint_whose_files_vanish(tmp_path):
    saved = save(Checkpoints(tmp_path), net(), 1)
    size = saved.bytes()
    assert size == sum(file.stat().st_size for file in saved.path.iterdir()) > 0
    (saved.path / "gone").symlink_to("nowhere")  # is listed, and its stat fails
    assert saved.bytes() == size
    shutil.rmtree(saved.path)
    assert saved.bytes() == 0


def test_a_lost_file_and_the_only_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    newest = save(checkpoints, net(), 1).path
    (newest / "model.safetensors").unlink()
    with refused(
        CheckpointError, "model.safetensors", "to resume from the beginning (there is no other checkpoint)"
    ):
        checkpoints.load(newest, net(), [])


def test_a_damaged_checkpoint_does_not_keep_the_next_from_being_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path, [KeepLast(1)])
    damaged = save(checkpoints, net(), 1).path
    (damaged / "training.safetensors").write_bytes(b"")
    save(checkpoints, net(), 2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_checkpoint_of_another_model(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    newest = save(checkpoints, net(), 1).path
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(newest, Net(nn.Linear(3, 2)), [])
    message = str(caught.value)
    assert message.startswith("the checkpoint step-00000001 does not fit the model: ")
    assert "layer.weight: (2, 3) in the module, (2, 2) in the record" in message
    assert "build the same model as in the original run" in message


def test_a_checkpoint_of_a_newer_format_and_another_file(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    model = net()
    newest = save(checkpoints, model, 1, format=99).path
    with refused(CheckpointError, "newer format", "format 99"):
        checkpoints.load(newest, model, [])
    model.save(newest / "training.safetensors")
    with pytest.raises(CheckpointError, match=r"training\.safetensors is not a checkpoint"):
        checkpoints.load(newest, model, [])


def test_a_file_that_grows_too_large_is_an_os_error(tmp_path):
    import resource

    checkpoints = Checkpoints(tmp_path, [KeepLast(1)])
    save(checkpoints, net(), 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"(?i)file too large"):
            save(checkpoints, Net(nn.Linear(400, 400)), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-00000001"]


def test_what_a_killed_save_left_is_swept_away_by_the_next(tmp_path):
    checkpoints = Checkpoints(tmp_path, [KeepLast(1)])
    (tmp_path / ".tmp-1-step-00000001").mkdir()
    (tmp_path / ".tmp-1-step-00000001" / "model.safetensors").write_bytes(b"half")
    assert checkpoints.newest() is None
    save(checkpoints, net(), 2)
    assert names(tmp_path) == ["step-00000002"]


def test_saving_the_same_step_again_replaces_it(tmp_path):
    checkpoints = Checkpoints(tmp_path, [KeepLast(3)])
    save(checkpoints, net(), 1, loss=1.0)
    save(checkpoints, net(), 1, loss=2.0)
    assert [s.values["valid/loss"] for s in checkpoints.saved()] == [2.0]
    assert names(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_stopped_while_a_step_is_saved_again_one_of_the_two_is_there(tmp_path, monkeypatch, at):
    """Ctrl-C, pressed twice, may come anywhere: here when a folder has been renamed or removed."""
    checkpoints = Checkpoints(tmp_path, [KeepLast(3)])
    save(checkpoints, net(), 1, loss=1.0)
    calls = []

    def interrupted(real):
        def call(*args, **kwargs):
            done = real(*args, **kwargs)
            calls.append(real)
            if len(calls) == at:
                raise KeyboardInterrupt
            return done

        return call

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", interrupted(pathlib.Path.rename))
        patch.setattr("shutil.rmtree", interrupted(shutil.rmtree))
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, net(), 1, loss=2.0)
    assert len(checkpoints.saved()) == 1
    save(checkpoints, net(), 1, loss=3.0)
    assert [s.values["valid/loss"] for s in checkpoints.saved()] == [3.0]
    assert names(tmp_path) == ["step-00000001"]


def test_a_signal_in_the_middle_of_a_print_is_still_taken():
    def announce(text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with Interruption(announce) as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.signal == signal.SIGINT


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_forked_workers_leave_ctrl_c_to_the_training_and_can_be_terminated(number, ends):
    with Interruption(lambda text: os._exit(9)):
        child = os.fork()
        if child == 0:
            signal.raise_signal(number)
            signal.raise_signal(number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (-number if ends else 0)


# random states and what is monitored


def test_random_states_come_back():
    random.gauss(0, 1)  # leaves a second number waiting in the generator
    np.random.randn()
    states = RandomStates.capture()

    def draw():
        drawn = random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand()
        return drawn, torch.rand(3).tolist()

    first = draw()
    draw()
    states.restore()
    assert draw() == first


def test_what_cannot_be_monitored():
    known, splits = [Loss(), Accuracy(), ConfusionMatrix(2)], ("train", "valid")
    monitored = Monitored("accuracy", None, "KeepBest")
    monitored.resolve(known, splits)
    assert monitored.metric is known[1]
    for metric, split, words in (
        ("acuracy", None, ["that the run does not have", "valid/acuracy", "did you mean 'accuracy'?"]),
        (Loss(name="xyz"), None, ["one of: loss, accuracy, confusion", "add it to metrics=[...]"]),
        ("loss", "test", ["a split that the run does not have", "one of: train, valid", "'test'"]),
        (
            "confusion",
            None,
            ["KeepBest cannot monitor confusion", "that does not define which value is better"],
        ),
    ):
        with refused(MetricError, *words):
            Monitored(metric, split, "KeepBest").resolve(known, splits)


def test_umask_and_owner_are_as_for_any_file(tmp_path):
    path = save(Checkpoints(tmp_path), net(), 1).path
    plain = tmp_path / "plain"
    plain.write_text("")
    assert os.stat(path / "model.safetensors").st_mode == os.stat(plain).st_mode
