"""`burnt page`: write the model of a run as one HTML file. Imports torch."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence

from burnt.cli.output import Page
from burnt.cli.run_model import RunModel, load_run_model


def run(args: argparse.Namespace) -> int:
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
        weights=args.weights,
        onnxruntime_web=args.onnxruntime_web,
    )
    page = Page()
    page.line(f"{shipped.folder}, {shipped.checkpoint}")
    page.line(f"{written.path}, {written.size:,} bytes: open it in a browser")
    if written.reason is not None:
        page.line(f"{written.runtime} in the page runs the model; {written.reason}")
    return 0


def _names(text: str | None) -> Sequence[str] | None:
    """Split names at commas; one that contains a comma is quoted."""
    return (
        None if text is None else [name.strip() for name in next(csv.reader([text], skipinitialspace=True))]
    )


def _classes_of_run(shipped: RunModel, table: bool) -> Sequence[str] | None:
    """Return the names that the dataset has for its labels, if the model returns a number for each."""
    outputs = shipped.signature.outputs
    fits = (
        len(outputs) == 1 and shipped.classes is not None and outputs[0].shape[1:] == (len(shipped.classes),)
    )
    return shipped.classes if fits and not table else None
