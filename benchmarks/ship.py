"""Size, start-up and latency of the ways in which a run ships, next to the model in Python.

    python benchmarks/ship.py [--json FILE]

Two models with random weights: the ConvNet of examples/digits (98,250 parameters), and a transformer of
two blocks of width 32 over 12 numbers. Start-up is the time of a fresh process up to its first answer, the
best of three, or up to ready for the server. Latency is the median of 300 calls with one item, in one process
and one thread; the server's is over one HTTP connection that stays open, and the page's is measured in Node,
which runs the same WebAssembly as a browser. C runs on this machine. PyTorch loads a program of torch.export.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import burnt
from burnt import nn
from burnt.export import write_firmware, write_page

CALLS = 300
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}

EAGER = "import torch, sys; m = torch.export.load(sys.argv[1]).module(); m(torch.zeros({shape}))"
FILE = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {{"input": numpy.zeros({shape}, numpy.float32)}})
"""
PAGE = """
const start = performance.now();
const page = require("fs").readFileSync(process.argv[1], "utf8");
const code = page.match(/const CODE = "([^"]*)"/)[1];
const bytes = require("zlib").inflateRawSync(Buffer.from(code, "base64"));
const model = new WebAssembly.Instance(new WebAssembly.Module(bytes), {}).exports;
model.init();
model.run();
const ready = performance.now() - start, times = [];
for (let i = 0; i < 300; i++) { const t = performance.now(); model.run(); times.push(performance.now() - t); }
times.sort((a, b) => a - b);
console.log(JSON.stringify([ready / 1e3, times[150] / 1e3]));
"""


class Transformer(burnt.Module):
    """Two blocks over 12 numbers: [batch, 12, 1] -> [batch, 3]."""

    embed: nn.Linear
    encoder: nn.TransformerEncoder
    head: nn.Linear

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(input)).mean(1))


class Digits(torch.nn.Module):
    """The ConvNet of the digits example, whose input is called as the other model's."""

    def __init__(self) -> None:
        super().__init__()
        sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "digits"))
        from train import DigitsConfig

        self.net = DigitsConfig().init()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.net(input)


def transformer() -> torch.nn.Module:
    encoder = nn.TransformerEncoder.Config(d_model=32, num_heads=4, d_ff=64, num_layers=2).init()
    return Transformer(nn.Linear(1, 32), encoder, nn.Linear(32, 3))


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[CALLS // 10 :])


def start_up(*command: str) -> float:
    """Return the time of a process, the best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=ENV)
        times.append(time.perf_counter() - start)
    return min(times)


def of_file(file: Path, x: np.ndarray) -> tuple[int, float, float]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    latency = seconds_of(lambda: session.run(None, {"input": x}))
    return file.stat().st_size, start_up(sys.executable, "-c", FILE.format(shape=x.shape), str(file)), latency


def of_server(file: Path, x: np.ndarray) -> tuple[int, float, float]:
    command = [sys.executable, "-u", "-m", "burnt", "serve", str(file), "--port", "0"]
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENV
    ) as run:
        assert run.stdout is not None
        try:
            match = next(m for line in run.stdout if (m := re.search(r"http://([\d.]+):(\d+)", line)))
            connection = http.client.HTTPConnection(match[1], int(match[2]))

            def ask(path: str, body: bytes | None = None) -> int:
                connection.request(
                    "POST" if body else "GET", path, body, {"Content-Type": "application/json"}
                )
                answer = connection.getresponse()
                answer.read()
                return answer.status

            while ask("/readyz") != 200:
                time.sleep(0.01)
            ready = time.perf_counter() - start
            body = json.dumps({"inputs": {"input": x.tolist()}}).encode()
            assert ask("/v1/predict", body) == 200
            latency = seconds_of(lambda: ask("/v1/predict", body))
        finally:
            run.send_signal(signal.SIGTERM)
    return file.stat().st_size, ready, latency


def of_page(file: Path) -> tuple[int, float, float] | None:
    node = shutil.which("node")
    if node is None:
        return None
    done = subprocess.run([node, "-e", PAGE, str(file)], check=True, capture_output=True, text=True)
    ready, latency = json.loads(done.stdout)
    return file.stat().st_size, ready, latency


def of_c(folder: Path, flash: int, x: np.ndarray) -> tuple[int, float, float]:
    library = folder / "model.so"
    flags = ["-std=c99", "-O2", "-fPIC", "-shared"]
    subprocess.run(["cc", *flags, str(folder / "model.c"), "-o", str(library), "-lm"], check=True)
    model, out = ctypes.CDLL(str(library)).model, np.zeros(16, np.float32)
    given, taken = x.ctypes.data, out.ctypes.data
    arguments = ctypes.c_void_p(given), ctypes.c_void_p(taken)
    return flash, 0.0, seconds_of(lambda: model(*arguments))


def measure(name: str, model: torch.nn.Module, example: torch.Tensor, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each way."""
    print(f"{name}: shipping", file=sys.stderr, flush=True)
    model.eval()
    x = example[:1].numpy().copy()
    program = torch.export.export(model, (example[:1],))
    torch.export.save(program, folder / "model.pt2")
    file = burnt.onnx.export(model, example, folder / "model.onnx").path
    page = write_page(model, example, folder / "model.html").path
    firmware = write_firmware(model, example, folder / "firmware")
    print(f"{name}: measuring", file=sys.stderr, flush=True)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    command = (sys.executable, "-c", EAGER.format(shape=x.shape), str(folder / "model.pt2"))
    with torch.no_grad():
        tensor = torch.from_numpy(x)
        python = weights, start_up(*command), seconds_of(lambda: model(tensor))
    ways = {
        "PyTorch, eager": python,
        "a file in ONNX Runtime": of_file(file, x),
        "a server, of that file": of_server(file, x),
        "a web page, in Node": of_page(page),
        "C, on this machine": of_c(folder / "firmware", firmware.memory.flash, x),
    }
    return [
        {"model": name, "way": way, "bytes": row[0], "start": row[1], "latency": row[2]}
        for way, row in ways.items()
        if row is not None
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = []
    for name, model, example in (
        ("digits", Digits(), torch.rand(2, 1, 8, 8)),
        ("transformer", transformer(), torch.randn(2, 12, 1)),
    ):
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(name, model, example, Path(folder))
    print("| model | way | bytes | start-up | latency of one item |\n|---|---|---|---|---|")
    for row in rows:
        start = f"{row['start']:.2f} s" if row["start"] else "-"
        print(
            f"| {row['model']} | {row['way']} | {row['bytes']:,} | {start} | {1e6 * row['latency']:,.0f} us |"
        )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
