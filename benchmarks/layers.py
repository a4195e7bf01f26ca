"""Layers of burnt.nn next to their twins in torch.nn: training (forward and backward) and inference.

    python benchmarks/layers.py [--quick] [--rows PATTERN]

Every layer that has a twin is here, with the arguments of `SIZES`, or else of the table of the tests
(`tests/nn/cases`) and a batch at which torch's training step takes 100 microseconds. Layer and twin have the
same parameters and take samples in turns, in one process with the pool for host buffers on. A ratio is
torch's time by burnt's, of medians of calm samples, with the quartiles of the rounds; `slower` marks those
below 0.97 whose quartiles are all below 1.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from kernel_table import clock, report
from kernel_table.cpu import FLOOR, FLOOR_FROM, FULL_EFFORT, QUICK_EFFORT, Effort, calm_median, quartiles, say
from torch import Tensor

import burnt
from burnt import nn

ROOT = Path(__file__).parents[1]
MOST = 1 << 15  # the largest batch of the tests' inputs


class Row(NamedTuple):
    """A layer, its twin, and their inputs."""

    name: str
    build: Callable[[], torch.nn.Module]
    twin: Callable[[], torch.nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


SIZES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "AdaptiveAvgPool1d": ("AdaptiveAvgPool1d", {"output_size": 1}, (32, 256, 128)),
    "AdaptiveAvgPool2d": ("AdaptiveAvgPool2d", {"output_size": 1}, (32, 256, 14, 14)),
    "AdaptiveAvgPool3d": ("AdaptiveAvgPool3d", {"output_size": 1}, (8, 256, 7, 7, 7)),
    "AdaptiveMaxPool1d": ("AdaptiveMaxPool1d", {"output_size": 1}, (32, 256, 128)),
    "AdaptiveMaxPool2d": ("AdaptiveMaxPool2d", {"output_size": 7}, (8, 256, 14, 14)),
    "AdaptiveMaxPool3d": ("AdaptiveMaxPool3d", {"output_size": 1}, (8, 256, 7, 7, 7)),
    "AvgPool1d": ("AvgPool1d", {"kernel_size": 2}, (32, 128, 256)),
    "AvgPool2d": ("AvgPool2d", {"kernel_size": 2}, (8, 64, 56, 56)),
    "AvgPool3d": ("AvgPool3d", {"kernel_size": 2}, (4, 32, 16, 28, 28)),
    "BatchNorm": ("BatchNorm2d", {"num_features": 64}, (8, 64, 56, 56)),
    "Conv1d": ("Conv1d", {"in_channels": 128, "out_channels": 128, "kernel_size": 5}, (8, 128, 256)),
    "Conv2d": ("Conv2d", {"in_channels": 64, "out_channels": 64, "kernel_size": 3}, (8, 64, 28, 28)),
    "Conv3d": ("Conv3d", {"in_channels": 16, "out_channels": 32, "kernel_size": 3}, (2, 16, 16, 28, 28)),
    "ConvTranspose1d": (
        "ConvTranspose1d",
        {"in_channels": 128, "out_channels": 64, "kernel_size": 4, "stride": 2, "padding": 1},
        (8, 128, 128),
    ),
    "ConvTranspose2d": (
        "ConvTranspose2d",
        {"in_channels": 64, "out_channels": 32, "kernel_size": 2, "stride": 2},
        (8, 64, 28, 28),
    ),
    "ConvTranspose3d": (
        "ConvTranspose3d",
        {"in_channels": 32, "out_channels": 16, "kernel_size": 2, "stride": 2},
        (2, 32, 8, 14, 14),
    ),
    "GroupNorm": ("GroupNorm", {"num_groups": 32, "num_channels": 64}, (8, 64, 56, 56)),
    "InstanceNorm": ("InstanceNorm2d", {"num_features": 64}, (8, 64, 56, 56)),
    "LayerNorm": ("LayerNorm", {"normalized_shape": 768}, (8, 128, 768)),
    "Linear": ("Linear", {"in_features": 512, "out_features": 512}, (256, 512)),
    "LocalResponseNorm": ("LocalResponseNorm", {"size": 5}, (8, 64, 28, 28)),
    "LpPool1d": ("LPPool1d", {"norm_type": 2.0, "kernel_size": 2}, (32, 128, 256)),
    "LpPool2d": ("LPPool2d", {"norm_type": 2.0, "kernel_size": 2}, (8, 64, 56, 56)),
    "LpPool3d": ("LPPool3d", {"norm_type": 2.0, "kernel_size": 2}, (4, 32, 16, 28, 28)),
    "MaxPool1d": ("MaxPool1d", {"kernel_size": 2}, (32, 128, 256)),
    "MaxPool2d": ("MaxPool2d", {"kernel_size": 3, "stride": 2, "padding": 1}, (8, 64, 56, 56)),
    "MaxPool3d": ("MaxPool3d", {"kernel_size": 2}, (4, 32, 16, 28, 28)),
    "RmsNorm": ("RMSNorm", {"normalized_shape": 768}, (8, 128, 768)),
}
"""Layer: its twin, the arguments of both, and the shape of the input."""


def rows(pattern: str, quick: bool) -> Iterator[Row]:
    """The rows whose names match, in the order of the names."""
    sys.path.insert(0, str(ROOT))
    files = sorted(path.stem for path in (ROOT / "tests" / "nn" / "cases").glob("*.py"))
    cases = [case for file in files for case in importlib.import_module(f"tests.nn.cases.{file}").CASES]
    # The plain case of a layer is its first.
    table = {case.name: case for case in reversed(cases) if case.twin is not None}
    for name in sorted(table.keys() | SIZES.keys()):
        if not re.search(pattern, name):
            continue
        if name in SIZES and not quick:
            twin, arguments, shape = SIZES[name]
            yield Row(
                name,
                lambda name=name, arguments=arguments: getattr(nn, name)(**arguments),
                lambda twin=twin, arguments=arguments: getattr(torch.nn, twin)(**arguments),
                lambda shape=shape: (torch.randn(shape),),
            )
        elif name in table:
            yield grown(table[name], 0.0 if quick else 1.5 * FLOOR_FROM)


def grown(case: Any, seconds: float) -> Row:
    """A case of the tests with a batch at which torch's training step takes as many seconds."""
    batch, twin = 4, case.build_twin()
    while batch < MOST:
        run = training(twin, case.inputs(batch))
        if min(clock.sample(run, 1).seconds for _ in range(5)) >= seconds:
            break
        batch *= 2
    return Row(case.name, case.build, case.build_twin, lambda: case.inputs(batch))


