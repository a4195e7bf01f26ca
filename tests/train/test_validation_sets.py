"""Several validation sets by name, and the validation before the first step."""

import io
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from burnt import load, optim
from burnt.data import Loader
from burnt.errors import ConfigError, DataError, MetricError
from burnt.monitor.format import main_metric
from burnt.store import RunWriter, Series
from burnt.train import (
    ClassificationOutput,
    EarlyStopping,
    Interrupted,
    KeepBest,
    Learner,
    Plateau,
    Position,
    RunReader,
    SupervisedTraining,
    evaluate,
)
from burnt.train.events import Validated
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss
from burnt.train.reporting.final_summary import format_summary
from burnt.train.reporting.progress import LiveReporter
from tests.train.cases import labelled, refused


def loader(seed: int = 1, n: int = 20) -> Loader:
    return labelled(n, 5, seed=seed)


def sets() -> dict[str, Loader]:
    return {"clean": loader(2), "rotated": loader(3, 15)}


class Run:
    """A training with dropout in validation too, so that it draws random numbers; SIGINT in a validation."""

    def __init__(self, folder, *, interrupt_at: int | None = None, init_seed: int = 0, **settings):
        torch.manual_seed(init_seed)
        self.model = nn.Linear(6, 3)
        self.validated, self.interrupt_at = 0, interrupt_at
        learner = Learner(self.model, optim.AdamW(), settings.pop("schedule", 0.05), step=self.step)
        defaults = {
            "train": loader(), "valid": sets(), "duration": "3 epochs", "monitor": "off", "device": "cpu",
            "metrics": [Accuracy(), ConfusionMatrix(3)], "seed": 5, "check": False,
        }  # fmt: skip
        self.training = SupervisedTraining(folder, **{**defaults, **settings})
        try:
            self.result = self.training.run(learner)
        except Interrupted:
            self.result = None

    def step(self, model, batch):
        if not model.training:
            self.validated += 1
            if self.validated == self.interrupt_at:
                os.kill(os.getpid(), signal.SIGINT)
        logits = F.dropout(model(batch.x), 0.2)
        return ClassificationOutput(F.cross_entropy(logits, batch.y), logits, batch.y)


def points(folder) -> dict[tuple[str, str], tuple]:
    with RunReader(folder) as run:
        return {
            (s.split, s.name): tuple(run.points(s.name, s.split)[::2])
            for s in run.series()
            if s.name in ("loss", "accuracy")
        }


def test_each_set_has_metrics_of_its_own(tmp_path):
    run = Run(tmp_path / "run", seed=None)
    values = run.result.values
    assert set(values) == {
        f"{split}/{name}" for split in ("train", "clean", "rotated") for name in ("loss", "accuracy")
    }
    assert run.validated == 3 * (4 + 3)
    with RunReader(tmp_path / "run") as reader:
        tables = {a.name: a.data for a in reader.artefacts("table")}
    for split, items in (("clean", 20), ("rotated", 15)):
        rows = tables[f"{split}/confusion"]["rows"]
        assert sum(count for row in rows for count in row if isinstance(count, int)) == items

    def plain(model, batch):
        return ClassificationOutput(F.cross_entropy(model(batch.x), batch.y), model(batch.x), batch.y)

    learner = Learner(nn.Linear(6, 3), optim.Sgd(), 0.1, step=plain)
    result = SupervisedTraining(
        tmp_path / "other", train=loader(), valid=sets(), metrics=[Accuracy()], duration="1 epoch",
        monitor="off", device="cpu",
    ).run(learner)  # fmt: skip
    for split, data in sets().items():
        again = evaluate(learner, data, [Accuracy()])
        assert again == {name: result.values[f"{split}/{name}"] for name in ("loss", "accuracy")}


# Of 7 batches each time: in the first set, and twice in the second.
@pytest.mark.parametrize(
    "interrupt_at", [6, pytest.param(2, marks=pytest.mark.full), pytest.param(13, marks=pytest.mark.full)]
)
def test_interrupted_in_any_set_all_are_validated_anew(tmp_path, interrupt_at):
    whole = Run(tmp_path / "whole")
    assert Run(tmp_path / "run", interrupt_at=interrupt_at).result is None
    second = Run(tmp_path / "run", resume=True, init_seed=9)
    assert torch.equal(second.model.weight, whole.model.weight)
    assert second.result.values == whole.result.values
    assert points(tmp_path / "run") == points(tmp_path / "whole")


def test_each_set_may_have_an_interval_of_its_own(tmp_path):
    # Four steps an epoch; at the end all are validated.
    settings = {"duration": "7 steps", "validate_every": {"rotated": "3 steps"}, "validate_first": True}
    Run(tmp_path / "run", stopping=EarlyStopping(Loss(), "9 epochs", "rotated"), **settings)
    assert points(tmp_path / "run")["clean", "loss"][0] == [0, 4, 7]
    assert points(tmp_path / "run")["rotated", "loss"][0] == [0, 3, 6, 7]
    with RunReader(tmp_path / "run") as run:
        assert [event.step for event in run.events("stopping")] == [0, 3, 6, 7]


# Both sets are validated first, with 7 batches; the third batch of the second set alone is number 10.
def test_an_interrupted_validation_repeats_the_sets_that_were_due(tmp_path):
    settings = {"duration": "7 steps", "validate_every": {"rotated": "3 steps"}, "validate_first": True}
    whole, folder = Run(tmp_path / "whole", **settings), tmp_path / "run"
    assert Run(folder, interrupt_at=10, **settings).result is None
    second = Run(folder, resume=True, init_seed=9, **settings)
    assert torch.equal(second.model.weight, whole.model.weight)
    assert points(folder) == points(tmp_path / "whole")


