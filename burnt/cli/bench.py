"""`burnt bench`: compare a model in eager mode, with Inductor and with `burnt.swap`. Imports torch.

The target is an `nn.Module`, or a function that returns one or a pair ``(model, batch)``. Without a batch,
``--input`` gives the inputs of the model.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from burnt.cli.output import Cell, Page, UsageError, print_json, usage_errors
from burnt.cli.train import load_attribute, split_target
from burnt.errors import DeviceError, quantity

_ROUNDS = 25


def run(args: argparse.Namespace) -> int:
    """Measure a model and print the results."""
    import torch

    from burnt.data import move
    from burnt.device import accelerators, as_device
    from burnt.swapping import benchmark

    model, batch = _load_model(args.target)
    if args.input:
        batch = tuple(parse_input(text) for text in args.input)
    if batch is None:
        raise UsageError(
            f"there are no inputs for {args.target}",
            expected="a function that returns (model, batch), or --input for each argument",
            hint="--input 8x3x224x224, --input 4x256:int64:30000",
        )
    kinds = [train for train in (False, True) if args.step in ("both", ("forward", "training")[train])]
    names = list(args.device) or ["cpu", *accelerators()]
    with usage_errors(DeviceError):
        for name in names:
            as_device(name)
    print(
        f"{quantity(len(names) * len(kinds), 'comparison')}, each of swapping, compiling with Inductor "
        f"(often a minute or more), and measuring for up to {args.seconds:g} s",
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
    """Return the results for a device and a kind of step as JSON data."""
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
    from burnt.swapping.report import in_ms

    page = Page()
    rows: list[list[str | Cell]] = []
    for row in results:
        for name in ("eager", "inductor", "swapped"):
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


def _load_model(target: str) -> tuple[Any, Any]:
    """Load the model, and its batch if the target returns one."""
    from torch import nn

    module_name, name = split_target(target, "the target names no model", "model")
    value = load_attribute(module_name, name)
    expected = "a torch.nn.Module, or a function without arguments that returns one, or (model, batch)"
    if not isinstance(value, nn.Module) and callable(value) and (required := _required_arguments(value)):
        raise UsageError(
            f"{target} is called without arguments, but requires {', '.join(required)}",
            expected=expected,
            hint=f"define a function without parameters that calls {name}(...)",
        )
    loaded = value if isinstance(value, nn.Module) or not callable(value) else value()
    model, batch = loaded if isinstance(loaded, tuple) and len(loaded) == 2 else (loaded, None)
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{target} is no model, and makes none", expected=expected, found=type(model).__name__
        )
    return model, batch


def _required_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's required arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function in C without a signature: just call it
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def parse_input(text: str, option: str = "--input") -> Any:
    """Create a random tensor from its shape, dtype and, for integers, the number of values.

    >>> parse_input("2x3:int64:10").shape
    torch.Size([2, 3])
    """
    import torch

    shape, _, rest = text.partition(":")
    name, _, high = rest.partition(":")
    dtype = getattr(torch, name or "float32", None)
    sizes = shape.split("x")
    if not all(size.isdigit() for size in sizes) or not isinstance(dtype, torch.dtype):
        raise UsageError(
            "the input is invalid", expected="SHAPE, SHAPE:DTYPE or SHAPE:DTYPE:VALUES", found=repr(text),
            hint=f"{option} 8x3x224x224, {option} 4x256:int64:30000",
        )  # fmt: skip
    size = [int(s) for s in sizes]
    if dtype.is_floating_point:
        return torch.randn(size).to(dtype)
    if not high.isdigit() or not int(high):
        raise UsageError(
            "an integer input needs the number of values",
            found=repr(text),
            hint=f"{option} {shape}:{name}:1000",
        )
    return torch.randint(int(high), size).to(dtype)
