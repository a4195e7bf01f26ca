"""What a training says while it runs: the full-screen monitor, a live view, plain lines, nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from burnt.errors import RunError, UnsupportedError
from burnt.train.duration import Position
from burnt.train.format import duration_text, value_text, values_text
from burnt.train.monitor_process import MonitorProcess
from burnt.train.store import RunWriter
from burnt.train.terminal import no_full_screen, no_terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "MONITORS",
    "KeptReporter",
    "LiveReporter",
    "MonitorReporter",
    "PlainReporter",
    "Reporter",
    "check_monitor",
    "choose_reporter",
    "duration_text",
]

MONITORS = ("auto", "tui", "live", "plain", "off")
_SECONDS_BETWEEN_LINES = 5.0
_UNSAID = 50  # messages


class Reporter:
    """What the loop tells of itself. This one keeps it to itself; others override what they show."""

    def open(self, writer: RunWriter) -> None:
        """The run's folder is there, and what is kept of the run goes through a writer."""

    def start(self, title: str, position: Position, epochs: int | None, steps: int | None) -> None:
        """The training begins at a position, towards so many epochs and steps in all, where known."""

    def step(self, position: Position, values: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """Metrics were read."""

    def epoch(self, position: Position, split: str, values: Mapping[str, float]) -> None:
        """A split's values over an epoch are known."""

    def activity(self, name: str) -> None:
        """Something else than training takes its time."""

    def message(self, text: str) -> None:
        """A person should know this."""

    def signalled(self, number: signal.Signals) -> bool:
        """A signal came that would end the training; whether it goes on nevertheless."""
        return False

    def close(self) -> None:
        """The training is over."""


def check_monitor(monitor: str) -> str:
    """A ``monitor=`` setting that can be carried out here.

    For ``auto`` it is what the environment variable ``BURNT_MONITOR`` says, if that is set.

    Raises:
        UnsupportedError: there is no such setting, or it cannot be carried out.
    """
    where = None
    if monitor == "auto" and os.environ.get("BURNT_MONITOR"):
        where, monitor = "the environment variable BURNT_MONITOR", os.environ["BURNT_MONITOR"]
    if monitor not in MONITORS:
        raise UnsupportedError(
            f"monitor={monitor!r} does not exist",
            where=where,
            expected="auto, tui, live, plain or off",
            found=repr(monitor),
        )
    if monitor == "tui" and (reason := no_full_screen()) is not None:
        raise UnsupportedError(
            "monitor='tui' cannot be shown here",
            where=where,
            expected="a terminal in the foreground, and textual",
            found=reason,
            hint="pip install 'burnt[tui]'" if "textual" in reason else "'auto' takes what the place allows",
        )
    return monitor


def choose_reporter(monitor: str) -> Reporter:
    """The reporter for a ``monitor=`` setting; ``auto`` is what fits the place.

    Raises:
        UnsupportedError: there is no such setting, or it cannot be carried out here.
    """
    monitor = check_monitor(monitor)
    if monitor == "auto":
        monitor = "plain" if no_terminal() is not None else "tui" if no_full_screen() is None else "live"
    if monitor == "tui":
        return MonitorReporter()
    if monitor == "live":
        return LiveReporter()
    return PlainReporter(sys.stdout) if monitor == "plain" else Reporter()


class KeptReporter(Reporter):
    """Another reporter, and what it tells persons kept in the run store's log.

    Args:
        shown: the other.
    """

    def __init__(self, shown: Reporter) -> None:
        self.shown = shown
        self._writer: RunWriter | None = None
        self._early: list[str] = []

    def open(self, writer: RunWriter) -> None:
        """Keep what was said so far as well."""
        self._writer = writer
        for text in self._early:
            writer.log_line(text)
        self.shown.open(writer)

    def start(self, title: str, position: Position, epochs: int | None, steps: int | None) -> None:
        """Keep the title."""
        self._keep(title)
        self.shown.start(title, position, epochs, steps)

    def step(self, position: Position, values: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """Passed on; the values are in the run store anyway."""
        self.shown.step(position, values, speed)

    def epoch(self, position: Position, split: str, values: Mapping[str, float]) -> None:
        """Keep a line."""
        self._keep(f"epoch {position.current_epoch}  {split:<5}  {values_text(values)}")
        self.shown.epoch(position, split, values)

    def activity(self, name: str) -> None:
        """Passed on."""
        self.shown.activity(name)

    def message(self, text: str) -> None:
        """Keep the text."""
        self._keep(text)
        self.shown.message(text)

    def signalled(self, number: signal.Signals) -> bool:
        """Say so if it is outlived."""
        outlived = self.shown.signalled(number)
        if outlived:
            # The signal may have come in the middle of a print, which lets no other one in between.
            with contextlib.suppress(RuntimeError):
                self.message(f"{number.name}: the training goes on without its terminal")
        return outlived

    def close(self) -> None:
        """Passed on."""
        self.shown.close()

    def _keep(self, text: str) -> None:
        if self._writer is None:
            self._early.append(text)
        else:
            _keep(self._writer, text, "info")


def _keep(writer: RunWriter, text: str, level: str) -> None:
    # What is said once the run is closed, of how to go on for one, is no part of it.
    with contextlib.suppress(RunError):
        writer.log_line(text, level)


class PlainReporter(Reporter):
    """A line for each epoch and split, and one every few seconds in between, for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._spoke = time.monotonic()
        self._gone = False
        self._steps: int | None = None
        self._epochs: int | None = None

    def start(self, title: str, position: Position, epochs: int | None, steps: int | None) -> None:
        """The title, and where a resumed training goes on."""
        self._epochs, self._steps = epochs, steps
        self._say(title)

    def step(self, position: Position, values: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """A line, if the last one is some seconds old."""
        if time.monotonic() - self._spoke < _SECONDS_BETWEEN_LINES:
            return
        parts = [
            f"{self._where(position)}  step {position.step}" + (f"/{self._steps}" if self._steps else "")
        ]
        parts += [values_text(values), f"{speed['samples_per_second']:,.0f} samples/s"]
        if self._steps and speed["steps_per_second"]:
            parts.append("eta " + duration_text((self._steps - position.step) / speed["steps_per_second"]))
        self._say("  ".join(parts))

    def epoch(self, position: Position, split: str, values: Mapping[str, float]) -> None:
        """The values of a split over an epoch."""
        self._say(f"{self._where(position)}  {split:<5}  {values_text(values)}")

    def message(self, text: str) -> None:
        """The text."""
        self._say(text)

    def _where(self, position: Position) -> str:
        total = f"/{self._epochs}" if self._epochs else ""
        return f"epoch {position.current_epoch:>{len(total) - 1 if total else 1}}{total}"

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        if self._gone:
            return
        try:
            print(text, file=self._out, flush=True)
        except OSError:
            # Who was reading is gone (`| head`, a closed terminal); the run store has it all.
            self._gone = True


class MonitorReporter(PlainReporter):
    """The full-screen monitor in a process of its own; plain lines before it and after it.

    Messages that come while it shows are printed when it is closed.
    """

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self._companion: MonitorProcess | None = None
        self._writer: RunWriter | None = None
        self._unsaid: deque[str] = deque(maxlen=_UNSAID)
        self._hurry = False

    def open(self, writer: RunWriter) -> None:
        """Nothing to be seen yet."""
        self._writer = writer

    def start(self, title: str, position: Position, epochs: int | None, steps: int | None) -> None:
        """The title, and the monitor."""
        super().start(title, position, epochs, steps)
        assert self._writer is not None
        self._companion = MonitorProcess(self._writer.folder, printed=self._printed, returned=self._returned)
        self._companion.open()

    def message(self, text: str) -> None:
        """The text, now or later."""
        # Appended before the look: the monitor may close on its thread, which empties this, at any moment.
        self._unsaid.append(text)
        if not self._showing():
            self._say_unsaid()

    def signalled(self, number: signal.Signals) -> bool:
        """A terminal that is closed does not end a training that does not need it."""
        if self._companion is None or number != signal.SIGHUP:
            self._hurry = number != signal.SIGINT  # who sends SIGTERM waits for the end, not for the monitor
            return False
        self._companion.hang_up()
        return True

    def close(self) -> None:
        """Take the terminal back."""
        if self._companion is not None:
            self._companion.close(at_once=self._hurry)

    def _showing(self) -> bool:
        return self._companion is not None and self._companion.showing

    def _say(self, text: str) -> None:
        if not self._showing():
            super()._say(text)

    def _say_unsaid(self) -> None:
        while True:
            try:
                text = self._unsaid.popleft()
            except IndexError:  # all is said, by this thread or by another
                return
            self._say(text)

    def _printed(self, text: str) -> None:
        assert self._writer is not None
        _keep(self._writer, text, "output")

    def _returned(self, why: str | None) -> None:
        """The terminal is back; told on a thread of the monitor's."""
        self._say_unsaid()
        if self._companion is not None and self._companion.has_output:
            self._say(f"what was printed meanwhile is in {self._companion.output}")
        if why is not None:
            self._say(why)


class LiveReporter(Reporter):
    """A bar and a table that renew themselves four times a second; messages scroll by above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(
            self, console=self._console, refresh_per_second=4, transient=False, redirect_stderr=False
        )
        self._title = ""
        self._position = Position()
        self._start_step = 0
        self._epochs: int | None = None
        self._steps: int | None = None
        self._began = self._paused = time.monotonic()
        self._values: dict[str, dict[str, float]] = {}
        self._speed: Mapping[str, float] = {}
        self._activity = "training"

    def start(self, title: str, position: Position, epochs: int | None, steps: int | None) -> None:
        """Open the view."""
        self._title, self._position, self._start_step = title, position, position.step
        self._epochs, self._steps, self._began = epochs, steps, time.monotonic()
        self._console.print(title, markup=False, highlight=False)
        self._live.start()

    def step(self, position: Position, values: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """Keep the values for the next picture."""
        self._position, self._speed = position, speed
        self._values["now"] = dict(values)
        self._activity = "training"

    def epoch(self, position: Position, split: str, values: Mapping[str, float]) -> None:
        """Keep the values for the next picture."""
        self._position = position
        self._values[split] = dict(values)
        self._activity = "training"

    def activity(self, name: str) -> None:
        """Show what is going on."""
        if self._activity == "paused" != name:
            self._began += time.monotonic() - self._paused  # a pause says nothing about the time that is left
        self._activity, self._paused = name, time.monotonic()

    def message(self, text: str) -> None:
        """Print above the view."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last picture standing and give the terminal back."""
        self._activity = "done"
        self._live.stop()

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        position, elapsed = self._position, time.monotonic() - self._began
        bar = Table.grid(padding=(0, 1))
        epochs = f"/{self._epochs}" if self._epochs else ""
        steps = f"/{self._steps:,}" if self._steps else ""
        cells: list[Any] = [f"[bold]epoch {position.current_epoch}{epochs}[/]"]
        cells.append(ProgressBar(total=self._steps, completed=position.step, width=28, pulse=not self._steps))
        cells.append(f"step {position.step:,}{steps}")
        cells.append(f"[dim]{duration_text(elapsed)}[/]")
        done = position.step - self._start_step
        if self._steps and done and self._activity != "done":
            left = elapsed / done * (self._steps - position.step)
            cells.append(f"[dim]eta {duration_text(left)}[/]")
        cells.append(f"[cyan]{self._activity}[/]")
        bar.add_row(*cells)
        names = list(dict.fromkeys(name for values in self._values.values() for name in values))
        if not names:
            return bar
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("")
        for name in names:
            table.add_column(name, justify="right")
        for split in ("now", "train", "valid"):
            if split in self._values:
                row = self._values[split]
                table.add_row(split, *(value_text(row[n]) if n in row else "" for n in names))
        speed = ""
        if self._speed:
            rate, share = self._speed["learning_rate"], self._speed["data_wait_share"]
            speed = (
                f"[dim]  {self._speed['samples_per_second']:,.0f} samples/s, learning rate {rate:.3g}, "
                f"waiting for data {share:.0%}[/]"
            )
        return Group(bar, table, speed)
