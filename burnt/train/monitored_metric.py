"""The metric of a split that early stopping and `KeepBest` monitor."""

from __future__ import annotations

from collections.abc import Iterable

from burnt.errors import MetricError, nearest
from burnt.train.metrics.base import Metric

__all__ = ["Monitored"]


class Monitored:
    """A metric on a split.

    Args:
        metric: the metric, as an object or by name.
        split: ``"valid"`` or ``"train"``.
    """

    def __init__(self, metric: Metric | str, split: str = "valid") -> None:
        if isinstance(metric, str) and "/" in metric:
            split, metric = metric.split("/", 1)  # "valid/loss", as in the keys of `values`
        self.metric = metric
        self.split = split

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.metric if isinstance(self.metric, str) else self.metric.name

    @property
    def key(self) -> str:
        """The key in the dict of metric values: ``"valid/loss"``."""
        return f"{self.split}/{self.name}"

    def resolve(self, metrics: Iterable[Metric], splits: Iterable[str], owner: str) -> Metric:
        """Look the metric up among those of the run.

        Raises:
            MetricError: the run has no such metric or split, or the metric defines no better value.
        """
        by_name = {metric.name: metric for metric in metrics}
        found = by_name.get(self.name)
        if found is None:
            guess = nearest(self.name, by_name)
            raise MetricError(
                f"{owner} monitors a metric that the run does not have",
                where=self.key,
                expected=f"one of: {', '.join(by_name)}",
                found=repr(self.name),
                hint=f"did you mean {guess!r}?" if guess else "add it to metrics=[...]",
            )
        if self.split not in splits:
            raise MetricError(
                f"{owner} monitors a split that the run does not have",
                where=self.key,
                expected=f"one of: {', '.join(splits)}",
                found=repr(self.split),
                hint="give valid= a loader, or monitor split='train'",
            )
        if found.higher_is_better is None or not found.scalar:
            raise MetricError(
                f"{owner} cannot monitor {self.name}",
                found="a metric that does not define which value is better",
            )
        return found

    def require_metric(self, metric: Metric | None, owner: str) -> Metric:
        """Return the metric object.

        Raises:
            MetricError: it was given by name, and no training has resolved the name.
        """
        if metric is None:
            raise MetricError(
                f"{owner} has only the name of its metric",
                where=self.key,
                expected="a metric object; only SupervisedTraining resolves names",
                found=repr(self.name),
                hint=f"{owner}(Loss(), ...)",
            )
        return metric

    def is_better(self, value: float, best: float, metric: Metric, margin: float = 0.0) -> bool:
        """Whether a value improves on the best one by more than a margin. NaN never does."""
        return value > best + margin if metric.higher_is_better else value < best - margin
