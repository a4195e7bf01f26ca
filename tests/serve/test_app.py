"""The routes: predictions next to the module called directly, errors, limits, keys, metrics."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from starlette.testclient import TestClient

from burnt import nn
from burnt.inspect import signature_of
from burnt.serve import RunModel, Settings, create_app, wire
from burnt.serve.schema import Schema
from burnt.serve.wire import JSON, SAFETENSORS
from tests.fixtures import Patch
from tests.serve.serving import Fake, ask, client, in_loop, schema_of, served

JSON_HEADER = {"content-type": JSON}
TENSORS_HEADER = {"content-type": SAFETENSORS}


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).eval()


@pytest.fixture(scope="module")
def fake() -> Iterator[tuple[TestClient, Fake]]:
    """A client and its model, which no test changes."""
    with client(model := Fake()) as http:
        yield http, model


def images(rows: int) -> torch.Tensor:
    return torch.randn(rows, 3, 4, generator=torch.Generator().manual_seed(rows))


def test_predictions_are_those_of_the_module_in_both_formats(module: torch.nn.Module) -> None:
    x = images(5)
    expected = module(x).detach().numpy()
    labels = [["cat", "dog", "cow"][i] for i in expected.argmax(1)]
    with client({"pets": RunModel(module, images(2), ["cat", "dog", "cow"])}) as http:
        batch = http.post("/v1/predict", json={"inputs": {"input": x.tolist()}}).json()
        single = http.post("/v1/models/pets/predict", json={"inputs": {"input": x[3].tolist()}}).json()
        body = safetensors.numpy.save({"input": x.numpy()})
        raw = http.post("/v1/predict", content=body, headers=TENSORS_HEADER)
        as_json = http.post("/v1/predict", content=body, headers={**TENSORS_HEADER, "accept": JSON}).json()
    np.testing.assert_allclose(batch["outputs"]["output"], expected, rtol=1e-5)
    np.testing.assert_allclose(single["outputs"]["output"], expected[3], rtol=1e-5)
    assert (batch["model"], batch["labels"], single["labels"]) == ("pets", labels, labels[3])
    assert raw.headers["content-type"] == SAFETENSORS
    np.testing.assert_allclose(safetensors.numpy.load(raw.content)["output"], expected, rtol=1e-5)
    header = json.loads(raw.content[8 : 8 + int.from_bytes(raw.content[:8], "little")])
    assert json.loads(header["__metadata__"]["labels"]) == labels
    assert as_json == batch


def test_a_module_that_takes_and_returns_several_tensors() -> None:
    class Net(torch.nn.Module):
        def forward(self, parts: dict[str, torch.Tensor], scale: torch.Tensor) -> Any:
            return {"sum": parts["a"] + parts["b"].float(), "scaled": (parts["a"] * scale, parts["b"] > 0)}

    a, b, scale = torch.randn(2, 3), torch.tensor([[1, -2, 0]] * 2), torch.tensor(2.0)
    parts = {"a": a, "b": b}
    signature = signature_of(Net(), parts, scale)
    with client(RunModel(Net(), signature)) as http:
        schema = http.get("/v1/schema").json()
        answer = http.post(
            "/v1/predict", json={"inputs": {"parts.a": a.tolist(), "parts.b": b.tolist(), "scale": 2}}
        ).json()
    assert [(t["name"], t["dtype"], t["shape"]) for t in schema["inputs"]] == [
        ("parts.a", "float32", ["batch", 3]),
        ("parts.b", "int64", ["batch", 3]),
        ("scale", "float32", []),
    ]
    expected = Net()(parts, scale)
    outputs = answer["outputs"]
    np.testing.assert_allclose(outputs["output.sum"], expected["sum"], rtol=1e-6)
    np.testing.assert_allclose(outputs["output.scaled.0"], expected["scaled"][0], rtol=1e-6)
    assert outputs["output.scaled.1"] == expected["scaled"][1].tolist()


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"", 400, "truncated"),
        (b"[1]", 400, "Expected `object`"),
        (b"\xff\xfe", 400, "malformed"),
        (b'{"inputs": {"\xff": [1, 2]}}', 400, "utf-8"),
        (b'{"inputs": {"x": [1, 2]}, "seed": 1}', 400, "unknown field `seed`"),
        (b'{"inputs": {"z": [1, 2]}}', 400, "not those of the model"),
        (b'{"inputs": {}}', 400, "none"),
        (b'{"inputs": {"x": [1, 2], "z": 1}}', 400, "x, z"),
        (b'{"inputs": {"x": [1, NaN]}}', 400, "JSON has no NaN"),
        (b'{"inputs": {"x": [1, -Infinity]}}', 400, "inputs must be finite"),
        (b'{"inputs": {"x": [1, null]}}', 400, "got `null` - at `$[1]`"),
        (b'{"inputs": {"x": [1, "2"]}}', 400, "got `str` - at `$[1]`"),
        (b'{"inputs": {"x": [1, true]}}', 400, "got `bool`"),
        (b'{"inputs": {"x": [1, 1e39]}}', 400, "x[1]"),
        (b'{"inputs": {"x": [1, 1e999]}}', 400, "out of range"),
        (b'{"inputs": {"x": [[1, 2], [3]]}}', 400, "different lengths"),
        (b'{"inputs": {"x": [1, 2, 3]}}', 400, "[3]"),
        (b'{"inputs": {"x": [[[1, 2]]]}}', 400, "nested 3 deep"),
        (b'{"inputs": {"x": []}}', 400, "[0]"),
        (b'{"inputs": {"x": {"a": 1}}}', 400, "nested 0 deep"),
        (b'{"inputs": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", 400, "too deeply"),
        (b'{"inputs": {"x": ' + str([[1, 2]] * 9).encode() + b"}}", 413, "at most 8"),
    ],
)
def test_bad_json(fake: tuple[TestClient, Fake], body: bytes, status: int, told: str) -> None:
    http, model = fake
    model.calls.clear()
    answer = http.post("/v1/predict", content=body, headers=JSON_HEADER)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == JSON
    assert told in " ".join(answer.json()["error"].values())
    assert model.calls == []


@pytest.mark.parametrize(
    ("dtype", "values", "told"),
    [
        ("uint8", "[1, 256]", "<= 255 - at `$[1]`"),
        ("uint8", "[-1, 0]", ">= 0 - at `$[0]`"),
        ("int8", "[127, -129]", ">= -128"),
        ("int64", "[0, 1.5]", "got `float`"),
        ("int64", "[0, true]", "got `bool`"),
        ("int64", "[0, 9223372036854775808]", "too large"),
        ("uint64", "[0, 18446744073709551616]", "too large|out of range"),
        ("bool", "[true, 1]", "got `int`"),
        ("float16", "[0, 70000]", "x[1]"),
    ],
)
def test_a_number_that_does_not_fit_its_dtype(dtype: str, values: str, told: str) -> None:
    with client(Fake(lambda x: x, schema_of(dtype=dtype))) as http:
        answer = http.post("/v1/predict", content=f'{{"inputs": {{"x": {values}}}}}', headers=JSON_HEADER)
    assert answer.status_code == 400
    text = " ".join(answer.json()["error"].values())
    assert any(part in text for part in told.split("|")), text


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"x": np.zeros((1, 2))}, "float64"),
        ({"x": np.zeros((1, 3), np.float32)}, "[1, 3]"),
        ({"x": np.zeros((0, 2), np.float32)}, "[0, 2]"),
        ({"z": np.zeros((1, 2), np.float32)}, "not those of the model"),
        ({"x": np.array([[0, np.nan]], np.float32)}, "x[0, 1]"),
        ({"x": np.array([-np.inf, 0], np.float32)}, "x[0]"),
        ({"x": np.zeros((1, 2), np.complex64)}, "complex64"),
        (safetensors.torch.save({"x": torch.zeros(1, 2, dtype=torch.bfloat16)}), "send float32"),
        *((body, "safetensors") for body in (b"", b"abc", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}"[:9])),
    ],
)
def test_bad_tensors(fake: tuple[TestClient, Fake], sent: dict[str, np.ndarray] | bytes, told: str) -> None:
    body = sent if isinstance(sent, bytes) else safetensors.numpy.save(sent)
    answer = fake[0].post("/v1/predict", content=body, headers=TENSORS_HEADER)
    assert answer.status_code == 400
    assert told in " ".join(answer.json()["error"].values())


def test_numbers_that_are_not_finite_in_an_answer() -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32)
    with client(Fake(lambda x: np.repeat(values, len(x), 0))) as http:
        answer = http.post("/v1/predict", json={"inputs": {"x": [0, 0]}})
        raw = http.post(
            "/v1/predict", json={"inputs": {"x": [0, 0]}}, headers={"accept": f"text/html, {SAFETENSORS};q=1"}
        )
        metrics = http.get("/metrics").text
    assert json.loads(answer.text, parse_constant=pytest.fail)["outputs"]["y"] == [
        "NaN",
        "Infinity",
        "-Infinity",
        1.5,
    ]
    np.testing.assert_array_equal(safetensors.numpy.load(raw.content)["y"], values[0])
    assert 'burnt_serve_nonfinite_answers_total{model="model"} 2.0' in metrics


def test_unknown_paths_methods_models_and_content_types() -> None:
    with client({"digits": Fake()}) as http:
        cases = [
            (http.get("/v1/predict"), 405),
            (http.post("/v1/schema"), 405),
            (http.post("/predict"), 404),
            (http.post("/v1/models/digit/predict", json={"inputs": {"x": [1, 2]}}), 404),
            (http.get("/v1/models/digit/schema"), 404),
            (http.post("/v1/predict", data={"x": "1"}), 415),
            (http.post("/v1/predict", content=b"{}"), 415),
        ]
    assert [answer.status_code for answer, _ in cases] == [status for _, status in cases]
    assert all(answer.json()["error"]["message"] for answer, _ in cases)
    assert cases[3][0].json()["error"]["hint"] == "did you mean 'digits'?"
    assert "application/json" in cases[5][0].json()["error"]["expected"]


def test_several_models_and_their_schemas() -> None:
    one, two = Fake(), Fake(lambda x: -x, schema_of((None, 3), "int64", classes=["a", "b", "c"]), "step-2")
    with client({"one": one, "two": two}) as http:
        assert [m["model"] for m in http.get("/v1/models").json()["models"]] == ["one", "two"]
        assert http.get("/v1/schema").json()["model"] == "one"
        assert http.get("/v1/models/two/schema").json() == {
            "model": "two",
            "version": "step-2",
            "max_batch": 8,
            "batches_requests": True,
            "inputs": [{"name": "x", "dtype": "int64", "shape": ["batch", 3]}],
            "outputs": [{"name": "y", "dtype": "int64", "shape": ["batch", 3]}],
            "classes": ["a", "b", "c"],
        }
        assert http.post("/v1/predict", json={"inputs": {"x": [1, 2]}}).json()["outputs"]["y"] == [2, 4]
        answer = http.post("/v1/models/two/predict", json={"inputs": {"x": [3, 1, 2]}}).json()
    total = sum(math.exp(y) for y in (-3, -1, -2))
    chances = {name: pytest.approx(math.exp(y) / total) for name, y in zip("abc", (-3, -1, -2), strict=True)}
    assert answer == {
        "model": "two", "version": "step-2", "outputs": {"y": [-3, -1, -2]}, "labels": "b",
        "probabilities": chances,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer sécret", 401),
        ("Basic s3cret", 401),
        ("s3cret", 401),
        ("Bearer s3cret", 200),
        ("bearer  s3cret ", 200),
    ],
)
def test_a_key_is_needed_for_models_and_metrics(header: str | None, status: int) -> None:
    headers = {} if header is None else {"authorization": header.encode()}
    with client(Fake(), api_key="s3cret") as http:
        for path in ("/v1/models", "/v1/schema", "/metrics"):
            assert http.get(path, headers=headers).status_code == status
        answer = http.post("/v1/predict", json={"inputs": {"x": [1, 2]}}, headers=headers)
        assert answer.status_code == status
        assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
    assert "s3cret" not in repr(Settings(api_key="s3cret"))


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["good.example"], 200),
        (["GOOD.example:8000"], 200),
        (["[::1]:8000"], 200),
        (["[::1]"], 200),
        (["evil.example"], 421),
        (["good.example.evil.example"], 421),
        (["evil.good.example"], 421),
        (["good.example:80:80"], 421),
        (["::1"], 421),
        (["[::2]:8000"], 200),
        ([""], 421),
        (["good.example", "evil.example"], 421),
    ],
)
def test_the_host_can_be_pinned(hosts: list[str], status: int) -> None:
    headers = [("host", host) for host in hosts]
    with client(Fake(), allowed_hosts=["Good.example", "[::1]", "::2"], api_key="k") as http:
        keyed = [*headers, ("authorization", "Bearer k")]
        answers = [http.get(path, headers=keyed) for path in ("/v1/schema", "/v1/models", "/metrics")]
        answers.append(http.post("/v1/predict", json={"inputs": {"x": [1, 2]}}, headers=keyed))
        assert http.get("/healthz", headers=headers).status_code == 200
    assert {answer.status_code for answer in answers} == {status}
    if status == 421:
        assert answers[0].json()["error"] == {
            "message": "the server does not answer for this host",
            "expected": "Host: Good.example or [::1] or ::2",
            "found": ", ".join(hosts) or "none",
        }


def test_compressed_bodies_are_refused(fake: tuple[TestClient, Fake]) -> None:
    packed = gzip.compress(b'{"inputs": {"x": [1, 2]}}')
    answer = fake[0].post("/v1/predict", content=packed, headers={**JSON_HEADER, "content-encoding": "gzip"})
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert answer.json()["error"]["found"] == "gzip"


class Held:
    """Takes the place of a function of `wire`, and waits until the test has seen that the server works."""

    def __init__(self, monkeypatch: Patch, name: str) -> None:
        self._function = getattr(wire, name)
        self.entered, self.seen = threading.Event(), threading.Event()
        monkeypatch.setattr(wire, name, self)

    def __call__(self, *arguments: Any) -> Any:
        self.entered.set()
        assert self.seen.wait(5), "nothing else is answered meanwhile"
        return self._function(*arguments)


@pytest.mark.parametrize("name", ["decode_json", "decode_safetensors", "encode_json", "encode_safetensors"])
@in_loop
async def test_large_bodies_and_answers_do_not_stop_the_server(monkeypatch: Patch, name: str) -> None:
    x = np.arange(40_000, dtype=np.float32)[None]
    is_json = name.endswith("json")
    content = (
        json.dumps({"inputs": {"x": x.tolist()}}).encode() if is_json else safetensors.numpy.save({"x": x})
    )

    async with served(Fake(schema=schema_of((None, None)))) as (http, _):
        held = Held(monkeypatch, name)
        headers = JSON_HEADER if is_json else TENSORS_HEADER
        large = asyncio.create_task(http.post("/v1/predict", content=content, headers=headers, timeout=60))
        assert await asyncio.to_thread(held.entered.wait, 5)
        assert (await http.get("/healthz")).status_code == 200
        held.seen.set()
        answer = await large
    y = answer.json()["outputs"]["y"] if is_json else safetensors.numpy.load(answer.content)["y"]
    np.testing.assert_array_equal(np.asarray(y), x * 2)


@in_loop
async def test_outputs_that_wait_are_limited_together(monkeypatch: Patch) -> None:
    schema = Schema(schema_of().inputs, schema_of((None, 60_000)).outputs)
    model = Fake(lambda x: np.repeat(x, 30_000, 1), schema)
    async with served(model, max_answers=200_000) as (http, _):
        held = Held(monkeypatch, "encode_json")
        first = asyncio.create_task(ask(http, [1, 2]))  # 240 kB: one alone passes
        assert await asyncio.to_thread(held.entered.wait, 5)
        second = await ask(http, [1, 2])
        held.seen.set()
        assert (await first).status_code == 200
        third = await ask(http, [1, 2])
    assert (second.status_code, second.headers["retry-after"], third.status_code) == (503, "1", 200)


def test_an_error_of_the_model_is_logged_and_its_text_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    def fail(x: np.ndarray) -> np.ndarray:
        if x.any():
            raise RuntimeError("cannot open /secret/path")
        return x

    with client(Fake(fail)) as http:
        answer = http.post("/v1/predict", json={"inputs": {"x": [1, 2]}})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "/secret/path" in caplog.text


def test_an_index_that_an_embedding_lacks_is_the_inputs_fault() -> None:
    embedding = nn.Embedding(4, 2)
    with client(RunModel(embedding, torch.tensor([[0, 3]]))) as http:
        answer = http.post("/v1/predict", json={"inputs": {"input": [0, 4]}})
        fine = http.post("/v1/predict", json={"inputs": {"input": [0, 3]}}).json()
    assert answer.status_code == 400, answer.text
    assert "4" in answer.text
    np.testing.assert_allclose(fine["outputs"]["output"], embedding.weight.detach()[[0, 3]])


def test_a_request_id_comes_back(fake: tuple[TestClient, Fake]) -> None:
    answers = [
        fake[0].post("/v1/predict", json={"inputs": {"x": x}}, headers={"x-request-id": "a-17"})
        for x in ([1, 2], [1])
    ]
    assert [(a.status_code, a.headers["x-request-id"]) for a in answers] == [(200, "a-17"), (400, "a-17")]


def test_metrics_are_read_by_prometheus_own_parser() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with client({'a"b': Fake()}) as http:
        http.post("/v1/predict", json={"inputs": {"x": [[1, 2]] * 3}})
        http.post("/v1/predict", json={"inputs": {"x": [1]}})
        answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    model = ("model", 'a"b')
    assert samples["burnt_serve_requests_total", ("code", "200"), model] == 1
    assert samples["burnt_serve_requests_total", ("code", "400"), model] == 1
    assert samples["burnt_serve_batch_items_sum", model] == 3
    assert samples["burnt_serve_request_seconds_count", model] == 2
    assert samples["burnt_serve_model_info", model, ("version", "first")] == 1
    assert samples[("burnt_serve_queue_requests",)] == 0


@in_loop
async def test_nothing_is_predicted_before_every_model_has_run() -> None:
    async with served(Fake()) as (client, service):
        service.is_ready = False
        answer = await ask(client, [1, 2])
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200


@in_loop
async def test_every_batch_size_is_run_before_the_server_is_ready() -> None:
    model = Fake(sizes=(1, 2, 4))
    app = create_app({"model": model}, Settings(max_batch=4))
    async with app.router.lifespan_context(app):
        while not app.state.service.is_ready:
            await asyncio.sleep(0)
    assert model.calls == [(1, 2), (2, 2), (4, 2)]


# --- bodies, by calling the application as a server does


class Caller:
    """Calls an application with a body in chunks, and counts those that it takes."""

    def __init__(self, chunks: AsyncIterator[bytes] | list[bytes], headers: dict[str, str]) -> None:
        self.taken = 0
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._chunks = chunks
        self._given = {"content-type": JSON, **headers}

    async def call(self, app: Any) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/predict",
            "headers": [(name.encode(), value.encode()) for name, value in self._given.items()],
            "query_string": b"",
        }
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if isinstance(self._chunks, list):
            chunk = self._chunks.pop(0) if self._chunks else None
        else:
            chunk = await anext(self._chunks)
        if chunk is None:
            return {"type": "http.disconnect"}
        self.taken += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])


async def endless() -> AsyncIterator[bytes]:
    for _ in range(1000):
        yield b"\0" * 1000
    raise AssertionError("more is read than the limit")


@in_loop
async def test_a_body_that_is_too_large_is_not_read() -> None:
    async with served(Fake(), max_body=10_000) as (client, _):
        app = client._transport.app
        declared, endlessly = Caller(endless(), {"content-length": str(10**9)}), Caller(endless(), {})
        for caller in (declared, endlessly):
            await caller.call(app)
            assert caller.status == 413
            assert caller.headers[b"connection"] == b"close"
        assert declared.taken == 0
        assert endlessly.taken == 11_000


@in_loop
async def test_bytes_of_all_bodies_are_limited_together() -> None:
    async with served(Fake(), max_bodies=50_000) as (client, _):
        app = client._transport.app
        held = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b" " * 45_000
            held.set()
            await asyncio.Event().wait()
            yield b""

        waiting = asyncio.create_task(Caller(slow(), {}).call(app))
        await held.wait()
        refused = Caller(endless(), {})
        await refused.call(app)
        assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
        assert (await ask(client, [1, 2])).status_code == 200  # a small one has room
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        alone = Caller([b" " * 60_000], {})
        await alone.call(app)
        assert alone.status == 499
        assert (await ask(client, [1, 2])).status_code == 200
        accepted = Caller([b" " * 45_000], {})
        await accepted.call(app)
        assert accepted.status == 499  # the memory is free again; this client closes


@in_loop
async def test_a_body_that_does_not_arrive() -> None:
    async with served(model := Fake(), timeout=0.05) as (client, _):

        async def stuck() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

        caller = Caller(stuck(), {})
        await caller.call(client._transport.app)
        assert (caller.status, caller.headers[b"connection"]) == (408, b"close")
        assert model.calls == []


def test_a_tensor_that_is_too_large() -> None:
    schema = schema_of((None, None))
    with client(Fake(schema=schema), max_elements=10) as http:
        assert http.post("/v1/predict", json={"inputs": {"x": [1.0] * 10}}).status_code == 200
        answer = http.post("/v1/predict", json={"inputs": {"x": [1.0] * 11}})
    assert answer.status_code == 413
    assert "at most 10 elements" in answer.text


def test_inputs_disagree_about_the_batch() -> None:
    described = {"dtype": "float32", "range": None}
    schema = Schema.from_signature(
        {
            "inputs": [
                {"name": "a", "shape": [4, 2], "batch_axis": 0, **described},
                {"name": "b", "shape": [4], "batch_axis": 0, **described},
            ],
            "outputs": [{"name": "y", "shape": [4, 2], "batch_axis": 0, **described}],
        }
    )

    class Sum(Fake):
        def run(self, arrays: Any) -> Any:
            return [arrays[0] + arrays[1][:, None]]

    with client(Sum(schema=schema)) as http:

        def post(a: Any, b: Any) -> Any:
            return http.post("/v1/predict", json={"inputs": {"a": a, "b": b}}).json()

        assert post([[1, 2], [3, 4]], [10, 20])["outputs"]["y"] == [[11, 12], [23, 24]]
        assert post([1, 2], 10)["outputs"]["y"] == [11, 12]
        assert "with batch 2" in post([[1, 2], [3, 4]], [10])["error"]["expected"]
        assert "in all of them, or in none" in post([[1, 2]], 10)["error"]["expected"]
