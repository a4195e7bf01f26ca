"""The decisions of earlier swaps, as files in burnt's cache folder.

A file is a report as JSON (`Report.save`). Its name is a hash of the model, of its first call's inputs and of
the machine, so that processes with different ones do not overwrite each other's. Files are replaced as a
whole: a reader sees the old or the new one, and of two processes that measure at once, the last one's stays.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from burnt.codegen.runtime.build_cache import cache_folder
from burnt.swapping.report import Report

SWITCH = "BURNT_SWAP_CACHE"
"""The environment variable: ``0`` neither reads nor writes kept decisions."""
_MAX_FILES = 200  # some 100 kB each for a model of hundreds of layers


def is_enabled() -> bool:
    """Whether decisions are kept."""
    return os.environ.get(SWITCH) != "0"


def path_of(*parts: str) -> Path:
    """Return the file for a model, inputs and machine, which are given as text."""
    return _folder() / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:32]}.json"


def store(path: Path, report: Report) -> None:
    """Write a file, and delete the oldest ones above a limit.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    report.save(path)
    for old in files()[_MAX_FILES:]:
        old.unlink(missing_ok=True)


def files() -> list[Path]:
    """Return the files, the newest first; without a safe cache folder, raise CacheError or OSError."""
    ages: dict[Path, float] = {}
    for path in _folder().glob("*.json"):
        try:
            ages[path] = path.stat().st_mtime
        except FileNotFoundError:  # deleted by another process in between
            continue
    return sorted(ages, key=lambda path: ages[path], reverse=True)


def clear() -> int:
    """Delete all files; return how many there were."""
    found = files()
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def _folder() -> Path:
    return cache_folder().parent / "swap"
