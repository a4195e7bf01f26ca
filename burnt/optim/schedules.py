"""Learning-rate schedules: frozen values that map a step number to a learning rate.

A schedule depends only on the number of finished steps: it has no other state, and can be evaluated for any
step at any time. Schedules are Configs, so they can be fields of a user's Config and are saved as JSON.
"""

from __future__ import annotations

import math
from typing import Any

from burnt.config import Config
from burnt.errors import ConfigError

__all__ = ["Constant", "Cosine", "Linear", "Schedule", "Sequential", "Warmup"]


class Schedule(Config):
    """Base of the schedules: maps the number of finished steps to the rate of the next one."""

    def __call__(self, step: int) -> float:
        """Return the learning rate of the step after `step` finished steps."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            value: Any = getattr(self, name)
            if name == "steps" and value < 1:
                raise _invalid(self, name, "at least 1", value)
            if isinstance(value, int | float) and not (value >= 0 and math.isfinite(value)):
                raise _invalid(self, name, "a finite rate of at least 0", value)


class Constant(Schedule, tag=True, kw_only=False):
    """The same rate at every step.

    >>> Constant(0.1)(7)
    0.1
    """

    lr: float

    def __call__(self, step: int) -> float:
        """Return `lr`."""
        return self.lr


class Linear(Schedule, tag=True, kw_only=False):
    """Linear change from one rate to another, which then stays constant.

    Args:
        start: the first rate.
        end: the rate from `steps` on.
        steps: the number of steps of the change.

    >>> schedule = Linear(1.0, 0.0, steps=4)
    >>> [schedule(step) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        """Return `start` at 0, `end` from `steps` on."""
        fraction = min(step / self.steps, 1.0)
        return self.start * (1 - fraction) + self.end * fraction


class Cosine(Schedule, tag=True, kw_only=False):
    """Cosine decay from one rate to another, which then stays constant.

    Args:
        lr: the first rate.
        steps: the number of steps of the decay.
        end: the rate from `steps` on; it stays there (Burn's and torch's rise again).

    Loshchilov and Hutter, 2017, without restarts.

    >>> schedule = Cosine(1.0, steps=4)
    >>> [round(schedule(step), 4) for step in range(6)]
    [1.0, 0.8536, 0.5, 0.1464, 0.0, 0.0]
    """

    lr: float
    steps: int
    end: float = 0.0

    def __call__(self, step: int) -> float:
        """Return `lr` at 0, `end` from `steps` on."""
        fraction = min(step / self.steps, 1.0)
        return self.end + (self.lr - self.end) * (1 + math.cos(math.pi * fraction)) / 2


class Sequential(Schedule, tag=True, kw_only=False):
    """One schedule after another, each from its own step 0.

    Args:
        parts: pairs of a schedule and its number of steps; the last one never ends.

    >>> schedule = Sequential(((Constant(1.0), 2), (Linear(0.5, 0.0, steps=2), 2)))
    >>> [schedule(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.25, 0.0]
    """

    parts: tuple[tuple[Constant | Linear | Cosine | Warmup, int], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts or any(steps < 1 for _, steps in self.parts):
            raise _invalid(self, "parts", "at least one, each of at least 1 step", self.parts)

    def __call__(self, step: int) -> float:
        """Return the rate of the part that contains `step`."""
        for schedule, steps in self.parts[:-1]:
            if step < steps:
                return schedule(step)
            step -= steps
        return self.parts[-1][0](step)


class Warmup(Schedule, tag=True, kw_only=False):
    """Linear warmup to the first rate of another schedule, which follows.

    Args:
        steps: the number of warmup steps; step i is at ``(i + 1) / steps`` of the way, so the first
            step's rate is already above `start`.
        then: the schedule that follows, from its own step 0.
        start: the rate from which the warmup starts.

    >>> schedule = Warmup(4, Constant(1.0))
    >>> [schedule(step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    steps: int
    then: Constant | Linear | Cosine | Sequential
    start: float = 0.0

    def __call__(self, step: int) -> float:
        """Return the rate of the warmup, or of the schedule that follows."""
        if step >= self.steps:
            return self.then(step - self.steps)
        return self.start + (self.then(0) - self.start) * (step + 1) / self.steps


def _invalid(schedule: Schedule, name: str, expected: str, found: object) -> ConfigError:
    return ConfigError(
        f"{type(schedule).__name__} cannot be built", where=name, expected=expected, found=repr(found)
    )
