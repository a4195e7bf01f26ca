"""What a classifier's outputs and targets say: the task, the number of classes, scores from logits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from burnt.errors import MetricError
from burnt.train.step import StepOutput

TASKS = ("binary", "multiclass", "multilabel")


class Task(NamedTuple):
    """A kind of classification, and the number of its classes or labels."""

    kind: str
    size: int


def tensors_of(output: StepOutput, metric: str) -> tuple[Tensor, Tensor]:
    """Return outputs and targets without gradients; raise if they are not tensors."""
    outputs, targets = output.outputs, output.targets
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        raise MetricError(
            f"{metric} needs logits and targets",
            expected="ClassificationOutput(loss, outputs=logits, targets=labels) from the step",
            found=f"outputs: {type(outputs).__name__}, targets: {type(targets).__name__}",
        )
    return outputs.detach(), targets.detach()


def class_axis(outputs: Tensor, targets: Tensor) -> int | None:
    """Return the axis of the outputs that the targets lack: the last one, or the second; None without one."""
    if outputs.shape[:-1] == targets.shape:
        return -1
    if outputs.dim() >= 2 and outputs.shape[:1] + outputs.shape[2:] == targets.shape:
        return 1
    return None


def find_task(output: StepOutput, metric: str, kind: str | None = None) -> Task:
    """Return the task that the shapes of a step's output say, or the size of a task of this kind.

    An axis of two or more classes that the targets lack is that of classes (``multiclass``). In equal shapes
    the second axis, of two or four and more, is that of labels if it has two or more (``multilabel``).
    Everything else is ``binary``: one logit for each target, or with ``kind="binary"`` two.
    """
    outputs, targets = tensors_of(output, metric)
    axis = class_axis(outputs, targets)
    fitting: list[Task] = []
    if axis is not None:
        size = outputs.shape[axis]
        fitting = [Task("multiclass", size)] * (size > 1) + [Task("binary", 2)] * (size <= 2)
    elif outputs.shape == targets.shape and outputs.dim():
        labels = outputs.shape[1] if outputs.dim() > 1 else 1
        fitting = [Task("multilabel", labels), Task("binary", 2)]
        if labels < 2 or outputs.dim() == 3:
            fitting.reverse()
    found = next((task for task in fitting if kind in (None, task.kind)), None)
    if found is None or not outputs.is_floating_point():
        raise MetricError(
            f"{metric} does not fit the outputs and targets" + (f" as a {kind} task" if kind else ""),
            expected="logits [n, classes] and labels [n], or both [n], or both [n, labels]",
            found=f"outputs {tuple(outputs.shape)}, {outputs.dtype}, targets {tuple(targets.shape)}",
            hint=None if outputs.is_floating_point() else "outputs are logits or probabilities, not classes",
        )
    return found


def scores_and_labels(
    output: StepOutput, task: Task, metric: str, *, probabilities: bool = False
) -> tuple[Tensor, Tensor]:
    """Return a probability for each class and labels as int64; `probabilities`: the outputs are some already.

    Those of classes are ``[n, classes, *]`` for labels ``[n, *]``, others have the shape of the labels.
    """
    outputs, targets = tensors_of(output, metric)
    outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
    axis = class_axis(outputs, targets)
    if task.kind == "multiclass":
        assert axis is not None
        outputs = outputs.movedim(axis, 1)
        return outputs if probabilities else outputs.softmax(1), targets.long()
    if axis is not None and outputs.shape[axis] == 2:  # of two logits, the difference decides
        outputs = outputs.select(axis, 1) if probabilities else outputs.diff(dim=axis).squeeze(axis)
    elif axis is not None:
        outputs = outputs.squeeze(axis)
    return outputs if probabilities else outputs.sigmoid(), targets.long()


def check_values(
    output: StepOutput, task: Task, metric: str, ignore: int | None, probabilities: bool
) -> None:
    """Raise if the values of a batch do not fit; waits for the device, so only for the first batch."""
    outputs, targets = tensors_of(output, metric)
    if outputs.is_meta or not targets.numel():
        return
    counted = targets if ignore is None else targets[targets != ignore]
    unfit = (
        counted[(counted < 0) | (counted >= task.size) | (counted != counted.long())]
        if task.kind == "multiclass"
        else counted[(counted != 0) & (counted != 1)]
    )
    if unfit.numel():
        raise MetricError(
            f"{metric} cannot count these targets",
            expected=f"classes from 0 to {task.size - 1}" if task.kind == "multiclass" else "0 and 1",
            found=f"{unfit[0].item():g} in targets {tuple(targets.shape)}",
            hint="padding: ignore_index=; targets mixed by MixUp or smoothed have no class: "
            "count them in the validation only, or return the labels as targets",
        )
    low, high = outputs.min().item(), outputs.max().item()
    if probabilities and not 0 <= low <= high <= 1:
        raise MetricError(
            f"{metric} was told that the outputs are probabilities",
            expected="values from 0 to 1",
            found=f"values from {low:.4g} to {high:.4g}",
            hint="of logits: without probabilities=True",
        )
    axis = class_axis(outputs, targets)
    if not probabilities and task.kind == "multiclass" and low >= 0 and axis is not None:
        sums = outputs.sum(axis)
        if outputs.dtype != torch.bfloat16 and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
            raise MetricError(
                f"{metric} needs logits, and the outputs look like probabilities",
                expected="outputs before the softmax",
                found=f"values from {low:.4g} to {high:.4g} that sum to 1",
                hint="return the logits as outputs, or give probabilities=True",
            )
