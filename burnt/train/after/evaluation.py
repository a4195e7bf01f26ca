"""Evaluation: metrics of a model over batches, outside of a training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from burnt._hints import explain_arguments
from burnt._torch import compiled_in_place
from burnt.data import as_loader, move
from burnt.data.dataset import class_names
from burnt.errors import DefinitionError
from burnt.train.learner import Learner, StepFunction, Steps, model_step
from burnt.train.loop import run_validation
from burnt.train.metrics import Metric, intervals, read
from burnt.train.metrics.monitored_metric import loss_first
from burnt.train.placement import device_of, device_types
from burnt.train.updates.precision import autocast, check_precision, float32_matmuls


@explain_arguments(device="the model is evaluated where it is: model.to(device)")
def evaluate(
    model: Learner | torch.nn.Module,
    batches: Any,
    metrics: Sequence[Metric] = (),
    *,
    step: StepFunction | None = None,
    precision: str | None = None,
) -> dict[str, float]:
    """Compute metrics over batches, without gradients and in evaluation mode.

    Args:
        model: a model, or the Learner that trains it; it stays on its devices, and its training mode is
            restored. Its parameters are those in place: after a training the averages of `optim.Ema`; in a
            loop of your own, call `optimizer.eval(model)` before.
        batches: a loader, or any iterable of batches.
        metrics: reset, then updated in place, so that a `ConfusionMatrix` can be read afterwards.
        step: ``step(model, batch) -> StepOutput``; by default the validation step of the Learner, or the
            model's method `validation_step` or `training_step`.
        precision: as in `SupervisedTraining`, without a change of the parameters; by default the
            precision of the Learner's last training, and ``"float32"`` for a model.

    Returns:
        name -> value, for the loss and the metrics that are a single number.

    Raises:
        DefinitionError: `model` is neither a Learner nor a module, or it has no step and none was given.

    >>> import torch
    >>> from burnt.train import StepOutput, evaluate
    >>> def step(model, batch):
    ...     return StepOutput(loss=model(batch["x"]).mean(), targets=batch["x"])
    >>> evaluate(torch.nn.Identity(), [{"x": torch.tensor([1.0, 3.0])}], step=step)
    {'loss': 2.0}
    """
    if isinstance(model, Learner):
        module, step = model.model, step or model.validation_step
        precision = precision or model.precision
    elif isinstance(model, torch.nn.Module):
        module, step = compiled_in_place(model), step or model_step(model, "validation_step", "training_step")
    else:
        raise DefinitionError(
            "evaluate needs a model", expected="a torch.nn.Module, or a Learner", found=type(model).__name__
        )
    loader = as_loader(batches, "batches")
    device = device_of(module)
    measured = loss_first(metrics)
    for metric in measured:
        metric.data_classes = class_names(loader) or metric.data_classes
        metric.reset()
    precision = check_precision(precision or "float32")
    context = functools.partial(autocast, precision, *device_types(module))
    on_device = (move(batch, device) for batch in loader.epoch(0))
    with float32_matmuls(precision):
        run_validation(Steps(module, step, step), on_device, measured, context)
    scalars = [metric for metric in measured if metric.scalar]
    return intervals(scalars, read(scalars), None)
