"""`burnt monitor`: the full-screen app, a screenshot of it, or a snapshot as plain text or JSON."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from burnt.cli.output import UsageError, closest_path, print_json, require_folder
from burnt.cli.runs_show import run_folder
from burnt.errors import UnsupportedError


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
    if not 0.1 <= args.fps <= 30:
        raise UsageError("the update rate is out of range", expected="--fps 0.1 to 30", found=f"{args.fps:g}")
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
    shape = None if args.svg is None else _parse_size(args.size)
    if args.pulse is None:  # otherwise the training lowers the priority after the first screen
        from burnt.train.reporting.priority import set_lowest_priority

        set_lowest_priority()
    from burnt.monitor.data.runs import RunLibrary

    library = RunLibrary(folders)
    if args.svg is not None and shape is not None:
        from burnt.monitor.snapshot_svg import write_screenshot

        write_screenshot(library, args.svg, shape)
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
    from burnt.monitor.snapshot_text import snapshot_data, snapshot_lines

    if as_json:
        print_json(snapshot_data(folders))
    else:
        print("\n".join(snapshot_lines(folders)))
    return 0


def _why_no_terminal() -> str | None:
    """Return why the app cannot be shown here; None if it can."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return "the output is not a terminal" if not sys.stdout.isatty() else "the input is not a terminal"
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return "TERM describes a terminal without cursor control"
    return None


def _parse_size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit() and 10 <= int(width) <= 1000 and 5 <= int(height) <= 500):
        raise UsageError(
            "the size of the screenshot is invalid",
            expected="--size 120x40, from 10x5 to 1000x500",
            found=text,
        )
    return int(width), int(height)


def _folder_hint(folder: str) -> str:
    parent = os.path.dirname(folder.rstrip("/")) or "."
    names = [entry.name for entry in os.scandir(parent) if entry.is_dir()] if os.path.isdir(parent) else []
    guess = closest_path(folder, [os.path.normpath(os.path.join(parent, name)) for name in names], "/")
    return f"did you mean {guess}?" if guess else "name a folder of runs; `burnt train` creates runs"
