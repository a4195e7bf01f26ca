"""The metrics of a run, and the one of a split that early stopping and `KeepBest` monitor."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from burnt.errors import MetricError, did_you_mean
from burnt.train.metrics.base import Loss, Metric, Sums, intervals, read
from burnt.train.metrics.torch_metric import wrapped

DEFAULT_SPLIT = "valid"
SPEED = (
    *("learning_rate", "steps_per_second", "samples_per_second", "data_wait_share"),
    *("rank_wait_share", "gradient_norm", "loss_scale", "skipped_steps"),
)
"""What a training logs besides metrics."""


def default_split(splits: Iterable[str]) -> str:
    """Return the split that is monitored by default: ``"valid"``, or the first of other validation sets.

    >>> default_split(["train", "rotated", "valid"]), default_split(["train", "rotated"])
    ('valid', 'rotated')
    """
    others = [split for split in splits if split != "train"]
    return others[0] if others and DEFAULT_SPLIT not in others else DEFAULT_SPLIT


def loss_first(metrics: object) -> list[Metric]:
    """Return the metrics with the loss first; add the loss if it is missing."""
    if isinstance(metrics, Iterable):
        metric_list = [wrapped(metric) for metric in metrics]
        wrong = [metric for metric in metric_list if not isinstance(metric, Metric)]
    else:
        wrong = [metrics]
    if wrong:
        raise MetricError(
            "metrics= takes metric objects",
            expected="a list such as [Accuracy(), Loss()] of burnt.train.metrics",
            found=repr(wrong[0]),
            hint="TorchMetric(metric) of torchmetrics, or a subclass of Metric or EpochMetric",
        )
    loss = next((metric for metric in metric_list if metric.name == "loss"), None)
    ordered = [loss or Loss(), *(metric for metric in metric_list if metric is not loss)]
    names = [metric.name for metric in ordered]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise MetricError(
            "two metrics have the same name",
            found=repr(duplicate),
            hint=f"rename one of them: Metric(name={duplicate + '2'!r})",
        )
    return ordered


class Monitored:
    """A metric on a split, as early stopping, a plateau or `KeepBest` (the `owner`) monitors it.

    The metric is given as an object or by name; ``"valid/loss"`` names the split too. By default the split is
    ``"valid"``, or if the run has no validation set of that name, its first one. With `higher_is_better`, the
    name may be of any value that the run logs; those of a step's speed, of the training.
    """

    def __init__(
        self, metric: Metric | str, split: str | None, owner: str, higher_is_better: bool | None = None
    ) -> None:
        metric = wrapped(metric)
        if isinstance(metric, str) and "/" in metric and split is None:
            split, metric = metric.split("/", 1)  # as in the keys of `values`
        self.name = metric if isinstance(metric, str) else metric.name
        self.split = DEFAULT_SPLIT if split is None else split
        self._is_default = split is None
        self._owner = owner
        self._direction = higher_is_better
        self._metric = self._directed(metric) if isinstance(metric, Metric) else None
        self.is_logged = False
        """Whether it is a value that steps log, and not one of the run's metrics."""

    def _directed(self, metric: Metric) -> Metric:
        """Return the metric with the direction that is given, if one is."""
        if self._direction is not None:
            metric = copy.copy(metric)
            metric.higher_is_better = self._direction
        return metric

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
        """Look the metric up among the run's, and the split that is monitored by default."""
        by_name = {metric.name: metric for metric in metrics}
        if self.split in by_name and self.split not in splits:  # "f1/cat" is a class's value, of no split
            self.split, self.name, self._is_default = DEFAULT_SPLIT, self.key, True
        found = by_name.get(self.name) or by_name.get(self.name.partition("/")[0])  # "f1/cat" is of f1
        self.is_logged = found is None
        if found is None and self._direction is not None:
            found = Metric(self.name)
        if found is None:
            raise MetricError(
                f"{self._owner} monitors a metric that the run does not have",
                where=self.key,
                expected=f"one of: {', '.join(by_name)}",
                found=repr(self.name),
                hint=did_you_mean(
                    self.name,
                    by_name,
                    "add it to metrics=[...]; of a value that steps log, say higher_is_better=",
                ),
            )
        found = self._directed(found)
        self.is_logged |= found.per_second  # as it is read with the steps' values only
        if self._is_default:
            self.split = "train" if self.name in SPEED or found.per_second else default_split(splits)
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
                hint="higher_is_better=True or False" if found.scalar else None,
            )
        self._metric = found

    def check(self, logged: Iterable[str], where: str) -> None:
        """Raise if a value that steps log, or one of several of a metric, is not among those `logged`."""
        names = sorted(logged)
        is_one_of_several = any(name.startswith(f"{self.metric.name}/") for name in names)
        if self.name not in names and (self.is_logged or is_one_of_several):
            raise MetricError(
                f"{self._owner} monitors a value that is not logged",
                where=f"{self.key}, {where}",
                expected=f"burnt.log({{{self.name!r}: value}}), or a metric of this name",
                found=", ".join(names) or "nothing logged",
                hint="log_gradient_norm=True"
                if self.name == "gradient_norm"
                else did_you_mean(self.name, names),
            )

    def is_better(self, value: float, best: float | None, margin: float = 0.0) -> bool:
        """Whether a value improves on the best one, if any, by more than a margin. NaN never does."""
        is_higher_better = self.metric.higher_is_better
        if best is None:
            return not math.isnan(value)
        return value > best + margin if is_higher_better else value < best - margin


