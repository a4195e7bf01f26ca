"""Connections: what clients may send and read, how much and how slowly; through sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import uvicorn

from burnt.serve import Settings, create_app, process
from burnt.serve.connections import Connections
from burnt.serve.process import configuration, listen
from burnt.serve.schema import Schema
from burnt.serve.wire import SAFETENSORS
from tests.fixtures import Patch
from tests.serve.serving import PATIENCE, Fake, Gate, in_loop, schema_of

BODY = b'{"inputs":{"x":[[1,2]]}}'
ANSWER = {"y": [[2, 4]]}


class Server:
    """A server in a thread, and raw requests to it."""

    def __init__(self, model: Any, **settings: Any) -> None:
        app = create_app({"model": model}, Settings(**{"max_batch": 1, "timeout": PATIENCE, **settings}))
        self.service = app.state.service
        self.uvicorn = uvicorn.Server(configuration(app, self.service.settings))
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self._thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [self.listener]})
        self._thread.start()
        wait_until(lambda: self.service.is_ready)

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def connect(self, sent: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
        opened = socket.socket()
        if receive_buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        opened.settimeout(PATIENCE)
        opened.connect(("127.0.0.1", self.port))
        opened.sendall(sent)
        return opened

    def ask(self, sent: bytes, ends: bool = True) -> list[tuple[int, dict[str, str], Any]]:
        """Send bytes, and return the status, headers and JSON of each answer."""
        with self.connect(sent) as opened:
            if ends:
                opened.shutdown(socket.SHUT_WR)
            return answers(read_all(opened))


def read_all(opened: socket.socket) -> bytes:
    return b"".join(iter(lambda: opened.recv(2**16), b""))


def answers(received: bytes) -> list[tuple[int, dict[str, str], Any]]:
    found = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", 0))
        body, received = received[:length], received[length:]
        is_json = headers.get("content-type") == "application/json"
        found.append((int(status.split()[1]), headers, json.loads(body) if is_json else body))
    return found


def wait_until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def post(headers: bytes = b"", body: bytes = BODY, line: bytes = b"POST /v1/predict HTTP/1.1") -> bytes:
    length = b"" if b"chunked" in headers else b"Content-Length: %d\r\n" % len(body)
    return line + b"\r\nHost: x\r\nContent-Type: application/json\r\n" + length + headers + b"\r\n" + body


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that waits long."""
    started = Server(Fake())
    yield started
    started.stop()


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """A server that waits 0.2 s."""
    started = Server(Fake(), timeout=0.2)
    yield started
    started.stop()


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.0", b"foo, h2c"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_of_another_protocol_is_ignored(server: Server, protocol: bytes, is_chunked: bool) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAEAA\r\n" % protocol
    framing, body = b"", BODY
    if is_chunked:
        framing = b"Transfer-Encoding: chunked\r\n"
        body = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    plain = post(framing, body)
    found = server.ask(post(offer + framing, body) + plain)
    assert [(status, answer["outputs"]) for status, _, answer in found] == [(200, ANSWER)] * 2


def test_an_offer_that_arrives_byte_by_byte(server: Server) -> None:
    with server.connect() as opened:
        for byte in post(b"Connection: upgrade\r\nUpgrade: h2c\r\nConnection: close\r\n"):
            opened.send(bytes([byte]))
        (status, _, answer), *rest = answers(read_all(opened))
    assert (status, answer["outputs"], rest) == (200, ANSWER, [])


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (post(b"A: " + b"a" * 2**20 + b"\r\n"), 431, "8,192 bytes each"),
        (post(b"a" * 2**20 + b": a\r\n"), 431, "8,192 bytes each"),
        (post(b"A: " + b"a" * 9000 + b"\r\n"), 431, "8,192 bytes each"),
        (post((b"A: " + b"a" * 4000 + b"\r\n") * 9), 431, "32,768 bytes together"),
        (post(b"A: a\r\n" * 100), 431, "at most 100 headers"),
        (post((b"A: " + b"a" * 4000 + b"\r\n") * 7), 200, None),
        (post(b"A: a\r\n" * 90), 200, None),
        (post(line=b"POST /v1/predict?" + b"a" * 9000 + b" HTTP/1.1"), 414, "at most 8,192 bytes"),
        (post(b"Transfer-Encoding: chunked\r\n", b"5;" + b"a" * 2**20), 431, "8,192 bytes each"),
        (post(b"Transfer-Encoding: chunked\r\n", b"0\r\nA: " + b"a" * 2**20), 431, "8,192 bytes each"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405, "not a proxy"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "not an HTTP request"),
        (b"GET foo HTTP/1.1\r\n\r\n", 400, "not an HTTP request"),
        (post(b"Content-Length: 24\r\n"), 400, "Content-Length"),
        (post(b"Transfer-Encoding: CHUNKED\r\n"), 400, "Content-Length"),
        (post(b"Content-Encoding: gzip\r\n"), 415, "compressed"),
        (post(b"Content-Encoding: identity\r\nContent-Encoding: br\r\n"), 415, "compressed"),
        (post(b"Content-Encoding: Identity\r\n"), 200, None),
        (post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 415, "compressed"),
    ],
)
def test_what_is_read_and_what_is_refused(server: Server, sent: bytes, status: int, said: str | None) -> None:
    (found, headers, answer), *rest = server.ask(sent, ends=status in (200, 415))
    assert (found, rest) == (status, [])
    if said is None:
        assert answer["outputs"] == ANSWER
    else:
        assert said in " ".join(answer["error"].values())
        assert headers.get("connection") == "close" or status == 415


