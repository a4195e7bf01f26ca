"""Parse filter texts: words that must all occur, or a regular expression."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["matcher"]

_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL


def matcher(text: str) -> Callable[[str], bool]:
    """Return a case-insensitive test of whether a text matches a filter.

    Args:
        text: words that must all occur, or ``/expression`` with an optional closing ``/``, in which ``^`` and
            ``$`` match at line ends.

    Raises:
        re.error: the regular expression is invalid.

    >>> matcher("cnn 3")("runs/cnn-03"), matcher("/cnn-[12]/")("runs/cnn-03"), matcher("")("all")
    (True, False, True)
    """
    if text.startswith("/"):
        pattern = re.compile(text.removeprefix("/").removesuffix("/"), _FLAGS)
        return lambda name: pattern.search(name) is not None
    words = text.lower().split()
    return lambda name: all(word in name.lower() for word in words)
