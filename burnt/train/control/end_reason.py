"""Records in the run store how a training ended: finished, stopped, or crashed and why."""

from __future__ import annotations

import traceback
from contextlib import AbstractContextManager
from typing import Literal

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
