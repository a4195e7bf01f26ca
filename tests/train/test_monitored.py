"""What early stopping, KeepBest and Plateau may monitor: any metric, and any value that is logged."""

import json

import pytest
import torch

import burnt
from burnt import nn, optim
from burnt.errors import MetricError
from burnt.train import ClassificationOutput, EarlyStopping, KeepBest, Learner, Plateau
from burnt.train.metrics import F1, Accuracy
from tests.train.cases import labelled, refused, supervised


class Net(burnt.Module):
    """Logs the size of its logits and, in a validation, a text's score."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def step(self, batch):
        logits = self.layer(batch.x)
        burnt.log(size=logits.abs().mean())
        loss = torch.nn.functional.cross_entropy(logits, batch.y)
        return ClassificationOutput(loss, logits, batch.y)

    training_step = step

    def validation_step(self, batch):
        output = self.step(batch)
        output.log = {"bleu": output.outputs.mean()}
        return output


def trained(folder, schedule=1e-2, metrics=(), **more):
    torch.manual_seed(0)
    settings = {
        "train": labelled(20, 8),
        "valid": labelled(13, 5, seed=2),
        "duration": "3 epochs",
        "check": True,
        "metrics": metrics,
        "log_every": 2,
    }
    training = supervised(folder, settings, **more)
    return training.run(Learner(Net(), optim.AdamW(), schedule))


def test_a_value_that_steps_log_ranks_and_stops(tmp_path):
    result = trained(
        tmp_path / "run",
        checkpoints=[KeepBest("bleu", higher_is_better=True)],
        stopping=EarlyStopping("bleu", target=-9.0, higher_is_better=True),
    )
    assert result.reason == "stopped early"
    assert result.best_value == result.values["valid/bleu"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["metrics"]["bleu"] == "higher"
    assert config["ranked_by"] == "valid/bleu"


def test_values_of_the_training_and_of_a_class(tmp_path):
    plateau = Plateau(1e-2, "gradient_norm", patience=1, threshold=1e6, higher_is_better=False)
    result = trained(
        tmp_path / "run",
        plateau,
        [F1(None, classes=["a", "b", "c"])],
        log_gradient_norm=True,
        stopping=EarlyStopping("f1/b", "1 epoch", "valid", min_delta=1, restore_best=True),
        checkpoints=[KeepBest("train/size", higher_is_better=False)],
    )
    assert plateau.monitored.key == "train/gradient_norm"
    assert plateau.best == pytest.approx(result.values["train/gradient_norm"], rel=10)
    assert plateau.scale < 1
    assert result.reason == "stopped early"
    assert result.best_value == result.best.values["valid/f1/b"]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"stopping": EarlyStopping("blue", "1 epoch", higher_is_better=True)},
            [
                "EarlyStopping monitors a value that is not logged",
                "valid/blue",
                "bleu",
                "did you mean 'bleu'?",
            ],
        ),
        (
            {"checkpoints": [KeepBest("f1/d", "valid")], "metrics": [F1(None)]},
            ["KeepBest monitors a value that is not logged", "valid/f1/d", "f1/0, f1/1, f1/2"],
        ),
        (
            {"checkpoints": [KeepBest("gradient_norm", higher_is_better=False)]},
            ["train/gradient_norm, after step 3", "log_gradient_norm=True"],
        ),
    ],
)
def test_a_value_that_is_not_logged_is_an_error(tmp_path, settings, words, check):
    with refused(MetricError, *words):
        trained(tmp_path / "run", **settings, check=check)


def test_a_name_without_a_direction_is_refused(tmp_path):
    with refused(MetricError, "EarlyStopping monitors a metric", "of a value that steps log, say higher_is"):
        supervised(
            tmp_path / "run",
            {"train": labelled(8, 4), "valid": labelled(8, 4), "duration": "1 epoch"},
            metrics=[Accuracy()],
            stopping=EarlyStopping("valid/bleu", "1 epoch"),
        )
