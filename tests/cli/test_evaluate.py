"""`burnt evaluate`: where data, metrics and step come from, what is recorded, and the messages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from burnt._modules import import_file
from burnt.cli import main
from burnt.monitor.data.event_text import event_text
from burnt.store import RunReader, RunWriter
from tests.cli.commands import printed, refused, run_script
from tests.fixtures import Capture

CODE = """
import torch
import burnt
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.train import ClassificationOutput, Learner, SupervisedTraining
from burnt.train.metrics import Accuracy, ConfusionMatrix, Metric

class Net(burnt.Module):
    layer: nn.Linear

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch):
        logits = self(batch.x)
        loss = torch.nn.functional.cross_entropy(logits, batch.y, ignore_index=9)
        return ClassificationOutput(loss, logits, batch.y)

class Run(burnt.Config):
    items: int = 12
    classes: int = 3

    def init(self):
        torch.manual_seed(0)
        return Net(nn.Linear(2, self.classes))

class Largest(Metric):
    name = "largest"
    higher_is_better = True

    def __init__(self, scale: float = 1.0, name: str | None = None):
        super().__init__(name)
        self.scale = scale

    def update(self, output):
        self.add(output.outputs.amax(1).sum() * self.scale, len(output.outputs))

class Secret(Metric):
    name = "secret"

    def __init__(self, key):
        super().__init__()

    def update(self, output):
        self.add(output.loss, 1)

def dataset(count=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=generator)
    y[0] = 9
    return TensorDataset(x=torch.randn(count, 2, generator=generator), y=y)

def main(config: Run):
    items = dataset()
    items.classes = ["a", "b", "c"]
    data = Loader(items, 4)
    metrics = [Accuracy(ignore_index=9), Largest(10.0), ConfusionMatrix(3, ["a", "b", "c"], ignore_index=9)]
    SupervisedTraining(
        "runs/net", train=data, valid=data, duration="2 epochs", metrics=[*metrics, *extra], monitor="off",
        device="cpu", config=config,
    ).run(Learner(config.init(), optim.Sgd(), 0.1))

extra = []
test = Loader(dataset(8, 1), 4)
plain = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.zeros(3))
number = 3

def other_classes():
    data = dataset()
    data.classes = ["a", "c"]
    return data

def splits():
    return {"test": dataset(8, 1), "rotated": Loader(dataset(6, 2), 2)}

def sized(config: Run):
    return dataset(config.items, 5)

def own_step(model, batch):
    return ClassificationOutput(model(batch.x).mean() * 0 + 7, model(batch.x), batch.y)

def failing():
    raise KeyError("no file")

def opening():
    return open("rows.csv").read()

several = [Accuracy(name="first"), Largest()]

if __name__ == "__main__":
    main(Run(items=5))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_script(tmp_path_factory, "evaluated.py", CODE)


@pytest.fixture(autouse=True)
def run(desk: Path, trained: Path) -> Path:
    shutil.copytree(trained, desk, dirs_exist_ok=True)
    return desk / "runs" / "net"


