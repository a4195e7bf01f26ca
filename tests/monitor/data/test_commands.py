"""Commands that the monitor sends: each answer is returned once, also when several come together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from burnt.monitor.data.commands import CommandSender, request_text
from burnt.monitor.data.runs import RunView
from burnt.store import RunWriter
from burnt.store.control import Inbox


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunWriter]:
    run = RunWriter.create(tmp_path / "run")
    run.log(1, 1, {"loss": 0.5})
    run.flush()
    yield run
    run.close("finished")


@pytest.fixture
def sender(run: RunWriter) -> CommandSender:
    view = RunView(run.folder)
    view.follow()
    view.refresh()
    return CommandSender(view)


def answers(sender: CommandSender) -> list[str]:
    sender.view.refresh()
    return [request_text(request) for request in sender.newly_answered()]


def test_answers_that_come_together_are_each_returned_once(run: RunWriter, sender: CommandSender) -> None:
    inbox = Inbox(run.lease)
    for kind in ("pause", "resume", "save"):
        assert sender.send(kind).status == "sent"
    assert answers(sender) == []
    commands = {command.kind: command for command in inbox.poll()}
    for kind, status, reason in (("resume", "refused", "it is not paused"), ("pause", "done", None)):
        run.event("command", 1, id=commands[kind].id, command=kind, status=status, reason=reason)
    run.flush()
    assert answers(sender) == ["pause: done", "resume: refused, it is not paused"]
    assert answers(sender) == []
    assert [request.status for request in sender.requests] == ["done", "refused", "sent"]


def test_what_a_training_leaves_unanswered_is_refused_when_it_ends(
    run: RunWriter, sender: CommandSender
) -> None:
    sender.send("lr", 0.5)
    run.close("finished")
    assert answers(sender) == ["learning rate 0.5000: refused, the training ended without answering"]
    assert answers(sender) == []


def test_a_command_that_cannot_be_sent_is_refused_at_once(run: RunWriter, sender: CommandSender) -> None:
    (run.folder / "control").rename(run.folder / "elsewhere")
    request = sender.send("pause")
    assert request.status == "refused"
    assert "cannot be sent" in request_text(request)
    assert answers(sender) == []
