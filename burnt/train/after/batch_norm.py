"""update_batch_norm: the running statistics of BatchNorm, for weights that were not trained but averaged."""

from __future__ import annotations

from typing import Any

import torch

from burnt._torch import BatchNormBase, compiled_in_place, restored_modes
from burnt.data import as_loader, move
from burnt.train.learner import Learner, StepFunction, Steps, model_step
from burnt.train.placement import device_of, device_types
from burnt.train.updates.manual import Optimizers
from burnt.train.updates.precision import autocast


def update_batch_norm(
    model: Learner | torch.nn.Module, batches: Any, *, step: StepFunction | None = None
) -> None:
    """Recompute the running statistics of all BatchNorm layers as means over batches.

    A running mean belongs to the weights that were trained. Averages of weights (`optim.Ema`, `optim.Swa`)
    give other activations; after this function the statistics are theirs.

    Args:
        model: a model, or the Learner that trained it; it stays on its device.
        batches: a loader, or any iterable of batches, of the training data.
        step: ``step(model, batch) -> StepOutput``; by default the training step of the Learner (of one with
            several optimizers the validation step), or the model's method `training_step`.

    As :func:`torch.optim.swa_utils.update_bn`: each batch has the same weight, and the model is in training
    mode meanwhile.

    >>> from burnt import nn
    >>> from burnt.train import StepOutput
    >>> norm = nn.BatchNorm(1)
    >>> def step(model, batch):
    ...     return StepOutput(model(batch["x"]).mean())
    >>> batches = [{"x": torch.tensor([[1.0], [3.0]])}, {"x": torch.tensor([[5.0], [5.0]])}]
    >>> update_batch_norm(norm, batches, step=step)
    >>> norm.running_mean, norm.momentum
    (tensor([3.5000]), 0.1)
    """
    precision = "float32"
    if isinstance(model, Learner):
        # A training step that steps optimizers itself would train.
        own = model.validation_step if isinstance(model.optimizer, Optimizers) else model.step
        module, step, precision = model.model, step or own, model.precision
    else:
        module, step = compiled_in_place(model), step or model_step(model, "training_step")
    norms = [m for m in module.modules() if isinstance(m, BatchNormBase) and m.track_running_stats]
    if not norms:
        return
    device = device_of(module)
    momenta = [(norm, norm.momentum) for norm in norms]
    steps = Steps(module, step, step)
    with restored_modes(module), torch.no_grad():
        try:
            steps.train()
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a cumulative mean
            for batch in as_loader(batches, "batches").epoch(0):
                with autocast(precision, *device_types(module)):
                    steps(move(batch, device))
        finally:
            for norm, momentum in momenta:
                norm.momentum = momentum
