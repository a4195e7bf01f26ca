"""The monitor as the child process of a training, in the training's terminal.

The parent is `burnt.train.reporting.monitor_process`. The child draws on standard output, as its standard
error is a log; it sends the parent a heartbeat; and it exits when the parent has died, or when another
process owns the terminal, such as a shell that has suspended the training. POSIX only, like its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from burnt.train.reporting.terminal import in_foreground, leave_screen, restore_terminal

if sys.platform != "win32":
    import termios


_HEARTBEAT_SECONDS = 0.5
_WATCH_SECONDS = 0.25


class StdoutDriver(LinuxDriver):
    """Textual's driver, drawing on standard output instead of standard error."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        assert sys.__stdout__ is not None
        self._file = sys.__stdout__

    def start_application_mode(self) -> None:
        """Start or resume; exit if the shell has resumed this process in the background."""
        if not in_foreground(self.fileno):
            os._exit(0)
        super().start_application_mode()  # type: ignore[no-untyped-call]


class Attachment:
    """The connection to the parent process; create it before the app starts.

    Args:
        parent: the parent's process id.
        folder: the folder of its run.
        pulse: file descriptor of a pipe to the parent for heartbeats; None sends none.
    """

    driver_class = StdoutDriver

    def __init__(self, parent: int, folder: Path, pulse: int | None = None) -> None:
        self.parent = parent
        self._output = folder / "logs" / "output.log"
        self._pulse = pulse
        self._is_suspended = False
        # A separate descriptor: the app's can be redirected while this one still reaches the terminal.
        self._terminal = os.dup(1)
        self._attributes = termios.tcgetattr(0)
        if pulse is not None:
            os.set_blocking(pulse, False)

    def start(self, app: App[Any]) -> None:
        """Start the heartbeat and the watch thread; call it in the app's thread before the first screen."""
        if self._pulse is not None:
            self._send_heartbeat()
            app.set_interval(_HEARTBEAT_SECONDS, self._send_heartbeat)
        # A thread, so that even a hanging app releases the terminal of a training that has died.
        threading.Thread(target=self._watch_parent, name="burnt-monitor-guard", daemon=True).start()

    def suspend(self, app: App[Any]) -> None:
        """Suspend to the shell like every process of the job (Ctrl-Z)."""
        self._is_suspended = True
        with app.suspend():
            os.kill(0, signal.SIGTSTP)
        self._is_suspended = False

    def _send_heartbeat(self) -> None:
        assert self._pulse is not None
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the parent is suspended or has died
            os.write(self._pulse, b".")

    def _watch_parent(self) -> None:
        while True:
            is_orphaned, owns_terminal = os.getppid() != self.parent, in_foreground(self._terminal)
            if is_orphaned or not owns_terminal:
                self._exit(is_orphaned=is_orphaned, owns_terminal=owns_terminal)
            time.sleep(_WATCH_SECONDS)

    def _exit(self, *, is_orphaned: bool, owns_terminal: bool) -> None:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)  # hide what the app still draws
        if not self._is_suspended:
            if owns_terminal:
                restore_terminal(self._terminal, self._attributes, tidy=False)
            else:
                leave_screen(self._terminal)
        if is_orphaned:
            text = f"The training (process {self.parent}) has died: it was killed or it crashed.\r\n"
            with contextlib.suppress(OSError):
                if self._output.stat().st_size:
                    text += f"Its output is in {self._output}.\r\n"
            with contextlib.suppress(OSError):
                os.write(self._terminal, text.encode())
        os._exit(0)
