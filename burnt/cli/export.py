"""`burnt export`, `page`, `c`: write the model of a run as ONNX, as a web page or as C. Imports torch."""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Sequence
from pathlib import Path

from burnt.cli.output import Page, UsageError, check_target, print_json
from burnt.cli.run_model import RunModel, load_run_model


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


def page(args: argparse.Namespace) -> int:
    """Write a run's model as a page and print where."""
    from burnt.export import write_page

    shipped = load_run_model(args)
    written = write_page(
        shipped.model,
        shipped.signature,
        args.out,
        title=args.title or shipped.folder.resolve().name,
        classes=_names(args.classes) or _classes_of_run(shipped, args.table),
        fields=_names(args.fields),
        table=args.table,
        is_multi_label=shipped.is_multi_label,
        columns=shipped.table,
        weights=args.weights,
        onnxruntime_web=args.onnxruntime_web,
    )
    printed = Page()
    printed.line(f"{shipped.folder}, {shipped.checkpoint}")
    printed.line(f"{written.path}, {written.size:,} bytes: open it in a browser")
    if written.reason is not None:
        printed.line(f"{written.runtime} in the page runs the model; {written.reason}")
    return 0


def _names(text: str | None) -> Sequence[str] | None:
    """Split names at commas; one that contains a comma is quoted."""
    return (
        None if text is None else [name.strip() for name in next(csv.reader([text], skipinitialspace=True))]
    )


def _classes_of_run(shipped: RunModel, table: bool) -> Sequence[str] | None:
    """Return the names of the classes, if the model returns a number for each, or one for two classes."""
    outputs = shipped.signature.outputs
    if len(outputs) != 1 or shipped.classes is None or table:
        return None
    count = len(shipped.classes)
    shapes = [(count,), (), (1,)] if count == 2 else [(count,)]
    return shipped.classes if outputs[0].shape[1:] in shapes else None


def c(args: argparse.Namespace) -> int:
    """Write a run's model as C, and print what was written and what memory it needs."""
    from burnt.export import write_firmware

    shipped = load_run_model(args)
    written = write_firmware(
        shipped.model,
        shipped.signature,
        args.out,
        args.name,
        ram=args.ram,
        flash=args.flash,
        columns=shipped.table,
        classes=_classes_of_run(shipped, False),
    )
    page = Page()
    page.line(f"{shipped.folder}, {shipped.checkpoint}")
    page.line(f"needs {written.memory}")
    page.line(f"{written.folder}: {', '.join(written.files)}")
    if written.compared:
        page.line("compared with the model on random inputs: the outputs agree")
    else:
        page.line("not compared with the model: no cc and make here")
    return 0
