"""Run commands (pause, save, stop, ...), executed between training steps; and the training's clock.

The loop calls `Control.process_commands` after each step and before each validation batch. Only the command
`stop` ends the training: a command that cannot be executed is refused, with the reason.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self

from burnt.errors import BurntError, TakenOverError, clean
from burnt.store import RunWriter
from burnt.store.control import Command, Inbox, Refused
from burnt.train.control.end_reason import Interruption
from burnt.train.duration import Position

if TYPE_CHECKING:
    from burnt.train.ranks.ranks import Ranks

_PAUSED_POLL_SECONDS = 0.05


class TrainingClock:
    """Measures the seconds spent on training steps; it can be stopped during other work.

    >>> clock = TrainingClock()
    >>> with clock.stopped():
    ...     before = clock.seconds()
    ...     clock.seconds() == before
    True
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._started_at = time.perf_counter() - seconds
        self._stopped_at: float | None = None

    def seconds(self) -> float:
        """Return the seconds since the clock was created, without the time it was stopped, and the first."""
        now = time.perf_counter() if self._stopped_at is None else self._stopped_at
        return now - self._started_at

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock while the block runs; a nested block has no effect."""
        if self._stopped_at is not None:
            yield
            return
        self._stopped_at = time.perf_counter()
        try:
            yield
        finally:
            self._started_at += time.perf_counter() - self._stopped_at
            self._stopped_at = None


class _CommandRefused(Exception):
    """Why a command cannot be executed."""


class Control(AbstractContextManager["Control"]):
    """Executes the commands that arrive in a run's `control/`, and decides when the training must end.

    `override` is the learning rate set by a command, or None, and `override_factor` that rate over the one
    that was scheduled for its first step, or 1 if that is 0; None before this step. A resumed run begins with
    both as a command had set them before. The factor multiplies the rates of `groups`, which are those of
    parameters with a schedule of their own.
    """

    def __init__(
        self,
        writer: RunWriter,
        message: Callable[[str], None],
        interruption: Interruption,
        position: Position,
        schedule: Callable[[int], float],
        *,
        learning_rate: float | None = None,
        rate_factor: float | None = None,
        groups: Collection[str] = (),
        keeps_checkpoints: bool = True,
        ranks: Ranks | None = None,
    ) -> None:
        self.schedule = schedule
        self.override = learning_rate
        self.override_factor = rate_factor
        self._groups = groups
        self.stopped_by: str | None = None
        self.paused_seconds = 0.0
        self._writer, self._message = writer, message
        self._interruption, self._position = interruption, position
        self._keeps_checkpoints = keeps_checkpoints
        self._inbox = Inbox(writer.lease)
        self._ranks = ranks
        # Whose signal ends the training; of several ranks that which all of them know of.
        self._agreed: Any = interruption if ranks is None else SimpleNamespace(signal=None)
        if ranks is not None:
            ranks.poll = lambda: (interruption.signal, self._inbox.poll())
        self._paused = False
        self._signal_recorded = False
        self._save: Callable[[], None] = lambda: None
        self._show_activity: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext

    def __enter__(self) -> Self:
        """Record and report the learning rate that a command set before the run was resumed."""
        if self.override is not None:
            self._writer.event("learning_rate", self._position.step, value=self.override)
            self._message(
                f"The learning rate stays at {self.override:g}, set by an earlier command. "
                f"To return to the schedule: burnt ctl {self._writer.folder} lr auto"
            )
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Refuse commands that arrived too late."""
        if isinstance(error, TakenOverError):
            return  # they are for the other process
        self._record_signal()
        for command in self._inbox.poll():
            self._answer(command, "refused", "the training has ended")

    def attach(
        self, save: Callable[[], None], show_activity: Callable[[str], AbstractContextManager[object]]
    ) -> None:
        """Set the loop's functions that write a checkpoint and that show an activity while a block runs."""
        self._save, self._show_activity = save, show_activity

    @property
    def is_ending(self) -> bool:
        """Whether a signal or a command requested the end of the training."""
        return self._agreed.signal is not None or self.stopped_by is not None

    @property
    def stop_signal(self) -> signal.Signals | None:
        """The signal that ends the training; with several ranks, once all of them know of it."""
        number: signal.Signals | None = self._agreed.signal
        return number

    @property
    def reason(self) -> str:
        """Return the signal or the sender that ended the training, as text for the run store."""
        if self.stop_signal is not None:
            return f"interrupted by {self.stop_signal.name}"
        return f"stopped by {self.stopped_by}"

    def learning_rate(self, step: int) -> float:
        """Return the learning rate after `step` steps: the one set by a command, else the schedule's."""
        if self.override is None:
            return self.schedule(step)
        if self.override_factor is None:
            # Only once: relative to a schedule that decays to 0, a constant rate becomes infinite.
            scheduled = self.schedule(step)
            self.override_factor = self.override / scheduled if scheduled > 0 else 1.0
        return self.override

    @property
    def rate_factor(self) -> float:
        """The factor by which a command changed the learning rate; for rates that the optimizer schedules."""
        return 1.0 if self.override is None or self.override_factor is None else self.override_factor

    def process_commands(self) -> bool:
        """Execute new commands and wait while the run is paused; return whether the training continues."""
        self._writer.check()
        for command in self._inbox.poll() if self._ranks is None else self._common(self._ranks):
            self._execute(command)
        if self._paused:
            self._wait_while_paused()
        if self._agreed.signal is not None:
            self._record_signal()
        return not self.is_ending

    def _common(self, ranks: Ranks) -> list[Command | Refused]:
        """Return the commands that any rank has got, and note its signal: all ranks do the same."""
        number, commands = ranks.common_commands()
        if number is not None:
            self._agreed.signal = signal.Signals(number)
        return commands

    def _wait_while_paused(self) -> None:
        self._writer.event("paused", self._position.step)
        with self._show_activity("paused"):
            began = time.perf_counter()
            # The writer's thread updates the heartbeat meanwhile.
            while self._paused and not self.is_ending:
                time.sleep(_PAUSED_POLL_SECONDS)
                self._writer.check()
                for command in self._inbox.poll() if self._ranks is None else self._common(self._ranks):
                    self._execute(command)
            self.paused_seconds += time.perf_counter() - began
        self._paused = False
        self._writer.event("resumed", self._position.step)

    def _execute(self, command: Command | Refused) -> None:
        try:
            outcome = self._outcome(command)
        except _CommandRefused as refusal:
            self._answer(command, "refused", str(refusal))
        else:
            self._answer(command, "done", outcome)

    def _outcome(self, command: Command | Refused) -> str | None:
        """Do what a command says; return what it led to, where that is not plain."""
        if isinstance(command, Refused):
            raise _CommandRefused(command.reason)
        match command.kind:
            case _ if self.stopped_by is not None:
                raise _CommandRefused(f"{self.stopped_by} is stopping the training")
            case "pause" | "resume" if self._paused == (command.kind == "pause"):
                raise _CommandRefused(f"the training is {'already' if self._paused else 'not'} paused")
            case "pause" | "resume":
                self._paused = command.kind == "pause"
            case "stop":
                self.stopped_by = command.sender
                if self._keeps_checkpoints:
                    return "saving a checkpoint"
                return "nothing is saved, because checkpoints are off for this run"
            case "save" if not self._keeps_checkpoints:
                raise _CommandRefused("checkpoints are off for this run")
            case "save":
                try:
                    self._save()
                except (BurntError, OSError) as error:
                    # A failed save must not end the training earlier than it would end without this command.
                    text = error.what if isinstance(error, BurntError) else f"{type(error).__name__}: {error}"
                    raise _CommandRefused(text) from error
            case "lr":
                self.override = command.value if isinstance(command.value, float) else None
                self.override_factor = None
                self._writer.event("learning_rate", self._position.step, value=self.override)
                return self._group_rates()
            case _:
                self._writer.event("note", self._position.step, text=command.value, sender=command.sender)
        return None

    def _group_rates(self) -> str | None:
        """Return what a command has changed for the rates that groups of parameters schedule."""
        if not self._groups:
            return None
        names = f"{'group' if len(self._groups) == 1 else 'groups'} {', '.join(self._groups)}"
        if self.override is None:
            return f"{names} as scheduled"
        scheduled = self.schedule(self._position.step)
        return f"{names} by the factor {self.override / scheduled if scheduled > 0 else 1:.4g}"

    def _answer(
        self, command: Command | Refused, status: Literal["done", "refused"], reason: str | None = None
    ) -> None:
        sender = command.sender if isinstance(command, Command) else None
        self._writer.event(
            "command",
            self._position.step,
            id=command.id,
            command=command.kind,
            value=command.value,
            status=status,
            reason=reason,
            sender=sender,
        )
        self._writer.flush(timeout=0)  # the sender is waiting for the answer
        self._inbox.mark_answered(command.id)
        value = "" if command.value is None else f" {clean(str(command.value))}"
        what = f"{command.kind}{value}" if command.kind else f"control/{clean(command.id)}"
        origin = f" from {clean(sender)}" if sender else ""
        if status == "refused":
            self._message(f"{what}{origin} refused: {reason}")
        else:
            self._message(f"{what}{origin} at step {self._position.step}" + (f": {reason}" if reason else ""))

    def _record_signal(self) -> None:
        if self.stop_signal is not None and not self._signal_recorded:
            self._signal_recorded = True
            self._writer.event("signal", self._position.step, signal=self.stop_signal.name)
