"""`burnt replay RUN --step K`: run a step of a run again and look into it; the run is not written to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from burnt.cli.output import UsageError, print_json, step_bar
from burnt.cli.runs_select import find_run
from burnt.cli.stored_target import StoredTarget
from burnt.errors import clean, quantity
from burnt.train.format import duration_text

if TYPE_CHECKING:
    from burnt.train.learner import Learner
    from burnt.train.rewind.replaying import ReplayReport
    from burnt.train.rewind.rewind import Past
    from burnt.train.training import SupervisedTraining


_ASK_SECONDS = 60.0
_CALL = "print(burnt.train.replay(training, learner, {}))"


def run(args: argparse.Namespace) -> int:
    """Print what happens in a step; return the exit code 0, or 1 if it differs from what was recorded."""
    first, last = args.step
    folder = Path(find_run(args.run))
    from burnt.train.control.intercepting import use_first_training
    from burnt.train.rewind.replaying import past_of, replay

    past = past_of(folder, first, last)
    target = StoredTarget.read(
        folder, past.config, f"in the program, instead of training.run(learner): {_CALL.format(last)}"
    ).in_folder(folder, resume=True)
    announce(past, first - 1, yes=args.yes)

    def run_again(training: SupervisedTraining, learner: Learner) -> ReplayReport:
        # It is only read, so that it does not matter where the function would write.
        training.folder = folder
        with step_bar() as show:
            progress = partial(show_step, show, first - 1)
            return replay(training, learner, (first, last), debug=args.pdb, progress=progress)

    report = use_first_training(target.call, run_again, target.target)
    if args.json:
        print_json(report.to_dict())
    else:
        if first < last and report.step.non_finite is None and report.step.error is None:
            print(f"steps {first} to {last}: all values are finite; the last one:")
        print("\n".join(map(clean, str(report).splitlines())))
    return 0 if report.difference is None else 1


def announce(past: Past, done: int, *, yes: bool) -> None:
    """Say from where a run is trained forward, and ask in a terminal if it takes long."""
    start = (past.start and clean(past.start.path.name)) or "the beginning: there is no checkpoint before"
    if past.resumed is not None:
        print(
            f"warning: the run was resumed at step {past.resumed} with other settings; "
            "the steps before it are run with those",
            file=sys.stderr,
        )
    count = done - past.first
    if count <= 0:
        print(f"from {start}", file=sys.stderr)
        return
    seconds = None if past.seconds_per_step is None else count * past.seconds_per_step
    duration = "" if seconds is None else f", about {duration_text(seconds)} and the validations on the way"
    print(f"from {start}, {quantity(count, 'step')} forward{duration}", file=sys.stderr)
    if yes or not sys.stdin.isatty() or (seconds or 0.0) <= _ASK_SECONDS:
        return
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was run", hint="--yes goes on without a question")


def show_step(show: Callable[[str, int, int], None], last: int, done: int) -> None:
    """Show in a `step_bar` how many of the steps up to `last` are done."""
    show("steps", min(done, last), last)
