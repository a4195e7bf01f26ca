"""The metrics that people type, by torchmetrics: one table says which class computes each.

What burnt adds: task and number of classes are found from the first batch, logits become probabilities here
and not by a guess for each batch, and names of classes come from the data set.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from burnt.errors import MetricError, did_you_mean
from burnt.train.metrics.base import EpochMetric
from burnt.train.metrics.tasks import (
    TASKS,
    Task,
    check_values,
    class_axis,
    find_task,
    scores_and_labels,
    tensors_of,
)
from burnt.train.metrics.torch_metric import TorchMetric, torchmetrics_for
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

    default_name: ClassVar[str]
    suffix: ClassVar[
        str
    ]  # of the classes in torchmetrics: BinaryF1Score, MulticlassF1Score, MultilabelF1Score
    fixed_task: ClassVar[str | None] = None
    averages: ClassVar[tuple[str | None, ...]] = ("macro", "micro", "weighted", None)
    takes_scores: ClassVar[bool] = False  # needs probabilities of all classes, not only the predicted class
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
        EpochMetric.__init__(self, name or self.default_name)
        self.average, self.ignore_index, self.probabilities = average, ignore_index, probabilities
        self.classes, self.options = classes and list(classes), {**self.defaults, **options}
        self.task: str | None = task or self.fixed_task
        self.metric, self._found = None, Task("", 0)
        for key, value, valid in (
            ("average", average, (*self.averages, "macro")),
            ("task", task, (None, *TASKS)),
        ):
            if value not in valid:
                raise MetricError(
                    f"{type(self).__name__} cannot be built",
                    where=key,
                    expected=", ".join(dict.fromkeys(map(repr, valid))),
                    found=repr(value),
                    hint=did_you_mean(str(value), [one for one in valid if one]),
                )
        self._build(Task(self.task or ("binary" if "threshold" in options else "multiclass"), 2))
        self.metric = None  # that was a check of the arguments: the first batch says which one it is

    def _build(self, task: Task) -> None:
        """Make the torchmetrics object for a task."""
        package = torchmetrics_for(type(self).__name__).classification
        kind = getattr(package, f"{task.kind.capitalize()}{self.suffix}", None)
        options = {**self.options, "ignore_index": self.ignore_index, "validate_args": False}
        if task.kind != "binary":
            options["num_classes" if task.kind == "multiclass" else "num_labels"] = task.size
            if len(self.averages) > 1:
                options["average"] = self.average
        if task.kind == "multiclass":
            options.pop("threshold", None)
        problem: object = f"no {self.suffix} for {task.kind} tasks in torchmetrics"
        if kind is not None:
            try:
                self._adopt(kind(**{**options, "validate_args": True}))
            except (TypeError, ValueError) as error:
                problem = error
            else:
                self.metric.validate_args = (
                    False  # its checks wait for the device; `check_values` has made them
                )
                self._found = task
                return
        raise MetricError(
            f"{type(self).__name__} cannot be built", where=f"{kind and kind.__name__}", found=str(problem)
        )

    def inputs_of(self, output: StepOutput) -> Sequence[Any]:
        """Return predicted classes or probabilities, and labels; build the metric at the first batch."""
        if self.metric is None:
            self._build(find_task(output, self.name, self.task))
        if not self.count:
            check_values(output, self._found, self.name, self.ignore_index, self.probabilities)
        scores, labels = scores_and_labels(output, self._found, self.name, probabilities=self.probabilities)
        if self._found.kind == "multiclass" and not self.takes_scores:
            scores = scores.argmax(1)
        return scores, labels

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

    def merge(self, other: Self) -> None:
        """Add the batches of another one, such as another process's."""
        if other.metric is not None:
            if self.metric is None:
                self._build(other._found)
            super().merge(other)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments, for JSON."""
        own = ("average", "ignore_index", "probabilities", "name", "classes")
        task = None if self.task == self.fixed_task else self.task
        return {**{key: getattr(self, key) for key in own}, "task": task, **self.options}

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """Build the metric from `arguments`."""
        return cls(**arguments)


class ValueMetric(TorchMetric):
    """A metric of numbers, images or texts. Needs the package: ``pip install "burnt[metrics]"``.

    Args:
        name: the name in logs and in the run store.
        options: further arguments of the class in torchmetrics, such as ``data_range=255.0`` of `PSNR`.

    Raises:
        UnsupportedError: torchmetrics is not installed.
        MetricError: in `update`, outputs and targets differ in shape, or are not texts.
    """

    default_name: ClassVar[str]
    path: ClassVar[tuple[str, str]]  # the subpackage and the class of torchmetrics
    defaults: ClassVar[Mapping[str, Any]] = {}
    least: ClassVar[int] = 1  # items, below which the value is NaN

    def __init__(self, name: str | None = None, **options: Any) -> None:
        torchmetrics_for(type(self).__name__)
        self.options = {**self.defaults, **options}
        package, kind = self.path
        found = getattr(importlib.import_module(f"torchmetrics.{package}"), kind)
        try:
            metric = found(**self.options)
        except (TypeError, ValueError) as error:
            raise MetricError(
                f"{type(self).__name__} cannot be built", where=kind, found=str(error)
            ) from None
        super().__init__(metric, name=name or self.default_name)

    def inputs_of(self, output: StepOutput) -> Sequence[Any]:
        """Return outputs and targets in the same shape, or two lists of texts."""
        outputs, targets = output.outputs, output.targets
        if self.path[0] == "text":
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

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments, for JSON."""
        return {"name": self.name, **self.options}

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """Build the metric from `arguments`."""
        return cls(**arguments)


