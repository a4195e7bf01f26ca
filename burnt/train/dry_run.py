"""Dry runs: a training function is called, its training is checked and does not start (`burnt check`)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from burnt.errors import DefinitionError
from burnt.train.progress import Reporter

__all__ = ["CollectingReporter", "Findings", "TrainingChecked", "dry_run", "is_dry_run"]

_IS_DRY_RUN: ContextVar[bool] = ContextVar("_IS_DRY_RUN", default=False)


@dataclasses.dataclass
class Findings:
    """What a dry run has checked.

    Args:
        checked: subject -> what was found, ``{"model": "Digits, 92,042 parameters"}``.
        warnings: what the training would warn of, and what could not be checked.
    """

    checked: dict[str, str]
    warnings: list[str]


class TrainingChecked(BaseException):
    """Leaves a training function in a dry run, once its training is checked.

    It is no `Exception`, so that the function does not take it for a failure of the training.
    """

    def __init__(self, findings: Findings) -> None:
        super().__init__("the training was only checked")
        self.findings = findings


class CollectingReporter(Reporter):
    """Keeps the messages of a training."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        """Keep a message."""
        self.messages.append(text.removeprefix("Warning: "))


def is_dry_run() -> bool:
    """Whether trainings are to be checked only."""
    return _IS_DRY_RUN.get()


def dry_run(function: Callable[[], object]) -> Findings:
    """Call a function, and return what `SupervisedTraining.run` has checked in it instead of training.

    Only the first training is checked, since what follows may need its results.

    Raises:
        DefinitionError: the function runs no training.
        Exception: any error of the function or of the checks.
    """
    with _dry_runs():
        try:
            function()
        except TrainingChecked as checked:
            return checked.findings
    raise DefinitionError(
        "the function trains nothing",
        where=getattr(function, "__qualname__", None),
        expected="a call of SupervisedTraining.run",
        found="none",
    )


@contextlib.contextmanager
def _dry_runs() -> Iterator[None]:
    token = _IS_DRY_RUN.set(True)
    try:
        yield
    finally:
        _IS_DRY_RUN.reset(token)
