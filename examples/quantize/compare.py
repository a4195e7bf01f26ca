"""Quantize trained runs in several ways, and print size, speed and accuracy side by side.

    python examples/quantize/compare.py runs/digits-<date> runs/lines-<date>

Takes runs of examples/digits and of lines.py. Each scheme's model is saved to a file beside the drawing
(--out, default: quantized), loaded again from it, and measured as loaded.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import burnt
from burnt.data import Loader, TensorDataset
from burnt.plot import Points, Scatter
from burnt.train import evaluate
from burnt.train.metrics import Accuracy

SCHEMES = ["int8", "int8-dynamic", "int8-static", "int4-block32", "auto"]


@dataclass
class Row:
    """A model's figures."""

    scheme: str
    model: torch.nn.Module
    file: Path
    accuracy: float
    seconds: float = 0.0
    ratio: float = 1.0


def load_splits(model: torch.nn.Module) -> dict[str, TensorDataset]:
    """Return the data of a run's model, by `load_splits` of the program that trained it."""
    splits: dict[str, TensorDataset] = sys.modules[type(model).__module__].load_splits()
    return splits


def compare(run: Path, out: Path, schemes: list[str], rounds: int) -> list[Row]:
    """Quantize the model of a run by each scheme, and measure the results beside the original."""
    original = burnt.load(run, import_code=True)
    splits = load_splits(original)
    calibration = [batch for batch, _ in zip(Loader(splits["train"], 64), range(16), strict=False)]
    rows = []
    for scheme in ["float32", *schemes]:
        model = burnt.load(run, import_code=True)
        if scheme != "float32":
            report = burnt.quantize(model, scheme, calibrate=calibration)
            print(f"{run.name}, {scheme}: {report}\n")
        file = out / f"{run.name}-{scheme}.safetensors"
        model.save(file)
        model = type(model).load(file).eval()
        accuracy = evaluate(model, Loader(splits["test"], 512), [Accuracy()])["accuracy"]
        rows.append(Row(scheme, model, file, accuracy))
    _time(rows, next(iter(Loader(splits["test"], 256))), rounds)
    return rows


def _time(rows: list[Row], batch: Any, rounds: int) -> None:
    """Set the seconds that a batch takes, and how many times as fast as the first row it is: medians."""
    inputs = next(iter(vars(batch).values()))
    samples: list[list[float]] = [[] for _ in rows]
    with torch.inference_mode():
        for round_number in range(-3, rounds):  # the first ones choose and compile kernels
            for row, seconds in zip(rows, samples, strict=True):
                start = time.perf_counter()
                row.model(inputs)
                if round_number >= 0:
                    seconds.append(time.perf_counter() - start)
    for row, seconds in zip(rows, samples, strict=True):
        row.seconds = statistics.median(seconds)
        row.ratio = statistics.median(first / own for first, own in zip(samples[0], seconds, strict=True))


def table(name: str, rows: list[Row]) -> str:
    """Return the figures of a run, side by side."""
    lines = [f"{name:<24}{'file kB':>9}{'of float32':>12}{'ms per 256':>12}{'speed':>8}{'accuracy':>10}"]
    for row in rows:
        size, whole = row.file.stat().st_size, rows[0].file.stat().st_size
        lines.append(
            f"{row.scheme:<24}{size / 1e3:>9.1f}{size / whole:>12.1%}{row.seconds * 1e3:>12.2f}"
            f"{row.ratio:>7.2f}x{row.accuracy:>10.4f}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, list[Row]]:
    """Compare the runs, print the tables and draw them."""
    parser = argparse.ArgumentParser(description="size, speed and accuracy of quantized runs")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs of the digits or of lines.py")
    parser.add_argument("--out", type=Path, default=Path("quantized"), help="the folder to write to")
    parser.add_argument("--schemes", type=lambda text: text.split(","), default=SCHEMES)
    parser.add_argument("--rounds", type=int, default=50, help="of the timing")
    options = parser.parse_args(arguments)
    options.out.mkdir(exist_ok=True)
    found = {run.name: compare(run, options.out, options.schemes, options.rounds) for run in options.runs}
    print(f"torch {torch.__version__}, {burnt.device_info('cpu').name}, {torch.get_num_threads()} threads\n")
    for name, rows in found.items():
        print(table(name, rows), end="\n\n")
    points = [
        Points(
            name,
            [row.file.stat().st_size / 1e3 for row in rows],
            [100 * (1 - row.accuracy) for row in rows],
            [row.scheme for row in rows],
        )
        for name, rows in found.items()
    ]
    drawing = Scatter(points, x="file, kB", y="wrong, %", labelled=sum(map(len, found.values())))
    (options.out / "quantized.svg").write_text(drawing.svg())
    print(f"{drawing}\n\n{options.out / 'quantized.svg'}")
    return found


if __name__ == "__main__":
    main()
