"""Schedules that only fall (linear, cosine, exponential, in steps, by a power), and those in cycles."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from typing import Literal

from burnt.optim.schedules.base import Schedule, check_counts, check_rates, invalid


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
        gamma: the factor of the rate after each step.

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
        gamma: the factor of each change.

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
        gamma: the factor of each change.

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
            steps, ``Warmup(n, InverseSqrt(lr, n))``, it is the schedule of fairseq and T5.

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


class CosineRestarts(Schedule, kw_only=False):
    """Cosine decay that starts again at the first rate after each cycle.

    Args:
        lr: the first rate of each cycle.
        steps: the number of steps of the first cycle.
        multiplier: each cycle has this times the steps of the one before.
        end: the rate towards which each cycle falls.

    Loshchilov and Hutter, 2017; torch's CosineAnnealingWarmRestarts.

    >>> schedule = CosineRestarts(1.0, steps=2, multiplier=2)
    >>> [round(schedule(step), 4) for step in range(8)]
    [1.0, 0.5, 1.0, 0.8536, 0.5, 0.1464, 1.0, 0.9619]
    """

    lr: float
    steps: int
    multiplier: int = 1
    end: float = 0.0

    _rates = ("lr", "end")
    _counts = ("steps", "multiplier")

    def __call__(self, step: int) -> float:
        """Return the rate."""
        length = self.steps
        if self.multiplier == 1:
            step %= length
        while step >= length:
            step -= length
            length *= self.multiplier
        return self.end + (self.lr - self.end) * (1 + math.cos(math.pi * step / length)) / 2


class OneCycle(Schedule, kw_only=False):
    """One rise to a high rate and one fall to far below the first one, over the whole training.

    Args:
        lr: the highest rate (`max_lr` in torch).
        steps: the number of steps of the training; from the last one on, the rate stays.
        pct_start: the fraction of the steps in which the rate rises.
        anneal_strategy: ``"cos"`` or ``"linear"``: the shape of rise and fall.
        div_factor: the first rate is ``lr / div_factor``.
        final_div_factor: the last rate is the first one divided by this.
        three_phase: fall to the first rate in as many steps as it rose, and only then to the last.

    Smith and Topin, 2017; torch's OneCycleLR, with its defaults, which does not follow the paper: that is
    ``three_phase=True``. Only the rate changes: torch also cycles the momentum of the optimizer, which in
    burnt is fixed.

    >>> schedule = OneCycle(1.0, steps=11, pct_start=0.2, anneal_strategy="linear", div_factor=4.0)
    >>> [round(schedule(step), 3) for step in (0, 1, 2, 6, 10, 99)]
    [0.25, 0.875, 0.909, 0.455, 0.0, 0.0]
    """

    lr: float
    steps: int
    pct_start: float = 0.3
    anneal_strategy: Literal["cos", "linear"] = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    _rates = ("lr",)
    _counts = ("steps",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self, "div_factor", "final_div_factor", above_zero=True, what="number")
        most = 0.5 if self.three_phase else 1.0
        if not 0 <= self.pct_start <= most:
            raise invalid(self, "pct_start", f"a fraction from 0 to {most:g}", self.pct_start)

    def __call__(self, step: int) -> float:
        """Return the rate."""
        first, last = self.lr / self.div_factor, self.lr / self.div_factor / self.final_div_factor
        top, end = self.pct_start * self.steps - 1, self.steps - 1
        phases = [(top, first, self.lr), (end, self.lr, last)]
        if self.three_phase:
            phases[1:] = [(2 * top, self.lr, first), (end, first, last)]
        step, begin = min(step, end), 0.0
        for until, low, high in phases[:-1]:
            if step <= until:
                return self._between(low, high, (step - begin) / (until - begin) if until > begin else 1.0)
            begin = until
        until, low, high = phases[-1]
        return self._between(low, high, (step - begin) / (until - begin))

    def _between(self, start: float, end: float, fraction: float) -> float:
        if self.anneal_strategy == "cos":
            return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2
        return start + (end - start) * fraction


class Cyclic(Schedule, kw_only=False):
    """The rate rises and falls linearly between two bounds, again and again.

    Args:
        base_lr: the lower bound, the first rate.
        max_lr: the upper bound.
        steps_up: the number of steps of a rise.
        steps_down: the number of steps of a fall; by default `steps_up`.
        mode: ``"triangular"``: the same bounds in all cycles. ``"triangular2"``: each cycle rises half as far
            as the one before. ``"exp_range"``: the rise is multiplied by ``gamma ** step``.
        gamma: the factor of ``"exp_range"``.

    Smith, 2017; torch's CyclicLR, without the cycles of the momentum. For another scale of the cycles, see
    `Product`.

    >>> schedule = Cyclic(0.0, 1.0, steps_up=2, mode="triangular2")
    >>> [schedule(step) for step in range(8)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.25, 0.5, 0.25]
    """

    base_lr: float
    max_lr: float
    steps_up: int = 2000
    steps_down: int | None = None
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    gamma: float = 1.0

    _rates = ("base_lr", "max_lr")
    _factors = ("gamma",)
    _counts = ("steps_up",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_down is not None:
            check_counts(self, "steps_down")
        if self.max_lr < self.base_lr:
            raise invalid(self, "max_lr", f"at least base_lr, {self.base_lr:g}", self.max_lr)

    def __call__(self, step: int) -> float:
        """Return the rate."""
        down = self.steps_up if self.steps_down is None else self.steps_down
        cycle, at = divmod(step, self.steps_up + down)
        height = at / self.steps_up if at <= self.steps_up else (self.steps_up + down - at) / down
        if self.mode == "triangular2":
            height *= 0.5**cycle
        elif self.mode == "exp_range":
            height *= self.gamma**step
        return self.base_lr + (self.max_lr - self.base_lr) * height
