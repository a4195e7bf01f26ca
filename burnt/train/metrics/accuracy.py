"""Classification accuracy."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.errors import MetricError
from burnt.train.metrics.base import Metric
from burnt.train.step import StepOutput


class Accuracy(Metric):
    """The share of targets whose class has the largest logit.

    Reads `outputs`, ``[n, classes]``, ``[n, ..., classes]`` or ``[n, classes, ...]``, and `targets`, ``[n]``
    or ``[n, ...]`` of any integer dtype. If both the second and the last axis could be the class axis, the
    last one is used.

    Args:
        ignore_index: a target value to ignore, such as padding.
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
        """Add the batch's number of correct predictions."""
        predicted, targets, _ = predictions(output, self.name)
        correct = predicted == targets
        if self.ignore_index is None:
            self.add(correct.sum(), targets.numel())
        else:
            # Only the device knows how many targets count, so this number is accumulated as a second sum.
            counted = targets != self.ignore_index
            self.add(torch.stack([(correct & counted).sum(), counted.sum()]), targets.numel())

    def value(self, total: list[float], count: int) -> float:
        """Return correct predictions over counted targets; NaN if none are counted."""
        if self.ignore_index is None:
            return total[0] / count
        return total[0] / total[1] if total[1] else float("nan")


def predictions(output: StepOutput, metric: str) -> tuple[Tensor, Tensor, int]:
    """Return the predicted classes, the targets and the number of classes.

    The predictions are the classes with the largest logit, in the shape of the targets. Integer targets are
    returned as int64: in a narrower dtype, ``targets * num_classes`` overflows, and in uint8
    ``targets != -100`` compares with 156.
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
        is_integer = not (targets.is_floating_point() or targets.is_complex())
        return logits.argmax(axis), targets.long() if is_integer else targets, logits.shape[axis]
    hint = "for a single logit x, use torch.stack([-x, x], -1)" if axis is not None else None
    if logits.shape == targets.shape:
        hint = (
            "targets are numbers of classes: labels.argmax(1) of probabilities, such as MixUp's; several "
            "labels of an item need another metric"
        )
    raise MetricError(
        f"{metric} cannot find the class axis of the outputs",
        expected="targets in the shape of the outputs without a class axis of size 2 or more",
        found=f"outputs {tuple(logits.shape)}, targets {tuple(targets.shape)}",
        hint=hint,
    )
