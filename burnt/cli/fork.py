"""`burnt fork` and `burnt train --resume`: start a run at a step of another one, or go on with one."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from burnt.cli import several
from burnt.cli.output import UsageError, step_bar
from burnt.cli.replay import announce, show_step
from burnt.cli.runs_select import find_run
from burnt.cli.stored_target import StoredTarget
from burnt.cli.train import choose_monitor
from burnt.errors import BurntError, CheckpointError, clean

if TYPE_CHECKING:
    from burnt.train.learner import Learner
    from burnt.train.rewind.rewind import Past
    from burnt.train.training import SupervisedTraining

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from burnt.cli.runs_select import open_run, run_folder
from burnt.errors import RunError
from burnt.store.opening import numbered_folders

if TYPE_CHECKING:
    from burnt.train.learner import Learner
    from burnt.train.training import SupervisedTraining, TrainingResult


@several.reporting()
def resume(args: argparse.Namespace) -> int:
    """Resume a run; return the exit code 0."""
    if (code := several.start(args)) is not None:
        return code
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
        training.exists = "resume"
        training.fork = None if self._fork is None else dict(self._fork)
        return training.run(learner)


def run(args: argparse.Namespace) -> int:
    """Start a fork of a run; return the exit code 0."""
    choose_monitor(args)
    parent, step = _parse_point(args.point)
    from burnt.train.rewind.rewind import Past

    past = Past.read(parent, step, before=step)
    original = StoredTarget.read(
        parent, past.config, "the program itself: copy a checkpoint to a new folder and resume there"
    )
    original.require_folder()
    changed = original.override(args.overrides)
    folder = _new_folder(parent, step, args.overrides, changed)
    start_fork(past, original, changed, folder, yes=args.yes)
    return 0


def start_fork(past: Past, original: StoredTarget, changed: StoredTarget, folder: Path, *, yes: bool) -> None:
    """Train from the last step of a run's past on, in another folder."""
    from burnt.train.control.intercepting import intercepting

    parent, step = past.folder, past.last
    changed = changed.in_folder(folder, resume=True)
    announce(past, step, yes=yes)
    try:
        _adopt_state(past, original.in_folder(parent, resume=True), folder)
        print(clean(f"{folder}: from step {step} of {parent}"), file=sys.stderr)
        fork = {"folder": os.path.relpath(parent.resolve(), folder.resolve()), "step": step}
        with intercepting(Resuming(folder, fork), changed.target):
            changed.call()
    except CheckpointError as error:
        if "different loader" in error.what:
            error.hint = "fork at the end of an epoch, or keep the settings of the loader"
        raise
    finally:
        if not (folder / "run.db").exists():  # nothing has started: leave nothing behind
            shutil.rmtree(folder, ignore_errors=True)


def _parse_point(text: str) -> tuple[Path, int]:
    name, at, step = text.rpartition("@")
    if not at or not name or not step.isdecimal() or not int(step):
        raise UsageError(
            "a fork needs a run and a step", expected="RUN@STEP, such as runs/digits@1200", found=repr(text)
        )
    return Path(find_run(name)), int(step)


def _new_folder(parent: Path, step: int, overrides: Sequence[str], changed: StoredTarget) -> Path:
    """Return the folder of the fork: as it was given, or named by the run and the step."""
    if any(assignment.startswith("folder=") for assignment in overrides):
        folder = Path(getattr(changed.config, "folder"))  # noqa: B009 - a field of the user's Config
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", where="folder", expected="a new folder for the fork")
        return folder
    return free_folder(parent.parent / f"{parent.name}-fork-{step}")


def free_folder(base: Path) -> Path:
    """Return a folder, with a number from 2 on after its name if it exists."""
    return next(folder for folder in numbered_folders(base) if not folder.exists())


def _adopt_state(past: Past, target: StoredTarget, folder: Path) -> None:
    """Write the state of a run after a step as the first checkpoint of another run."""
    from burnt.train.checkpoints.checkpoint import Checkpoints
    from burnt.train.control.intercepting import use_first_training
    from burnt.train.events import Started, Stepped
    from burnt.train.rewind.replaying import compare_recorded
    from burnt.train.rewind.rewind import train_forward

    checkpoints = Checkpoints(folder / "checkpoints")
    if past.start is not None and past.first == past.last:
        checkpoints.adopt(past.start.path)
        return

    class Progress:
        def on_start(self, event: Started | Stepped) -> None:
            show_step(show, past.last, event.training.position.step)

        on_step = on_start

    def run_again(training: SupervisedTraining, learner: Learner) -> None:
        train_forward(training, learner, past, Path(scratch), finish=True, callbacks=[Progress()])

    with tempfile.TemporaryDirectory(prefix="burnt-fork-") as scratch:
        with step_bar() as show:
            use_first_training(target.call, run_again, target.target)
        newest = Checkpoints(Path(scratch) / "checkpoints").newest()
        if newest is None or newest.is_symlink():
            raise BurntError(
                f"no state of step {past.last} could be saved",
                where=str(past.folder),
                hint="was the run trained with checkpoints=None?",
            )
        _, difference = compare_recorded(past, Path(scratch), past.last)
        if difference is not None:
            what = f"the program gives other values now than in {past.folder}"
            print(clean(f"warning: {what}, and the fork starts from these: {difference}"), file=sys.stderr)
        checkpoints.adopt(newest)
