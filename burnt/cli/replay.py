"""`burnt replay RUN --step K`: run a step of a run again and look into it; the run is not written to."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from burnt.cli.output import UsageError, print_json
from burnt.cli.runs_show import find_run
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
_PROGRESS_SECONDS = 0.2


def run(args: argparse.Namespace) -> int:
    """Print what happens in a step; return the exit code 0, or 1 if it differs from what was recorded."""
    first, last = _parse_steps(args.step)
    folder = Path(find_run(args.run))
    from burnt.train.control.intercepting import use_first_training
    from burnt.train.rewind.replaying import past_of, replay

    past = past_of(folder, first, last)
    target = StoredTarget.read(
        folder, past.config, f"in the program, instead of training.run(learner): {_CALL.format(last)}"
    ).in_folder(folder, resume=True)
    announce(past, first - 1, yes=args.yes)

    def run_again(training: SupervisedTraining, learner: Learner) -> ReplayReport:
        # It is read alone, so that it does not matter where the function would write.
        training.folder = folder
        with progress_line(past, first - 1) as progress:
            return replay(training, learner, (first, last), debug=args.pdb, progress=progress)

    report = use_first_training(target.call, run_again, target.target)
    if args.json:
        print_json(report.to_dict())
    else:
        if first < last and report.step.non_finite is None and report.step.error is None:
            print(f"steps {first} to {last}: all values are finite; the last one:")
        print("\n".join(map(clean, str(report).splitlines())))
    return 0 if report.difference is None else 1


def _parse_steps(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
    first, last = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if not 1 <= first <= last:
        raise UsageError("no such steps", expected="--step 1234, or --step 1221-1240", found=repr(text))
    return first, last


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


@contextlib.contextmanager
def progress_line(past: Past, last: int) -> Iterator[Callable[[int], None]]:
    """Show the steps done up to `last` in a line on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    shown_at = 0.0

    def show(done: int) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at >= _PROGRESS_SECONDS and done <= last:
            shown_at = now
            print(f"\rstep {done:,} of {last:,}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
