"""The run store: what is written can be read back, and invalid input raises."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from burnt.errors import MetricError, RunError
from burnt.store import RunReader, RunWriter, Series, find_runs, opening, schema, write_lease
from burnt.store import writer as writer_module

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


def query(folder, sql):
    with contextlib.closing(sqlite3.connect(folder / "run.db")) as connection, connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "digits"


def test_everything_written_is_read_back(folder):
    with RunWriter.create(folder, name="digits", config={"lr": 0.1, "layers": [1, 2]}) as run:
        run.log(1, 1, {"loss": 0.5, "accuracy": 0.1})
        run.log(2, 1, {"loss": 0.25, "accuracy": 0.2})
        run.log(2, 1, {"loss": 0.75}, split="valid")
        run.event("checkpoint", 2, path=Path("checkpoints/2"), best=float("inf"))
        run.log_line("hello\nthere \udc80", "warning")
        run.system({"cpu.percent": 12.5, "odd": float("nan")})
        run.record_table("confusion", ["a", "b"], [[1, 2], [3, 4.5]], step=2)
        run.record_histogram("norms", [1, 2], [0.0, 0.5, 1.0], step=2)
        run.record_image("digit", PNG)
        run.progress(2, 1, total_steps=10, total_epochs=5, activity="validating", rate=0.1)
    reader = RunReader(folder)
    assert (reader.name, reader.state(), reader.config()) == (
        "digits",
        "finished",
        {"lr": 0.1, "layers": [1, 2]},
    )
    assert json.loads((folder / "config.json").read_text()) == {"lr": 0.1, "layers": [1, 2]}
    assert {p.name for p in folder.iterdir()} == {"run.db", "config.json", "checkpoints", "logs", "control"}
    assert reader.series() == [Series("accuracy", "train"), Series("loss", "train"), Series("loss", "valid")]
    points = reader.points("loss")
    assert (points.steps, points.values) == ([1, 2], [0.5, 0.25])
    assert abs(points.times[0] - time.time()) < 60
    assert reader.last("loss", "valid")[:2] == (2, 1)
    assert reader.best("loss").value == 0.25
    assert reader.best("accuracy", higher=True)[::2] == (2, 0.2)
    kinds = [(e.kind, e.step) for e in reader.events()]
    assert kinds == [("start", None), ("checkpoint", 2), ("end", None)]
    assert reader.events("checkpoint")[0].data == {"path": "checkpoints/2", "best": "Infinity"}
    assert reader.events("end")[0].data == {"state": "finished", "reason": None}
    (line,) = reader.log_lines()
    assert (line.text, line.level) == ("hello\nthere ?", "warning")
    assert reader.system_samples()[0].values == {"cpu.percent": 12.5, "odd": "NaN"}
    table, histogram, image = reader.artefacts()
    assert (table.kind, table.data) == ("table", {"columns": ["a", "b"], "rows": [[1, 2], [3, 4.5]]})
    assert histogram.data == {"counts": [1.0, 2.0], "edges": [0.0, 0.5, 1.0]}
    assert (image.data, image.step) == (PNG, None)
    assert [a.name for a in reader.artefacts("table")] == ["confusion"]
    progress = reader.progress()
    assert progress[2:] == (2, 1, 10, 5, "validating", {"rate": 0.1})
    summary = reader.summary()
    assert (summary.state, summary.attempts, summary.pid) == ("finished", 1, os.getpid())
    assert summary.last[Series("loss", "train")].value == 0.25


def test_nan_and_infinities_are_kept(folder):
    values = [1.0, math.nan, math.inf, -math.inf, -2.5, 5e-324, 1.7976931348623157e308, 0.1 + 0.2]
    with RunWriter.create(folder) as run:
        for step, value in enumerate(values, 1):
            run.log(step, None, {"x": value})
    reader = RunReader(folder)
    assert list(map(repr, reader.points("x").values)) == list(map(repr, values))
    assert reader.best("x").value == -2.5
    assert reader.best("x", higher=True).value == 1.7976931348623157e308
    rows = query(folder, "SELECT value FROM metrics ORDER BY step")
    assert rows[1] == (None,)
    assert rows[2] == (math.inf,)


def test_a_series_of_nan_alone_has_no_best(folder):
    with RunWriter.create(folder) as run:
        run.log(1, 1, {"x": math.nan})
    reader = RunReader(folder)
    assert reader.best("x") is None
    assert math.isnan(reader.last("x").value)


def test_sums_that_overflow_do_not_stop_the_writer(folder):
    with RunWriter.create(folder) as run:
        for step in range(1, 600):
            run.log(step, 1, {"x": 1e308 if step < 250 else -1e308})
    assert run.warnings == []
    assert len(RunReader(folder).points("x", max_points=100).steps) <= 100


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 255, 256, 257, 4096, 4097, 20_001])
def test_reduced_points_keep_shape_extremes_and_tail(folder, count):
    values = [math.sin(step / 500) + (step * 7919 % 101) / 1000 for step in range(1, count + 1)]
    low, high = count // 3, count // 2
    values[low], values[high] = -50.0, 50.0
    with RunWriter.create(folder) as run:
        for step, value in enumerate(values, 1):
            run.log(step, 1, {"x": value})
            if step % 10_000 == 0:
                assert run.flush()
    assert run.dropped == 0
    reader = RunReader(folder)
    every = reader.points("x")
    assert (every.steps, every.values) == (list(range(1, count + 1)), values)
    for limit in (8, 100, 1000):
        reduced = reader.points("x", max_points=limit)
        assert len(reduced.steps) <= limit
        assert reduced.steps == sorted(set(reduced.steps))
        assert all(
            values[step - 1] == value for step, value in zip(reduced.steps, reduced.values, strict=True)
        )
        assert all(every.times[s - 1] == t for s, t in zip(reduced.steps, reduced.times, strict=True))
        assert {1, high + 1, count} <= set(reduced.steps)
        assert min(reduced.values) == min(values)
        if count <= limit:
            assert reduced == every
        else:  # no stretch is left out
            gaps = [b - a for a, b in zip(reduced.steps, reduced.steps[1:], strict=False)]
            assert max(gaps) <= 8 * count / limit + 16


def test_reduced_points_show_what_is_not_finite(folder):
    with RunWriter.create(folder) as run:
        for step in range(1, 5001):
            run.log(step, 1, {"x": math.nan if step == 777 else math.inf if step == 4001 else 1.0 / step})
    reduced = RunReader(folder).points("x", max_points=60)
    odd = [(s, v) for s, v in zip(reduced.steps, reduced.values, strict=True) if not math.isfinite(v)]
    assert [step for step, _ in odd] == [777, 4001]
    assert math.isnan(odd[0][1])
    assert odd[1][1] == math.inf
    assert len(reduced.steps) <= 60


def test_a_long_series_reads_few_rows(folder):
    with RunWriter.create(folder) as run:
        for step in range(1, 26_001):
            run.log(step, 1, {"x": float(step)})
        assert run.flush(60)
    reader = RunReader(folder)
    read = []
    rows = reader._rows
    reader._rows = lambda *arguments: read.append(found := rows(*arguments)) or found
    assert len(reader.points("x", max_points=200).steps) > 150
    assert sum(map(len, read)) < 1000


def test_steps_out_of_order_come_out_in_order(folder):
    with RunWriter.create(folder) as run:
        for step in [3, 1, 2, *range(100, 3, -1)]:
            run.log(step, 1, {"x": float(step)})
    reader = RunReader(folder)
    assert reader.points("x").steps == list(range(1, 101))
    assert reader.points("x", max_points=20).steps == sorted(reader.points("x", max_points=20).steps)


def test_a_reader_sees_the_run_grow(folder):
    run = RunWriter.create(folder)
    reader = RunReader(folder)
    assert reader.state() == "running"
    assert reader.series() == []
    assert reader.progress() is None
    seen, wrong, done = [], [], threading.Event()

    def watch():
        while not done.is_set():
            if reader.series():
                points = reader.points("x", max_points=1000)
                seen.append(len(points.steps))
                if points.values != [float(s) for s in points.steps]:
                    wrong.append(points)

    thread = threading.Thread(target=watch)
    thread.start()
    for step in range(1, 10_001):
        run.log(step, 1, {"x": float(step)})
        if step % 1000 == 0:
            assert run.flush()
    done.set()
    thread.join()
    assert wrong == []
    assert seen == sorted(seen) or max(seen) <= 1000
    assert reader.last("x").step == 10_000
    run.close("stopped", "enough")
    assert (reader.state(), reader.summary().reason) == ("stopped", "enough")


def test_a_series_that_grows_while_it_is_read_keeps_to_the_points_asked_for(folder, monkeypatch):
    with RunWriter.create(folder) as run:
        run.log(1, 1, {"x": 1.0})
        assert run.flush()
        reader = RunReader(folder)

        def outline(*arguments, original=reader.outline):
            read = original(*arguments)
            for step in range(2, 101):
                run.log(step, 1, {"x": float(step)})
            assert run.flush()
            return read

        monkeypatch.setattr(reader, "outline", outline)
        assert reader.points("x", max_points=8).steps == [1]


def test_the_heartbeat_goes_on_when_nothing_is_written(folder, monkeypatch):
    monkeypatch.setattr(writer_module, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(writer_module, "_FLUSH_SECONDS", 0.01)
    with RunWriter.create(folder):
        reader = RunReader(folder)
        beats = {reader.attempts()[-1].heartbeat}
        deadline = time.monotonic() + 20
        while len(beats) < 4 and time.monotonic() < deadline:
            beats.add(reader.attempts()[-1].heartbeat)
    assert len(beats) == 4


def test_the_calling_thread_does_not_wait(folder):
    with RunWriter.create(folder) as run:
        values = {f"metric{i}": 0.5 for i in range(5)}
        times = []
        for step in range(1, 3001):
            start = time.perf_counter()
            run.log(step, 1, values)
            times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 20e-6


def test_the_logged_dict_may_be_reused(folder):
    values = {}
    with RunWriter.create(folder) as run:
        for step in range(1, 101):
            values["x"] = float(step)
            run.log(step, 1, values)
    assert RunReader(folder).points("x").values == [float(step) for step in range(1, 101)]


# --- invalid input


def finish(folder, **options):
    RunWriter.create(folder, **options).close("finished")


def resume(folder):
    finish(folder, resume=True)


def of_a_newer_burnt(folder):
    finish(folder)
    query(folder, "PRAGMA user_version = 2")


def of_something_else(folder):
    folder.mkdir(parents=True)
    query(folder, "CREATE TABLE t (x)")


def half_created(folder):
    folder.mkdir(parents=True)
    opening.create_database(folder / "run.db", "first")


@pytest.mark.parametrize(
    ("prepare", "use", "words"),
    [
        (
            finish,
            RunWriter.create,
            ("{folder} already holds a run", "continue it with resume=True, or choose another folder"),
        ),
        (
            lambda folder: folder.parent.write_text(""),
            RunWriter.create,
            ("the run folder cannot be written", "{folder.parent}", "Not a directory"),
        ),
        (lambda folder: folder.mkdir(parents=True), RunReader, ("holds no run", "{folder}/run.db")),
        *(
            (of_a_newer_burnt, use, ("a newer burnt wrote this run", "schema version 2", "upgrade burnt"))
            for use in (RunReader, resume)
        ),
        (of_something_else, RunReader, ("not a run's database",)),
        (half_created, lambda folder: RunReader(folder).state(), ("not started yet",)),
        (
            half_created,
            lambda folder: opening.create_database(folder / "run.db", "second"),
            ("already holds a run",),
        ),
        (
            lambda folder: None,
            lambda folder: finish(folder, config={"f": print}),
            ("the config cannot be written as JSON",),
        ),
    ],
)
def test_what_cannot_be_opened_is_refused(folder, prepare, use, words):
    prepare(folder)
    there = sorted(folder.parent.rglob("*"))
    with pytest.raises(RunError) as caught:
        use(folder)
    for word in words:
        assert word.format(folder=folder) in str(caught.value)
    assert sorted(folder.parent.rglob("*")) == there


def test_a_running_run_is_refused(folder):
    run = RunWriter.create(folder)
    with pytest.raises(RunError, match=rf"is running: pid {os.getpid()} on ") as caught:
        RunWriter.create(folder, resume=True, config={"other": 1})
    assert "last heartbeat" in str(caught.value)
    assert not (folder / "config.json").exists()
    run.close("finished")
    RunWriter.create(folder, resume=True).close("finished")


def test_resume_starts_a_run_where_there_is_none(folder):
    RunWriter.create(folder, resume=True).close("finished")
    assert len(RunReader(folder).attempts()) == 1


def test_a_folder_that_cannot_be_written_is_named(folder, monkeypatch):
    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(RunError, match="the run folder cannot be written") as caught:
        RunWriter.create(folder)
    assert "Permission denied" in str(caught.value)
    assert str(folder) in str(caught.value)
    assert not (folder / "run.db").exists()


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "random"])
def test_a_damaged_file_is_named(folder, damage):
    with RunWriter.create(folder) as run:
        for step in range(1, 5001):
            run.log(step, 1, {"x": float(step)})
    path = folder / "run.db"
    content = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": content[: len(content) // 2],
            "header": b"\0" * 100 + content[100:],
            "random": content[:4096] + bytes(i * 7919 % 251 for i in range(len(content) - 4096)),
        }[damage]
    )
    with pytest.raises(RunError) as caught:
        RunWriter.create(folder, resume=True)
    assert str(path) in str(caught.value)
    assert "checkpoints/" in caught.value.hint

    def read():
        with RunReader(folder) as reader:
            reader.summary()
            reader.points("x")
            reader.events()

    with pytest.raises(RunError) as caught:
        read()
    assert str(path) in str(caught.value)
    assert "checkpoints/" in caught.value.hint


def test_damaged_text_of_the_schema_is_named(folder):
    RunWriter.create(folder).close("finished")
    path = folder / "run.db"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE log_line", b"CREATE TAB\xff\xfe log_line"))
    for use in (RunReader, resume):
        with pytest.raises(RunError, match="damaged") as caught:
            use(folder)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("value", ["NULL", "'[]'", "'{'", "5", f"'{'[' * 100_000}'"])
def test_what_is_no_json_object_is_named(folder, value):
    with RunWriter.create(folder) as run:
        run.progress(1, None)
        run.event("note", text="a")
        run.system({"cpu": 1.0})
        run.record_histogram("h", [1], [0.0, 1.0])
    with contextlib.closing(sqlite3.connect(folder / "run.db")) as connection, connection:
        connection.execute("PRAGMA writable_schema = 1")  # a damaged file keeps to no constraint
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '')")
    for table in ("progress", "event", "system_sample", "artefact"):
        query(folder, f"UPDATE {table} SET data = {value}")
    with RunReader(folder) as reader:
        for read in (reader.progress, reader.events, reader.system_samples, reader.artefacts):
            with pytest.raises(RunError, match="damaged") as caught:
                read()
            assert str(folder / "run.db") in str(caught.value)
            assert len(str(caught.value)) < 1000


def test_an_image_that_is_no_blob_is_named(folder):
    with RunWriter.create(folder) as run:
        run.record_image("i", PNG)
    query(folder, "UPDATE artefact SET data = 5")
    with RunReader(folder) as reader, pytest.raises(RunError, match="image 'i' is not a blob"):
        reader.artefacts()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        *(
            (
                lambda run, value=value: run.log(7, 1, {"loss": value}),
                ("not a number", "train, step 7", "loss="),
            )
            for value in ("high", None, [1.0], 10**400)
        ),
        *(
            (
                lambda run, step=step: run.log(step, 1, {"x": 1.0}),
                ("a step or epoch is not a count", repr(step)),
            )
            for step in (-1, 2**63, 1.5, "3")
        ),
        (lambda run: run.record_table("t", ["a", "b"], [[1, 2], [3]]), ("row 1 of table 't'",)),
        (lambda run: run.record_histogram("h", [1, 2], [0.0, 1.0]), ("one more edge",)),
        (lambda run: run.record_image("i", b"GIF89a"), ("not a PNG file",)),
        (lambda run: run.close("done"), ("invalid end state",)),
    ],
)
def test_invalid_values_are_refused(folder, write, words):
    with RunWriter.create(folder) as run, pytest.raises((RunError, MetricError)) as caught:
        write(run)
    assert all(word in str(caught.value) for word in words)
    with RunReader(folder) as reader:
        assert (reader.series(), reader.artefacts(), reader.state()) == ([], [], "finished")


def test_a_closed_run_takes_nothing(folder):
    run = RunWriter.create(folder)
    run.close("stopped")
    run.close("finished")
    calls = (
        lambda: run.log(1, 1, {"x": 1.0}),
        lambda: run.event("e"),
        lambda: run.system({}),
        lambda: run.progress(1, 1),
    )
    for call in calls:
        with pytest.raises(RunError, match="the run is already closed"):
            call()
    assert RunReader(folder).state() == "stopped"


def test_a_metric_that_does_not_exist_is_guessed(folder):
    with RunWriter.create(folder) as run:
        run.log(1, 1, {"accuracy": 1.0}, split="valid")
    with pytest.raises(MetricError) as caught:
        RunReader(folder).points("acuracy", "valid")
    assert caught.value.hint == "did you mean 'accuracy (valid)'?"
    with pytest.raises(MetricError, match="max_points is too small"):
        RunReader(folder).points("accuracy", "valid", max_points=3)


@pytest.mark.parametrize(
    ("raised", "state", "reason"),
    [(ValueError("no"), "crashed", "ValueError: no"), (KeyboardInterrupt(), "stopped", "interrupted")],
)
def test_a_block_that_raises_ends_the_run(folder, raised, state, reason):
    with pytest.raises(type(raised)), RunWriter.create(folder):
        raise raised
    summary = RunReader(folder).summary()
    assert (summary.state, summary.reason) == (state, reason)


# --- the file


def test_an_ended_run_is_one_file(folder):
    RunWriter.create(folder).close("finished")
    assert [p.name for p in folder.glob("run.db*")] == ["run.db"]
    RunReader(folder).summary()
    assert [p.name for p in folder.glob("run.db*")] == ["run.db"]


def test_the_journal_falls_back(folder, monkeypatch):
    monkeypatch.setattr(opening, "_is_on_network", lambda path: True)
    with RunWriter.create(folder) as run:
        reader = RunReader(folder)
        for step in range(1, 101):
            run.log(step, 1, {"x": float(step)})
        assert run.flush()
        assert reader.last("x").step == 100
        assert not (folder / "run.db-wal").exists()
        assert query(folder, "PRAGMA journal_mode") == [("delete",)]
    assert reader.state() == "finished"


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_viewer_stopped_in_a_read_where_there_is_no_log(folder, monkeypatch, goes_on):
    monkeypatch.setattr(opening, "_is_on_network", lambda path: True)
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    failed = threading.Event()
    run = RunWriter.create(folder, on_error=lambda message: failed.set())
    run.log(1, 1, {"x": 1.0})
    assert run.flush()
    reader = RunReader(folder)
    with reader._snapshot():
        assert reader.series() == [Series("x", "train")]
        run.log(2, 1, {"x": 2.0})
        assert not run.flush(0.01)
        assert failed.wait(20)
        assert "locked" in run.warnings[0]
        if not goes_on:
            run.close("finished", timeout=0.1)
            assert "the end of the run was not written" in run.warnings[-1]
    if goes_on:
        run.close("finished")
        assert reader.state() == "finished"
        assert [event.kind for event in reader.events()] == ["start", "write_error", "end"]
    assert reader.points("x").values == [1.0, 2.0][: 1 + goes_on]


def test_network_file_systems_are_known(monkeypatch, tmp_path):
    mounts = [("/", "ext4"), (str(tmp_path), "nfs4"), (str(tmp_path / "local"), "xfs")]
    partitions = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: partitions)
    assert opening._is_on_network(tmp_path / "run" / "run.db")
    assert not opening._is_on_network(tmp_path / "local" / "run.db")
    assert not opening._is_on_network(Path("/elsewhere/run.db"))


def test_the_store_is_read_without_torch(tmp_path):
    code = (
        "import sys, burnt.train\n"
        "from burnt.train import RunReader, RunWriter, SystemSampler\n"
        f"with RunWriter.create({str(tmp_path / 'run')!r}) as run:\n"
        "    run.log(1, 1, {'x': 1.0})\n"
        "    SystemSampler(run.system).sample()\n"
        f"assert RunReader({str(tmp_path / 'run')!r}).summary().state == 'finished'\n"
        "heavy = {'torch', 'numpy', 'rich', 'textual', 'pynvml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_find_runs(tmp_path):
    for number, name in enumerate(["b", "a/deep", "c"]):
        RunWriter.create(tmp_path / name).close("finished")
        os.utime(tmp_path / name / "run.db", (number, number))
    (tmp_path / "a" / "deep" / "checkpoints" / "run.db").write_text("not one of ours")
    assert find_runs(tmp_path) == [tmp_path / "c", tmp_path / "a" / "deep", tmp_path / "b"]
    assert find_runs(tmp_path / "b") == [tmp_path / "b"]
    assert find_runs(tmp_path / "nothing") == []


def test_find_runs_while_a_run_ends(tmp_path, monkeypatch):
    RunWriter.create(tmp_path / "a").close("finished")
    (tmp_path / "a" / "run.db-wal").symlink_to("gone")  # is listed, and its stat fails
    monkeypatch.setattr(Path, "exists", lambda path: True)  # as it did a moment ago
    assert find_runs(tmp_path) == [tmp_path / "a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment")
def test_a_run_that_may_not_be_read_is_listed_and_says_so(tmp_path, monkeypatch):
    for name in ("open", "shut"):
        RunWriter.create(tmp_path / name).close("finished")
    with pytest.raises(RunError):  # whatever is imported for it is there then
        RunReader(tmp_path)
    for name, mode in ((".", 0o755), ("shut", 0o700)):
        (tmp_path / name).chmod(mode)
    monkeypatch.chdir(tmp_path)  # above it nobody else may pass
    os.seteuid(65534)
    try:
        found = find_runs(".")
        with pytest.raises(
            RunError, match=r"no permission to read the run(.|\n)*Permission denied(.|\n)*chmod -R a\+rX shut"
        ):
            RunReader("shut")
    finally:
        os.seteuid(0)
    assert found == [Path("open"), Path("shut")]


# --- who lives


def test_states_of_an_attempt_without_an_end(monkeypatch):
    own = write_lease.ProcessName.own()
    now = 1000.0
    elsewhere = own._replace(host="elsewhere")
    gone = own._replace(started=own.started - 100)  # the id was given to another process
    state = write_lease.writing_state
    assert state(own, now - 1, now) == "running"
    assert state(own, now + 5, now) == "running"
    assert state(own, now - 11, now) == "stale"
    assert state(gone, now - 1, now) == "crashed"
    assert state(own._replace(pid=2**22 + 1), now - 1, now) == "crashed"
    assert state(own._replace(pid=-5), now - 1, now) == "crashed"
    assert state(elsewhere, now - 9, now) == "running"
    assert state(elsewhere, now - 11, now) == "crashed"


def test_a_run_that_ends_while_it_is_viewed_is_not_crashed(folder, monkeypatch):
    run = RunWriter.create(folder)
    reader = RunReader(folder)

    def gone(process):
        run.close("finished")
        return False

    monkeypatch.setattr(write_lease.ProcessName, "is_alive", gone)
    assert reader.state() == "finished"
