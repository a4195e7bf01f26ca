"""Signal handling: the first SIGINT, SIGTERM or SIGHUP finishes the step and saves; the second stops now."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    _SIGNALS.append(signal.SIGHUP)


class Interrupted(SystemExit):
    """Raised after a signal interrupted the training and its state was saved.

    It is a `SystemExit`: a program that does not catch it ends without a traceback and with the exit code
    that shells expect: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """


class Interruption:
    """Context manager that catches SIGINT, SIGTERM and SIGHUP; does nothing outside of the main thread.

    An ignored SIGHUP, as under nohup, stays ignored. `announce` is given a message at the first signal.
    `should_ignore` is called at each; if it returns True, the training continues as if there was none.
    """

    def __init__(
        self,
        announce: Callable[[str], None],
        should_ignore: Callable[[signal.Signals], bool] = lambda number: False,
    ) -> None:
        self.signal: signal.Signals | None = None
        self._announce = announce
        self._should_ignore = should_ignore
        self._previous: dict[signal.Signals, object] = {}
        self._process = os.getpid()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def error(self) -> Interrupted:
        """Return the exception to raise once everything is saved."""
        assert self.signal is not None
        return Interrupted(128 + self.signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A forked worker, for example of a DataLoader. Ctrl-C reaches it too, but the step in progress
            # may need its batch, so only SIGTERM ends it.
            if number == signal.SIGTERM:
                signal.signal(number, self._previous[signal.SIGTERM])  # type: ignore[arg-type]
                signal.raise_signal(number)
            return
        if self._should_ignore(signal.Signals(number)):
            return
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        # The signal may have interrupted a print; printing again then raises RuntimeError (reentrant call).
        again = "Press Ctrl-C again" if self.signal == signal.SIGINT else f"Send {self.signal.name} again"
        with contextlib.suppress(RuntimeError):
            self._announce(f"Stop requested: finishing this step, then saving. {again} to stop now.")
