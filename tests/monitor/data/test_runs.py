"""The model behind the monitor: what it knows of runs, and what reading costs."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnt.monitor.data import runs
from burnt.monitor.data.downsampled_series import DownsampledSeries
from burnt.monitor.data.runs import RunLibrary, RunView
from burnt.monitor.format import progress_text
from burnt.store import RunReader, RunWriter, Series
from burnt.store.schema import DATABASE


def make(folder: Path, steps: int = 3, state: str = "finished", **extra: object) -> Path:
    run = RunWriter.create(folder, config={"lr": 0.1, **extra})
    for step in range(1, steps + 1):
        run.log(step, 1, {"loss": 1 / step})
        run.log(step, 1, {"loss": 2 / step}, split="valid")
    run.event("epoch", steps, epoch=1, values={})
    run.close(state)  # type: ignore[arg-type]
    return folder


def read(folder: Path) -> RunView:
    view = RunView(folder)
    view.refresh()
    return view


def test_a_run_that_is_written_is_followed(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run")
    view = RunView(tmp_path / "run")
    view.follow()
    assert view.refresh()
    assert (view.state, view.series(), view.activity) == ("running", [], "")
    run.progress(5, 1, total_steps=10, activity="validating")
    run.log(5, 1, {"loss": 0.5})
    run.event("note", 5, text="hello")
    run.log_line("a line")
    run.system({"cpu.percent": 50.0})
    assert run.flush()
    assert view.refresh()
    assert view.activity == "validating"
    assert view.fraction == 0.5
    assert view.eta is not None
    assert view.points("loss").values == [0.5]
    assert [event.kind for event in view.events] == ["start", "note"]
    assert [line.text for line in view.log_lines()] == ["a line"]
    assert view.system_samples()[0].values == {"cpu.percent": 50.0}
    run.log(6, 1, {"loss": 0.25})
    run.event("note", 6, text="bye")
    run.close("stopped", "by hand")
    assert view.refresh()
    assert view.points("loss").values == [0.5, 0.25]
    assert [event.kind for event in view.events] == ["start", "note", "note", "end"]
    assert (view.state, view.problem, view.activity, view.eta) == ("stopped", "by hand", "", None)
    assert not view.refresh()


def test_a_pause_does_not_count_as_time_that_steps_take(tmp_path: Path, monkeypatch) -> None:
    with RunWriter.create(tmp_path / "run") as run:
        began = time.time()
        monkeypatch.setattr(time, "time", lambda: began + 100.0)
        run.progress(5, 1, total_steps=10, paused_seconds=60.0)
        run.flush()
        view = RunView(tmp_path / "run")
        view.refresh()
        assert view.eta == pytest.approx(40.0, abs=5.0)
        assert view.active_seconds == pytest.approx(40.0, abs=5.0)
        view.close()


@pytest.mark.parametrize(
    ("totals", "done", "eta", "text"),
    [
        ({"seconds": 1800.0, "total_seconds": 7200.0}, 0.25, 5400.0, "30:00/2:00:00 25%"),
        ({"seconds": 9000.0, "total_seconds": 7200.0}, 1.0, 0.0, "2:30:00/2:00:00 100%"),
        # The steps end first: half of them took 100 s.
        ({"seconds": 100.0, "total_seconds": 7200.0, "total_steps": 10}, 0.5, 100.0, "step 5/10 50%"),
        ({"seconds": "NaN", "total_seconds": 7200.0}, None, None, "step 5"),
        ({"seconds": 5.0, "total_seconds": 0}, None, None, "step 5"),
    ],
)
def test_a_duration_in_time_shows_its_share_and_its_end(
    tmp_path: Path, monkeypatch, totals, done, eta, text
) -> None:
    with RunWriter.create(tmp_path / "run") as run:
        began = time.time()
        monkeypatch.setattr(time, "time", lambda: began + 100.0)
        run.progress(5, 1, **totals)
        run.flush()
        view = RunView(tmp_path / "run")
        view.refresh()
        assert view.fraction == done
        assert view.eta == (None if eta is None else pytest.approx(eta, abs=5.0))
        assert progress_text(view.progress) == text
        view.close()


def test_unchanged_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = read(make(tmp_path / "run"))
    monkeypatch.setattr(runs, "RunReader", None)  # whoever opens the file now, fails
    assert not any(view.refresh() for _ in range(100))


def test_heartbeats_alone_are_no_change(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run")
    view = read(tmp_path / "run")
    for _ in range(3):
        run.flush()  # writes the heartbeat
        assert not view.refresh()
    heartbeat = view.attempts[-1].heartbeat
    assert heartbeat == RunReader(tmp_path / "run").attempts()[-1].heartbeat
    run.close("finished")


def test_a_resumed_run_shows_what_holds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = RunWriter.create(folder, config={"lr": 1})
    for step in range(1, 101):
        first.log(step, 1, {"loss": 1.0})
    first.event("epoch", 50, epoch=1)
    first.event("epoch", 100, epoch=2)
    first.close("stopped")
    view = RunView(folder)
    view.follow()
    view.refresh()
    assert view.points("loss").steps[-1] == 100
    second = RunWriter.create(folder, resume=True, resumed_from_step=50, config={"lr": 2})
    second.log(51, 2, {"loss": 0.0})
    second.event("epoch", 90, epoch=2)
    second.flush()
    assert view.refresh()
    points = view.points("loss")
    assert (points.steps[-1], points.values[-1], max(points.steps)) == (51, 0.0, 51)
    assert view.best(Series("loss", "train")).value == 0.0  # type: ignore[union-attr]
    assert view.config == {"lr": 2}
    assert view.epoch_ends == [(50, 1), (90, 2)]
    assert len(view.attempt_spans) == 2
    second.close("finished")


def test_the_best_is_that_of_what_holds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = RunWriter.create(folder)
    for step, loss in ((1, 0.9), (2, 0.1)):
        first.log(step, 1, {"loss": loss})
    first.close("stopped")
    view = read(folder)
    assert view.metric_best is not None
    assert view.metric_best.value == 0.1
    second = RunWriter.create(folder, resume=True, resumed_from_step=1)
    for step, loss in ((2, 0.8), (3, 0.7)):
        second.log(step, 1, {"loss": loss})
    second.close("finished")
    view.refresh()
    assert (view.metric_best.value, view.metric_best.step) == (0.7, 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment")
def test_a_run_that_may_not_be_read_stays_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunWriter.create(tmp_path / "run").close("finished")
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "_RETRY_SECONDS", 0.0)
    view = read(Path("run"))
    Path("run").chmod(0o700)
    os.seteuid(65534)
    try:
        view.refresh()
        assert view.state == "unreadable"
        assert view.problem == "no permission to read the run: Permission denied"
    finally:
        os.seteuid(0)
    view.refresh()
    assert view.state == "finished"


@pytest.mark.parametrize("batches", [[1, 1, 1], [5000, 1, 3000, 4000], [15, 1, 16, 255, 4096]])
def test_a_trace_extended_shows_what_one_read_at_once_does(tmp_path: Path, batches: list[int]) -> None:
    run = RunWriter.create(tmp_path / "run")
    trace, step, values = DownsampledSeries(Series("loss", "train")), 0, []
    for batch in batches:
        for _ in range(batch):
            step += 1
            value = math.nan if step == 4321 else math.sin(step / 500) + (step % 7) / 10
            values.append(value)
            run.log(step, 1, {"loss": value})
        assert run.flush()
        with RunReader(tmp_path / "run") as reader:
            trace.refresh(reader)
        trace.points()
    run.close("finished")
    points = trace.points()
    again = DownsampledSeries(Series("loss", "train"))
    again._buckets, again._first, again._last = trace._buckets, trace._first, trace._last
    assert [str(column) for column in points] == [str(column) for column in again.points()]
    known = dict(zip(range(1, step + 1), values, strict=True))
    assert points.steps == sorted(points.steps)
    assert all(known[s] == v or math.isnan(v) for s, v in zip(points.steps, points.values, strict=True))
    assert (points.steps[0], points.steps[-1]) == (1, step)
    finite = [value for value in values if not math.isnan(value)]
    shown = [value for value in points.values if not math.isnan(value)]
    assert (min(shown), max(shown)) == (min(finite), max(finite))
    assert any(map(math.isnan, points.values)) == (step >= 4321)
    assert len(points.steps) <= 3 * 1024 + 2
    assert sum(bucket.points for bucket in trace._buckets) == step
    # No stretch is left out: the gaps between shown steps are a bucket or two wide.
    gaps = [b - a for a, b in zip(points.steps, points.steps[1:], strict=False)]
    assert not gaps or max(gaps) <= max(4 * step // 512, 2)


def test_steps_in_any_order_are_shown_in_order(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run")
    trace = DownsampledSeries(Series("loss", "train"))
    for steps in ([5, 6, 7], [1, 2, 3], [4]):
        for step in steps:
            run.log(step, 1, {"loss": float(step)})
        assert run.flush()
        with RunReader(tmp_path / "run") as reader:
            trace.refresh(reader)
        points = trace.points()
        assert points.steps == sorted(points.steps)
    assert points.steps == [1, 2, 3, 4, 5, 6, 7]
    run.close("finished")


@pytest.mark.parametrize(
    ("directions", "expected"),
    [
        ({}, {"loss": 1.0, "accuracy": 0.9, "words": None}),
        ({"words": "higher", "accuracy": "lower"}, {"loss": 1.0, "accuracy": 0.1, "words": 3.0}),
    ],
)
def test_the_best_is_by_name_or_as_the_run_says(tmp_path: Path, directions, expected) -> None:
    run = RunWriter.create(tmp_path / "run", config={"metrics": directions})
    for step, (loss, accuracy) in enumerate([(3.0, 0.1), (1.0, 0.9), (2.0, 0.5)], 1):
        run.log(step, 1, {"loss": loss, "accuracy": accuracy, "words": loss}, split="valid")
    run.close("finished")
    view = read(tmp_path / "run")
    best = {series.name: view.best(series) for series in view.series()}
    assert {name: found and found.value for name, found in best.items()} == expected
    assert (view.metric, view.metric_best) == (Series("loss", "valid"), best["loss"])
    assert best["loss"] is not None
    assert best["loss"].step == 2


def test_runs_are_found_while_open_and_keep_their_colours(tmp_path: Path) -> None:
    make(tmp_path / "b")
    make(tmp_path / "deep" / "a")
    library = RunLibrary([tmp_path])
    assert library.refresh()
    colours = {view.label: view.style_index for view in library.views}
    assert colours == {"b": 0, "deep/a": 1}
    make(tmp_path / "c")
    assert library.refresh(rescan=True)
    assert {view.label: view.style_index for view in library.views} == colours | {"c": 2}
    assert not library.refresh(rescan=True)


def test_a_deleted_run_is_said_to_be_deleted_and_dropped_when_asked(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    library = RunLibrary([tmp_path])
    library.refresh()
    [view] = library.views
    view.follow()
    shutil.rmtree(folder)
    assert library.refresh()
    assert view.state == "deleted"
    assert "was deleted" in view.problem
    assert not library.refresh(rescan=True)
    library.drop_deleted()
    assert library.views == []
    make(folder)
    library.refresh(rescan=True)
    assert [view.state for view in library.views] == ["finished"]


def test_a_deleted_run_that_nobody_could_read_is_dropped_too(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.db").write_bytes(b"x" * 4096)
    library = RunLibrary([tmp_path])
    library.refresh(rescan=True)
    assert [view.state for view in library.views] == ["unreadable"]
    shutil.rmtree(tmp_path / "odd")
    library.refresh(rescan=True)
    assert [view.state for view in library.views] == ["deleted"]
    library.drop_deleted()
    assert library.views == []


@pytest.mark.parametrize("is_same_file", [False, True])
def test_another_run_in_the_place_of_a_deleted_one_is_read_anew(tmp_path: Path, is_same_file: bool) -> None:
    folder = make(tmp_path / "run", steps=5)
    view = RunView(folder)
    view.follow()
    view.refresh()
    assert view.points("loss").steps == [1, 2, 3, 4, 5]
    seen = len(view.events)
    aside = make(tmp_path / "other", steps=2)
    if is_same_file:  # as if the new file had the number of the old one, as in some file systems
        view.close()
        (folder / DATABASE).write_bytes((aside / DATABASE).read_bytes())
    else:
        os.replace(aside / DATABASE, folder / DATABASE)
    assert view.refresh()
    assert view.points("loss").steps == [1, 2]
    assert (view.name, len(view.events)) == ("other", seen)


def test_the_log_is_bounded_by_its_length_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_MAX_LOG_CHARACTERS", 250)
    run = RunWriter.create(tmp_path / "run")
    view = RunView(run.folder)
    for lines, expected in ((["x" * 100] * 4, 2), (["short"], 3), (["y" * 1000], 1)):
        for line in lines:
            run.log_line(line)
        run.flush()
        view.refresh()
        assert len(view.log_lines()) == expected
    run.close("finished")


def test_folders_within_each_other_give_each_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "a" / "run")
    make(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    library = RunLibrary([tmp_path, tmp_path / "a", "a"])
    library.refresh(rescan=True)
    assert sorted(view.folder.name for view in library.views) == ["b", "run"]
    shutil.rmtree(tmp_path / "a")
    library.refresh(rescan=True)
    library.drop_deleted()
    assert [view.folder.name for view in library.views] == ["b"]


@pytest.mark.parametrize("kind", ["empty", "garbage", "cut", "newer", "other"])
def test_what_cannot_be_read_is_a_line_with_a_message(tmp_path: Path, kind: str) -> None:
    folder = make(tmp_path / "run", steps=2000)
    path = folder / DATABASE
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "garbage":
        path.write_bytes(os.urandom(8192))
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        import sqlite3

        with sqlite3.connect(path) as connection:
            pragma = "user_version = 99" if kind == "newer" else "application_id = 1"
            connection.execute(f"PRAGMA {pragma}")
        connection.close()
    library = RunLibrary([tmp_path])
    library.refresh()
    [view] = library.views
    view.follow()
    view.refresh()
    if kind == "cut" and view.error is None:
        with pytest.raises(OSError, match="damaged"):
            view.points("loss")
        return
    assert view.state == "unreadable"
    assert "\n" not in view.problem
    word = {"newer": "a newer burnt wrote this run", "garbage": "damaged"}.get(kind, "")
    assert word in view.problem
    assert not library.refresh()


def test_a_run_that_is_mended_is_read_again(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    whole = (folder / DATABASE).read_bytes()
    (folder / DATABASE).write_bytes(b"x" * 5000)
    view = read(folder)
    assert view.state == "unreadable"
    (folder / DATABASE).write_bytes(whole)
    assert view.refresh()
    assert (view.state, view.error) == ("finished", None)


def test_folders_that_are_no_runs_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "text.txt").write_text("hello")
    library = RunLibrary([tmp_path, tmp_path / "missing"])
    assert not library.refresh()
    assert library.views == []


def test_a_killed_training_is_crashed_within_ten_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = (
        "import sys, time; from burnt.store import RunWriter; run = RunWriter.create(sys.argv[1]);"
        "run.log(1, 1, {'loss': 1.0}); run.flush(); print('ready', flush=True); time.sleep(600)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer.stdout:
        assert writer.stdout.readline() == "ready\n"
        view = RunView(folder)
        view.follow()
        view.refresh()
        assert view.state == "running"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    began = time.monotonic()
    while view.state != "crashed" and time.monotonic() - began < 10:
        view.refresh()
    assert view.state == "crashed"
    assert "ended without closing the run" in view.problem
    assert view.points("loss").values == [1.0]


def test_runs_at_rest_are_read_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "rests")
    run = RunWriter.create(tmp_path / "lives")
    library = RunLibrary([tmp_path])
    library.refresh()
    looks: list[str] = []
    refresh = RunView.refresh
    monkeypatch.setattr(RunView, "refresh", lambda view: looks.append(view.label) or refresh(view))
    for _ in range(5):
        library.refresh()
    assert looks == ["lives"] * 5
    monkeypatch.setattr(runs, "_IDLE_REFRESH_SECONDS", 0.0)
    RunWriter.create(folder, resume=True).close("stopped")
    assert library.refresh()
    assert {view.label: view.state for view in library.views} == {"rests": "stopped", "lives": "running"}
    run.close("finished")


def test_a_run_that_closed_between_two_looks_has_not_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    code = (
        "import sys; from burnt.store import RunWriter; run = RunWriter.create(sys.argv[1]);"
        "run.flush(); print('ready', flush=True); sys.stdin.read(); run.close('finished')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        view = RunView(folder)
        view.refresh()
        assert view.state == "running"
        stamp = runs._database_stamp(folder)
        monkeypatch.setattr(runs, "_database_stamp", lambda folder: stamp)  # looked at just before it closed
    view.refresh()
    assert view.state == "finished"


def test_a_hundred_runs_open_fast(tmp_path: Path) -> None:
    first = make(tmp_path / "run0", steps=200)
    for number in range(1, 100):
        shutil.copytree(first, tmp_path / f"run{number}")
    library = RunLibrary([tmp_path])
    began = time.process_time()
    library.refresh()
    assert len(library.views) == 100
    assert time.process_time() - began < 1.0
    began = time.process_time()
    for _ in range(10):
        library.refresh()
    assert (time.process_time() - began) / 10 < 0.05
