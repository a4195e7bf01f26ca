"""create_app: the routes of the server as an ASGI application.

    POST /v1/predict                  the first model; JSON or safetensors
    GET  /v1/schema                   what it takes and returns
    GET  /v1/models                   all models
    POST /v1/models/{name}/predict    one of them
    GET  /v1/models/{name}/schema
    GET  /healthz                     200 while the server works
    GET  /readyz                      200 once every model has run
    GET  /metrics                     Prometheus' text format

Statuses: 400 an invalid input, 401 no key or a wrong one, 404 no such model, 408 headers or a body that do
not arrive in time, 413 a body or tensor that is too large, 414 and 431 a URL or headers that are, 415 another
content type or a compressed body, 421 another host, 500 the model failed, 503 not ready or too many requests,
504 no answer in time. Errors are JSON: ``{"error": {"message": ...}}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from burnt.errors import InputError, did_you_mean
from burnt.serve import wire
from burnt.serve.connections import Refusal, busy
from burnt.serve.device import Prediction, QueueFullError, Slot
from burnt.serve.schema import Batch, TooLargeError
from burnt.serve.servable import Servable
from burnt.serve.service import OVER_LIMIT, Service, Settings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


T = TypeVar("T")

_log = logging.getLogger("burnt.serve")

_SMALL = 2**16  # bytes that are decoded or encoded in the event loop: about 1 ms
_PORT = re.compile(r":\d*\Z")
_CLOSE = {"Connection": "close"}  # the rest of the body is not read
_GONE = 499  # the client closed the connection; as nginx logs it, no client ever sees it


def create_app(models: Mapping[str, Servable], settings: Settings | None = None) -> Starlette:
    """Return an ASGI application that serves models.

    Its lifespan starts the thread that runs the models, and their first calls; when it ends, what waits is
    answered. The `Service` is at ``app.state.service``.

    Args:
        models: the models by name, at least one; the first one is at ``/v1/predict`` too.
        settings: limits on requests and batches.
    """
    service = Service(models, settings or Settings())
    routes = _Routes(service)
    app = Starlette(
        routes=[
            Route("/v1/predict", _Endpoint(routes.predict, service), methods=["POST"]),
            Route("/v1/schema", _Endpoint(routes.schema, service), methods=["GET"]),
            Route("/v1/models", _Endpoint(routes.models, service), methods=["GET"]),
            Route("/v1/models/{name}/predict", _Endpoint(routes.predict, service), methods=["POST"]),
            Route("/v1/models/{name}/schema", _Endpoint(routes.schema, service), methods=["GET"]),
            Route("/healthz", _Endpoint(routes.health, service, is_open=True), methods=["GET"]),
            Route("/readyz", _Endpoint(routes.readiness, service, is_open=True), methods=["GET"]),
            Route("/metrics", _Endpoint(routes.metrics, service), methods=["GET"]),
        ],
        lifespan=_lifespan,
        exception_handlers={HTTPException: _answer_http_error},
    )
    app.state.service = service
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.device.start()
    tasks = [asyncio.create_task(service.warm_up())]
    if service.settings.reload is not None:
        tasks.append(asyncio.create_task(service.watch()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        service.coder.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(service.device.stop, service.settings.drain)


_ACCEPTED = "burnt.accepted"  # in the scope of a request that was queued


class _Endpoint:
    """An ASGI application for one route: it checks the key, unless it is open for probes, and refuses."""

    def __init__(
        self, handler: Callable[[Request], Awaitable[Response]], service: Service, is_open: bool = False
    ) -> None:
        self._handler = handler
        self._service = service
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            if not self._is_open:
                self._admit(request)
            response = await self._handler(request)
        except Refusal as refusal:
            response = refusal.response()
        request_id = request.headers.get("x-request-id")
        if request_id is not None:
            response.headers["X-Request-ID"] = request_id
        await response(scope, receive, send)
        if scope.get(_ACCEPTED):
            self._service.answered += 1

    def _admit(self, request: Request) -> None:
        settings = self._service.settings
        if request.scope.get(OVER_LIMIT):
            raise busy("the server has as many connections as it may")
        if settings.allowed_hosts and not _has_host(request, settings.allowed_hosts):
            raise Refusal(
                421,
                "the server does not answer for this host",
                expected=f"Host: {' or '.join(settings.allowed_hosts)}",
                found=", ".join(request.headers.getlist("host"))[:200] or "none",
            )
        if settings.api_key is not None and not _has_key(request, settings.api_key):
            raise Refusal(
                401,
                "the API key is missing or wrong",
                {"WWW-Authenticate": "Bearer"},
                expected="Authorization: Bearer KEY",
            )


class _Routes:
    """What the routes answer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._settings = service.settings
        self._bodies = _BodyReader(service.settings)
        self._answers = 0  # bytes of outputs that wait to be encoded

    async def predict(self, request: Request) -> Response:
        started = time.perf_counter()
        slot = self._slot(request)
        try:
            response = await self._predict(slot, request)
        except Refusal as refusal:
            response = refusal.response()
        metrics = self._service.device.metrics
        metrics.requests.labels(slot.name, response.status_code).inc()
        metrics.seconds.labels(slot.name).observe(time.perf_counter() - started)
        return response

    async def schema(self, request: Request) -> Response:
        slot = self._slot(request)
        return _json({**self._describe(slot), **slot.model.schema.to_dict()})

    async def models(self, request: Request) -> Response:
        return _json({"models": [self._describe(slot) for slot in self._service.slots.values()]})

    async def health(self, request: Request) -> Response:
        is_alive = self._service.device.is_alive()
        return PlainTextResponse(
            "ok" if is_alive else "the device thread has ended", 200 if is_alive else 500
        )

    async def readiness(self, request: Request) -> Response:
        is_ready = self._service.is_ready
        return PlainTextResponse("ready" if is_ready else "warming up", 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        metrics = self._service.device.metrics
        return Response(metrics.text(), media_type=metrics.content_type)

    def _describe(self, slot: Slot) -> dict[str, Any]:
        return {
            "model": slot.name,
            "version": slot.model.version,
            "max_batch": self._settings.max_batch,
            "batches_requests": slot.model.schema.is_batchable,
        }

    def _slot(self, request: Request) -> Slot:
        name = request.path_params.get("name")
        if name is None:
            return self._service.default
        slots = self._service.slots
        if name not in slots:
            raise Refusal(
                404, f"there is no model {name!r}", expected=", ".join(slots), hint=did_you_mean(name, slots)
            )
        return slots[name]

    async def _predict(self, slot: Slot, request: Request) -> Response:
        if not self._service.is_ready:
            raise busy("the models are not ready", "GET /readyz tells when they are")
        kind = _media_type(request.headers.get("content-type", ""))
        if kind not in (wire.JSON, wire.SAFETENSORS):
            raise Refusal(
                415,
                "the server does not read this content type",
                expected=f"Content-Type: {wire.JSON} or {wire.SAFETENSORS}",
                found=kind or "none",
            )
        headers = request.headers
        coding = ", ".join(headers.getlist("content-encoding") + headers.getlist("transfer-encoding"))
        if any(part.strip().lower() not in ("", "identity", "chunked") for part in coding.split(",")):
            raise Refusal(
                415,
                "the server does not read compressed bodies",
                {"Accept-Encoding": "identity"},
                expected="no Content-Encoding, and no Transfer-Encoding but chunked",
                found=coding,
            )
        wanted = _wanted_type(request.headers.get("accept", ""), kind)
        deadline = asyncio.get_running_loop().time() + self._settings.timeout
        try:
            async with self._bodies.read(request, deadline) as body:
                batch = await self._call(deadline, len(body), lambda: self._decode(slot, kind, body))
                prediction = await self._run(slot, batch, request.scope, deadline)
            return await self._answer(slot, prediction, batch.is_single, wanted, deadline)
        except ClientDisconnect:
            return Response(status_code=_GONE)

    async def _call(self, deadline: float, size: int, function: Callable[[], T]) -> T:
        """Call a function that reads or writes so many bytes, in a thread if they are many.

        It is one thread for all requests, so that little memory is in use at a time.
        """
        if size <= _SMALL:
            return function()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline):
                return await loop.run_in_executor(self._service.coder, function)
        except TimeoutError:
            raise self._late() from None

    def _late(self) -> Refusal:
        return Refusal(504, "there was no answer in time", expected=f"{self._settings.timeout:g} s")

    def _decode(self, slot: Slot, kind: str, body: bytes) -> Batch:
        schema = slot.model.schema
        try:
            max_rows = self._settings.max_batch
            is_json = kind == wire.JSON
            arrays = wire.decode_json(body, schema, max_rows) if is_json else wire.decode_safetensors(body)
            return schema.fit(arrays, max_rows, self._settings.max_elements)
        except TooLargeError as error:
            raise Refusal(413, error) from None
        except InputError as error:
            raise Refusal(400, error) from None

    async def _run(self, slot: Slot, batch: Batch, scope: Scope, deadline: float) -> Prediction:
        device = self._service.device
        try:
            async with asyncio.timeout_at(deadline):
                request = device.put(slot, batch)
                scope[_ACCEPTED] = True
                self._service.accepted += 1
                return await device.answer(request)
        except QueueFullError:
            raise busy("too many requests wait") from None
        except TimeoutError:
            raise self._late() from None
        except InputError as error:  # such as an index that an embedding lacks
            raise Refusal(400, error) from None
        except Exception as error:
            # The text may hold paths and values of the server, so it goes only to the log.
            _log.exception("%s: the model failed", slot.name)
            raise Refusal(500, "the model failed on this input", found=type(error).__name__) from None

    async def _answer(
        self, slot: Slot, prediction: Prediction, is_single: bool, kind: str, deadline: float
    ) -> Response:
        size = sum(output.nbytes for output in prediction.outputs)
        if self._answers and self._answers + size > self._settings.max_answers:  # a single one passes
            raise busy("the server holds as many bytes of answers as it may")
        self._answers += size
        try:
            return await self._call(deadline, size, lambda: self._encode(slot, prediction, is_single, kind))
        finally:
            self._answers -= size

    def _encode(self, slot: Slot, prediction: Prediction, is_single: bool, kind: str) -> Response:
        model = prediction.model
        outputs = prediction.outputs
        if not wire.is_finite(outputs):
            self._service.device.metrics.nonfinite_answers.labels(slot.name).inc()
        classes = model.schema.classify(outputs)
        labels: Any = None if classes is None else classes[0]
        if is_single:
            outputs = model.schema.without_batch_axis(outputs)
            labels = None if labels is None else labels[0]
        named = {tensor.name: array for tensor, array in zip(model.schema.outputs, outputs, strict=True)}
        extra = {"model": slot.name, "version": model.version}
        if kind == wire.SAFETENSORS:
            return Response(wire.encode_safetensors(named, extra, labels), media_type=kind)
        chances: Any = None
        if classes is not None:
            chances = wire.by_class(classes[1], model.schema.classes or ())
            chances = chances[0] if is_single else chances
        return Response(wire.encode_json(named, extra, labels, chances), media_type=kind)


