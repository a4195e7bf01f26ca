"""`burnt export`: a run's model as a file, and the messages where a run or an argument is wrong."""

import importlib
import importlib.util
import json
import shutil

import numpy as np
import pytest

import burnt
import burnt.onnx
from burnt.cli import main
from burnt.errors import InputValueError
from burnt.train.after.loading import RunFiles
from tests.cli.commands import run_script
from tests.onnx.translations import translations_parsed_once

__all__ = ["translations_parsed_once"]

onnx = pytest.importorskip("onnx", reason="no ONNX here: pip install 'burnt[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="no ONNX Runtime here: pip install 'burnt[onnx]'")

CODE = """
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

model = NetConfig().init()
wrong = torch.nn.Linear(3, 2)
three = 3

def build():
    return NetConfig().init()

def sized(width):
    return NetConfig(width=width).init()

if __name__ == "__main__":
    data = TensorDataset(x=torch.rand(8, 2), y=torch.rand(8, 3))
    data.classes = ["a", "b", "c"]
    training = SupervisedTraining(
        "runs/net", train=Loader(data, 4), duration="3 epochs", monitor="off", device="cpu",
        config=NetConfig(),
    )
    training.run(Learner(NetConfig().init(), optim.Sgd(), 0.1))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run_script(tmp_path_factory, "shipped.py", CODE)


@pytest.fixture(autouse=True)
def run(desk, trained):
    """The folder of a run in the current folder, next to the script that trained it."""
    shutil.copytree(trained, desk, dirs_exist_ok=True)
    return desk / "runs" / "net"


def change(run, **load):
    """Change what a run says about its code and inputs; without any, it is one of an older burnt."""
    file = run / "config.json"
    document = json.loads(file.read_text())
    document["load"].update(load)
    if not load:
        del document["load"]
    file.write_text(json.dumps(document))


def exported(*words):
    return main(["export", *words])


def test_the_file_computes_what_the_run_s_model_computes(run, capsys):
    assert exported("net", "-o", "net.onnx") == 0
    out, err = capsys.readouterr()
    assert err == f"importing {run.parent.parent / 'shipped.py'}\n"
    lines = out.splitlines()
    assert lines[0].startswith("runs/net, step-0000000")
    assert lines[1].startswith("net.onnx, ")
    assert lines[2].strip() == "x: float32[batch, 2] -> output: float32[batch, 3]"
    assert [line.split(":")[0].strip() for line in lines[3:]] == ["batch 1", "batch 3"]
    record = burnt.Record.load(RunFiles.read(run).checkpoint("best").path / "model.safetensors").tensors
    x = np.random.default_rng(0).random((5, 2), dtype=np.float32)
    (found,) = onnxruntime.InferenceSession("net.onnx").run(None, {"x": x})
    expected = x @ record["layer.weight"].numpy().T + record["layer.bias"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    found = {entry.key: entry.value for entry in onnx.load("net.onnx").metadata_props}
    assert found["burnt.run"] == "net"
    assert found["burnt.checkpoint"] == lines[0].split(", ")[1]
    assert json.loads(found["burnt.config"]) == {"width": 3}
    assert json.loads(found["burnt.classes"]) == ["a", "b", "c"]


def test_json_and_options(run, capsys):
    options = ("--checkpoint", "4", "--weights", "float16", "--batch", "4")
    assert exported(str(run), "-o", "net.onnx", "--json", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == "net.onnx"
    assert found["bytes"] == (run.parent.parent / "net.onnx").stat().st_size
    assert found["checkpoint"] == "step-00000004"
    assert found["signature"]["inputs"][0]["shape"] == [4, 2]
    assert set(found["largest_error"]) == {"4"}
    assert onnx.load("net.onnx").graph.initializer[0].data_type in (
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.FLOAT,
    )


def test_options_are_those_of_the_export(run, monkeypatch):
    given = {}

    def export(model, signature, out, **options):
        given.update(options)
        raise InputValueError("not now")

    monkeypatch.setattr(burnt.onnx, "export", export)
    words = ("--tolerance", "0.5", "--no-fold", "--opset", "22", "--open-axis", "x:1=a", "--batch", "2")
    assert exported("net", "-o", "net.onnx", *words) == 1
    del given["metadata"]
    assert given == {
        "batch": 2,
        "open_axes": {"x": {1: "a"}},
        "weights": "float32",
        "fold": False,
        "tolerance": 0.5,
        "opset": 22,
    }


WRONG = {
    "run": (["nett", "-o", "m.onnx"], 2, "did you mean runs/net?"),
    "no run": (["runs", "-o", "m.onnx"], 2, "contains no run"),
    "folder": (["net", "-o", "no/such/m.onnx"], 2, "there is no folder for the file"),
    "a folder": (["net", "-o", "runs"], 1, "it is a folder or a device"),
    "batch": (["net", "-o", "m.onnx", "--batch", "0"], 2, "expected  at least 1"),
    "opset": (["net", "-o", "m.onnx", "--opset", "17"], 2, "expected  18 to 25\n  found     '17'"),
    "tolerance": (["net", "-o", "m.onnx", "--tolerance", "nan"], 2, "expected  a number above 0"),
    "open axis": (["net", "-o", "m.onnx", "--open-axis", "x=1"], 2, "expected  INPUT:AXIS=NAME"),
    "twice": (
        ["net", "-o", "m.onnx", "--open-axis", "x:1=a", "--open-axis", "x:1=b"],
        2,
        "found     x:1=a and x:1=b",
    ),
    "no input": (["net", "-o", "m.onnx", "--open-axis", "y:1=a"], 1, "open_axes= names no input"),
    "checkpoint": (["net", "-o", "m.onnx", "--checkpoint", "bst"], 1, "did you mean 'best'?"),
    "no name": (["net", "-o", "m.onnx", "--model", "shipped"], 2, "module:name or path/file.py:name"),
    "module": (["net", "-o", "m.onnx", "--model", "shiped:Net"], 2, "did you mean 'shipped'?"),
    "name": (["net", "-o", "m.onnx", "--model", "shipped:bild"], 2, "did you mean 'build'?"),
    "no model": (["net", "-o", "m.onnx", "--model", "shipped:three"], 2, "is not a model, and builds none"),
    "argument": (["net", "-o", "m.onnx", "--model", "shipped:sized"], 2, "a function without arguments"),
    "other": (["net", "-o", "m.onnx", "--model", "shipped:wrong"], 1, "does not fit Linear"),
    "example": (["net", "-o", "m.onnx", "--example", "4xa"], 2, "--example 8x3x224x224"),
    "shape": (["net", "-o", "m.onnx", "--example", "4x5"], 1, "found     (4, 5)"),
    "two": (["net", "-o", "m.onnx", "--example", "4x2", "--example", "4"], 1, "expected  forward(x)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name, run, capsys):
    words, code, text = WRONG[name]
    assert exported(*words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert not (run.parent.parent / "m.onnx").exists()


def test_a_run_of_an_older_burnt_needs_a_model_and_an_example(run, capsys):
    change(run)
    assert exported("net", "-o", "m.onnx") == 1
    assert "--model MODULE:NAME" in capsys.readouterr().err
    assert exported("net", "-o", "m.onnx", "--model", "shipped.py:Net") == 1
    assert "--example 2x3x32x32" in capsys.readouterr().err
    assert exported("net", "-o", "m.onnx", "--model", "shipped.py:Net", "--example", "4x2") == 0
    assert "x: float32[batch, 2] -> output: float32[batch, 3]" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("model", ["shipped:build", "shipped:model"])
def test_a_model_that_is_given_is_loaded(model, run):
    change(run)
    assert exported("net", "-o", "m.onnx", "--model", model, "--example", "4x2") == 0


def test_a_run_without_inputs_needs_an_example(run, capsys):
    change(run, signature={"unknown": "a step that never calls the model"})
    assert exported("net", "-o", "m.onnx", "--trust") == 1
    err = capsys.readouterr().err
    assert "a step that never calls the model" in err
    assert "--example" in err
    assert exported("net", "-o", "m.onnx", "--example", "4x2", "--batch", "1") == 0


def test_code_that_has_changed_is_said(run, capsys):
    file = run.parent.parent / "shipped.py"
    file.write_text(CODE + "\n# a remark\n")
    assert exported("net", "-o", "m.onnx", "--trust") == 0  # it is not where the run was trained
    err = capsys.readouterr().err
    assert f"warning: {file} has changed since the run net was started" in err
    assert "run_model.py" not in err


def test_packages_that_are_missing(run, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "onnxscript" else find(name, *_)
    )
    assert exported("net", "-o", "m.onnx") == 1
    err = capsys.readouterr().err
    assert "no onnxscript" in err
    assert "pip install 'burnt[onnx]'" in err
