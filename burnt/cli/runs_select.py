"""The runs that a command's arguments name: folders, names in runs/, or patterns."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Sequence
from pathlib import Path

from burnt.cli.output import UsageError
from burnt.cli.runs_show import open_run, run_folder
from burnt.errors import RunError
from burnt.store import find_runs
from burnt.store.schema import DATABASE


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