def test_headers_are_not_kept_before_they_are_refused(server: Server) -> None:
    sent = 0
    with server.connect(b"POST /v1/predict HTTP/1.1\r\n") as opened, contextlib.suppress(ConnectionError):
        while sent < 200:
            opened.sendall(b"A%d: " % sent + b"a" * 2**20 + b"\r\n")
            sent += 1
    assert sent < 100, "the connection must be closed"


def test_a_refusal_comes_after_the_answers_to_earlier_requests(server: Server) -> None:
    for broken in (
        b"broken\r\n\r\n",
        post(b"A: a\r\n" * 200),
        post(b"Transfer-Encoding: chunked\r\n", b"z\r\n"),
    ):
        found = server.ask(post() * 3 + broken + post(), ends=False)
        assert [status for status, *_ in found] in ([200, 200, 200, 400], [200, 200, 200, 431])


def test_many_requests_at_once_are_answered_in_order(server: Server) -> None:
    sent = b"".join(post(body=b'{"inputs":{"x":[%d,0]}}' % i) for i in range(500))
    found = server.ask(sent)
    assert [answer["outputs"]["y"][0] for _, _, answer in found] == [2 * i for i in range(500)]


def test_fields_after_a_chunked_body_are_no_headers(server: Server) -> None:
    body = b"%x\r\n%b\r\n0\r\nX-Request-ID: after\r\n\r\n" % (len(BODY), BODY)
    found = server.ask(post(b"Transfer-Encoding: chunked\r\n", body) + post(b"X-Request-ID: before\r\n"))
    assert [(status, headers.get("x-request-id")) for status, headers, _ in found] == [
        (200, None),
        (200, "before"),
    ]


def test_a_request_whose_body_was_not_asked_for_ends_the_connection(server: Server) -> None:
    expects = b"POST /none HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 24\r\n\r\n"
    found = server.ask(expects + post(), ends=False)
    assert [(status, headers["connection"]) for status, headers, _ in found] == [(404, "close")]


def test_a_refused_body_may_be_sent_to_its_end(server: Server) -> None:
    """A reset connection would take the answer away before the client reads it."""
    found = server.ask(post(body=b" " * 17_000_000), ends=False)
    assert [status for status, *_ in found] == [413]


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"", []),
        (b"\r\n\r\n", []),
        (b"GET /he", [408]),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", [408]),
        (b"GET /healthz HTTP/1.1\r\n\r\n", [200]),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", [200]),
        (post()[:-1], [408]),
        (b"GET /healthz HTTP/1.1\r\n\r\nGET", [200, 408]),
    ],
)
def test_each_wait_for_a_client_ends(hasty: Server, sent: bytes, statuses: list[int]) -> None:
    with hasty.connect(sent) as opened:
        assert [status for status, *_ in answers(read_all(opened))] == statuses


def test_headers_that_arrive_slowly_are_cut_off(hasty: Server) -> None:
    with hasty.connect(b"GET /healthz HTTP/1.1\r\n") as opened:
        opened.settimeout(0.01)
        received = b""
        with contextlib.suppress(ConnectionError):
            while not received:
                opened.sendall(b"A: b\r\n"[: 1 + len(received)])
                with contextlib.suppress(TimeoutError):
                    received = opened.recv(1000) or b"closed"
    assert received.startswith((b"HTTP/1.1 408", b"closed"))


