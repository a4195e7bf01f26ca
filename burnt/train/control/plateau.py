"""Plateau: a learning rate that is reduced when a metric no longer improves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from burnt._hints import explain_arguments
from burnt.errors import ConfigError
from burnt.optim.schedules import ScheduleLike, as_schedule
from burnt.train.duration import Duration, Position
from burnt.train.metrics.base import Metric
from burnt.train.metrics.monitored_metric import Monitored

if TYPE_CHECKING:
    from burnt.train.learner import Learner


class Plateau:
    """A schedule that is multiplied by a factor whenever a metric has not improved for a while.

    A training updates it after each validation, and saves its state in the checkpoints. In a custom loop,
    call `update` after each validation. Wrap the whole schedule in it: ``Plateau(Warmup(...), ...)``.

    Args:
        schedule: the rate before any reduction: a schedule, a number, or a function of the finished steps.
        metric: the metric to monitor, as an object or by name; or the name of any logged value.
        patience: how long the metric may fail to improve, ``"3 epochs"``, ``"500 steps"`` or ``"2 h"``,
            or a number of validations. The rate is reduced at the end of it; torch's waits for one
            validation more.
        factor: multiplies the rate at each reduction.
        split: ``"train"`` or the name of a validation set; by default ``"valid"``, or the first one.
        threshold: the smallest change that counts as an improvement: as a fraction of the best value, or
            absolute.
        threshold_mode: ``"rel"`` or ``"abs"``.
        cooldown: how long to wait after a reduction before `patience` counts again.
        min_lr: a reduction goes no lower than this.
        higher_is_better: which values are better, of a value that steps log or a metric that does not say.

    The metric defines which values are better. Same as torch's ReduceLROnPlateau, except for `patience`, and
    that a relative threshold is a fraction of the absolute value: torch's makes worse negative values count
    as improvements.

    Raises:
        ConfigError: an argument is invalid.

    >>> from burnt.train import Plateau, Position
    >>> from burnt.train.metrics import Loss
    >>> plateau = Plateau(1.0, Loss(), patience=2, factor=0.1)
    >>> for step, loss in enumerate([0.5, 0.4, 0.6, 0.5, 0.5, 0.5], 1):
    ...     reduced = plateau.update(loss, Position(step=step))
    ...     print(reduced, round(plateau(step), 3))
    False 1.0
    False 1.0
    False 1.0
    True 0.1
    False 0.1
    True 0.01
    """

    @explain_arguments(mode="the metric defines which values are better: Metric.higher_is_better")
    def __init__(
        self,
        schedule: ScheduleLike,
        metric: Metric | str,
        patience: str | int | Duration,
        factor: float = 0.1,
        split: str | None = None,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: str | int | Duration = 0,
        min_lr: float = 0.0,
        *,
        higher_is_better: bool | None = None,
    ) -> None:
        try:
            self.schedule = as_schedule(schedule)
        except ConfigError as error:
            if error.where is not None:  # of the schedule itself, such as its rate
                raise
            raise ConfigError(
                "Plateau cannot be built",
                where="schedule",
                expected=error.expected,
                found=error.found,
                hint=error.hint,
            ) from None
        for name, value, valid, expected in (
            ("factor", factor, 0 < factor < 1, "above 0 and below 1"),
            ("threshold", threshold, 0 <= threshold < math.inf, "a finite number of at least 0"),
            ("threshold_mode", threshold_mode, threshold_mode in ("rel", "abs"), "'rel' or 'abs'"),
            ("min_lr", min_lr, 0 <= min_lr < math.inf, "a finite rate of at least 0"),
        ):
            if not valid:
                raise _invalid(name, expected, value)
        self.monitored = Monitored(metric, split, "Plateau", higher_is_better)
        self.patience = _parse(patience, "patience", least=1)
        self.cooldown = _parse(cooldown, "cooldown", least=0)
        self.factor = factor
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.min_lr = min_lr
        self.reset()

    def __repr__(self) -> str:
        return (
            f"Plateau({self.schedule!r}, {self.monitored.key!r}, patience={str(self.patience)!r}, "
            f"factor={self.factor}, threshold={self.threshold}, threshold_mode={self.threshold_mode!r}, "
            f"cooldown={str(self.cooldown)!r}, min_lr={self.min_lr})"
        )

    def reset(self) -> None:
        """Forget all values and reductions."""
        self.best: float | None = None
        self.scale = 1.0
        self.evaluations = 0
        self._updated_at = -1  # in steps
        self._waiting_since = 0.0  # in the unit of patience
        self._cooldown_until = -1.0  # in the unit of cooldown

    def __call__(self, step: int) -> float:
        """Return the schedule's rate after `step` finished steps, times the reductions so far."""
        rate = self.schedule(step)
        return rate if self.scale == 1 else max(rate * self.scale, min(rate, self.min_lr))

    def update(self, value: float, position: Position) -> bool:
        """Add a new value; return whether the rate was reduced.

        Args:
            value: the metric's value. NaN is not an improvement.
            position: the position of the training. A second value at the same step is ignored.
        """
        worst = -math.inf if self.monitored.metric.higher_is_better else math.inf
        if position.step == self._updated_at:
            return False
        self._updated_at = position.step
        self.evaluations += 1
        now = self._count(self.patience, position)
        best, margin = worst if self.best is None else self.best, 0.0
        if self.best is not None:
            margin = self.threshold * (abs(best) if self.threshold_mode == "rel" else 1)
        if self.monitored.is_better(value, best, margin):
            self.best, self._waiting_since = value, now
        if self._count(self.cooldown, position) <= self._cooldown_until:
            self._waiting_since = now
        if now - self._waiting_since < self.patience.count:
            return False
        self._waiting_since = now
        self._cooldown_until = self._count(self.cooldown, position) + self.cooldown.count
        scale, before = self.scale, self(position.step)
        self.scale = scale * self.factor
        if self(position.step) == before:  # it is at min_lr
            self.scale = scale
            return False
        return True

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        return {
            "best": self.best,
            "scale": self.scale,
            "evaluations": self.evaluations,
            "updated_at": self._updated_at,
            "waiting_since": self._waiting_since,
            "cooldown_until": self._cooldown_until,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best, self.scale, self.evaluations = state["best"], state["scale"], state["evaluations"]
        self._updated_at, self._waiting_since = state["updated_at"], state["waiting_since"]
        self._cooldown_until = state["cooldown_until"]

    def _count(self, duration: Duration, position: Position) -> float:
        return self.evaluations if duration.unit == _EVALUATIONS else duration.done(position)


def plateaus_of(learner: Learner) -> dict[Plateau, str]:
    """Return the Plateaus of a Learner with the groups whose rate they are; "" for the Learner's schedule."""
    groups: dict[Plateau, list[str]] = {}
    for name, schedule in {"": learner.schedule, **learner.optimizer.schedules}.items():
        if isinstance(schedule, Plateau):
            groups.setdefault(schedule, []).append(name)
    return {plateau: "" if "" in names else ", ".join(names) for plateau, names in groups.items()}


_EVALUATIONS = "validations"  # the unit of a Duration given as a number


def _parse(value: str | int | Duration, name: str, *, least: int) -> Duration:
    if isinstance(value, int):
        if value < least:
            raise _invalid(name, f"at least {least}", value)
        return Duration(value, _EVALUATIONS)
    return Duration.parse(value, name, single=True)


def _invalid(name: str, expected: str, found: object) -> ConfigError:
    return ConfigError("Plateau cannot be built", where=name, expected=expected, found=repr(found))
