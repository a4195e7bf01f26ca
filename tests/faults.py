"""A disk that is full, or a process that is killed, at the k-th operation on files.

`operations()` counts what a program does to files through Python: it opens one to write, writes, fsyncs,
renames, makes or removes a folder, deletes. `operations(at=3, how="full")` makes the third one fail:

============  =================================================================================
``"full"``    ENOSPC; whatever needs space fails from then on, after half of a write
``"refused"`` EIO, this once
``"killed"``  the process ends at once, without clean-up; half of a write is done
``"short"``   a write takes half of its bytes and says so, which is not an error
============  =================================================================================
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

KILLED = 77
"""The exit code of a process that was killed so."""

_NEED_SPACE = ("open", "write", "fsync", "mkdir")


class Operations:
    """What was done to files: ``log`` has ``(kind, path)`` of each operation."""

    def __init__(self, at: int | None, how: str) -> None:
        self.at = at
        self.how = how
        self.log: list[tuple[str, str]] = []

    @property
    def failed(self) -> bool:
        """Whether the operation that is to fail was reached."""
        return self.at is not None and len(self.log) >= self.at

    def perform(self, kind: str, path: Any, do: Callable[[], Any], half: Callable[[], Any] = int) -> Any:
        """Count an operation, and do it unless it is to fail."""
        self.log.append((kind, os.fspath(path)))
        is_now = len(self.log) == self.at
        if self.how == "full" and self.failed and (is_now or kind in _NEED_SPACE):
            if is_now:
                half()
            raise OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC), *([] if kind in ("write", "fsync") else [path])
            )
        if is_now and self.how == "refused":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if is_now and self.how == "killed":
            half()
            os._exit(KILLED)
        if is_now and self.how == "short" and kind == "write":
            return half()
        return do()


@contextmanager
def operations(at: int | None = None, how: str = "full") -> Iterator[Operations]:
    """Count operations on files in a block, and make one of them fail."""
    done = Operations(at, how)
    paths: dict[int, str] = {}

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            view = memoryview(data).cast("B")
            whole, part = super().write, view[: len(view) // 2 or 1]
            return done.perform("write", self.name, lambda: whole(view), lambda: whole(part))  # type: ignore[no-any-return]

    real_open, real_os_open, real_fsync = io.open, os.open, os.fsync

    def opened(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *rest: Any, **more: Any
    ) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int):
            return real_open(file, mode, buffering, encoding, *rest, **more)
        raw = done.perform("open", file, lambda: Raw(file, mode.replace("b", "").replace("t", "")))
        paths[raw.fileno()] = os.fspath(file)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8")

    def os_opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        def do() -> int:
            paths[number := real_os_open(path, flags, *rest, **more)] = os.fspath(path)
            return number

        return done.perform("open", path, do) if flags & os.O_CREAT else do()

    def synced(number: int) -> None:
        done.perform("fsync", paths.get(number, str(number)), lambda: real_fsync(number))

    def counted(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, *rest, **more: done.perform(kind, path, lambda: real(path, *rest, **more))

    with ExitStack() as stack:
        for home in (builtins, io):
            stack.enter_context(mock.patch.object(home, "open", opened))
        stack.enter_context(mock.patch.object(os, "open", os_opened))
        stack.enter_context(mock.patch.object(os, "fsync", synced))
        for name in ("replace", "rename", "mkdir", "rmdir", "unlink", "remove"):
            stack.enter_context(mock.patch.object(os, name, counted(name, getattr(os, name))))
        yield done
