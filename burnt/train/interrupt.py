"""Ctrl-C, SIGTERM and a lost terminal: once to finish the step and save, twice to stop at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

__all__ = ["Interrupted", "Interruption"]


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(SystemExit):
    """A training that was interrupted has saved what it had.

    A `SystemExit`, so that a program which does nothing about it ends quietly with the exit code that shells
    expect: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """


class Interruption:
    """Catches SIGINT, SIGTERM and SIGHUP while it is entered; does nothing outside of the main thread.

    A SIGHUP that is ignored, as under nohup, stays ignored.

    Args:
        announce: told what was asked for, at the first signal.
        outlive: asked at each signal whether the training goes on as if it had not come.
    """

    def __init__(
        self,
        announce: Callable[[str], None],
        outlive: Callable[[signal.Signals], bool] = lambda number: False,
    ) -> None:
        self.signal: signal.Signals | None = None
        self._announce = announce
        self._outlive = outlive
        self._previous: dict[signal.Signals, object] = {}
        self._process = os.getpid()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def error(self) -> Interrupted:
        """What to raise once everything is saved."""
        assert self.signal is not None
        return Interrupted(128 + self.signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A forked worker, of a DataLoader for one. Ctrl-C reaches it too, and the step that is to be
            # finished may need its batch; whoever ends it does so by SIGTERM.
            if number == signal.SIGTERM:
                signal.signal(number, self._previous[signal.SIGTERM])  # type: ignore[arg-type]
                signal.raise_signal(number)
            return
        if self._outlive(signal.Signals(number)):
            return
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        # The signal may have come in the middle of a print, which lets no other one in between.
        with contextlib.suppress(RuntimeError):
            self._announce(f"{self.signal.name}: finishing the step and saving; once more to stop at once")
