"""`burnt runs export`: export a run as CSV, JSON lines or TensorBoard event files."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from burnt.cli.runs_select import find_run
from burnt.errors import clean, quantity
from burnt.store import export_csv, export_jsonl, export_tensorboard


def run(args: argparse.Namespace) -> int:
    """Export a run."""
    folder = find_run(args.run)
    if args.format == "tensorboard":
        files = export_tensorboard(folder, Path(folder, "tensorboard") if args.out is None else args.out)
        messages = [f"wrote {file}" for file in files] or ["the run has no metrics yet: nothing was written"]
    elif args.format == "csv":  # JSON is ASCII
        file = args.out or (_Terminal() if sys.stdout.isatty() else sys.stdout)
        messages = [f"wrote {quantity(export_csv(folder, file), 'point')} to {args.out}"]
    else:
        num_lines = export_jsonl(folder, args.out or sys.stdout, follow=args.follow)
        messages = [f"wrote {quantity(num_lines, 'line')} to {args.out}"]
    if args.out is not None or args.format == "tensorboard":
        print(*map(clean, messages), sep="\n", file=sys.stderr)
    return 0


class _Terminal(io.StringIO):
    """Standard output, with what would control a terminal escaped."""

    def write(self, text: str) -> int:
        return sys.stdout.write("\n".join(map(clean, text.split("\n"))))
