"""Schedules that rise and fall: cosine with restarts, one cycle, cycles."""

from __future__ import annotations

import math
from typing import Literal

from burnt.optim.schedules.base import Schedule, check_counts, check_rates, invalid


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
        steps_down: the number of steps of a fall; by default that of a rise.
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
