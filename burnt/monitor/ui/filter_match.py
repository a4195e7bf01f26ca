"""What a person types to filter: words that must all occur, or a regular expression."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["matcher"]

_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL


def matcher(text: str) -> Callable[[str], bool]:
    """A test of whether a text is meant; capitals do not matter.

    Args:
        text: words that must all occur, or ``/expression`` (a closing ``/`` may follow), in which ``^`` and
            ``$`` are the ends of a line.

    Raises:
        re.error: the expression is none.

    >>> matcher("cnn 3")("runs/cnn-03"), matcher("/cnn-[12]/")("runs/cnn-03"), matcher("")("all")
    (True, False, True)
    """
    if text.startswith("/"):
        pattern = re.compile(text.removeprefix("/").removesuffix("/"), _FLAGS)
        return lambda name: pattern.search(name) is not None
    words = text.lower().split()
    return lambda name: all(word in name.lower() for word in words)
