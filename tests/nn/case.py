"""A layer to test: its arguments, torch's twin, inputs that fit, and an input that does not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import Module, nn

# But Sequential, whose arguments are layers (tests/nn/test_container.py), and lazy layers (test_lazy.py).
LAYERS = [
    name
    for name in nn.__all__
    if isinstance(getattr(nn, name), type)
    and issubclass(getattr(nn, name), Module)
    and name != "Sequential"
    and not name.startswith("Lazy")
]


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer by its class and arguments, torch's twin, and inputs for a batch size."""

    name: str
    arguments: dict[str, Any]
    twin: str | Callable[[], torch.nn.Module] | None
    """The name of torch's class with the same arguments, or what builds the twin."""
    inputs: Callable[[int], tuple[Tensor, ...]]
    label: str = ""
    loose: float = 0.0
    """By how much it may be another value in 16 bits, where torch's rounds at each step."""
    misfit: tuple[tuple[Tensor, ...], str] | None = None
    """Inputs that do not fit, and what the ShapeError of `burnt.check` says of them."""
    check_with_values: bool = False
    """Whether the forward needs the inputs' values, so that `burnt.check` cannot follow it."""

    def __str__(self) -> str:
        return self.name + self.label

    def build(self, **placed: Any) -> Any:
        return getattr(nn, self.name)(**self.arguments, **placed)

    def build_twin(self) -> torch.nn.Module:
        assert self.twin is not None
        if isinstance(self.twin, str):
            twin: torch.nn.Module = getattr(torch.nn, self.twin)(**self.arguments)
            return twin
        return self.twin()

    @property
    def has_parameters(self) -> bool:
        return any(True for _ in self.build().parameters())


def images(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, 7, 9),)


def sequences(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, 11),)


def volumes(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, 5, 6, 7),)


def vectors(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 5, 12),)


def ids(batch: int) -> tuple[Tensor, ...]:
    return (torch.randint(11, (batch, 3)),)


def pairs(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3), torch.randn(batch, 3)


def labelled(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 6), torch.randint(6, (batch,))


def record_calls(monkeypatch: pytest.MonkeyPatch, op: Any) -> list[tuple[Any, ...]]:
    """Return a list to which each call of an op by its candidates adds its arguments."""
    known: list[tuple[Any, ...]] = []
    call = type(op).__call__

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is op:
            known.append(args)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(type(op), "__call__", recorded)
    return known
