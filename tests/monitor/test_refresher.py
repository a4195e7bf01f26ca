"""How often the thread that reads looks."""

from __future__ import annotations

import os

import pytest

from burnt.monitor.model import Library
from burnt.monitor.refresher import Refresher


@pytest.mark.parametrize(
    ("load", "spent", "seconds"),
    [(0.0, 0.04, 0.5), (100.0, 0.001, 0.5), (100.0, 0.03, 1.5), (100.0, 5.0, 2.0)],
)
def test_a_busy_machine_is_looked_at_less_often(
    monkeypatch: pytest.MonkeyPatch, load: float, spent: float, seconds: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    refresher = Refresher(Library([]), 0.5, lambda source, show: None, lambda error: None)
    assert refresher.pause(spent) == pytest.approx(seconds)


def test_one_that_is_slow_on_purpose_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 0.0, 0.0))
    assert Refresher(Library([]), 10.0, lambda source, show: None, lambda error: None).pause(1.0) == 10.0
