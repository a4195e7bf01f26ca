"""`burnt serve`: names of models, settings, errors before anything is served, the folder of an image."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import burnt
from burnt import nn, optim
from burnt.cli import main
from burnt.data import Batch, Loader, TensorDataset
from burnt.serve import OnnxModel, RunModel, process
from burnt.train import KeepLast, Learner, StepOutput, SupervisedTraining
from tests import forked
from tests.cli.commands import printed, refused
from tests.fixtures import Capture, Patch
from tests.serve import onnx_files


def step(model: torch.nn.Module, batch: Batch) -> StepOutput:
    return StepOutput(model(batch.x).square().mean(), targets=batch.x)


@pytest.fixture
def run(desk: Path) -> Path:
    """A run `net` in runs/."""
    data = Loader(TensorDataset(x=torch.rand(8, 2)), 4)
    training = SupervisedTraining(
        "runs/net", train=data, duration="2 epochs", monitor="off", device="cpu", checkpoints=[KeepLast(3)]
    )
    training.run(Learner(nn.Linear.Config(in_features=2, out_features=3).init(), optim.Sgd(), 0.1, step=step))
    return Path("runs/net")


class Served:
    """Takes the place of `serve`: notes what would be served."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {}
        self.settings: Any = None
        self.access_log = False

    def __call__(self, models: Any, settings: Any, listener: socket.socket, access_log: bool) -> None:
        self.models, self.settings, self.access_log = models, settings, access_log


@pytest.fixture
def served(monkeypatch: Patch) -> Served:
    monkeypatch.setattr(process, "serve", found := Served())
    return found


def test_runs_and_files_by_their_names(run: Path, served: Served, capsys: Capture) -> None:
    onnx_files.write(Path("old.onnx"))
    words = ["net", "b=old.onnx", "old.onnx", "c=runs/net", "--port", "0", "--checkpoint", "last"]
    assert main(["serve", *words]) == 0
    assert list(served.models) == ["net", "b", "old", "c"]
    assert [type(model) for model in served.models.values()] == [RunModel, OnnxModel, OnnxModel, RunModel]
    assert served.models["net"].version == "step-00000004"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "net: input: float32[batch, 2] -> output: float32[batch, 3], step-00000004"
    assert lines[-1].startswith("listening on http://127.0.0.1:")


def test_settings_of_options_and_environment(served: Served, monkeypatch: Patch, capsys: Capture) -> None:
    onnx_files.write(Path("m.onnx"))
    monkeypatch.setenv("BURNT_API_KEY", " k3y\n")
    options = "--host 0.0.0.0 --port 0 --max-batch 4 --queue 5 --timeout 6 --max-body 0.5 --drain 7 --reload"
    assert main(["serve", "m.onnx", *options.split(), "--access-log"]) == 0
    settings = served.settings
    assert (settings.max_batch, settings.max_queue, settings.timeout, settings.max_body) == (4, 5, 6.0, 2**19)
    assert (settings.drain, settings.reload, settings.api_key) == (7.0, 2.0, "k3y")
    assert served.access_log
    captured = capsys.readouterr()
    assert "k3y" not in captured.out + captured.err
    assert "warning" not in captured.err
    monkeypatch.delenv("BURNT_API_KEY")
    assert "everybody who reaches 0.0.0.0 is served: set BURNT_API_KEY" in refused(
        capsys, "serve", "m.onnx", "--host", "0.0.0.0", "--port", "0", code=0
    )
    assert (served.settings.reload, served.settings.allowed_hosts) == (None, ())
    assert main(["serve", "m.onnx", "--port", "0", "--allowed-host", "a", "--allowed-host", "b.c"]) == 0
    assert served.settings.allowed_hosts == ("a", "b.c")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["runs/none"], 2, "there is no folder 'runs/none'"),
        (["none.onnx"], 1, "the ONNX file cannot be read"),
        (["a b=m.onnx"], 2, "a model needs a name"),
        (["a="], 2, "a model needs a name"),
        (["a=m.onnx", "a=m.onnx"], 2, "two models are named 'a'"),
        (["m.onnx", "b=m.onnx", "--example", "1x2"], 2, "describe one run"),
        (["m.onnx", "--max-batch", "0"], 2, "--max-batch is invalid"),
        (["m.onnx", "--timeout", "nan"], 2, "--timeout is invalid"),
        (["m.onnx", "--port", "70000"], 1, "there is no such port"),
        (["m.onnx", "--host", "256.0.0.1"], 1, "cannot listen at this address"),
    ],
)
def test_what_is_refused(
    served: Served, capsys: Capture, words: Sequence[str], code: int, message: str
) -> None:
    onnx_files.write(Path("m.onnx"))
    assert message in refused(capsys, "serve", "--port", "0", *words, code=code)
    assert not served.models


def test_a_port_in_use_is_said_before_models_are_loaded(served: Served, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "none.onnx", "--port", str(port)]) == 1
    assert f"the port is in use\n  in        127.0.0.1:{port}" in capsys.readouterr().err


def test_an_empty_key_is_refused(served: Served, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("BURNT_API_KEY", "")
    assert "BURNT_API_KEY is empty" in refused(capsys, "serve", "m.onnx")


def test_the_folder_of_an_image_holds_the_file(served: Served, capsys: Capture) -> None:
    onnx_files.write(Path("m.onnx"))
    options = ["--port", "9000", "--max-batch", "64", "--allowed-host", "models.example"]
    text = printed(capsys, "serve", "a=m.onnx", "--container", "image", *options)
    assert "podman build -t a image" in text
    assert "cd image && python -m burnt serve a=a.onnx --host 0.0.0.0 --port 9000 --max-batch 64" in text
    assert "--allowed-host models.example" in text
    assert "EXPOSE 9000" in Path("image/Containerfile").read_text()
    assert Path("image/a.onnx").read_bytes() == Path("m.onnx").read_bytes()
    assert not served.models


@pytest.mark.full
def test_the_folder_of_an_image_holds_the_model_of_a_run(run: Path) -> None:
    assert main(["serve", "net", "--container", "image"]) == 0
    file = OnnxModel(Path("image/net.onnx"))
    model = burnt.load(run)
    x = torch.rand(3, 2)
    torch.testing.assert_close(torch.from_numpy(file.run([x.numpy()])[0]), model(x).detach())
    assert file.version == "step-00000004"
    assert json.loads(Path("image/Containerfile").read_text().partition("\nCMD ")[2])[4] == "net=net.onnx"


def test_missing_packages_are_named_before_anything_imports_them() -> None:
    done = forked.run(
        "import sys\n"
        "sys.modules |= dict.fromkeys(('starlette', 'prometheus_client'))\n"
        "from burnt.cli import main\n"
        "sys.exit(main(['serve', 'runs/digits']))"
    )
    assert done.returncode == 1
    assert "found     no starlette, no prometheus_client" in done.stderr
    assert "pip install burnt[serve]" in done.stderr
