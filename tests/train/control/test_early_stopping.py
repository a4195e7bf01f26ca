"""Early stopping: warm-up, bounds, and the best weights that a training returns."""

import math

import pytest
import torch
from torch import nn

from burnt import load, optim
from burnt.data import Loader, TensorDataset
from burnt.errors import BurntError, ConfigError
from burnt.record import Record
from burnt.train import (
    EarlyStopping,
    KeepBest,
    KeepLast,
    Learner,
    Position,
    RunReader,
    StepOutput,
    SupervisedTraining,
)
from burnt.train.metrics import Accuracy, Loss


def stops(stopping: EarlyStopping, values) -> list[bool]:
    return [stopping.update(value, Position(step=10 * i, epoch=i)) for i, value in enumerate(values, 1)]


def test_values_of_the_warm_up_are_ignored():
    stopping = EarlyStopping(Loss(), "2 epochs", warmup="3 epochs")
    assert stops(stopping, [0.1, 0.1, 0.1, 5, 4, 4, 4]) == [False] * 6 + [True]
    assert (stopping.best, stopping.best_at, stopping.waited) == (4, 5, 2)
    # In another unit; NaN after it counts from its end on.
    stopping = EarlyStopping(Loss(), "2 epochs", warmup="25 steps")
    assert stops(stopping, [0.1, 0.1, math.nan, math.nan]) == [False, False, False, True]


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"patience": "3 epochs"}, [5.0, 6.0, 4.0, 4.5, 4.2, 4.1]),
        ({"patience": "2 epochs", "warmup": "2 epochs"}, [0.1, 0.1, 5, 6, 6, 6]),
    ],
)
def test_it_goes_on_from_its_state(settings, values):
    whole = EarlyStopping(Loss(), **settings)
    expected = stops(whole, values)
    assert expected[-1]
    for cut in range(len(values)):
        first, second = (EarlyStopping(Loss(), **settings) for _ in range(2))
        stops(first, values[:cut])
        second.load_state(first.state())
        assert second.over == first.over
        rest = [second.update(v, Position(epoch=i)) for i, v in enumerate(values[cut:], cut + 1)]
        assert rest == expected[cut:]
        assert second.state() == whole.state()


def test_a_target_ends_the_training_at_once():
    stopping = EarlyStopping(Accuracy(), target=0.9)
    assert stops(stopping, [0.5, 0.89, 0.9]) == [False, False, True]
    assert stopping.reason == "valid/accuracy reached 0.9000, the target being 0.9000"
    assert stopping.left is None
    stopping = EarlyStopping(Loss(), "1 epoch", target=0.1, warmup="1 epoch")
    assert stops(stopping, [0.05, 0.2, 0.1]) == [False, False, True]
    assert stopping.reason.startswith("valid/loss reached 0.1")


def test_a_metric_that_diverges_ends_the_training_at_once():
    stopping = EarlyStopping(Loss(), "9 epochs", diverged=10.0)
    assert stops(stopping, [12.0, 10.0]) == [True, False]
    assert stops(stopping, [5.0, math.nan]) == [False, True]
    assert stopping.reason == "valid/loss is nan, worse than 10.0000"
    again = EarlyStopping(Loss(), "9 epochs", diverged=10.0)
    again.load_state(stopping.state())
    assert again.over
    assert stops(EarlyStopping(Accuracy(), diverged=0.1), [0.2, 0.05]) == [False, True]


@pytest.mark.parametrize(
    ("settings", "where", "expected", "found"),
    [
        ({}, "patience", "one or more of patience=, target= and diverged=", "none of them"),
        ({"patience": "1 epoch", "min_delta": -1.0}, "min_delta", "at least 0", "-1.0"),
        ({"target": math.nan}, "target", "a finite number", "nan"),
        ({"diverged": math.inf}, "diverged", "a finite number", "inf"),
    ],
)
def test_what_is_no_early_stopping(settings, where, expected, found):
    with pytest.raises(ConfigError) as caught:
        EarlyStopping("loss", **settings)
    assert str(caught.value) == (
        f"EarlyStopping cannot be built\n  in        {where}\n  expected  {expected}\n  found     {found}"
    )


# in a training


class Overshoot:
    """A model whose validation loss is best after two epochs: its weight goes from 0 to 1 and beyond."""

    def __init__(self, optimizer=None) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.optimizer = optimizer or optim.Sgd()

    def step(self, model: nn.Module, batch) -> StepOutput:
        return StepOutput(-model(batch.x).mean(), targets=batch.x)  # the gradient is -1

    def validation_step(self, model: nn.Module, batch) -> StepOutput:
        return StepOutput((model(batch.x) - 1.0).abs().mean(), targets=batch.x)

    def run(self, folder, **settings):
        data = Loader(TensorDataset(x=torch.ones(4, 1)), 4)  # one step an epoch
        defaults = {"duration": "5 epochs", "monitor": "off", "device": "cpu", "check": False}
        learner = Learner(self.model, self.optimizer, 0.5, self.step, self.validation_step)
        return SupervisedTraining(folder, **{**defaults, "train": data, "valid": data, **settings}).run(
            learner
        )


