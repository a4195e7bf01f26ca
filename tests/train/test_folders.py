"""Which folders can hold a run, and the message when there is nothing to resume."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import MetricError, RecordError, RunError
from burnt.record import Record
from burnt.train import KeepBest, KeepLast, Learner, RunWriter, StepOutput, SupervisedTraining
from tests.train.cases import refused


def step(model: nn.Module, batch: Batch) -> StepOutput:
    return StepOutput(model(batch.x).square().mean(), targets=batch.x)


def training(folder: Path, **settings: object) -> SupervisedTraining:
    train = Loader(TensorDataset(x=torch.randn(8, 2)), 4)
    return SupervisedTraining(folder, train=train, duration="1 epoch", **settings)


def learner() -> Learner:
    return Learner(nn.Linear(2, 1), optim.Sgd(), 1e-2, step=step)


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with refused(RunError, "holds files that are not a run", "thesis.tex"):
        RunWriter.create(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_and_what_a_run_makes_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / ".nfs0001").touch()
    RunWriter.create(tmp_path).close("finished")
    assert (tmp_path / "run.db").exists()


def test_a_checkpoints_folder_is_no_tensor_file(tmp_path: Path) -> None:
    settings = {"checkpoints": [KeepLast()], "monitor": "off", "device": "cpu"}
    result = training(tmp_path / "run", **settings).run(learner())
    folder = result.checkpoints[-1].path
    with pytest.raises(RecordError, match=r"model is .*model\.safetensors"):
        Record.load(folder)
    assert "weight" in Record.load(folder / "model.safetensors").tensors


def test_a_monitored_value_may_be_named_as_it_is_kept(tmp_path: Path) -> None:
    keeper = KeepBest("train/loss")
    training(tmp_path / "run", checkpoints=[keeper])
    assert keeper.monitored.key == "train/loss"
    with pytest.raises(MetricError, match="did you mean 'loss'"):
        training(tmp_path / "run", checkpoints=[KeepBest("train/los")])


def test_a_run_whose_folder_is_deleted_is_reported_once_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"

    def deleting(model: nn.Module, batch: Batch) -> StepOutput:
        if (folder / "checkpoints" / "step-00000002").exists():
            shutil.rmtree(folder)
        return step(model, batch)

    train = Loader(TensorDataset(x=torch.randn(8, 2)), 4)
    result = SupervisedTraining(folder, train=train, duration="4 epochs", monitor="plain", device="cpu").run(
        Learner(nn.Linear(2, 1), optim.Sgd(), 1e-2, step=deleting)
    )
    output = capsys.readouterr().out
    assert (result.position.step, result.checkpoints) == (8, ())
    assert output.count("was deleted or moved. Metrics and checkpoints are not saved any more") == 1
    assert "The run is not saved: its folder" in output
    assert "To view the run" not in output
    assert not folder.exists()
