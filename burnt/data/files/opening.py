"""Paths of data files, and handles that each process and thread opens for itself."""

from __future__ import annotations

import glob
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from burnt.errors import DataError, did_you_mean

T = TypeVar("T")
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def find_files(paths: Paths) -> list[str]:
    """Return the files that a path, a glob pattern (sorted by name) or a list of these stands for."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    found: list[str] = []
    for path in (os.fspath(path) for path in paths):
        if os.path.isfile(path):
            found.append(path)
        elif glob.has_magic(path) and not os.path.exists(path):
            matches = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
            if not matches:
                raise DataError("no file matches the pattern", where=path)
            found += matches
        else:
            raise _no_file(path)
    if not found:
        raise DataError("no files were given", expected="a path, a pattern or a list of paths")
    return found


def _no_file(path: str) -> DataError:
    if os.path.isdir(path):
        return DataError(
            "expected a file, found a folder", where=path, hint=f"name its files: {os.path.join(path, '*')!r}"
        )
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return DataError("there is no such file", where=path, hint=f"there is no folder {folder!r} either")
    hint = did_you_mean(os.path.basename(path), os.listdir(folder))
    return DataError("there is no such file", where=path, hint=hint)


class Handle(Generic[T]):
    """An open file or connection, of which each process and thread has its own; a pickle holds none.

    `open_handle` can be pickled; what it returns, called with `arguments`, has `close`.
    """

    def __init__(self, open_handle: Callable[..., T], *arguments: Any) -> None:
        self._open = open_handle
        self._arguments = arguments
        self._local = threading.local()

    def get(self) -> T:
        """Return the handle of this process and thread, opened at the first call."""
        own: _Own[T] | None = getattr(self._local, "own", None)
        if own is None or own.process != os.getpid():
            own = self._local.own = _Own(self._open(*self._arguments))
            # The finalizer holds the handle, so that garbage collection does not end it unclosed.
            weakref.finalize(own, _close, own.handle, own.process)
        return own.handle

    def __reduce__(self) -> tuple[Any, ...]:
        return (Handle, (self._open, *self._arguments))


class _Own(Generic[T]):
    """The handle of one thread of one process."""

    def __init__(self, handle: T) -> None:
        self.handle = handle
        self.process = os.getpid()


_INHERITED: list[Any] = []
"""Handles of the parent process. SQLite forbids to use or close a connection in a forked process."""


def _close(handle: Any, process: int) -> None:
    if process == os.getpid():
        handle.close()
    else:
        _INHERITED.append(handle)