class RunMetrics:
    """The metrics of a run; those that are not a single number are computed on validations only.

    `train` has the sums over the epoch so far, the loss first, and `logged` those sums when they were logged
    last; `values` are the last values, ``{"valid/loss": 0.1}``. `merge` returns metrics with the batches of
    all processes of the training, where it has several.
    """

    def __init__(
        self,
        metrics: Sequence[Metric],
        splits: Iterable[str],
        merge: Callable[..., Sequence[Metric]] | None = None,
    ) -> None:
        self._merge = merge
        self.train = [metric.fresh() for metric in metrics if metric.scalar]
        self.valid = {split: [metric.fresh() for metric in metrics] for split in splits}
        self.values: dict[str, float] = {}
        self._measured_at: dict[str, int] = {}
        self.logged: Sequence[Sums] = read(self.train)
        self._readings: dict[str, Sums] = {}  # over the epoch so far, of values that steps log

    @property
    def names(self) -> set[str]:
        """The names of all metrics."""
        return {metric.name for metrics in (self.train, *self.valid.values()) for metric in metrics}

    def merged(self, metrics: Sequence[Metric], *, whole: bool = True) -> Sequence[Metric]:
        """Return metrics with the batches of all ranks; unless `whole`, only those that are sums."""
        return metrics if self._merge is None else self._merge(metrics, whole=whole)

    def sums(self) -> list[Sums]:
        """Return the sums of the training's metrics over the epoch so far."""
        return read(self.merged(self.train, whole=False))

    def since_log(self, sums: Sequence[Sums], seconds: float | None = None) -> dict[str, float]:
        """Return the values of the training from `logged` to these sums, `seconds` apart."""
        return intervals(self.train, sums, self.logged, seconds)

    def epoch_values(self) -> dict[str, float]:
        """Return the values of the training over the epoch so far."""
        means = {name: total[0] / steps for name, (total, steps) in self._readings.items()}
        metrics = self.merged(self.train)
        return {**means, **intervals(metrics, read(metrics), None)}

    def add_reading(self, name: str, value: float, steps: int) -> None:
        """Add a value that the last `steps` steps logged; an epoch has the mean over its steps."""
        total, count = self._readings.get(name, ([0.0], 0))
        self._readings[name] = [total[0] + value * steps], count + steps

    def final_values(self) -> dict[str, float]:
        """Return the last values; those of the training over its first epoch so far, if it has not ended."""
        values = self.epoch_values() if not any(key.startswith("train/") for key in self.values) else {}
        return {**self.values, **{f"train/{name}": value for name, value in values.items()}}

    def end_epoch(self, step: int) -> dict[str, float]:
        """Return the values over the epoch, and begin another one."""
        values = self.epoch_values()
        for metric in self.train:
            metric.reset()
        self.logged, self._readings = read(self.train), {}
        self.set_values("train", values, step)
        return values

    def end_validation(self, split: str, logged: Mapping[str, float], step: int) -> dict[str, float]:
        """Return the values of a validation, with those that its steps logged."""
        self.valid[split] = list(self.merged(self.valid[split]))
        metrics = self.valid[split]
        values = {**intervals(metrics, read(metrics), None), **logged}
        self.set_values(split, values, step)
        return values

    def set_values(self, split: str, values: Mapping[str, float], step: int) -> None:
        """Set the last values of a split, measured after `step` steps."""
        self.values |= {f"{split}/{name}": value for name, value in values.items()}
        self._measured_at |= {f"{split}/{name}": step for name in values}

    def values_at(self, step: int) -> dict[str, float]:
        """Return the values measured after `step` steps.

        A checkpoint is ranked only by values of its own weights, not by an earlier validation's.
        """
        return {key: value for key, value in self.values.items() if self._measured_at.get(key) == step}

    def state(self) -> dict[str, Sums]:
        """Return `logged` and the readings, for a checkpoint."""
        logged = {metric.name: sums for metric, sums in zip(self.train, self.logged, strict=True)}
        return {**logged, **{f"/{name}": sums for name, sums in self._readings.items()}}

    def load_state(
        self, values: Mapping[str, float], measured: Collection[str], step: int, logged: Mapping[str, Any]
    ) -> None:
        """Restore the last values, of which those in `measured` were measured at `step`, and `state`."""
        self.values = dict(values)
        self._measured_at = dict.fromkeys(measured, step)
        pairs = zip(self.train, self.sums(), strict=True)
        self.logged = [
            (logged[metric.name][0], logged[metric.name][1]) if metric.name in logged else sums
            for metric, sums in pairs
        ]
        self._readings = {
            name[1:]: (sums[0], sums[1]) for name, sums in logged.items() if name.startswith("/")
        }
