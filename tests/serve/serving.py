"""What the tests of the server share: models that tests control, and clients of an application."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import httpx2
import numpy as np
from starlette.testclient import TestClient

from burnt.serve import Settings, create_app
from burnt.serve.schema import Arrays, Schema, TensorSchema
from burnt.serve.service import Service


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorate a test that is a coroutine: run it in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


PATIENCE = 60.0  # seconds until a test that waits for nothing fails


def schema_of(
    shape: Sequence[int | None] = (None, 2),
    dtype: str = "float32",
    batch_axis: int | None = 0,
    classes: Sequence[str] | None = None,
) -> Schema:
    """A schema of one input "x" and one output "y", both of this shape."""
    x, y = (TensorSchema(name, tuple(shape), np.dtype(dtype), batch_axis) for name in "xy")
    return Schema((x,), (y,), None if classes is None else tuple(classes))


class Fake:
    """A model that calls a function, and notes the shapes it was called with after its warm-up."""

    def __init__(
        self,
        function: Callable[[np.ndarray], np.ndarray] = lambda x: x * 2,
        schema: Schema | None = None,
        version: str = "first",
        sizes: Sequence[int] = (8,),
    ) -> None:
        self.function = function
        self.schema = schema or schema_of()
        self.version = version
        self.sizes = sizes
        self.calls: list[tuple[int, ...]] = []
        self.threads: set[str] = set()
        self.next: Fake | Exception | None = None

    def batch_sizes(self, max_batch: int) -> Sequence[int]:
        return self.sizes

    def run(self, arrays: Arrays) -> Arrays:
        self.calls.append(arrays[0].shape)
        self.threads.add(threading.current_thread().name)
        return [self.function(array) for array in arrays]

    def newest_version(self) -> str:
        return getattr(self if self.next is None else self.next, "version", "broken")

    def reloaded(self) -> Fake:
        if isinstance(self.next, Exception):
            raise self.next
        assert self.next is not None
        return self.next


class Gate:
    """A function for `Fake` that waits in its calls after the warm-up, until the test lets it go on."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray] = lambda x: x * 2) -> None:
        self.function = function
        self.is_shut = False
        self.entered = threading.Semaphore(0)
        self._pass = threading.Semaphore(0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.is_shut:
            self.entered.release()
            assert self._pass.acquire(timeout=PATIENCE)
        return self.function(x)

    async def wait_until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=PATIENCE)

    async def hold(self, client: httpx2.AsyncClient) -> asyncio.Task[Any]:
        """Shut the gate, and return a request that waits at it."""
        self.is_shut = True
        task = asyncio.create_task(ask(client, [0, 0]))
        await self.wait_until_entered()
        return task

    def let_pass(self, calls: int = 1) -> None:
        self._pass.release(calls)

    def open(self) -> None:
        self.is_shut = False
        self._pass.release(1000)


@contextlib.contextmanager
def client(models: Mapping[str, Any] | Any, **settings: Any) -> Iterator[TestClient]:
    """A client of an application whose models are ready."""
    named = models if isinstance(models, Mapping) else {"model": models}
    app = create_app(named, Settings(**{"max_batch": 8, **settings}))
    with TestClient(app) as opened:
        while opened.get("/readyz").status_code != 200:
            assert app.state.service.failure is None, app.state.service.failure
        for model in named.values():
            getattr(model, "calls", []).clear()
        yield opened


@contextlib.asynccontextmanager
async def served(
    models: Mapping[str, Any] | Any, **settings: Any
) -> AsyncIterator[tuple[httpx2.AsyncClient, Service]]:
    """A client for requests at the same time, and the service."""
    named = models if isinstance(models, Mapping) else {"model": models}
    app = create_app(named, Settings(**{"max_batch": 8, **settings}))
    service: Service = app.state.service
    async with app.router.lifespan_context(app):
        while not service.is_ready:
            assert service.failure is None, service.failure
            await asyncio.sleep(0)
        for model in named.values():
            getattr(model, "calls", []).clear()
        transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as opened:
            try:
                yield opened, service
            finally:  # a test that fails must not leave the thread waiting
                for model in named.values():
                    if isinstance(gate := getattr(model, "function", None), Gate):
                        gate.open()


async def ask(opened: httpx2.AsyncClient, x: Any, path: str = "/v1/predict") -> httpx2.Response:
    return await opened.post(path, json={"inputs": {"x": x}}, timeout=PATIENCE)


async def queued(service: Service, count: int) -> None:
    """Wait until so many requests are in the queue."""
    async with asyncio.timeout(PATIENCE):
        while service.device.waiting() != count:
            await asyncio.sleep(0)
