"""Patterns on paths of parameters and modules, as `freeze`, `load_weights` and optimizer groups take them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from fnmatch import fnmatchcase

from burnt.errors import nearest


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches the path of a parameter or module, or of a module above it.

    A pattern is a glob, or several separated by ``|``, of which one must match. ``*`` also crosses dots.

    >>> matches("*.bias|*norm*", "encoder.norm.weight"), matches("encoder", "encoder.norm.weight")
    (True, True)
    >>> matches("*.bias|head", "encoder.norm.weight")
    False
    """
    return any(
        fnmatchcase(prefix, glob) for glob in _alternatives(pattern) for prefix in _with_modules_above(path)
    )


def near(pattern: str, paths: Iterable[str]) -> str | None:
    """Return a hint for a pattern that matches nothing: a close pattern or path, else the first path.

    >>> near("encodr|dec", ["encoder.0.weight"])
    "did you mean 'encoder'?"
    >>> near("linear1", ["layers.0.linear1"]), near("layers.*.liner1", ["layers.0.linear1"])
    ("did you mean '*.linear1'?", "did you mean 'layers.*.linear1'?")
    """
    known = list(paths)
    close = (_closest(glob, known) for glob in _alternatives(pattern))
    if guess := next(filter(None, close), None):
        return f"did you mean {guess!r}?"
    return f"the first path is {known[0]!r}" if known else None


def warn_unmatched(pattern: str, paths: Iterable[str], what: str = "parameter") -> None:
    """Warn of each alternative of a pattern that matches nothing, for a pattern of which another one matches.

    It is not an error, so that ``"*.bias|*norm*"`` also serves models without biases.

    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_unmatched("encoder|hed", ["encoder.weight", "head.weight"])
    >>> print(caught[0].message)
    'hed' in the pattern 'encoder|hed' matches no parameter: did you mean 'head'?
    """
    known = list(paths)
    for glob in _alternatives(pattern):
        if not any(matches(glob, path) for path in known):
            warnings.warn(
                f"{glob!r} in the pattern {pattern!r} matches no {what}: {near(glob, known)}",
                stacklevel=_stacklevel(),
            )


def _alternatives(pattern: str) -> list[str]:
    return [glob.strip() for glob in pattern.split("|")]


def _with_modules_above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _closest(glob: str, paths: list[str]) -> str | None:
    """Return the glob with its last name corrected, or any parents put before it; else the closest path."""
    known = list(dict.fromkeys(prefix for path in paths for prefix in _with_modules_above(path)))
    parents, dot, name = glob.rpartition(".")
    if corrected := nearest(name, dict.fromkeys(path.rpartition(".")[2] for path in known)):
        guesses = (f"{parents}{dot}{corrected}", f"*.{parents}{dot}{corrected}")
        if guess := next((guess for guess in guesses if any(matches(guess, path) for path in paths)), None):
            return guess
    return nearest(glob, known)


def _stacklevel() -> int:
    """Return the stack level of the caller's first call outside of burnt."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "burnt":
        level, frame = level + 1, frame.f_back
    return level
