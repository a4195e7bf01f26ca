"""`burnt ctl`: steer a training that runs, and wait for its answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from burnt.cli.output import UsageError, clean
from burnt.cli.runs_show import open_run, run_folder
from burnt.errors import BurntError
from burnt.monitor.format import highest_scheduled_rate, rate_change_warning
from burnt.train.store import RunReader, Series
from burnt.train.store.control import Acknowledgement, acknowledgement, check, send

__all__ = ["run"]

_POLL_SECONDS = 0.05
_NOT_ANSWERED = 3


def run(name: str, kind: str, words: Sequence[str], timeout: float, wait: bool) -> int:
    """Send a command and wait for the answer.

    Args:
        name: the run's folder, or the name of one below ``runs``.
        kind: the command, one of `burnt.train.store.control.KINDS`.
        words: its value.
        timeout: seconds to wait at most.
        wait: False: send it alone.

    Returns:
        0 when it is done, 1 when it is refused or the run has ended, 3 when it is not answered yet.

    Raises:
        UsageError: there is no such command, value or run, or several runs of the name are running.
        RunError: the run takes no commands, or this user may send none.
    """
    try:
        value = check(kind, " ".join(words) if words else None)
    except BurntError as error:
        raise UsageError(
            error.what, expected=error.expected, found=error.found, hint=error.hint or _usage_hint(kind)
        ) from None
    with open_run(run_folder(name)) as reader:
        warning = _rate_warning(reader, value) if isinstance(value, float) else ""
        id = send(reader.folder, kind, value)
        if not wait:
            print(clean(f"{reader.folder}: {kind} is sent"))
            return 0
        answer = _wait_for_answer(reader, id, timeout)
        if answer is not None:
            return _print_answer(reader, kind, value, answer, warning)
        state = reader.state()
        if state == "running":
            reason = f"not answered within {timeout:g} s; it is carried out when the step under way is done"
        elif state == "stale":
            reason = (
                f"not answered: process {reader.attempts()[-1].pid} lives, but has not written for a while"
            )
        else:
            reason = f"not carried out: the run has ended ({state})"
    print(clean(f"{reader.folder}: {kind} is {reason}"), file=sys.stderr)
    return _NOT_ANSWERED if state in ("running", "stale") else 1


def _rate_warning(reader: RunReader, rate: float) -> str:
    """How far a learning rate is from the present one, if it may be mistyped."""
    current = reader.heads().get(Series("learning_rate", "train"))
    return (
        ""
        if current is None
        else rate_change_warning(rate, current.point.value, highest_scheduled_rate(reader.config()))
    )


def _wait_for_answer(reader: RunReader, id: str, timeout: float) -> Acknowledgement | None:
    """The training's answer; None when there is none in time, or the run has ended without one."""
    deadline, next_state_check = time.monotonic() + timeout, 0.0
    has_ended = False
    while True:
        answer = acknowledgement(reader, id)
        now = time.monotonic()
        if answer is not None or has_ended or now >= deadline:
            return answer
        if now >= next_state_check:
            # A process that is gone answers no more; what it has answered is read once more.
            has_ended, next_state_check = reader.state() not in ("running", "stale"), now + 1.0
        time.sleep(0.0 if has_ended else min(_POLL_SECONDS, max(deadline - now, 0.0)))


def _print_answer(
    reader: RunReader, kind: str, value: float | str | None, answer: Acknowledgement, warning: str
) -> int:
    at = "" if answer.step is None else f" {answer.step}"
    if answer.status == "refused":
        print(clean(f"{reader.folder}: {kind} is refused: {answer.reason}"), file=sys.stderr)
        return 1
    rate = "as the schedule says" if value == "auto" else f"{value:g}" if isinstance(value, float) else ""
    text = {
        "pause": f"paused after step{at}",
        "resume": f"goes on after step{at}",
        "stop": f"stops after step{at}",
        "save": f"saved after step{at}",
        "lr": f"learning rate {rate} after step{at}",
        "note": f"noted at step{at}",
    }[kind]
    if kind == "stop" and answer.reason:
        text += f", {answer.reason}"
    if warning:
        text += f": {warning.replace('present', 'former')}"
    print(clean(f"{reader.folder}: {text}"))
    return 0


def _usage_hint(kind: str) -> str | None:
    return {"lr": "burnt ctl RUN lr 1e-4, or burnt ctl RUN lr auto", "note": "burnt ctl RUN note TEXT"}.get(
        kind
    )
