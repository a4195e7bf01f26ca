"""A kind: what is swapped with what, and for which modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["KINDS", "Kind", "is_swapped", "original_class"]


KINDS: dict[str, Kind] = {}
"""Every kind by name, in the order in which a module is asked whether it is of it."""


@dataclass(frozen=True, eq=False)
class Kind:
    """What is swapped with what.

    Args:
        name: what `swap` is told in `only` and `skip`.
        by: what is called instead, for the report.
        matches: whether a module is of this kind, by its class or its structure.
        forward: of a class, what its method becomes.
        why_not: of a module of this kind, why it cannot be swapped, or None.
        method: what is overridden.
        random: results differ from call to call.
        draws: they do so while training, and in evaluation there is nothing random: that is compared.
        part: of what a call returns, what is compared.
        makes: what its method makes at each call, as a kind of its own: that is measured, not the method.
        wide: in float64 the original computes in float64.
        training: there is something to be gained only while training.
        inference: there is something to be gained only without.
        inside: the modules below it that are no longer called, with their paths in it.
        why_not_call: of a call, why it is the original's, or None.
    """

    name: str
    by: str
    matches: Callable[[nn.Module], bool]
    forward: Callable[[type], Callable[..., Any]]
    why_not: Callable[[nn.Module], str | None] = lambda module: None
    method: str = "forward"
    random: bool = False
    draws: bool = False
    part: Callable[[Any], Any] = lambda made: made
    makes: str | None = None
    wide: bool = True
    training: bool = False
    inference: bool = False
    inside: Callable[[nn.Module], Iterable[tuple[str, nn.Module]]] = lambda module: ()
    why_not_call: Callable[..., str | None] | None = None

    @property
    def deep(self) -> bool:
        """Whether a call goes through the module's parameters, and those of modules below it."""
        return self.method == "forward"

    def __post_init__(self) -> None:
        KINDS[self.name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)


def _named(name: str) -> Kind:
    """A kind, for `copy` and `pickle`."""
    return KINDS[name]


def is_swapped(module: nn.Module) -> bool:
    """Whether a module has one of the classes made here."""
    return "_burnt_original" in vars(type(module))


def original_class(module: nn.Module) -> Any:
    """The class that a module had before."""
    return vars(type(module)).get("_burnt_original", type(module))
