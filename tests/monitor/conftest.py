"""Tests of the app press some thousand keys, and wait after each."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits until the process has been idle for 10 ms, not 20: 5 % of them are noise."""
    if importlib.util.find_spec("textual") is None:
        return  # many tests need none
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.01)
    monkeypatch.setattr("textual._wait.SLEEP_IDLE", 0.0005)
