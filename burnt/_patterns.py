"""Patterns on paths of parameters and modules, as `freeze`, `load_weights` and optimizer groups take them."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from burnt.errors import nearest

__all__ = ["matches", "near"]


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path or the path of a module above it.

    Args:
        pattern: a glob, or several separated by ``|``, of which one must match. ``*`` also crosses dots.
        path: the path of a parameter or module, ``"encoder.0.weight"``.

    >>> matches("*.bias|*norm*", "encoder.norm.weight"), matches("encoder", "encoder.norm.weight")
    (True, True)
    >>> matches("*.bias|head", "encoder.norm.weight")
    False
    """
    parts = path.split(".")
    prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatchcase(prefix, glob) for glob in _alternatives(pattern) for prefix in prefixes)


def near(pattern: str, paths: Iterable[str]) -> str | None:
    """Return a hint for a pattern that matches nothing: the closest path, else the first one.

    >>> near("encodr|dec", ["encoder", "encoder.weight"])
    "did you mean 'encoder'?"
    """
    known = list(paths)
    close = (nearest(glob, known) for glob in _alternatives(pattern))
    if path := next(filter(None, close), None):
        return f"did you mean {path!r}?"
    return f"the first path is {known[0]!r}" if known else None


def _alternatives(pattern: str) -> list[str]:
    return [glob.strip() for glob in pattern.split("|")]
