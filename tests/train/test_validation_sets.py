"""Several validation sets by name."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import load, optim
from burnt.data import Loader
from burnt.errors import ConfigError, DataError, MetricError
from burnt.monitor.format import main_metric
from burnt.store import Series
from burnt.train import (
    ClassificationOutput,
    EarlyStopping,
    KeepBest,
    Learner,
    Plateau,
    RunReader,
    SupervisedTraining,
    evaluate,
)
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss
from tests.train.cases import labelled, refused


def loader(seed: int = 1, n: int = 20) -> Loader:
    return labelled(n, 5, seed=seed)


def sets() -> dict[str, Loader]:
    return {"clean": loader(2), "rotated": loader(3, 15)}


class Run:
    """A training that counts the batches of its validations."""

    def __init__(self, folder, **settings):
        torch.manual_seed(0)
        self.model, self.validated = nn.Linear(6, 3), 0
        learner = Learner(self.model, optim.AdamW(), settings.pop("schedule", 0.05), step=self.step)
        defaults = {
            "train": loader(), "valid": sets(), "duration": "3 epochs", "monitor": "off", "device": "cpu",
            "metrics": [Accuracy(), ConfusionMatrix(3)], "seed": 5, "check": False,
        }  # fmt: skip
        self.result = SupervisedTraining(folder, **{**defaults, **settings}).run(learner)

    def step(self, model, batch):
        self.validated += not model.training
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


def test_each_set_may_have_an_interval_of_its_own(tmp_path):
    # Four steps an epoch; at the end all are validated.
    settings = {"duration": "7 steps", "validate_every": {"rotated": "3 steps"}, "validate_first": True}
    Run(tmp_path / "run", stopping=EarlyStopping(Loss(), "9 epochs", "rotated"), **settings)
    assert points(tmp_path / "run")["clean", "loss"][0] == [0, 4, 7]
    assert points(tmp_path / "run")["rotated", "loss"][0] == [0, 3, 6, 7]
    with RunReader(tmp_path / "run") as run:
        assert [event.step for event in run.events("stopping")] == [0, 3, 6, 7]


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


def test_lines_have_room_for_the_names(tmp_path, capsys):
    Run(tmp_path / "run", monitor="plain", metrics=[])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert [line[:21] for line in lines[-3:]] == [
        "epoch 3/3  train    l", "epoch 3/3  clean    l", "epoch 3/3  rotated  l",
    ]  # fmt: skip


def test_the_monitor_shows_the_metric_that_ranks_the_checkpoints():
    series = [Series("accuracy", "clean"), Series("loss", "train"), Series("loss", "clean")]
    assert main_metric(series, {"ranked_by": "clean/loss"}) == Series("loss", "clean")
    assert main_metric(series, {"ranked_by": "clean/accuracy"}) == Series("accuracy", "clean")
    assert main_metric(series, {}) == Series("loss", "clean")
    series.append(Series("loss", "valid"))
    assert main_metric(series, {"ranked_by": "clean/accuracy"}) == Series("accuracy", "clean")
    assert main_metric(series, {"ranked_by": "clean/gone"}) == Series("loss", "valid")
