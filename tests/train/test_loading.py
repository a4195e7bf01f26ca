"""`burnt.load`: the model of a run in another process, and the errors of runs that cannot be loaded."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import CheckpointError, DefinitionError, RecordError, RunError, UnsupportedError
from burnt.record import Record
from burnt.train import KeepBest, KeepLast, Learner, StepOutput, SupervisedTraining
from burnt.train.loading import RunFiles
from tests import forked

CODE = """
import sys
import torch
import burnt
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining

class Net(burnt.Module):
    layer: nn.Linear

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch):
        return StepOutput((self(batch.x) - batch.y).square().mean(), targets=batch.y)

class NetConfig(burnt.Config):
    width: int = 3

    def init(self) -> Net:
        return Net(nn.Linear(2, self.width))

if __name__ == "__main__":
    data = TensorDataset(x=torch.rand(8, 2), y=torch.rand(8, 3))
    training = SupervisedTraining(
        "runs/net", train=Loader(data, 4), valid=Loader(data, 4), duration="3 epochs", monitor="off",
        device="cpu",
    )
    model = training.run(Learner(NetConfig().init(), optim.Sgd(), 0.1)).model
    torch.save(model.state_dict(), "weights.pt")
"""


def step(model: torch.nn.Module, batch: Batch) -> StepOutput:
    return StepOutput(model(batch.x).square().mean(), targets=batch.x)


def train(folder: Path, model: torch.nn.Module, **settings: object) -> None:
    options = {"monitor": "off", "device": "cpu", "checkpoints": [KeepLast(3)], **settings}
    data = Loader(TensorDataset(x=torch.rand(8, 2)), 4)
    SupervisedTraining(folder, train=data, duration="3 epochs", **options).run(
        Learner(model, optim.Sgd(), 0.1, step=step)
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a script that has trained a run in another process."""
    folder = tmp_path_factory.mktemp("script")
    file = folder / "shipped_net.py"
    file.write_text(CODE)
    done = forked.run(CODE, file=file, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def script(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that run beside its script, whose module is forgotten afterwards."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    # Byte code of a file that changes within a second, and not in size, would be taken for the new one's.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "runs" / "net"
    sys.modules.pop("shipped_net", None)


def test_a_run_of_a_script_is_loaded_by_importing_its_file(script: Path) -> None:
    model = burnt.load(script, "last", import_code=True)
    expected = torch.load(script.parent.parent / "weights.pt", weights_only=True)
    assert not model.training
    assert type(model).__name__ == "Net"
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_nothing_is_imported_unless_asked(script: Path) -> None:
    with pytest.raises(RecordError) as caught:
        burnt.load(script)
    assert "shipped_net" not in sys.modules
    text = str(caught.value)
    assert "expected  shipped_net.Net of shipped_net.py" in text
    assert "load(..., import_code=True)" in text
    burnt.load(script, import_code=True)
    assert type(burnt.load(script)).__name__ == "Net"  # it is imported by now


def test_code_that_has_changed_is_said(script: Path) -> None:
    file = script.parent.parent / "shipped_net.py"
    file.write_text(CODE.replace("nn.Linear(2, self.width)", "nn.Linear(2, self.width + 1)"))
    with pytest.raises(RecordError, match=r"shipped_net\.py has changed since the run was started"):
        burnt.load(script, import_code=True)
    sys.modules.pop("shipped_net")
    file.write_text(CODE + "\n# a remark\n")
    with pytest.warns(UserWarning, match="has changed since the run net was started"):
        burnt.load(script, import_code=True)
    sys.modules.pop("shipped_net")
    file.write_text(re.sub(r"\bNet\b", "Network", CODE))
    with pytest.raises(RecordError, match="does not define its model") as caught:
        burnt.load(script, import_code=True)
    assert "expected  a class Net" in str(caught.value)
    file.unlink()
    sys.modules.pop("shipped_net")
    with pytest.raises(RecordError, match="the code of the run is not found"):
        burnt.load(script, import_code=True)


def test_code_that_trains_when_it_is_imported_does_not_train_again(script: Path) -> None:
    file = script.parent.parent / "shipped_net.py"
    file.write_text(CODE.replace('if __name__ == "__main__":', "if True:").replace("runs/net", "runs/again"))
    with pytest.raises(DefinitionError, match=r"shipped_net\.py trains when it is imported") as caught:
        burnt.load(script, import_code=True)
    assert "if __name__ == '__main__'" in str(caught.value)
    assert not (script.parent / "again").exists()


def test_the_file_is_found_from_a_folder_that_contains_the_run(
    script: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert type(burnt.load(script, import_code=True)).__name__ == "Net"


def test_the_best_checkpoint_is_the_one_that_the_run_ranks_first(tmp_path: Path) -> None:
    model = nn.Linear.Config(in_features=2, out_features=1).init()
    valid = Loader(TensorDataset(x=torch.rand(8, 2)), 4)
    train(tmp_path / "run", model, valid=valid, checkpoints=[KeepLast(3), KeepBest("valid/loss")])
    saved = RunFiles.read(tmp_path / "run")
    ranked = sorted(
        (saved.checkpoint(number) for number in (2, 4, 6)), key=lambda entry: entry.values["valid/loss"]
    )
    assert saved.checkpoint("best") == ranked[0]
    assert saved.checkpoint("last").position.step == 6
    weights = Record.load(saved.checkpoint(2).path / "model.safetensors").tensors
    loaded = burnt.load(tmp_path / "run", 2)
    assert all(torch.equal(weights[name], value) for name, value in loaded.state_dict().items())


def test_a_torch_module_is_loaded_into_the_model_that_is_passed(tmp_path: Path) -> None:
    trained = torch.nn.Linear(2, 1)
    train(tmp_path / "run", trained)
    with pytest.raises(RecordError, match="Linear cannot be built from the run") as caught:
        burnt.load(tmp_path / "run")
    assert "load(..., model=Linear(...))" in str(caught.value)
    loaded = burnt.load(tmp_path / "run", model=torch.nn.Linear(2, 1))
    assert torch.equal(loaded.weight, trained.weight)  # type: ignore[arg-type]
    with pytest.raises(RecordError):
        burnt.load(tmp_path / "run", model=torch.nn.Linear(3, 1))


def test_a_file_of_weights_is_no_run(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"")
    with pytest.raises(RunError, match=r"is a file, not the folder of a run(.|\n)*Net.load\(file\)"):
        burnt.load(file)


def test_what_a_run_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        burnt.load(tmp_path / "nothing")
    train(tmp_path / "run", nn.Linear.Config(in_features=2, out_features=1).init())
    for wanted, hint in (("lst", "did you mean 'last'"), ("step-00000003", "did you mean 'step-0000000")):
        with pytest.raises(CheckpointError, match="the run has no checkpoint") as caught:
            burnt.load(tmp_path / "run", wanted)
        assert hint in str(caught.value)
        assert "step-00000002, step-00000004, step-00000006" in str(caught.value)
    checkpoints = shutil.copytree(tmp_path / "run", tmp_path / "damaged") / "checkpoints"
    (checkpoints / "step-00000006" / "training.safetensors").write_bytes(b"half")
    text = "the last checkpoint of .*damaged is chosen without step-00000006, which is damaged"
    with pytest.warns(UserWarning, match=text):
        assert RunFiles.read(tmp_path / "damaged").checkpoint("last").position.step == 4
    for number in (2, 4):
        (checkpoints / f"step-0000000{number}" / "training.safetensors").unlink()
    found = "step-00000002, step-00000004, step-00000006, damaged"
    with pytest.raises(CheckpointError, match=f"the run has no checkpoint(.|\n)*found     {found}"):
        burnt.load(tmp_path / "damaged")
    config = tmp_path / "run" / "config.json"
    document = json.loads(config.read_text())
    del document["load"]  # as burnt 0.1.0 wrote it
    config.write_text(json.dumps(document))
    with pytest.raises(RecordError, match="runs of an older burnt lack"):
        burnt.load(tmp_path / "run")
    with pytest.raises(UnsupportedError, match="pass an example"):
        RunFiles.read(tmp_path / "run").signature()
    config.write_text("{")
    with pytest.raises(RunError, match="configuration is damaged"):
        burnt.load(tmp_path / "run")


def test_a_run_knows_what_its_model_takes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    valid = Loader(TensorDataset(x=torch.tensor([[0.0, 2.0], [0.5, 1.0]])), 2)
    train(tmp_path / "run", nn.Linear.Config(in_features=2, out_features=1).init(), valid=valid)
    files = RunFiles.read(tmp_path / "run")
    signature = files.signature()
    assert str(signature) == "input: float32[batch, 2] -> output: float32[batch, 1]"
    assert signature.inputs[0].range == (0.0, 2.0)
    model = burnt.load(tmp_path / "run")
    (output,) = signature.call(model, signature.example(5))
    assert output.shape == (5, 1)
    assert files.source is not None
    assert (files.source.module, files.source.model) == ("burnt.nn.linear", "Linear")


def test_a_model_that_is_not_called_has_no_known_inputs(tmp_path: Path) -> None:
    def uses_parts(model: torch.nn.Module, batch: Batch) -> StepOutput:
        return StepOutput(model.weight.square().mean(), targets=batch.x)  # type: ignore[operator, union-attr]

    data = Loader(TensorDataset(x=torch.rand(8, 2)), 4)
    settings = {"train": data, "duration": "1 epoch", "monitor": "off", "device": "cpu"}
    learner = Learner(torch.nn.Linear(2, 1), optim.Sgd(), 0.1, step=uses_parts)
    SupervisedTraining(tmp_path / "run", **settings).run(learner)
    with pytest.raises(UnsupportedError, match="never the model itself"):
        RunFiles.read(tmp_path / "run").signature()


def test_names_of_classes_come_from_the_dataset(tmp_path: Path) -> None:
    data = TensorDataset(x=torch.rand(8, 2))
    data.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    subset = torch.utils.data.Subset(data, list(range(8)))
    batches = torch.utils.data.DataLoader(subset, 4, collate_fn=lambda items: Batch(x=torch.rand(4, 2)))
    settings = {"train": batches, "duration": "1 epoch", "monitor": "off", "device": "cpu"}
    SupervisedTraining(tmp_path / "run", **settings).run(
        Learner(nn.Linear(2, 1), optim.Sgd(), 0.1, step=step)
    )
    assert RunFiles.read(tmp_path / "run").classes == ["cat", "dog"]
