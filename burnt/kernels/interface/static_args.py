"""Arguments that are neither tensors nor floats: they are constants of a traced function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class StaticArg(NamedTuple):
    """Stands in the arguments for what is no tensor and no float."""

    value: Any


class PartialReference:
    """A reference of its tensors and floats alone, the other arguments filled in."""

    __slots__ = ("__name__", "arguments", "reference")

    def __init__(self, reference: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.reference, self.arguments = reference, tuple(arguments)
        self.__name__ = reference.__name__

    def __call__(self, *given: Any) -> Any:
        """Call the reference."""
        left = iter(given)
        return self.reference(*[a.value if type(a) is StaticArg else next(left) for a in self.arguments])
