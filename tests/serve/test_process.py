"""The server as a process: its address, SIGTERM, restarts under load, bodies of a gigabyte."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from burnt.errors import BurntError
from burnt.serve.process import listen
from tests.fixtures import Patch
from tests.serve import onnx_files

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0

# A model that tells a file when it runs, and waits until a file exists.
SLOW = """
import pathlib, sys, time, logging
import numpy as np
from burnt.serve import Settings, serve
from burnt.serve.process import listen
from burnt.serve.schema import Schema, TensorSchema

folder = pathlib.Path(sys.argv[1])
x, y = (TensorSchema(name, (None, 1), np.dtype("float32"), 0) for name in "xy")

class Slow:
    schema, version = Schema((x,), (y,)), "first"

    def batch_sizes(self, max_batch):
        return [1]

    def run(self, arrays):
        if arrays[0].any():
            (folder / "running").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)
        return [arrays[0] * 2]

logging.basicConfig(level=logging.INFO)
listener = listen("127.0.0.1", 0)
(folder / "port.new").write_text(str(listener.getsockname()[1]))
(folder / "port.new").rename(folder / "port")
serve({"slow": Slow()}, Settings(), listener)
"""


def environment() -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths}


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def wait_for(found: object) -> None:
    """Wait until a file exists, or an address answers with success."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if isinstance(found, Path):
            if found.exists():
                return
        else:
            try:
                urllib.request.urlopen(str(found)).close()
                return
            except urllib.error.HTTPError as error:
                error.close()
            except (urllib.error.URLError, ConnectionError):
                pass
        time.sleep(0.01)
    raise TimeoutError(str(found))


def post(connection: http.client.HTTPConnection, x: list[float]) -> None:
    connection.request(
        "POST", "/v1/predict", json.dumps({"inputs": {"x": x}}), {"Content-Type": "application/json"}
    )


def test_requests_that_were_accepted_are_answered_after_sigterm(tmp_path: Path) -> None:
    with process("-c", SLOW, str(tmp_path)) as server:
        wait_for(tmp_path / "port")
        port = int((tmp_path / "port").read_text())
        wait_for(f"http://127.0.0.1:{port}/readyz")
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE) for _ in range(3)]
        post(connections[0], [1.0])
        wait_for(tmp_path / "running")
        for i in (1, 2):
            post(connections[i], [i + 1.0])
        wait_for_metric(port, "burnt_serve_queue_requests 2.0")
        server.send_signal(signal.SIGTERM)
        wait_until_refused(port)
        (tmp_path / "go").touch()
        answers = [json.loads(connection.getresponse().read()) for connection in connections]
        for connection in connections:
            connection.close()
        _, errors = server.communicate(timeout=PATIENCE)
    assert [answer["outputs"]["y"] for answer in answers] == [[2.0], [4.0], [6.0]]
    assert server.returncode == 0, errors
    assert "stopped: 3 requests accepted, 3 answered" in errors


def test_a_model_that_never_returns_does_not_keep_the_process(tmp_path: Path) -> None:
    with process("-c", SLOW.replace("Settings()", "Settings(drain=1)"), str(tmp_path)) as server:
        wait_for(tmp_path / "port")
        port = int((tmp_path / "port").read_text())
        wait_for(f"http://127.0.0.1:{port}/readyz")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        post(connection, [1.0])
        wait_for(tmp_path / "running")
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=PATIENCE)
        connection.close()
    assert server.returncode == 1
    assert "stopped: 1 requests accepted, 0 answered" in errors
    assert "a model still runs" in errors


def wait_for_metric(port: int, line: str) -> None:
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            if line in answer.read().decode():
                return


def wait_until_refused(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:  # the port was closed between the packets of a handshake
            pass


@pytest.fixture
def benchmark(monkeypatch: Patch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("serve")
    sys.modules.pop("serve")


@pytest.mark.parametrize("restarts", [1, pytest.param(50, marks=pytest.mark.full)])
def test_no_accepted_request_is_lost_or_answered_twice_through_restarts(
    benchmark: ModuleType, restarts: int, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    counts = asyncio.run(benchmark.restart_under_load(restarts, answers_each=50))
    assert counts["answered"] == counts["accepted"] >= 50 * (restarts + 1)


def test_a_body_of_a_gigabyte_is_refused_and_not_held(tmp_path: Path) -> None:
    file = onnx_files.write(tmp_path / "m.onnx")
    with process("-m", "burnt", "serve", str(file), "--port", "0", "--max-body", "1") as server:
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("listening"))
        address = line.split()[-1]
        wait_for(f"{address}/readyz")
        before = psutil.Process(server.pid).memory_info().rss
        port = int(address.rpartition(":")[2])
        sent = 0
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            head = "POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            try:
                while sent < 1024:
                    connection.sendall(b"100000\r\n" + bytes(2**20) + b"\r\n")
                    sent += 1
            except ConnectionError:
                pass
            with_answer = b""
            with suppress(ConnectionError):
                with_answer = connection.recv(1000)
        assert sent < 100, "the connection must be closed"
        assert with_answer == b"" or b" 413 " in with_answer
        assert psutil.Process(server.pid).memory_info().rss - before < 64 * 2**20
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=PATIENCE)
        assert server.returncode == 0, errors
        assert re.search("stopped: 0 requests accepted, 0 answered", errors)


def test_an_address_that_cannot_be_listened_at() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BurntError, match="the port is in use") as caught:
            listen("127.0.0.1", port)
    assert f"127.0.0.1:{port}" in str(caught.value)
    with listen("127.0.0.1", port):
        pass  # it is free again
    for host, wrong in (("256.0.0.1", 0), ("127.0.0.1", 70000), ("192.0.2.1", 0)):
        with pytest.raises(BurntError, match=r"no such port|cannot listen") as caught:
            listen(host, wrong)
        assert host in str(caught.value)


def test_a_model_that_does_not_run_ends_the_process(tmp_path: Path) -> None:
    broken = SLOW.replace("if arrays[0].any():", "raise RuntimeError('no weights')\n        if True:")
    with process("-c", broken, str(tmp_path)) as server:
        _, errors = server.communicate(timeout=PATIENCE)
    assert server.returncode == 1
    assert "the model does not run\n  in        slow\n  found     RuntimeError: no weights" in errors