@pytest.mark.parametrize(
    ("every", "message"),
    [
        ({"rotatd": "3 steps"}, "did you mean 'rotated'?"),
        ({"clean": "3"}, "in        validate_every['clean']"),
        ("often", "in        validate_every"),
    ],
)
def test_intervals_of_sets_that_make_no_sense(tmp_path, every, message):
    with refused(ConfigError, message):
        Run(tmp_path / "run", validate_every=every)


def test_the_first_set_is_monitored_by_default(tmp_path):
    plateau = Plateau(0.05, "loss", patience=9)
    stopping = EarlyStopping("accuracy", patience="9 epochs")
    run = Run(tmp_path / "run", stopping=stopping, schedule=plateau)
    assert (stopping.monitored.key, plateau.monitored.key) == ("clean/accuracy", "clean/loss")
    assert stopping.best is not None
    best = run.result.best
    assert run.result.best_value == best.values["clean/loss"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["ranked_by"] == "clean/loss"
    assert torch.equal(load(tmp_path / "run", best.position.step, nn.Linear(6, 3)).weight,
                       load(tmp_path / "run", "best", nn.Linear(6, 3)).weight)  # fmt: skip
    # The same objects in another run, which has a set of the usual name.
    Run(tmp_path / "other", stopping=stopping, valid={**sets(), "valid": loader(4)})
    assert stopping.monitored.key == "valid/accuracy"


def test_a_set_is_monitored_by_name(tmp_path):
    keeper = KeepBest(Loss(), split="rotated", count=2)
    run = Run(tmp_path / "run", checkpoints=[keeper], stopping=EarlyStopping("rotated/loss", "9 epochs"))
    assert run.result.best_value == min(points(tmp_path / "run")["rotated", "loss"][1])


@pytest.mark.parametrize(
    ("split", "hint"),
    [("noisy", "the splits are 'train' and the names in valid={...}"), ("valid", "give valid= a loader")],
)
def test_a_set_that_does_not_exist(tmp_path, split, hint):
    with refused(
        MetricError,
        "EarlyStopping monitors a split that the run does not have",
        f"in        {split}/loss\n  expected  one of: train, clean, rotated",
        hint,
    ):
        Run(tmp_path / "run", stopping=EarlyStopping("loss", "1 epoch", split=split))


@pytest.mark.parametrize("name", ["train", "a/b", "", 3])
def test_names_that_cannot_be_used(tmp_path, name):
    with refused(ConfigError, "a validation loader has an unusable name", repr(name)):
        Run(tmp_path / "run", valid={name: loader()})


def test_a_set_without_batches_is_named(tmp_path):
    class Empty:
        def __iter__(self):
            return iter(())

    with pytest.raises(DataError, match=r"valid\['rotated'\]= gave no batches"):
        Run(tmp_path / "run", valid={"clean": loader(), "rotated": Empty()}, check=True)


# what is shown


def test_the_summary_has_a_column_for_each_set(tmp_path):
    with RunWriter.create(tmp_path / "run") as run:
        run.log(10, 1, {"loss": 0.5}, "rotated")
        run.log(10, 1, {"loss": 0.25}, "clean")
    values = {"clean/loss": 0.25, "rotated/loss": 0.5, "train/loss": 0.125}
    table = format_summary(tmp_path / "run", values, [Loss()], [], [KeepBest(Loss(), "rotated")])
    assert table.splitlines()[:2] == [
        "       train   clean  rotated  best clean         best rotated",
        "loss  0.1250  0.2500   0.5000  0.2500 at step 10  0.5000 at step 10",
    ]


def test_lines_and_tables_have_room_for_the_names(tmp_path, capsys):
    Run(tmp_path / "run", monitor="plain", metrics=[])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert [line[:21] for line in lines[-3:]] == [
        "epoch 3/3  train    l", "epoch 3/3  clean    l", "epoch 3/3  rotated  l",
    ]  # fmt: skip
    reporter, training = LiveReporter(), SimpleNamespace(position=Position(5, 1, 0))
    for split in ("clean", "rotated", "train"):
        reporter.on_validation(Validated(training, split, {"loss": 0.5}))
    picture = io.StringIO()
    Console(file=picture, width=110).print(reporter)
    assert [line.split()[0] for line in picture.getvalue().splitlines()[2:5]] == ["train", "clean", "rotated"]


def test_the_monitor_shows_the_metric_that_ranks_the_checkpoints():
    series = [Series("accuracy", "clean"), Series("loss", "train"), Series("loss", "clean")]
    assert main_metric(series, {"ranked_by": "clean/loss"}) == Series("loss", "clean")
    assert main_metric(series, {"ranked_by": "clean/accuracy"}) == Series("accuracy", "clean")
    assert main_metric(series, {}) == Series("loss", "clean")
    assert main_metric([*series, Series("loss", "valid")], {"ranked_by": "clean/loss"}).split == "valid"


# the validation before the first step


@pytest.mark.parametrize("interrupt_at", [3, pytest.param(9, marks=pytest.mark.full)])
def test_a_validation_before_the_first_step(tmp_path, interrupt_at):
    whole, folder = Run(tmp_path / "whole", validate_first=True), tmp_path / "run"
    assert points(tmp_path / "whole")["clean", "loss"][0] == [0, 4, 8, 12]
    assert points(tmp_path / "whole")["train", "loss"][0][0] > 0
    assert Run(folder, validate_first=True, interrupt_at=interrupt_at).result is None
    second = Run(folder, validate_first=True, resume=True, init_seed=9)
    assert torch.equal(second.model.weight, whole.model.weight)
    assert points(folder) == points(tmp_path / "whole")
