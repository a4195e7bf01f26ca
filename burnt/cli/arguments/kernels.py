"""The arguments of `burnt tune`, `bench` and `info`."""

from __future__ import annotations

import argparse
import math

from burnt.cli.arguments.parser import add_json, add_parser, add_repeated

_BENCH_EXAMPLES = """\
examples:
  burnt bench models.py:resnet --input 8x3x224x224
  burnt bench my.models:bert --input 4x256:int64:30522 --step training
  burnt bench models.py:pair --device cpu --report     a (model, batch) pair

A training step is forward, loss and backward, without the optimizer.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers."""
    _add_tune(commands)
    bench = add_parser(
        commands,
        "bench",
        "compare eager mode, torch.compile and burnt.swap",
        _BENCH_EXAMPLES,
        "bench",
    )
    bench.add_argument(
        "target", metavar="MODULE:MODEL", help="a model, or a function that returns a model or (model, batch)"
    )
    add_repeated(bench, "--input", "SHAPE[:DTYPE[:VALUES]]", "a random input tensor")
    add_repeated(bench, "--device", "DEVICE", "a torch device; default: all available")
    bench.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="time of measuring in each comparison, after swapping and compiling; default: 10",
    )
    bench.add_argument(
        "--step",
        choices=["both", "forward", "training"],
        default="both",
        help="which steps to measure, default: both",
    )
    bench.add_argument(
        "--report", action="store_true", help="also print which modules were swapped, and whole errors"
    )
    add_json(bench)
    info = add_parser(
        commands,
        "info",
        "show versions, CPU, GPUs and missing packages",
        "example: burnt info --json",
        "info",
    )
    add_json(info)


def _add_tune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tune = add_parser(
        commands, "tune", "measure kernels, and manage the measurements", "example: burnt tune run"
    )
    actions = tune.add_subparsers(dest="action", required=True, metavar="COMMAND")
    run = add_parser(
        actions,
        "run",
        "measure ops at their example sizes",
        "example: burnt tune run softmax rms_norm",
        "tune",
    )
    run.add_argument("ops", nargs="*", metavar="OP", help="names of ops in burnt.kernels, default: all")
    run.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module or file that registers further ops",
    )
    run.add_argument("--device", default="cpu", help="a torch device, default: cpu")
    run.add_argument("--full", action="store_true", help="measure all configurations, and each for longer")
    add_repeated(run, "--dtype", "DTYPE", "dtype of floating-point examples, such as bfloat16")
    run.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="time limit for starting examples, divided equally among the ops",
    )
    show = add_parser(
        actions, "show", "show the measurements", "example: burnt tune show softmax --json", "tune:show"
    )
    export = add_parser(
        actions,
        "export",
        "write the measurements to a JSON file",
        "example: burnt tune export h200.json",
        "tune:export",
    )
    export.add_argument("file", metavar="FILE")
    export.add_argument("--device", help="only measurements on this device, default: all")
    load = add_parser(
        actions,
        "import",
        "add measurements from another machine",
        "example: burnt tune import h200.json",
        "tune:import_rows",
    )
    load.add_argument("file", metavar="FILE")
    clear = add_parser(
        actions,
        "clear",
        "delete measurements and the decisions of burnt.swap",
        "example: burnt tune clear softmax",
        "tune:clear",
    )
    for command in (show, export, clear):
        command.add_argument("op", nargs="?", metavar="OP", help="only this op")
    for command in (run, show):
        add_json(command)
