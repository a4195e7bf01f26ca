"""Early stopping: end a training when a metric no longer improves."""

from __future__ import annotations

import math
from typing import Any

from burnt.errors import ConfigError
from burnt.train.duration import Duration, Position
from burnt.train.metrics.base import Metric
from burnt.train.monitored_metric import Monitored

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Stops a training when a metric has not improved for a while.

    In a custom loop, call `update` after each validation.

    Args:
        metric: the metric to monitor, as an object or by name.
        patience: how long the metric may fail to improve, ``"3 epochs"`` or ``"500 steps"``.
        split: ``"valid"`` or ``"train"``.
        min_delta: the smallest change that counts as an improvement.

    Raises:
        ConfigError: `min_delta` is negative, or `patience` is not a duration.

    >>> from burnt.train import EarlyStopping, Position
    >>> from burnt.train.metrics import Loss
    >>> stopping = EarlyStopping(Loss(), patience="2 epochs")
    >>> [stopping.update(loss, Position(epoch=i)) for i, loss in enumerate([0.5, 0.4, 0.6, 0.5])]
    [False, False, False, True]
    """

    def __init__(
        self,
        metric: Metric | str,
        patience: str | Duration,
        split: str = "valid",
        min_delta: float = 0.0,
    ) -> None:
        self.monitored = Monitored(metric, split)
        self.patience = Duration.parse(patience, "patience")
        if min_delta < 0:
            raise ConfigError("EarlyStopping cannot be built", where="min_delta", expected="at least 0",
                              found=min_delta)  # fmt: skip
        self.min_delta = min_delta
        self.metric = metric if isinstance(metric, Metric) else None
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self.best: float | None = None
        self.best_at = 0
        self.waited = 0

    @property
    def over(self) -> bool:
        """Whether the patience was used up at the last value."""
        return self.waited >= self.patience.count

    @property
    def left(self) -> int:
        """The number of epochs or steps (the unit of `patience`) left before it stops."""
        return max(self.patience.count - self.waited, 0)

    def update(self, value: float, position: Position) -> bool:
        """Add a new value; return whether to stop.

        Args:
            value: the metric's value.
            position: the position of the training.
        """
        metric = self.monitored.require_metric(self.metric, "EarlyStopping")
        first = self.best is None and not math.isnan(value)
        if first or (
            self.best is not None
            and self.monitored.is_better(value, self.best, metric, self.min_delta)
        ):  # fmt: skip
            self.best, self.best_at = value, self.patience.done(position)
        self.waited = self.patience.done(position) - self.best_at
        return self.over

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        return {"best": self.best, "best_at": self.best_at, "waited": self.waited}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best, self.best_at = state["best"], state["best_at"]
        self.waited = state.get("waited", 0)  # the first checkpoints lack it; the next value sets it
