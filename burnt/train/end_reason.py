"""Records in the run store how a training ended: finished, stopped, or crashed and why."""

from __future__ import annotations

import traceback
from contextlib import AbstractContextManager
from typing import Literal

import torch

from burnt.errors import BurntError, NonFiniteError
from burnt.train.duration import Position
from burnt.train.store import RunWriter

__all__ = ["Cause", "Ending", "cause_of"]

Cause = Literal["exception", "nan", "out of memory"]

_MOST_CHARACTERS = 20_000  # of a traceback; recursion errors are long

# Messages of allocators that raise a generic RuntimeError.
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "alloc_failed",
    "cannot allocate memory",
)


class Ending(AbstractContextManager["Ending"]):
    """Context manager that closes a run with its end state and reason, and records an error as an event.

    Args:
        writer: the run's writer.
        position: the current position of the training.

    Attributes:
        reason: why the training ended, if no error was raised.
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
            self._writer.event("error", self._position.step, **_facts(error))
            self._writer.close("crashed", f"{type(error).__name__}: {error}")


def cause_of(error: BaseException) -> Cause:
    """Return the cause of an error: ``"nan"``, ``"out of memory"`` or ``"exception"``.

    >>> cause_of(MemoryError()), cause_of(ValueError("no such file"))
    ('out of memory', 'exception')
    """
    seen: set[int] = set()
    known: BaseException | None = error
    while known is not None and id(known) not in seen:  # the cause is often in the exception that it was raised from
        seen.add(id(known))
        if isinstance(known, NonFiniteError):
            return "nan"
        if isinstance(known, MemoryError | torch.OutOfMemoryError):
            return "out of memory"
        text = known.found if isinstance(known, BurntError) else str(known)
        if isinstance(known, RuntimeError | BurntError) and any(
            word in str(text).lower() for word in _NO_MEMORY
        ):
            return "out of memory"
        known = known.__cause__ or (None if known.__suppress_context__ else known.__context__)
    return "exception"


def _facts(error: BaseException) -> dict[str, object]:
    text = "".join(traceback.format_exception(error))
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half:,} characters ...\n{text[-half:]}"
    facts: dict[str, object] = {
        "error": type(error).__name__,
        "message": str(error),
        "cause": cause_of(error),
        "traceback": text,
    }
    if isinstance(error, NonFiniteError) and error.steps is not None:
        facts["first_step"], facts["last_step"] = error.steps
    return facts
