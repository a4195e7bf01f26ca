"""The summary printed at the end of a training."""

import math
from pathlib import Path

import pytest
import torch

from burnt import optim
from burnt.store import RunWriter
from burnt.train import KeepBest, KeepLast, Learner, Position, StepOutput, SupervisedTraining
from burnt.train.checkpoints.checkpoint import Saved
from burnt.train.metrics import Accuracy, Loss
from burnt.train.reporting.final_summary import format_summary


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with RunWriter.create(tmp_path / "a run") as run:
        for step, loss, accuracy in ((10, 0.5, 0.8), (20, 0.25, 0.7), (30, 0.375, math.nan)):
            run.log(step, 1, {"loss": loss, "accuracy": accuracy}, "valid")
            run.log(step, 1, {"loss": loss / 10}, "train")  # of the last batches of the epoch
            run.event("epoch", step, epoch=step // 10, values={"loss": 2 * loss, "accuracy": math.nan})
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


def test_epochs_that_a_resume_discarded_are_not_the_best(folder: Path) -> None:
    with RunWriter.create(folder, resume=True, resumed_from_step=10) as run:
        run.event("epoch", 20, epoch=2, values={"loss": 0.75})
    table = format_summary(folder, {"train/loss": 0.75}, [Loss()], [], []).splitlines()[:-1]
    assert table == ["       train  best train", "loss  0.7500  0.7500 at step 20"]


@pytest.mark.parametrize("steps", [3, 9])
def test_a_training_shows_means_of_like_batches(
    tmp_path: Path, steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """4 steps an epoch: 3 are less than one, 9 end in the middle of the third."""
    losses = iter([4.0, 2.0, 0.0, 6.0, 1.0, 3.0, 0.5, 2.5, 100.0])

    def step(model: torch.nn.Module, batch: torch.Tensor) -> StepOutput:
        return StepOutput(model(batch).sum() * 0 + next(losses), targets=batch)

    result = SupervisedTraining(
        tmp_path / "run", train=[torch.ones(2, 1)] * 4, duration=f"{steps} steps", log_every=1, device="cpu",
        monitor="plain", check=False, checkpoints=None,
    ).run(Learner(torch.nn.Linear(1, 1), optim.Sgd(), 0.0, step))  # fmt: skip
    output = capsys.readouterr().out
    if steps == 3:
        assert result.values == {"train/loss": 2.0}
        assert "       train\nloss  2.0000\n" in output
    else:
        assert result.values == {"train/loss": 1.75}
        assert "       train  best train\nloss  1.7500  1.7500 at step 8\n" in output
