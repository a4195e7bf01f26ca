"""The summary printed at the end of a training."""

import math
from pathlib import Path

import pytest

from burnt.store import RunWriter
from burnt.train import KeepBest, KeepLast, Position
from burnt.train.checkpoints.checkpoint import Saved
from burnt.train.metrics import Accuracy, Loss
from burnt.train.reporting.final_summary import format_summary


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with RunWriter.create(tmp_path / "a run") as run:
        for step, loss, accuracy in ((10, 0.5, 0.8), (20, 0.25, 0.7), (30, 0.375, math.nan)):
            run.log(step, 1, {"loss": loss, "accuracy": accuracy}, "valid")
            run.log(step, 1, {"loss": 2 * loss}, "train")
    return tmp_path / "a run"


def saved(folder: Path, step: int, loss: float) -> Saved:
    return Saved(folder / "checkpoints" / f"step-{step}", Position(step, 1, 0), {"valid/loss": loss})


def test_values_checkpoints_and_how_to_look_again(folder: Path) -> None:
    metrics = [Loss(), Accuracy()]
    best = KeepBest(metrics[0])
    values = {"train/loss": 0.75, "valid/loss": 0.375, "train/accuracy": 0.9, "valid/accuracy": 0.7}
    kept = [saved(folder, 10, 0.5), saved(folder, 20, 0.25), saved(folder, 30, 0.375)]
    assert format_summary(folder, values, metrics, kept, [KeepLast(2), best]).splitlines() == [
        "           train   valid  best valid",
        "loss      0.7500  0.3750  0.2500 at step 20",
        "accuracy  0.9000  0.7000  0.8000 at step 10",
        f"Checkpoints in {folder / 'checkpoints'}: step-10, step-20 (best valid/loss), step-30 (newest)",
        f"To view the run: burnt runs show '{folder}', burnt monitor '{folder}'",
    ]


def test_several_validation_sets(folder: Path) -> None:
    with RunWriter.create(folder, resume=True, resumed_from_step=30) as run:
        run.log(30, 1, {"loss": 0.75, "accuracy": 0.5}, "shifted")
    values = {"shifted/loss": 0.75, "train/loss": 0.75, "valid/loss": 0.375, "shifted/accuracy": 0.5}
    assert format_summary(folder, values, [Loss(), Accuracy()], [], []).splitlines()[:-1] == [
        "           train   valid  shifted  best valid         best shifted",
        "loss      0.7500  0.3750   0.7500  0.2500 at step 20  0.7500 at step 30",
        "accuracy                   0.5000  0.8000 at step 10  0.5000 at step 30",
    ]


@pytest.mark.parametrize(
    ("values", "has_store", "table"),
    [
        ({"train/loss": 0.75}, True, ["       train  best train", "loss  0.7500  0.5000 at step 20"]),
        ({"valid/loss": math.nan}, False, ["      valid", "loss    nan"]),
        ({}, True, []),
    ],
)
def test_without_checkpoints(folder: Path, tmp_path: Path, values, has_store: bool, table: list[str]) -> None:
    run = folder if has_store else tmp_path
    lines = format_summary(run, values, [Loss(), Accuracy()], [], []).splitlines()
    assert lines[:-1] == table
    assert lines[-1].startswith("To view the run: burnt runs show ")
