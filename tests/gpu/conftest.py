"""Tests on a GPU: failures are shown as they happen, and one that breaks the device costs only its worker.

With `--device null` a test that takes the fixture `launched_only` launches its kernels through the null
driver and compares nothing; the others are skipped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") != "null":
        return
    for item in items:
        if "tests/gpu/" in item.nodeid and "launched_only" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="it compares results: the null driver has none"))


@pytest.fixture
def launched_only(request: pytest.FixtureRequest) -> bool:
    """Whether kernels go to the null driver, so that there is nothing to compare."""
    if request.config.getoption("--device") != "null":
        return False
    from tests.null import driver

    why = driver.why_not()
    if why is not None:
        pytest.skip(why)
    driver.install()
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """After an illegal access all later calls of a process fail: it ends, and xdist starts another one."""
    before = item.session.testsfailed
    result = yield
    if item.session.testsfailed > before and not device_works():
        message = f"the device is in an error state after {item.nodeid}"
        if hasattr(item.config, "workerinput"):
            print(message, file=sys.stderr, flush=True)
            os._exit(3)
        pytest.exit(message, returncode=3)
    return result


def device_works() -> bool:
    """Whether the device, where this process has used one, still answers."""
    import torch

    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    return True


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print why a test failed at once, so that a run stopped at its time limit has shown it."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} ({report.when}):\n{report.longreprtext[-3000:]}", flush=True)
