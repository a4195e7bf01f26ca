"""`burnt c`: write the model of a run as C99 for a microcontroller. Imports torch."""

from __future__ import annotations

import argparse

from burnt.cli.output import Page
from burnt.cli.run_model import load_run_model


def run(args: argparse.Namespace) -> int:
    """Write a run's model as C, and print what was written and what memory it needs."""
    from burnt.export import write_firmware

    shipped = load_run_model(args)
    written = write_firmware(
        shipped.model, shipped.signature, args.out, args.name, ram=args.ram, flash=args.flash
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
