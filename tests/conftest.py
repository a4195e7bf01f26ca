"""What all tests share: the device they run on, processors that kernels are chosen for, resumable runs."""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib.util
import json
import os
import platform
import sqlite3
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests import processors, sampling

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--remember",
        metavar="FILE",
        help="leave out what passed with the same sources, and note in FILE what passes",
    )
    parser.addoption(
        "--device",
        help="where tests that take the fixture `device` run: cpu by default, a GPU if there is one for the "
        "tests marked gpu, which are skipped without; --device cpu rehearses those too, and --device null "
        "launches a GPU's kernels through a driver that runs nothing (tests/null)",
    )
    parser.addoption(
        "--processor",
        choices=processors.NAMES,
        help="the CPU that kernels are chosen for in this process, this machine's by default; results are "
        "the same. Together with ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA it rehearses another machine",
    )


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("hypothesis") is not None:  # a machine with a GPU may lack it
        from hypothesis import settings

        settings.register_profile("burnt", deadline=None)  # other processes share the machine
        settings.load_profile("burnt")
    gc.disable()  # until the tests are collected, of which little is garbage
    # No test waits for the disk: what it writes is soon deleted. A closed descriptor remains an error.
    os.fsync = os.fstat  # type: ignore[assignment]
    sqlite3.connect = functools.partial(sqlite3.connect, factory=UnsyncedConnection)
    os.environ["BURNT_SWAP_CACHE"] = "0"  # of this machine's user; also in the processes that tests start
    state = tempfile.TemporaryDirectory(prefix="burnt-state-")  # what the monitor remembers
    os.environ["XDG_STATE_HOME"] = state.name
    config.add_cleanup(state.cleanup)
    if config.getoption("--processor"):
        processors.give(processors.within_reach(processors.named(config.getoption("--processor"))))
    if config.getoption("--remember"):
        config.pluginmanager.register(Memory(config), "burnt-memory")


class UnsyncedConnection(sqlite3.Connection):
    """A connection whose transactions do not wait for the disk: 60 of the 100 ms that a run takes."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql.startswith(("BEGIN IMMEDIATE", "PRAGMA journal_mode")):
            super().execute("PRAGMA synchronous = OFF")
        return super().execute(sql, parameters)

    def executescript(self, sql: str, /) -> sqlite3.Cursor:
        return super().executescript(f"PRAGMA synchronous = OFF; {sql}")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """Leave the looking for doctests to burnt's own modules: in those of the tests it takes seconds."""
    collectors = yield
    return [one for one in collectors if type(one).__name__ != "DoctestModule"]  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sampling.mark(items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and config.getoption("--device") is None and not gpu_at_hand():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU here (--device cpu rehearses on the CPU)"))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through torch's modules and all tests again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # looking every 700 objects takes a tenth of the tests' time
    gc.enable()


def gpu_at_hand() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def device(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """The torch device that a test is to run on."""
    import torch

    default = "cuda" if request.node.get_closest_marker("gpu") else "cpu"
    chosen = request.config.getoption("--device") or default
    return torch.device("cpu" if chosen == "null" else chosen)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A gloo process group of this process alone; the test's modules are collected before it is destroyed.

    Otherwise the reducer of DistributedDataParallel destroys the group: it joins gloo's threads with the GIL
    held, and one of them may be waiting for the GIL.
    """
    import torch

    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    gc.collect()
    torch.distributed.destroy_process_group()


@pytest.fixture(params=processors.NAMES)
def processor(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of each processor in turn, while kernels are chosen for it."""
    with processors.as_if(processors.named(request.param)):
        yield request.param


@pytest.fixture(autouse=True)
def priority() -> Iterator[None]:
    """No test leaves its worker at the lowest priority, where whatever else runs would starve the others."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "this process gave way for good: run it in another"


class Memory:
    """Tests that passed, by a hash of every source, so that a run that was cut off goes on where it was.

    Workers of xdist are told by the controller what is remembered, since all of them must collect the same.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.controller = not hasattr(config, "workerinput")
        self.file = Path(config.getoption("--remember"))
        if self.controller:
            self.key = source_hash() + (config.getoption("--processor") or "")
            self.passed: set[str] = set(self.read())
        else:
            self.passed = set(config.workerinput["remembered"])  # type: ignore[attr-defined]
        self.known = frozenset(self.passed)
        self.failed: set[str] = set()

    def read(self) -> list[str]:
        if not self.file.exists():
            return []
        key, *names = json.loads(self.file.read_text())
        return names if key == self.key else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:  # type: ignore[no-untyped-def]
        node.workerinput["remembered"] = sorted(self.known)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.known]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self.known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.controller:
            return
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self.failed:
            self.passed.add(report.nodeid)
            if len(self.passed) % 50 == 0:
                self.write()

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.controller:
            self.write()
            if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.known:
                session.exitstatus = pytest.ExitCode.OK  # all of them have passed before

    def write(self) -> None:
        aside = self.file.with_suffix(".tmp")
        aside.write_text(json.dumps([self.key, *sorted(self.passed - self.failed)]))
        aside.replace(self.file)


def source_hash() -> str:
    """A hash of everything that a test's result may depend on."""
    digest = hashlib.sha256(f"{platform.python_version()} {metadata.version('torch')}".encode())
    for folder in ("burnt", "tests", "examples", "scripts", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    for name in ("pyproject.toml", "constraints.txt", "README.md"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()
