"""MetricWatch: plateaus and early stopping, which act on the newest values of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from burnt.store import RunWriter
from burnt.train.control.control import Control
from burnt.train.control.plateau import Plateau
from burnt.train.control.stopping import EarlyStopping
from burnt.train.duration import Position


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
    def is_over(self) -> bool:
        """Whether early stopping ends the training at the last value."""
        return self._stopping is not None and self._stopping.over

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
