"""What was asked of a training from here, and what became of it. Without Textual."""

from __future__ import annotations

import time
from typing import NamedTuple

from burnt.errors import BurntError
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import value_text
from burnt.train.store.control import send

__all__ = ["CommandSender", "Request", "request_text", "unavailable_reason"]

_COMMAND_NAMES = {
    "pause": "pause",
    "resume": "go on",
    "stop": "stop with a checkpoint",
    "save": "checkpoint now",
    "lr": "learning rate",
    "note": "note",
}


class Request(NamedTuple):
    """A command given here; since `time` it is "sending", "sent", "done" or "refused"."""

    kind: str
    value: float | str | None
    status: str
    reason: str | None
    time: float
    id: str | None = None


class CommandSender:
    """The commands that were sent to one run from here.

    Args:
        view: the run, which is followed.
    """

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.requests: list[Request] = []

    def send(self, kind: str, value: float | str | None = None) -> Request:
        """Send a command; to be called in a worker. Never raises: what cannot be sent is refused."""
        index = len(self.requests)
        self.requests.append(Request(kind, value, "sending", None, time.time()))
        try:
            id = send(self.view.folder, kind, value)
        except BurntError as error:
            detail = f": {error.found}" if error.found else ""
            request = self.requests[index]._replace(status="refused", reason=f"{error.what}{detail}")
        else:
            request = self.requests[index]._replace(status="sent", id=id)
        self.requests[index] = request
        return request

    def newly_answered(self) -> list[Request]:
        """The requests that the training has answered since the last call."""
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
                request = request._replace(status="refused", reason="the training ended before it answered")
            else:
                continue
            self.requests[index] = request
            newly_answered.append(request)
        return newly_answered


def unavailable_reason(view: RunView) -> str | None:
    """Why no command can be given to a run; None if one can."""
    if view.is_live:
        return None
    reason = {
        "deleted": "it was deleted",
        "unreadable": "its store cannot be read",
    }.get(view.state, f"it is {view.state}")
    return f"{view.label} takes no commands: {reason}"


def request_text(request: Request) -> str:
    """A request on one line: ``"learning rate 0.001: done"``."""
    text = _COMMAND_NAMES.get(request.kind, request.kind)
    if request.value is not None:
        value = value_text(request.value) if isinstance(request.value, float) else request.value
        text += f" {value}"
    text += f": {request.status}"
    if request.status == "sent":
        text += ", the training has not answered yet"
    return text + (f", {request.reason}" if request.reason else "")
