"""The training's terminal: checks whether a full-screen program can run in it, and lends it to one.

While a `LentTerminal` is lent to another program, this process continues without a terminal: descriptors 0, 1
and 2 are redirected until the terminal is taken back and its state restored. Windows has no such terminals.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import termios


_RESET = b"".join(
    (
        b"\x1b\\",  # ends an escape sequence that was cut off
        b"\x1b[?2026l",  # ends a synchronised update
        b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l",  # no mouse reports
        b"\x1b[?2004l\x1b[?1004l\x1b[?2048l",  # no bracketed paste, no reports of focus and resizing
        b"\x1b[?7h\x1b[?25h\x1b[0m",  # long lines wrap, the cursor shows, plain text
    )
)
# Restore the keyboard protocol (each screen has its own), then leave the alternate screen. Send it only once:
# a second time would undo the state of before the program.
_LEAVE = b"\x1b[<u\x1b[?1049l\x1b[?25h"


def no_terminal_reason() -> str | None:
    """Return why standard output is not an interactive terminal, or None if it is one."""
    if not sys.stdout.isatty():
        return "standard output is not a terminal"
    if sys.platform == "win32":
        return "Windows has no POSIX terminal"
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return "TERM is unset, dumb or unknown"
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return "the environment variable CI is set"
    if "PYTEST_CURRENT_TEST" in os.environ:
        return "a test is running"
    if not in_foreground(1):
        return "the process runs in the background"
    return None


def no_full_screen_reason() -> str | None:
    """Return why the full-screen monitor cannot be opened here, or None if it can."""
    reason = no_terminal_reason()
    if reason is not None:
        return reason
    if not os.isatty(0):
        return "standard input is not a terminal"
    if _descriptor(sys.stdout) != 1:
        return "sys.stdout is redirected in Python"
    if threading.current_thread() is not threading.main_thread():
        return "the training does not run on the main thread"
    if importlib.util.find_spec("textual") is None:
        return "textual is not installed"
    return None


def in_foreground(descriptor: int) -> bool:
    """Whether this process is in the terminal's foreground process group; False without a terminal."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def restore_terminal(descriptor: int, attributes: list[Any], *, tidy: bool) -> bool:
    """Restore a terminal's modes after a full-screen program; return whether the terminal still exists.

    `attributes` is what `termios.tcgetattr` returned before the program started, and `tidy` whether the
    program left the alternate screen itself. If another process group is in the foreground, nothing changes.
    """
    try:
        termios.tcgetattr(descriptor)
        if in_foreground(descriptor):
            os.write(descriptor, _RESET if tidy else _RESET + _LEAVE)
            termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
            termios.tcflush(descriptor, termios.TCIFLUSH)  # discard unread mouse reports
    except (OSError, termios.error):
        return False
    return True


def leave_screen(descriptor: int) -> None:
    """Leave the alternate screen of a full-screen program, without restoring the terminal's modes."""
    with contextlib.suppress(OSError):  # the terminal is gone
        os.write(descriptor, _RESET + _LEAVE)


class LentTerminal:
    """Redirects the standard streams that are the terminal, so that another program can use the terminal.

    Meanwhile reading from standard input returns end of file, and output goes to a file: that of Python, of C
    libraries, and of child processes started or forked meanwhile. `descriptor` is one of the terminal, for
    the program that borrows it. An OSError says that the file cannot be written, or the terminal is gone.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._lock = threading.RLock()  # reentrant, because a signal handler may interrupt a method
        self._is_lent = True
        self._redirected = [number for number in (0, 1, 2) if os.isatty(number)]
        self._copies = {number: os.dup(number) for number in self._redirected}
        self.descriptor = self._copies[1]
        try:
            self._attributes = termios.tcgetattr(self.descriptor)
            self._redirect()
        except BaseException as error:
            for copy in self._copies.values():
                os.close(copy)
            if isinstance(error, termios.error):
                raise OSError(*error.args) from error
            raise

    def take_back(self, *, tidy: bool) -> bool:
        """Restore the terminal and the descriptors; a second call does nothing.

        Returned is whether the terminal still exists; if not, the descriptors stay redirected.
        """
        with self._lock:
            if not self._is_lent:
                return True
            self._is_lent = False
            alive = restore_terminal(self.descriptor, self._attributes, tidy=tidy)
            if alive:
                _flush()
            for number, copy in self._copies.items():
                if alive:
                    os.dup2(copy, number)
                os.close(copy)
            return alive

    def give_up(self) -> None:
        """Redirect the descriptors because the terminal is closing: printing to it would raise an error."""
        with self._lock:
            if not self._is_lent:
                self._redirect()

    def _redirect(self) -> None:
        with self._output.open("ab") as output, open(os.devnull, "rb") as null:
            _flush()
            for number in self._redirected:
                os.dup2((null if number == 0 else output).fileno(), number)


def _flush() -> None:
    """Flush Python's and C's standard streams, before descriptors 1 and 2 are redirected."""
    for stream in (sys.stdout, sys.stderr):
        # The stream may be in the middle of a print (in a signal handler), closed, or without a reader.
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            stream.flush()
    # Flush only C's stdout: another stream may be locked by a thread that waits for input.
    libc = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # this C library has another name for it
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))


def _descriptor(stream: object) -> int | None:
    try:
        return stream.fileno()  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, OSError, ValueError):
        return None
