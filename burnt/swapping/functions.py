"""Functions that are others' own, for which one of their module's names stands for something else.

Where decorators hold a function in their closures, it is looked for, and exchanged, there.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

__all__ = ["names_of", "with_global"]


def names_of(function: Any, name: str) -> Any:
    """What a function finds under a global name that it uses; None where it uses none, or has no code."""
    if not isinstance(function, types.FunctionType):
        return None
    if name in function.__code__.co_names and name in function.__globals__:
        return function.__globals__[name]
    return next((found for _, f in _held(function) if (found := names_of(f, name)) is not None), None)


def with_global(function: types.FunctionType, name: str, value: Any) -> types.FunctionType:
    """The same function, for which a global that it uses is another; nothing outside of it changes."""
    names, cells = function.__globals__, list(function.__closure__ or ())
    if name in function.__code__.co_names and name in names:
        names = {**names, name: value}
    else:
        at, held = next((i, f) for i, f in _held(function) if names_of(f, name) is not None)
        cells[at] = types.CellType(with_global(held, name, value))
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, tuple(cells) or None
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    made.__wrapped__ = function  # type: ignore[attr-defined]
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    return made


def _held(function: types.FunctionType) -> Iterator[tuple[int, types.FunctionType]]:
    """The functions in a function's closure, with their places there."""
    for i, cell in enumerate(function.__closure__ or ()):
        try:
            held = cell.cell_contents
        except ValueError:  # empty: it is assigned later
            continue
        if isinstance(held, types.FunctionType) and held is not function:
            yield i, held
