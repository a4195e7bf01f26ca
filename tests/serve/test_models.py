"""Models of runs and in files: their schemas, their outputs, and new versions while they are served."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto

import burnt
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.errors import RecordError, UnsupportedError
from burnt.inspect import signature_of
from burnt.serve import OnnxModel, RunModel, create_app
from burnt.serve.schema import Schema
from burnt.serve.servable import padded_sizes
from burnt.train import KeepLast, Learner, StepOutput, SupervisedTraining
from burnt.train.after.loading import RunFiles
from tests.fixtures import Patch
from tests.serve import onnx_files
from tests.serve.serving import Fake, Gate, ask, client, in_loop, queued, schema_of, served


def step(model: torch.nn.Module, batch: burnt.data.Batch) -> StepOutput:
    return StepOutput(model(batch.x).square().mean(), targets=batch.x)


def train(folder: Path, epochs: int) -> Path:
    torch.manual_seed(0)
    data = Loader(TensorDataset(x=torch.rand(8, 2)), 4)
    training = SupervisedTraining(
        folder, train=data, duration=f"{epochs} epochs", monitor="off", device="cpu",
        checkpoints=[KeepLast(5)], resume=folder.exists(),
    )  # fmt: skip
    training.run(Learner(nn.Linear(2, 3), optim.Sgd(), 0.1, step=step))
    return folder


def of_run(folder: Path) -> RunModel:
    files = RunFiles.read(folder)
    saved = files.checkpoint("last")
    module = burnt.load(folder, "last", nn.Linear(2, 3))
    return RunModel(module, files.signature(), ["a", "b", "c"], folder, saved.path.name, "last")


# --- modules


def test_a_module_runs_on_read_only_memory_that_it_changes() -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    x = np.zeros((1, 2), np.float32)
    x.flags.writeable = False
    (y,) = RunModel(InPlace(), torch.zeros(4, 2)).run([x])
    assert y.tolist() == [[1, 1]]
    assert x.tolist() == [[0, 0]]


def test_bfloat16_comes_and_goes_as_float32() -> None:
    model = RunModel(torch.nn.Linear(2, 1).bfloat16(), torch.zeros(4, 2, dtype=torch.bfloat16))
    assert str(model.schema) == "input: float32[batch, 2] -> output: float32[batch, 1]"
    x = torch.tensor([[0.5, 0.25]])
    with client(model) as http:
        answer = http.post("/v1/predict", json={"inputs": {"input": x.tolist()}}).json()
    assert answer["outputs"]["output"] == model.module(x.bfloat16()).float().tolist()


def test_complex_tensors_are_refused_when_the_model_is_made() -> None:
    with pytest.raises(UnsupportedError, match="cannot pass on") as caught:
        RunModel(torch.nn.Identity(), torch.zeros(2, dtype=torch.complex64))
    assert "complex64" in str(caught.value)


@pytest.mark.parametrize("largest", [1, 2, 3, 8, 12])
def test_padded_sizes_reach_the_largest(largest: int) -> None:
    sizes = padded_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)
    assert all(b <= 2 * a for a, b in itertools.pairwise(sizes))


# --- ONNX files


def test_a_file_of_burnt_has_its_names_checkpoint_and_classes(tmp_path: Path) -> None:
    signature = {
        "inputs": [{"name": "x", "shape": [64, 2], "dtype": "float32", "batch_axis": 0, "range": [0.0, 1.0]}],
        "outputs": [{"name": "y", "shape": [64, 2], "dtype": "float32", "batch_axis": 0, "range": None}],
    }
    metadata = {
        "burnt.signature": json.dumps(signature),
        "burnt.checkpoint": "step-00000090",
        "burnt.classes": '["cat", "dog"]',
    }
    model = OnnxModel(onnx_files.write(tmp_path / "pets.onnx", metadata=metadata))
    assert model.version == model.newest_version() == "step-00000090"
    assert model.schema.to_dict() == {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 2], "range": [0.0, 1.0]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["batch", 2]}],
        "classes": ["cat", "dog"],
    }
    with client(model) as http:
        answer = http.post("/v1/predict", json={"inputs": {"x": [[1, 2], [4, 3]]}}).json()
    assert answer["outputs"]["y"] == [[-1, -2], [-4, -3]]
    assert answer["labels"] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("shape", "expected", "is_batchable"),
    [
        (("batch", 2), "[batch, 2]", True),
        ((None, 2), "[batch, 2]", True),
        ((4, 2), "[4, 2]", False),
        (("batch", "length"), "[batch, any]", True),
        ((), "[]", False),
    ],
)
def test_the_shapes_of_other_files(
    tmp_path: Path, shape: tuple[int | str | None, ...], expected: str, is_batchable: bool
) -> None:
    model = OnnxModel(onnx_files.write(tmp_path / "m.onnx", input_shape=shape))
    assert str(model.schema) == f"x: float32{expected} -> y: float32{expected}"
    assert model.schema.is_batchable == is_batchable
    x = np.ones([size if isinstance(size, int) else 3 for size in shape], np.float32)
    with client(model) as http:
        answer = http.post("/v1/predict", json={"inputs": {"x": x.tolist()}}).json()
    assert answer["outputs"]["y"] == (-x).tolist()


def test_an_output_without_the_batch_is_not_divided(tmp_path: Path) -> None:
    # The sum over the batch: requests must not be put together.
    file = onnx_files.write(tmp_path / "m.onnx", "ReduceMax", ("batch", 2), (1, 2), axes=[0], keepdims=1)
    model = OnnxModel(file)
    assert not model.schema.is_batchable
    with client(model) as http:
        answer = http.post("/v1/predict", json={"inputs": {"x": [[1, 5], [4, 3]]}}).json()
    assert answer["outputs"]["y"] == [[4, 5]]


def test_a_first_axis_of_another_name_is_not_the_batch(tmp_path: Path) -> None:
    file = onnx_files.write(tmp_path / "m.onnx", "Unique", ("batch", 2), ("found", 2), axis=0)
    assert OnnxModel(file).schema.outputs[0].batch_axis is None
    with client(OnnxModel(file)) as http:
        answer = http.post("/v1/predict", json={"inputs": {"x": [[1, 0], [0, 1], [1, 0]]}}).json()
    assert answer["outputs"]["y"] == [[0, 1], [1, 0]]


def test_a_file_whose_outputs_have_other_items_than_its_unnamed_axes_say_is_refused(tmp_path: Path) -> None:
    file = onnx_files.write(tmp_path / "m.onnx", "Unique", (None, 2), (None, 2), axis=0)
    with (
        pytest.raises(AssertionError, match="an output has another number of items"),
        client(OnnxModel(file)),
    ):
        pass


def test_a_file_that_burnt_wrote_with_a_fixed_batch_takes_that_batch(tmp_path: Path) -> None:
    signature = {
        part: [{"name": name, "shape": [64, 2], "dtype": "float32", "batch_axis": 0, "range": None}]
        for part, name in (("inputs", "x"), ("outputs", "y"))
    }
    file = onnx_files.write(
        tmp_path / "m.onnx", input_shape=(4, 2), metadata={"burnt.signature": json.dumps(signature)}
    )
    assert str(OnnxModel(file).schema) == "x: float32[4, 2] -> y: float32[4, 2]"


def test_files_that_cannot_be_served(tmp_path: Path, monkeypatch: Patch) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        OnnxModel(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(RecordError, match="cannot load the file"):
        OnnxModel(tmp_path / "bad.onnx")
    text = onnx_files.write(tmp_path / "text.onnx", "Identity", dtype=TensorProto.STRING)
    with pytest.raises(UnsupportedError, match=r"this type(?s:.*)tensor\(string\)"):
        OnnxModel(text)
    torn = onnx_files.write(tmp_path / "torn.onnx", metadata={"burnt.signature": "{"})
    with pytest.raises(RecordError, match="metadata is damaged"):
        OnnxModel(torn)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs ONNX Runtime"):
        OnnxModel(torn)


# --- new versions


def test_a_new_checkpoint_of_a_run_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = train(tmp_path / "run", 1)
    caplog.set_level(logging.INFO, "burnt.serve")
    x = [[0.5, -1.0]]

    async def scenario() -> None:
        async with served({"run": of_run(folder)}) as (http, service):
            slot = service.slots["run"]

            async def answer() -> tuple[str, list[list[float]]]:
                found = (await http.post("/v1/predict", json={"inputs": {"input": x}})).json()
                return found["version"], found["outputs"]["output"]

            def expected(step: int) -> tuple[str, list[list[float]]]:
                module = burnt.load(folder, step, nn.Linear(2, 3))
                return f"step-{step:08d}", module(torch.tensor(x)).tolist()

            assert await answer() == expected(2)
            assert not await service.reload(slot)
            train(folder, 3)
            assert await service.reload(slot)
            assert await answer() == expected(6)

            # A damaged checkpoint is said once, and the old model goes on.
            newest = folder / "checkpoints" / "step-00000006"
            damaged = shutil.copytree(newest, newest.with_name("step-00000008"))
            (damaged / "model.safetensors").write_bytes(b"torn")
            for _ in range(2):
                assert not await service.reload(slot)
            assert await answer() == expected(6)
            metrics = (await http.get("/metrics")).text
            assert 'burnt_serve_reloads_total{model="run",result="failed"} 1.0' in metrics
            assert 'burnt_serve_reloads_total{model="run",result="loaded"} 1.0' in metrics
            assert metrics.count("burnt_serve_model_info{") == 1
            assert 'burnt_serve_model_info{model="run",version="step-00000006"} 1.0' in metrics
            shutil.rmtree(damaged)
            train(folder, 5)
            assert await service.reload(slot)
            assert await answer() == expected(10)
            shutil.rmtree(folder)
            for _ in range(2):
                assert not await service.reload(slot)
            assert (await answer())[0] == "step-00000010"

    asyncio.run(scenario())
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "step-00000008 cannot be served" in errors[0]
    assert "run: now step-00000006, before step-00000002" in caplog.text


@in_loop
async def test_a_file_that_changes_is_served(tmp_path: Path) -> None:
    file = onnx_files.write(tmp_path / "m.onnx", "Neg")

    async with served(OnnxModel(file)) as (http, service):
        slot = service.default
        assert (await ask(http, [1, 2])).json()["outputs"]["y"] == [-1, -2]
        assert not await service.reload(slot)
        onnx_files.write(file, "Identity")
        os.utime(file, (1e9, 1e9))  # clocks of file systems are coarse
        assert await service.reload(slot)
        assert not await service.reload(slot)
        assert (await ask(http, [1, 2])).json()["outputs"]["y"] == [1, 2]
        # One that takes something else is refused, since clients were told another schema.
        onnx_files.write(file, "Identity", ("batch", 3))
        os.utime(file, (2e9, 2e9))
        assert not await service.reload(slot)
        assert (await ask(http, [1, 2])).json()["outputs"]["y"] == [1, 2]


@in_loop
async def test_versions_change_between_batches() -> None:
    gate = Gate(lambda x: x + 1)
    old, new = Fake(gate), Fake(lambda x: x + 2, version="second")
    async with served(old) as (http, service):
        old.next = new
        first = await gate.hold(http)
        reloading = asyncio.create_task(service.reload(service.default))
        second = asyncio.create_task(ask(http, [0, 0]))
        await queued(service, 1)
        gate.open()
        assert await reloading
        last = await ask(http, [0, 0])
        answers = [(await task).json() for task in (first, second)] + [last.json()]
    assert [(a["version"], a["outputs"]["y"]) for a in answers[::2]] == [
        ("first", [1, 1]),
        ("second", [2, 2]),
    ]
    # Whichever it was, the outputs are those of the version that is told.
    assert (answers[1]["version"], answers[1]["outputs"]["y"][0]) in [("first", 1), ("second", 2)]


@in_loop
async def test_a_new_version_that_fails_or_differs_is_not_served() -> None:
    def fail(x: np.ndarray) -> np.ndarray:
        raise RuntimeError("no")

    model = Fake()
    async with served(model) as (http, service):
        for new in (
            Fake(fail, version="fails"),
            Fake(schema=schema_of((None, 3)), version="other"),
            OSError("gone"),
        ):
            model.next = new
            assert not await service.reload(service.default)
            assert (await ask(http, [1, 2])).json()["version"] == "first"
        assert 'result="failed"} 3.0' in (await http.get("/metrics")).text


@in_loop
async def test_a_model_that_does_not_run_stops_the_server() -> None:
    def fail(x: np.ndarray) -> np.ndarray:
        raise RuntimeError("no")

    app = create_app({"model": Fake(fail)})
    stopped = asyncio.Event()
    app.state.service.on_failure = stopped.set
    async with app.router.lifespan_context(app):
        await stopped.wait()
    assert "RuntimeError: no" in str(app.state.service.failure)
    assert not app.state.service.is_ready


def test_the_schema_of_a_signature() -> None:
    signature = signature_of(torch.nn.Linear(3, 2), torch.zeros(4, 3))
    assert str(Schema.from_signature(signature.to_dict())) == str(signature)
