"""`burnt convert`: write weights in another format, dtype or layout. Imports torch."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from burnt.cli.output import Page, check_target, print_json, progress_bar
from burnt.cli.show import check_source
from burnt.monitor.format import size_text
from burnt.record import convert_weights


def run(args: argparse.Namespace) -> int:
    """Convert weights and print what was written."""
    check_source(args.source)
    check_target(Path(args.target))
    with progress_bar("converting") as advance_to:
        report = convert_weights(
            args.source,
            args.target,
            only=args.only or None,
            skip=args.skip or None,
            rename=args.rename,
            dtype=None if args.dtype is None else getattr(torch, args.dtype),
            keep=args.keep or None,
            shard_bytes=args.shard,
            overwrite=args.force,
            on_read=advance_to,
        )
    if args.json:
        print_json(
            {
                "source": report.source,
                "files": [str(file) for file in report.files],
                "bytes": report.nbytes,
                "tensors": {
                    name: {"shape": shape, "dtype": str(dtype).removeprefix("torch.")}
                    for name, (shape, dtype) in report.tensors.items()
                },
                "cast": list(report.cast),
                "kept": report.kept,
                "tied": report.tied,
                "skipped": report.skipped,
                "notes": report.notes,
            }
        )
        return 0
    page = Page()
    head, *rest = str(report).splitlines()
    page.line(f"{head}, {size_text(report.nbytes)}")
    for line in rest:
        page.line(line)
    return 0
