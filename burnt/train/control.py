"""What people ask of a training while it runs, carried out between its steps; and the training's clock.

The loop calls `Control.obey` after each step and before each batch of a validation. Nothing that arrives
there stops the training but a `stop`: what cannot be done is refused, with the reason.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Literal, Self

from burnt.errors import BurntError
from burnt.train.duration import Position
from burnt.train.interrupt import Interruption
from burnt.train.progress import Reporter
from burnt.train.store import RunWriter
from burnt.train.store.control import Command, Inbox, Refused

__all__ = ["Control", "TrainingClock"]

_PAUSED_LOOK_SECONDS = 0.05


class TrainingClock:
    """Seconds spent on training steps: it stands still while something else is done.

    >>> clock = TrainingClock()
    >>> with clock.stopped():
    ...     before = clock.seconds()
    ...     clock.seconds() == before
    True
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._stopped_at: float | None = None

    def seconds(self) -> float:
        """Since the clock was made, without the time that it stood still."""
        now = time.perf_counter() if self._stopped_at is None else self._stopped_at
        return now - self._began

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The clock stands still; inside another such block nothing changes."""
        if self._stopped_at is not None:
            yield
            return
        self._stopped_at = time.perf_counter()
        try:
            yield
        finally:
            self._began += time.perf_counter() - self._stopped_at
            self._stopped_at = None


class Control(AbstractContextManager["Control"]):
    """Carries out the commands that arrive in a run's `control/`, and knows when the training is to end.

    Args:
        writer: of the run; every command is answered by an event of kind ``command``.
        reporter: told what was done.
        interruption: signals, which end a pause too.
        position: how far the training has come.
        schedule: the learning rate of a step, while nobody has set another.
        learning_rate: one that somebody had set, of a run that is resumed.
        keeps_checkpoints: whether the run has any.

    Attributes:
        override: the learning rate that somebody set, or None.
        stopped_by: who asked the training to stop.
        paused_seconds: how long it was paused in all.
    """

    def __init__(
        self,
        writer: RunWriter,
        reporter: Reporter,
        interruption: Interruption,
        position: Position,
        schedule: Callable[[int], float],
        *,
        learning_rate: float | None = None,
        keeps_checkpoints: bool = True,
    ) -> None:
        self.schedule = schedule
        self.override = learning_rate
        self.stopped_by: str | None = None
        self.paused_seconds = 0.0
        self._writer, self._reporter = writer, reporter
        self._interruption, self._position = interruption, position
        self._keeps_checkpoints = keeps_checkpoints
        self._inbox = Inbox(writer.folder, writer.attempt)
        self._paused = False
        self._told_signal = False
        self._save: Callable[[], None] = lambda: None
        self._doing: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext

    def __enter__(self) -> Self:
        """A learning rate that the resumed run had is told."""
        if self.override is not None:
            self._writer.event("learning_rate", self._position.step, value=self.override)
            self._reporter.message(
                f"the learning rate is {self.override:g}, as somebody set it in the run so far: "
                f"`burnt ctl {self._writer.folder} lr auto` goes back to the schedule"
            )
        return self

    def __exit__(self, *_: object) -> None:
        """What has arrived too late is refused."""
        self._tell_signal()
        for found in self._inbox.poll():
            self._answer(found, "refused", "the training has ended")

    def attach(
        self, save: Callable[[], None], doing: Callable[[str], AbstractContextManager[object]]
    ) -> None:
        """Take the loop's ways to write a checkpoint, and to say what it does while a block lasts."""
        self._save, self._doing = save, doing

    @property
    def ending(self) -> bool:
        """Whether a signal or a command wants the training to end."""
        return self._interruption.signal is not None or self.stopped_by is not None

    @property
    def reason(self) -> str:
        """Who or what ended the training, for the run store."""
        if self._interruption.signal is not None:
            return f"interrupted by {self._interruption.signal.name}"
        return f"stopped by {self.stopped_by}"

    def learning_rate(self, step: int) -> float:
        """The learning rate of the step after so many: what somebody set, else the schedule's."""
        return self.schedule(step) if self.override is None else self.override

    def obey(self) -> bool:
        """Carry out what has arrived, and wait while the run is paused; whether the training is to go on."""
        for found in self._inbox.poll():
            self._carry_out(found)
        if self._paused:
            self._wait()
        if self._interruption.signal is not None:
            self._tell_signal()
        return not self.ending

    def _wait(self) -> None:
        self._writer.event("paused", self._position.step)
        with self._doing("paused"):
            began = time.perf_counter()
            # The writer's thread keeps the heartbeat going.
            while self._paused and not self.ending:
                time.sleep(_PAUSED_LOOK_SECONDS)
                for found in self._inbox.poll():
                    self._carry_out(found)
            self.paused_seconds += time.perf_counter() - began
        self._paused = False
        self._writer.event("resumed", self._position.step)

    def _carry_out(self, found: Command | Refused) -> None:
        if isinstance(found, Refused):
            self._answer(found, "refused", found.reason)
            return
        match found.kind:
            case _ if self.stopped_by is not None:
                self._answer(found, "refused", f"the training is being stopped by {self.stopped_by}")
            case "pause" if self._paused:
                self._answer(found, "refused", "the training is paused already")
            case "pause":
                self._paused = True
                self._answer(found, "done")
            case "resume" if not self._paused:
                self._answer(found, "refused", "the training is not paused")
            case "resume":
                self._paused = False
                self._answer(found, "done")
            case "stop":
                self.stopped_by = found.sender
                kept = (
                    "saving a checkpoint"
                    if self._keeps_checkpoints
                    else "nothing is saved: the run keeps no checkpoints"
                )
                self._answer(found, "done", kept)
            case "save":
                self._save_now(found)
            case "lr":
                self.override = found.value if isinstance(found.value, float) else None
                self._writer.event("learning_rate", self._position.step, value=self.override)
                self._answer(found, "done")
            case _:
                self._writer.event("note", self._position.step, text=found.value, sender=found.sender)
                self._answer(found, "done")

    def _save_now(self, command: Command) -> None:
        if not self._keeps_checkpoints:
            self._answer(command, "refused", "the run keeps no checkpoints")
            return
        try:
            self._save()
        except (BurntError, OSError) as error:
            # What is wrong with the loss or the disk ends the training where it would end without this.
            what = error.what if isinstance(error, BurntError) else f"{type(error).__name__}: {error}"
            self._answer(command, "refused", what)
        else:
            self._answer(command, "done")

    def _answer(
        self, found: Command | Refused, status: Literal["done", "refused"], reason: str | None = None
    ) -> None:
        sender = found.sender if isinstance(found, Command) else None
        self._writer.event(
            "command",
            self._position.step,
            id=found.id,
            command=found.kind,
            value=found.value,
            status=status,
            reason=reason,
            sender=sender,
        )
        self._writer.flush(timeout=0)  # who asked is waiting
        self._inbox.answered(found.id)
        value = "" if found.value is None else f" {_printable(str(found.value))}"
        what = f"{found.kind}{value}" if found.kind else f"control/{_printable(found.id)}"
        asked = f" asked for by {_printable(sender)}" if sender else ""
        if status == "refused":
            self._reporter.message(f"{what}{asked} is refused: {reason}")
        else:
            self._reporter.message(
                f"{what}{asked} at step {self._position.step}" + (f": {reason}" if reason else "")
            )

    def _tell_signal(self) -> None:
        if self._interruption.signal is not None and not self._told_signal:
            self._told_signal = True
            self._writer.event("signal", self._position.step, signal=self._interruption.signal.name)


def _printable(text: str) -> str:
    """What somebody else wrote, without what a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
