"""The queue and the thread: what runs together, what is refused, and that one request cannot fail others."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from tests.serve.serving import Fake, Gate, ask, in_loop, queued, schema_of, served


@in_loop
async def test_a_request_runs_at_once_and_those_that_arrive_meanwhile_run_together() -> None:
    gate = Gate()
    model = Fake(gate)
    async with served(model) as (client, service):
        first = await gate.hold(client)
        assert model.calls == [(1, 2)]
        others = [asyncio.create_task(ask(client, [i, -i])) for i in range(1, 6)]
        await queued(service, 5)
        gate.open()
        answers = [await task for task in (first, *others)]
    assert model.calls == [(1, 2), (5, 2)]
    assert [answer.json()["outputs"]["y"] for answer in answers] == [[2 * i, -2 * i] for i in range(6)]
    assert model.threads == {"burnt-device"}


@in_loop
async def test_batches_are_as_large_as_they_may_be_and_keep_requests_whole_and_in_order() -> None:
    gate = Gate()
    model = Fake(gate)
    async with served(model, max_batch=8) as (client, service):
        first = await gate.hold(client)
        tasks = []
        for i, rows in enumerate([3, 4, 2, 8, 1]):
            tasks.append(asyncio.create_task(ask(client, [[i, i]] * rows)))
            await queued(service, i + 1)
        gate.open()
        answers = [await task for task in tasks]
        await first
    assert [shape[0] for shape in model.calls] == [1, 7, 2, 8, 1]
    for i, (answer, rows) in enumerate(zip(answers, [3, 4, 2, 8, 1], strict=True)):
        assert answer.json()["outputs"]["y"] == [[2 * i, 2 * i]] * rows


@in_loop
async def test_buckets_of_equal_shapes_take_turns() -> None:
    gate = Gate()
    model = Fake(gate, schema_of((None, None)))
    async with served({"a": model, "b": (other := Fake(gate))}, max_batch=2) as (client, service):
        gate.is_shut = True
        first = asyncio.create_task(ask(client, [0.0]))
        await gate.wait_until_entered()
        tasks = []
        for width in (3, 3, 3, 4, 3):
            tasks.append(asyncio.create_task(ask(client, [1.0] * width)))
            await queued(service, len(tasks))
        tasks.append(asyncio.create_task(ask(client, [1.0, 1.0], "/v1/models/b/predict")))
        await queued(service, len(tasks))
        gate.open()
        assert [(await task).status_code for task in tasks] == [200] * 6
        await first
    # Of the four requests of width 3 only two fit in a batch; then the other buckets have their turn.
    assert model.calls == [(1, 1), (2, 3), (1, 4), (2, 3)]
    assert other.calls == [(1, 2)]


@in_loop
async def test_batches_are_padded_to_the_sizes_that_were_run_before() -> None:
    model = Fake(sizes=(1, 2, 4, 8))
    async with served(model) as (client, _):
        answer = await ask(client, [[i, i] for i in range(5)])
    assert model.calls == [(8, 2)]
    assert answer.json()["outputs"]["y"] == [[2 * i, 2 * i] for i in range(5)]


@pytest.mark.parametrize("axis", [0, 1, 2])
@in_loop
async def test_the_batch_may_be_any_axis(axis: int) -> None:
    shape = [3, 2]
    shape.insert(axis, None)
    model = Fake(lambda x: x + 1, schema_of(shape, batch_axis=axis), sizes=(1, 4))
    rows = [np.arange(6).reshape(3, 2) + 10 * i for i in range(3)]

    async with served(model) as (client, _):
        stacked = await ask(client, np.stack(rows, axis).tolist())
        single = await ask(client, rows[1].tolist())
    assert np.array_equal(stacked.json()["outputs"]["y"], np.stack(rows, axis) + 1)
    assert np.array_equal(single.json()["outputs"]["y"], rows[1] + 1)
    assert [shape[axis] for shape in model.calls] == [4, 1]


@in_loop
async def test_a_request_that_fails_fails_alone() -> None:
    def fail_on_13(x: np.ndarray) -> np.ndarray:
        if (x == 13).any():
            raise StopIteration("13")  # which futures do not take as an exception
        return x * 2

    gate = Gate(fail_on_13)
    model = Fake(gate)
    async with served(model) as (client, service):
        first = await gate.hold(client)
        tasks = [asyncio.create_task(ask(client, [i, i])) for i in (12, 13, 14)]
        await queued(service, 3)
        gate.open()
        answers = [await task for task in tasks]
        await first
        metrics = (await client.get("/metrics")).text
    assert [answer.status_code for answer in answers] == [200, 500, 200]
    assert answers[2].json()["outputs"]["y"] == [28, 28]
    assert answers[1].json()["error"]["message"] == "the model failed on this input"
    assert [shape[0] for shape in model.calls] == [1, 3, 1, 1, 1]
    assert 'burnt_serve_failed_batches_total{model="model"} 1.0' in metrics


@in_loop
async def test_an_output_with_another_number_of_items_is_not_divided_among_requests() -> None:
    gate = Gate(lambda x: x[:1])
    model = Fake(gate, sizes=(1,))
    async with served(model) as (client, service):
        first = await gate.hold(client)
        tasks = [asyncio.create_task(ask(client, [i, i])) for i in (1, 2)]
        await queued(service, 2)
        gate.open()
        assert [(await task).json()["outputs"]["y"] for task in tasks] == [[1, 1], [2, 2]]
        await first


@in_loop
async def test_a_model_without_a_batch_axis_runs_requests_one_by_one() -> None:
    gate = Gate()
    model = Fake(gate, schema_of((2,), batch_axis=None))
    async with served(model) as (client, service):
        gate.is_shut = True
        tasks = [asyncio.create_task(ask(client, [i, i])) for i in range(3)]
        await gate.wait_until_entered()
        await queued(service, 2)
        gate.open()
        assert [(await task).json()["outputs"]["y"] for task in tasks] == [[2 * i] * 2 for i in range(3)]
    assert model.calls == [(2,)] * 3


@in_loop
async def test_a_full_queue_is_said_and_empties_again() -> None:
    gate = Gate()
    async with served(Fake(gate), max_queue=2) as (client, service):
        first = await gate.hold(client)
        waiting = [asyncio.create_task(ask(client, [i, i])) for i in (1, 2)]
        await queued(service, 2)
        refused = await ask(client, [3, 3])
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "burnt_serve_queue_requests 2.0" in (await client.get("/metrics")).text
        gate.open()
        assert [(await task).status_code for task in (first, *waiting)] == [200] * 3
        assert (await ask(client, [3, 3])).status_code == 200
        assert (service.accepted, service.answered) == (4, 4)


@in_loop
async def test_a_request_that_waits_too_long_is_answered_and_never_run() -> None:
    gate = Gate()
    model = Fake(gate)
    async with served(model, timeout=0.05) as (client, service):
        running = await gate.hold(client)
        waiting = asyncio.create_task(ask(client, [1, 1]))
        assert [(await task).status_code for task in (running, waiting)] == [504, 504]
        assert service.device.waiting() == 0
        gate.open()
        await service.device.call(lambda: None)
    assert model.calls == [(1, 2)]


@in_loop
async def test_what_waits_is_answered_when_the_server_stops() -> None:
    gate = Gate()
    model = Fake(gate)
    async with contextlib.AsyncExitStack() as stack:
        client, service = await stack.enter_async_context(served(model))
        tasks = [await gate.hold(client)]
        tasks += [asyncio.create_task(ask(client, [i, i])) for i in range(1, 4)]
        await queued(service, 3)
        stopping = asyncio.create_task(asyncio.to_thread(service.device.stop))
        gate.open()
        assert [(await task).json()["outputs"]["y"] for task in tasks] == [[2 * i] * 2 for i in range(4)]
        await stopping
        assert (await client.get("/healthz")).status_code == 500
