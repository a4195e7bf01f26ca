"""Why a layer did not accept its input, for layers that leave the check of shapes to torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from burnt.errors import BurntError, InputRuntimeError, InputTypeError, ShapeError
from burnt.inspect.layers import describe, find_mismatch

FAILURES = (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What torch, and `burnt.kernels`, raise for inputs that do not fit."""


def input_error(layer: Any, input: object) -> BurntError | None:
    """Return the error for an input that a layer does not accept; None if the input is not the reason.

    Layers call it after a failure, so that a call that fits costs nothing.
    """
    if not isinstance(input, Tensor):
        is_array = type(input).__module__.partition(".")[0] == "numpy"
        return InputTypeError(
            "the input is no tensor",
            where=describe(layer),
            expected="a torch.Tensor",
            found=type(input).__name__,
            hint="torch.from_numpy(input)" if is_array else None,
        )
    problem = find_mismatch(layer, [input], {})
    if problem is None:
        return None
    hint = problem.hint
    if problem.dtype is not None:
        return InputRuntimeError(
            "the dtype of the input does not fit",
            where=describe(layer),
            expected=problem.expected,
            found=problem.found,
            hint=f"input{hint}",
        )
    if hint is None and problem.instead is not None:
        hint = f"the input has {problem.size} {problem.unit}: {problem.instead}?"
    return ShapeError(
        "the input does not fit",
        where=describe(layer),
        expected=problem.expected,
        found=problem.found,
        hint=hint,
    )
