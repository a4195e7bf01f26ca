"""Schedules that only fall: linear, cosine, exponential, in steps, by a power."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right

from burnt.optim.schedules.base import Schedule, check_rates, invalid


class Linear(Schedule, kw_only=False):
    """Linear change from one rate to another, which then stays constant.

    Args:
        start: the first rate.
        end: the rate from `steps` on.
        steps: the number of steps of the change.

    Burn's LinearLrScheduler; torch's LinearLR takes factors of the optimizer's rate.

    >>> schedule = Linear(1.0, 0.0, steps=4)
    >>> [schedule(step) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    _rates = ("start", "end")
    _counts = ("steps",)

    def __call__(self, step: int) -> float:
        """Return `start` at 0, `end` from `steps` on."""
        fraction = min(step / self.steps, 1.0)
        return self.start * (1 - fraction) + self.end * fraction


class Cosine(Schedule, kw_only=False):
    """Cosine decay from one rate to another, which then stays constant.

    Args:
        lr: the first rate.
        steps: the number of steps of the decay.
        end: the rate from `steps` on; it stays there (Burn's and torch's rise again).

    Loshchilov and Hutter, 2017, without restarts: see `CosineRestarts`.

    >>> schedule = Cosine(1.0, steps=4)
    >>> [round(schedule(step), 4) for step in range(6)]
    [1.0, 0.8536, 0.5, 0.1464, 0.0, 0.0]
    """

    lr: float
    steps: int
    end: float = 0.0

    _rates = ("lr", "end")
    _counts = ("steps",)

    def __call__(self, step: int) -> float:
        """Return `lr` at 0, `end` from `steps` on."""
        fraction = min(step / self.steps, 1.0)
        return self.end + (self.lr - self.end) * (1 + math.cos(math.pi * fraction)) / 2


class Polynomial(Schedule, kw_only=False):
    """Decay by a power of the remaining fraction of the steps, to a rate that then stays constant.

    ``end + (lr - end) * (1 - step / steps) ** power``

    Args:
        lr: the first rate.
        steps: the number of steps of the decay.
        power: 1 is linear; above 1, the rate falls faster at first.
        end: the rate from `steps` on; torch's is 0.

    >>> schedule = Polynomial(1.0, steps=4, power=2.0)
    >>> [schedule(step) for step in range(6)]
    [1.0, 0.5625, 0.25, 0.0625, 0.0, 0.0]
    """

    lr: float
    steps: int
    power: float = 1.0
    end: float = 0.0

    _rates = ("lr", "end")
    _counts = ("steps",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self, "power", above_zero=True, what="power")

    def __call__(self, step: int) -> float:
        """Return `lr` at 0, `end` from `steps` on."""
        remaining = max(1 - step / self.steps, 0.0)
        return self.end + (self.lr - self.end) * math.pow(remaining, self.power)


class Exponential(Schedule, kw_only=False):
    """The rate is multiplied by the same factor at every step: ``lr * gamma ** step``.

    Args:
        lr: the first rate.
        gamma: the factor.

    >>> schedule = Exponential(1.0, gamma=0.5)
    >>> [schedule(step) for step in range(4)]
    [1.0, 0.5, 0.25, 0.125]
    """

    lr: float
    gamma: float

    _rates = ("lr",)
    _factors = ("gamma",)

    def __call__(self, step: int) -> float:
        """Return the rate."""
        return self.lr * self.gamma**step


class Step(Schedule, kw_only=False):
    """The rate is multiplied by a factor every so many steps.

    Args:
        lr: the first rate.
        every: the number of steps between two changes (`step_size` in torch and Burn).
        gamma: the factor.

    >>> schedule = Step(1.0, every=2, gamma=0.5)
    >>> [schedule(step) for step in range(6)]
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    lr: float
    every: int
    gamma: float = 0.1

    _rates = ("lr",)
    _counts = ("every",)
    _factors = ("gamma",)

    def __call__(self, step: int) -> float:
        """Return the rate."""
        return self.lr * self.gamma ** (step // self.every)


class MultiStep(Schedule, kw_only=False):
    """The rate is multiplied by a factor at given steps.

    Args:
        lr: the first rate.
        milestones: the steps at which it changes, in ascending order.
        gamma: the factor.

    >>> schedule = MultiStep(1.0, milestones=(2, 3), gamma=0.5)
    >>> [schedule(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.25, 0.25]
    """

    lr: float
    milestones: tuple[int, ...]
    gamma: float = 0.1

    _rates = ("lr",)
    _factors = ("gamma",)

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = (0, *self.milestones)
        if len(steps) == 1 or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
            raise invalid(self, "milestones", "steps in ascending order, from 1", self.milestones)

    def __call__(self, step: int) -> float:
        """Return the rate."""
        return self.lr * self.gamma ** bisect_right(self.milestones, step)


class InverseSqrt(Schedule, kw_only=False):
    """Decay with the inverse square root of the steps: ``lr * sqrt(timescale / (timescale + step))``.

    Args:
        lr: the first rate.
        timescale: the number of steps after which the rate is ``lr / sqrt(2)``. After a warmup of as many
            steps, ``Warmup(n, InverseSqrt(lr, n))``, it is that of fairseq and T5.

    It needs no number of steps, so a training can be continued at will. Raffel et al., 2020.

    >>> schedule = InverseSqrt(1.0, timescale=4)
    >>> [round(schedule(step), 4) for step in (0, 4, 12, 60)]
    [1.0, 0.7071, 0.5, 0.25]
    """

    lr: float
    timescale: int

    _rates = ("lr",)
    _counts = ("timescale",)

    def __call__(self, step: int) -> float:
        """Return the rate."""
        return self.lr * math.sqrt(self.timescale / (self.timescale + step))
