"""Names of the variables of a program: identifiers made from text of any kind."""

from __future__ import annotations

import builtins
import keyword
import re

_RESERVED = {"self", "ops", "torch", "F", "nn", "burnt", "forward", "training", "f"} | set(dir(builtins))


def is_reserved(name: str) -> bool:
    """Whether a variable cannot have a name."""
    return keyword.iskeyword(name) or name in _RESERVED


def unique_name(hint: str, used: dict[str, int]) -> str:
    """Return an identifier that is not used yet, and add it to those that are.

    `used` has the last number that was put after each, so that thousands of equal hints are not all counted
    again.

    >>> used = {}
    >>> unique_name("encoder/Layer.0", used), unique_name("encoder/Layer.0", used), unique_name("0", used)
    ('encoder_layer_0', 'encoder_layer_0_2', 'x_0')
    """
    words = re.sub(r"[\W_]+", "_", hint.encode("ascii", "ignore").decode())
    base = words.strip("_").lower()[:64].rstrip("_") or "x"
    if base[0].isdigit():
        base = f"x_{base}"
    if is_reserved(base):
        base += "_"
    name, number, stem = base, used.get(base, 1), base.rstrip("_")
    while name in used:
        number += 1
        name = f"{stem}_{number}"
    used[base] = number
    used.setdefault(name, 1)
    return name
