"""Learner: a model, an optimizer, a schedule, and what a step is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from burnt._torch import compiled_in_place
from burnt.errors import DefinitionError
from burnt.optim import Constant, Optimizer
from burnt.train.step import StepOutput

__all__ = ["Learner", "StepFunction"]

StepFunction = Callable[[torch.nn.Module, Any], StepOutput]
"""What a step is when the model has no `training_step`: model and batch in, StepOutput out."""


class Learner:
    """What is trained, and how a step of it goes.

    Args:
        model: a burnt Module or any torch module. What `torch.compile` wrapped is taken as compiled in place,
            so that its steps run compiled and its parameters keep their paths.
        optimizer: an optimizer of `burnt.optim`.
        schedule: the learning rate: a schedule of `burnt.optim`, a number, or a function of the steps done.
        step: ``step(model, batch) -> StepOutput`` for a model without a `training_step`.
        validation_step: the same for validation; the model's `validation_step`, or the step, by default.

    Raises:
        DefinitionError: the model has no `training_step` and no step was given; no optimizer of burnt.

    >>> import burnt
    >>> from burnt import nn, optim
    >>> def step(model, batch):
    ...     return burnt.train.StepOutput(loss=model(batch.x).square().mean(), targets=batch.y)
    >>> learner = Learner(nn.Linear(2, 1), optim.AdamW(), optim.Cosine(1e-3, steps=100), step=step)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        schedule: float | Callable[[int], float],
        step: StepFunction | None = None,
        validation_step: StepFunction | None = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise DefinitionError(
                "the Learner needs an optimizer of burnt",
                expected="burnt.optim.AdamW() or another, made without parameters",
                found=type(optimizer).__name__,
            )
        if step is None and not callable(getattr(model, "training_step", None)):
            raise DefinitionError(
                f"{type(model).__name__} does not say what a training step is",
                expected="a method training_step(batch) -> StepOutput, or Learner(..., step=function)",
                found="neither",
            )
        if step is None:
            step = _method("training_step")
            if validation_step is None and callable(getattr(model, "validation_step", None)):
                validation_step = _method("validation_step")
        self.model = compiled_in_place(model)
        self.optimizer = optimizer
        self.schedule = schedule if callable(schedule) else Constant(float(schedule))
        self.step = step
        self.validation_step = validation_step or step


def _method(name: str) -> StepFunction:
    def call(model: torch.nn.Module, batch: Any) -> StepOutput:
        output: StepOutput = getattr(model, name)(batch)
        return output

    call.__qualname__ = name
    return call


class Steps(torch.nn.Module):
    """A model's steps as its `forward`: what wraps the model (hooks, DDP) sees them through `__call__`."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.model = learner.model
        self._training = learner.step
        self._validation = learner.validation_step

    def forward(self, batch: Any, validating: bool = False) -> StepOutput:
        """One step on a batch.

        Raises:
            DefinitionError: the step returned something else than a StepOutput.
        """
        step = self._validation if validating else self._training
        return checked_output(step(self.model, batch), step, "validation" if validating else "training")


def checked_output(output: Any, step: StepFunction, kind: str) -> StepOutput:
    """What a step returned, if it is what a step returns.

    Raises:
        DefinitionError: it is something else.
    """
    if not isinstance(output, StepOutput):
        raise DefinitionError(
            f"the {kind} step returned no StepOutput",
            where=getattr(step, "__qualname__", repr(step)),
            expected="burnt.train.StepOutput(loss=..., outputs=..., targets=...)",
            found=type(output).__name__,
        )
    return output
