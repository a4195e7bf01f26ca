"""`burnt bench`: compare a model eager, compiled by Inductor and by burnt, and swapped. Imports torch.

The target is an `nn.Module`, or a function that returns one or a pair ``(model, batch)``. Without a batch,
``--input`` gives the inputs of the model.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Sequence
from typing import Any

from burnt.cli.output import Cell, Page, UsageError, print_json, usage_errors
from burnt.cli.run_model import named_call
from burnt.errors import DeviceError, quantity

_ROUNDS = 25


def run(args: argparse.Namespace) -> int:
    """Measure a model and print the results."""
    import torch

    from burnt.data import move
    from burnt.device import accelerators, as_device
    from burnt.swapping import benchmark

    model, batch = named_call(args.target, args.input, is_model=True)
    kinds = [train for train in (False, True) if args.step in ("both", ("forward", "training")[train])]
    names = list(args.device) or ["cpu", *accelerators()]
    with usage_errors(DeviceError):
        for name in names:
            as_device(name)
    print(
        f"{quantity(len(names) * len(kinds), 'comparison')}, each of swapping, compiling with Inductor "
        f"and burnt (often a minute or more), and measuring for up to {args.seconds:g} s",
        file=sys.stderr,
        flush=True,
    )
    began = time.perf_counter()
    results = []
    for device in names:
        try:
            device_model, device_batch = copy.deepcopy(model).to(device), move(batch, torch.device(device))
        except (NotImplementedError, RuntimeError) as error:
            raise UsageError(
                f"the model cannot be moved to {device!r}", found=f"{type(error).__name__}: {error}"
            ) from error
        for train in kinds:
            what = "training" if train else "forward"

            def report_progress(text: str, what: str = what, device: str = device) -> None:
                elapsed = time.perf_counter() - began
                print(f"{elapsed:5.0f} s  {device} {what}: {text}", file=sys.stderr, flush=True)

            comparison = benchmark.compare(
                device_model, device_batch, train, seconds=args.seconds, rounds=_ROUNDS, say=report_progress
            )
            results.append(_result_json(device, what, comparison))
    if args.json:
        print_json(results)
    else:
        _print(results, args.report)
    return 0


def _result_json(device: str, step: str, comparison: Any) -> dict[str, Any]:
    rivals = {}
    for name in comparison.seconds:
        speed, low, high = comparison.speedup(name)
        rivals[name] = {
            "ms": 1e3 * comparison.median(name),
            "speed": speed,
            "interval": (low, high),
            "rounds": len(comparison.seconds[name]),
        }
    return {
        "device": device,
        "step": step,
        "rivals": rivals,
        "failed": comparison.failed,
        "tracebacks": comparison.tracebacks,
        "error": comparison.error,
        "report": str(comparison.report),
    }


def _print(results: Sequence[dict[str, Any]], report: bool) -> None:
    from burnt.swapping.benchmark import RIVALS
    from burnt.swapping.report import in_ms

    page = Page()
    rows: list[list[str | Cell]] = []
    for row in results:
        for name in RIVALS:
            line: list[str | Cell] = [row["device"], row["step"], name]
            if name in row["failed"]:
                rows.append([*line, "", "", Cell(row["failed"][name], "yellow")])
                continue
            result = row["rivals"][name]
            low, high = result["interval"]
            style = "green" if name != "eager" and low > 1 else ""
            speed = Cell(f"{result['speed']:.2f}x", style)
            rows.append(
                [*line, in_ms(result["ms"]), speed, f"{low:.2f}-{high:.2f}, {result['rounds']} rounds"]
            )
    page.table(["device", "step", "", "ms", "speed", "90 % interval"], rows, align_right=("ms", "speed"))
    if not report and any(row["failed"] for row in results):
        page.line("--report and --json show the whole error of what failed.")
    if report:
        for row in results:
            for name, text in row["tracebacks"].items():
                page.heading(f"{name} failed on {row['device']}, {row['step']}")
                for text_line in text.splitlines():
                    page.line(text_line)
            page.heading(f"swapped on {row['device']}, {row['step']}")
            for text_line in row["report"].splitlines():
                page.line(text_line)
