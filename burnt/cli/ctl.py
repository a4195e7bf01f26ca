"""`burnt ctl`: send a command to a running training and wait for its answer."""

from __future__ import annotations

import argparse
import sys
import time

from burnt.cli.output import usage_errors
from burnt.cli.runs_select import open_run, run_folder
from burnt.errors import BurntError, clean
from burnt.monitor.format import highest_scheduled_rate, rate_change_warning
from burnt.store import RunReader, Series
from burnt.store.control import Acknowledgement, acknowledgement, check, send

_POLL_SECONDS = 0.05
_NOT_ANSWERED = 3
_USAGE = {"lr": "burnt ctl RUN lr 1e-4, or burnt ctl RUN lr auto", "note": "burnt ctl RUN note TEXT"}


def run(args: argparse.Namespace) -> int:
    """Send a command and wait for the answer.

    Returns 0 if it is done, 1 if it was refused or the run has ended, 3 if it is not answered yet.
    """
    with usage_errors(BurntError, hint=_USAGE.get(args.order)):
        value = check(args.order, " ".join(args.value) if args.value else None)
    with open_run(run_folder(args.run)) as reader:
        warning = _rate_warning(reader, value) if isinstance(value, float) else ""
        id = send(reader.folder, args.order, value)
        if args.no_wait:
            print(clean(f"{reader.folder}: {args.order} was sent"))
            return 0
        answer = _wait_for_answer(reader, id, args.timeout)
        if answer is not None:
            return _print_answer(reader, args.order, value, answer, warning)
        state = reader.state()
        if state == "running":
            reason = f"not answered within {args.timeout:g} s; it takes effect after the current step"
        elif state == "stale":
            reason = (
                f"not answered: process {reader.attempts()[-1].pid} is alive but has written nothing lately"
            )
        else:
            reason = f"not executed: the run has ended ({state})"
    print(clean(f"{reader.folder}: {args.order} was {reason}"), file=sys.stderr)
    return _NOT_ANSWERED if state in ("running", "stale") else 1


def _rate_warning(reader: RunReader, rate: float) -> str:
    """Return a warning if a learning rate is far from the current one; else an empty string."""
    current = reader.heads().get(Series("learning_rate", "train"))
    return (
        ""
        if current is None
        else rate_change_warning(rate, current.point.value, highest_scheduled_rate(reader.config()))
    )


def _wait_for_answer(reader: RunReader, id: str, timeout: float) -> Acknowledgement | None:
    """Wait for the training's answer; None after the timeout, or if the run ended without answering."""
    deadline, next_state_check = time.monotonic() + timeout, 0.0
    has_ended = False
    while True:
        answer = acknowledgement(reader, id)
        now = time.monotonic()
        if answer is not None or has_ended or now >= deadline:
            return answer
        if now >= next_state_check:
            # An ended process answers no more; look once more for an answer it gave before.
            has_ended, next_state_check = reader.state() not in ("running", "stale"), now + 1.0
        time.sleep(0.0 if has_ended else min(_POLL_SECONDS, max(deadline - now, 0.0)))


def _print_answer(
    reader: RunReader, kind: str, value: float | str | None, answer: Acknowledgement, warning: str
) -> int:
    at = "" if answer.step is None else f" {answer.step}"
    if answer.status == "refused":
        print(clean(f"{reader.folder}: {kind} refused: {answer.reason}"), file=sys.stderr)
        return 1
    rate = "follows the schedule" if value == "auto" else f"{value:g}" if isinstance(value, float) else ""
    text = {
        "pause": f"paused after step{at}",
        "resume": f"resumed after step{at}",
        "stop": f"stopping after step{at}",
        "save": f"checkpoint saved after step{at}",
        "lr": f"learning rate {rate} after step{at}",
        "note": f"note added at step{at}",
    }[kind]
    if kind in ("stop", "lr") and answer.reason:
        text += f", {answer.reason}"
    if warning:
        text += f": {warning.replace('current', 'previous')}"
    print(clean(f"{reader.folder}: {text}"))
    return 0
