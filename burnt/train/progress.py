"""What a training says while it runs: plain lines, or a live view in a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from burnt.errors import UnsupportedError
from burnt.train.duration import Position

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["LiveReporter", "PlainReporter", "Reporter", "choose_reporter", "duration_text"]

_SECONDS_BETWEEN_LINES = 5.0


class Reporter:
    """What the loop tells of itself. This one keeps it to itself; others override what they show."""

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

    def close(self) -> None:
        """The training is over."""


def choose_reporter(monitor: str) -> Reporter:
    """The reporter for a ``monitor=`` setting: live in a terminal, plain lines elsewhere.

    Raises:
        UnsupportedError: no such setting.
    """
    if monitor not in ("auto", "live", "plain", "off"):
        raise UnsupportedError(
            f"monitor={monitor!r} does not exist", expected="auto, live, plain or off", found=repr(monitor)
        )
    terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if monitor == "off":
        return Reporter()
    if monitor == "live" or (monitor == "auto" and terminal):
        return LiveReporter()
    return PlainReporter(sys.stdout)


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
        self._began = time.monotonic()
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
        self._activity = name

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


def value_text(value: float) -> str:
    """A metric's value as people read it."""
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def values_text(values: Mapping[str, float]) -> str:
    """Several values on one line."""
    return "  ".join(f"{name} {value_text(value)}" for name, value in values.items())


def duration_text(seconds: float) -> str:
    """Seconds as people read them: ``4.2 s``, ``2:05``, ``1:02:05``.

    >>> duration_text(4.21), duration_text(125), duration_text(3725)
    ('4.2 s', '2:05', '1:02:05')
    """
    if seconds < 59.95:  # what is shown as 60.0 is a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
