"""Dry runs: a training function is called, its training is checked and does not start (`burnt check`)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakTensorKeyDictionary

from burnt.errors import BurntError
from burnt.train.control.intercepting import use_first_training
from burnt.train.reporting.progress import Reporter


@dataclasses.dataclass
class Findings:
    """What a dry run has checked."""

    checked: dict[str, str]  # subject -> what was found, {"model": "Digits, 92,042 parameters"}
    warnings: list[str]  # what the training would warn of, and what could not be checked


class ValuesNeeded(Exception):
    """Raised where the values of meta parameters are needed; the function is then called with real ones."""


class CollectingReporter(Reporter):
    """Keeps the messages of a training."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        """Keep a message."""
        self.messages.append(text.removeprefix("Warning: "))


def dry_run(function: Callable[[], object]) -> Findings:
    """Call a function, and return what `SupervisedTraining.run` has checked in it instead of training.

    Only the first training is checked, since what follows may need its results. The parameters of modules
    are meta tensors; if the function or a check needs their values, the function is called a second time
    with real ones. Any error of the function or of the checks is raised.
    """

    def check() -> Findings:
        name = getattr(function, "__qualname__", type(function).__name__)
        found: Findings = use_first_training(
            function, lambda training, learner: training.check_only(learner), name
        )
        return found

    try:
        with _meta_parameters():
            return check()
    except BurntError as error:
        if "meta" not in str(error):
            raise
    except Exception:
        # Where a meta tensor has no values, torch and the user's code may raise anything; if the error has
        # another cause, the second call raises it again.
        pass
    return check()


@contextlib.contextmanager
def _meta_parameters() -> Iterator[None]:
    """Context in which each parameter that a module registers is replaced by a meta tensor.

    The memory of the original, which is not written yet as a rule, is freed at once.
    """
    meta_copies = WeakTensorKeyDictionary()  # a parameter that two modules share has one copy

    def replace(
        module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None
    ) -> torch.nn.Parameter | None:
        if parameter is None or parameter.is_meta or type(parameter) is not torch.nn.Parameter:
            return parameter
        if parameter not in meta_copies:
            meta = torch.empty_like(parameter.detach(), device="meta")
            meta_copies[parameter] = torch.nn.Parameter(meta, requires_grad=parameter.requires_grad)
        meta_copy: torch.nn.Parameter = meta_copies[parameter]
        return meta_copy

    # Its annotation leaves out what its documentation says: the hook may return another parameter.
    handle = register_module_parameter_registration_hook(replace)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()
