"""`burnt c`: write the model of a run as C99 for a microcontroller. Imports torch."""

from __future__ import annotations

import argparse

from burnt.cli.output import Page, UsageError
from burnt.cli.run_model import load_run_model
from burnt.memory import parse_bytes


def run(args: argparse.Namespace) -> int:
    """Write a run's model as C, and print what was written and what memory it needs."""
    from burnt.export import write_firmware

    max_ram, max_flash = _parse_size("--ram", args.ram), _parse_size("--flash", args.flash)
    shipped = load_run_model(args)
    written = write_firmware(
        shipped.model, shipped.signature, args.out, args.name or "model", ram=max_ram, flash=max_flash
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


def _parse_size(option: str, text: str | None) -> int | None:
    """Return bytes from a size.

    >>> _parse_size("--ram", "64k")
    65536
    """
    if text is None:
        return None
    size = parse_bytes(text)
    if size is None:
        raise UsageError(f"{option} is no size", expected="bytes, or such as 64k or 1M", found=repr(text))
    return size
