"""The derivative of a reference, as a function of tensors that can be traced and run like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Vjp"]


class Vjp:
    """The vector-Jacobian product of a function: of cotangents and its arguments, the gradients.

    Args:
        fn: a function of tensors and numbers.
        cotangents: how many of its results have a gradient; the others are integers or booleans.
        wanted: for each argument, whether its gradient is.
    """

    __slots__ = ("__name__", "cotangents", "fn", "wanted")

    def __init__(self, fn: Callable[..., Any], cotangents: int, wanted: Sequence[bool]) -> None:
        self.fn, self.cotangents, self.wanted = fn, cotangents, tuple(wanted)
        self.__name__ = f"{fn.__name__}_backward"

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        """The wanted gradients."""
        cotangents, args = given[: self.cotangents], given[self.cotangents :]
        floating = [c for c in cotangents if c.is_floating_point()]

        def of_wanted(*some: Tensor) -> tuple[Tensor, ...]:
            replaced = iter(some)
            made = self.fn(*[next(replaced) if w else a for a, w in zip(args, self.wanted, strict=True)])
            results = made if isinstance(made, tuple) else (made,)
            return tuple(r for r in results if r.is_floating_point())

        chosen = [a for a, w in zip(args, self.wanted, strict=True) if w]
        return tuple(torch.func.vjp(of_wanted, *chosen)[1](tuple(floating)))
