"""`burnt runs export`: export a run as CSV, JSON lines or TensorBoard event files."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from burnt.cli.runs_show import open_run, run_folder
from burnt.errors import clean, quantity
from burnt.store import export_csv, export_jsonl, export_tensorboard


def run(name: str, format_name: str, out: str | None, follow: bool) -> int:
    """Export a run.

    Args:
        name: the run's folder, or its name in ``runs``.
        format_name: ``"csv"``, ``"jsonl"`` or ``"tensorboard"``.
        out: output path; None is standard output, or for TensorBoard the run's subfolder ``tensorboard``.
        follow: whether to continue writing JSON lines until the run ends.

    Returns:
        The exit code 0.

    Raises:
        UsageError: there is no such run, or several running runs have that name.
        RunError: the run cannot be read, or a file cannot be written.
    """
    folder = run_folder(name)
    open_run(folder).close()  # raises with the closest name if this one is mistyped
    if format_name == "tensorboard":
        files = export_tensorboard(folder, Path(folder, "tensorboard") if out is None else out)
        messages = [f"wrote {file}" for file in files] or ["the run has no metrics yet: nothing was written"]
    elif format_name == "csv":  # JSON is ASCII
        file = out or (_Terminal() if sys.stdout.isatty() else sys.stdout)
        messages = [f"wrote {quantity(export_csv(folder, file), 'point')} to {out}"]
    else:
        num_lines = export_jsonl(folder, out or sys.stdout, follow=follow)
        messages = [f"wrote {quantity(num_lines, 'line')} to {out}"]
    if out is not None or format_name == "tensorboard":
        print(*map(clean, messages), sep="\n", file=sys.stderr)
    return 0


class _Terminal(io.StringIO):
    """Standard output, with what would control a terminal escaped."""

    def write(self, text: str) -> int:
        return sys.stdout.write("\n".join(map(clean, text.split("\n"))))
