"""In-memory views of sweeps: `SweepView` joins the files of the trials with the views of their runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from burnt.errors import BurntError
from burnt.monitor.data.runs import RunView
from burnt.store import Series
from burnt.store.schema import TRIAL
from burnt.store.sweeps import SWEEP, Sweep, Trial, ranked, read_trials


class SweepView:
    """A sweep with its trials, the best first; `refresh` reads the files again if one has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sweep: Sweep | None = None
        self.trials: list[Trial] = []
        self.views: dict[int, RunView] = {}  # of the trials that have a run, by number
        self.error: BurntError | None = None
        self._stamps: object = None
        self._stored: list[Trial] = []

    def refresh(self, views: Iterable[RunView]) -> None:
        """Read what has changed; `views` are those of all runs."""
        found = {view.folder.name: view for view in views if view.folder.parent == self.folder}
        try:
            files = [self.folder / SWEEP, *(self.folder / name / TRIAL for name in found)]
            stamps = [os.stat(file).st_mtime_ns for file in files if file.exists()]
            if stamps != self._stamps:
                self.sweep, self._stored = Sweep.load(files[0]), read_trials(self.folder)
                self._stamps = stamps
            self.error = None
        except (BurntError, OSError) as error:
            self.error = error if isinstance(error, BurntError) else BurntError(str(error))
            return
        assert self.sweep is not None
        self.views = {trial.number: found[trial.name] for trial in self._stored if trial.name in found}
        self.trials = ranked(map(self._with_live_value, self._stored), self.sweep.direction)

    def _with_live_value(self, trial: Trial) -> Trial:
        view = self.views.get(trial.number)
        if trial.state != "running" or view is None or self.sweep is None or self.sweep.metric is None:
            return trial
        split, _, name = self.sweep.metric.partition("/")
        best = view.best(Series(name, split)) if view.error is None else None
        return trial if best is None else trial.replace(value=best.value, step=best.step)

    @property
    def num_ended(self) -> int:
        """How many trials have ended."""
        return sum(trial.state != "running" for trial in self.trials)

    @property
    def best(self) -> RunView | None:
        """The run of the best trial that has one."""
        return next((self.views[t.number] for t in self.trials if t.number in self.views), None)