class _BodyReader:
    """Reads bodies, and knows how many bytes of them are in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held = 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request, deadline: float) -> AsyncIterator[bytes]:
        """Context with the body of a request, which counts as held until the context ends.

        Refusal: it is too large, or late, or too many bytes of other bodies are held.
        """
        length = request.headers.get("content-length", "")
        if length.isdecimal():
            self._check_size(int(length))
        chunks: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    async for chunk in request.stream():
                        chunks.append(chunk)
                        size += len(chunk)
                        self._held += len(chunk)
                        self._check_size(size)
                        # A single body passes, however the limits are chosen.
                        if self._held > max(self._settings.max_bodies, size):
                            raise busy("the server holds as many bytes of requests as it may")
            except TimeoutError:
                expected = f"{self._settings.timeout:g} s"
                raise Refusal(408, "the body did not arrive in time", _CLOSE, expected=expected) from None
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self._held -= size

    def _check_size(self, size: int) -> None:
        if size > self._settings.max_body:
            expected = f"at most {self._settings.max_body:,} bytes"
            raise Refusal(413, "the body is too large", _CLOSE, expected=expected)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    hint = "POST /v1/predict, GET /v1/schema, GET /v1/models"
    refusal = Refusal(error.status_code, error.detail, error.headers, where=request.url.path, hint=hint)
    return refusal.response()


def _has_key(request: Request, key: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # In constant time: the time of a usual comparison tells how many characters are right.
    is_same = hmac.compare_digest(given.strip().encode("latin-1"), key.encode())
    return is_same and scheme.lower() == "bearer"


def _has_host(request: Request, allowed: Sequence[str]) -> bool:
    given = request.headers.getlist("host")
    names = {name.lower().strip("[]") for name in allowed}  # an IPv6 address has brackets in the header
    return len(given) == 1 and _PORT.sub("", given[0].strip()).lower().strip("[]") in names


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=wire.JSON)


def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def _wanted_type(accept: str, sent: str) -> str:
    """Return the first of the two types that the client accepts, by default the one that it sent."""
    for part in accept.split(","):
        if _media_type(part) in (wire.JSON, wire.SAFETENSORS):
            return _media_type(part)
    return sent
