"""Schedules made of others, one after another, sums, products, means; with a warmup; from torch's."""

from __future__ import annotations

import array
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from burnt.errors import ConfigError, OptimError
from burnt.optim.schedules.base import (
    Schedule,
    ScheduleLike,
    check_counts,
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
        """Return the rate; the first call computes the rates of all steps before."""
        rates: list[float] = self.__dict__["rates"]
        while len(rates) <= step:
            rates.append(rates[-1] * self.function(len(rates)))
        return rates[step]

    def __repr__(self) -> str:
        return f"Multiplicative(lr={self.lr}, function={stable_text(self.function)})"


class Warmup(Schedule, kw_only=False):
    """Linear warmup to the first rate of another schedule, which follows.

    Args:
        steps: the number of warmup steps; step i is at ``(i + 1) / steps`` of the way, so the first
            step's rate is already above `start`.
        then: what follows, from its own step 0: a schedule, a number, or a function of the steps.
        start: the rate from which the warmup starts.

    >>> schedule = Warmup(4, 1.0)
    >>> [schedule(step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    steps: int
    then: Schedule
    start: float = 0.0

    if TYPE_CHECKING:

        def __init__(self, steps: int, then: ScheduleLike, start: float = 0.0) -> None: ...

    _rates = ("start",)
    _counts = ("steps",)

    def __call__(self, step: int) -> float:
        """Return the rate of the warmup, or of the schedule that follows."""
        if step >= self.steps:
            return self.then(step - self.steps)
        return self.start + (self.then(0) - self.start) * (step + 1) / self.steps


class Noam(Schedule, kw_only=False):
    """The schedule of the first transformer: linear warmup, then decay with the inverse square root.

    ``factor * model_size ** -0.5 * min(n ** -0.5, n * warmup_steps ** -1.5)`` for the n-th step, from 1.

    Args:
        factor: a number that multiplies the rate.
        warmup_steps: the number of steps in which the rate rises.
        model_size: the width of the model.

    Vaswani et al., 2017; Burn's NoamLrScheduler.

    >>> schedule = Noam(1.0, warmup_steps=4, model_size=16)
    >>> [round(schedule(step), 4) for step in (0, 1, 3, 15)]
    [0.0312, 0.0625, 0.125, 0.0625]
    """

    factor: float
    warmup_steps: int = 4000
    model_size: int = 512

    _factors = ("factor",)
    _counts = ("warmup_steps", "model_size")

    def __call__(self, step: int) -> float:
        """Return the rate."""
        n = step + 1
        rise, fall = n * math.pow(self.warmup_steps, -1.5), 1 / math.sqrt(n)
        return self.factor / math.sqrt(self.model_size) * min(rise, fall)


class WarmupStableDecay(Schedule, kw_only=False):
    """Linear warmup, a constant rate, and a decay in the last steps (WSD).

    The constant part can be continued at will: a decay from any of its checkpoints gives a finished model.

    Args:
        lr: the rate between warmup and decay.
        steps: the number of steps of the training, warmup and decay included.
        warmup: the number of warmup steps, as in `Warmup`.
        decay: the number of steps of the decay.
        end: the rate after the decay.
        shape: ``"linear"``, ``"cosine"`` or ``"sqrt"``: one minus the square root of the fraction.

    Hu et al., 2024; ``"sqrt"``: Haegele et al., 2024.

    >>> schedule = WarmupStableDecay(1.0, steps=10, warmup=2, decay=4)
    >>> [schedule(step) for step in range(12)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    lr: float
    steps: int
    warmup: int
    decay: int
    end: float = 0.0
    shape: Literal["linear", "cosine", "sqrt"] = "linear"

    _rates = ("lr", "end")
    _counts = ("steps",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "warmup", "decay", least=0)
        if self.warmup + self.decay > self.steps:
            raise invalid(self, "decay", f"warmup and decay within {self.steps} steps", self.decay)

    def __call__(self, step: int) -> float:
        """Return the rate."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        begin = self.steps - self.decay
        if step < begin:
            return self.lr
        fraction = min((step - begin) / self.decay, 1.0) if self.decay else 1.0
        match self.shape:
            case "linear":
                remaining = 1 - fraction
            case "cosine":
                remaining = (1 + math.cos(math.pi * fraction)) / 2
            case "sqrt":
                remaining = 1 - math.sqrt(fraction)
        return self.end + (self.lr - self.end) * remaining


class TorchSchedule(Schedule, kw_only=False, dict=True):
    """Any scheduler of torch, or of a library that derives from torch's, as a function of the step.

    A scheduler of its own is stepped on an optimizer without parameters of the model; the rates are kept, so
    that a resumed training gets the same as an uninterrupted one. The first rate of a training resumed at
    step n takes n steps of the scheduler. Only the rate is taken over, not a momentum that the scheduler
    cycles. It cannot be saved as JSON.

    Args:
        make: makes the scheduler of a `torch.optim.Optimizer` with one parameter group.
        lr: the initial rate of that optimizer.

    Raises:
        ConfigError: `make` returns no scheduler of the optimizer it is given, or ReduceLROnPlateau, which
            needs a metric: `burnt.train.Plateau` is burnt's.

    >>> from torch.optim.lr_scheduler import StepLR
    >>> schedule = TorchSchedule(lambda optimizer: StepLR(optimizer, 2, gamma=0.5), lr=1.0)
    >>> [schedule(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    make: Callable[[torch.optim.Optimizer], LRScheduler]
    lr: float

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise invalid(self, "make", "a function of a torch.optim.Optimizer", self.make)
        super().__post_init__()
        check_rates(self, "lr")
        # Schedulers that cycle the momentum need an optimizer with one.
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=self.lr, momentum=0.9)
        try:
            scheduler = self.make(optimizer)
        except (ValueError, TypeError) as error:
            raise ConfigError("TorchSchedule cannot be built", where="make", found=str(error)) from error
        if isinstance(scheduler, ReduceLROnPlateau):
            raise invalid(
                self, "make", "a scheduler that needs only the step", scheduler,
                hint="burnt.train.Plateau(1e-3, metric=...) reduces the rate when a metric stalls",
            )  # fmt: skip
        if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not optimizer:
            raise invalid(self, "make", "a scheduler of the optimizer that it is given", scheduler)
        self.__dict__.update(scheduler=scheduler, rates=array.array("d", [_rate(optimizer)]))

    def __call__(self, step: int) -> float:
        """Return the scheduler's rate.

        Raises:
            OptimError: the scheduler has no rate for this step.
        """
        scheduler: LRScheduler = self.__dict__["scheduler"]
        rates: array.array[float] = self.__dict__["rates"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's SequentialLR calls what torch itself deprecates
            while len(rates) <= step:
                scheduler.optimizer.step()
                try:
                    scheduler.step()
                except ValueError as error:
                    raise OptimError(
                        f"{type(scheduler).__name__} has no learning rate for step {len(rates)}",
                        found=str(error),
                        hint="give it as many steps as the training has",
                    ) from error
                rates.append(_rate(scheduler.optimizer))
        return rates[step]

    def __repr__(self) -> str:
        return f"TorchSchedule({stable_text(self.make)}, lr={self.lr})"


def _rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])
