"""`burnt check`: what is checked without training, and the messages of what is wrong."""

from __future__ import annotations

import json
import resource
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import yaml

import burnt
from burnt.cli import main
from tests.fixtures import Capture

CODE = """
import torch
import burnt
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.train import ClassificationOutput, EarlyStopping, KeepBest, Learner, Plateau
from burnt.train import SupervisedTraining
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss, Metric

class Net(burnt.Module):
    first: nn.Linear
    second: nn.Linear

    def forward(self, x):
        return self.second(self.first(x))

    def training_step(self, batch):
        logits = self(batch.x)
        loss = torch.nn.functional.cross_entropy(logits, batch.y, reduction=settings.reduction)
        return ClassificationOutput(loss, logits, batch.y)

    def validation_step(self, batch):
        assert not self.training
        if settings.validation == "breaks":
            batch.z
        if settings.validation == "values" and batch.x.sum().item() == 0:
            raise ValueError("no values")
        return self.training_step(batch)

class Config(burnt.Config):
    hidden: int = 16
    entered: int = 16
    reduction: str = "mean"
    validation: str = "works"
    metric: str = "accuracy"
    monitored: str = "loss"
    lr: float = 0.1
    classes: int = 4

    def init(self):
        return Net(nn.Linear(3, self.hidden), nn.Linear(self.entered, 4))

class Valued(Metric):
    name = "valued"
    def update(self, output):
        self.add(torch.tensor(output.loss.item()), 1)

class Wrong(Metric):
    name = "wrong"
    def update(self, output):
        self.add(output.logits.sum(), 1)

METRICS = {"accuracy": Accuracy, "valued": Valued, "wrong": Wrong}
after = []

def main(config: Config) -> None:
    global settings
    settings = config
    torch.manual_seed(0)
    data = TensorDataset(x=torch.randn(10, 3), y=torch.zeros(10, dtype=torch.int64))
    training = SupervisedTraining(
        "runs/net", train=Loader(data, 4), valid=Loader(data, 5), duration="3 epochs",
        metrics=[METRICS[config.metric](), ConfusionMatrix(config.classes)],
        checkpoints=[KeepBest(Loss() if config.monitored == "loss" else config.monitored)],
        stopping=EarlyStopping(Loss(), patience="3 epochs"), config=config,
    )
    training.run(Learner(config.init(), optim.AdamW(), Plateau(config.lr, "loss", patience="1 epoch")))
    raise AssertionError("it went on after the training")

def careful(config: Config) -> None:
    try:
        main(config)
    except Exception:
        raise AssertionError("a check is not a failure of the training")
    finally:
        print("tidied up")

def other(config: Config) -> None:
    print("nothing to do")

def broken(config: Config) -> None:
    raise KeyError("no such column")
"""


@pytest.fixture(autouse=True)
def program(desk: Path) -> Path:
    (desk / "nets.py").write_text(textwrap.dedent(CODE))
    return desk


def check(*words: str) -> int:
    return main(["check", *words])


def test_a_training_is_checked_and_nothing_is_written(program: Path, capsys: Capture) -> None:
    before = sorted(program.rglob("*"))
    assert check("nets.py:main") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("nets.py:main  ok, ")
    assert [line.split(maxsplit=1) for line in lines[1:]] == [
        ["model", "Net, 132 parameters"],
        ["train", "batch.x (4, 3), batch.y (4,) -> loss (), outputs (4, 4), targets (4,)"],
        ["valid", "batch.x (5, 3), batch.y (5,) -> loss (), outputs (5, 4), targets (5,)"],
        ["metrics", "loss, accuracy, confusion"],
        ["schedule", lines[5].split(maxsplit=1)[1]],
        ["checkpoints", "KeepBest by valid/loss"],
        ["duration", "3 epochs, 9 steps"],
    ]
    assert lines[5].endswith(": 0.1 .. 0.1 .. 0.1")
    assert sorted(program.rglob("*")) == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("entered=17", "ShapeError in model.second   Linear(17 -> 4)"),
        ("reduction=none", "the loss of the training step is not a scalar"),
        ("classes=5", "confusion was built for another number of classes"),
        ("monitored=f1", "KeepBest monitors a metric that the run does not have"),
        ("metric=wrong", "wrong does not take the output of the training step"),
        ("validation=breaks", "this batch has no 'z', it has: x, y"),
        ("lr=-1", "Constant cannot be built"),
    ],
)
def test_what_is_wrong_is_said_and_the_exit_code_is_1(setting: str, message: str, capsys: Capture) -> None:
    assert check("nets.py:main", setting) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("nets.py:main  failed, ")
    assert f"rror: {message}" in captured.err


@pytest.mark.full
def test_several_functions_each_with_its_settings(capsys: Capture) -> None:
    assert check("nets.py:main", "hidden=5", "entered=5", "nets.py:other", "nets.py:careful", "--json") == 1
    captured = capsys.readouterr().out
    assert captured.startswith("nothing to do\ntidied up\n")
    results = json.loads(captured[captured.index("[") :])
    assert [(result["target"], result["ok"]) for result in results] == [
        ("nets.py:main", True),
        ("nets.py:other", False),
        ("nets.py:careful", True),
    ]
    assert results[0]["checked"]["model"] == "Net, 44 parameters"
    assert results[2]["checked"]["model"] == "Net, 132 parameters"
    assert results[1]["error"].splitlines() == [
        "DefinitionError: the function trains nothing",
        "  in        other",
        "  expected  a call of SupervisedTraining.run",
        "  found     none",
    ]