def test_the_best_weights_are_restored(tmp_path, capsys):
    stopping = EarlyStopping("loss", patience="2 epochs", restore_best=True)
    ours = Overshoot()
    result = ours.run(tmp_path / "run", stopping=stopping, monitor="plain", checkpoints=[KeepLast(1)])
    assert (result.reason, result.position.step) == ("stopped early", 4)
    assert result.model.weight.item() == 1.0
    assert (result.best.path.name, result.best_value) == ("step-00000002", 0.0)
    assert result.values["valid/loss"] == 1.0  # those of the last step
    out = capsys.readouterr().out
    assert "Stopping early: valid/loss has not improved on 0.0000 for 2 epochs." in out
    assert "Restored the weights of step-00000002: valid/loss 0.0000." in out
    assert "step-00000002 (best valid/loss), step-00000004 (newest)" in out
    loaded = load(tmp_path / "run", model=nn.Linear(1, 1, bias=False))
    assert loaded.weight.item() == 1.0
    # The checkpoints are those of a run without it: it goes on from the newest.
    patient = EarlyStopping("loss", patience="9 epochs", restore_best=True)
    again = Overshoot().run(tmp_path / "run", resume=True, stopping=patient)
    assert (again.position.step, again.model.weight.item()) == (5, 1.0)
    with RunReader(tmp_path / "run") as run:
        assert [e.data["reason"] for e in run.events("early_stopping")] == [
            "valid/loss has not improved on 0.0000 for 2 epochs"
        ]


@pytest.mark.full
def test_without_restoring_the_last_weights_are_returned(tmp_path):
    result = Overshoot().run(tmp_path / "run")
    assert result.model.weight.item() == 2.5
    assert (result.best.position.step, result.best_value) == (2, 0.0)
    result = Overshoot().run(tmp_path / "other", checkpoints=[KeepLast(1)])
    assert (result.best, result.best_value) == (None, None)
    result = Overshoot().run(tmp_path / "third", valid=None)
    assert (result.best, result.best_value) == (None, None)


def test_the_best_of_two_is_that_of_the_restored_weights(tmp_path):
    stopping = EarlyStopping("train/loss", patience="9 epochs", restore_best=True)
    result = Overshoot().run(tmp_path / "run", stopping=stopping, checkpoints=[KeepBest("valid/loss")])
    assert (result.best.position.step, result.best_value) == (5, -2.0)
    assert result.model.weight.item() == 2.5
    assert load(tmp_path / "run", model=nn.Linear(1, 1, bias=False)).weight.item() == 2.5


@pytest.mark.full
def test_the_best_averages_are_restored(tmp_path):
    ours = Overshoot(optim.Ema(optim.Sgd(), decay=0.5))
    stopping = EarlyStopping("loss", patience="9 epochs", restore_best=True)
    result = ours.run(tmp_path / "run", stopping=stopping, duration="8 epochs")
    record = Record.load(result.best.path / "model.safetensors")
    assert torch.equal(result.model.weight, record.tensors["weight"])
    assert result.best.position.step < 8
    # The optimizer goes on from the last weights.
    ours.optimizer.train(ours.model)
    assert result.model.weight.item() == 4.0


def test_no_checkpoint_has_the_metric(tmp_path, capsys):
    result = Overshoot().run(
        tmp_path / "run", duration="1 step", monitor="plain", validate_every="9 epochs",
        train=Loader(TensorDataset(x=torch.ones(8, 1)), 4),
        stopping=EarlyStopping("train/loss", patience="9 epochs", restore_best=True),
    )  # fmt: skip
    assert result.model.weight.item() == 0.5
    assert (
        "No checkpoint has a value of train/loss: the model has its last weights." in capsys.readouterr().out
    )


def test_restoring_needs_checkpoints(tmp_path):
    with pytest.raises(ConfigError) as caught:
        Overshoot().run(
            tmp_path, checkpoints=None, stopping=EarlyStopping("loss", "1 epoch", restore_best=True)
        )
    assert str(caught.value) == (
        "EarlyStopping cannot restore the best weights\n"
        "  in        restore_best\n"
        "  expected  checkpoints to restore them from\n"
        "  found     checkpoints=None"
    )


def test_a_target_ends_a_run_and_a_resumed_one(tmp_path, capsys):
    result = Overshoot().run(tmp_path / "run", stopping=EarlyStopping("loss", target=0.2), monitor="plain")
    assert (result.reason, result.position.step) == ("stopped early", 2)
    assert "Stopping early: valid/loss reached 0.0000, the target being 0.2000." in capsys.readouterr().out
    with RunReader(tmp_path / "run") as reader:
        assert reader.attempts()[-1].end_reason.startswith("stopped early: valid/loss reached 0.0000, the")
    stopping = EarlyStopping("loss", target=0.2)
    again = Overshoot().run(tmp_path / "run", stopping=stopping, resume=True, monitor="plain")
    assert (again.reason, again.position.step) == ("stopped early", 2)
    assert (
        "Nothing is left to train: early stopping has ended the run, as valid/loss reached 0.0000, the "
        "target being 0.2000. To train on, resume with other bounds of EarlyStopping, or without it."
    ) in capsys.readouterr().out
    more = Overshoot().run(tmp_path / "run", duration="3 epochs", resume=True)
    assert more.position.step > 2
    Overshoot().run(tmp_path / "run", duration="3 epochs", resume=True, monitor="plain")
    assert "Nothing is left to train: the duration of 3 epochs is over." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("build", "hint"),
    [
        (
            lambda: EarlyStopping(patience=3),
            'the metric comes first: EarlyStopping("loss", patience="3 epochs")',
        ),
        (lambda: EarlyStopping("loss", 3), 'did you mean "3 epochs" or "3 steps"?'),
        (lambda: EarlyStopping("loss", patience="3"), None),
    ],
)
def test_what_other_trainers_take_is_explained(build, hint):
    with pytest.raises(BurntError) as caught:
        build()
    assert caught.value.hint == hint
