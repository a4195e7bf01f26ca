"""Connections: limits for clients that send or read too much, too slowly or nothing, in uvicorn's protocol.

A connection waits for its client while a request arrives, while an answer is not read, and between requests.
Each wait ends after the server's timeout. If there are more connections than the limit, the one that has
waited longest is closed for each new one; if none waits, the new one is only served what probes ask for.
"""

from __future__ import annotations

import asyncio
import http
import math
import time
from collections.abc import Mapping
from typing import Any, cast

import httptools
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from burnt import memory
from burnt.errors import BurntError
from burnt.serve.service import OVER_LIMIT, Settings
from burnt.serve.wire import JSON, encode_error


class Refusal(Exception):
    """A request that is answered with an HTTP status and an error, or its message and parts."""

    def __init__(
        self,
        status: int,
        error: BurntError | str,
        headers: Mapping[str, str] | None = None,
        **parts: str | None,
    ) -> None:
        error = error if isinstance(error, BurntError) else BurntError(error, **parts)  # type: ignore[arg-type]  # origin= is not given
        super().__init__(error.what)
        self.status = status
        self.error = error
        self.headers = headers

    def response(self) -> Response:
        """Return the answer."""
        return Response(encode_error(self.error), self.status, self.headers, JSON)


def busy(what: str, hint: str = "send the request again later") -> Refusal:
    """Return the refusal of a request that may succeed a second later."""
    return Refusal(503, what, {"Retry-After": "1"}, hint=hint)


_MAX_LINE = 8 * 1024  # bytes of one header, or of the URL; these two are nginx's defaults
_MAX_HEAD = 32 * 1024  # bytes of all headers
_MAX_HEADERS = 100
_SLICE = 4096  # bytes that are parsed at once: few enough pipelined requests to hold in memory


