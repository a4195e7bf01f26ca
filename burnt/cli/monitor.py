"""`burnt monitor`: the full-screen app, a screenshot of it, or a snapshot as plain text or JSON."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnt.cli.output import Page, UsageError, closest_path, print_json, require_folder
from burnt.cli.runs_list import print_runs, run_json
from burnt.cli.runs_select import run_folder
from burnt.cli.runs_show import print_run
from burnt.errors import UnsupportedError
from burnt.monitor.data.runs import RunLibrary, RunView


def run(args: argparse.Namespace) -> int:
    """Show runs."""
    if args.svg is not None and (args.once or args.json):
        raise UsageError(
            f"--svg cannot be combined with {'--json' if args.json else '--once'}",
            expected="one of the two options",
            hint="run the command twice",
        )
    if args.attached is not None or os.environ.get("BURNT_DEBUG") == "1":
        logging.basicConfig()
    folders = [folder if os.path.isdir(folder) else run_folder(folder) for folder in args.folders]
    for folder in folders:
        require_folder(folder, _folder_hint(folder))
        try:
            os.scandir(folder).close()
        except OSError as error:  # otherwise it would appear to contain no runs
            raise UsageError(f"the folder {folder!r} cannot be read", found=error.strerror) from None
    if args.json or args.once:
        return _snapshot(folders, args.json)
    if args.svg is None and (reason := _why_no_terminal()) is not None:
        _snapshot(folders, False)
        print(f"({reason}: this is a snapshot; run `burnt monitor` in a terminal for a live view)")
        return 0
    if importlib.util.find_spec("textual") is None:
        raise UnsupportedError(
            "the full-screen monitor needs Textual, which is not installed",
            hint='pip install "burnt[tui]", or print a snapshot with `burnt monitor --once`',
        )
    if args.pulse is None:  # otherwise the training lowers the priority after the first screen
        from burnt.train.reporting.monitor_process import lower_priority

        lower_priority()
    library = RunLibrary(folders)
    if args.svg is not None:
        from burnt.monitor.app import write_screenshot

        write_screenshot(library, args.svg, args.size or (120, 40))
        return 0
    from burnt.monitor.app import MonitorApp
    from burnt.monitor.data.preferences import Preferences, default_path

    attachment = None
    if args.attached is not None:
        from burnt.monitor.terminal_handoff import Attachment

        attachment = Attachment(args.attached, Path(folders[0]), args.pulse)
    preferences = Preferences(default_path())
    app = MonitorApp(
        library, fps=args.fps, training_pid=args.attached, attachment=attachment, preferences=preferences
    )
    app.run()
    return app.return_code or 0


def _snapshot(folders: Sequence[str], as_json: bool) -> int:
    """Print runs, the newest first; of a single one the details."""
    library = RunLibrary(folders)
    library.refresh(rescan=True)
    views = sorted(library.views, key=lambda view: (math.isnan(view.created), -view.created))
    page = Page(styled=False)
    if as_json:
        print_json([{**run_json(view), "last": _last_values(view)} for view in views])
    elif len(views) == 1 and views[0].error is None:
        views[0].follow()
        library.refresh(rescan=True)
        print_run(page, views[0])
    else:
        print_runs(page, views, ", ".join(folders))
    library.close()
    return 0


def _last_values(view: RunView) -> list[dict[str, Any]]:
    return [{**series._asdict(), **head.point._asdict()} for series, head in view.heads.items()]


def _why_no_terminal() -> str | None:
    """Return why the app cannot be shown here; None if it can."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return "the output is not a terminal" if not sys.stdout.isatty() else "the input is not a terminal"
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return "TERM describes a terminal without cursor control"
    return None


def _folder_hint(folder: str) -> str:
    parent = os.path.dirname(folder.rstrip("/")) or "."
    names = [entry.name for entry in os.scandir(parent) if entry.is_dir()] if os.path.isdir(parent) else []
    guess = closest_path(folder, [os.path.normpath(os.path.join(parent, name)) for name in names], "/")
    return f"did you mean {guess}?" if guess else "name a folder of runs; `burnt train` creates runs"
