"""`Kind`: which modules are recognised, and what replaces their method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

KINDS: dict[str, Kind] = {}
"""Every kind by name, in the order in which they are matched against a module."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of module that can be swapped, and its replacement. Constructing one registers it in `KINDS`.

    Args:
        name: the name that `only` and `skip` of `swap` accept.
        by: the kernel that is called instead, for the report.
        matches: whether a module is of this kind, by its class or its structure.
        forward: takes the original class, returns the replacement of its method.
        fallback_reason: why a module of this kind cannot be swapped, or None.
        method: the name of the method that is overridden.
        random: results differ from call to call, so they are not compared.
        random_in_training: results are random only in training mode; they are compared in evaluation mode.
        select_output: selects what to compare from the value that a call returns.
        is_measured: whether a site is measured; without, it is swapped whatever its speed.
        has_float64: given float64, the original computes in float64, so that it can serve as the reference.
        training_only: a gain is possible only in training.
        inference_only: a gain is possible only without gradients.
        absorbed: the submodules that are no longer called, with their paths relative to the module.
        call_fallback_reason: why a given call must use the original method, or None.
    """

    name: str
    by: str
    matches: Callable[[nn.Module], bool]
    forward: Callable[[type], Callable[..., Any]]
    fallback_reason: Callable[[nn.Module], str | None] = lambda module: None
    method: str = "forward"
    random: bool = False
    random_in_training: bool = False
    select_output: Callable[[Any], Any] = lambda output: output
    is_measured: bool = True
    has_float64: bool = True
    training_only: bool = False
    inference_only: bool = False
    absorbed: Callable[[nn.Module], Iterable[tuple[str, nn.Module]]] = lambda module: ()
    call_fallback_reason: Callable[..., str | None] | None = None

    @property
    def uses_parameters(self) -> bool:
        """Whether a call uses the parameters of the module and of its submodules."""
        return self.method == "forward"

    def __post_init__(self) -> None:
        KINDS[self.name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _kind_by_name, (self.name,)


def _kind_by_name(name: str) -> Kind:
    """Return the kind with a name, for `copy` and `pickle`."""
    return KINDS[name]


def is_lazy(module: nn.Module) -> bool:
    """Whether a module does not know its parameters' shapes yet."""
    return any(isinstance(p, nn.UninitializedParameter) for p in module._parameters.values())


def is_swapped(module: nn.Module) -> bool:
    """Whether a module has a class that `swap` created."""
    return "_burnt_original" in vars(type(module))


def original_class(module: nn.Module) -> Any:
    """Return the class that a module had before `swap`; its class if it is not swapped."""
    return vars(type(module)).get("_burnt_original", type(module))
