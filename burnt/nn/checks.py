"""Checks of arguments and inputs that layers share, and why a layer did not accept its input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeVar

import torch
from torch import Tensor

from burnt.errors import BurntError, InputRuntimeError, InputTypeError, InputValueError, ShapeError
from burnt.inspect.layers import describe, find_mismatch

FAILURES = (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What torch, and `burnt.kernels`, raise for inputs that do not fit."""

_Forward = TypeVar("_Forward", bound=Callable[..., Tensor])


def require(
    holds: bool, where: str, name: str, expected: str, found: object, *, hint: str | None = None
) -> None:
    """Raise an InputValueError that names an argument of a layer, unless its value is valid."""
    if not holds:
        raise InputValueError(f"{name} is not valid", where=where, expected=expected, found=found, hint=hint)


def check_sizes(where: str, smallest: int = 1, **sizes: Any) -> None:
    """Raise a ShapeError unless the sizes that a layer is built with are integers of at least `smallest`."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < smallest:
            raise ShapeError(
                f"a layer cannot have this {name}",
                where=where,
                expected=f"{name}, an integer of at least {smallest}",
                found=repr(size),
            )


def check_dtype(where: str, name: str, x: Tensor, dtype: torch.dtype) -> None:
    """Raise an InputRuntimeError unless an input has the parameters' dtype, or one that autocast converts."""
    if x.dtype == dtype or (x.is_floating_point() and torch.float64 not in (x.dtype, dtype)):
        return
    raise InputRuntimeError(
        f"{name} has not the dtype of the parameters",
        where=where,
        expected=f"{name} of {dtype}",
        found=x.dtype,
        hint=f"{name}.float()" if dtype == torch.float32 else f"{name}.to({dtype})",
    )


def explain_input(forward: _Forward) -> _Forward:
    """Decorate a layer's `forward`, which leaves the check of shapes to torch: explain why it failed.

    The input is looked at after a failure, so that a call that fits costs nothing.
    """

    @functools.wraps(forward)
    def explained(self: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        try:
            return forward(self, input, *args, **kwargs)
        except FAILURES as error:
            if (better := input_error(self, input)) is None:
                raise
            raise better from error

    return explained  # type: ignore[return-value]


def input_error(layer: Any, input: object) -> BurntError | None:
    """Return the error for an input that a layer does not accept; None if the input is not the reason."""
    if not isinstance(input, Tensor):
        is_array = type(input).__module__.partition(".")[0] == "numpy"
        return InputTypeError(
            "the input is not a tensor",
            where=describe(layer),
            expected="a torch.Tensor",
            found=type(input).__name__,
            hint="torch.from_numpy(input)" if is_array else None,
        )
    mismatch = find_mismatch(layer, [input], {})
    if mismatch is None:
        return None
    kind: type[BurntError] = ShapeError if mismatch.dtype is None else InputRuntimeError
    hint = mismatch.hint
    if mismatch.dtype is not None:
        hint = f"input{hint}"
    elif hint is None and mismatch.instead is not None:
        hint = f"the input has {mismatch.size} {mismatch.unit}: {mismatch.instead}?"
    return kind(
        "the input does not fit" if mismatch.dtype is None else "the dtype of the input does not fit",
        where=describe(layer),
        expected=mismatch.expected,
        found=mismatch.found,
        hint=hint,
    )
