"""Names of the variables, layers and tensors of a program: identifiers made from text of any kind."""

from __future__ import annotations

import builtins
import keyword
import re

import torch

__all__ = ["unique_kind", "unique_name"]

_RESERVED = (
    {"self", "ops", "torch", "F", "nn", "forward", "training", "f"}
    | set(dir(torch.nn.Module))
    | set(dir(builtins))
)


def unique_name(hint: str, used: set[str]) -> str:
    """Return an identifier that is not used yet, and add it to those that are.

    >>> used = set()
    >>> unique_name("encoder/Layer.0", used), unique_name("encoder/Layer.0", used), unique_name("0", used)
    ('encoder_layer_0', 'encoder_layer_0_2', 'x_0')
    """
    base = (
        re.sub(r"\W+", "_", hint.encode("ascii", "ignore").decode()).strip("_").lower()[:64].rstrip("_")
        or "x"
    )
    if base[0].isdigit():
        base = f"x_{base}"
    if keyword.iskeyword(base) or base in _RESERVED:
        base += "_"
    name, number = base, 1
    while name in used:
        number += 1
        name = f"{base}_{number}"
    used.add(name)
    return name


_IMPORTED = {"Any", "F", "Path", "QuantScheme"}


def unique_kind(hint: str, used: set[str]) -> str:
    """Return a name of a class that is not used yet, nor imported by written Python, and add it.

    >>> used = set()
    >>> unique_kind("Layer", used), unique_kind("Layer", used), unique_kind("Path", used)
    ('Layer', 'Layer2', 'Path2')
    """
    name, number = hint, 1
    while name in used | _IMPORTED:
        number += 1
        name = f"{hint}{number}"
    used.add(name)
    return name
