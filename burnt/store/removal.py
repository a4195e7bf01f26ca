"""Remove a run's folder, unless its training is running.

The folder is renamed first, so that no viewer sees half a run and a training notices at once; a removal that
is interrupted leaves a hidden folder ``.NAME.removed-...`` next to the others, which is not a run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

from burnt.errors import RunError, quantity
from burnt.store.opening import is_own
from burnt.store.ranks import rank_folders
from burnt.store.reader import Attempt, RunReader
from burnt.store.schema import DATABASE


class Removable(NamedTuple):
    """A run that can be removed."""

    folder: Path
    state: str
    bytes: int  # that its files take on the disk
    other_names: list[str]  # in its folder, and not written by burnt


def examine(folder: str | os.PathLike[str]) -> Removable:
    """Check that a run can be removed, and return what that frees; changes nothing.

    Raises a RunError if the folder is a link, holds no run or others too, or the run is or may be running.
    """
    folder = Path(folder)
    if folder.is_symlink():
        raise RunError(
            f"{folder} is a link and is not removed",
            found=f"a link to {os.readlink(folder)}",
            hint="name the folder itself, or remove the link with rm",
        )
    ranks = list(rank_folders(folder).values())
    try:
        found = [_newest_attempt(path) for path in (folder, *ranks)]
    except RunError as error:
        if not Path(folder, DATABASE).is_file():
            raise RunError(
                f"{folder} holds no run and is not removed",
                expected=str(folder / DATABASE),
                hint="`burnt runs list` lists the runs",
            ) from None
        raise RunError(
            f"{folder} cannot be read and is not removed, as it may be running",
            where=str(folder / DATABASE),
            found=f"{error.what}: {error.found}" if error.found else error.what,
            hint="if it is not needed any more, remove the folder with rm -r",
        ) from error
    state, attempt = next((one for one in found if one[0] in ("running", "stale")), found[0])
    if state in ("running", "stale"):
        raise RunError(
            f"{folder} is {state} and is not removed",
            found=f"process {attempt.pid} on {attempt.host}",
            hint=f"stop it first: burnt ctl {folder} stop",
        )
    size = 0
    for path, _, files in os.walk(folder):
        if DATABASE in files and Path(path) not in (folder, *ranks):
            raise RunError(f"{folder} contains another run and is not removed", found=path)
        for file in files:
            status = os.lstat(os.path.join(path, file))
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    others = [name for name in sorted(os.listdir(folder)) if not is_own(name)]
    return Removable(folder, state, size, others)


def _newest_attempt(folder: Path) -> tuple[str, Attempt]:
    with RunReader(folder) as reader:
        return reader.state(), reader.attempts()[-1]


def remove(folder: str | os.PathLike[str]) -> Removable:
    """Remove a run, and return what `examine` does.

    >>> import tempfile
    >>> from burnt.store import RunWriter, find_runs
    >>> root = Path(tempfile.mkdtemp())
    >>> RunWriter.create(root / "digits").close("finished")
    >>> remove(root / "digits").state, find_runs(root), list(root.iterdir())
    ('finished', [], [])
    """
    found = examine(folder)
    path = Path(os.path.abspath(folder))
    aside = path.with_name(f".{path.name}.removed-{secrets.token_hex(4)}")
    try:
        path.rename(aside)
    except OSError as error:
        raise RunError(
            f"{folder} cannot be removed", where=str(path.parent), found=error.strerror or str(error)
        ) from error
    try:
        examine(aside)  # it may have been resumed a moment ago
    except RunError as error:
        aside.rename(path)
        raise RunError(f"{folder} is not removed: it was just resumed", found=error.found) from error
    failed: list[str] = []
    shutil.rmtree(aside, onerror=lambda function, name, info: failed.append(f"{name}: {info[1]}"))
    if failed:
        raise RunError(
            f"{folder} was moved aside, but {quantity(len(failed), 'file')} cannot be removed",
            where=str(aside),
            found=failed[0],
            hint=f"remove the rest with rm -r {aside}",
        )
    return found