def test_an_error_of_the_function_keeps_its_traceback(capsys: Capture) -> None:
    assert check("nets.py:broken") == 1
    captured = capsys.readouterr().err
    assert "in broken" in captured
    assert captured.endswith("KeyError: 'no such column'\n")


def test_what_needs_values_is_run_with_them(capsys: Capture) -> None:
    assert check("nets.py:main", "metric=valued") == 0
    assert "warning" not in capsys.readouterr().out
    assert check("nets.py:main", "validation=values") == 0
    lines = capsys.readouterr().out.splitlines()
    (warning,) = [line for line in lines if "warning" in line]
    assert warning.startswith("  warning  not checked: validation step, model: RuntimeError: Tensor.item()")
    assert check("nets.py:main", "validation=values", "metric=wrong") == 1
    assert (
        "AttributeError: 'ClassificationOutput' object has no attribute 'logits'" in capsys.readouterr().err
    )


LARGE = """
import torch
import burnt
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining

calls = []

class Config(burnt.Config):
    layers: int = 30
    width: int = 4096
    last: int = 4096
    move: bool = False

def step(model, batch):
    outputs = model(batch.x)
    return StepOutput(outputs.mean(), outputs, batch.x)

def main(config: Config):
    layers = [torch.nn.Linear(config.width, config.width) for _ in range(config.layers)]
    layers[1].weight = layers[0].weight  # tied
    model = torch.nn.Sequential(*layers, torch.nn.Linear(config.last, 1))
    calls.append(layers[0].weight.device.type)
    if config.move:
        model.to("cpu")
    data = TensorDataset(x=torch.zeros(8, config.width))
    SupervisedTraining("runs/large", train=Loader(data, 4), duration="1 epoch").run(
        Learner(model, optim.AdamW(), 1e-3, step=step)
    )
"""


def test_parameters_take_no_memory_and_tied_ones_stay_tied(desk: Path, capsys: Capture) -> None:
    (desk / "large.py").write_text(LARGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert check("large.py:main") == 0  # 2 GB of parameters
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
    assert f"Sequential, {29 * 4096**2 + 30 * 4096 + 4097:,} parameters" in capsys.readouterr().out
    assert check("large.py:main", "last=5") == 1
    assert "ShapeError in model.30   Linear(5 -> 1)" in capsys.readouterr().err


def test_a_function_that_needs_values_is_called_again_with_them(desk: Path, capsys: Capture) -> None:
    (desk / "large.py").write_text(LARGE)
    assert check("large.py:main", "layers=2", "width=4", "last=4", "move=true") == 0
    assert "Sequential, 29 parameters" in capsys.readouterr().out
    assert sys.modules["large"].calls == ["meta", "cpu"]
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"


def test_mistakes_in_the_command_line(capsys: Capture) -> None:
    assert check("hidden=3", "nets.py:main") == 2
    assert "settings follow their function" in capsys.readouterr().err
    assert check("nets.py:man") == 2
    assert "did you mean 'main'?" in capsys.readouterr().err
    assert check("nets.py:main", "hiden=3") == 2
    assert "hidden" in capsys.readouterr().err


def test_the_hook_of_pre_commit_calls_the_command() -> None:
    file = Path(burnt.__file__).parents[1] / ".pre-commit-hooks.yaml"
    (hook,) = yaml.safe_load(file.read_text())
    assert hook["entry"] == "burnt check"
    assert not hook["pass_filenames"]


TWO_OPTIMIZERS = """
import torch
import burnt
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining

class Two(burnt.Module):
    a: nn.Linear
    b: nn.Linear

    def training_step(self, batch, optimizers):
        hidden = self.a(batch.x)
        optimizers["a"].step(hidden.square().mean())
        loss = self.b(hidden.detach()).square().mean()
        if config.values:
            burnt.log(size=loss.item())
        optimizers[config.name].step(loss)
        return StepOutput(loss.detach(), targets=batch.x)

class Config(burnt.Config):
    values: bool = False
    name: str = "b"

def main(given: Config):
    global config
    config = given
    model = Two(nn.Linear(3, 2), nn.Linear(2, 1))
    loader = Loader(TensorDataset(x=torch.ones(4, 3)), 2)
    training = SupervisedTraining("runs/two", train=loader, duration="1 epoch")
    training.run(Learner(model, {"a": optim.Adam(), "b": optim.Sgd()}, {"a": 0.1, "b": 0.2}))
"""


@pytest.mark.full
def test_several_optimizers(desk: Path, capsys: Capture) -> None:
    (desk / "two.py").write_text(TWO_OPTIMIZERS)
    for settings in ((), ("values=true",)):
        assert check("two.py:main", *settings) == 0
        captured = capsys.readouterr().out
        assert "two.py:main  ok" in captured
        assert "a: Constant(lr=0.1), b: Constant(lr=0.2)" in captured
        assert "batch.x (2, 3) -> loss (), targets (2, 3)" in captured
        assert ("warning  not checked: " in captured) == bool(settings)
    assert check("two.py:main", "name=c") == 1
    assert "there is no optimizer of this name" in capsys.readouterr().err
