"""Reporters: callbacks that show the progress of a training, in the monitor, a live view or plain lines."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from burnt.errors import FusionWarning, RunError, UnsupportedError
from burnt.store import RunReader, RunWriter
from burnt.train.duration import Position
from burnt.train.events import EpochEnded, Event, Logged, Started, Validated
from burnt.train.format import duration_text, value_text, values_text
from burnt.train.reporting.monitor_process import MonitorProcess
from burnt.train.reporting.notebook import NotebookDisplay, bar_html, curves_html, in_notebook, table_html
from burnt.train.reporting.terminal import no_full_screen_reason, no_terminal_reason

if TYPE_CHECKING:
    from rich.console import RenderableType


MONITORS = ("auto", "tui", "live", "notebook", "plain", "off")
_SECONDS_BETWEEN_LINES = 5.0
_MAX_PENDING = 50  # messages
_MAX_LIVE_COLUMNS = 8  # metrics in the live table
_MAX_PLOTS = 6  # metrics that a notebook shows as curves
_MAX_PLOT_POINTS = 300


class Reporter:
    """A callback that writes messages and values to the run's log, and shows nothing.

    It keeps what was reported last; subclasses show it, by overriding the methods `show_...`.
    """

    def __init__(self) -> None:
        self._writer: RunWriter | None = None
        self._early_messages: list[str] = []  # of before the writer was open
        self._title = ""
        self._position, self._start_step = Position(), 0
        self._epochs: int | None = None
        self._steps: int | None = None
        self._seconds: float | None = None
        self._started_at = self._activity_since = time.monotonic()
        self._values: dict[str, dict[str, float]] = {}  # by split; "now" since the last reading
        self._speed: Mapping[str, float] = {}
        self._activity = "training"

    def open(self, writer: RunWriter) -> None:
        """Take the run's writer, and log the messages of before."""
        self._writer = writer
        for text in self._early_messages:
            self._log(text)

    def on_start(self, event: Started) -> None:
        """Log and show the title."""
        self._title, self._position = event.title, event.training.position
        self._start_step = self._position.step
        self._epochs, self._steps, self._seconds = event.epochs, event.steps, event.seconds
        self._started_at = time.monotonic()
        self._log(event.title)
        self.show_start()

    def on_log(self, event: Logged) -> None:
        """Show the values; the loop writes them to the run store."""
        self._position, self._speed, self._activity = event.training.position, event.speed, "training"
        self._values["now"] = dict(event.values)
        self.show_step()

    def on_epoch(self, event: EpochEnded) -> None:
        """Log and show the values."""
        self._take_values("train", event.values, event)

    def on_validation(self, event: Validated) -> None:
        """Log and show the values."""
        self._take_values(event.split, event.values, event)

    def _take_values(self, split: str, values: Mapping[str, float], event: Event) -> None:
        self._position, self._activity = event.training.position, "training"
        self._values[split] = dict(values)
        self._log(f"epoch {self._position.current_epoch}  {self._split_line(split)}")
        self.show_values(split)

    def activity(self, name: str) -> None:
        """Take the activity when it changes, such as to ``"validating"`` and back to ``"training"``."""
        if self._activity == "paused" != name:  # a pause must not count towards the eta
            self._started_at += time.monotonic() - self._activity_since
        self._activity, self._activity_since = name, time.monotonic()

    def message(self, text: str) -> None:
        """Log and show a message to the user."""
        self._log(text)
        self.show_message(text)

    def handle_signal(self, number: signal.Signals) -> bool:
        """Called on a signal that ends the training; return True to ignore the signal and continue."""
        return False

    @contextlib.contextmanager
    def logging_warnings(self) -> Iterator[None]:
        """Context in which a `FusionWarning`, besides being shown, is a line of the run's log."""
        show = warnings.showwarning

        def show_and_log(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
            if issubclass(category, FusionWarning):
                self._log(str(message), "warning")
            show(message, category, *rest, **named)

        warnings.showwarning = show_and_log
        try:
            yield
        finally:
            warnings.showwarning = show

    def close(self) -> None:
        """Called when the training is over."""
        self._activity = "done"

    def show_start(self) -> None:
        """Show the title."""

    def show_step(self) -> None:
        """Show the values under ``"now"``, read every `log_every` steps."""

    def show_values(self, split: str) -> None:
        """Show the values of a split over an epoch."""

    def show_message(self, text: str) -> None:
        """Show a message."""

    def _log(self, text: str, level: str = "info") -> None:
        if self._writer is None:
            self._early_messages.append(text)
            return
        # Messages after the run is closed, such as how to resume, are not logged.
        with contextlib.suppress(RunError):
            self._writer.log_line(text, level)

    def _splits(self, *first: str) -> list[str]:
        """Return the splits that have values, some of them first."""
        return [split for split in dict.fromkeys((*first, *self._values)) if split in self._values]

    def _cells(self, split: str, names: list[str]) -> list[str]:
        values = self._values[split]
        return [value_text(values[name]) if name in values else "" for name in names]

    def _split_line(self, split: str) -> str:
        width = max(5, *map(len, self._values))
        return f"{split:<{width}}  {values_text(self._values[split])}"

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started_at

    def _eta(self) -> list[str]:
        """Return the estimated time left as text; empty if it is unknown or the training is over."""
        done = self._position.step - self._start_step
        left = [] if self._seconds is None else [self._seconds - self._position.seconds]
        if self._steps and done:
            left.append(self._elapsed / done * (self._steps - self._position.step))
        # Not below 0: an iterable may give more batches than its length.
        return [f"eta {duration_text(max(min(left), 0))}"] if left and self._activity != "done" else []

    def _counts(self) -> tuple[str, str]:
        """Return epoch and step, with their totals."""
        epochs = f"/{self._epochs}" if self._epochs else ""
        steps = f"/{self._steps:,}" if self._steps else ""
        return f"epoch {self._position.current_epoch}{epochs}", f"step {self._position.step:,}{steps}"

    def _progress(self) -> tuple[float, float | None]:
        """Return what is done and the total, in steps or seconds, whichever ends first; None if unknown."""
        totals = [(self._position.step, self._steps), (self._position.seconds, self._seconds)]
        known = [(done, total) for done, total in totals if total]
        return max(known, key=lambda pair: pair[0] / pair[1], default=(self._position.step, None))


def check_monitor(monitor: str) -> str:
    """Check a ``monitor=`` setting and return it; ``auto`` becomes ``BURNT_MONITOR`` if that is set."""
    where = None
    if monitor == "auto" and os.environ.get("BURNT_MONITOR"):
        where, monitor = "the environment variable BURNT_MONITOR", os.environ["BURNT_MONITOR"]
    if monitor not in MONITORS:
        raise UnsupportedError(
            f"monitor={monitor!r} does not exist",
            where=where,
            expected="auto, tui, live, notebook, plain or off",
            found=repr(monitor),
        )
    if monitor == "notebook" and not in_notebook():
        raise UnsupportedError(
            "monitor='notebook' cannot be shown here",
            where=where,
            expected="the kernel of a notebook",
            found="a process without one",
            hint="use monitor='auto'",
        )
    if monitor == "tui" and (reason := no_full_screen_reason()) is not None:
        raise UnsupportedError(
            "monitor='tui' cannot be shown here",
            where=where,
            expected="a terminal in the foreground, and textual",
            found=reason,
            hint="pip install 'burnt[tui]'" if "textual" in reason else "use monitor='auto' or 'plain'",
        )
    return monitor


def choose_reporter(monitor: str) -> Reporter:
    """Return the reporter for a ``monitor=`` setting; ``auto`` selects the best one for this terminal."""
    monitor = check_monitor(monitor)
    if monitor == "notebook" or (monitor == "auto" and in_notebook()):
        return NotebookReporter()
    if monitor == "plain" or (monitor == "auto" and no_terminal_reason() is not None):
        return PlainReporter(sys.stdout)
    if monitor == "tui" or (monitor == "auto" and no_full_screen_reason() is None):
        return MonitorReporter()
    return Reporter() if monitor == "off" else LiveReporter()


class PlainReporter(Reporter):
    """Prints a line for each epoch and split, and one every few seconds in between, for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._last_printed = time.monotonic()
        self._output_closed = False

    def show_start(self) -> None:
        """Print the title."""
        self._print_line(self._title)

    def show_step(self) -> None:
        """Print a line if the last one is at least 5 seconds old."""
        if time.monotonic() - self._last_printed < _SECONDS_BETWEEN_LINES:
            return
        parts = [
            f"{self._epoch_label()}  step {self._position.step}" + (f"/{self._steps}" if self._steps else ""),
            values_text(self._values["now"]),
            f"{self._speed['samples_per_second']:,.0f} samples/s",
        ]
        self._print_line("  ".join([*parts, *self._eta()]))

    def show_values(self, split: str) -> None:
        """Print the values."""
        self._print_line(f"{self._epoch_label()}  {self._split_line(split)}")

    def show_message(self, text: str) -> None:
        """Print the text."""
        self._print_line(text)

    def _epoch_label(self) -> str:
        total = f"/{self._epochs}" if self._epochs else ""
        return f"epoch {self._position.current_epoch:>{len(total) - 1 if total else 1}}{total}"

    def _print_line(self, text: str) -> None:
        self._last_printed = time.monotonic()
        if self._output_closed:
            return
        try:
            print(text, file=self._out, flush=True)
        except OSError:
            # The reader is gone (`| head`, a closed terminal); the run store still records everything.
            self._output_closed = True


class MonitorReporter(PlainReporter):
    """Shows the full-screen monitor, run by the monitor process; prints plain lines before and after it.

    Messages that arrive while the monitor has the terminal are printed when it closes.
    """

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self._monitor: MonitorProcess | None = None
        self._pending: deque[str] = deque(maxlen=_MAX_PENDING)
        self._close_at_once = False

    def show_start(self) -> None:
        """Print the title and open the monitor."""
        super().show_start()
        assert self._writer is not None
        self._monitor = MonitorProcess(
            self._writer.folder, on_line=lambda text: self._log(text, "output"), on_return=self._on_return
        )
        self._monitor.open()

    def show_message(self, text: str) -> None:
        """Print the text, now or when the monitor closes."""
        # Append before the check: the monitor may close at any moment, and its thread then prints the queue.
        self._pending.append(text)
        if not self._showing():
            self._print_pending()

    def handle_signal(self, number: signal.Signals) -> bool:
        """Ignore SIGHUP while the monitor process exists: a closed terminal does not end the training."""
        if self._monitor is None or number.name != "SIGHUP":
            # The sender of SIGTERM waits for the program to end.
            self._close_at_once = number != signal.SIGINT
            return False
        self._monitor.hang_up()
        # The signal may have interrupted a print; printing then raises RuntimeError (reentrant call).
        with contextlib.suppress(RuntimeError):
            self.message(f"{number.name}: the terminal was closed; the training continues without it.")
        return True

    def close(self) -> None:
        """Close the monitor and take the terminal back."""
        super().close()
        if self._monitor is not None:
            self._monitor.close(at_once=self._close_at_once)

    def _showing(self) -> bool:
        return self._monitor is not None and self._monitor.showing

    def _print_line(self, text: str) -> None:
        if not self._showing():
            super()._print_line(text)

    def _print_pending(self) -> None:
        with contextlib.suppress(IndexError):  # all were printed, by this thread or another
            while True:
                self._print_line(self._pending.popleft())

    def _on_return(self, why: str | None) -> None:
        """Print pending messages and why the monitor closed; called from the monitor's thread."""
        self._print_pending()
        if self._monitor is not None and self._monitor.has_output:
            self._print_line(f"Output printed while the monitor was open: {self._monitor.output}")
        if why is not None:
            self._print_line(why)


class LiveReporter(Reporter):
    """Shows a progress bar and a table, redrawn four times a second, with messages above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._console = Console()
        self._live = Live(
            self, console=self._console, refresh_per_second=4, transient=False, redirect_stderr=False
        )

    def show_start(self) -> None:
        """Print the title and open the view."""
        self.show_message(self._title)
        self._live.start()

    def show_message(self, text: str) -> None:
        """Print the text above the view."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Draw the last state, leave it on the screen and release the terminal."""
        super().close()
        self._live.stop()

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = Table.grid(padding=(0, 1))
        epoch, step = self._counts()
        done, total = self._progress()
        cells: list[Any] = [
            f"[bold]{epoch}[/]",
            ProgressBar(total=total or 1, completed=done if total else 0, width=28, pulse=not total),
            step,
            f"[dim]{duration_text(self._elapsed)}[/]",
            *(f"[dim]{eta}[/]" for eta in self._eta()),
            f"[cyan]{self._activity}[/]",
        ]
        bar.add_row(*cells)
        names = list(dict.fromkeys(name for values in self._values.values() for name in values))
        if not names:
            return bar
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("")
        num_hidden = len(names) - _MAX_LIVE_COLUMNS
        names = names[:_MAX_LIVE_COLUMNS]
        for name in names:
            table.add_column(Text(name), justify="right")
        if num_hidden > 0:
            table.add_column(f"+{num_hidden}")
        for split in self._splits("now", "train", "valid"):
            table.add_row(Text(split), *self._cells(split, names))
        speed = ""
        if self._speed:
            rate, share = self._speed["learning_rate"], self._speed["data_wait_share"]
            speed = (
                f"[dim]  {self._speed['samples_per_second']:,.0f} samples/s, learning rate {rate:.3g}, "
                f"waiting for data {share:.0%}[/]"
            )
        return Group(bar, table, speed)


class NotebookReporter(Reporter):
    """Shows a progress bar, a table and curves in the output of a notebook's cell, updated in place.

    The curves are read from the run store, so a resumed run's curves begin with the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._display = NotebookDisplay()
        self._next_draw = 0.0

    def show_start(self) -> None:
        """Show the title and an empty bar."""
        self._draw()

    def show_step(self) -> None:
        """Show the values, unless the last drawing is too recent."""
        start = time.monotonic()
        if start >= self._next_draw:
            self._draw()
            # A twentieth of the time at most: pictures are sent from the training's thread.
            now = time.monotonic()
            self._next_draw = now + max(0.5, 20 * (now - start))

    def show_values(self, split: str) -> None:
        """Show the values, unless the last drawing is too recent."""
        self.show_step()

    def activity(self, name: str) -> None:
        """Show a pause; other activities are shown with the next values."""
        super().activity(name)
        if name == "paused":
            self._draw()

    def show_message(self, text: str) -> None:
        """Print the text below the display."""
        print(text)  # noqa: T201  # the output of the cell

    def close(self) -> None:
        """Show the last state."""
        super().close()
        self._draw()

    def _draw(self) -> None:
        splits = self._splits("now", "train")
        names = list(dict.fromkeys(name for split in splits for name in self._values[split]))
        text = self._progress_text()
        html_text = bar_html(*self._progress(), text, self._title)
        html_text += table_html(names, {split: self._cells(split, names) for split in splits})
        html_text += curves_html(self._curves(names), "step")
        lines = [self._title, text, *(f"{split:<5}  {values_text(self._values[split])}" for split in splits)]
        self._display.show(html_text, "\n".join(lines))

    def _progress_text(self) -> str:
        parts = [*self._counts(), duration_text(self._elapsed), *self._eta()]
        if self._speed:
            parts.append(f"{self._speed['samples_per_second']:,.0f} samples/s")
        return ", ".join([*parts, self._activity])

    def _curves(self, names: list[str]) -> dict[str, dict[str, tuple[list[int], list[float]]]]:
        """Return the points of each metric and split that has a curve."""
        curves: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
        if self._writer is None:
            return curves
        # A run that cannot be read, since its folder was deleted, has no curves; its training goes on.
        with contextlib.suppress(RunError), RunReader(self._writer.folder) as reader:
            for series in reader.series():
                if series.name in names:
                    points = reader.points(*series, max_points=_MAX_PLOT_POINTS)
                    if len(points.steps) > 1:
                        curves.setdefault(series.name, {})[series.split] = points.steps, points.values
        shown = [name for name in names if name in curves][:_MAX_PLOTS]
        return {name: curves[name] for name in shown}
