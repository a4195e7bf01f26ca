"""The folder of compiled kernels: where it is, whether it may be trusted, how large it may grow.

What lies in it is code that will be loaded, so it belongs to the user alone. An entry is a pair of files,
``KEY.so`` and ``KEY.c``; how they are made is `burnt.codegen.runtime.c_library`'s matter. Everything here may
happen in several processes at once.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from burnt.errors import CacheError

__all__ = [
    "Entry",
    "cache_folder",
    "clear",
    "entries",
    "is_sealed",
    "limit",
    "note",
    "notes",
    "private_folder",
    "seal",
    "sweep",
]

DEFAULT_LIMIT_MIB = 512
SWEEP_EVERY = 3600.0
"""Seconds between two looks at the whole folder, over all processes."""
STALE_AFTER = 3600.0
"""Seconds after which an unfinished compile is taken for a killed one."""
WORK_PREFIX = ".burnt-work-"
_SWEPT = ".burnt-swept"
# The user may have named a folder that holds files of theirs too: what burnt did not write, it leaves alone.
_OURS = re.compile(r"(?P<key>[0-9a-f]{32})\.(so|c)|compiler-[0-9a-f]{32}\.json|\.burnt-swept")
_DIGEST_BYTES = hashlib.sha256().digest_size

_private: Path | None = None
_notes: dict[str, None] = {}


def note(text: str) -> None:
    """Keep what went otherwise than hoped, once, for `burnt.codegen.runtime.c_library.status`."""
    _notes[text] = None


def notes() -> list[str]:
    """What was noted in this process, in order."""
    return list(_notes)


def cache_folder() -> Path:
    """The user's folder of compiled kernels, created when missing.

    ``$BURNT_CACHE/c``, else ``$XDG_CACHE_HOME/burnt/c``, else ``~/.cache/burnt/c``; always an absolute path,
    as compilers run in folders of their own.

    Raises:
        CacheError: another user owns the folder, or others may write to it: what they put there would run.
        OSError: it cannot be created.
    """
    try:
        if base := os.environ.get("BURNT_CACHE"):
            root = Path(base).expanduser().absolute()
        else:
            root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "burnt"
    except RuntimeError as error:  # the user has no home folder
        raise FileNotFoundError(errno.ENOENT, str(error)) from error
    folder = root / "c"
    try:
        info = folder.stat()
    except FileNotFoundError:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.stat()
    if info.st_uid != os.geteuid():
        raise CacheError(
            "the cache of compiled kernels belongs to another user",
            where=str(folder),
            expected=f"owner {os.geteuid()}",
            found=f"owner {info.st_uid}",
            hint="set BURNT_CACHE to a folder of your own",
        )
    mode = stat.S_IMODE(info.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            "the cache of compiled kernels may be written by other users",
            where=str(folder),
            expected="mode 0700",
            found=f"mode {mode:04o}",
            hint=f"look what is in it, then `chmod 700 {folder}`, or set BURNT_CACHE to another folder",
        )
    return folder


def private_folder() -> Path:
    """A temporary folder for when the user's cannot be written; it goes when the process ends."""
    global _private
    # A forked child shares its parent's folder as long as that lives.
    if _private is None or not _private.is_dir():
        _private = Path(tempfile.mkdtemp(prefix="burnt-c-"))
        atexit.register(_remove, _private, os.getpid())
    return _private


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def seal(path: Path) -> None:
    """Append a digest to a finished library; loaders pay no heed to what follows the last section.

    A truncated library does not fail to load: the dynamic linker maps what is no longer there, and the
    process dies of SIGBUS. So what is loaded is looked at first.
    """
    with path.open("rb+") as file:
        file.write(hashlib.sha256(file.read()).digest())


def is_sealed(path: Path) -> bool:
    """Whether a library is whole.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    content = path.read_bytes()
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(body).digest() == digest


@dataclass(frozen=True)
class Entry:
    """A library with its source: its files, their size together in bytes, and when it was last loaded."""

    files: tuple[Path, ...]
    size: int
    used: float


def entries(folder: Path) -> list[Entry]:
    """What the folder holds, least recently used first; a source that did not compile is an entry too."""
    found: dict[str, list[Path]] = {}
    for path in _children(folder):
        match = _OURS.fullmatch(path.name)
        if match and match["key"]:
            found.setdefault(match["key"], []).append(path)
    made = []
    for files in found.values():
        size, used = 0, 0.0
        for path in files:
            try:
                info = path.stat()
            except FileNotFoundError:  # another process evicted it meanwhile
                continue
            size, used = size + info.st_size, max(used, info.st_mtime)
        made.append(Entry(tuple(files), size, used))
    return sorted(made, key=lambda entry: entry.used)


def limit() -> int:
    """How many bytes the folder may hold: ``$BURNT_CACHE_MIB`` mebibytes, 512 by default.

    Raises:
        CacheError: the variable is no number, or negative.
    """
    text = os.environ.get("BURNT_CACHE_MIB", str(DEFAULT_LIMIT_MIB))
    try:
        mebibytes = float(text)
        if not 0 <= mebibytes < 1e12:
            raise ValueError
    except ValueError:
        raise CacheError(
            "BURNT_CACHE_MIB is no size", expected="a number of mebibytes, such as 512", found=repr(text)
        ) from None
    return int(mebibytes * 2**20)


def sweep(folder: Path) -> None:
    """Once an hour: remove what killed compiles left, and the least recently used above the limit."""
    stamp = folder / _SWEPT
    now = time.time()
    try:
        if now - stamp.stat().st_mtime < SWEEP_EVERY:
            return
    except FileNotFoundError:  # the first sweep
        pass
    stamp.touch()
    for path in _children(folder):
        if path.name.startswith(WORK_PREFIX):
            try:
                stale = now - path.stat().st_mtime > STALE_AFTER
            except FileNotFoundError:  # that compile has just ended
                continue
            if stale:
                shutil.rmtree(path, ignore_errors=True)
    present = entries(folder)
    bound, size = limit(), sum(entry.size for entry in present)
    if size > bound:
        # Down to three quarters, or the next sweep would have to evict again.
        for entry in present:
            if size <= bound * 3 // 4:
                break
            for path in entry.files:
                path.unlink(missing_ok=True)
            size -= entry.size


def clear(folder: Path) -> None:
    """Remove all that burnt has put into the folder. Loaded libraries stay usable."""
    for path in _children(folder):
        if path.name.startswith(WORK_PREFIX):
            shutil.rmtree(path, ignore_errors=True)
        elif _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _children(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as listing:
        yield from [Path(item.path) for item in listing]
