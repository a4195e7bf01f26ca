"""Train a run forward again from one of its checkpoints, without writing to it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from burnt.errors import RunError, quantity
from burnt.store import Attempt, RunReader
from burnt.train.checkpoints.checkpoint import Checkpoints, Saved
from burnt.train.code.source import settings_in
from burnt.train.duration import Duration
from burnt.train.events import Callbacks
from burnt.train.learner import Learner
from burnt.train.loop import Loop
from burnt.train.sinks import Sink
from burnt.train.training import SupervisedTraining


@dataclasses.dataclass(frozen=True)
class Past:
    """What a run holds of the steps up to `last`.

    `resumed` is the step on the way at which the run was resumed with other settings than those before, or
    None. The steps before it are run with the later settings, and may differ.
    """

    folder: Path
    last: int
    start: Saved | None  # the newest checkpoint before the steps to run again; None is the beginning
    attempt: Attempt  # which made the steps
    config: Mapping[str, Any]  # its settings, as in config.json
    rates: Mapping[int, float | None]  # that commands set, by the steps done; None is the schedule's
    validations: Mapping[int, Collection[str]]  # the sets that were validated after a step, by the step
    seconds_per_step: float | None  # None if unknown
    resumed: int | None = None
    ranks: int = 1  # the most processes that trained any of the steps on the way

    @classmethod
    def read(cls, folder: Path, last: int, *, before: int, failed: bool = False) -> Past:
        """Look up how to get to the state after step `last`, from a checkpoint of `before` at the latest.

        With `failed`, `last` may be the step that the run did not complete. A RunError says that the folder
        holds no run, or that the run did not get that far.
        """
        with RunReader(folder) as reader:
            progress, saved = reader.progress(), _saved(folder)
            attempts = reader.attempts()
            known = [0 if progress is None else progress.step, *(s.position.step for s in saved)]
            known += [event.step for event in reader.events() if event.step is not None]
            has_ended = attempts[-1].end_state in ("finished", "stopped")
            done = max(known) + (failed and not has_ended)
            if not 1 <= last <= done:
                raise RunError(
                    f"the run has no step {last}",
                    where=str(folder),
                    expected=f"a step from 1 to {done}" if done else "a run that has done a step",
                    found=f"step {last}",
                )
            start = max(
                (s for s in saved if s.position.step <= before), key=lambda s: s.position.step, default=None
            )
            if start is None and attempts[0].resumed_from_step:
                raise _begins_later_error(reader, min(before + 1, last), attempts[0].resumed_from_step)
            reaching = (a for a in reversed(attempts) if (a.resumed_from_step or 0) < last)
            attempt = next(reaching, attempts[0])  # the first of a fork has its first state, too
            speeds = [
                head.point.value
                for series, head in reader.heads().items()
                if series.name == "steps_per_second"
            ]
            return cls(
                folder,
                last,
                start,
                attempt,
                reader.config(attempt.id) or {},
                _rates(reader, attempt),
                _validations(reader),
                1 / speeds[0] if speeds and speeds[0] > 0 else None,
                _changed_at(reader, attempt, 0 if start is None else start.position.step),
                _most_ranks(reader, attempt, 0 if start is None else start.position.step),
            )

    @property
    def first(self) -> int:
        """The steps that the checkpoint has done."""
        return 0 if self.start is None else self.start.position.step


def _begins_later_error(reader: RunReader, step: int, begin: int) -> RunError:
    parent = reader.parent()
    return RunError(
        f"there is no way to step {step}: the run itself begins after step {begin}",
        where=str(reader.folder),
        expected=f"a step from {begin + 1}, and a checkpoint before it",
        found=f"step {step}",
        hint=None
        if parent is None
        else f"the steps before are those of {parent.folder}, which it was forked from",
    )


def _validations(reader: RunReader) -> dict[int, set[str]]:
    """Return the sets that were validated after a step, by the step."""
    found: dict[int, set[str]] = {}
    for series in reader.series():
        if series.split != "train":
            for step in reader.points(*series).steps:
                found.setdefault(step, set()).add(series.split)
    return found


def _rates(reader: RunReader, last: Attempt) -> dict[int, float | None]:
    """Return the rates that commands set up to an attempt, by the steps done."""
    rates: dict[int, float | None] = {}
    for attempt in reader.attempts():
        if attempt.id > last.id:
            break
        # A resume goes on with the rate of its checkpoint, which it records if a command had set it.
        start = attempt.resumed_from_step or 0
        rates = {step: rate for step, rate in rates.items() if step < start}
        rates[start] = None
        rates |= {
            event.step: event.data.get("value")
            for event in reader.events("learning_rate")
            if event.attempt == attempt.id and event.step is not None
        }
    return rates


def _changed_at(reader: RunReader, last: Attempt, first_step: int) -> int | None:
    """Return the newest step after `first_step` at which a resume, up to an attempt, has changed settings."""
    settings, step = settings_in(reader.config(last.id)), last.resumed_from_step or 0
    for attempt in reversed(reader.attempts()[: last.id - 1]):
        if step <= first_step:
            return None
        if settings_in(reader.config(attempt.id)) != settings:
            return step
        step = min(step, attempt.resumed_from_step or 0)
    return None


def _most_ranks(reader: RunReader, last: Attempt, first_step: int) -> int:
    """Return the most processes that trained steps after `first_step` together, up to an attempt."""
    attempts = reader.attempts()[: last.id]
    later = [*(a.resumed_from_step or 0 for a in attempts[1:]), sys.maxsize]
    configs = [reader.config(a.id) or {} for a, end in zip(attempts, later, strict=True) if end > first_step]
    return max(int(config.get("ranks", 1)) for config in configs)


def _saved(folder: Path) -> list[Saved]:
    return Checkpoints(folder / "checkpoints").saved()


class RewoundLoop(Loop):
    """A loop that ends after step `last`; with `finish`, validations and others due there have run, too.

    `rates`: the learning rates that commands had set, by the steps done. `validations`: the sets that it
    validates after a step, besides those due by `validate_every`.
    """

    def __init__(
        self,
        *args: Any,
        last: int,
        finish: bool,
        rates: Mapping[int, float | None],
        validations: Mapping[int, Collection[str]],
    ) -> None:
        super().__init__(*args)
        self.last, self._finish, self._rates, self._validations = last, finish, rates, validations
        self.batches_of_step = 0  # of the current one; an optimizer may evaluate them several times

    def step(self, window: Sequence[Any]) -> None:
        """Run a step at the learning rate that a command had set."""
        done = self.position.step
        if done in self._rates and self._rates[done] != self.control.override:
            self.control.override, self.control.override_factor = self._rates[done], None
        self.batches_of_step = len(window)
        super().step(window)

    def run_due_tasks(self, *, epoch_ended: bool = False) -> str | None:
        """Run what is due, and end at the last step."""
        if (due := self._validations.get(self.position.step)) is not None:
            self.position.pending, self.due_splits = True, list(due)
        if self.position.step < self.last:
            return super().run_due_tasks(epoch_ended=epoch_ended)
        if self._finish:
            super().run_due_tasks(epoch_ended=epoch_ended)
            self.save(scheduled=False)
        return "rewound"


def train_forward(
    training: SupervisedTraining,
    learner: Learner,
    past: Past,
    scratch: Path,
    *,
    finish: bool,
    callbacks: Sequence[Any] = (),
) -> None:
    """Train again from `past.start` to `past.last`, in silence, and write to `scratch` instead of the run.

    Its callbacks take part, except sinks: what is trained again is not a run for a tracker. The learner is as
    it was given to the run at its start; the training is not changed. With `finish`, what is due after the
    last step is run, and a checkpoint is saved there. A training that ends earlier raises a RunError. It is
    trained by this process alone, also if several trained the run.
    """
    again = copy.copy(training)
    again.folder, again.monitor, again.check = scratch, "off", False
    again.exists = "error" if past.start is None else "resume"
    again.keepers = []  # only the newest checkpoint
    if isinstance(again.strategy, str) or again.strategy.needs_launcher:
        again.strategy = "single"
    again.checkpoint_every = Duration(sys.maxsize, "steps")
    again.callbacks = Callbacks([*training.callbacks.without(Sink).all, *callbacks])
    # The clock is another one: what it had decided is taken from the run.
    again.duration = again.duration.without_time()
    again.validate_every = {split: every.without_time() for split, every in again.validate_every.items()}
    again.loop_type = functools.partial(
        RewoundLoop,
        last=past.last,
        finish=finish,
        rates=past.rates,
        validations=past.validations if again.validate_every != training.validate_every else {},
    )
    if past.start is not None:
        (scratch / "checkpoints").mkdir()
        (scratch / "checkpoints" / past.start.path.name).symlink_to(past.start.path.resolve())
    result = again.run(learner)
    if result.position.step < past.last and result.reason != "rewound":
        raise RunError(
            f"the training ended before step {past.last}",
            where=str(past.folder),
            found=f"{result.reason} after {quantity(result.position.step, 'step')}",
            hint="does the program train as it did in the run?",
        )
