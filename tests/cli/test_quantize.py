"""`burnt quantize`: of a run and of a file, what is written loads again, and the messages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import burnt
from burnt._modules import import_file
from burnt.cli import main
from burnt.cli.output import step_bar
from tests.cli.commands import in_terminal, printed, refused, run_script
from tests.fixtures import Capture

CODE = """
import torch
import burnt
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.train import ClassificationOutput, Learner, SupervisedTraining

class Net(burnt.Module):
    first: nn.Linear
    norm: nn.LayerNorm
    head: nn.Linear

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.first(x))))

    def training_step(self, batch):
        logits = self(batch.picture)
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)

class Run(burnt.Config):
    width: int = 64

    def init(self) -> Net:
        torch.manual_seed(0)
        return Net(nn.Linear(8, self.width), nn.LayerNorm(self.width), nn.Linear(self.width, 3))

def data(count=40):
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (count,), generator=generator)
    return TensorDataset(picture=torch.randn(count, 8, generator=generator) + y[:, None], y=y)

def splits(config: Run):
    return {"test": data(config.width), "train": Loader(data(), 8)}

nothing = {}
plain_inputs = [torch.zeros(2, 8), torch.ones(2, 8)]
number = 3

def plain():
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))

if __name__ == "__main__":
    SupervisedTraining(
        "runs/net", train=Loader(data(), 8), duration="2 epochs", monitor="off", device="cpu", config=Run()
    ).run(Learner(Run().init(), optim.Sgd(), 0.1))
    torch.manual_seed(1)
    burnt.record.record_of(plain()).save("plain.safetensors")
    Run().init().save("net.safetensors")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_script(tmp_path_factory, "nets.py", CODE)


@pytest.fixture(autouse=True)
def here(desk: Path, trained: Path) -> Path:
    shutil.copytree(trained, desk, dirs_exist_ok=True)
    return desk


