"""Commands sent from the monitor to a training, and the answers to them. Without Textual."""

from __future__ import annotations

import time
from typing import NamedTuple

from burnt.errors import BurntError
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import error_text
from burnt.store.control import send
from burnt.train.format import value_text

_COMMAND_NAMES = {
    "pause": "pause",
    "resume": "resume",
    "stop": "stop with a checkpoint",
    "save": "save a checkpoint",
    "lr": "learning rate",
    "note": "note",
}


class Request(NamedTuple):
    """A command sent from this monitor; `status` is "sending", "sent", "done" or "refused" since `time`."""

    kind: str
    value: float | str | None
    status: str
    reason: str | None
    time: float
    id: str | None = None


class CommandSender:
    """Sends commands to one run, which must be followed, and tracks their status in its events."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.requests: list[Request] = []

    def send(self, kind: str, value: float | str | None = None) -> Request:
        """Send a command; call it in a worker. Never raises: a failure to send gives status "refused"."""
        index = len(self.requests)
        self.requests.append(Request(kind, value, "sending", None, time.time()))
        try:
            id = send(self.view.folder, kind, value)
        except BurntError as error:
            request = self.requests[index]._replace(status="refused", reason=error_text(error))
        else:
            request = self.requests[index]._replace(status="sent", id=id)
        self.requests[index] = request
        return request

    def newly_answered(self) -> list[Request]:
        """Return the requests answered since the last call, or left unanswered by an ended training."""
        answers = {event.data.get("id"): event for event in self.view.events if event.kind == "command"}
        newly_answered = []
        for index, request in enumerate(self.requests):
            if request.status != "sent":
                continue
            answer = answers.get(request.id)
            if answer is not None:
                status = "done" if answer.data.get("status") == "done" else "refused"
                request = request._replace(status=status, reason=answer.data.get("reason"), time=time.time())
            elif not self.view.is_live:
                request = request._replace(status="refused", reason="the training ended without answering")
            else:
                continue
            self.requests[index] = request
            newly_answered.append(request)
        return newly_answered


def unavailable_reason(view: RunView) -> str | None:
    """Return why no command can be sent to a run; None if it accepts commands."""
    if view.is_live:
        return None
    reason = {"deleted": "it was deleted", "unreadable": "its database cannot be read"}.get(
        view.state, f"it is {view.state}"
    )
    return f"Cannot send commands to {view.label}: {reason}"


def request_text(request: Request) -> str:
    """Format a request on one line, such as ``"learning rate 0.001: done"``."""
    text = _COMMAND_NAMES.get(request.kind, request.kind)
    if request.value is not None:
        value = value_text(request.value) if isinstance(request.value, float) else request.value
        text += f" {value}"
    text += f": {request.status}"
    if request.status == "sent":
        text += ", waiting for the training to answer"
    return text + (f", {request.reason}" if request.reason else "")
