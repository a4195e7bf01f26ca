"""Whose runs may name code to execute: a mark for each run that this user trained here, or has trusted.

A mark is a file in the user's state folder, named by a hash of the run's ``config.json`` (which holds a
random id) and of the code inside the run's folder that it names. A moved run keeps its mark; a run of
another user has none, and one whose configuration or code has changed has none any more. The mark lists the
code outside of the folder by its path and its content: it counts where one of the two is the same.
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

_TRUSTING: ContextVar[bool] = ContextVar("_TRUSTING", default=False)


@contextlib.contextmanager
def trusting(is_on: bool = True) -> Iterator[None]:
    """Context in which every run that is used gets a mark, as by ``--trust`` and ``trust=True``."""
    token = _TRUSTING.set(is_on or _TRUSTING.get())
    try:
        yield
    finally:
        _TRUSTING.reset(token)


def is_trusting() -> bool:
    """Whether what runs is in a context of `trusting`."""
    return _TRUSTING.get()


def mark(run: Path, document: Any, inside: Iterable[Path], outside: Iterable[Path]) -> None:
    """Remember that code which a run names, inside of its folder and elsewhere, may be executed.

    `document` is the content of its ``config.json``. Warns if this cannot be written down.
    """
    try:
        folder, key = _folder(), _key(document, inside)
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_mode & 0o077:  # the monitor made it, or an earlier burnt
                path.chmod(0o700)
        lines = [_line(str(run.resolve())), *(f"{digest} {path}" for digest, path in map(_identity, outside))]
        handle = os.open(folder / key, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        warnings.warn(
            f"the run {run} cannot be recorded as trusted, and commands that execute its code will need "
            f"--trust: {error}",
            stacklevel=3,
        )


def has_mark(document: Any, inside: Iterable[Path], outside: Iterable[Path]) -> bool:
    """Whether `mark` was called with the same configuration and code, by this user."""
    try:
        if marks_problem() is not None:
            return False
        lines = (_folder() / _key(document, inside)).read_text(encoding="utf-8").splitlines()
        known = {part for line in lines for part in line.split(" ", 1)}
        return all(not known.isdisjoint(_identity(file)) for file in outside)
    except (OSError, RuntimeError, UnicodeDecodeError):
        return False


def marks_problem() -> str | None:
    """Return why the marks count for nothing: another user may have made them. None if they count."""
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


def _line(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n").replace("\r", "\\r")


def _identity(file: Path) -> tuple[str, str]:
    """Return the hash of a file's content and its path, as a mark has them."""
    return hashlib.sha256(file.read_bytes()).hexdigest(), _line(str(file.resolve()))


def _key(document: Any, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    for content in sorted(hashlib.sha256(file.read_bytes()).digest() for file in files):
        digest.update(content)
    return digest.hexdigest()
