"""The share of right answers."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.errors import MetricError
from burnt.train.metrics.base import Metric
from burnt.train.step import StepOutput

__all__ = ["Accuracy", "predictions"]


class Accuracy(Metric):
    """The share of targets that the largest logit names.

    Reads `outputs`, ``[n, classes]``, ``[n, ..., classes]`` or ``[n, classes, ...]``, and `targets`, ``[n]``
    or ``[n, ...]``. Where both axes may be that of the classes, the last one is.

    Args:
        ignore_index: a target that does not count, such as padding.
        name: as in `Metric`.

    >>> import torch
    >>> from burnt.train import StepOutput
    >>> accuracy = Accuracy()
    >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    >>> accuracy.update(StepOutput(torch.tensor(0.0), logits, torch.tensor([1, 1])))
    >>> accuracy.compute()
    0.5
    """

    name = "accuracy"
    higher_is_better = True

    def __init__(self, ignore_index: int | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.ignore_index = ignore_index

    def update(self, output: StepOutput) -> None:
        """Count the batch's right answers."""
        targets: Tensor = output.targets
        right = predictions(output, self.name)[0] == targets
        if self.ignore_index is None:
            self.add(right.sum(), targets.numel())
        else:
            # How many count is known to the device alone, so it is a sum as well.
            counted = targets != self.ignore_index
            self.add(torch.stack([(right & counted).sum(), counted.sum()]), targets.numel())

    def value(self, total: list[float], count: int) -> float:
        """Right answers over those that count."""
        if self.ignore_index is None:
            return total[0] / count
        return total[0] / total[1] if total[1] else float("nan")


def predictions(output: StepOutput, metric: str) -> tuple[Tensor, int]:
    """The class of the largest logit, in the shape of the targets, and the number of classes.

    Raises:
        MetricError: the step gave no logits or no targets, or their shapes do not go together.
    """
    logits, targets = output.outputs, output.targets
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor):
        raise MetricError(
            f"{metric} needs logits and targets",
            expected="ClassificationOutput(loss, outputs=logits, targets=labels) from the step",
            found=f"outputs: {type(logits).__name__}, targets: {type(targets).__name__}",
        )
    axis = None
    if logits.shape[:-1] == targets.shape:
        axis = -1
    elif logits.dim() >= 2 and logits.shape[:1] + logits.shape[2:] == targets.shape:
        axis = 1
    if axis is not None and logits.shape[axis] > 1:
        return logits.argmax(axis), logits.shape[axis]
    raise MetricError(
        f"{metric} cannot tell the classes",
        expected="targets in the shape of the outputs less the axis of two or more classes",
        found=f"outputs {tuple(logits.shape)}, targets {tuple(targets.shape)}",
        hint="of a single logit x, torch.stack([-x, x], -1) makes two" if axis is not None else None,
    )
