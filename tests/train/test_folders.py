"""Which folders can hold a run, and the message when there is nothing to resume."""

import json
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import ConfigError, MetricError, RecordError, RunError
from burnt.record import Record
from burnt.store import RunReader
from burnt.train import KeepBest, KeepLast, Learner, RunWriter, StepOutput, SupervisedTraining, TensorBoard
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


def as_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_a_cell_that_runs_again_trains_in_the_next_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_in_a_notebook(monkeypatch)
    cells = [training(tmp_path / "churn", monitor="plain", device="cpu") for _ in range(2)]
    results = [cell.run(learner()) for cell in (cells[0], cells[1], cells[1])]
    assert [result.folder.name for result in results] == ["churn", "churn-2", "churn-3"]
    assert cells[1].folder == tmp_path / "churn-3"  # where `replay` looks
    for result in results:
        assert result.checkpoints[-1].path.parent.parent == result.folder
        with RunReader(result.folder) as reader:
            assert (reader.state(), len(reader.attempts())) == ("finished", 1)
    output = capsys.readouterr().out
    assert f"{tmp_path / 'churn'} is taken: this run is in {tmp_path / 'churn-2'}." in output
    assert f"run folder {tmp_path / 'churn-3'}" in output
    assert f"burnt monitor {tmp_path / 'churn-3'}" in output
    resumed = training(tmp_path / "churn", resume=True, monitor="off", device="cpu").run(learner())
    assert (resumed.folder.name, resumed.position.step) == ("churn", 2)
    with refused(RunError, "already holds a run"):
        training(tmp_path / "churn", exists="error", device="cpu", monitor="off").run(learner())


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_crash_in_the_first_step_does_not_block_the_folder(tmp_path: Path, fails_at: int) -> None:
    calls = []

    def failing(model: nn.Module, batch: Batch) -> StepOutput:
        calls.append(0)
        if len(calls) == fails_at:
            raise ValueError("wrong label")
        return step(model, batch)

    settings = {"device": "cpu", "monitor": "off", "check": False}
    first = training(tmp_path / "run", callbacks=[TensorBoard()], **settings)
    with pytest.raises(ValueError, match="wrong label"):
        first.run(Learner(nn.Linear(2, 1), optim.Sgd(), 1e-2, step=failing))
    sent = tmp_path / "run" / "logs" / "tensorboard.json"
    sent.write_text(json.dumps({**json.loads(sent.read_text()), "event": 999, "artefact": 999}))
    second = training(tmp_path / "run", callbacks=[TensorBoard()], **settings)
    if fails_at == 2:
        with refused(RunError, "already holds a run"):
            second.run(learner())
        return
    result = second.run(learner())
    assert (result.folder, result.position.step) == (tmp_path / "run", 2)
    with RunReader(result.folder) as reader:
        assert [event.kind for event in reader.events("start")] == ["start"]
        assert not reader.events("error")
        newest = reader.newest_ids()
    document = json.loads(sent.read_text())
    assert 0 < document["event"] <= newest.event < 999  # the ids began anew, and so did the sink
    assert 0 < document["artefact"] <= newest.artefact < 999


def test_both_ways_to_resume_are_an_error_before_the_training(tmp_path: Path) -> None:
    with refused(ConfigError, 'resume=True is exists="resume"', "exists='number' and resume=True"):
        training(tmp_path / "run", exists="number", resume=True)


def test_a_quick_run_and_a_check_leave_the_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_in_a_notebook(monkeypatch)
    quick = training(tmp_path / "run", device="cpu", monitor="off")
    assert list(quick.quick_run(learner())) == ["train/loss"]
    assert quick.run(learner()).folder == tmp_path / "run"
