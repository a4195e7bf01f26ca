"""Requests per second and latency of `burnt serve`, next to LitServe; and restarts under load.

    python benchmarks/serve.py [--quick] [--json FILE]
    python benchmarks/serve.py --restarts 50

All servers run the same torch module (a 256-1024-1024-10 MLP, eager, one thread) in batches of up to 32, and
get the same JSON. burnt's is told nothing else; LitServe is shown with a batch window of 5 ms, and with none.
Each runs in processes of its own and is stopped (SIGSTOP) while another one is measured. The client keeps
1, 16 and 64 connections open, each of which sends its next request when the last one is answered; it shares
the cores with the server. Every 50th answer is compared with the module's. A round measures each server once,
in a random order; a row is the median over the rounds, and the ratios are of burnt to that server in the same
round: above 1 for requests per second, and below 1 for times, burnt is ahead. On a machine with other work,
p5 (the latency in calm moments) and cpu (what the server's processes computed for a request) say most: the
median then measures how soon the scheduler wakes each of the processes.

`--restarts` sends numbered requests from 16 connections to a server that is restarted by SIGTERM, and repeats
those whose connection failed. No number may be answered twice or with another one's answer, and the servers
together must have accepted exactly as many requests as the client got answers for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

CONNECTIONS = (1, 16, 64)
MAX_BATCH = 32
TIMES = ("p5", "p50", "p99", "cpu")  # of a Sample
LITSERVE = str(Path(__file__).with_name("litserve_server.py"))
PATIENCE = 120.0  # seconds for a server to start


@dataclass
class Rival:
    name: str
    command: Callable[[int], list[str]]
    path: str
    ready: str
    body: Callable[[list[float]], dict[str, Any]]
    answer: Callable[[dict[str, Any]], list[float]]
    package: str = "burnt"
    process: subprocess.Popen[str] | None = None
    port: int = 0
    rounds: dict[int, list[Sample]] = field(default_factory=dict)


@dataclass
class Sample:
    per_second: float
    p5: float  # milliseconds, in calm moments of a shared machine
    p50: float
    p99: float
    cpu: float  # milliseconds of the server's processes for a request


RIVALS = [
    Rival(
        "burnt",
        lambda port: [__file__, "--server", str(port)],
        "/v1/predict",
        "/readyz",
        lambda row: {"inputs": {"input": row}},
        lambda found: found["outputs"]["output"],
    ),
    Rival(
        "litserve, 5 ms",
        lambda port: [LITSERVE, str(port), "0.005"],
        "/predict",
        "/health",
        lambda row: {"input": row},
        lambda found: found["output"],
        "litserve",
    ),
    Rival(
        "litserve, no window",
        lambda port: [LITSERVE, str(port), "0"],
        "/predict",
        "/health",
        lambda row: {"input": row},
        lambda found: found["output"],
        "litserve",
    ),
]


# --- the servers, each in processes of its own


def mlp() -> Any:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10)).eval()


def serve_burnt(port: int) -> None:
    import torch

    from burnt.serve import RunModel, Settings, serve
    from burnt.serve.process import listen

    torch.set_num_threads(1)
    model = RunModel(mlp(), torch.zeros(1, 256))
    serve({"mlp": model}, Settings(max_batch=MAX_BATCH), listen("127.0.0.1", port))


def start(rival: Rival) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        rival.port = probe.getsockname()[1]
    rival.process = subprocess.Popen(
        [sys.executable, *rival.command(rival.port)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_until_ready(rival.process, f"http://127.0.0.1:{rival.port}{rival.ready}")


def wait_until_ready(process: subprocess.Popen[str], address: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(address):
            return
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{process.args} did not start")
        time.sleep(0.05)


def signal_all(rival: Rival, number: int) -> None:
    assert rival.process is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rival.process.pid, number)


def cpu_seconds(rival: Rival) -> float:
    assert rival.process is not None
    first = psutil.Process(rival.process.pid)
    times = [process.cpu_times() for process in (first, *first.children(recursive=True))]
    return sum(time.user + time.system for time in times)


# --- the client


class Connection(asyncio.Protocol):
    """One connection that sends a request and waits for its answer, with as little work as possible."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("closed without an answer"))
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE) if end else None
        if length is not None and len(body) >= int(length[1]) and self._answer is not None:
            self._answer.set_result((int(head[9:12]), body))
            self._received = b""

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        if self._transport is None:
            raise ConnectionError("closed before the request")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def encode(path: str, body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


async def measure(rival: Rival, connections: int, seconds: float, expected: Sequence[Any]) -> Sample:
    """Send requests for a time, after a fifth of it to warm up."""
    import numpy

    requests = [encode(rival.path, rival.body(row)) for row, _ in expected]
    clock = time.perf_counter
    begin = clock() + seconds / 5
    end = begin + seconds
    taken: list[float] = []
    sent_in_all = 0

    async def client(number: int) -> None:
        nonlocal sent_in_all
        connection = await Connection.open(rival.port)
        turn = number
        while (sent := clock()) < end:
            turn = (turn + 7) % len(requests)
            status, body = await connection.ask(requests[turn])
            sent_in_all += 1
            if sent >= begin:
                taken.append(clock() - sent)
            if status != 200 or len(taken) % 50 == 1:
                found = rival.answer(json.loads(body)) if status == 200 else body
                assert status == 200, (rival.name, status, found)
                numpy.testing.assert_allclose(found, expected[turn][1], rtol=1e-4, atol=1e-5)
        connection.close()

    before = cpu_seconds(rival)
    await asyncio.gather(*(client(number) for number in range(connections)))
    cpu = (cpu_seconds(rival) - before) / sent_in_all * 1e3
    cuts = statistics.quantiles(taken, n=100)
    return Sample(len(taken) / seconds, cuts[4] * 1e3, cuts[49] * 1e3, cuts[98] * 1e3, cpu)


def compare(rounds: int, seconds: float, out: str | None) -> None:
    import torch

    present = [rival for rival in RIVALS if importlib.util.find_spec(rival.package) is not None]
    for rival in RIVALS:
        if rival not in present:
            print(f"{rival.name}: skipped, {rival.package} is not installed")
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(64, 256, generator=generator)
    expected = list(zip(rows.tolist(), mlp()(rows).detach().tolist(), strict=True))
    dice = random.Random(0)
    try:
        for rival in present:
            start(rival)
            signal_all(rival, signal.SIGSTOP)
        for _ in range(rounds):
            for rival in dice.sample(present, len(present)):
                signal_all(rival, signal.SIGCONT)
                for connections in CONNECTIONS:
                    sample = asyncio.run(measure(rival, connections, seconds, expected))
                    rival.rounds.setdefault(connections, []).append(sample)
                signal_all(rival, signal.SIGSTOP)
    finally:
        for rival in present:
            if rival.process is not None:
                signal_all(rival, signal.SIGCONT)
                signal_all(rival, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    rival.process.wait(10)
                signal_all(rival, signal.SIGKILL)
    report(present, rounds, out)


def report(present: Sequence[Rival], rounds: int, out: str | None) -> None:
    ours = present[0]
    results: dict[str, Any] = {"rounds": rounds, "cores": os.cpu_count(), "connections": {}}
    heads = "".join(f"{name:>11}" for name in TIMES)
    print(f"{'connections':<12}{'server':<22}{'req/s':>9}{heads}   burnt to it: req/s, {', '.join(TIMES)}")
    for connections in CONNECTIONS:
        for rival in present:
            samples = rival.rounds[connections]
            row = {
                name: statistics.median(getattr(sample, name) for sample in samples)
                for name in ("per_second", *TIMES)
            }
            pairs = list(zip(ours.rounds[connections], samples, strict=True))
            ratios = {
                name: statistics.median(getattr(a, name) / getattr(b, name) for a, b in pairs) for name in row
            }
            results["connections"].setdefault(str(connections), {})[rival.name] = {**row, "ratios": ratios}
            line = f"{connections:<12}{rival.name:<22}{row['per_second']:>9.0f}"
            line += "".join(f"{row[name]:>8.2f} ms" for name in TIMES) + "   "
            print(line + ("" if rival is ours else "".join(f"{ratio:>8.2f}x" for ratio in ratios.values())))
    if out is not None:
        Path(out).write_text(json.dumps(results, indent=1))


# --- restarts under load


def write_identity(path: Path) -> None:
    """Write an ONNX file whose output is its input, so that an answer says which request it is for."""
    import onnx
    from onnx import TensorProto, helper

    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", 1])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, ["batch", 1])]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "identity", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


@contextlib.contextmanager
def running(file: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "burnt", "serve", str(file), "--port", str(port), "--max-batch", "8"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass
class Load:
    """Numbered requests, repeated until they are answered."""

    port: int
    next_number: int = 0
    answers: dict[int, list[int]] = field(default_factory=dict)
    failures: int = 0
    refused: int = 0
    is_over: bool = False

    async def client(self) -> None:
        connection: Connection | None = None
        while not self.is_over:
            number, self.next_number = self.next_number, self.next_number + 1
            request = encode("/v1/predict", {"inputs": {"x": [number]}})
            while number not in self.answers:
                try:
                    connection = connection or await Connection.open(self.port)
                    status, body = await connection.ask(request)
                except OSError:
                    self.failures += 1
                    connection = None
                    await asyncio.sleep(0.01)
                    continue
                if status == 200:
                    self.answers.setdefault(number, []).append(json.loads(body)["outputs"]["y"][0])
                else:  # 503: not ready
                    self.refused += 1
                    await asyncio.sleep(0.01)
        if connection is not None:
            connection.close()


async def restart_under_load(restarts: int, answers_each: int, connections: int = 16) -> dict[str, int]:
    """Restart a server so often, each time after some answers; return what was counted.

    Raises:
        AssertionError: an accepted request was lost, or answered twice or wrongly.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    load = Load(port)
    accepted = answered = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "identity.onnx"
        write_identity(file)
        clients = [asyncio.create_task(load.client()) for _ in range(connections)]
        for i in range(restarts + 1):
            with running(file, port) as process:
                target = len(load.answers) + answers_each
                end = time.monotonic() + PATIENCE
                while len(load.answers) < target:
                    assert process.poll() is None, process.communicate()[1]
                    assert time.monotonic() < end, "the server does not answer"
                    await asyncio.sleep(0.01)
                if i == restarts:
                    load.is_over = True
                    await asyncio.gather(*clients)
                process.send_signal(signal.SIGTERM)
                errors = await asyncio.to_thread(lambda p=process: p.communicate(timeout=PATIENCE)[1])
                assert process.returncode == 0, errors
                counts = re.search(r"stopped: (\d+) requests accepted, (\d+) answered", errors)
                assert counts is not None, errors
                accepted += int(counts[1])
                answered += int(counts[2])
    wrong = {number: found for number, found in load.answers.items() if found != [number]}
    assert not wrong, f"answered twice or wrongly: {wrong}"
    assert sorted(load.answers) == list(range(load.next_number)), "some numbers have no answer"
    assert accepted == answered == len(load.answers), (accepted, answered, len(load.answers))
    return {
        "restarts": restarts,
        "accepted": accepted,
        "answered": len(load.answers),
        "connections that failed and were repeated": load.failures,
        "refused as not ready": load.refused,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="burnt serve next to LitServe, and restarts under load")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it runs, no more")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.add_argument("--restarts", type=int, help="only restart a server so often, under load")
    parser.add_argument("--server", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.server is not None:
        serve_burnt(args.server)
    elif args.restarts is not None:
        for name, count in asyncio.run(restart_under_load(args.restarts, 200)).items():
            print(f"{name}: {count}")
    else:
        rounds, seconds = (1, 0.5) if args.quick else (7, 3.0)
        compare(rounds, seconds, args.json)


if __name__ == "__main__":
    main()
