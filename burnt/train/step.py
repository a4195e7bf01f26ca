"""StepOutput: what one step on one batch gives the Learner and the metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

__all__ = ["ClassificationOutput", "StepOutput"]


@dataclasses.dataclass(slots=True)
class StepOutput:
    """What a `training_step` or `validation_step` returns.

    Args:
        loss: a scalar, ``[]``: the mean over the batch.
        outputs: what the model made, for the metrics.
        targets: what it should have made.
        count: how many items `loss` is the mean of; by default the leading size of the targets, or of the
            outputs where the targets are no tensor. Means over an epoch are weighted by it.

    >>> import torch
    >>> StepOutput(torch.tensor(0.5), outputs=torch.zeros(8, 10)).count
    8
    """

    loss: Tensor
    outputs: Any = None
    targets: Any = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is None:
            tensors = [t for t in (self.targets, self.outputs) if isinstance(t, Tensor) and t.dim()]
            self.count = len(tensors[0]) if tensors else 1


@dataclasses.dataclass(slots=True)
class ClassificationOutput(StepOutput):
    """A step of a classifier.

    Args:
        loss: as in `StepOutput`.
        outputs: logits, ``[n, classes]``.
        targets: labels, ``[n]`` of int64.
        count: as in `StepOutput`.
    """
