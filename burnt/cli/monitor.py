"""`burnt monitor`: the full-screen app, or its picture, or a snapshot in plain text or JSON."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from burnt.cli.output import UsageError, closest_path, print_json
from burnt.cli.runs_show import run_folder
from burnt.errors import UnsupportedError

__all__ = ["run"]


def run(
    folders: Sequence[str],
    *,
    once: bool = False,
    svg: str | None = None,
    as_json: bool = False,
    fps: float = 2.0,
    attached: int | None = None,
    pulse: int | None = None,
    size: str = "120x40",
) -> int:
    """Show runs.

    Args:
        folders: runs, folders with runs below, or names of runs below ``runs``.
        once: print a snapshot and end.
        svg: write a picture to this file and end.
        as_json: print the state and end.
        fps: pictures a second, at most.
        attached: the process id of the training whose monitor this is.
        pulse: a pipe to it, by which it sees that the app lives.
        size: of the picture, in columns and lines.

    Raises:
        UsageError: there is no such folder; `fps` or `size` cannot be.
        UnsupportedError: the app is asked for and Textual is not installed.
    """
    if svg is not None and (once or as_json):
        raise UsageError(
            "a snapshot and a picture are two things",
            expected=f"--svg FILE or {'--json' if as_json else '--once'}",
            found="both",
            hint="ask for one after the other",
        )
    if attached is not None or os.environ.get("BURNT_DEBUG") == "1":
        logging.basicConfig()
    folders = [folder if os.path.isdir(folder) else run_folder(folder) for folder in folders]
    for folder in folders:
        if not os.path.isdir(folder):
            raise _no_folder_error(folder)
        try:
            os.scandir(folder).close()
        except OSError as error:  # else it would seem to hold no runs
            raise UsageError(f"the folder {folder!r} cannot be read", found=error.strerror) from None
    if not 0.1 <= fps <= 30:
        raise UsageError(
            "the monitor cannot be as fast as that", expected="--fps 0.1 to 30", found=f"{fps:g}"
        )
    if as_json or once:
        return _snapshot(folders, as_json)
    if svg is None and (reason := _why_no_terminal()) is not None:
        _snapshot(folders, False)
        print(f"({reason}: this is a snapshot; `burnt monitor` in a terminal shows it live)")
        return 0
    if importlib.util.find_spec("textual") is None:
        raise UnsupportedError(
            "the full-screen monitor needs Textual, which is not installed",
            hint='pip install "burnt[tui]"; or `burnt monitor --once` prints a snapshot without it',
        )
    shape = None if svg is None else _parse_size(size)
    if pulse is None:  # else the training sees to it, once it has seen the first picture
        from burnt.train.priority import give_way

        give_way()
    from burnt.monitor.data.runs import RunLibrary

    library = RunLibrary(folders)
    if svg is not None and shape is not None:
        from burnt.monitor.snapshot_svg import write_screenshot

        write_screenshot(library, svg, shape)
        return 0
    from burnt.monitor.app import MonitorApp

    attachment = None
    if attached is not None:
        from burnt.monitor.terminal_handoff import Attachment

        attachment = Attachment(attached, Path(folders[0]), pulse)
    app = MonitorApp(library, fps=fps, training_pid=attached, attachment=attachment)
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
    """Why the app cannot be shown here; None if it can."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return "the output is no terminal" if not sys.stdout.isatty() else "the input is no terminal"
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return "TERM says that this terminal cannot place text"
    return None


def _parse_size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdigit() and height.isdigit() and 10 <= int(width) <= 1000 and 5 <= int(height) <= 500):
        raise UsageError("the picture cannot have that size", expected="--size 120x40", found=text)
    return int(width), int(height)


def _no_folder_error(folder: str) -> UsageError:
    parent = os.path.dirname(folder.rstrip("/")) or "."
    names = [entry.name for entry in os.scandir(parent) if entry.is_dir()] if os.path.isdir(parent) else []
    guess = closest_path(folder, [os.path.normpath(os.path.join(parent, name)) for name in names], "/")
    return UsageError(
        f"there is no folder {folder!r}",
        where=os.getcwd(),
        found="a file" if os.path.exists(folder) else None,
        hint=f"did you mean {guess}?"
        if guess
        else "runs are made by `burnt train`; name a folder that has some",
    )
