"""Tests of the app press some thousand keys, and wait after each."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits until the process has been idle for 10 ms, not 20."""
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.01)
