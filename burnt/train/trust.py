"""Whose runs may name code to execute: a mark for each run that this user trained here, or has trusted.

A mark is a file in the user's state folder, named by a hash of the run's ``config.json`` (which holds a
random id) and of the code inside the run's folder that it names. A moved run keeps its mark; a run of
somebody else has none, and one whose configuration or code has changed has none any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from burnt._files import state_folder

__all__ = ["has_mark", "is_trusting", "mark", "marks_problem", "trusting"]

_TRUSTING: ContextVar[bool] = ContextVar("_TRUSTING", default=False)


@contextlib.contextmanager
def trusting() -> Iterator[None]:
    """Context in which every run that is used gets a mark: that of a command with ``--trust``."""
    token = _TRUSTING.set(True)
    try:
        yield
    finally:
        _TRUSTING.reset(token)


def is_trusting() -> bool:
    """Whether the command was given ``--trust``."""
    return _TRUSTING.get()


def mark(run: Path, document: Any, files: Iterable[Path]) -> None:
    """Remember that the code which a run names may be executed; warn if that cannot be written down.

    Args:
        run: the run folder, which the mark names for those who look.
        document: the content of its ``config.json``.
        files: the code inside the run folder.
    """
    try:
        folder = _folder()
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_mode & 0o077:  # the monitor made it, or an earlier burnt
                path.chmod(0o700)
        handle = os.open(folder / _key(document, files), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{run.resolve()}\n")
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        warnings.warn(
            f"the run {run} cannot be recorded as trusted, and commands that execute its code will need "
            f"--trust: {error}",
            stacklevel=3,
        )


def has_mark(document: Any, files: Iterable[Path]) -> bool:
    """Whether `mark` was called with the same configuration and code, by this user."""
    try:
        return marks_problem() is None and (_folder() / _key(document, files)).is_file()
    except (OSError, RuntimeError):
        return False


def marks_problem() -> str | None:
    """Return why the marks count for nothing: somebody else may have made them. None if they count."""
    if not hasattr(os, "getuid"):  # Windows, where a profile is its user's own
        return None
    try:
        folder = _folder()
        for path in (folder.parent, folder):
            found = path.stat()
            if found.st_uid != os.getuid() or found.st_mode & 0o022:
                return f"{path} belongs to another user, or others can write to it"
    except (OSError, RuntimeError):  # there are none
        pass
    return None


def _folder() -> Path:
    return state_folder() / "trust"


def _key(document: Any, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    for content in sorted(hashlib.sha256(file.read_bytes()).digest() for file in files):
        digest.update(content)
    return digest.hexdigest()
