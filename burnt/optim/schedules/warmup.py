"""Schedules with a warmup."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from burnt.optim.schedules.base import Schedule, ScheduleLike, check_counts, invalid


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
        factor: multiplies the rate.
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
        lr: the constant rate.
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
