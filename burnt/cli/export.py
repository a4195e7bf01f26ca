"""`burnt export`: write the model of a run as an ONNX file. Imports torch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from burnt.cli.output import Page, UsageError, check_target, print_json
from burnt.cli.run_model import load_run_model


def run(args: argparse.Namespace) -> int:
    """Export a run's model and print what was written."""
    from burnt import onnx

    open_axes = parse_open_axes(args.open_axis)
    check_target(Path(args.out))
    shipped = load_run_model(args)
    exported = onnx.export(
        shipped.model,
        shipped.signature,
        args.out,
        batch=args.batch,
        open_axes=open_axes,
        weights=args.weights,
        fold=not args.no_fold,
        metadata=shipped.metadata,
        tolerance=args.tolerance,
        opset=args.opset,
    )
    if args.json:
        print_json(
            {
                "file": str(exported.path),
                "bytes": exported.size,
                "run": str(shipped.folder),
                "checkpoint": shipped.checkpoint,
                "signature": exported.signature.to_dict(),
                "largest_error": {str(batch): error for batch, error in exported.errors.items()},
            }
        )
        return 0
    page = Page()
    page.line(f"{shipped.folder}, {shipped.checkpoint}")
    for line in str(exported).splitlines():
        page.line(line)
    return 0


def parse_open_axes(texts: Sequence[str]) -> dict[str, dict[int, str]]:
    """Return names of open axes by input and axis, for `burnt.onnx.export`.

    >>> parse_open_axes(["tokens:1=length", "mask:1=length"])
    {'tokens': {1: 'length'}, 'mask': {1: 'length'}}
    """
    axes: dict[str, dict[int, str]] = {}
    for text in texts:
        match = re.fullmatch(r"(.+):(\d{1,3})=(\w+)", text)
        if match is None:
            raise UsageError(
                "--open-axis is invalid", expected="INPUT:AXIS=NAME, such as tokens:1=length", found=text
            )
        names, axis = axes.setdefault(match[1], {}), int(match[2])
        if axis in names:
            raise UsageError(
                "--open-axis names an axis twice", found=f"{match[1]}:{axis}={names[axis]} and {text}"
            )
        names[axis] = match[3]
    return axes
