"""How a training ends: finished, stopped by a signal, or crashed and why, as the run store has it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Literal, Self

import torch

from burnt.errors import BurntError, NonFiniteError
from burnt.store import RunWriter
from burnt.train.duration import Position

Cause = Literal["exception", "nan", "out of memory"]

_MAX_TRACEBACK_CHARACTERS = 20_000  # of a traceback; recursion errors are long

# Messages of allocators that raise a generic RuntimeError.
_OUT_OF_MEMORY_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "alloc_failed",
    "cannot allocate memory",
)


class Ending(AbstractContextManager["Ending"]):
    """Context manager that closes a run with its end state and reason, and records an error as an event.

    `reason` says why the training ended, if no error was raised.
    """

    def __init__(self, writer: RunWriter, position: Position) -> None:
        self.reason = "finished"
        self._writer = writer
        self._position = position

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._writer.close("finished" if self.reason == "finished" else "stopped", self.reason)
        elif isinstance(error, KeyboardInterrupt):
            self._writer.close("stopped", "interrupted at once; nothing was saved after the last checkpoint")
        else:
            self._writer.event("error", self._position.step, **_error_details(error))
            self._writer.close("crashed", f"{type(error).__name__}: {error}")


def cause_of(error: BaseException) -> Cause:
    """Return the cause of an error: ``"nan"``, ``"out of memory"`` or ``"exception"``.

    >>> cause_of(MemoryError()), cause_of(ValueError("no such file"))
    ('out of memory', 'exception')
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:  # the cause may be further up the chain
        seen.add(id(current))
        if isinstance(current, NonFiniteError):
            return "nan"
        if isinstance(current, MemoryError | torch.OutOfMemoryError):
            return "out of memory"
        text = current.found if isinstance(current, BurntError) else str(current)
        if isinstance(current, RuntimeError | BurntError) and any(
            word in str(text).lower() for word in _OUT_OF_MEMORY_MESSAGES
        ):
            return "out of memory"
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "exception"


def _error_details(error: BaseException) -> dict[str, object]:
    text = "".join(traceback.format_exception(error))
    if len(text) > _MAX_TRACEBACK_CHARACTERS:
        half = _MAX_TRACEBACK_CHARACTERS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half:,} characters ...\n{text[-half:]}"
    details: dict[str, object] = {
        "error": type(error).__name__,
        "message": str(error),
        "cause": cause_of(error),
        "traceback": text,
    }
    if isinstance(error, NonFiniteError) and error.steps is not None:
        details["first_step"], details["last_step"] = error.steps
        if error.samples is not None:
            details["samples"] = error.samples
    return details


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
