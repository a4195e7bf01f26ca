"""Tests of the app press some thousand keys, and wait after each."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect

import pytest


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits until the process has been idle for 10 ms, not 20: 5 % of them are noise."""
    if importlib.util.find_spec("textual") is None:
        return  # many tests need none
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.01)
    monkeypatch.setattr("textual._wait.SLEEP_IDLE", 0.0005)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
    )
    return True
