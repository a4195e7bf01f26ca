"""The metric of a split that early stopping and `KeepBest` monitor."""

from __future__ import annotations

import math
from collections.abc import Iterable

from burnt.errors import MetricError, did_you_mean
from burnt.train.metrics.base import Metric

DEFAULT_SPLIT = "valid"


def default_split(splits: Iterable[str]) -> str:
    """Return the split that is monitored by default: ``"valid"``, or the first of other validation sets.

    >>> default_split(["train", "rotated", "valid"]), default_split(["train", "rotated"])
    ('valid', 'rotated')
    """
    others = [split for split in splits if split != "train"]
    return others[0] if others and DEFAULT_SPLIT not in others else DEFAULT_SPLIT


class Monitored:
    """A metric on a split, as early stopping, a plateau or `KeepBest` (the `owner`) monitors it.

    The metric is given as an object or by name; ``"valid/loss"`` names the split too. By default the split is
    ``"valid"``, or if the run has no validation set of that name, its first one.
    """

    def __init__(self, metric: Metric | str, split: str | None, owner: str) -> None:
        if isinstance(metric, str) and "/" in metric:
            split, metric = metric.split("/", 1)  # as in the keys of `values`
        self.name = metric if isinstance(metric, str) else metric.name
        self.split = DEFAULT_SPLIT if split is None else split
        self._is_default = split is None
        self._owner = owner
        self._metric = metric if isinstance(metric, Metric) else None

    @property
    def metric(self) -> Metric:
        """The metric."""
        if self._metric is None:
            raise MetricError(
                f"{self._owner} has only the name of its metric",
                where=self.key,
                expected="a metric object; only SupervisedTraining resolves names",
                found=repr(self.name),
                hint=f"{self._owner}(Loss(), ...)",
            )
        return self._metric

    @property
    def key(self) -> str:
        """The key in the dict of metric values: ``"valid/loss"``."""
        return f"{self.split}/{self.name}"

    def resolve(self, metrics: Iterable[Metric], splits: Iterable[str]) -> None:
        """Look the metric up among those of the run, and the split that is monitored by default."""
        by_name = {metric.name: metric for metric in metrics}
        found = by_name.get(self.name)
        if found is None:
            raise MetricError(
                f"{self._owner} monitors a metric that the run does not have",
                where=self.key,
                expected=f"one of: {', '.join(by_name)}",
                found=repr(self.name),
                hint=did_you_mean(self.name, by_name, "add it to metrics=[...]"),
            )
        if self._is_default:
            self.split = default_split(splits)
        if self.split not in splits:
            raise MetricError(
                f"{self._owner} monitors a split that the run does not have",
                where=self.key,
                expected=f"one of: {', '.join(splits)}",
                found=repr(self.split),
                hint="give valid= a loader, or monitor split='train'"
                if self.split == DEFAULT_SPLIT
                else "the splits are 'train' and the names in valid={...}",
            )
        if found.higher_is_better is None or not found.scalar:
            raise MetricError(
                f"{self._owner} cannot monitor {self.name}",
                found="a metric that does not define which value is better",
            )
        self._metric = found

    def is_better(self, value: float, best: float | None, margin: float = 0.0) -> bool:
        """Whether a value improves on the best one, if any, by more than a margin. NaN never does."""
        is_higher_better = self.metric.higher_is_better
        if best is None:
            return not math.isnan(value)
        return value > best + margin if is_higher_better else value < best - margin
