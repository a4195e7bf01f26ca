"""Learning-rate schedules: frozen values that give the rate of every step.

A schedule is a function of the number of steps done and nothing else, so its whole state is that number, and
the rate of any step can be asked for at any time. Schedules are Configs: they go into a user's Config, and
into JSON, as they are.
"""

from __future__ import annotations

import math
from typing import Any

from burnt.config import Config
from burnt.errors import ConfigError

__all__ = ["Constant", "Cosine", "Linear", "Schedule", "Sequential", "Warmup"]


class Schedule(Config):
    """Base of the schedules: called with the number of steps done, returns the rate of the next one."""

    def __call__(self, step: int) -> float:
        """The learning rate of the step after `step` steps are done."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its rate is")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            value: Any = getattr(self, name)
            if name == "steps" and value < 1:
                raise _refused(self, name, "at least 1", value)
            if isinstance(value, int | float) and not (value >= 0 and math.isfinite(value)):
                raise _refused(self, name, "a finite rate of at least 0", value)


class Constant(Schedule, tag=True, kw_only=False):
    """The same rate at every step.

    >>> Constant(0.1)(7)
    0.1
    """

    lr: float

    def __call__(self, step: int) -> float:
        """`lr`."""
        return self.lr


class Linear(Schedule, tag=True, kw_only=False):
    """From one rate to another in a straight line, and then the second one.

    Args:
        start: the first rate.
        end: the rate from `steps` on.
        steps: how many steps that takes.

    >>> schedule = Linear(1.0, 0.0, steps=4)
    >>> [schedule(step) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        """`start` at 0, `end` from `steps` on."""
        share = min(step / self.steps, 1.0)
        return self.start * (1 - share) + self.end * share


class Cosine(Schedule, tag=True, kw_only=False):
    """Half a cosine from one rate down to another, and then the second one.

    Args:
        lr: the first rate.
        steps: how many steps the descent takes.
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
        """`lr` at 0, `end` from `steps` on."""
        share = min(step / self.steps, 1.0)
        return self.end + (self.lr - self.end) * (1 + math.cos(math.pi * share)) / 2


class Sequential(Schedule, tag=True, kw_only=False):
    """One schedule after another, each from its own step 0.

    Args:
        parts: pairs of a schedule and how many steps it lasts; the last one goes on for ever.

    >>> schedule = Sequential(((Constant(1.0), 2), (Linear(0.5, 0.0, steps=2), 2)))
    >>> [schedule(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.25, 0.0]
    """

    parts: tuple[tuple[Constant | Linear | Cosine | Warmup, int], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts or any(steps < 1 for _, steps in self.parts):
            raise _refused(self, "parts", "at least one, each of at least 1 step", self.parts)

    def __call__(self, step: int) -> float:
        """The rate of the part that `step` falls into."""
        for schedule, steps in self.parts[:-1]:
            if step < steps:
                return schedule(step)
            step -= steps
        return self.parts[-1][0](step)


class Warmup(Schedule, tag=True, kw_only=False):
    """A straight rise to the first rate of another schedule, which follows.

    Args:
        steps: how many steps the rise takes; step i of them has ``(i + 1) / steps`` of the way, so that the
            first step already moves.
        then: what follows, from its own step 0.
        start: the rate that the rise sets out from.

    >>> schedule = Warmup(4, Constant(1.0))
    >>> [schedule(step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    steps: int
    then: Constant | Linear | Cosine | Sequential
    start: float = 0.0

    def __call__(self, step: int) -> float:
        """The rate of the rise, or of what follows it."""
        if step >= self.steps:
            return self.then(step - self.steps)
        return self.start + (self.then(0) - self.start) * (step + 1) / self.steps


def _refused(schedule: Schedule, name: str, expected: str, found: object) -> ConfigError:
    return ConfigError(
        f"{type(schedule).__name__} cannot be built", where=name, expected=expected, found=repr(found)
    )
