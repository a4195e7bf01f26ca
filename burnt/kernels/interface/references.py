"""References as functions to trace: with arguments filled in, and their vector-Jacobian products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class StaticArg(NamedTuple):
    """Wraps an argument that is neither a tensor nor a float."""

    value: Any


class PartialReference:
    """A reference as a function of its tensors and floats only.

    `arguments` has a `StaticArg` for each argument that is filled in, anything else for one that is passed.
    """

    __slots__ = ("__name__", "arguments", "reference")

    def __init__(self, reference: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.reference, self.arguments = reference, tuple(arguments)
        self.__name__ = reference.__name__

    def __call__(self, *dynamic_args: Any) -> Any:
        """Call the reference."""
        remaining = iter(dynamic_args)
        return self.reference(*[a.value if type(a) is StaticArg else next(remaining) for a in self.arguments])


class Vjp:
    """The vector-Jacobian product of `fn`: maps ``(*grad_outs, *args)`` to the gradients that are needed.

    The first `num_grad_outs` arguments are gradients of results; those of integers and booleans are ignored.
    """

    __slots__ = ("__name__", "fn", "needs_grad", "num_grad_outs")

    def __init__(self, fn: Callable[..., Any], num_grad_outs: int, needs_grad: Sequence[bool]) -> None:
        self.fn, self.num_grad_outs, self.needs_grad = fn, num_grad_outs, tuple(needs_grad)
        self.__name__ = f"{fn.__name__}_backward"

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Return the gradients of the arguments that need one."""
        grad_outs, args = inputs[: self.num_grad_outs], inputs[self.num_grad_outs :]
        floating = [g for g in grad_outs if g.is_floating_point()]

        def floating_results(*differentiated: Tensor) -> tuple[Tensor, ...]:
            remaining = iter(differentiated)
            returned = self.fn(
                *[next(remaining) if n else a for a, n in zip(args, self.needs_grad, strict=True)]
            )
            results = returned if isinstance(returned, tuple) else (returned,)
            return tuple(r for r in results if r.is_floating_point())

        primals = [a for a, n in zip(args, self.needs_grad, strict=True) if n]
        return tuple(torch.func.vjp(floating_results, *primals)[1](tuple(floating)))
