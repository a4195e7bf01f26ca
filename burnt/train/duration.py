"""Durations with units: ``"10 epochs"``, ``"500 steps"``."""

from __future__ import annotations

import dataclasses
import math
import re

from burnt.errors import ConfigError

__all__ = ["Duration", "Position"]


@dataclasses.dataclass
class Position:
    """The position of a training.

    Args:
        step: optimizer steps done.
        epoch: epochs done.
        batch: batches done in the current epoch; a step has several if the training accumulates gradients.
        pending: whether the validation due at this position was interrupted and runs when the run is resumed.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    pending: bool = False

    @property
    def current_epoch(self) -> int:
        """The number of the current epoch, or of the one that has just ended, from 1."""
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
        """Parse a duration.

        Args:
            text: ``"10 epochs"``, ``"1 epoch"``, ``"500 steps"``.
            name: the argument's name, for the message.

        Raises:
            ConfigError: the text is not a duration.
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
        """Return the number of epochs or steps done, by the duration's unit."""
        return position.epoch if self.unit == "epochs" else position.step

    def over(self, position: Position) -> bool:
        """Whether the duration, counted from the start of the training, is over."""
        return self.done(position) >= self.count

    def due(self, position: Position, *, epoch_ended: bool) -> bool:
        """Whether a task with this interval is due at a position right after a step or an epoch's end."""
        if self.unit == "epochs":
            return epoch_ended and position.epoch % self.count == 0
        return position.step > 0 and position.step % self.count == 0

    def last_step(self, position: Position, batches: int | None, *, accumulate: int = 1) -> int | None:
        """Return the step at which the duration is over; None if the number of batches is unknown.

        Epochs are counted from `position` on: before a resume, they may have had another number of batches.

        Args:
            position: the position of the training.
            batches: the number of batches of an epoch.
            accumulate: the number of batches of a step; the last step of an epoch may have fewer.
        """
        if self.unit == "steps":
            return max(self.count, position.step)
        if batches is None:
            return None
        steps, done = math.ceil(batches / accumulate), math.ceil(position.batch / accumulate)
        return position.step + max((self.count - position.epoch) * steps - done, 0)
