"""The monitor as the child of a training, in whose terminal it shows; the parent is
`burnt.train.monitor_process`.

The terminal is not the monitor's own. It draws on standard output, since its standard error is a log; it
tells the parent that it lives; and it goes when the parent is gone, or when the terminal is somebody else's:
a shell's, that has stopped the training.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from burnt.train.terminal import in_foreground, leave_screen, restore_terminal

__all__ = ["Attachment", "StdoutDriver"]

_HEARTBEAT_SECONDS = 0.5
_WATCH_SECONDS = 0.25


class Attachment:
    """The ties to the parent; made before the app is started.

    Args:
        parent: its process id.
        folder: its run's folder.
        pulse: a pipe to it, if it listens.
    """

    def __init__(self, parent: int, folder: Path, pulse: int | None = None) -> None:
        self.parent = parent
        self._output = folder / "logs" / "output.log"
        self._pulse = pulse
        self._is_suspended = False
        # The app's own way to the terminal can be cut off without losing this one.
        self._terminal = os.dup(1)
        self._attributes = termios.tcgetattr(0)
        if pulse is not None:
            os.set_blocking(pulse, False)

    def start(self, app: App[Any]) -> None:
        """The first picture is about to be shown; called where the app handles its keys."""
        if self._pulse is not None:
            self._send_heartbeat()
            app.set_interval(_HEARTBEAT_SECONDS, self._send_heartbeat)
        # A thread, so that an app that hangs does not keep the terminal of a training that is gone.
        threading.Thread(target=self._watch_parent, name="burnt-monitor-guard", daemon=True).start()

    def suspend(self, app: App[Any]) -> None:
        """Ctrl-Z: give the terminal to the shell, and stop as every process of the job does."""
        self._is_suspended = True
        with app.suspend():
            os.kill(0, signal.SIGTSTP)
        self._is_suspended = False

    def _send_heartbeat(self) -> None:
        assert self._pulse is not None
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # a parent that is stopped, or gone
            os.write(self._pulse, b".")

    def _watch_parent(self) -> None:
        while True:
            is_orphaned, owns_terminal = os.getppid() != self.parent, in_foreground(self._terminal)
            if is_orphaned or not owns_terminal:
                self._exit(is_orphaned=is_orphaned, owns_terminal=owns_terminal)
            time.sleep(_WATCH_SECONDS)

    def _exit(self, *, is_orphaned: bool, owns_terminal: bool) -> None:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)  # what the app still draws is not to be seen
        if not self._is_suspended:
            if owns_terminal:
                restore_terminal(self._terminal, self._attributes, tidy=False)
            else:
                leave_screen(self._terminal)
        if is_orphaned:
            text = (
                f"the training (process {self.parent}) is gone without a word: it was killed, or crashed\r\n"
            )
            with contextlib.suppress(OSError):
                if self._output.stat().st_size:
                    text += f"what it printed is in {self._output}\r\n"
            with contextlib.suppress(OSError):
                os.write(self._terminal, text.encode())
        os._exit(0)


class StdoutDriver(LinuxDriver):
    """Textual's driver, on standard output."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        assert sys.__stdout__ is not None
        self._file = sys.__stdout__

    def start_application_mode(self) -> None:
        """Also after the process was stopped; perhaps the shell let it go on in the background."""
        if not in_foreground(self.fileno):
            os._exit(0)
        super().start_application_mode()  # type: ignore[no-untyped-call]
