"""`burnt convert`: write weights in another format, dtype or layout. Imports torch."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch

from burnt.cli.output import Page, UsageError, print_json, progress_bar
from burnt.cli.show import check_source
from burnt.monitor.format import size_text
from burnt.record import convert_weights

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def run(args: argparse.Namespace) -> int:
    """Convert weights and print what was written."""
    check_source(args.source)
    if not Path(args.target).parent.is_dir():
        raise UsageError("there is no folder for the file", found=args.target)
    with progress_bar("converting") as advance_to:
        report = convert_weights(
            args.source,
            args.target,
            only=args.only or None,
            skip=args.skip or None,
            rename=[parse_rename(text) for text in args.rename],
            dtype=None if args.dtype is None else getattr(torch, args.dtype),
            keep=args.keep or None,
            shard_bytes=None if args.shard is None else parse_size(args.shard),
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


def parse_rename(text: str) -> tuple[str, str]:
    """Return the regular expression and the replacement of ``pattern=replacement``.

    >>> parse_rename(r"^bert\\.="), parse_rename("a=b=c")
    (('^bert\\\\.', ''), ('a=b', 'c'))
    """
    pattern, separator, replacement = text.rpartition("=")
    if not separator or not pattern:
        raise UsageError(
            "--rename is invalid",
            expected="REGEX=REPLACEMENT, such as '^bert\\.=' or '^layers=blocks'",
            found=repr(text),
        )
    return pattern, replacement


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as ``"2GB"``.

    >>> parse_size("2GB"), parse_size("1.5 MiB"), parse_size("4096")
    (2000000000, 1572864, 4096)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise UsageError("--shard is invalid", expected="a size such as 2GB, 500MB or 1GiB", found=repr(text))
    return max(1, round(float(match[1]) * _UNITS[match[2]]))