def test_an_answer_that_nobody_reads_is_dropped() -> None:
    wide = Fake(lambda x: np.repeat(x[:, :1], 4_000_000, 1))
    wide.schema = Schema(wide.schema.inputs, schema_of((None, 4_000_000)).outputs)
    server = Server(wide, timeout=0.5)
    opened = [server.connect(post(b"Accept: %b\r\n" % SAFETENSORS.encode()), 4096) for _ in range(3)]
    wait_until(lambda: server.service.answered == 3)
    wait_until(lambda: not server.uvicorn.server_state.connections)
    server.stop()
    for connection in opened:
        connection.close()


def test_healthz_is_answered_when_all_connections_are_busy() -> None:
    server = Server(Fake(gate := Gate()), max_connections=1)
    gate.is_shut = True
    try:
        with server.connect(post()) as busy:
            assert gate.entered.acquire(timeout=PATIENCE)
            probe = server.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            refused = server.ask(post())
            gate.open()
            busy.shutdown(socket.SHUT_WR)
            answered = answers(read_all(busy))
    finally:
        gate.open()
        server.stop()
    assert [status for status, *_ in probe] == [200]
    assert [(s, h["connection"], h["retry-after"]) for s, h, _ in refused] == [(503, "close", "1")]
    assert [(status, answer["outputs"]) for status, _, answer in answered] == [(200, ANSWER)]


def test_a_signal_ends_the_server_at_once_while_clients_wait() -> None:
    server = Server(Fake(), drain=PATIENCE * 10)
    opened = [server.connect(sent) for sent in (b"", b"GET /he", post())]
    opened[-1].recv(1)
    server.stop()  # in less than PATIENCE
    for connection in opened:
        connection.close()


# --- what a socket shows only by chance


class Client:
    def __init__(self, unsent: int = 0) -> None:
        self.unsent = unsent
        self.flow = SimpleNamespace(write_paused=unsent > 0)
        self.is_aborted = self.is_expired = self.is_over_limit = False

    def abort(self) -> None:
        self.is_aborted = True

    def expire(self) -> None:
        self.is_expired = True


@in_loop
async def test_the_connection_with_the_longest_wait_makes_room() -> None:
    connections: Any = Connections(Settings(timeout=1e-9), limit=2)
    first, second, busy = Client(), Client(), Client()
    for client in (busy, first, second, first):
        connections.wait(client)
    connections.stop_waiting(busy)
    assert connections.has_room(2)
    assert (first.is_aborted, second.is_aborted) == (False, False)
    assert connections.has_room(3)
    assert (first.is_aborted, second.is_aborted, busy.is_aborted) == (False, True, False)


@in_loop
async def test_connections_above_the_limit_when_none_has_waited() -> None:
    connections: Any = Connections(Settings(timeout=1e9), limit=8)
    assert not connections.has_room(9)  # the other eight are busy
    connections.wait(above := Client())
    above.is_over_limit = True
    assert not connections.has_room(9)
    assert not above.is_aborted  # its request may have arrived
    assert not connections.has_room(10)  # it takes the place of another one above the limit
    assert above.is_aborted


@in_loop
async def test_unread_answers_are_limited_together() -> None:
    connections: Any = Connections(Settings(max_answers=100), limit=8)
    slow, slower, large, alone, idle = Client(40), Client(50), Client(60), Client(200), Client()

    def hold(client: Client) -> list[bool]:
        connections.wait(client)
        connections.limit_unread(client)
        return [client.is_aborted for client in (slow, slower, large, alone, idle)]

    connections.wait(idle)
    assert not any(hold(slow) + hold(slower))
    assert not any(hold(slow))  # it has read something: now the other one has not for longest
    assert hold(large) == [False, True, False, False, False]
    connections.stop_waiting(slower)
    assert hold(alone) == [True, True, True, False, False]  # one alone passes


class Transport(asyncio.Transport):
    """Holds what is written; the test says how much the client has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.is_aborted = True


@in_loop
async def test_a_client_that_reads_slowly_is_waited_for() -> None:
    config = configuration(create_app({"m": Fake()}), Settings())
    config.load()
    connection = cast(Any, config.http)(
        config=config, server_state=uvicorn.server.ServerState(), app_state={}
    )
    connection.connection_made(transport := Transport())
    transport.size = 100_000
    connection.pause_writing()
    for transport.size in (99_999, 50_000, 10):
        connection.expire()
        assert not transport.is_aborted
    connection.expire()
    assert transport.is_aborted


def test_connections_leave_file_handles_for_others(monkeypatch: Patch) -> None:
    app = create_app({"m": Fake()})
    for handles, expected in ((128, (64, 32)), (10**6, (1024, 2048))):
        monkeypatch.setattr(process, "_max_handles", lambda handles=handles: handles)
        config = configuration(app, Settings())
        assert (cast(Any, config.http).limit, config.backlog) == expected