class Connections:
    """Makes the connections of a server, and knows those that wait for their client, the longest wait first.

    A few more than `limit` are open while they are closed.
    """

    def __init__(self, settings: Settings, limit: int) -> None:
        self.settings = settings
        self.limit = limit
        self._moment = min(settings.timeout / 10, 1.0)  # seconds between looks for waits that are over
        self._waiting: dict[_Connection, float] = {}  # and when the wait began
        self._timer: asyncio.TimerHandle | None = None
        self._trimming: asyncio.TimerHandle | None = None

    def __call__(self, **options: Any) -> HttpToolsProtocol:
        """Return a new connection, for uvicorn, with uvicorn's options."""
        return _Connection(self, **options)

    def wait(self, connection: _Connection) -> None:
        """Begin a wait; it replaces an earlier one."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._moment, self._expire)

    def stop_waiting(self, connection: _Connection) -> None:
        """End a wait, if there is one."""
        self._waiting.pop(connection, None)

    def has_room(self, count: int) -> bool:
        """Return whether a new connection, the last of so many, is served; if need be, close another one.

        It is one that has waited for some time: what was accepted just now may have sent its request.
        """
        oldest = next(iter(self._waiting), None)
        if count <= self.limit or oldest is None:
            return count <= self.limit
        is_recent = self._waiting[oldest] > time.monotonic() - self._moment
        if is_recent and count <= self.limit + self.limit // 8:
            return False
        oldest.abort()
        return not oldest.is_over_limit

    def limit_unread(self, newest: _Connection) -> None:
        """Close the connections that have not read for longest, until the others hold few enough bytes."""
        unread = [connection for connection in self._waiting if connection.flow.write_paused]
        held = sum(connection.unsent for connection in unread)
        for connection in unread:
            if held <= self.settings.max_answers or connection is newest:
                break
            held -= connection.unsent
            connection.abort()

    def trim_soon(self) -> None:
        """Return memory to the system that dropped answers have left: malloc may keep all of it."""
        if self._trimming is None or self._trimming.when() < asyncio.get_running_loop().time():
            self._trimming = asyncio.get_running_loop().call_later(self._moment, memory.trim)

    def _expire(self) -> None:
        self._timer = None
        latest = time.monotonic() - self.settings.timeout
        for connection in [connection for connection, since in self._waiting.items() if since <= latest]:
            self.stop_waiting(connection)
            connection.expire()
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._moment, self._expire)


class _Connection(HttpToolsProtocol):
    """One connection. It stands between uvicorn's protocol and its transport, whose methods it has."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self.is_over_limit = False  # above the limit: only served what probes ask for
        self._in_head = False
        self._unparsed = 0  # bytes since the parser last made something of them
        self._pending = b""  # pipelined requests, for when those before them are answered
        self._refusal: Refusal | None = None  # of a broken request, for then too
        self._has_ended = False  # the client sends no more, but may still read
        self._unsent: float = math.inf  # bytes of answers at the last look
        self._discards: int | None = None  # bytes that may still come after the last answer, and are not read
        self._real: asyncio.Transport

    @property
    def unsent(self) -> int:
        """Bytes of answers that are held in this process."""
        return self._real.get_write_buffer_size()

    def expire(self) -> None:
        """End a wait for the client that has lasted for the whole timeout."""
        before, self._unsent = self._unsent, self.unsent
        if self._discards is not None or (self.unsent and self.unsent >= before):
            return self.abort()
        # The application has a deadline for bodies, and answers itself.
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not self.unsent and not is_answering:
            if self._in_head:
                expected = f"{self._connections.settings.timeout:g} s"
                self._write_refusal(Refusal(408, "the headers did not arrive in time", expected=expected))
            self._real.close()
        self._connections.wait(self)

    # --- the transport that uvicorn sees

    def abort(self) -> None:
        self._connections.stop_waiting(self)
        if self.unsent:
            self._connections.trim_soon()
        self._real.abort()

    def close(self) -> None:
        is_early = self.cycle is not None and self.cycle.response_complete and self.cycle.more_body
        if is_early and not self.is_closing():
            self._linger()
        else:
            self._real.close()

    def is_closing(self) -> bool:
        return self._discards is not None or self._real.is_closing()

    def write(self, data: bytes) -> None:
        if self._discards is None and not self._real.is_closing():  # else it is too late
            self._real.write(data)

    def pause_reading(self) -> None:
        self._real.pause_reading()

    def resume_reading(self) -> None:
        if not self._pending and self._refusal is None:
            self._real.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._real.get_extra_info(name, default)

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._real = cast(asyncio.Transport, transport)
        super().connection_made(cast(asyncio.Transport, self))
        self.is_over_limit = not self._connections.has_room(len(self.connections))
        self._connections.wait(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._connections.stop_waiting(self)

    def data_received(self, data: bytes) -> None:
        if self._discards is not None:
            self._discards -= len(data)
            if self._discards < 0:
                self.abort()
        elif self._pending:
            self._pending += data
        elif self._refusal is None:
            self._parse(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        self._has_ended = True
        if self._discards is not None or not self._is_working():
            return False
        if not self._pending:
            self.cycle.keep_alive = False
        return True  # the client may have closed one half, and reads the answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.unsent
        self._note()
        self._connections.limit_unread(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._note()

    # --- called by the parser and by uvicorn

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._unparsed = 0
        cast(dict[str, Any], self.scope)[OVER_LIMIT] = self.is_over_limit
        self._note()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > _MAX_LINE:
            raise Refusal(414, "the URL is too long", expected=f"at most {_MAX_LINE:,} bytes")

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `_feed` parses it again as a plain request
        sizes = [len(name) + len(value) + len(b": \r\n") for name, value in self.headers]
        if len(sizes) > _MAX_HEADERS or sum(sizes) > _MAX_HEAD or max(sizes, default=0) > _MAX_LINE:
            raise _too_many_headers()
        super().on_headers_complete()
        self.headers = []  # fields after a chunked body must not become headers of the request
        self._in_head = False
        self._unparsed = 0
        if self.expect_100_continue or self.is_over_limit:
            # The client may or may not send the body after an answer without it: what follows is unclear.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self.cycle.more_body = False
            self._unparsed = 0
            self._note()

    def on_response_complete(self) -> None:
        is_next_broken = not self.pipeline or self.pipeline[-1][0].more_body
        if self._refusal is not None and is_next_broken and not self.is_closing():
            return self._answer_last(self._refusal)
        super().on_response_complete()
        if self._pending and not self.pipeline and not self.is_closing():
            pending, self._pending = self._pending, b""
            self.resume_reading()
            self._parse(pending)
        if self._has_ended and not self._is_working():
            self._real.close()
        if not self.flow.write_paused:
            self._unsent = math.inf
        self._note()

    def timeout_keep_alive_handler(self) -> None:
        pass  # uvicorn's timer: it does not see that the next request has begun

    # ---

    def _parse(self, data: bytes) -> None:
        """Parse bytes up to the end of a request that must wait for the answer to one before it."""
        self._unset_keepalive_if_required()
        view = memoryview(data)
        for start in range(0, len(data), _SLICE):
            if self.pipeline:
                self._pending = bytes(view[start:])
                return self._real.pause_reading()
            try:
                self._feed(view[start : start + _SLICE])
            except Refusal as refusal:
                return self._refuse(refusal)
            except httptools.HttpParserError as error:
                cause = error.__context__ or error  # what a callback raised
                found = str(cause)[:200] if isinstance(cause, httptools.HttpParserError) else None
                broken = Refusal(400, "this is not an HTTP request", found=found)
                return self._refuse(cause if isinstance(cause, Refusal) else broken)

    def _feed(self, data: memoryview) -> None:
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Another protocol was offered, which a server may ignore. The parser has skipped the body.
            method = self.parser.get_method()
            if method == b"CONNECT":
                raise Refusal(405, "the server is not a proxy", found="CONNECT") from None
            line = b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())
            kept = [b": ".join(header) for header in self.headers if header[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.feed_data(b"\r\n".join([line, *kept, b"", b""]))
            self._feed(data[upgrade.args[0] :])
        if self._unparsed > _MAX_HEAD:
            raise _too_many_headers()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer a request that is broken or too large, after the answers to those before it."""
        if self._is_working():
            self._refusal = refusal
            return self._real.pause_reading()
        if self.cycle is not None and not self.cycle.response_complete:  # the broken part is its body
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                return self.abort()
        self._answer_last(refusal)

    def _answer_last(self, refusal: Refusal) -> None:
        self._write_refusal(refusal)
        self._linger()

    def _write_refusal(self, refusal: Refusal) -> None:
        response = refusal.response()
        headers = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
        status = f"HTTP/1.1 {refusal.status} {http.HTTPStatus(refusal.status).phrase}".encode()
        head = [status, *(b": ".join(header) for header in headers), b"", b""]
        self._real.write(b"\r\n".join(head) + bytes(response.body))

    def _linger(self) -> None:
        """Close after what was written, but take what the client still sends, within limits.

        Closing a socket with unread bytes resets the connection, and the client may not get the answer.
        """
        if self._has_ended:
            return self._real.close()
        self._discards = self._connections.settings.max_body
        self._real.write_eof()
        self._real.resume_reading()
        self._connections.wait(self)

    def _is_working(self) -> bool:
        """Whether a request has arrived that is not answered yet."""
        is_complete = self.cycle is not None and not self.cycle.more_body
        return bool(self.pipeline) or (is_complete and not self.cycle.response_complete)

    def _note(self) -> None:
        """Begin or end a wait for the client."""
        if self.flow.write_paused or not self._is_working():
            self._connections.wait(self)
        else:
            self._connections.stop_waiting(self)


def _too_many_headers() -> Refusal:
    limits = f"at most {_MAX_HEADERS} headers, {_MAX_LINE:,} bytes each and {_MAX_HEAD:,} bytes together"
    return Refusal(431, "the headers are too large", expected=limits)
