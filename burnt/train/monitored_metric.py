"""What stopping and checkpoints watch: a metric of a split, known before the run."""

from __future__ import annotations

from collections.abc import Iterable

from burnt.errors import MetricError, nearest
from burnt.train.metrics.base import Metric

__all__ = ["Monitored"]


class Monitored:
    """A metric of a split, by object or by the name that it declares.

    Args:
        metric: the metric.
        split: ``"valid"`` or ``"train"``.
    """

    def __init__(self, metric: Metric | str, split: str = "valid") -> None:
        if isinstance(metric, str) and "/" in metric:
            split, metric = metric.split("/", 1)  # as values are named: "valid/loss"
        self.metric = metric
        self.split = split

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.metric if isinstance(self.metric, str) else self.metric.name

    @property
    def key(self) -> str:
        """Split and name, as values are kept: ``"valid/loss"``."""
        return f"{self.split}/{self.name}"

    def resolve(self, metrics: Iterable[Metric], splits: Iterable[str], wanted_by: str) -> Metric:
        """The metric of the run that is meant.

        Raises:
            MetricError: the run has no such metric or split, or the metric has no better and worse.
        """
        known = {metric.name: metric for metric in metrics}
        found = known.get(self.name)
        if found is None:
            guess = nearest(self.name, known)
            raise MetricError(
                f"{wanted_by} monitors a metric that the run does not have",
                where=self.key,
                expected=f"one of: {', '.join(known)}",
                found=repr(self.name),
                hint=f"did you mean {guess!r}?" if guess else "add it to metrics=[...]",
            )
        if self.split not in splits:
            raise MetricError(
                f"{wanted_by} monitors a split that the run does not have",
                where=self.key,
                expected=f"one of: {', '.join(splits)}",
                found=repr(self.split),
                hint="give valid= a loader, or monitor split='train'",
            )
        if found.higher_is_better is None or not found.scalar:
            raise MetricError(
                f"{wanted_by} cannot monitor {self.name}", found="a metric without a better and a worse value"
            )
        return found

    def known(self, metric: Metric | None, wanted_by: str) -> Metric:
        """The metric, once it is an object.

        Raises:
            MetricError: it was given by name, and no training has looked it up.
        """
        if metric is None:
            raise MetricError(
                f"{wanted_by} knows its metric by name only",
                where=self.key,
                expected="a metric object, outside of a SupervisedTraining, which looks names up",
                found=repr(self.name),
                hint=f"{wanted_by}(Loss(), ...)",
            )
        return metric

    def better(self, value: float, best: float, metric: Metric, margin: float = 0.0) -> bool:
        """Whether a value is better than the best one by more than a margin. NaN is never better."""
        return value > best + margin if metric.higher_is_better else value < best - margin
