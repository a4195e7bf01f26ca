"""Functions that are others' own, for which one of their module's names stands for something else."""

from __future__ import annotations

import functools
import types
from typing import Any

__all__ = ["names_of", "with_global"]


def with_global(function: types.FunctionType, name: str, value: Any) -> types.FunctionType:
    """The same function, for which one global is another; nothing outside of it changes."""
    names = {**function.__globals__, name: value}
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)
    return made


def names_of(function: Any, name: str) -> Any:
    """What a function finds under a global name that it uses; None where it uses none, or has no code."""
    if not isinstance(function, types.FunctionType) or name not in function.__code__.co_names:
        return None
    return function.__globals__.get(name)
