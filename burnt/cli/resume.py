"""`burnt train --resume RUN`: call the function that started a run again, to go on with it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.cli.runs_select import open_run, run_folder
from burnt.cli.stored_target import StoredTarget
from burnt.cli.train import choose_monitor
from burnt.errors import RunError

if TYPE_CHECKING:
    from burnt.train.learner import Learner
    from burnt.train.training import SupervisedTraining, TrainingResult


def run(args: argparse.Namespace) -> int:
    """Resume a run; return the exit code 0."""
    choose_monitor(args)
    folder = Path(run_folder(args.resume))
    with open_run(str(folder)) as reader:
        document = reader.config()
    target = StoredTarget.read(
        folder, document, f"run the program again with SupervisedTraining({str(folder)!r}, ..., resume=True)"
    )
    target = target.override(args.overrides).in_folder(folder, resume=True)
    if args.show:
        print(target.config.to_json())
        return 0
    from burnt.train.control.intercepting import intercepting

    with intercepting(Resuming(folder), target.target):
        target.call()
    return 0


class Resuming:
    """Interceptor that resumes the run in a folder."""

    def __init__(self, folder: Path, fork: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self._fork = fork

    def __call__(self, training: SupervisedTraining, learner: Learner) -> TrainingResult:
        """Run the training with ``resume=True``."""
        if training.folder.resolve() != self.folder.resolve():
            raise RunError(
                "the program trains in another folder",
                where=str(training.folder),
                expected=str(self.folder),
                hint="give its Config a field `folder`, and train in SupervisedTraining(config.folder, ...)",
            )
        training.resume = True
        training.fork = None if self._fork is None else dict(self._fork)
        return training.run(learner)
