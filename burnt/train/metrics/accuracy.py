"""Classification: accuracy and the confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from burnt.errors import MetricError
from burnt.train.metrics.base import Metric, Recorder
from burnt.train.metrics.tasks import class_axis, tensors_of
from burnt.train.step import StepOutput


class Accuracy(Metric):
    """The share of targets whose class has the largest logit.

    Reads `outputs`, ``[n, classes]``, ``[n, ..., classes]`` or ``[n, classes, ...]``, and `targets`, ``[n]``
    or ``[n, ...]`` of any integer dtype. If both the second and the last axis could be the class axis, the
    last one is used.

    Args:
        ignore_index: a target value to ignore, such as padding.
        name: the name in logs and in the run store, as in `Metric`.

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
        self.add_hits(predicted == targets, targets)

    def add_hits(self, hits: Tensor, targets: Tensor) -> None:
        """Add which targets are hit, ``[n]`` or ``[n, ...]``."""
        if self.ignore_index is None:
            self.add(hits.sum(), targets.numel())
        else:
            # Only the device knows how many targets count, so this number is accumulated as a second sum.
            counted = targets != self.ignore_index
            self.add(torch.stack([(hits & counted).sum(), counted.sum()]), targets.numel())

    def value(self, total: list[float], count: int) -> float:
        """Return correct predictions over counted targets; NaN if none are counted."""
        if self.ignore_index is None:
            return total[0] / count
        return total[0] / total[1] if total[1] else float("nan")


class TopKAccuracy(Accuracy):
    """The share of targets that are among the `k` classes with the largest logits.

    Reads `outputs` and `targets` as `Accuracy` does.

    Args:
        k: the number of classes, below the number of all.
        ignore_index: a target value to ignore, such as padding.
        name: the name in logs and in the run store; by default ``"top5_accuracy"`` for 5.

    >>> import torch
    >>> from burnt.train import StepOutput
    >>> top2 = TopKAccuracy(2)
    >>> logits = torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.2, 0.4]])
    >>> top2.update(StepOutput(torch.tensor(0.0), logits, torch.tensor([2, 1])))
    >>> top2.compute()
    0.5
    """

    def __init__(self, k: int = 5, ignore_index: int | None = None, name: str | None = None) -> None:
        super().__init__(ignore_index, f"top{k}_accuracy" if name is None else name)
        if not isinstance(k, int) or k < 1:
            raise MetricError("TopKAccuracy needs a number of classes", expected="k of 1 or more", found=k)
        self.k = k

    def update(self, output: StepOutput) -> None:
        """Add the batch's number of targets that were among the classes with the largest logits."""
        _, targets, num_classes = predictions(output, self.name)
        if self.k >= num_classes:
            raise MetricError(
                f"{self.name} is 1 for any model",
                expected=f"k below the {num_classes} classes of the outputs",
                found=self.k,
            )
        logits = tensors_of(output, self.name)[0]
        axis = class_axis(logits, targets)
        assert axis is not None
        top = logits.topk(self.k, axis).indices.movedim(axis, -1)
        self.add_hits((top == targets.unsqueeze(-1)).any(-1), targets)


def predictions(output: StepOutput, metric: str) -> tuple[Tensor, Tensor, int]:
    """Return the predicted classes, the targets and the number of classes.

    The predictions are the classes with the largest logit, in the shape of the targets. Integer targets are
    returned as int64: in a narrower dtype, ``targets * num_classes`` overflows, and in uint8
    ``targets != -100`` compares with 156.
    """
    logits, targets = tensors_of(output, metric)
    axis = class_axis(logits, targets)
    if axis is not None and logits.shape[axis] > 1:
        is_integer = not (targets.is_floating_point() or targets.is_complex())
        return logits.argmax(axis), targets.long() if is_integer else targets, logits.shape[axis]
    hint = "of a single logit: BinaryAccuracy()" if axis is not None else None
    if logits.shape == targets.shape:
        hint = (
            "targets are numbers of classes: labels.argmax(1) of probabilities, such as MixUp's; of several "
            "labels of an item: MultilabelAccuracy()"
        )
    raise MetricError(
        f"{metric} cannot find the class axis of the outputs",
        expected="targets in the shape of the outputs without a class axis of size 2 or more",
        found=f"outputs {tuple(logits.shape)}, targets {tuple(targets.shape)}",
        hint=hint,
    )


