"""DeviceThread: the queue, and the one thread that runs models.

The thread takes what waits, as soon as it is free: a single request is run at once, and those that arrive
meanwhile make the next batch. So there is no waiting time to configure, and batches grow with the load.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from burnt.serve.schema import Arrays, Batch
from burnt.serve.servable import Servable

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server. All may be changed from any thread."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"burnt_serve_{name}", text, ["model", *labels], registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"burnt_serve_{name}", text, ["model"], buckets=buckets, registry=registry)

        self.requests = counter("requests", "Answered requests by HTTP status.", "code")
        text = "Time from the first byte of a prediction's request to its answer."
        self.seconds = histogram("request_seconds", text, _SECONDS)
        self.batch_rows = histogram("batch_items", "Items that were run together.", _ROWS)
        self.device_seconds = counter("device_seconds", "Time in which a model ran.")
        text = "Batches that failed; their requests were run one by one."
        self.failed_batches = counter("failed_batches", text)
        self.nonfinite_answers = counter("nonfinite_answers", "Answers with NaN or infinity.")
        self.reloads = counter("reloads", "New versions that were found.", "result")
        text = "1 for the version that is served."
        self.info = Gauge("burnt_serve_model_info", text, ["model", "version"], registry=registry)
        Gauge("burnt_serve_queue_requests", "Requests that wait.", registry=registry).set_function(waiting)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)


_log = logging.getLogger("burnt.serve")


class QueueFullError(Exception):
    """As many requests wait as may."""


@dataclass
class Slot:
    """A name under which a model is served; `model` is replaced when a new version was loaded."""

    name: str
    model: Servable
    sizes: Sequence[int]


@dataclass(frozen=True)
class Prediction:
    """The answer to a request: the outputs, and the model that gave them."""

    outputs: Arrays
    model: Servable


@dataclass(eq=False)
class Request:
    """A request in the queue; those with an equal `bucket` may be run together."""

    slot: Slot
    batch: Batch
    bucket: Hashable
    future: asyncio.Future[Prediction | Exception]


class DeviceThread:
    """Runs models in a thread of its own, requests of equal shapes together."""

    def __init__(self, max_batch: int, max_queue: int) -> None:
        self.max_batch = max_batch
        self.max_queue = max_queue
        self.metrics = Metrics(self.waiting)
        self._buckets: dict[Hashable, deque[Request]] = {}  # of requests that may be run together
        self._jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._length = 0  # of the queue
        self._is_closed = False
        self._changed = threading.Condition()
        self._is_wake_scheduled = False
        self._thread = threading.Thread(target=self._work, name="burnt-device", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """Answer what waits, then end the thread; a model that runs longer than `timeout` keeps it alive."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def waiting(self) -> int:
        """Return the number of requests in the queue."""
        return self._length

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def put(self, slot: Slot, batch: Batch) -> Request:
        """Queue a request of the running event loop, whose answer must be awaited."""
        loop = asyncio.get_running_loop()
        request = Request(slot, batch, _bucket(slot, batch), loop.create_future())
        with self._changed:
            if self._length >= self.max_queue:
                raise QueueFullError
            self._buckets.setdefault(request.bucket, deque()).append(request)
            self._length += 1
        if not self._is_wake_scheduled:
            # After the requests that the loop reads in the same turn, so that they run together.
            self._is_wake_scheduled = True
            loop.call_soon(self._wake)
        return request

    def _wake(self) -> None:
        self._is_wake_scheduled = False
        with self._changed:
            self._changed.notify()

    async def answer(self, request: Request) -> Prediction:
        """Wait for an answer. A request whose wait is cancelled is not run, unless it already is."""
        try:
            outcome = await request.future
        except asyncio.CancelledError:
            self._discard(request)
            raise
        prediction: Prediction = _raised(outcome)
        return prediction

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in the thread, before the next batch; return its result or raise its error."""
        future = asyncio.get_running_loop().create_future()
        with self._changed:
            self._jobs.append((function, future))
            self._changed.notify()
        return _raised(await future)

    def _discard(self, request: Request) -> None:
        """Remove a request that nobody waits for any more, if it still is in the queue."""
        with self._changed:
            bucket = self._buckets.get(request.bucket)
            if bucket is not None and request in bucket:
                bucket.remove(request)
                self._length -= 1
                if not bucket:
                    del self._buckets[request.bucket]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._buckets or self._is_closed)
                job = self._jobs.popleft() if self._jobs else None
                requests = self._take() if job is None else []
            if job is not None:
                function, future = job
                try:
                    outcome = function()
                except Exception as error:
                    outcome = error
                _deliver([(future, outcome)])
            elif requests:
                outcomes = self._answer(requests[0].slot, requests)
                _deliver([(r.future, outcome) for r, outcome in zip(requests, outcomes, strict=True)])
            else:
                return

    def _take(self) -> list[Request]:
        """Remove the next batch from the queue: buckets take turns, requests keep their order."""
        if not self._buckets:
            return []
        bucket, waiting = next(iter(self._buckets.items()))
        del self._buckets[bucket]
        taken = [waiting.popleft()]
        rows = taken[0].batch.rows
        while waiting and rows + waiting[0].batch.rows <= self.max_batch:
            taken.append(waiting.popleft())
            rows += taken[-1].batch.rows
        if waiting:
            self._buckets[bucket] = waiting
        self._length -= len(taken)
        return taken

    def _answer(self, slot: Slot, requests: Sequence[Request]) -> list[Prediction | Exception]:
        """Run requests together; where that fails, each by itself, so that one cannot fail the others."""
        model = slot.model
        # They may have been queued together for an older version of a model that runs them one by one now.
        if len(requests) == 1 or model.schema.is_batchable:
            try:
                return list(self._run(slot, model, requests))
            except Exception as error:
                if len(requests) == 1:
                    return [error]
                self.metrics.failed_batches.labels(slot.name).inc()
                _log.warning(
                    "%s: a batch of %d failed, running its requests one by one", slot.name, len(requests)
                )
        return [outcome for request in requests for outcome in self._answer(slot, [request])]

    def _run(self, slot: Slot, model: Servable, requests: Sequence[Request]) -> list[Prediction]:
        rows = size = sum(request.batch.rows for request in requests)
        arrays = requests[0].batch.arrays
        schema = model.schema
        if schema.is_batchable:
            if len(slot.sizes) > 1:
                size = next(size for size in slot.sizes if size >= rows)
            arrays = [
                _joined([request.batch.arrays[i] for request in requests], tensor.batch_axis or 0, size)
                for i, tensor in enumerate(schema.inputs)
            ]
        started = time.perf_counter()
        outputs = model.run(arrays)
        self.metrics.device_seconds.labels(slot.name).inc(time.perf_counter() - started)
        self.metrics.batch_rows.labels(slot.name).observe(rows)
        schema.check_outputs(outputs, size)
        if not schema.is_batchable:
            return [Prediction(outputs, model)]
        axes = [tensor.batch_axis or 0 for tensor in schema.outputs]
        predictions = []
        start = 0
        for request in requests:
            stop = start + request.batch.rows
            parts = [
                output[(slice(None),) * axis + (slice(start, stop),)]
                for output, axis in zip(outputs, axes, strict=True)
            ]
            predictions.append(Prediction(parts, model))
            start = stop
        return predictions


def _bucket(slot: Slot, batch: Batch) -> Hashable:
    """Return what requests share that are run together: the model, and all sizes but the batch's."""
    schema = slot.model.schema
    if not schema.is_batchable:
        return object()
    shapes = (
        tuple(size for axis, size in enumerate(shape) if axis != tensor.batch_axis)
        for shape, tensor in zip(batch.shapes, schema.inputs, strict=True)
    )
    return (slot.name, *shapes)


def _joined(arrays: Arrays, axis: int, size: int) -> np.ndarray[Any, Any]:
    """Put arrays together along an axis, and repeat the last item until it has the given size."""
    rows = sum(array.shape[axis] for array in arrays)
    if rows < size:
        last = np.take(arrays[-1], [-1], axis)
        arrays = [*arrays, np.repeat(last, size - rows, axis)]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)


def _raised(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _deliver(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """Set the results of futures in their loop, which is woken once for all of them.

    An exception is a result too: futures refuse some of them, such as StopIteration.
    """

    def deliver() -> None:
        for future, outcome in pairs:
            if not future.done():  # it is when its request was cancelled
                future.set_result(outcome)

    pairs[0][0].get_loop().call_soon_threadsafe(deliver)
