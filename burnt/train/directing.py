"""What a command does with the training that it starts: `SupervisedTraining.run` hands over to a director.

`burnt train --resume`, `burnt fork` and `burnt replay` call the function that started a run. The first
training that it runs is given to the director, which may change its settings and run it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["Director", "directed", "take_director"]

Director = Callable[[Any, Any], Any]
"""A function of a `SupervisedTraining` and its Learner that returns a `TrainingResult`."""

_DIRECTOR: ContextVar[Director | None] = ContextVar("_DIRECTOR", default=None)


@contextlib.contextmanager
def directed(director: Director) -> Iterator[None]:
    """Context in which the first training that is run is given to `director` instead."""
    token = _DIRECTOR.set(director)
    try:
        yield
    finally:
        _DIRECTOR.reset(token)


def take_director() -> Director | None:
    """Return the director of this context, once."""
    director = _DIRECTOR.get()
    if director is not None:
        _DIRECTOR.set(None)
    return director
