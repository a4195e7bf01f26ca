"""RunMetrics: the metrics of a run, on the training and each validation, and their last values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from burnt.train.metrics.base import Metric, Sums, intervals, read


class RunMetrics:
    """The metrics of a run; those that are not a single number are computed on validations only.

    `train` has the sums over the epoch so far, the loss first, and `logged` those sums when they were logged
    last; `values` are the last values, ``{"valid/loss": 0.1}``.
    """

    def __init__(self, metrics: Sequence[Metric], splits: Iterable[str]) -> None:
        self.train = [metric.fresh() for metric in metrics if metric.scalar]
        self.valid = {split: [metric.fresh() for metric in metrics] for split in splits}
        self.values: dict[str, float] = {}
        self._measured_at: dict[str, int] = {}
        self.logged: Sequence[Sums] = read(self.train)

    @property
    def names(self) -> set[str]:
        """The names of all metrics."""
        return {metric.name for metrics in (self.train, *self.valid.values()) for metric in metrics}

    def since_log(self, sums: Sequence[Sums]) -> dict[str, float]:
        """Return the values of the training from `logged` to these sums."""
        return intervals(self.train, sums, self.logged)

    def end_epoch(self, step: int) -> dict[str, float]:
        """Return the values over the epoch, and begin another one."""
        values = intervals(self.train, read(self.train), None)
        for metric in self.train:
            metric.reset()
        self.logged = read(self.train)
        self.set_values("train", values, step)
        return values

    def end_validation(self, split: str, logged: Mapping[str, float], step: int) -> dict[str, float]:
        """Return the values of a validation, with those that its steps logged."""
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

        A checkpoint is ranked by values of its own weights only, not by those of an earlier validation.
        """
        return {key: value for key, value in self.values.items() if self._measured_at.get(key) == step}

    def state(self) -> dict[str, Sums]:
        """Return `logged`, for a checkpoint."""
        return {metric.name: sums for metric, sums in zip(self.train, self.logged, strict=True)}

    def load_state(
        self, values: Mapping[str, float], measured: Collection[str], step: int, logged: Mapping[str, Any]
    ) -> None:
        """Restore the last values, of which those in `measured` were measured at `step`, and `state`."""
        self.values = dict(values)
        self._measured_at = dict.fromkeys(measured, step)
        pairs = zip(self.train, read(self.train), strict=True)
        self.logged = [
            (logged[metric.name][0], logged[metric.name][1]) if metric.name in logged else sums
            for metric, sums in pairs
        ]
