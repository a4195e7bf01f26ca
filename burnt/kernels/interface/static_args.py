"""Static arguments, neither tensors nor floats: they are constants of a traced function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


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
