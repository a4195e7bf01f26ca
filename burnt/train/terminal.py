"""The terminal that a training was started in: whether a full screen can be shown there, and lending it.

`LentTerminal` is for a program that draws on the terminal while this process goes on without one: descriptors
0, 1 and 2 point elsewhere until the terminal is taken back, in whatever state that program left it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import termios
import threading
from pathlib import Path
from typing import Any

__all__ = [
    "LentTerminal",
    "in_foreground",
    "leave_screen",
    "no_full_screen",
    "no_terminal",
    "restore_terminal",
]

_RESET = b"".join(
    (
        b"\x1b\\",  # ends an escape sequence that was cut off
        b"\x1b[?2026l",  # no synchronised update under way
        b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l",  # no mouse reports
        b"\x1b[?2004l\x1b[?1004l\x1b[?2048l",  # no bracketed paste, no reports of focus and resizing
        b"\x1b[?7h\x1b[?25h\x1b[0m",  # long lines wrap, the cursor shows, plain text
    )
)
# The keyboard's protocol as it was, which is the screen's own, and then the normal screen. Sent a second time
# both would undo what was there before.
_LEAVE = b"\x1b[<u\x1b[?1049l\x1b[?25h"


def no_terminal() -> str | None:
    """Why nobody is taken to look at a terminal that standard output leads to; None if somebody may."""
    if not sys.stdout.isatty():
        return "standard output is no terminal"
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return "TERM says that the terminal can do nothing"
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return "the environment variable CI is set"
    if "PYTEST_CURRENT_TEST" in os.environ:
        return "a test is running"
    if not in_foreground(1):
        return "the process runs in the background"
    return None


def no_full_screen() -> str | None:
    """Why the full-screen monitor cannot be opened here; None if it can."""
    reason = no_terminal()
    if reason is not None:
        return reason
    if not os.isatty(0):
        return "standard input is no terminal"
    if _descriptor(sys.stdout) != 1:
        return "sys.stdout is not the process's standard output"
    if threading.current_thread() is not threading.main_thread():
        return "the training runs outside of the main thread"
    if importlib.util.find_spec("textual") is None:
        return "textual is not installed"
    return None


def in_foreground(descriptor: int) -> bool:
    """Whether this process belongs to those that the terminal's keyboard is for; without a terminal, no."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def restore_terminal(descriptor: int, attributes: list[Any], *, tidy: bool) -> bool:
    """Put a terminal's modes back, whatever a full-screen program left behind.

    Args:
        descriptor: leads to the terminal.
        attributes: what `termios.tcgetattr` told before.
        tidy: the program left the alternate screen itself.

    Returns:
        Whether there still is a terminal. One that is another process group's by now is let be.
    """
    try:
        termios.tcgetattr(descriptor)
        if in_foreground(descriptor):
            os.write(descriptor, _RESET if tidy else _RESET + _LEAVE)
            termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
            termios.tcflush(descriptor, termios.TCIFLUSH)  # reports of the mouse that nobody read
    except (OSError, termios.error):
        return False
    return True


def leave_screen(descriptor: int) -> None:
    """Make a terminal show what it did before a full-screen program; its modes are somebody else's affair."""
    with contextlib.suppress(OSError):  # it is gone
        os.write(descriptor, _RESET + _LEAVE)


class LentTerminal:
    """Takes standard input, output and error off the terminal, as far as they lead there.

    Reading finds the end of the input, and what is printed goes to a file: by Python, by C libraries, and by
    processes that are started or forked meanwhile.

    Args:
        output: the file, which is added to.

    Raises:
        OSError: the file cannot be written, or the terminal is gone.

    Attributes:
        descriptor: leads to the terminal, for the program that it is lent to.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._lock = threading.RLock()  # a signal's handler may come in between
        self._lent = True
        self._taken = [number for number in (0, 1, 2) if os.isatty(number)]
        self._copies = {number: os.dup(number) for number in self._taken}
        self.descriptor = self._copies[1]
        try:
            self._attributes = termios.tcgetattr(self.descriptor)
            self._divert()
        except BaseException as error:
            for copy in self._copies.values():
                os.close(copy)
            if isinstance(error, termios.error):
                raise OSError(*error.args) from error
            raise

    def take_back(self, *, tidy: bool) -> bool:
        """Put everything back as it was; a second call does nothing.

        Args:
            tidy: the other program left the alternate screen itself.

        Returns:
            Whether there still is a terminal. If not, the descriptors stay where they are.
        """
        with self._lock:
            if not self._lent:
                return True
            self._lent = False
            alive = restore_terminal(self.descriptor, self._attributes, tidy=tidy)
            if alive:
                _flush()
            for number, copy in self._copies.items():
                if alive:
                    os.dup2(copy, number)
                os.close(copy)
            return alive

    def give_up(self) -> None:
        """The terminal is gone or about to go: nothing printed may lead there, or it would be an error."""
        with self._lock:
            if not self._lent:
                self._divert()

    def _divert(self) -> None:
        with self._output.open("ab") as output, open(os.devnull, "rb") as nothing:
            _flush()
            for number in self._taken:
                os.dup2((nothing if number == 0 else output).fileno(), number)


def _flush() -> None:
    """What was printed goes to where descriptors 1 and 2 lead now."""
    for stream in (sys.stdout, sys.stderr):
        # A stream in the middle of a print (this may be a signal's handler), closed, or whose reader is gone.
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            stream.flush()
    # Of C's streams only this one: another may be locked by a thread that waits for input.
    libc = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # a C library that names it otherwise
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))


def _descriptor(stream: object) -> int | None:
    try:
        return stream.fileno()  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, OSError, ValueError):
        return None