def quantized(capsys: Capture, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["quantize", *words, "--json", "--device", "cpu"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def failure(capsys: Capture, *words: str) -> str:
    capsys.readouterr()
    assert main(["quantize", *words, "--device", "cpu"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_a_run_becomes_a_file_that_the_class_loads(here: Path, capsys: Capture) -> None:
    found = quantized(capsys, "net", "--scheme", "int8", "--skip", "head")
    assert found["file"] == "net-int8.safetensors"
    assert found["bytes"] == (here / "net-int8.safetensors").stat().st_size
    assert [(layer["path"], layer["scheme"]) for layer in found["layers"]] == [
        ("first", "int8"), ("norm", None), ("head", None)
    ]  # fmt: skip
    nets = import_file(here / "nets.py")
    loaded = nets.Net.load("net-int8.safetensors").eval()
    by_hand = burnt.load("runs/net", import_code=True)
    burnt.quantize(by_hand, "int8", skip="head")
    x = torch.randn(5, 8)
    assert torch.equal(loaded(x), by_hand(x))
    assert type(loaded.first).__name__ == "QuantizedLinear"


def test_options_reach_quantize(capsys: Capture, here: Path) -> None:
    words = ["net", "--scheme", "Q4S-block32", "--override", "head=int8-tensor", "--weights", "minmax"]
    found = quantized(capsys, *words, "-o", "a.safetensors", "--plot", "a.svg", "--only", "*")
    schemes = {layer["path"]: layer["scheme"] for layer in found["layers"]}
    assert schemes == {"first": "int4-block32-narrow", "norm": None, "head": "int8-tensor"}
    assert (here / "a.svg").read_text().startswith("<svg")
    by_hand = import_file(here / "nets.py").Net.load("a.safetensors")
    assert by_hand.head.scheme.name == "int8-tensor"


def test_a_file_is_quantized_with_a_class_or_a_function(capsys: Capture, here: Path) -> None:
    found = quantized(capsys, "net.safetensors", "--model", "nets.py:Net")
    assert found["file"] == "net-int8.safetensors"
    assert import_file(here / "nets.py").Net.load(found["file"]).first.values.dtype == torch.int8
    found = quantized(capsys, "plain.safetensors", "--model", "nets.py:plain", "--scheme", "fp8")
    assert found["source"] == "plain.safetensors"
    model, original = import_file(here / "nets.py").plain(), import_file(here / "nets.py").plain()
    burnt.load_weights(model, found["file"])
    burnt.load_weights(original, "plain.safetensors")
    error = (model[2].weight - original[2].weight).norm() / original[2].weight.norm()
    assert 0 < error < 0.05


def test_calibration_takes_the_models_inputs_of_batches(capsys: Capture, here: Path) -> None:
    # The batches' column is not an argument of the model: the training step's use of it is known.
    words = ["net", "--scheme", "int8-static", "--data", "nets.py:splits", "--activations", "percentile"]
    assert main(["quantize", *words, "--batches", "3", "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    assert "calibrating on train, not on test" in printed.err
    found = json.loads(printed.out)
    assert found["batches"] == 3
    errors = [layer["output_error"] for layer in found["layers"] if layer["scheme"]]
    assert len(errors) == 2
    assert all(0 < error < 0.05 for error in errors)
    nets = import_file(here / "nets.py")
    loaded, original = nets.Net.load(found["file"]).eval(), burnt.load("runs/net", import_code=True)
    x = nets.data().columns["picture"]
    assert 0 < (loaded(x) - original(x)).norm() / original(x).norm() < 0.05


@pytest.mark.full
def test_auto_is_bounded_and_a_page_says_what_was_calibrated(capsys: Capture) -> None:
    words = ["plain.safetensors", "--model", "nets.py:plain", "--data", "nets.py:plain_inputs"]
    shown = printed(capsys, "quantize", *words, "--scheme", "auto", "--bound", "1e-9", "--device", "cpu")
    assert "calibrated on 2 batches" in shown
    assert "0 layers quantized" in shown


def test_the_report_is_a_page_with_a_line_for_each_layer(capsys: Capture) -> None:
    first, *lines = printed(capsys, "quantize", "runs/net", "--skip", "head", "--device", "cpu").splitlines()
    assert re.fullmatch(r"runs/net, step-\d+ -> net-int8.safetensors, [\d.]+ kB", first)
    assert any(re.fullmatch(r"  first +Linear +int8 +2\.3 kB -> 1\.0 kB +\d+\.\d dB", line) for line in lines)
    assert "  Linear: skip='head'  (head)" in lines


def test_files_are_replaced_by_force_alone(capsys: Capture, here: Path) -> None:
    (here / "net-int8.safetensors").write_text("old")
    assert "error: the file exists" in failure(capsys, "net")
    assert (here / "net-int8.safetensors").read_text() == "old"
    (here / "old.svg").touch()
    assert "--force replaces it" in failure(capsys, "net", "-o", "b.safetensors", "--plot", "old.svg")
    quantized(capsys, "net", "--force")
    assert (here / "net-int8.safetensors").stat().st_size > 1000
    source = failure(
        capsys, "plain.safetensors", "--model", "nets.py:plain", "-o", "plain.safetensors", "--force"
    )
    assert "the file would replace its source" in source


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nte"], "did you mean runs/net?"),
        (["net", "--scheme", "int9"], "there is no quantization scheme 'int9'"),
        (["net", "--override", "head"], "expected  PATTERN=SCHEME"),
        (["net", "--override", "head=int9"], "--override"),
        (["net", "--scheme", "int8-static"], "int8-static needs calibration data"),
        (["net", "--scheme", "auto"], "auto needs calibration data"),
        (["net", "--smooth", "0.5"], "--smooth needs calibration data"),
        (["net", "--out", "net.onnx"], "a name that ends with .safetensors"),
        (["net", "--out", "no/net.safetensors"], "hint      mkdir -p no"),
        (["net", "--plot", "error.png"], "a name that ends with .svg"),
        (["plan.safetensors"], "did you mean plain.safetensors?"),
        (["runs/x.pt"], "there is no file 'runs/x.pt'"),
        (["net", "--batches", "0"], "--batches is invalid"),
        (["net.safetensors"], "a model that the Config __main__.Run built"),
        (["plain.safetensors"], "--model MODULE:NAME"),
        (["plain.safetensors", "--model", "nets.py:number"], "is not a model"),
        (["net", "--data", "nets.py:number"], "gives no batches"),
        (["net", "--data", "nets.py:nothing"], "an empty dict"),
        (["net", "--data", "nets.py:dta"], "did you mean 'data'?"),
    ],
)
def test_a_wrong_argument_is_refused_and_nothing_is_written(
    words: list[str], message: str, capsys: Capture, here: Path
) -> None:
    before = sorted(here.iterdir())
    assert message in failure(capsys, *words)
    assert [path for path in sorted(here.iterdir()) if path.name != "__pycache__"] == before


def test_what_cannot_be_quantized_is_exit_code_1(capsys: Capture, here: Path) -> None:
    assert "did you mean 'head'?" in refused(
        capsys, "quantize", "net", "--skip", "haed", "--device", "cpu", code=1
    )
    error = refused(
        capsys, "quantize", "plain.safetensors", "--model", "nets.py:Net", "--device", "cpu", code=1
    )
    assert "holds no Config" in error
    assert "--model MODULE:NAME of a function" in error
    assert not list(here.glob("*-int8.safetensors"))


PROGRAM = """
import time
from burnt.cli.output import step_bar
with step_bar() as advance_to:
    advance_to("calibrating", 1, 0)
    time.sleep(0.2)
    advance_to("quantizing first", 3, 7)
    time.sleep(0.2)
"""


def test_a_file_is_quantized_once(capsys: Capture, here: Path) -> None:
    quantized(capsys, "plain.safetensors", "--model", "nets.py:plain")
    words = ["plain-int8.safetensors", "--model", "nets.py:plain", "--scheme", "int4", "--device", "cpu"]
    message = refused(capsys, "quantize", *words, code=1)
    assert "no layer was quantized, and no file written" in message
    assert "it is quantized already: int8" in message
    assert "start from the weights before they were quantized" in message
    assert not (here / "plain-int8-int4.safetensors").exists()


def test_the_bar_shows_text_and_count_in_a_terminal_alone(capfd: Capture) -> None:
    with step_bar() as advance_to:
        advance_to("quantizing", 1, 2)
    assert capfd.readouterr().err == ""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", in_terminal("-c", PROGRAM, columns=100))
    assert "calibrating" in text
    assert re.search(r"3/7.*quantizing first", text)
