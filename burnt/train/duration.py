"""Durations with units: ``"10 epochs"``, ``"500 steps"``."""

from __future__ import annotations

import dataclasses
import re

from burnt.errors import ConfigError

__all__ = ["Duration", "Position"]


@dataclasses.dataclass
class Position:
    """How far a training has come.

    Args:
        step: optimizer steps done.
        epoch: epochs done.
        batch: batches done of the current epoch.
        pending: whether what is due at this point, a validation, was left for when the run is resumed.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    pending: bool = False

    @property
    def current_epoch(self) -> int:
        """The number of the epoch that is under way or has just ended, from 1."""
        return self.epoch + 1 if self.batch or not self.epoch else self.epoch


@dataclasses.dataclass(frozen=True)
class Duration:
    """A number of epochs or of steps.

    >>> Duration.parse("10 epochs")
    Duration(count=10, unit='epochs')
    >>> Duration.parse("10")
    Traceback (most recent call last):
    burnt.errors.ConfigError: a duration needs a number and a unit
      in        duration
      expected  such as "10 epochs" or "500 steps"
      found     '10'
    """

    count: int
    unit: str

    @classmethod
    def parse(cls, text: str | Duration, name: str = "duration") -> Duration:
        """The duration that a text names.

        Args:
            text: ``"10 epochs"``, ``"1 epoch"``, ``"500 steps"``.
            name: the argument's name, for the message.

        Raises:
            ConfigError: no such duration.
        """
        if isinstance(text, Duration):
            return text
        match = (
            re.fullmatch(r"\s*([0-9][0-9_]*)\s*(epoch|step)s?\s*", text) if isinstance(text, str) else None
        )
        if match is None or int(match[1]) < 1:
            raise ConfigError(
                "a duration needs a number and a unit",
                where=name,
                expected='such as "10 epochs" or "500 steps"',
                found=repr(text),
            )
        return cls(int(match[1]), match[2] + "s")

    def __str__(self) -> str:
        return f"{self.count} {self.unit if self.count != 1 else self.unit[:-1]}"

    def done(self, position: Position) -> int:
        """How much of the unit is done."""
        return position.epoch if self.unit == "epochs" else position.step

    def over(self, position: Position) -> bool:
        """Whether the duration, counted from the start of the training, is over."""
        return self.done(position) >= self.count

    def due(self, position: Position, *, epoch_ended: bool) -> bool:
        """Whether something that happens every so often is due, right after a step or an epoch's end."""
        if self.unit == "epochs":
            return epoch_ended and position.epoch % self.count == 0
        return position.step > 0 and position.step % self.count == 0

    def steps(self, batches: int | None) -> int | None:
        """The number of steps, where that is known."""
        if self.unit == "steps":
            return self.count
        return None if batches is None else self.count * batches
