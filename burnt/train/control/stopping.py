"""Early stopping: end a training by a metric; `MetricWatch` updates it, and the plateaus."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from burnt._hints import explain_arguments
from burnt.errors import ConfigError
from burnt.store import RunWriter
from burnt.train.control.control import Control
from burnt.train.control.plateau import Plateau
from burnt.train.duration import Duration, Position
from burnt.train.format import value_text
from burnt.train.metrics.base import Metric
from burnt.train.metrics.monitored_metric import Monitored


class EarlyStopping:
    """Stops a training when a metric has not improved for a while, or has reached a bound.

    In a custom loop, call `update` after each validation.

    Args:
        metric: the metric to monitor, as an object or by name; or the name of any logged value.
        patience: how long the metric may fail to improve, ``"3 epochs"``, ``"500 steps"`` or ``"2 h"``; None
            waits forever.
        split: ``"train"`` or the name of a validation set; by default ``"valid"``, or the first one.
        min_delta: the smallest change that counts as an improvement.
        warmup: how long to ignore the metric at the start, ``"2 epochs"``: the first value that counts is one
            measured later, as with Keras' ``start_from_epoch``.
        target: stop as soon as the metric is at least as good as this.
        diverged: stop as soon as the metric is worse than this.
        higher_is_better: which values are better, of a value that steps log or a metric that does not say.
        restore_best: return the model with the weights of the best checkpoint by this metric. The training
            keeps that checkpoint, as `KeepBest` does; it may be one of before the end of `warmup`.

    Raises:
        ConfigError: an argument is invalid, or none of `patience`, `target` and `diverged` is given.

    >>> from burnt.train import EarlyStopping, Position
    >>> from burnt.train.metrics import Loss
    >>> stopping = EarlyStopping(Loss(), patience="2 epochs")
    >>> [stopping.update(loss, Position(epoch=i)) for i, loss in enumerate([0.5, 0.4, 0.6, 0.5])]
    [False, False, False, True]
    >>> stopping.reason
    'valid/loss has not improved on 0.4000 for 2 epochs'
    """

    @explain_arguments(
        metric='the metric comes first: EarlyStopping("loss", patience="3 epochs")',
        mode="the metric defines which values are better: Metric.higher_is_better",
    )
    def __init__(
        self,
        metric: Metric | str,
        patience: str | Duration | None = None,
        split: str | None = None,
        min_delta: float = 0.0,
        *,
        warmup: str | Duration | None = None,
        target: float | None = None,
        diverged: float | None = None,
        higher_is_better: bool | None = None,
        restore_best: bool = False,
    ) -> None:
        self.monitored = Monitored(metric, split, "EarlyStopping", higher_is_better)
        self.patience = None if patience is None else Duration.parse(patience, "patience", single=True)
        self.warmup = None if warmup is None else Duration.parse(warmup, "warmup", single=True)
        if min_delta < 0:
            raise _invalid("min_delta", "at least 0", min_delta)
        for name, bound in (("target", target), ("diverged", diverged)):
            if bound is not None and not math.isfinite(bound):
                raise _invalid(name, "a finite number", bound)
        if patience is None and target is None and diverged is None:
            raise _invalid("patience", "one or more of patience=, target= and diverged=", "none of them")
        self.min_delta = min_delta
        self.target = target
        self.diverged = diverged
        self.restore_best = restore_best
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self.best: float | None = None
        self.best_at: float = 0
        self.waited: float = 0
        self.value: float | None = None

    @property
    def reason(self) -> str | None:
        """Why the training stops at the last value; None if it goes on."""
        key, value = self.monitored.key, self.value
        if value is not None and self.target is not None and not self._is_worse(value, self.target):
            return f"{key} reached {value_text(value)}, the target being {value_text(self.target)}"
        if value is not None and self.diverged is not None and self._is_worse(value, self.diverged):
            return f"{key} is {value_text(value)}, worse than {value_text(self.diverged)}"
        if self.patience is not None and self.waited >= self.patience.count:
            better = "been a number" if self.best is None else f"improved on {value_text(self.best)}"
            return f"{key} has not {better} for {self.patience}"
        return None

    @property
    def over(self) -> bool:
        """Whether the training stops at the last value."""
        return self.reason is not None

    @property
    def left(self) -> float | None:
        """The epochs, steps or seconds (the unit of `patience`) left before it stops; None without one."""
        return None if self.patience is None else max(self.patience.count - self.waited, 0)

    def update(self, value: float, position: Position) -> bool:
        """Add a new value; return whether to stop.

        Args:
            value: the metric's value.
            position: the position of the training.
        """
        now = 0 if self.patience is None else self.patience.done(position)
        if self.warmup is not None and self.warmup.done(position) <= self.warmup.count:
            self.best_at = now
            return False
        if self.monitored.is_better(value, self.best, self.min_delta):
            self.best, self.best_at = value, now
        self.value, self.waited = value, now - self.best_at
        return self.over

    def _is_worse(self, value: float, bound: float) -> bool:
        """Whether a value is worse than a bound. NaN is."""
        return math.isnan(value) or self.monitored.is_better(bound, value)

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        return {"best": self.best, "best_at": self.best_at, "waited": self.waited, "value": self.value}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best, self.best_at = state["best"], state["best_at"]
        self.waited = state.get("waited", 0)  # the first checkpoints lack it; the next value sets it
        self.value = state.get("value")  # as do those of burnt 0.1.0


def _invalid(name: str, expected: str, found: object) -> ConfigError:
    return ConfigError("EarlyStopping cannot be built", where=name, expected=expected, found=found)


class MetricWatch:
    """Reduces learning rates and stops a training by what metrics say, and records both."""

    def __init__(
        self,
        stopping: EarlyStopping | None,
        plateaus: Mapping[Plateau, str],
        writer: RunWriter,
        message: Callable[[str], None],
        control: Control,
    ) -> None:
        self._stopping, self._plateaus = stopping, plateaus
        self._writer, self._message, self._control = writer, message, control

    @property
    def why_over(self) -> str | None:
        """Why early stopping ends the training at the last value; None if it goes on."""
        return None if self._stopping is None else self._stopping.reason

    def update(self, values: Mapping[str, float], splits: Collection[str], position: Position) -> bool:
        """Look at the values of splits that are new; return whether early stopping ends the training."""
        for plateau, group in self._plateaus.items():
            value = values.get(plateau.monitored.key, math.nan)
            if plateau.monitored.split in splits and plateau.update(value, position):
                self._report_reduction(plateau, group, position)
        stopping = self._stopping
        if stopping is None or stopping.monitored.split not in splits:
            return False
        is_over = stopping.update(values.get(stopping.monitored.key, math.nan), position)
        patience = None if stopping.patience is None else str(stopping.patience)
        state = {"metric": stopping.monitored.key, "best": stopping.best, "patience": patience}
        self._writer.event("stopping", position.step, **state, waited=stopping.waited, left=stopping.left)
        if is_over:
            self._writer.event("early_stopping", position.step, **state, reason=stopping.reason)
            self._message(f"Stopping early: {stopping.reason}.")
        return is_over

    def _report_reduction(self, plateau: Plateau, group: str, position: Position) -> None:
        rate = plateau(position.step) * (self._control.rate_factor if group else 1)
        self._writer.event(
            "plateau",
            position.step,
            metric=plateau.monitored.key,
            best=plateau.best,
            patience=str(plateau.patience),
            rate=rate,
            scale=plateau.scale,
            group=group or None,
        )
        better = "been a number" if plateau.best is None else f"improved on {plateau.best:.4g}"
        scheduled = "learning rate" if self._control.override is None else "scheduled learning rate"
        self._message(
            f"Reducing the {f'learning rate of {group}' if group else scheduled} to {rate:.4g}: "
            f"{plateau.monitored.key} has not {better} for {plateau.patience}."
        )