def _class_metric(name: str, default_name: str, suffix: str, doc: str, **more: Any) -> type[ClassMetric]:
    body = {"default_name": default_name, "suffix": suffix, "__doc__": doc, "__module__": __name__, **more}
    return type(name, (ClassMetric,), body)


def _value_metric(name: str, path: tuple[str, str], doc: str, **more: Any) -> type[ValueMetric]:
    body = {"default_name": name.lower(), "path": path, "__doc__": doc, "__module__": __name__, **more}
    return type(name, (ValueMetric,), body)


_NO_AVERAGE = {"averages": ("macro",)}
_SCORES = {"takes_scores": True, "averages": ("macro", "weighted", None)}
F1 = _class_metric("F1", "f1", "F1Score", "The harmonic mean of precision and recall.")
FBeta = _class_metric(
    "FBeta", "fbeta", "FBetaScore", "F1 with recall weighted by beta=.", defaults={"beta": 1.0}
)
Precision = _class_metric(
    "Precision", "precision", "Precision", "Of the items predicted as a class, the share of it."
)
Recall = _class_metric("Recall", "recall", "Recall", "Of the items of a class, the share predicted as it.")
BinaryAccuracy = _class_metric(
    "BinaryAccuracy",
    "accuracy",
    "Accuracy",
    "The share of zeros and ones that are predicted.",
    fixed_task="binary",
)
MultilabelAccuracy = _class_metric(
    "MultilabelAccuracy",
    "accuracy",
    "Accuracy",
    "The share of labels that are predicted.",
    fixed_task="multilabel",
)
AUROC = _class_metric("AUROC", "auroc", "AUROC", "The area under the ROC curve.", **_SCORES)
AveragePrecision = _class_metric(
    "AveragePrecision",
    "average_precision",
    "AveragePrecision",
    "The area under the precision-recall curve.",
    **_SCORES,
)
MCC = _class_metric(
    "MCC",
    "mcc",
    "MatthewsCorrCoef",
    "Matthews' correlation of predictions and labels, from -1 to 1.",
    **_NO_AVERAGE,
)
CalibrationError = _class_metric(
    "CalibrationError",
    "calibration_error",
    "CalibrationError",
    "The mean distance of confidence and accuracy, over bins of confidence.",
    **{**_SCORES, **_NO_AVERAGE},
)
Dice = _class_metric(
    "Dice", "dice", "F1Score", "Twice the overlap of masks over their sizes, over all pixels."
)
IoU = _class_metric("IoU", "iou", "JaccardIndex", "The overlap of masks over their union, over all pixels.")
R2 = _value_metric(
    "R2", ("regression", "R2Score"), "The share of the targets' variance that is explained.", least=2
)
MAE = _value_metric("MAE", ("regression", "MeanAbsoluteError"), "The mean absolute error.")
RMSE = _value_metric(
    "RMSE",
    ("regression", "MeanSquaredError"),
    "The root of the mean squared error.",
    defaults={"squared": False},
)
CER = _value_metric(
    "CER", ("text", "CharErrorRate"), "Edits of characters over the characters of the targets."
)
WER = _value_metric("WER", ("text", "WordErrorRate"), "Edits of words over the words of the targets.")
PSNR = _value_metric(
    "PSNR",
    ("image", "PeakSignalNoiseRatio"),
    "The peak signal-to-noise ratio in dB.",
    defaults={"data_range": 1.0},
)
SSIM = _value_metric(
    "SSIM",
    ("image", "StructuralSimilarityIndexMeasure"),
    "The structural similarity of images, ``[n, c, h, w]``.",
    defaults={"data_range": 1.0},
)
