"""Copy a third-party function with one global name bound to another value.

If decorators hold the function in their closures, it is found and replaced there.
"""

from __future__ import annotations

import contextlib
import dis
import types
from collections.abc import Iterator
from typing import Any

import torch

from burnt import _torch


@contextlib.contextmanager
def isolated_eval() -> Iterator[None]:
    """Context for probing third-party code with a few numbers: float32, CPU, no gradients, no autocast.

    Global module hooks are off. The result must not depend on the settings around a model's first call.
    """
    before = torch.get_default_dtype()
    alone = _torch.without_global_hooks()
    with alone, torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class _ReboundGlobals(dict[str, Any]):
    """A function's globals with one name rebound; all others are read from its module when they are used."""

    def __init__(self, module: dict[str, Any], name: str, value: Any) -> None:
        super().__init__({name: value, "__builtins__": module["__builtins__"]})
        self._module = module

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._module

    def __missing__(self, name: str) -> Any:
        return self._module[name]


def resolve_global(function: Any, name: str) -> Any:
    """Return the value of a global that a function uses; None if it does not use it, or is not Python code.

    Also None for functions that assign globals: in a copy, the assignments would not reach the module.
    """
    user = _find_user(function, name, set())
    return None if user is None else user.__globals__[name]


def _find_user(function: Any, name: str, seen: set[int]) -> types.FunctionType | None:
    """Return the function that uses a global: this one, or one in its closure."""
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return None
    seen.add(id(function))
    if name in function.__code__.co_names and name in function.__globals__:
        assigns = any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(function))
        return None if assigns else function
    return next(
        (f for _, held in _closure_functions(function) if (f := _find_user(held, name, seen)) is not None),
        None,
    )


def with_global(function: types.FunctionType, name: str, value: Any) -> types.FunctionType:
    """Copy a function with a global that it uses bound to `value`; nothing outside the copy changes."""
    names, cells = function.__globals__, list(function.__closure__ or ())
    if name in function.__code__.co_names and name in names:
        names = _ReboundGlobals(names, name, value)
    else:
        at, held = next(
            (i, f) for i, f in _closure_functions(function) if _find_user(f, name, {id(function)}) is not None
        )
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


def _closure_functions(function: types.FunctionType) -> Iterator[tuple[int, types.FunctionType]]:
    """Yield the functions in a function's closure, with the index of their cell."""
    for i, cell in enumerate(function.__closure__ or ()):
        try:
            held = cell.cell_contents
        except ValueError:  # empty: it is assigned later
            continue
        if isinstance(held, types.FunctionType):
            yield i, held
