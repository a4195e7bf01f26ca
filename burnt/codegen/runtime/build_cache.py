"""The cache folder of compiled kernels: its path, its permissions, its checksums and its size limit.

The folder holds code that will be loaded, so only the user may write to it. An entry is a pair of files,
``KEY.so`` and ``KEY.c``, written by `burnt.codegen.runtime.c_library`. All functions here may run in several
processes at once.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from burnt.errors import CacheError

DEFAULT_LIMIT_MIB = 512
SWEEP_EVERY = 3600.0
"""Seconds between two sweeps of the folder, over all processes."""
STALE_AFTER = 3600.0
"""Seconds after which the work folder of a compilation is assumed to be left by a killed process."""
WORK_PREFIX = ".burnt-work-"
_SWEPT = ".burnt-swept"
# BURNT_CACHE may name a folder with other files of the user's: remove only files that burnt wrote.
_OWN_FILES = re.compile(r"(?P<key>[0-9a-f]{32})\.(so|c)|compiler-[0-9a-f]{32}\.json|\.burnt-swept")
_DIGEST_BYTES = hashlib.sha256().digest_size

_temporary: Path | None = None
_notes: dict[str, None] = {}


def add_note(text: str) -> None:
    """Record a problem that does not stop the program, once, for `burnt.codegen.runtime.c_library.status`."""
    _notes[text] = None


def notes() -> list[str]:
    """Return the problems recorded in this process, in order."""
    return list(_notes)


def cache_folder() -> Path:
    """Return the user's folder of compiled kernels, and create it if it does not exist.

    It is ``$BURNT_CACHE/c``, else ``$XDG_CACHE_HOME/burnt/c``, else ``~/.cache/burnt/c``. The path is
    absolute, because compilers run in folders of their own.

    Raises:
        CacheError: another user owns the folder or may write to it, and could make this process run their
            code.
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
    if sys.platform == "win32":  # files have access lists there; those of a home folder exclude other users
        return folder
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
            "the cache of compiled kernels can be written by other users",
            where=str(folder),
            expected="mode 0700",
            found=f"mode {mode:04o}",
            hint=f"check its files, then run `chmod 700 {folder}`, or set BURNT_CACHE to another folder",
        )
    return folder


def temporary_folder() -> Path:
    """Return a temporary folder to use when the cache folder cannot be written; it is removed at exit."""
    global _temporary
    # A forked child uses its parent's folder until the parent exits.
    if _temporary is None or not _temporary.is_dir():
        _temporary = Path(tempfile.mkdtemp(prefix="burnt-c-"))
        atexit.register(_remove, _temporary, os.getpid())
    return _temporary


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def append_checksum(path: Path) -> None:
    """Append a checksum to a finished library; loaders ignore what follows the last section.

    A truncated library does not fail to load: the dynamic linker maps pages that are not in the file, and the
    process dies with SIGBUS. So `has_valid_checksum` is called before a library is loaded.
    """
    with path.open("rb+") as file:
        file.write(hashlib.sha256(file.read()).digest())


def has_valid_checksum(path: Path) -> bool:
    """Whether a library is complete: its checksum is there and matches."""
    content = path.read_bytes()
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(body).digest() == digest


@dataclass(frozen=True)
class Entry:
    """A library with its source: its files, their total size in bytes, and the time of its last load."""

    files: tuple[Path, ...]
    size: int
    last_used: float


def entries(folder: Path) -> list[Entry]:
    """Return the folder's entries, least recently used first. A source that failed to compile is one too."""
    files_by_key: dict[str, list[Path]] = {}
    for path in _children(folder):
        match = _OWN_FILES.fullmatch(path.name)
        if match and match["key"]:
            files_by_key.setdefault(match["key"], []).append(path)
    result = []
    for files in files_by_key.values():
        size, last_used = 0, 0.0
        for path in files:
            try:
                info = path.stat()
            except FileNotFoundError:  # evicted by another process in between
                continue
            size, last_used = size + info.st_size, max(last_used, info.st_mtime)
        result.append(Entry(tuple(files), size, last_used))
    return sorted(result, key=lambda entry: entry.last_used)


def limit() -> int:
    """Return the maximum size of the folder in bytes: ``$BURNT_CACHE_MIB`` mebibytes, 512 by default."""
    text = os.environ.get("BURNT_CACHE_MIB", str(DEFAULT_LIMIT_MIB))
    try:
        mebibytes = float(text)
        if not 0 <= mebibytes < 1e12:
            raise ValueError
    except ValueError:
        raise CacheError(
            "BURNT_CACHE_MIB is not a size", expected="a number of mebibytes, such as 512", found=repr(text)
        ) from None
    return int(mebibytes * 2**20)


def sweep(folder: Path) -> None:
    """Remove work folders of killed compilations and the least recently used entries above the limit.

    Does nothing if the folder was swept within the last hour.
    """
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
            except FileNotFoundError:  # this compilation has just ended
                continue
            if stale:
                shutil.rmtree(path, ignore_errors=True)
    all_entries = entries(folder)
    max_bytes, size = limit(), sum(entry.size for entry in all_entries)
    if size > max_bytes:
        # Evict down to three quarters of the limit, so that the next sweep does not have to evict again.
        for entry in all_entries:
            if size <= max_bytes * 3 // 4:
                break
            for path in entry.files:
                path.unlink(missing_ok=True)
            size -= entry.size


def _children(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as listing:
        yield from [Path(item.path) for item in listing]
