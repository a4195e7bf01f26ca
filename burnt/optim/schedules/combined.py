"""Schedules made of others: one after another, sums, products, means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from burnt.optim.schedules.base import (
    Schedule,
    ScheduleLike,
    check_function,
    check_rates,
    invalid,
    stable_text,
)


class Sequential(Schedule, kw_only=False):
    """One schedule after another, each from its own step 0.

    Args:
        parts: pairs of a schedule (or a number, or a function) and its number of steps; the last one never
            ends.

    >>> from burnt.optim import Constant, Linear
    >>> schedule = Sequential(((Constant(1.0), 2), (Linear(0.5, 0.0, steps=2), 2)))
    >>> [schedule(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.25, 0.0]
    """

    parts: tuple[tuple[Schedule, int], ...]

    if TYPE_CHECKING:

        def __init__(self, parts: Sequence[tuple[ScheduleLike, int]]) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts or any(steps < 1 for _, steps in self.parts):
            raise invalid(self, "parts", "at least one, each of at least 1 step", self.parts)

    def __call__(self, step: int) -> float:
        """Return the rate of the part that contains `step`."""
        for schedule, steps in self.parts[:-1]:
            if step < steps:
                return schedule(step)
            step -= steps
        return self.parts[-1][0](step)


class _Combined(Schedule, open=True, kw_only=False):
    parts: tuple[Schedule, ...]

    if TYPE_CHECKING:

        def __init__(self, parts: Sequence[ScheduleLike]) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts:
            raise invalid(self, "parts", "at least one schedule", self.parts)


class Sum(_Combined, kw_only=False):
    """The sum of several `parts`: schedules, numbers or functions.

    >>> from burnt.optim import Linear
    >>> Sum((Linear(1.0, 0.0, steps=4), 0.5))(3)
    0.75
    """

    def __call__(self, step: int) -> float:
        """Return the sum."""
        return sum(part(step) for part in self.parts)


class Product(_Combined, kw_only=False):
    """The product of several `parts` (as for `Sum`), such as a rate and a factor that changes.

    ``Product((lr, function))`` is torch's LambdaLR, and a product of one rate and factors its
    ChainedScheduler.

    >>> schedule = Product((0.5, lambda step: 0.5**step))
    >>> [schedule(step) for step in range(4)]
    [0.5, 0.25, 0.125, 0.0625]
    """

    def __call__(self, step: int) -> float:
        """Return the product."""
        return math.prod(part(step) for part in self.parts)


class Mean(_Combined, kw_only=False):
    """The mean of several `parts`; `Sum`, `Product` and `Mean` are Burn's ComposedLrScheduler.

    >>> from burnt.optim import Linear
    >>> Mean((Linear(1.0, 0.0, steps=4), 0.5))(4)
    0.25
    """

    def __call__(self, step: int) -> float:
        """Return the mean."""
        return sum(part(step) for part in self.parts) / len(self.parts)


class Multiplicative(Schedule, kw_only=False, dict=True):
    """The rate before, times the value of a function: torch's MultiplicativeLR.

    ``lr * function(1) * function(2) * ... * function(step)``. It cannot be saved as JSON.

    Args:
        lr: the first rate.
        function: finished steps, from 1 -> factor.

    >>> schedule = Multiplicative(1.0, lambda step: 0.5 if step % 2 else 1.0)
    >>> [schedule(step) for step in range(5)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """

    lr: float
    function: Callable[[int], float]

    def __post_init__(self) -> None:
        check_function(self, self.function)
        super().__post_init__()
        check_rates(self, "lr")
        self.__dict__["rates"] = [self.lr]  # by step: computed once

    def __call__(self, step: int) -> float:
        """Return the rate; the first call computes those of all steps before."""
        rates: list[float] = self.__dict__["rates"]
        while len(rates) <= step:
            rates.append(rates[-1] * self.function(len(rates)))
        return rates[step]

    def __repr__(self) -> str:
        return f"Multiplicative(lr={self.lr}, function={stable_text(self.function)})"
