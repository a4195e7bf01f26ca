"""Writing files so that readers see the old or the new content, never a part; JSON from elsewhere."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_ABANDONED_SECONDS = 24 * 3600

_NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""Errors of writing, for which the system does not name the file."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file next to `path` to write to, which takes its place when the block ends well.

    A process that is killed leaves the temporary file, hidden by a dot; `replacing` the same path deletes it
    from a day later on.

    Raises:
        OSError: the folder does not exist, cannot be written or is full; an old file is untouched, unless
            only the last step failed, which makes the new name survive a power cut. Or `path` is a folder or
            a device: for root, `/dev/null` would become a file.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, "not a regular file", os.fspath(target))
    _remove_abandoned(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:  # nobody knows the name of the temporary file
        raise type(error)(error.errno, error.strerror, os.fspath(target)) from None
    try:
        mode = temporary.stat().st_mode  # what the umask makes of a new file
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # Whoever writes it may have put a private file in its place.
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and _is_about(error, temporary):
            raise type(error)(error.errno, error.strerror, os.fspath(target)) from None
        raise
    sync_folder(target.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process is in this block for a folder; the lock ends with the process that has it.

    It does nothing on Windows, and on network file systems that do not lock folders.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # NFS refuses to lock what is not open to write
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # a process that was forked meanwhile has the handle too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _is_about(error: OSError, temporary: Path) -> bool:
    if not isinstance(error.filename, str | Path):
        return error.errno in _NO_SPACE
    return os.fspath(error.filename) == os.fspath(temporary)


def _remove_abandoned(target: Path) -> None:
    """Delete the temporary files of killed processes, which nobody has written to for a day."""
    of_target = re.compile(re.escape(f".{target.name}.") + "[0-9]+[.][0-9a-f]{8}")
    for path in target.parent.glob(f".{glob.escape(target.name)}.*"):
        with suppress(OSError):
            if of_target.fullmatch(path.name) and time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def state_folder() -> Path:
    """Return the folder of what burnt remembers for this user: ``$XDG_STATE_HOME/burnt``, by default
    ``~/.local/state/burnt``. A relative path is ignored: a received folder may hold it.

    Raises:
        RuntimeError: this user has no home.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state") / "burnt"


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut; does nothing on Windows, which cannot open folders."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        error.filename = os.fspath(folder)
        raise
    finally:
        os.close(handle)


_DEEPEST = 200
# A string is one token, whatever brackets it holds; one without an end is for json to complain of.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`, but for what is nested more than 200 deep.

    Python's own parser goes as deep as the process's recursion limit lets it, which libraries raise: beyond
    the stack of its thread the process ends. Too deep is a JSONDecodeError; bytes in another encoding than
    UTF-8, UTF-16 or UTF-32 are a UnicodeDecodeError.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if isinstance(text, str) and text.count("[") + text.count("{") > _DEEPEST:
        depth = 0
        for token in _TOKENS.finditer(text):
            first = token[0][0]
            depth += (first in "[{") - (first in "]}")
            if depth > _DEEPEST:
                raise json.JSONDecodeError(f"nested more than {_DEEPEST} deep", text, token.start())
    try:
        return json.loads(text)
    except RecursionError as error:  # the process is at its limit already
        raise json.JSONDecodeError(str(error), "", 0) from None
