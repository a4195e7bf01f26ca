"""Functions that are others' own, for which one of their module's names stands for something else.

Where decorators hold a function in their closures, it is looked for, and exchanged, there.
"""

from __future__ import annotations

import contextlib
import dis
import types
from collections.abc import Iterator
from typing import Any

import torch

from burnt import _torch

__all__ = ["isolated_eval", "names_of", "with_global"]


@contextlib.contextmanager
def isolated_eval() -> Iterator[None]:
    """A context to try somebody's code on a few numbers in: float32 on the CPU, no gradients, no autocast.

    Nobody is told of its calls.

    What is on around a model's first call is no property of its code.
    """
    before = torch.get_default_dtype()
    alone = _torch.without_global_hooks()
    with alone, torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class _Names(dict[str, Any]):
    """A function's globals: one name of its own, all others as they are in its module at the time."""

    def __init__(self, module: dict[str, Any], name: str, value: Any) -> None:
        super().__init__({name: value, "__builtins__": module["__builtins__"]})
        self._module = module

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._module

    def __missing__(self, name: str) -> Any:
        return self._module[name]


def names_of(function: Any, name: str) -> Any:
    """What a function finds under a global name that it uses; None where it uses none, or has no code.

    Functions that assign globals are left alone: they would not reach their module.
    """
    found = _holder(function, name, set())
    return None if found is None else found.__globals__[name]


def _holder(function: Any, name: str, seen: set[int]) -> types.FunctionType | None:
    """The function, this one or one in its closure, that uses a global."""
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return None
    seen.add(id(function))
    if name in function.__code__.co_names and name in function.__globals__:
        assigns = any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(function))
        return None if assigns else function
    return next((f for _, held in _held(function) if (f := _holder(held, name, seen)) is not None), None)


def with_global(function: types.FunctionType, name: str, value: Any) -> types.FunctionType:
    """The same function, for which a global that it uses is another; nothing outside of it changes."""
    names, cells = function.__globals__, list(function.__closure__ or ())
    if name in function.__code__.co_names and name in names:
        names = _Names(names, name, value)
    else:
        at, held = next((i, f) for i, f in _held(function) if _holder(f, name, {id(function)}) is not None)
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
        if isinstance(held, types.FunctionType):
            yield i, held
