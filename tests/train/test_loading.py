"""`burnt.load`: the model of a run in another process, and the errors of runs that cannot be loaded."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import CheckpointError, DefinitionError, RecordError, RunError, UnsupportedError
from burnt.record import Record
from burnt.serve.run_model import RunModel
from burnt.train import KeepBest, KeepLast, Learner, StepOutput, SupervisedTraining
from burnt.train.after.loading import RunFiles
from burnt.train.code.source import Source
from tests import forked
from tests.train.cases import refused

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


def train(folder: Path, model: torch.nn.Module, how: Any = step, **settings: object) -> None:
    options = {
        "train": Loader(TensorDataset(x=torch.rand(8, 2)), 4),
        "checkpoints": [KeepLast(3)],
        **settings,
    }
    SupervisedTraining(folder, duration="3 epochs", monitor="off", device="cpu", **options).run(
        Learner(model, optim.Sgd(), 0.1, step=how)
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
    """A copy of that run next to its script, whose module is forgotten afterwards."""
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
        burnt.load(script, trust=True)  # the file is a copy
    sys.modules.pop("shipped_net")
    file.write_text(CODE + "\n# a remark\n")
    with pytest.warns(UserWarning, match="has changed since the run net was started"):
        burnt.load(script, import_code=True)
    sys.modules.pop("shipped_net")
    file.write_text(re.sub(r"\bNet\b", "Network", CODE))
    with refused(RecordError, "does not define its model", "expected  a class Net"):
        burnt.load(script, import_code=True)
    file.unlink()
    sys.modules.pop("shipped_net")
    with pytest.raises(RecordError, match="the code of the run is not found"):
        burnt.load(script, import_code=True)


def test_code_that_trains_when_it_is_imported_does_not_train_again(script: Path) -> None:
    file = script.parent.parent / "shipped_net.py"
    file.write_text(CODE.replace('if __name__ == "__main__":', "if True:").replace("runs/net", "runs/again"))
    with refused(DefinitionError, "shipped_net.py trains when it is imported", "if __name__ == '__main__'"):
        burnt.load(script, trust=True)
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
    with refused(RecordError, "Linear cannot be built from the run", "load(..., model=Linear(...))"):
        burnt.load(tmp_path / "run")
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
        with refused(
            CheckpointError, "the run has no checkpoint", hint, "step-00000002, step-00000004, step-00000006"
        ):
            burnt.load(tmp_path / "run", wanted)
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

    train(tmp_path / "run", torch.nn.Linear(2, 1), uses_parts)
    with pytest.raises(UnsupportedError, match="never the model itself"):
        RunFiles.read(tmp_path / "run").signature()


def test_names_of_classes_come_from_the_dataset(tmp_path: Path) -> None:
    data = TensorDataset(x=torch.rand(8, 2))
    data.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    subset = torch.utils.data.Subset(data, list(range(8)))
    batches = torch.utils.data.DataLoader(subset, 4, collate_fn=lambda items: Batch(x=torch.rand(4, 2)))
    train(tmp_path / "run", nn.Linear(2, 1), train=batches)
    assert RunFiles.read(tmp_path / "run").classes == ["cat", "dog"]


class Centred(burnt.Module):
    """Subtracts a field that is measured after `init`, and counts its training steps in another one."""

    layer: nn.Linear
    mean: float = 0.0
    calls: int = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x - self.mean) * (1 + self.calls)

    def training_step(self, batch: Batch) -> StepOutput:
        output = StepOutput(self(batch.x).square().mean(), targets=batch.x)
        if not batch.x.is_meta:
            self.calls += 1
        return output


class CentredConfig(burnt.Config):
    width: int = 3

    def init(self) -> Centred:
        torch.manual_seed(0)
        return Centred(nn.Linear(2, self.width))


def train_centred(
    folder: Path,
    duration: str,
    mean: float | None = 0.75,
    config: CentredConfig | None = None,
    **settings: object,
) -> torch.nn.Module:
    model = (config or CentredConfig()).init()
    if mean is not None:
        model.mean = mean
    data = Loader(TensorDataset(x=torch.arange(16.0).view(8, 2) / 16), 4)
    training = SupervisedTraining(
        folder, train=data, duration=duration, monitor="plain", device="cpu", **settings
    )
    return training.run(Learner(model, optim.Sgd(), 0.01)).model


@pytest.mark.full
def test_fields_of_the_trained_model_are_those_of_the_loaded_one(tmp_path: Path) -> None:
    x = torch.rand(3, 2)
    expected = train_centred(tmp_path / "run", "2 epochs").eval()(x)
    assert torch.equal(burnt.load(tmp_path / "run")(x), expected)
    served = RunModel(
        CentredConfig().init().eval(),
        RunFiles.read(tmp_path / "run").signature(),
        None,
        tmp_path / "run",
        "step-00000002",
        "last",
    )
    assert torch.equal(served.reloaded().module(x), expected)
    with pytest.warns(UserWarning, match="mean: 0.75 instead of 0.0, calls: 4 instead of 0"):
        into = burnt.load(tmp_path / "run", model=CentredConfig().init())
    assert torch.equal(into(x), expected)
    with pytest.warns(UserWarning, match="mean: 0.75 instead of 0.0"):
        into = burnt.load(tmp_path / "run", model=Centred(nn.Linear(2, 3)))
    assert torch.equal(into(x), expected)


@pytest.mark.sample(1)
@pytest.mark.parametrize("mean", [0.75, None])
def test_a_resumed_run_goes_on_with_the_fields_of_its_checkpoint(
    mean: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.rand(3, 2)
    whole = train_centred(tmp_path / "whole", "3 epochs")
    train_centred(tmp_path / "run", "1 epoch")
    capsys.readouterr()
    resumed = train_centred(tmp_path / "run", "3 epochs", mean, resume=True)
    assert torch.equal(resumed(x), whole(x))
    told = capsys.readouterr().out
    assert "A field of the model is as in the checkpoint: calls: 2 instead of 0" in told
    assert ("mean: 0.75 instead of 0.0" in told) == (mean is None)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    assert torch.equal(train_centred(tmp_path / "again", "3 epochs", resume=True)(x), whole(x))


@pytest.mark.full
def test_a_model_without_a_config_resumes_with_the_programs_fields_but_for_those_that_training_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(duration: str, p: float, resume: bool) -> torch.nn.Module:
        torch.manual_seed(0)
        model = torch.nn.Sequential(Centred(nn.Linear(2, 3)), nn.Dropout(p))
        data = Loader(TensorDataset(x=torch.ones(8, 2)), 4)

        def counted(model: torch.nn.Module, batch: Batch) -> StepOutput:
            return StepOutput(model[0].training_step(batch).loss, targets=batch.x)

        learner = Learner(model, optim.Sgd(), 0.01, step=counted)
        SupervisedTraining(tmp_path, train=data, duration=duration, monitor="plain", resume=resume).run(
            learner
        )
        return model

    run("1 epoch", 0.1, resume=False)
    model = run("2 epochs", 0.2, resume=True)
    assert (model[0].calls, model[1].p) == (4, 0.2)
    told = capsys.readouterr().out
    assert (
        "Warning: a field of the model changed since the checkpoint: 1.p: 0.1 in the file, 0.2 here" in told
    )


def test_a_layer_in_the_body_of_a_torch_class_is_refused_by_the_learner() -> None:
    class Body(torch.nn.Module):
        part = [torch.nn.Linear(2, 2)]

        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(2, 2)

    with refused(DefinitionError, "Body.part would be neither trained nor saved", "model.1.part"):
        Learner(torch.nn.Sequential(torch.nn.ReLU(), Body()), optim.Sgd(), 0.1, step=step)
    Body.part[0].requires_grad_(False)
    Learner(Body(), optim.Sgd(), 0.1, step=step)


def test_a_model_by_hand_may_leave_out_a_layer_and_that_is_said(tmp_path: Path) -> None:
    def model(layer: torch.nn.Module) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(2, 3), layer)

    train(tmp_path, model(torch.nn.Dropout(0.5)))
    with pytest.warns(UserWarning, match=r"1\.class: 'Dropout' in the file, 'Identity' here"):
        burnt.load(tmp_path, model=model(torch.nn.Identity()))
    with pytest.warns(UserWarning, match=r"1\.p: 0\.5 instead of 0\.25"):
        assert burnt.load(tmp_path, model=model(torch.nn.Dropout(0.25)))[1].p == 0.5


def test_a_layer_that_an_older_burnt_had_in_another_module(tmp_path):
    earlier = Source("burnt.nn.gated", "SwiGlu", None, None, None, ())
    assert earlier.import_class(tmp_path, {}) is nn.SwiGlu
