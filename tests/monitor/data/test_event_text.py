"""What events say."""

from __future__ import annotations

import math

import pytest

from burnt.monitor.data.event_text import early_stopping_text, event_text
from burnt.store import Event


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("start", {"pid": 12, "host": "box"}, "pid 12 on box"),
        ("end", {"state": "finished", "reason": None}, "finished"),
        ("end", {"state": "stopped", "reason": "stopped"}, "stopped"),
        (
            "end",
            {"state": "crashed", "reason": "ValueError: no\n  expected   1\n"},
            "crashed: ValueError: no; expected 1",
        ),
        ("error", {"error": "OSError", "message": "disk\nfull"}, "OSError: disk; full"),
        ("command", {"command": "lr", "value": 1 / 3, "status": "done", "reason": None}, "lr 0.3333: done"),
        (
            "command",
            {"command": "pause", "value": None, "status": "refused", "reason": "it is paused"},
            "pause: refused, it is paused",
        ),
        ("checkpoint", {"path": "step-8"}, "step-8"),
        (
            "checkpoint",
            {"path": "step-8", "values": {"loss": 0.5}, "bytes": 2048},
            "step-8  loss 0.5000  2.0 KiB",
        ),
        ("epoch", {"epoch": 3, "values": {"loss": math.inf}}, "3  loss inf"),
        ("note", {"text": "two\nlines", "sender": "me"}, "two; lines"),
        ("signal", {"signal": "SIGTERM"}, "SIGTERM"),
        ("learning_rate", {"value": None}, "follows the schedule"),
        ("learning_rate", {"value": 5e-5}, "5e-05"),
        ("new_kind", {"seen": True, "of": {"a": 1}}, "seen true  of a 1"),
        ("note", {"text": "\x1b[31mred"}, "\\x1b[31mred"),
    ],
)
def test_an_event_is_a_line(kind: str, data: dict[str, object], text: str) -> None:
    assert event_text(kind, data) == text


@pytest.mark.parametrize(
    "kind", ["start", "end", "error", "command", "checkpoint", "epoch", "note", "signal"]
)
@pytest.mark.parametrize("values", [None, [1], "NaN", {"a": [None]}, object()])
def test_an_event_of_another_form_is_a_line_too(kind: str, values: object) -> None:
    for data in ({}, {"values": values, "message": values, "bytes": values, "value": values, "path": values}):
        assert event_text(kind, data).isprintable()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"waited": 1, "patience": "3 epochs"}, "1 of 3 epochs without improving on valid/loss 0.5000"),
        ({"waited": 754.2, "patience": "2 h"}, "12:34 of 2 h without improving on valid/loss 0.5000"),
        ({"waited": 0, "patience": None}, "best valid/loss 0.5000"),
    ],
)
def test_the_state_of_early_stopping(data: dict[str, object], text: str) -> None:
    event = Event(1, 1, 0.0, 10, "stopping", {"metric": "valid/loss", "best": 0.5, **data})
    assert early_stopping_text([event]) == f"early stopping: {text}"