class ConfusionMatrix(Metric):
    """Counts how often each class was predicted for each target class.

    Reads `outputs` and `targets` as `Accuracy` does; the targets must be of an integer dtype.

    Args:
        num_classes: the number of classes; by default that of the first batch's logits.
        classes: their names; by default the data set's, or the numbers from 0.
        ignore_index: a target value to ignore, such as padding.
        name: the name in logs and in the run store, as in `Metric`.

    Raises:
        MetricError: the number of names is not the number of classes.

    >>> import torch
    >>> from burnt.train import StepOutput
    >>> confusion = ConfusionMatrix()
    >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    >>> confusion.update(StepOutput(torch.tensor(0.0), logits, torch.tensor([1, 1, 0])))
    >>> confusion.matrix()
    tensor([[0, 1],
            [1, 1]])
    >>> print(confusion)
    class  precision  recall      f1  count
        0     0.0000  0.0000  0.0000      1
        1     0.5000  0.5000  0.5000      2
    <BLANKLINE>
           predicted
     true   0  1
        0   .  1
        1   1  1
    """

    name = "confusion"
    scalar = False

    def __init__(
        self,
        num_classes: int | None = None,
        classes: Sequence[str] | None = None,
        ignore_index: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.classes = None if classes is None else list(classes)
        if num_classes is not None:
            self.class_names(num_classes)  # raises if there are more or fewer names

    def update(self, output: StepOutput) -> None:
        """Add the batch's counts of (target, prediction) pairs."""
        predicted, targets, size = predictions(output, self.name)
        expected = self.num_classes if self.classes is None else len(self.classes)
        if size != (expected or size):
            raise MetricError(
                f"{self.name} was built for another number of classes",
                expected=f"{expected} classes",
                found=f"{size} logits",
            )
        if targets.dtype != torch.int64:
            raise MetricError(
                f"{self.name} needs integer labels",
                expected="targets of an integer dtype",
                found=targets.dtype,
                hint="return targets.long() from the step, or targets.argmax(-1) for class probabilities",
            )
        pairs = (targets * size + predicted).reshape(-1)
        counted = torch.ones_like(pairs)
        if self.ignore_index is not None:
            counted = (targets != self.ignore_index).reshape(-1).to(pairs.dtype)
            pairs = pairs * counted
        # bincount would wait for the device, because it needs the largest value on the host.
        cells = torch.zeros(size * size, dtype=torch.int64, device=pairs.device)
        cells.scatter_add_(0, pairs, counted)
        self.add(cells, targets.numel())

    def matrix(self) -> Tensor:
        """Return the counts, ``[classes, classes]``, int64, on the CPU: row = target, column = prediction."""
        if self.total is None:
            size = self.num_classes or len(self.classes or ())
            return torch.zeros(size, size, dtype=torch.int64)
        size = math.isqrt(self.total.numel())
        return self.total.cpu().round().to(torch.int64).view(size, size)

    def per_class(self) -> list[tuple[str, float, float, float, int]]:
        """Return name, precision, recall, F1 and number of targets for each class; NaN where undefined."""
        counts = self.matrix().double()
        hits = counts.diag()
        precision, recall = hits / counts.sum(0), hits / counts.sum(1)
        f1 = 2 * hits / (counts.sum(0) + counts.sum(1))
        support = counts.sum(1).to(torch.int64)
        columns = (precision.tolist(), recall.tolist(), f1.tolist(), support.tolist())
        names = self.class_names(len(counts))
        return [(name, *row) for name, *row in zip(names, *columns, strict=True)]

    def __str__(self) -> str:
        """Return the per-class table and the matrix as aligned text; a dot stands for zero."""
        counts = self.matrix()
        names = self.class_names(len(counts))
        wide = max(len(name) for name in ["class", *names])
        lines = [f"{'class':>{wide}}  precision  recall      f1  count"]
        for name, precision, recall, f1, count in self.per_class():
            lines.append(f"{name:>{wide}}  {precision:9.4f}  {recall:6.4f}  {f1:6.4f}  {count:5}")
        cell = max(
            [len(str(n)) for row in counts.tolist() for n in row] + [len(name) for name in names] + [2]
        )
        lines += ["", f"{'':>{wide}}  predicted", f"{'true':>{wide}}  " + _row(names, cell)]
        for name, row in zip(names, counts.tolist(), strict=True):
            lines.append(f"{name:>{wide}}  " + _row([str(n) if n else "." for n in row], cell))
        return "\n".join(lines)

    def record(self, recorder: Recorder, split: str, step: int) -> None:
        """Write the matrix and the per-class table to the run store."""
        counts = self.matrix().tolist()
        names = self.class_names(len(counts))
        rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
        recorder.record_table(f"{split}/{self.name}", ["target", *names], rows, step)
        recorder.record_table(
            f"{split}/{self.name}/classes",
            ["class", "precision", "recall", "f1", "count"],
            [list(row) for row in self.per_class()],
            step,
        )


def _row(cells: Sequence[str], width: int) -> str:
    return " ".join(f"{cell:>{width}}" for cell in cells)
