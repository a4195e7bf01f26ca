"""How often the thread that reads looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import pytest

from burnt.monitor.data.refresher import CpuMeter, Refresher
from burnt.monitor.data.runs import RunLibrary


class Times(NamedTuple):
    """What `psutil.cpu_times` has on every system."""

    user: float
    system: float
    idle: float


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets seconds pass, of which the cores were idle and this process worked for some."""
    now = {"at": 100.0, "own": 1.0, "idle": 50.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["at"])
    monkeypatch.setattr(time, "process_time", lambda: now["own"])
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(0.0, 0.0, now["idle"]))

    def let(**seconds: float) -> None:
        for name, value in seconds.items():
            now[name] += value

    return let


def made(seconds: float) -> Refresher:
    return Refresher(RunLibrary([]), seconds, lambda source, show: None, lambda error: None)


@pytest.mark.parametrize(
    ("idle", "own", "seconds"),
    [
        (10.0, 0.30, 0.5),  # a core of its own
        (4.8, 0.30, 0.5),  # half a core, of which it took a part itself
        (0.1, 0.001, 0.5),  # next to nothing
        (0.1, 0.012, 2.0),
        (4.6, 0.012, 2.0),
        (0.1, 3.0, 5.0),
    ],
)
def test_busy_cores_lengthen_the_refresh_interval(
    passed: Callable[..., Any], idle: float, own: float, seconds: float
) -> None:
    refresher = made(0.5)
    assert refresher.next_interval() == 0.5
    passed(at=10.0, idle=idle, own=own)
    assert refresher.next_interval() == pytest.approx(seconds)
    passed(at=10.0, idle=10.0, own=own)  # counted from the last look
    assert refresher.next_interval() == 0.5


def test_one_that_is_slow_on_purpose_stays_so(passed: Callable[..., Any]) -> None:
    refresher = made(10.0)
    assert refresher.next_interval() == 10.0
    passed(at=10.0, own=1.0)
    assert refresher.next_interval() == 10.0


def test_the_meter_reads_this_machine() -> None:
    meter = CpuMeter()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    spent, idle = meter.read()
    assert 0.05 <= spent < 1.0
    assert 0.0 <= idle <= psutil.cpu_count() + 1
