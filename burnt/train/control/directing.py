"""What a command does with the training of a function: `SupervisedTraining.run` hands over to a director.

`burnt train --resume`, `fork`, `replay` and `check` call a function that trains. The first training that it
runs is given to the director, which may change its settings, run it, or do something else instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from burnt.errors import DefinitionError

T = TypeVar("T")
Director = Callable[[Any, Any], T]
"""A function of a `SupervisedTraining` and its Learner, whose result `SupervisedTraining.run` returns."""

_DIRECTOR: ContextVar[Director[Any] | None] = ContextVar("_DIRECTOR", default=None)


@contextlib.contextmanager
def directed(director: Director[Any], name: str) -> Iterator[None]:
    """Context in which the first training that is run is given to `director` instead.

    Args:
        director: the function.
        name: of what is called in the context, for the message.

    Raises:
        DefinitionError: at its end, if no training was run.
    """
    token = _DIRECTOR.set(director)
    try:
        yield
        if _DIRECTOR.get() is not None:
            raise DefinitionError(
                "the function trains nothing",
                where=name,
                expected="a call of SupervisedTraining.run",
                found="none",
            )
    finally:
        _DIRECTOR.reset(token)


def take_director() -> Director[Any] | None:
    """Return the director of this context, once."""
    director = _DIRECTOR.get()
    if director is not None:
        _DIRECTOR.set(None)
    return director


class _Leave(BaseException):
    """Leaves a function that trains. No `Exception`: the function must not take it for a failure."""


def use_first_training(call: Callable[[], object], director: Director[T], name: str) -> T:
    """Call a function up to the first training that it runs, and return what `director` makes of it.

    The function is left there, because its later lines may need the model trained.

    Args:
        call: the function.
        director: is given the training and its Learner.
        name: of the function, for the message.

    Raises:
        DefinitionError: it runs no training.
        Exception: any error of the two.

    >>> from burnt import nn, optim
    >>> from burnt.train import Learner, SupervisedTraining
    >>> def program():
    ...     model = nn.Linear(1, 1)
    ...     training = SupervisedTraining("runs/net", train=[{}], duration="1 epoch")
    ...     training.run(Learner(model, optim.AdamW(), 1e-3, step=lambda model, batch: None))
    ...     print("never reached")
    >>> use_first_training(program, lambda training, learner: training.folder.name, "program")
    'net'
    """
    results: list[T] = []

    def use(training: Any, learner: Any) -> None:
        results.append(director(training, learner))
        raise _Leave

    with contextlib.suppress(_Leave), directed(use, name):
        call()
    return results[0]
