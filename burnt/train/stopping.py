"""When a training stops before its time."""

from __future__ import annotations

import math
from typing import Any

from burnt.errors import ConfigError
from burnt.train.duration import Duration, Position
from burnt.train.metrics.base import Metric
from burnt.train.monitored_metric import Monitored

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Stop when a metric has not become better for a while.

    It can be used in a loop written by hand as well: `update` after each validation.

    Args:
        metric: what is watched, by object or name.
        patience: how long it may fail to become better, ``"3 epochs"`` or ``"500 steps"``.
        split: ``"valid"`` or ``"train"``.
        min_delta: how much better counts as better.

    Raises:
        ConfigError: a negative `min_delta`, or a patience that is no duration.

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
        """Forget every value."""
        self.best: float | None = None
        self.best_at = 0
        self.waited = 0

    @property
    def over(self) -> bool:
        """Whether it was time to stop at the last value."""
        return self.waited >= self.patience.count

    @property
    def left(self) -> int:
        """How many more of patience's epochs or steps it waits."""
        return max(self.patience.count - self.waited, 0)

    def update(self, value: float, position: Position) -> bool:
        """Take a new value in; True when it is time to stop.

        Args:
            value: the metric's value.
            position: how far the training has come.
        """
        metric = self.monitored.known(self.metric, "EarlyStopping")
        first = self.best is None and not math.isnan(value)
        if first or (
            self.best is not None
            and self.monitored.better(value, self.best, metric, self.min_delta)
        ):  # fmt: skip
            self.best, self.best_at = value, self.patience.done(position)
        self.waited = self.patience.done(position) - self.best_at
        return self.over

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": self.best, "best_at": self.best_at, "waited": self.waited}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state over."""
        self.best, self.best_at, self.waited = state["best"], state["best_at"], state["waited"]
