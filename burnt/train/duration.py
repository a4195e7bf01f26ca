"""Durations with units: ``"10 epochs"``, ``"500 steps"``, ``"2 h"``."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterator

from burnt.errors import ConfigError

_SECONDS = {"s": 1, "min": 60, "h": 3600, "day": 86400}
_UNITS = {
    "epoch": "epochs", "step": "steps", "day": "day", "d": "day", "h": "h", "hour": "h", "min": "min",
    "minute": "min", "s": "s", "sec": "s", "second": "s",
}  # fmt: skip


@dataclasses.dataclass
class Position:
    """The position of a training.

    Args:
        step: the number of optimizer steps done.
        epoch: the number of epochs done.
        batch: batches done in the current epoch; a step has several if the training accumulates gradients.
        pending: whether the validation due at this position was interrupted and runs when the run is resumed.
        seconds: the time trained so far, with validations and checkpoints, without pauses. It is counted over
            resumes, and left out of comparisons: no two runs take the same time.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    pending: bool = False
    seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def current_epoch(self) -> int:
        """The number of the current epoch, or of the one that has just ended, from 1."""
        return self.epoch + 1 if self.batch or not self.epoch else self.epoch


@dataclasses.dataclass(frozen=True)
class Duration:
    """A number of epochs, of steps or of seconds; or the first of several that is over.

    Args:
        count: how many, above 0; whole for epochs and steps.
        unit: ``"epochs"``, ``"steps"`` or ``"seconds"``. Seconds count as in `Position.seconds`.
        alternative: another duration; the earlier one counts.

    >>> Duration.parse("10 epochs")
    Duration(count=10, unit='epochs')
    >>> Duration.parse("1.5 h")
    Duration(count=5400, unit='seconds')
    >>> str(Duration.parse("10 epochs or 120 min"))
    '10 epochs or 2 h'
    >>> Duration.parse("10")
    Traceback (most recent call last):
    burnt.errors.ConfigError: a duration needs a number and a unit
      in        duration
      expected  such as "10 epochs", "500 steps" or "2 h"
      found     '10'
    """

    count: float
    unit: str
    alternative: Duration | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str | Duration, name: str = "duration", *, single: bool = False) -> Duration:
        """Parse a duration.

        Args:
            text: ``"10 epochs"``, ``"1 epoch"``, ``"500 steps"``; ``"45 s"``, ``"90 min"``, ``"1.5 h"``,
                ``"1 day"``; or several of them, ``"10 epochs or 2 h"``.
            name: the argument's name, for the message.
            single: whether to refuse several durations.

        Raises:
            ConfigError: the text is not a duration.
        """
        duration: Duration | None = None
        if isinstance(text, Duration):
            duration = text
        elif isinstance(text, str):
            for part in reversed(re.split(r"\s+or\s+", text)):
                count, unit = _parse_one(part, text, name)
                duration = cls(count, unit, duration)
        if duration is None:
            raise _no_duration(text, name)
        if single and duration.alternative is not None:
            raise ConfigError(
                "this setting takes one duration",
                where=name,
                expected='such as "3 epochs", "500 steps" or "2 h"',
                found=str(duration),
            )
        return duration

    def __str__(self) -> str:
        count, unit = self.count, self.unit
        if unit == "seconds":
            unit = next(unit for unit in reversed(_SECONDS) if count % _SECONDS[unit] == 0 or unit == "s")
            count = count / _SECONDS[unit]
            unit += "s" if unit == "day" and count != 1 else ""
        elif count == 1:
            unit = unit.removesuffix("s")
        text = f"{count:.15g} {unit}"
        return text if self.alternative is None else f"{text} or {self.alternative}"

    def __or__(self, other: Duration) -> Duration:
        """Return the duration that is over, or due, when one of the two is."""
        alternative = other if self.alternative is None else self.alternative | other
        return dataclasses.replace(self, alternative=alternative)

    def done(self, position: Position) -> float:
        """Return the number of epochs, steps or seconds done, by the duration's unit."""
        if self.unit == "epochs":
            return position.epoch
        return position.step if self.unit == "steps" else position.seconds

    @property
    def epochs(self) -> int | None:
        """The number of epochs after which it is over, if it, or its alternative, is given in epochs."""
        return next((int(part.count) for part in self._parts() if part.unit == "epochs"), None)

    @property
    def seconds(self) -> float | None:
        """The same in seconds."""
        return next((part.count for part in self._parts() if part.unit == "seconds"), None)

    def _parts(self) -> Iterator[Duration]:
        """Iterate over it and its alternatives."""
        part: Duration | None = self
        while part is not None:
            yield part
            part = part.alternative

    def without_time(self) -> Duration:
        """Return it without its parts in seconds; what is given only in seconds is never over or due.

        >>> str(Duration.parse("10 epochs or 2 h").without_time())
        '10 epochs'
        """
        never = Duration(sys.maxsize, "steps")
        rest = never if self.alternative is None else self.alternative.without_time()
        if self.unit == "seconds":
            return rest
        return dataclasses.replace(self, alternative=None if rest == never else rest)

    def over(self, position: Position) -> bool:
        """Whether the duration, counted from the start of the training, is over."""
        if self.alternative is not None and self.alternative.over(position):
            return True
        return self.done(position) >= self.count

    def due(self, position: Position, *, epoch_ended: bool, since: float = 0.0) -> bool:
        """Whether a task with this interval is due at a position right after a step or an epoch's end.

        Args:
            position: the position of the training.
            epoch_ended: whether an epoch has just ended.
            since: `Position.seconds` at the end of the tasks after the step before. A task is due after the
                first step beyond each multiple of an interval in seconds; multiples that pass during a
                validation or a save are left out.
        """
        other = self.alternative
        if other is not None and other.due(position, epoch_ended=epoch_ended, since=since):
            return True
        if self.unit == "seconds":
            return position.seconds // self.count > since // self.count
        done = self.done(position)
        return done > 0 and done % self.count == 0 and (epoch_ended or self.unit == "steps")

    def last_step(self, position: Position, batches: int | None, *, accumulate: int = 1) -> int | None:
        """Return the step at which the duration is over; None if it depends on what is not known.

        Epochs are counted from `position` on: before a resume, they may have had another number of batches.
        Of several durations, the one that ends first counts; the time is not known.

        Args:
            position: the position of the training.
            batches: the number of batches of an epoch; None if unknown.
            accumulate: the number of batches of a step; the last step of an epoch may have fewer.
        """
        ends = []
        for part in self._parts():
            if part.unit == "steps":
                ends.append(max(int(part.count), position.step))
            elif part.unit == "epochs" and batches is not None:
                steps, done = math.ceil(batches / accumulate), math.ceil(position.batch / accumulate)
                ends.append(position.step + max((int(part.count) - position.epoch) * steps - done, 0))
        return min(ends, default=None)


def _parse_one(part: str, text: str, name: str) -> tuple[float, str]:
    """Return the count and the unit of a part of a duration's text."""
    match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z]+)\s*", part)
    unit = None if match is None else _UNITS.get(match[2]) or _UNITS.get(match[2].removesuffix("s"))
    if match is None or unit is None:
        raise _no_duration(text, name)
    count = float(match[1]) * _SECONDS.get(unit, 1)
    if (unit not in _SECONDS and (count < 1 or "." in match[1])) or not 0 < count < math.inf:
        raise _no_duration(text, name)
    return int(count) if count.is_integer() else count, unit if unit not in _SECONDS else "seconds"


def _no_duration(text: object, name: str) -> ConfigError:
    return ConfigError(
        "a duration needs a number and a unit",
        where=name,
        expected='such as "10 epochs", "500 steps" or "2 h"',
        found=repr(text),
        hint=f'did you mean "{text} epochs" or "{text} steps"?' if isinstance(text, int) else None,
    )
