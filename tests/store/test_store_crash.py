"""The run store under failures: a killed process, a failing disk, a full queue, damaged bytes."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from burnt.errors import MetricError, RunError
from burnt.store import RunReader, RunWriter, opening
from burnt.store import writer as writer_module

WRITE_ON = """
import sys
from burnt.store import RunWriter, opening
if sys.argv[2] == "network":
    opening._is_on_network = lambda path: True
run = RunWriter.create(sys.argv[1])
step = 0
while True:
    step += 1
    run.log(step, 1, {"x": float(step)})
    if step % 100 == 0:
        run.flush()
        print(step, flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def impatient(monkeypatch):
    """A writing thread that retries at once."""
    monkeypatch.setattr(writer_module, "_RETRY_SECONDS", (0.01,))
    monkeypatch.setattr(writer_module, "_FLUSH_SECONDS", 0.01)


class FailingConnection:
    """A connection to a disk that is full while `broken` is set."""

    broken = threading.Event()

    def __init__(self, connection):
        self._connection = connection

    def execute(self, sql, parameters=()):
        if self.broken.is_set() and sql.startswith("INSERT INTO point"):
            raise sqlite3.OperationalError("database or disk is full")
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.fixture
def disk(monkeypatch):
    begin, connect = writer_module.begin_attempt, writer_module.connect

    def begin_failing(*arguments, **options):
        connection, attempt = begin(*arguments, **options)
        return FailingConnection(connection), attempt

    monkeypatch.setattr(writer_module, "begin_attempt", begin_failing)
    monkeypatch.setattr(writer_module, "connect", lambda *a: FailingConnection(connect(*a)))
    yield FailingConnection.broken
    FailingConnection.broken.clear()


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize("journal", ["local", "network"])
def test_a_killed_run_is_read_and_resumed(folder, journal):
    command = [sys.executable, "-c", WRITE_ON, str(folder), journal]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            written = [int(process.stdout.readline()) for _ in range(5)][-1]
            assert RunReader(folder).state() == "running"
            with pytest.raises(RunError, match=f"is running: pid {process.pid}"):
                RunWriter.create(folder, resume=True)
        finally:
            process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert RunReader(folder).state() == "crashed"  # a zombie as yet

    reader = RunReader(folder)
    assert reader.state() == "crashed"
    points = reader.points("x")
    assert points.steps == list(range(1, points.steps[-1] + 1))
    assert points.steps[-1] >= written
    reader.close()

    with RunWriter.create(folder, resume=True, resumed_from_step=50) as run:
        run.log(51, 1, {"x": -51.0})
    reader = RunReader(folder)
    assert reader.state() == "finished"
    assert reader.points("x").values == [*map(float, range(1, 51)), -51.0]


def test_a_journal_to_roll_back_is_rolled_back_in_a_copy(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "_is_on_network", lambda path: True)
    with RunWriter.create(folder) as run:
        run.log(1, 1, {"x": 1.0})
    # What a kill in the middle of a commit leaves: pages in the file, and the journal that undoes them.
    copy = tmp_path / "killed"
    connection = sqlite3.connect(folder / "run.db", isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "INSERT INTO log_line (attempt, time, level, text) VALUES (1, 0, 'info', ?)", [("x" * 500,)] * 2000
    )
    shutil.copytree(folder, copy)
    connection.execute("ROLLBACK")
    connection.close()
    before = {p.name: p.read_bytes() for p in copy.glob("run.db*")}
    assert set(before) == {"run.db", "run.db-journal"}
    with RunReader(copy) as reader:
        assert reader.state() == "finished"
        assert reader.log_lines() == []
        assert reader.points("x").values == [1.0]
    assert {p.name: p.read_bytes() for p in copy.glob("run.db*")} == before


def test_a_process_that_forgets_to_close(folder):
    code = (
        "import sys\nfrom burnt.store import RunWriter\n"
        "run = RunWriter.create(sys.argv[1])\nrun.log(1, 1, {'x': 1.0})\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)
    reader = RunReader(folder)
    assert reader.summary()[3:5] == ("crashed", "the process ended without closing the run")
    assert reader.points("x").values == [1.0]


def test_a_forked_child_leaves_the_run_alone(folder):
    code = (
        "import os, sys\nfrom burnt.store import RunWriter\n"
        "run = RunWriter.create(sys.argv[1])\n"
        "child = os.fork()\n"
        "if child == 0:\n    sys.exit()\n"
        "os.waitpid(child, 0)\nrun.log(1, 1, {'x': 1.0})\nrun.close('finished')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)
    reader = RunReader(folder)
    assert (reader.state(), reader.points("x").values) == ("finished", [1.0])


def test_a_failing_disk_loses_nothing_that_fits_the_queue(folder, disk, impatient):
    reported = []
    run = RunWriter.create(folder, on_error=reported.append)
    run.log(1, 1, {"x": 1.0})
    assert run.flush()
    disk.set()
    for step in range(2, 102):
        run.log(step, 1, {"x": float(step)})
    until(lambda: reported)
    assert not run.flush(0.2)
    disk.clear()
    assert run.flush()
    run.close("finished")
    assert len(reported) == 1
    assert run.warnings == reported
    assert "database or disk is full" in reported[0]
    assert str(folder / "run.db") in reported[0]
    reader = RunReader(folder)
    assert reader.points("x").values == [float(step) for step in range(1, 102)]
    (event,) = reader.events("write_error")
    assert event.data["error"] == reported[0]
    assert event.data["dropped"] == run.dropped == 0


def test_a_full_queue_drops_samples_but_no_events(folder, disk, impatient):
    run = RunWriter.create(folder)
    run._capacity = 50
    disk.set()
    run.log(1, 1, {"x": 1.0})
    until(lambda: run.warnings)
    for step in range(2, 202):
        run.log(step, 1, {"x": float(step)})
        run.event("mark", step)
    run.system({"cpu.percent": 1.0})
    run.log_line("lost")
    dropped = run.dropped
    assert dropped > 100
    disk.clear()
    run.close("finished")
    reader = RunReader(folder)
    assert [event.step for event in reader.events("mark")] == list(range(2, 202))
    assert len(reader.points("x").steps) + dropped - 2 == 201
    assert reader.summary().dropped == dropped
    assert reader.events("write_error")[0].data["dropped"] == dropped


def test_closing_does_not_wait_for_ever(folder, disk, impatient):
    run = RunWriter.create(folder)
    disk.set()
    run.log(1, 1, {"x": 1.0})
    begin = time.monotonic()
    run.close("finished", timeout=0.3)
    assert time.monotonic() - begin < 5
    assert "the end of the run was not written" in run.warnings[-1]
    assert run.dropped == 1


def test_a_callback_that_raises_is_survived(folder, disk, impatient):
    def fail(message):
        raise RuntimeError("mine")

    run = RunWriter.create(folder, on_error=fail)
    disk.set()
    run.log(1, 1, {"x": 1.0})
    until(lambda: len(run.warnings) == 2)
    disk.clear()
    run.close("finished")
    assert run.warnings[1] == "on_error raised RuntimeError('mine')"
    assert RunReader(folder).points("x").values == [1.0]


def test_a_defect_of_the_writing_thread_is_reported(folder, monkeypatch, impatient):
    reported = []
    run = RunWriter.create(folder, on_error=reported.append)
    monkeypatch.setattr(run, "_next_batch", lambda: 1 / 0)
    until(lambda: reported)
    assert "is no longer written: ZeroDivisionError" in reported[0]
    run.log(1, 1, {"x": 1.0})
    assert run.dropped == 1
    assert not run.flush(5)
    run.close("finished")


def test_damaged_bytes_are_an_error_of_ours_or_read(folder):
    with RunWriter.create(folder, config={"lr": 0.1}) as run:
        for step in range(1, 601):
            run.log(step, 1, {"x": float(step), "y": 1.0})
        run.event("e", 1, a=[1, 2])
        run.log_line("hello")
        run.system({"cpu.percent": 1.0})
        run.record_table("t", ["a"], [[1]])
        run.progress(600, 1)
    path = folder / "run.db"
    content = path.read_bytes()
    refused = 0
    for seed in range(100):
        random.seed(seed)
        broken = bytearray(content)
        page = random.randrange(len(content) // 4096) * 4096
        for _ in range(random.choice([1, 20, 400])):
            broken[page + random.randrange(4096)] = random.randrange(256)
        path.write_bytes(broken)
        try:
            with RunReader(folder) as reader:
                reader.summary()
                reader.config()
                reader.points("x")
                reader.points("x", max_points=20)
                reader.best("x")
                reader.events()
                reader.log_lines()
                reader.system_samples()
                reader.artefacts()
        except (RunError, MetricError):  # the metric's name may be what is damaged
            refused += 1
    assert refused > 20
