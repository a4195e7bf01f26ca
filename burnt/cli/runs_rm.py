"""`burnt runs rm`: remove runs that have ended, after a question."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from burnt.cli.output import UsageError
from burnt.cli.runs_select import select_runs
from burnt.errors import clean, quantity
from burnt.monitor.format import size_text
from burnt.store.removal import Removable, examine, remove


def run(args: argparse.Namespace) -> int:
    """Remove runs; nothing is removed if one of them cannot be."""
    runs = [examine(folder) for folder in select_runs(args.runs)]
    if not args.yes and not _ask(runs):
        print("nothing was removed", file=sys.stderr)
        return 1
    for found in runs:
        remove(found.folder)
    what = clean(str(runs[0].folder)) if len(runs) == 1 else quantity(len(runs), "run")
    print(f"removed {what}: {size_text(sum(found.bytes for found in runs))} freed")
    return 0


def _ask(runs: Sequence[Removable]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "removing runs needs a confirmation",
            expected="--yes, or a terminal to ask in",
            found=", ".join(clean(str(found.folder)) for found in runs),
        )
    for found in runs:
        others = f", with {', '.join(found.other_names)}" if found.other_names else ""
        print(clean(f"{found.folder}  {found.state}  {size_text(found.bytes)}{others}"))
    total = size_text(sum(found.bytes for found in runs))
    question = f"Remove {quantity(len(runs), 'run')} ({total}) with all checkpoints? [y/N] "
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        print()
        return False
