"""Which requests are joined: only those whose answers do not depend on each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import burnt
from burnt.inspect import signature_of
from burnt.serve import OnnxModel, RunModel
from burnt.serve.schema import Schema, TensorSchema
from tests.serve import onnx_files
from tests.serve.serving import Fake, Gate, ask, client, in_loop, queued, schema_of, served


class Forward(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(4, 4)

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)


def served_module(function: Callable[..., Any], example: Any) -> tuple[nn.Module, RunModel]:
    module = Forward(function)
    return module, RunModel(
        module, signature_of(module, *(example if isinstance(example, tuple) else (example,)))
    )


def fails_on_several(x: Tensor) -> Tensor:
    if len(x) > 1 and not x.is_meta:
        raise RuntimeError("no")
    return x


def joins(model: Any, **settings: Any) -> bool:
    """Whether a server that is ready joins requests for a model."""
    with client(model, **settings) as http:
        described = http.get("/v1/models").json()["models"][0]
        schema = http.get("/v1/schema").json()
    assert described["batches_requests"] == ("one_by_one" not in schema)
    return bool(described["batches_requests"])


LINEAR = nn.Linear(4, 4)
X = torch.rand(5, 4)
IDS = torch.randint(0, 50, (5, 6))
PADDED = torch.tensor([[3, 1, 0, 0], [4, 1, 5, 9]])
MASK = torch.rand(5, 6) > 0.2
TABLE = nn.Embedding(50, 4)

JOINED: dict[str, tuple[Callable[..., Any], Any]] = {
    "layer": (LINEAR, X),
    "softmax of each item": (lambda x: LINEAR(x).softmax(-1), X),
    "in place": (lambda x: x.div_(100), X),
    "ids": (lambda ids: TABLE(ids).mean(1), IDS),
    "ids and a mask": (lambda ids, mask: (TABLE(ids) * mask[..., None]).sum(1), (IDS, MASK)),
    "argmax": (lambda x: LINEAR(x).argmax(-1), X),
    "NaN in places": (lambda x: x.log(), torch.randn(5, 4)),
    "example of zeros": (LINEAR, torch.zeros(5, 4)),
    "overflow": (lambda x: x.exp(), X),
    "large numbers fail": (lambda x: TABLE(x.long()), X),
    "16 bits": (lambda x: (x @ x.new_ones(4, 4)).cumsum(-1), X.bfloat16()),
    "several outputs": (lambda x, ids: (x + 1, TABLE(ids), ids > 3), (X, IDS)),
}
ONE_BY_ONE: dict[str, tuple[Callable[..., Any], Any]] = {
    "mean": (lambda x: x - x.mean(0), X),
    "softmax of all": (lambda x: x.softmax(0), X),
    "running sum": (lambda x: x.cumsum(0), X),
    "of an example of zeros": (lambda x: x - x.mean(0), torch.zeros(5, 4)),
    "of an example of ones": (lambda x: x - x.mean(0), torch.ones(5, 4)),
    "ids": (lambda ids: TABLE(ids).cumsum(0), IDS),
    "ids of zeros": (lambda ids: TABLE(ids).cumsum(0), torch.zeros(5, 6, dtype=torch.long)),
    "mask": (lambda ids, mask: TABLE(ids) * mask.any(0)[:, None], (IDS, MASK)),
    "order": (lambda x: x.sort(0).values, X),
    "one of several outputs": (lambda x, ids: (x + 1, ids - ids[:1]), (X, IDS)),
    "one of several inputs": (lambda x, ids: x + ids.amax(), (X, IDS)),
    "all NaN": (lambda x: x * float("nan"), X),
    "statistics": (lambda x: nn.functional.batch_norm(x, None, None, training=True), X[..., None]),
    "mean next to a mask": (lambda x: torch.hstack([x - x.mean(0), torch.full_like(x, -1e9)]), X),
    "softmax next to timestamps": (lambda x: torch.hstack([x.softmax(0), x * 0 + 1.7e9]), X),
    "length relative to the longest": (lambda ids: (n := (ids != 0).sum(1)) / n.max(), PADDED),
    "fails on several": (fails_on_several, X),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", JOINED)
def test_independent_items_are_joined(name: str) -> None:
    assert joins(served_module(*JOINED[name])[1])


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_request_for_dependent_items_is_answered_as_the_module_does(name: str) -> None:
    """Alone it is not padded: three items are three, and not four."""
    function, example = ONE_BY_ONE[name]
    tensors = example if isinstance(example, tuple) else (example,)
    module, model = served_module(function, example)
    names = [tensor.name for tensor in model.schema.inputs]
    with client(model) as http:
        assert not http.get("/v1/models").json()["models"][0]["batches_requests"]
        inputs = [tensor[: 1 if function is fails_on_several else 3] for tensor in tensors]
        answer = http.post(
            "/v1/predict", json={"inputs": {n: t.tolist() for n, t in zip(names, inputs, strict=True)}}
        )
    with torch.no_grad():
        expected = module(*(t.clone() for t in inputs))
    outputs = answer.json()["outputs"].values()
    for found, wanted in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(np.array(found, np.float64), wanted.double().numpy(), rtol=1e-5)


def test_a_module_that_takes_the_sequence_first() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0).eval()
    with client(RunModel(layer, torch.zeros(7, 3, 8)), max_batch=16) as http:
        for length in (1, 5, 8):
            x = torch.randn(length, 3, 8)
            answer = http.post("/v1/predict", json={"inputs": {"src": x.tolist()}}).json()
            torch.testing.assert_close(
                torch.tensor(answer["outputs"]["output"]), layer(x).detach(), rtol=1e-4, atol=1e-5
            )


def cumsum_file(path: Path, shape: list[str | int | None], axis: int) -> Path:
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"])]
    return onnx_files.write_graph(path, nodes, shape, shape, constants={"axis": np.array(axis, np.int64)})


@pytest.mark.parametrize(
    ("shape", "expected", "is_joined"),
    [
        (["sequence", "batch", 2], "[any, batch, 2]", True),
        (["T", "N", 2], "[batch, any, 2]", False),
        ([None, None, 2], "[batch, any, 2]", False),
        (["length", 1, 2], "[batch, 1, 2]", False),
        (["sequence", "batch_size", "features"], "[any, batch, any]", True),
    ],
)
@in_loop
async def test_files_that_take_the_sequence_first(
    tmp_path: Path, shape: list[str | int | None], expected: str, is_joined: bool
) -> None:
    """Each of many requests at once gets the running sum of its own sequence."""
    model = OnnxModel(cumsum_file(tmp_path / "m.onnx", shape, 0))
    assert str(model.schema) == f"x: float32{expected} -> y: float32{expected}"

    async with served(model) as (http, service):
        xs = [np.full((3, 1, 2), number, np.float32) for number in range(1, 9)]
        answers = await asyncio.gather(*(ask(http, x.tolist()) for x in xs))
        for x, answer in zip(xs, answers, strict=True):
            assert np.array_equal(answer.json()["outputs"]["y"], x.cumsum(0))
        assert service.default.model.schema.is_batchable == is_joined


def test_a_dynamically_quantized_file_and_module(tmp_path: Path) -> None:
    """A small request among large ones is answered as by ONNX Runtime or the module without the others."""
    from onnxruntime.quantization import quantize_dynamic

    torch.manual_seed(0)
    layer = nn.Linear(16, 4)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": layer.weight.detach().numpy().T.copy()}
    onnx_files.write_graph(tmp_path / "float.onnx", nodes, ["batch", 16], ["batch", 4], constants=weights)
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "quantized.onnx")
    assert joins(OnnxModel(tmp_path / "float.onnx"))

    small = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "quantized.onnx")
    module = nn.Sequential(layer)
    assert joins(RunModel(module, torch.zeros(1, 16)))
    burnt.quantize(module, "int8-dynamic_tensor")

    async def answers(model: Any, name: str) -> list[Any]:
        async with served(model) as (http, _):
            xs = [small * 1000, small] * 6
            posts = [http.post("/v1/predict", json={"inputs": {name: x.tolist()}}) for x in xs]
            found = [answer.json()["outputs"] for answer in await asyncio.gather(*posts)][1::2]
        return [next(iter(outputs.values())) for outputs in found]

    for found in asyncio.run(answers(OnnxModel(tmp_path / "quantized.onnx"), "x")):
        np.testing.assert_allclose(np.float32(found), session.run(None, {"x": small})[0], rtol=1e-6)
    with torch.no_grad():
        expected = module(torch.from_numpy(small)).numpy()
    for found in asyncio.run(answers(RunModel(module, torch.zeros(1, 16)), "input")):
        np.testing.assert_allclose(np.float32(found), expected, rtol=1e-6)
    rows = nn.Sequential(nn.Linear(16, 4))
    burnt.quantize(rows, "int8-dynamic")  # a scale for each row
    assert joins(RunModel(rows, torch.zeros(1, 16)))


def test_the_reason_is_logged_and_in_the_schema(caplog: pytest.LogCaptureFixture) -> None:
    with client(Fake(lambda x: x - x.mean(0))) as http:
        schema = http.get("/v1/schema").json()
    assert schema["one_by_one"] == "the outputs of an item depend on the other items of its batch"
    assert "model: requests run one by one: the outputs of an item depend on" in caplog.text
    with client(Fake(lambda x: x)) as http:
        assert "one_by_one" not in http.get("/v1/schema").json()


def test_an_item_without_its_batch_axis_is_taken_all_the_same() -> None:
    with client(Fake(lambda x: x / np.abs(x).max())) as http:
        assert http.post("/v1/predict", json={"inputs": {"x": [1, 4]}}).json()["outputs"]["y"] == [0.25, 1]


@pytest.mark.parametrize("dtype", ["INT16", "UINT16", "INT32", "INT64"])
def test_files_of_integers_are_tried_with_large_ones_if_they_take_them(tmp_path: Path, dtype: str) -> None:
    def file(nodes: list[Any], **constants: np.ndarray) -> OnnxModel:
        shape, dtypes = ["batch", 4], (getattr(TensorProto, dtype), TensorProto.FLOAT)
        path = tmp_path / f"{nodes[-1].op_type}.onnx"
        return OnnxModel(onnx_files.write_graph(path, nodes, shape, shape, dtypes, constants))

    peak = [
        helper.make_node("Cast", ["x"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["float"], ["peak"], keepdims=1),
        helper.make_node("Div", ["float", "peak"], ["y"]),
    ]
    assert not joins(file(peak))
    gather = [
        helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["y"]),
    ]
    assert joins(file(gather, table=np.arange(50, dtype=np.float32)))


def test_a_quantized_file_of_tokens_whose_numbers_and_length_are_open(tmp_path: Path) -> None:
    """The means of long random sequences differ little, and so do their scales."""
    table = np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["t", "x"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("DynamicQuantizeLinear", ["mean"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    shapes, dtypes = (["batch", "length"], ["batch", 16]), (TensorProto.INT64, TensorProto.FLOAT)
    file = onnx_files.write_graph(tmp_path / "m.onnx", nodes, *shapes, dtypes, {"t": table})
    assert not joins(OnnxModel(file))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint64", "int64", "float16", "float64"])
def test_random_items_are_valid_in_every_dtype(dtype: str) -> None:
    assert joins(Fake(lambda x: x, schema_of(dtype=dtype)))
    assert not joins(Fake(lambda x: x[::-1], schema_of(dtype=dtype)))


@pytest.mark.parametrize("low_high", [(0, 49), (7, 7), (255, 255), (-3, -3)])
def test_random_integers_stay_in_the_range_of_the_example(low_high: tuple[int, int]) -> None:
    tensor = TensorSchema("x", (None, 40), np.dtype("uint8" if low_high[0] > 0 else "int64"), 0, low_high)
    random = np.random.default_rng(0)
    (found,), (largest,) = (Schema((tensor,), ()).random_item(random, scale) for scale in (1.0, 1000.0))
    assert (largest == largest[0, 0]).all()
    assert found.min() <= largest[0, 0]
    assert found.shape == (1, 40)
    assert found.min() < found.max()
    assert found.min() >= low_high[0] - 1
    assert found.max() <= low_high[1] + 1
    if low_high[0] < low_high[1]:
        assert low_high[0] <= found.min() < found.max() <= low_high[1]


@pytest.mark.parametrize("multiple", [1, 32, 500])
def test_files_with_open_axes_that_take_only_some_sizes(tmp_path: Path, multiple: int) -> None:
    """What cannot be run is not joined."""

    def function(x: np.ndarray) -> np.ndarray:
        assert x.shape[1] % multiple == 0
        return x + 1

    assert joins(Fake(function, schema_of((None, None)))) == (multiple < 500)
    file = onnx_files.write(tmp_path / "m.onnx", "Softmax", ("batch", "length"), axis=0)
    assert not joins(OnnxModel(file))


def test_what_fails_with_single_items_is_served() -> None:
    def function(x: np.ndarray) -> np.ndarray:
        assert len(x) > 1
        return x - x.mean(0)

    with client(Fake(function)) as http:
        answer = http.post("/v1/predict", json={"inputs": {"x": [[1, 2], [3, 4]]}}).json()
    assert answer["outputs"]["y"] == [[-1, -1], [1, 1]]


@in_loop
async def test_requests_that_wait_for_a_new_version_are_run_one_by_one_by_it() -> None:
    gate = Gate(lambda x: x)
    old, new = Fake(gate), Fake(lambda x: x.cumsum(0), version="second")
    async with served(old) as (http, service):
        old.next = new
        gate.is_shut = True
        first = asyncio.create_task(ask(http, [1, 1]))
        await gate.wait_until_entered()
        waiting = [asyncio.create_task(ask(http, [i, i])) for i in range(5)]
        await queued(service, 5)
        # As after a reload between two batches.
        new.schema = Schema(new.schema.inputs, new.schema.outputs, one_by_one="it depends")
        service.default.model = new
        gate.open()
        await first
        answers = [(await task).json()["outputs"]["y"] for task in waiting]
    assert answers == [[i, i] for i in range(5)]


@in_loop
async def test_a_new_version_is_asked_again() -> None:
    model, new = Fake(), Fake(lambda x: x.cumsum(0), version="second")
    async with served(model) as (http, service):
        model.next = new
        assert service.default.model.schema.is_batchable
        assert await service.reload(service.default)
        assert not service.default.model.schema.is_batchable
        answers = await asyncio.gather(*(ask(http, [i, i]) for i in range(8)))
        assert [answer.json()["outputs"]["y"] for answer in answers] == [[i, i] for i in range(8)]
