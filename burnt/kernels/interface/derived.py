"""Tensors derived from others, such as packed weights, cached until their sources change or are freed."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from torch.utils.weak import WeakIdKeyDictionary

T = TypeVar("T")
_entries: MutableMapping[Any, dict[str, tuple[object, Any, object]]] = WeakIdKeyDictionary()


def derive(source: Any, name: str, state: object, compute: Callable[[], T], keep_alive: object = None) -> T:
    """Return what `compute` returns, cached for a tensor or module until `state` differs.

    `state` names tensors by their addresses (`burnt._torch.state_of`). Those besides the source are passed as
    `keep_alive`: otherwise another tensor might get the address of a freed one, and match.
    """
    entries = _entries.get(source)
    if entries is None:
        entries = _entries[source] = {}
    entry = entries.get(name)
    if entry is None or entry[0] != state:
        entry = entries[name] = state, compute(), keep_alive
    result: T = entry[1]
    return result
