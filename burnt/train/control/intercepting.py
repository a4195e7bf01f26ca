"""Do something else with the training that a function runs, instead of training.

`burnt train --resume`, `fork`, `replay` and `check` call a function that trains. The first training that it
runs is given to an interceptor, which may change its settings, run it, or do something else instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from burnt.errors import DefinitionError

T = TypeVar("T")
Interceptor = Callable[[Any, Any], T]
"""A function of a `SupervisedTraining` and its Learner, whose result `SupervisedTraining.run` returns."""

_INTERCEPTOR: ContextVar[Interceptor[Any] | None] = ContextVar("_INTERCEPTOR", default=None)


@contextlib.contextmanager
def intercepting(interceptor: Interceptor[Any], name: str) -> Iterator[None]:
    """Context in which the first training that is run is given to `interceptor` instead.

    If none is run, it raises a DefinitionError at its end, which calls what runs in the context `name`.
    """
    token = _INTERCEPTOR.set(interceptor)
    try:
        yield
        if _INTERCEPTOR.get() is not None:
            raise DefinitionError(
                "the function trains nothing",
                where=name,
                expected="a call of SupervisedTraining.run",
                found="none",
            )
    finally:
        _INTERCEPTOR.reset(token)


def intercept_run() -> Interceptor[Any] | None:
    """Return the interceptor of this context, once."""
    interceptor = _INTERCEPTOR.get()
    if interceptor is not None:
        _INTERCEPTOR.set(None)
    return interceptor


class _RunIntercepted(BaseException):
    """Leaves a function that trains. No `Exception`: the function must not take it for a failure."""


def use_first_training(call: Callable[[], object], interceptor: Interceptor[T], name: str) -> T:
    """Call a function up to the first training that it runs, and return what `interceptor` makes of it.

    The function is left there, because its later lines may need the model trained. An error names it `name`.

    >>> from burnt import nn, optim
    >>> from burnt.train import Learner, SupervisedTraining
    >>> def program():
    ...     training = SupervisedTraining("runs/net", train=[{}], duration="1 epoch")
    ...     training.run(Learner(nn.Linear(1, 1), optim.AdamW(), 1e-3, step=lambda model, batch: None))
    ...     print("never reached")
    >>> use_first_training(program, lambda training, learner: training.folder.name, "program")
    'net'
    """
    results: list[T] = []

    def use(training: Any, learner: Any) -> None:
        results.append(interceptor(training, learner))
        raise _RunIntercepted

    with contextlib.suppress(_RunIntercepted), intercepting(use, name):
        call()
    return results[0]
