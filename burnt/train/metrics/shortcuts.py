"""The metrics that people type, by torchmetrics: one table says which class computes each.

What burnt adds: task and number of classes are found from the first batch, logits become probabilities here
and not by a guess for each batch, and names of classes come from the data set.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from burnt.errors import MetricError, did_you_mean
from burnt.train.metrics.base import EpochMetric, Metric
from burnt.train.metrics.tasks import (
    TASKS,
    Task,
    check_values,
    class_axis,
    find_task,
    scores_and_labels,
    tensors_of,
)
from burnt.train.metrics.torch_metric import TorchMetric, snake_case, torchmetrics_for
from burnt.train.step import StepOutput


class ClassMetric(TorchMetric):
    """A metric of classifiers, by the classes of ``torchmetrics.classification``.

    The first batch decides which task it is: logits ``[n, classes]``, ``[n, *, classes]`` or ``[n, classes,
    *]`` with labels ``[n]`` or ``[n, *]``; for two classes logits ``[n]`` or ``[n, 1]`` with zeros and ones;
    for several labels of an item logits ``[n, labels]`` with zeros and ones in that shape, integers or
    floats. Needs the package: ``pip install "burnt[metrics]"``.

    Args:
        average: over classes or labels: ``"macro"``, the mean of the classes' values; ``"micro"``, of all
            decisions together; ``"weighted"`` by the classes' numbers of targets; None, a value for each
            class, ``"f1/cat"``. Of a binary task the value is that of class 1.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``, where the shapes do not say. Of two logits,
            ``"binary"`` takes class 1 as the positive one.
        ignore_index: a target value to ignore, such as padding.
        probabilities: the outputs are probabilities, not logits.
        name: the name in logs and in the run store.
        classes: names of the classes; by default the data set's.
        options: further arguments of the class in torchmetrics, such as ``threshold=0.3`` of binary and
            multi-label metrics, ``beta=2.0`` of `FBeta`, ``thresholds=200`` of `AUROC` and `AveragePrecision`
            (bins, whose memory does not grow with the data), ``n_bins=15`` of `CalibrationError`.

    Raises:
        UnsupportedError: torchmetrics is not installed.
        MetricError: an argument is invalid; or in `update`, outputs and targets do not fit.
    """

    by: ClassVar[str]  # the end of the names of torchmetrics' classes: BinaryF1Score, MulticlassF1Score ...
    task: str | None = None
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        average: str | None = "macro",
        *,
        task: str | None = None,
        ignore_index: int | None = None,
        probabilities: bool = False,
        name: str | None = None,
        classes: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        EpochMetric.__init__(self, name)
        self.average, self.ignore_index, self.probabilities = average, ignore_index, probabilities
        self.classes, self.options = classes and list(classes), {**self.defaults, **options}
        if task not in (None, *TASKS):
            raise MetricError(
                f"{type(self).__name__} cannot be built",
                where="task",
                expected=", ".join(map(repr, TASKS)),
                found=repr(task),
                hint=did_you_mean(str(task), TASKS),
            )
        self.task = task or self.task
        # Check the arguments: the first batch says which one it is.
        self._build(Task(self.task or ("binary" if "threshold" in options else "multiclass"), 2))
        self.metric = None

    def _build(self, task: Task) -> None:
        """Make the torchmetrics object for a task."""
        package = torchmetrics_for(type(self).__name__).classification
        kind = getattr(package, f"{task.kind.capitalize()}{self.by}", None)
        if kind is None:
            raise MetricError(f"{type(self).__name__} has no value for {task.kind} tasks")
        options = {**self.options, "ignore_index": self.ignore_index}
        if task.kind != "binary":
            options["num_classes" if task.kind == "multiclass" else "num_labels"] = task.size
            if self.average != "macro" or "average" in inspect.signature(kind).parameters:
                options["average"] = self.average
        self._adopt(_built(self, kind, options))
        self.metric.validate_args = False  # its checks wait for the device; `check_values` has made them
        self._found = task

    def inputs_of(self, output: StepOutput) -> Sequence[Any]:
        """Return probabilities and labels; build the metric at the first batch."""
        if self.metric is None:
            self._build(find_task(output, self.name, self.task))
        if not self.count:
            check_values(output, self._found, self.name, self.ignore_index, self.probabilities)
        return scores_and_labels(output, self._found, self.name, probabilities=self.probabilities)

    def reset(self) -> None:
        """Forget all batches, and what the first one said of the task."""
        super().reset()
        self.metric = None

    def state(self) -> dict[str, Any]:
        """Return the task and the states; nothing before the first batch."""
        return {} if self.metric is None else {"task": list(self._found), **super().state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._build(Task(*state["task"]))
        super().load_state(state)


class ValueMetric(TorchMetric):
    """A metric of numbers, images or texts. Needs the package: ``pip install "burnt[metrics]"``.

    Args:
        name: the name in logs and in the run store.
        options: further arguments of the class in torchmetrics, such as ``data_range=255.0`` of `PSNR`.

    Raises:
        UnsupportedError: torchmetrics is not installed.
        MetricError: in `update`, outputs and targets differ in shape, or are not texts.
    """

    by: ClassVar[str]  # the subpackage and the class of torchmetrics
    defaults: ClassVar[Mapping[str, Any]] = {}
    least: ClassVar[int] = 1  # items, below which the value is NaN

    def __init__(self, name: str | None = None, **options: Any) -> None:
        torchmetrics_for(type(self).__name__)
        self.options = {**self.defaults, **options}
        package, _, kind = self.by.partition(".")
        found = getattr(importlib.import_module(f"torchmetrics.{package}"), kind)
        super().__init__(_built(self, found, self.options), name=name or self.name)

    def inputs_of(self, output: StepOutput) -> Sequence[Any]:
        """Return outputs and targets in the same shape, or two lists of texts."""
        outputs, targets = output.outputs, output.targets
        if self.by.startswith("text"):
            fits = all(
                isinstance(one, list | tuple) and all(isinstance(text, str) for text in one)
                for one in (outputs, targets)
            )
            expected, fits = "lists of texts, of the same length", fits and len(outputs) == len(targets)
        else:
            outputs, targets = tensors_of(output, self.name)
            axis = class_axis(outputs, targets)
            if axis is not None and outputs.shape[axis] == 1:
                outputs = outputs.squeeze(axis)
            fits, expected = outputs.shape == targets.shape, "outputs and targets of the same shape"
        if not fits:
            raise MetricError(
                f"{self.name} does not fit the outputs and targets", expected=expected, found=repr(output)
            )
        return outputs, targets

    def value(self, total: list[float], count: int) -> Any:
        """Return the value; NaN of too few items."""
        return math.nan if count < self.least else super().value(total, count)


def _built(metric: Metric, kind: Any, options: Mapping[str, Any]) -> Any:
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise MetricError(
            f"{type(metric).__name__} cannot be built", where=kind.__name__, found=str(error)
        ) from None


_M = TypeVar("_M", bound=TorchMetric)


def _metric(base: type[_M], title: str, by: str, doc: str, **more: Any) -> type[_M]:
    body = {"name": snake_case(title), "by": by, "__doc__": doc, "__module__": __name__, **more}
    return type(title, (base,), body)


_of_classes, _of_values = partial(_metric, ClassMetric), partial(_metric, ValueMetric)
_RANGE = {"data_range": 1.0}

F1 = _of_classes(
    "F1",
    "F1Score",
    "The harmonic mean of precision and recall: with two logits too, the macro average by default. "
    '``F1(task="binary")`` is the positive class\'s, class 1.',
)
FBeta = _of_classes("FBeta", "FBetaScore", "F1 with recall weighted by beta=.", defaults={"beta": 1.0})
Precision = _of_classes("Precision", "Precision", "Of the items predicted as a class, the share of it.")
Recall = _of_classes("Recall", "Recall", "Of the items of a class, the share predicted as it.")
BinaryAccuracy = _of_classes(
    "BinaryAccuracy", "Accuracy", "The share of right zeros and ones.", name="accuracy", task="binary"
)
MultilabelAccuracy = _of_classes(
    "MultilabelAccuracy", "Accuracy", "The share of right labels.", name="accuracy", task="multilabel"
)
AUROC = _of_classes("AUROC", "AUROC", "The area under the ROC curve.")
AveragePrecision = _of_classes(
    "AveragePrecision", "AveragePrecision", "The area under the precision-recall curve."
)
MCC = _of_classes("MCC", "MatthewsCorrCoef", "Matthews' correlation of predictions and labels, from -1 to 1.")
CalibrationError = _of_classes(
    "CalibrationError", "CalibrationError", "The mean distance of confidence and accuracy, over 15 bins."
)
Dice = _of_classes("Dice", "F1Score", "Twice the overlap of masks over their sizes, over all pixels.")
IoU = _of_classes(
    "IoU", "JaccardIndex", "The overlap of masks over their union, over all pixels.", name="iou"
)
R2 = _of_values("R2", "regression.R2Score", "The share of the targets' variance that is explained.", least=2)
MAE = _of_values("MAE", "regression.MeanAbsoluteError", "The mean absolute error.")
RMSE = _of_values(
    "RMSE", "regression.MeanSquaredError", "The root of the squared error.", defaults={"squared": False}
)
CER = _of_values("CER", "text.CharErrorRate", "Edits of characters over the characters of the targets.")
WER = _of_values("WER", "text.WordErrorRate", "Edits of words over the words of the targets.")
PSNR = _of_values(
    "PSNR", "image.PeakSignalNoiseRatio", "The peak signal-to-noise ratio in dB.", defaults=_RANGE
)
SSIM = _of_values(
    "SSIM",
    "image.StructuralSimilarityIndexMeasure",
    "The structural similarity of images, ``[n, c, h, w]``.",
    defaults=_RANGE,
)
