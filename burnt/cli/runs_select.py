"""The runs that a command's arguments name: folders, names in runs/, or patterns."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from burnt.cli.output import UsageError, closest_path
from burnt.errors import RunError
from burnt.monitor.data.runs import RunView
from burnt.store import RunReader, find_runs
from burnt.store.schema import DATABASE

_STAMP_PATTERN = r"-[0-9][0-9T_.:-]*Z?"  # a date, time or counter; a word would be another run's name


def select_runs(names: Sequence[str]) -> list[str]:
    """Return the folders of runs, each once, in the order of the arguments.

    A name is a folder, a name in ``runs``, or a pattern with ``*``, ``?`` or ``[...]`` for either.
    """
    found: dict[str, str] = {}  # by absolute path
    for name in names:
        for folder in _matching(name):
            found.setdefault(os.path.abspath(folder), folder)
    return list(found.values())


def _matching(name: str) -> list[str]:
    if not glob.has_magic(name) or os.path.isdir(name):
        folder = run_folder(name)
        try:
            open_run(folder).close()  # raises with the closest name if this one is mistyped
        except UsageError:
            raise
        except RunError:  # unreadable; the command says what that means for it
            pass
        return [folder]
    folders = [path for path in sorted(glob.glob(name)) if Path(path, DATABASE).is_file()]
    if not folders and not os.path.dirname(name) and os.path.isdir("runs"):
        folders = sorted(str(run) for run in find_runs("runs") if fnmatch.fnmatchcase(run.name, name))
    if not folders:
        parent = os.path.dirname(name) or "runs"
        raise UsageError(
            f"no run matches {name!r}",
            hint=f"`burnt runs list {parent}` lists the runs"
            if os.path.isdir(parent)
            else f"there is no folder {parent!r}",
        )
    return folders


def open_run(folder: str) -> RunReader:
    """Open the reader of a run's folder; a UsageError with the closest run if there is none in it."""
    if Path(folder, DATABASE).is_file():
        return RunReader(folder)
    parent = os.path.dirname(folder.rstrip("/")) or "runs"
    is_folder = os.path.isdir(folder)
    runs = [str(run) for run in find_runs(folder if is_folder else parent)]
    guess = closest_path(folder, runs, "/")
    listed_folder = folder if is_folder and runs else parent
    hint = f"`burnt runs list {listed_folder}` lists the runs"
    if not os.path.isdir(listed_folder):
        hint = f"there is no folder {listed_folder!r}"
    raise UsageError(
        f"{folder} contains no run" if is_folder else f"there is no folder {folder!r}",
        expected=os.path.join(folder, DATABASE),
        hint=f"did you mean {guess}?" if guess else hint,
    )


def find_run(name: str) -> str:
    """Return the folder of the run that `run_folder` finds; a mistyped name raises as in `open_run`."""
    folder = run_folder(name)
    open_run(folder).close()
    return folder


def run_folder(name: str) -> str:
    """Return a run's folder: `name` itself, ``runs/name``, or the run below ``runs`` of that name, with or
    without a date.
    """
    if Path(name, DATABASE).is_file() or os.path.isabs(name):
        return name
    below = os.path.join("runs", name)
    if os.path.dirname(name):
        return below if Path(below, DATABASE).is_file() else name
    if not os.path.isdir("runs"):
        return name
    stamped = re.compile(re.escape(name) + _STAMP_PATTERN)
    all_runs = find_runs("runs")
    named = [run for run in all_runs if run.name == name] or [
        run for run in all_runs if stamped.fullmatch(run.name)
    ]
    active = [run for run in named if _is_active(run)]
    if len(active) > 1:
        raise UsageError(
            f"{len(active)} trainings named {name!r} are running",
            expected="the folder of one of them",
            found=", ".join(sorted(map(os.fspath, active))),
        )
    found = next(iter(active or named), None)
    if found is None and Path(below, DATABASE).is_file():
        return below  # a link, which `find_runs` does not follow
    return name if found is None else os.fspath(found)


def _is_active(folder: Path) -> bool:
    try:
        with RunReader(folder) as reader:
            return reader.state() in ("running", "stale")
    except RunError:  # damaged, just deleted or not started: it accepts no commands
        return False


def read_view(folder: str, style_index: int = 0) -> RunView:
    """Read a run and its events; a mistyped name raises as in `open_run`, and so does an unreadable run."""
    open_run(folder).close()
    view = RunView(folder, style_index=style_index)
    view.follow()
    view.refresh()
    if view.error is not None:
        raise view.error
    return view
