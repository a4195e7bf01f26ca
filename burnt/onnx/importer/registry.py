"""Handlers: how nodes of an op become statements, by domain, op and the version of the operator set."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[Any, Any], Any]
"""Takes the build and a node, and returns the expression of each output: one, or a tuple."""

_HANDLERS: dict[tuple[str, str], dict[int, Handler]] = {}


def handler(*ops: str, since: int = 1, domain: str = "") -> Callable[[Handler], Handler]:
    """Register a function for nodes of some ops: a decorator.

    The function takes the build and the node, adds statements to the program, and returns the expression of
    each output of the node: one, or a tuple. It serves the versions of the operator set from `since` until
    the next registered one.
    """

    def register(function: Handler) -> Handler:
        for op in ops:
            by_version = _HANDLERS.setdefault((domain, op), {})
            if since in by_version:
                raise ValueError(f"two handlers of {op} (domain {domain or 'ai.onnx'}) since version {since}")
            by_version[since] = function
        return function

    return register


def find_handler(domain: str, op: str, version: int) -> Handler | None:
    """Return the newest handler at or below a version of the operator set, or None."""
    by_version = _HANDLERS.get(("" if domain == "ai.onnx" else domain, op), {})
    versions = sorted(by_version)
    position = bisect.bisect_right(versions, version)
    return by_version[versions[position - 1]] if position else None


def supported_ops() -> dict[tuple[str, str], list[int]]:
    """Return the ops that have handlers, by domain and name, with the first version of each handler."""
    return {key: sorted(versions) for key, versions in sorted(_HANDLERS.items())}
