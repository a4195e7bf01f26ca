"""Programs that tests compile with compilers of their own, kept for the next process: below burnt's cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from burnt.codegen.runtime.build_cache import cache_folder
from burnt.codegen.runtime.c_compiler import cpu_features

_MOST = 3000


def folder_of(name: str, *made_by: object) -> Path:
    """Return the folder of what these tools, flags and headers compile; it keeps the newest files."""
    key = hashlib.sha256(repr((made_by, cpu_features())).encode()).hexdigest()[:16]
    folder = cache_folder().with_name(f"tests-{name}") / key
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    oldest_first = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
    for file in oldest_first[:-_MOST]:
        file.unlink(missing_ok=True)
    return folder


def compiled_once(path: Path, compile_to: Callable[[Path], object]) -> Path:
    """Return a file, which is compiled under another name first if no process has done that before."""
    if not path.exists():
        begun = path.with_name(f"{os.getpid()}-{path.name}")
        compile_to(begun)
        begun.replace(path)
    return path