def evaluate(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main(["evaluate", "net", "--json", "--device", "cpu", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def by_hand(count: int, seed: int) -> dict[str, float]:
    import evaluated  # type: ignore[import-not-found]

    import burnt

    data = evaluated.dataset(count, seed).columns
    logits = burnt.load("runs/net")(data["x"]).detach()
    counted = data["y"] != 9
    return {
        "accuracy": float((logits.argmax(1) == data["y"])[counted].double().mean()),
        "largest": float(10 * logits.amax(1).mean()),
    }


def test_the_metrics_of_the_run_are_built_again_with_their_arguments(capsys: Capture) -> None:
    found = evaluate(capsys, "--data", "evaluated.py:splits")
    assert list(found["values"]) == ["test", "rotated"]
    assert found["items"] == {"test": 8, "rotated": 6}
    for split, count, seed in (("test", 8, 1), ("rotated", 6, 2)):
        values = found["values"][split]
        assert list(values) == ["loss", "accuracy", "largest"]
        for name, expected in by_hand(count, seed).items():
            assert values[name] == pytest.approx(expected)
    table = found["tables"]["test/confusion"]
    assert table["columns"] == ["target", "a", "b", "c"]
    assert sum(sum(row[1:]) for row in table["rows"]) == 7  # without the ignored label
    assert (found["checkpoint"], found["step"]) == ("step-00000006", 6)


def test_a_table_for_people(capsys: Capture) -> None:
    lines = printed(
        capsys, "evaluate", "net", "--data", "evaluated.py:splits", "--device", "cpu"
    ).splitlines()
    assert lines[0] == "runs/net, step-00000006"
    assert lines[1].split() == ["metric", "test", "rotated"]
    assert [line.split()[0] for line in lines[2:6]] == ["loss", "accuracy", "largest", "items"]
    assert re.fullmatch(r"class +precision +recall +f1 +count", lines[8].strip())


def test_data_is_a_value_a_function_or_a_function_of_the_runs_config(capsys: Capture) -> None:
    assert evaluate(capsys, "--data", "evaluated.py:test")["items"] == {"test": 8}
    assert evaluate(capsys, "--data", "evaluated:sized")["items"] == {"sized": 5}  # of the run
    assert evaluate(capsys, "--data", "evaluated:dataset")["items"] == {"dataset": 12}  # its defaults


def test_data_whose_classes_have_other_numbers_is_refused(capsys: Capture) -> None:
    message = refused(capsys, "evaluate", "net", "--data", "evaluated.py:other_classes", code=1)
    assert "in        other_classes, classes\n  expected  1 is 'b', of a, b, c\n" in message


def test_checkpoint_metrics_and_step_can_be_chosen(capsys: Capture) -> None:
    data = ("--data", "evaluated.py:test")
    found = evaluate(capsys, *data, "--checkpoint", "3", "--metrics", "accuracy, evaluated.py:several")
    assert found["checkpoint"] == "step-00000003"
    assert list(found["values"]["test"]) == ["loss", "accuracy", "first", "largest"]
    assert found["values"]["test"]["accuracy"] != found["values"]["test"]["first"]  # which counts 9 as wrong
    found = evaluate(capsys, *data, "--metrics", "Loss", "--step", "evaluated.py:own_step")
    assert found["values"]["test"] == {"loss": 7.0}


def test_recorded_values_are_an_event_and_tables_of_the_run(run: Path, capsys: Capture) -> None:
    found = evaluate(capsys, "--data", "evaluated.py:test", "--record")
    with RunReader(run) as reader:
        (event,) = reader.events("evaluation")
        assert event.step == 6
        assert event.data["values"] == found["values"]["test"]
        assert (event.data["split"], event.data["checkpoint"]) == ("test", "step-00000006")
        (table,) = reader.artefacts("table", "test/confusion")
        assert table.data == found["tables"]["test/confusion"]
        assert reader.state() == "finished"
    text = event_text(event.kind, event.data)
    assert re.fullmatch(r"test  loss \S+  accuracy \S+  largest \S+  step-00000006", text)


def test_nothing_is_recorded_in_a_run_that_is_being_trained(run: Path, capsys: Capture) -> None:
    with RunWriter.create(run, resume=True, resumed_from_step=6):
        assert "runs/net is being trained: pid" in refused(
            capsys, "evaluate", "net", "--data", "evaluated.py:test", "--device", "cpu", "--record", code=1
        )
    with RunReader(run) as reader:
        assert reader.events("evaluation") == []


def test_a_metric_that_cannot_be_built_is_left_out_with_a_warning(desk: Path, capsys: Capture) -> None:
    evaluated = import_file("evaluated.py")
    evaluated.extra.append(evaluated.Secret("k"))
    (desk / "runs" / "net").rename(desk / "old")
    assert main(["train", "evaluated.py:main"]) == 0
    assert main(["evaluate", "net", "--json", "--device", "cpu", "--data", "evaluated.py:test"]) == 0
    captured = capsys.readouterr()
    assert "warning: the metric 'secret' of the run cannot be built: the attributes of Secret" in captured.err
    assert "secret" not in captured.out
    assert "the metric 'secret' of the run cannot be built" in refused(
        capsys, "evaluate", "net", "--data", "evaluated.py:test", "--metrics", "secret", code=1
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "evaluated.py"], "--data names nothing"),
        (["--data", "evaluated.py:tests"], "did you mean 'test'?"),
        (["--data", "evaluated.py:number"], "evaluated.py:number gives no batches"),
        (["--data", "evaluated.py:own_step"], "must take exactly one parameter"),
        (["--data", "evaluated.py:test", "--metrics", "acuracy"], "did you mean 'accuracy'?"),
        (["--data", "evaluated.py:test", "--metrics", "evaluated.py:Secret"], "needs arguments"),
        (["--data", "evaluated.py:test", "--metrics", "evaluated.py:splits"], "is not a metric"),
        (["--data", "evaluated.py:test", "--step", "evaluated.py:number"], "is not a function"),
        (["--data", "evaluated.py:test", "--batch-size", "0"], "--batch-size is invalid"),
    ],
)
def test_mistakes_in_the_command_line(words: list[str], message: str, capsys: Capture) -> None:
    assert message in refused(capsys, "evaluate", "net", *words)


def test_errors_of_the_code_and_of_the_model(capsys: Capture) -> None:
    with pytest.raises(KeyError, match="no file"):
        main(["evaluate", "net", "--data", "evaluated.py:failing"])
    with pytest.raises(FileNotFoundError, match=r"rows\.csv"):  # with its traceback, unlike our own
        main(["evaluate", "net", "--data", "evaluated.py:opening"])
    assert main(["evaluate", "net", "--data", "evaluated.py:test", "--checkpoint", "first"]) == 1
    assert "did you mean runs/net?" in refused(capsys, "evaluate", "met", "--data", "evaluated.py:test")


def test_a_script_that_trains_when_it_is_imported_does_not_train_again(desk: Path, capsys: Capture) -> None:
    (desk / "careless.py").write_text(
        "import evaluated\nevaluated.main(evaluated.Run())\ntest = evaluated.test\n"
    )
    assert "careless.py trains when it is imported" in refused(
        capsys, "evaluate", "net", "--data", "careless.py:test", code=1
    )
    assert torch.is_grad_enabled()
