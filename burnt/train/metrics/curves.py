"""Curves of a classifier: ROC, precision over recall, calibration. The monitor draws what they record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from burnt.plot import Line, Plot
from burnt.train.metrics.base import Metric, Recorder
from burnt.train.metrics.tasks import Task, check_values, find_task, scores_and_labels
from burnt.train.step import StepOutput

_BINS, _SHOWN_BINS = 1000, 10
_MOST_CURVES = 8


class _Curve(Metric):
    """Counts the probabilities of a class, of its items and of others, in 1000 bins."""

    scalar = False
    axes: ClassVar[tuple[str, str]]

    def __init__(
        self,
        task: str | None = None,
        ignore_index: int | None = None,
        probabilities: bool = False,
        name: str | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name)
        self.task, self.ignore_index, self.probabilities = task, ignore_index, probabilities
        self.classes = classes and list(classes)

    def update(self, output: StepOutput) -> None:
        """Add the batch's counts."""
        task = find_task(output, self.name, self.task)
        if self.total is None:
            check_values(output, task, self.name, self.ignore_index, self.probabilities)
        scores, labels = scores_and_labels(output, task, self.name, probabilities=self.probabilities)
        if task.kind != "binary":
            scores = scores.movedim(1, -1)
        if task.kind == "multilabel":
            labels = labels.movedim(1, -1)
        counted = torch.ones_like(labels) if self.ignore_index is None else labels != self.ignore_index
        if task.kind == "multiclass":
            labels = labels.unsqueeze(-1) == torch.arange(task.size, device=labels.device)
            counted = counted.unsqueeze(-1).expand_as(labels)
        self.count_scores(scores, labels == 1, counted, task)
        self.count += len(scores)

    def count_scores(self, scores: Tensor, labels: Tensor, counted: Tensor, task: Task) -> None:
        """Add to the sums ``[curves, 2, bins]``: of other items, and of the class's own."""
        size = 1 if task.kind == "binary" or task.size > _MOST_CURVES else task.size
        columns = [one.reshape(-1, size) for one in (scores, labels, counted)]
        bins = (columns[0].nan_to_num(0.0) * _BINS).long().clamp(0, _BINS - 1)
        cells = (torch.arange(size, device=bins.device) * 2 + columns[1].long()) * _BINS + bins
        # Not bincount, which would wait for the device.
        sums = torch.zeros(size * 2 * _BINS, dtype=torch.int64, device=bins.device)
        sums.scatter_add_(0, cells.reshape(-1), columns[2].reshape(-1).long())
        self.add(sums, 0)

    def points(self, others: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and y of a curve, from counts of both kinds by bin, ``[bins]``."""
        raise NotImplementedError

    def lines(self) -> list[Line]:
        """Return the curves, with the points that are not on a line between others of the same y."""
        if self.total is None:
            return []
        sums = self.total.cpu().double().view(-1, 2, _BINS)
        names = self.class_names(len(sums)) if len(sums) > 1 else ["all"]
        lines = []
        for name, (others, own) in zip(names, sums, strict=True):
            x, y = self.points(others, own)
            changes = torch.ones(len(x), dtype=torch.bool)
            changes[1:-1] = ((y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])) & y[1:-1].isfinite()
            x, y = x[changes], y[changes]
            kept = torch.linspace(0, len(x) - 1, min(len(x), 200)).round().long()
            lines.append(Line(name, x[kept].tolist(), y[kept].tolist()))
        return lines

    def __str__(self) -> str:
        """Return the curves as a drawing."""
        lines = self.lines()
        return f"{self.axes[1]}\n{Plot(lines, x=self.axes[0])}" if lines else f"{self.name}: no batches"

    def record(self, recorder: Recorder, split: str, step: int) -> None:
        """Write the points to the run store."""
        rows = [[line.name, x, y] for line in self.lines() for x, y in zip(line.xs, line.ys, strict=True)]
        recorder.record_table(f"{split}/{self.name}", ["curve", *self.axes], rows, step)


class RocCurve(_Curve):
    """The true positive rate over the false positive rate, with the arguments of `CalibrationCurve`.

    The area under it is `AUROC`.
    """

    name = "roc"
    axes = ("false positive rate", "true positive rate")

    def points(self, others: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return both rates, from the highest threshold to the lowest."""
        zero = torch.zeros(1, dtype=own.dtype)
        fp, tp = (torch.cat([zero, counts.flip(0).cumsum(0)]) for counts in (others, own))
        return fp / fp[-1], tp / tp[-1]


class PrecisionRecallCurve(_Curve):
    """The precision over the recall, with the arguments of `CalibrationCurve`.

    The area under it is `AveragePrecision`.
    """

    name = "precision_recall"
    axes = ("recall", "precision")

    def points(self, others: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return recall and precision, from the highest threshold with an item to the lowest."""
        fp, tp = others.flip(0).cumsum(0), own.flip(0).cumsum(0)
        some = fp + tp > 0
        return (tp / tp[-1])[some], (tp / (fp + tp))[some]


class CalibrationCurve(_Curve):
    """How often the predicted class is right, over its probability: of a calibrated model, the diagonal.

    Outputs and targets are read as by `F1`, without torchmetrics. Of two classes, or several labels, the
    probability is that of class 1. `RocCurve` and `PrecisionRecallCurve` draw a curve for each class or label
    or one of all decisions if there are more than eight. Probabilities are counted in 1000 bins, ten of them
    drawn. A validation records the points as a table, which the monitor draws; ``print(metric)`` does so too.

    Args:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``, where the shapes do not say.
        ignore_index: a target value to ignore, such as padding.
        probabilities: the outputs are probabilities, not logits.
        name: the name of the table in the run store, as in `Metric`.
        classes: names of the classes; by default the data set's.

    Raises:
        MetricError: in `update`, outputs and targets do not fit.

    >>> import torch
    >>> from burnt.train import StepOutput
    >>> curve = CalibrationCurve()
    >>> logits, labels = torch.tensor([-4.0, -4.0, 4.0, 4.0]), torch.tensor([0, 0, 1, 0])
    >>> curve.update(StepOutput(torch.tensor(0.0), logits, labels))
    >>> curve.lines()[0].ys
    [0.0, 0.5]
    """

    name = "calibration"
    axes = ("probability", "share that is right")

    def count_scores(self, scores: Tensor, labels: Tensor, counted: Tensor, task: Task) -> None:
        """Add to the sums of one curve: of several classes, only the most probable one counts."""
        if task.kind == "multiclass":
            scores, best = scores.max(-1)
            labels = labels.gather(-1, best.unsqueeze(-1)).squeeze(-1)
            counted = counted[..., 0]
        super().count_scores(scores, labels, counted, Task("binary", 2))

    def points(self, others: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean probability and the share of items of the class, of ten bins."""
        middle = (torch.arange(_BINS, dtype=own.dtype) + 0.5) / _BINS
        total = (others + own).view(_SHOWN_BINS, -1).sum(1)
        mean = ((others + own) * middle).view(_SHOWN_BINS, -1).sum(1) / total
        return mean[total > 0], (own.view(_SHOWN_BINS, -1).sum(1) / total)[total > 0]