def training(layer: torch.nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """A forward and the gradients of all inputs and parameters that have some."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    wanted = [tensor for tensor in [*leaves, *layer.parameters()] if tensor.requires_grad]

    def outputs() -> list[Tensor]:
        made = layer(*leaves)
        tensors = made if isinstance(made, tuple | list) else [made]
        return [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.requires_grad]

    cotangents = [torch.ones_like(made) for made in outputs()]
    if not cotangents:
        return outputs
    return lambda: torch.autograd.grad(outputs(), wanted, cotangents, allow_unused=True)


def inference(layer: torch.nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    layer.eval()

    def run() -> object:
        with torch.no_grad():
            return layer(*inputs)

    return run


def measure(row: Row, effort: Effort) -> list[list[str]]:
    """The lines of a layer: its name, the mode, both times, their ratio, and what is to be said of it."""
    torch.manual_seed(0)
    theirs, ours, inputs = row.twin(), row.build(), row.inputs()
    ours.load_state_dict(theirs.state_dict())
    lines = []
    for mode in (training, inference):
        runs = {"torch": mode(theirs, inputs), "burnt": mode(ours, inputs)}
        calls = {name: clock.warmed(run) for name, run in runs.items()}
        samples: dict[str, list[clock.Sample]] = {name: [] for name in runs}
        began, orders = time.monotonic(), clock.orders(runs)
        for number in range(effort.rounds):
            if number >= effort.least and time.monotonic() - began > effort.seconds:
                break
            for name in next(orders):
                samples[name].append(clock.sample(runs[name], calls[name]))
        seconds = {name: calm_median(taken) for name, taken in samples.items()}
        pairs = zip(samples["torch"], samples["burnt"], strict=True)
        low, high = quartiles([a.seconds / b.seconds for a, b in pairs])
        ratio = seconds["torch"] / seconds["burnt"]
        slower = ratio < FLOOR and high < 1 and seconds["torch"] >= FLOOR_FROM
        times = [f"{seconds[name] * 1e6:.0f}" for name in ("torch", "burnt")]
        shapes = " ".join("x".join(map(str, x.shape)) for x in inputs)
        cells = [shapes, *times, f"{ratio:.2f} ({low:.2f}-{high:.2f})", "slower" if slower else ""]
        lines.append([f"{row.name}, {mode.__name__}", *cells])
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="how burnt's layers compare with torch's")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of layers' names")
    options = parser.parse_args(arguments)
    burnt.memory.enable()
    table = [["layer", "inputs", "torch us", "burnt us", "x torch", ""]]
    for row in rows(options.rows, options.quick):
        say(row.name)
        table += measure(row, QUICK_EFFORT if options.quick else FULL_EFFORT)
    print(f"{burnt.device_info('cpu').name}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(report.text_table(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
