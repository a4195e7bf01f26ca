"""Several attempts of one run: superseded rows are hidden but kept; compared with a simple model."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnt.errors import RunError
from burnt.store import RunReader, RunWriter
from burnt.store.pyramid import Bucket, Pyramid, merge, single


def query(folder, sql):
    with contextlib.closing(sqlite3.connect(Path(folder) / "run.db")) as connection, connection:
        return connection.execute(sql).fetchall()


def write(folder, steps, resumed_from_step=None, *, resume=True, **values):
    with RunWriter.create(folder, resume=resume, resumed_from_step=resumed_from_step) as run:
        for step in steps:
            run.log(step, 1, {"x": float(values.get("value", step))})
    return run


def test_rows_after_the_checkpoint_are_superseded(tmp_path):
    write(tmp_path, range(1, 101), resume=False)
    write(tmp_path, range(61, 91), resumed_from_step=60, value=-1.0)
    reader = RunReader(tmp_path)
    points = reader.points("x")
    assert points.steps == list(range(1, 91))
    assert points.values == [*map(float, range(1, 61)), *[-1.0] * 30]
    assert reader.last("x").step == 90
    assert reader.best("x", higher=True).value == 60.0
    assert [(a.id, a.resumed_from_step) for a in reader.attempts()] == [(1, None), (2, 60)]
    # Nothing is deleted.
    assert query(tmp_path, "SELECT count(*) FROM point") == [(130,)]


def test_a_resume_without_a_checkpoint_supersedes_everything(tmp_path):
    write(tmp_path, range(10), resume=False)
    write(tmp_path, range(3))
    assert RunReader(tmp_path).points("x").steps == [0, 1, 2]
    write(tmp_path, [])
    reader = RunReader(tmp_path)
    assert reader.points("x") == reader.points("x", max_points=10) == ([], [], [])
    assert reader.last("x") is None
    assert reader.best("x") is None


def test_artefacts_are_superseded_and_events_are_not(tmp_path):
    with RunWriter.create(tmp_path, config={"lr": 1}) as run:
        for step in (None, 10, 20):
            run.record_table(f"t{step}", ["a"], [[step]], step=step)
            run.event("mark", step)
    RunWriter.create(tmp_path, resume=True, resumed_from_step=10, config={"lr": 2}).close("finished")
    reader = RunReader(tmp_path)
    assert [artefact.name for artefact in reader.artefacts()] == ["tNone", "t10"]
    assert [event.step for event in reader.events("mark")] == [None, 10, 20]
    assert [(e.kind, e.step, e.attempt) for e in reader.events()][-2:] == [
        ("resume", 10, 2),
        ("end", None, 2),
    ]
    assert reader.config() == {"lr": 2}


def test_progress_is_the_newest_attempts(tmp_path):
    with RunWriter.create(tmp_path) as run:
        run.progress(1, 1)
        run.progress(7, 2, total_steps=9)
    assert RunReader(tmp_path).progress().step == 7
    RunWriter.create(tmp_path, resume=True, resumed_from_step=5).close("stopped")
    assert RunReader(tmp_path).progress() is None


@pytest.mark.parametrize("step", [-1, 0.5])
def test_a_resume_from_no_step_is_refused(tmp_path, step):
    with pytest.raises(RunError, match="is not a count"):
        RunWriter.create(tmp_path, resume=True, resumed_from_step=step)


class Model:
    """What a run shows, in lists: an attempt first forgets every row past its checkpoint."""

    def __init__(self):
        self.rows: list[tuple[int, float]] = []

    def attempt(self, resumed_from, steps, value):
        self.rows = [row for row in self.rows if resumed_from is not None and row[0] <= resumed_from]
        self.rows += [(step, value + step) for step in steps]


attempts = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 1500)),  # the step it resumes from
        st.integers(0, 700),  # how many steps it makes
        st.sampled_from([1, 1, 3]),  # every how many it logs
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(attempts)
def test_any_history_reads_as_its_model(history):
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        for number, (resumed_from, length, every) in enumerate(history):
            start = resumed_from or 0
            steps = range(start + 1, start + 1 + length, every)
            run = RunWriter.create(folder, resume=True, resumed_from_step=resumed_from)
            for step in steps:
                run.log(step, None, {"x": number * 1e6 + step, "always": 1.0})
            run.close("stopped")
            assert run.warnings == []
            model.attempt(resumed_from, steps, number * 1e6)
        reader = RunReader(folder)
        if not reader.series():
            assert not model.rows
            return
        expected = sorted(model.rows)
        points = reader.points("x")
        assert list(zip(points.steps, points.values, strict=True)) == expected
        view = query(folder, "SELECT step, value FROM metrics WHERE name = 'x' ORDER BY step")
        assert view == expected
        best, worst, last = reader.best("x"), reader.best("x", higher=True), reader.last("x")
        if not expected:
            assert best is worst is last is None
            return
        values = [value for _, value in expected]
        assert (best.value, worst.value) == (min(values), max(values))
        assert (last.step, last.value) == expected[-1]
        reduced = reader.points("x", max_points=20)
        shown = list(zip(reduced.steps, reduced.values, strict=True))
        assert len(shown) <= 20
        assert set(shown) <= set(expected)
        assert {expected[0], expected[-1]} <= set(shown)
        assert {min(values), max(values)} <= {value for _, value in shown}


numbers = st.one_of(st.floats(), st.integers(-3, 3).map(float))


@given(st.lists(st.tuples(st.integers(0, 99), numbers), min_size=1, max_size=60), st.randoms())
def test_buckets_merge_as_their_points(points, random):
    buckets = [single(step, float(i), value) for i, (step, value) in enumerate(points)]
    while len(buckets) > 1:  # in any grouping of neighbours
        cut = random.randrange(len(buckets) - 1)
        buckets[cut : cut + 2] = [merge(buckets[cut : cut + 2])]
    (found,) = buckets
    finite = [value for _, value in points if abs(value) <= 1.7976931348623157e308]
    assert (found.points, found.finite) == (len(points), len(finite))
    assert (found.first_step, found.last_step) == (min(points)[0], max(points, key=lambda p: p[0])[0])
    assert (found.min, found.max) == ((min(finite), max(finite)) if finite else (None, None))
    for value, time, step in (
        (found.min, found.min_time, found.min_step),
        (found.max, found.max_time, found.max_step),
        (found.nonfinite, found.nonfinite_time, found.nonfinite_step),
    ):
        if time is not None:
            assert points[int(time)][0] == step
            assert repr(points[int(time)][1] + 0.0) == repr(value + 0.0)
    assert (found.nonfinite_step is None) == (len(finite) == len(points))


def test_the_pyramid_has_every_level(tmp_path):
    pyramid = Pyramid()
    done = [row for step in range(1, 9001) for row in pyramid.add(step, 0.0, float(step))]
    counts = {level: [p for n, p, _ in done if n == level] for level in (1, 2, 3)}
    assert counts == {1: list(range(562)), 2: list(range(35)), 3: [0, 1]}
    for level, position, bucket in done:
        width = 16**level
        first, last = position * width + 1, (position + 1) * width
        assert (bucket.points, bucket.first_step, bucket.last_step) == (width, first, last)
        assert (bucket.min, bucket.max, bucket.sum) == (first, last, (first + last) * width / 2)
    write(tmp_path, range(1, 9001), resume=False)
    columns = ", ".join(Bucket._fields)
    stored = query(tmp_path, f"SELECT level, position, {columns} FROM bucket ORDER BY level, position")

    # Times differ from run to run.
    def strip(row):
        return [value for name, value in zip(Bucket._fields, row, strict=True) if "time" not in name]

    assert [(row[0], row[1], strip(row[2:])) for row in stored] == [
        (level, position, strip(bucket)) for level, position, bucket in sorted(done)
    ]


def test_rows_of_the_resumed_step_are_not_written_twice(tmp_path):
    # A process that was killed had written some of them after the checkpoint.
    with RunWriter.create(tmp_path) as run:
        for step in (1, 2, 3):
            run.log(step, 1, {"x": float(step)})
        run.log(2, 1, {"y": 2.0}, "valid")
        run.record_table("t", ["a"], [[2]], step=2)
    with RunWriter.create(tmp_path, resume=True, resumed_from_step=2) as run:
        run.log(2, 1, {"x": -1.0, "z": -1.0})
        run.log(2, 1, {"y": -1.0}, "valid")
        run.record_table("t", ["a"], [[-1]], step=2)
        run.record_table("u", ["a"], [[-1]], step=2)
        run.log(3, 1, {"x": -1.0})
    reader = RunReader(tmp_path)
    assert (reader.points("x").steps, reader.points("x").values) == ([1, 2, 3], [1.0, 2.0, -1.0])
    assert reader.points("y", "valid").values == [2.0]
    assert reader.points("z").values == [-1.0]
    assert [(a.name, a.data["rows"]) for a in reader.artefacts()] == [("t", [[2]]), ("u", [[-1]])]
