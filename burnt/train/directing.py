"""What a command does with the training that it starts: `SupervisedTraining.run` hands over to a director.

`burnt train --resume`, `burnt fork` and `burnt replay` call the function that started a run. The first training
that it runs is given to the director, which may change its settings and run it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.errors import RunError

if TYPE_CHECKING:
    from burnt.train.learner import Learner
    from burnt.train.training import SupervisedTraining, TrainingResult

    Director = Callable[[SupervisedTraining, Learner], TrainingResult]

__all__ = ["Resuming", "directed", "take_director"]

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


class Resuming:
    """Director that resumes the run in a folder.

    Args:
        folder: the run folder.
        fork: the run and the step that this one was forked from, for ``config.json``.

    Attributes:
        has_run: whether a training was run.
    """

    def __init__(self, folder: Path, fork: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.has_run = False
        self._fork = fork

    def __call__(self, training: SupervisedTraining, learner: Learner) -> TrainingResult:
        """Run the training with ``resume=True``.

        Raises:
            RunError: it writes to another folder.
        """
        self.has_run = True
        if training.folder.resolve() != self.folder.resolve():
            raise RunError(
                "the program trains in another folder",
                where=str(training.folder),
                expected=str(self.folder),
                hint="give its Config a field `folder`, and train in SupervisedTraining(config.folder, ...)",
            )
        training.resume = True
        training.fork = None if self._fork is None else dict(self._fork)
        return training.run(learner)
