"""Losses and gradients that are not finite: which step and samples they come from, and what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from burnt.errors import NonFiniteError, quantity
from burnt.store import RunWriter
from burnt.train.code.source import replay_command
from burnt.train.duration import Position
from burnt.train.step import StepOutput
from burnt.train.updates.outcome import NonFinite

_MOST_MESSAGES = 5
_MOST_SKIPPED = 100
_COLLAPSED = 1.0
_HOPELESS = 1e-4
"""A loss scale this small means that hundreds of steps have overflowed; fairseq gives up there too."""


def list_text(samples: Sequence[int], most: int = 8) -> str:
    """Return indices as text, the first ones of many.

    >>> list_text([4, 9]), list_text(range(64), most=3)
    ('4, 9', '0, 1, 2 and 61 more')
    """
    shown = ", ".join(map(str, samples[:most]))
    return shown if len(samples) <= most else f"{shown} and {len(samples) - most} more"


class Place(NamedTuple):
    """Where a loss comes from: a step, from 1, its epoch and batch in it, from 0."""

    step: int
    epoch: int
    batch: int


class RecentLosses:
    """The losses since the metrics were read, on the device, so that a bad one can be located afterwards."""

    def __init__(self) -> None:
        self._losses: list[tuple[int, int, int, Tensor]] = []
        self._step, self._epoch, self._batch = 0, 0, 0

    def begin_step(self, position: Position) -> None:
        """Note the position before a step."""
        self._step, self._epoch, self._batch = position.step + 1, position.epoch, position.batch

    def add(self, output: StepOutput) -> None:
        """Add the loss of the step's next micro-batch."""
        if output.count:
            self._losses.append((self._step, self._epoch, self._batch, output.loss.detach()))
        self._batch += 1

    def first_non_finite(self) -> Place | None:
        """Return where the first loss is from that is not finite. Waits for the device."""
        return next((Place(*place) for *place, loss in self._losses if not bool(loss.isfinite())), None)

    def clear(self) -> None:
        """Forget the losses."""
        self._losses.clear()


class NonFiniteReports:
    """Reports losses and gradients that are not finite: of steps that are skipped, and as errors.

    `loader` can tell which samples they come from if it has a method ``samples(epoch, batch)``. `policy` is
    ``on_nan=``: with ``"raise"`` no step is skipped but by a loss scale. `folder` is the run's.
    """

    def __init__(
        self, loader: Any, policy: str, writer: RunWriter, message: Callable[[str], None], folder: Path
    ) -> None:
        self._loader, self._policy, self._folder = loader, policy, folder
        self._writer, self._message = writer, message
        self._count = self._in_a_row = 0
        self._last_step = -1
        self._has_collapsed = False

    def _locate(self, step: int, epoch: int, batches: Sequence[int]) -> tuple[str, list[int] | None]:
        """Return where batches come from, as text, and their samples; None if the loader cannot tell.

        `step` is counted from 1, `epoch` and `batches` from 0.
        """
        method = getattr(self._loader, "samples", None)
        samples: list[int] | None = []
        for batch in batches:
            found = method(epoch, batch) if callable(method) else None
            samples = None if samples is None or found is None else samples + [int(index) for index in found]
        numbers = ", ".join(str(batch + 1) for batch in batches)
        text = f"step {step}, epoch {epoch + 1}, {'batch' if len(batches) == 1 else 'batches'} {numbers}"
        return text + ("" if samples is None else f", samples {list_text(samples)}"), samples

    def failed_step_text(self, position: Position, window: int) -> str:
        """Describe a step of so many batches that raised an error, and how to look into it."""
        step = position.step + 1
        where, _ = self._locate(step, position.epoch, range(position.batch, position.batch + window))
        command = replay_command(self._folder, step, step, debug=True)
        return f"in {where}; to look into it: {command}"

    def report(self, found: NonFinite, position: Position, window: int, learning_rate: float) -> bool:
        """Record a skipped step; return whether the training ends.

        `position` is that after the step, `window` the number of its batches. The last of many skipped
        steps in a row raises a NonFiniteError.
        """
        numbers = range(window) if found.batches is None else found.batches
        batches = [position.batch - window + number for number in numbers]
        where, samples = self._locate(position.step, position.epoch, batches)
        text = "nan or infinite" if found.what == "a gradient" else str(found.value)
        self._writer.event(
            "non_finite",
            position.step,
            what=found.what,
            value=text,
            epoch=position.epoch + 1,
            batches=[batch + 1 for batch in batches],
            samples=samples,
            policy=self._policy,
        )
        self._count += 1
        self._in_a_row = self._in_a_row + 1 if position.step == self._last_step + 1 else 1
        self._last_step = position.step
        if self._policy == "stop" or self._count <= _MOST_MESSAGES:
            more = " Further ones are events of the run." if self._count == _MOST_MESSAGES else ""
            self._message(f"Skipped {where}: {found.what} is {text}.{more}")
        if self._in_a_row == _MOST_SKIPPED:
            raise NonFiniteError(
                f"{quantity(_MOST_SKIPPED, 'step')} in a row were skipped",
                where=where,
                expected="a finite number",
                found=f"{found.what} is {text} at a learning rate of {learning_rate:.3g}",
                hint="the parameters are finite, so look at the data and at the loss",
            )
        return self._policy == "stop"

    def error(
        self,
        what: str,
        value: float,
        since: int,
        position: Position,
        place: Place | None,
        learning_rate: float,
        newest: Path | None,
    ) -> NonFiniteError:
        """Return the error for a loss or parameter that became NaN or infinite after step `since`.

        `place` is where the first such loss is from, if known, and `newest` the checkpoint to resume from.
        """
        steps, samples = (since + 1, position.step), None
        where = f"steps {steps[0]} to {steps[1]}, epoch {position.current_epoch}"
        if place is not None:
            steps = (place.step, place.step)
            where, samples = self._locate(place.step, place.epoch, [place.batch])
        begins = replay_command(self._folder, since + 1, position.step)
        resume = (
            f"resume from the last checkpoint, {newest}"
            if newest
            else "there is no checkpoint to resume from"
        )
        error = NonFiniteError(
            f"{what} became {value}",
            where=where,
            expected="a finite number",
            found=f"{value} at a learning rate of {learning_rate:.3g}",
            hint=f"to see where it began: {begins}\nlook for bad values in the data, or try a lower learning "
            f"rate or clip_norm=1.0; {resume}",
        )
        error.steps, error.samples = steps, samples
        return error

    def check_scale(self, scale: float | None, position: Position) -> None:
        """Warn once when the loss scale has collapsed; raise a NonFiniteError where it is hopeless."""
        if scale is None or scale >= _COLLAPSED:
            self._has_collapsed = False
            return
        hint = 'gradients overflow in float16 whatever the scale: try precision="bfloat16", or clip_norm=1.0'
        if scale < _HOPELESS:
            raise NonFiniteError(
                f"the loss scale fell to {scale:.3g}",
                where=f"step {position.step}, epoch {position.current_epoch}",
                expected=f"at least {_COLLAPSED:g}",
                found="a gradient that overflows in each step, which is skipped",
                hint=hint,
            )
        if not self._has_collapsed:
            self._has_collapsed = True
            self._writer.event("loss_scale", position.step, scale=scale)
            self._message(f"Warning: the loss scale fell to {scale:.3g}: {hint}.")
