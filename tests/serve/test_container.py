"""The folder of a container image: what it holds runs from there, without torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from burnt.errors import BurntError, RecordError, UnsupportedError
from burnt.serve import OnnxModel, write_container
from burnt.serve.container import PACKAGES, locked_requirements
from tests.serve import onnx_files

# Runs burnt where none of the packages that an image lacks can be imported.
WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, "")
from burnt.cli import main
sys.exit(main(sys.argv[1:]))
"""
ABSENT = {"torch", "onnx", "onnxscript", "textual", "transformers", "sklearn", "scipy", "triton"}


def instructions(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "Containerfile").read_text().splitlines()
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in lines if line and not line.startswith("#"))
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one = onnx_files.write(tmp_path / "one.onnx", "Neg")
    two = onnx_files.write(tmp_path / "two.onnx", "Identity")
    write_container(tmp_path / "image", {"first": one, "second": two})
    return tmp_path / "image"


def test_every_instruction_is_known_and_every_file_is_there(folder: Path) -> None:
    found = instructions(folder)
    words = [word for word, _ in found]
    assert words[0] == "FROM"
    assert set(words) <= {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "CMD"}
    assert dict(found)["FROM"] == f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
    assert words.index("USER") < words.index("CMD")
    for word, rest in found:
        if word == "COPY":
            *sources, _ = rest.split()
            assert all((folder / source).exists() for source in sources)
    health = json.loads(dict(found)["HEALTHCHECK"].removeprefix("CMD "))
    compile(health[-1], "healthcheck", "exec")
    command = json.loads(dict(found)["CMD"])
    assert command[:6] == ["python", "-m", "burnt", "serve", "first=first.onnx", "second=second.onnx"]
    assert command[6:] == ["--host", "0.0.0.0", "--port", "8000"]
    assert not list(folder.rglob("__pycache__"))
    text = (folder / "Containerfile").read_text() + (folder / "requirements.txt").read_text()
    assert str(Path.home()) not in text
    assert str(folder.parent) not in text


def test_the_requirements_are_what_is_installed_here_and_complete(folder: Path) -> None:
    lines = (folder / "requirements.txt").read_text().split()
    pinned = dict(line.split("==") for line in lines)
    assert lines == sorted(lines)
    assert set(PACKAGES) <= set(pinned)
    assert {"anyio", "click", "h11", "protobuf"} <= set(pinned)
    assert not {"torch", "onnx", "pytest", "textual"} & set(pinned)
    for name, version in pinned.items():
        assert version == importlib.metadata.version(name)


def test_the_command_of_the_image_serves_without_torch(folder: Path) -> None:
    command = json.loads(dict(instructions(folder))["CMD"])
    assert command[:3] == ["python", "-m", "burnt"]
    arguments = [{"0.0.0.0": "127.0.0.1", "8000": "0"}.get(word, word) for word in command[3:]]
    server = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH.format(absent=ABSENT), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BURNT_API_KEY": "k3y"},
    )
    try:
        assert server.stdout is not None
        address = next((line for line in server.stdout if line.startswith("listening")), "").split()[-1:]
        assert address, server.communicate()[1]
        wait_until_ready(f"{address[0]}/readyz")
        request = urllib.request.Request(
            f"{address[0]}/v1/models/first/predict",
            b'{"inputs": {"x": [1, 2]}}',
            {"Content-Type": "application/json", "Authorization": "Bearer k3y"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.loads(answer.read())["outputs"]["y"] == [-1, -2]
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()


def wait_until_ready(address: str) -> None:
    while True:
        try:
            urllib.request.urlopen(address).close()
            return
        except urllib.error.HTTPError as error:
            error.close()


@pytest.mark.full
def test_pip_installs_the_requirements_where_nothing_else_is(folder: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "plain", with_pip=True)
    python = tmp_path / "plain" / "bin" / "python"
    steps = [rest for word, rest in instructions(folder) if word == "RUN"]
    assert [step.split()[:2] for step in steps] == [["pip", "install"], ["python", "-m"]]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    installed = subprocess.run(
        [python, "-m", *steps[0].split()], cwd=folder, capture_output=True, text=True, env=environment
    )
    if re.search("(Could not find a version|connection|No matching distribution)", installed.stderr, re.I):
        pytest.skip("pip reaches no index that has the packages")
    assert installed.returncode == 0, installed.stderr
    subprocess.run([python, *steps[1].split()[1:]], cwd=folder, check=True, env=environment)
    checked = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    shown = subprocess.run(
        [python, "-m", "burnt", "serve", "first=none.onnx", "--port", "0"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert "the ONNX file cannot be read" in shown.stderr


def test_what_cannot_be_written(tmp_path: Path) -> None:
    file = onnx_files.write(tmp_path / "m.onnx")
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(BurntError, match="cannot be written") as caught:
        write_container(tmp_path / "taken", {"m": file})
    assert "taken" in str(caught.value)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(RecordError, match="cannot load"):
        write_container(tmp_path / "image", {"m": tmp_path / "bad.onnx"})
    with pytest.raises(UnsupportedError, match="not installed here") as unknown:
        locked_requirements(["no-such-package-here"])
    assert "no-such-package-here" in str(unknown.value)


def test_weights_in_a_file_of_their_own_are_refused(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "matmul",
        [value("x", TensorProto.FLOAT, ["batch", 2])],
        [value("y", TensorProto.FLOAT, ["batch", 2])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    file = tmp_path / "m.onnx"
    onnx.save(model, file, save_as_external_data=True, location="m.data", size_threshold=0)
    OnnxModel(file)
    with pytest.raises(RecordError, match=r"cannot load the file(?s:.*)m\.data"):
        write_container(tmp_path / "image", {"m": file})


@pytest.mark.parametrize("name", ["burnt", "Containerfile", "requirements.txt"])
def test_files_that_are_not_of_an_image_are_left_alone(tmp_path: Path, name: str) -> None:
    file = onnx_files.write(tmp_path / "m.onnx")
    checkout = tmp_path / "checkout"
    kept = checkout / ("burnt/mine.py" if name == "burnt" else name)
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(BurntError, match=f"not of an image(?s:.*){name}"):
        write_container(checkout, {"m": file})
    assert [path for path in checkout.rglob("*") if path.is_file()] == [kept]
    assert kept.read_text() == "mine"


def test_a_folder_is_written_again(folder: Path, tmp_path: Path) -> None:
    (folder / "burnt" / "stale.py").write_text("")
    write_container(folder, {"first": folder / "first.onnx"})
    assert not (folder / "burnt" / "stale.py").exists()
    assert json.loads(dict(instructions(folder))["CMD"])[4] == "first=first.onnx"
