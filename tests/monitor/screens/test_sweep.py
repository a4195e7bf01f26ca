"""The screen of a sweep, its row in the list of runs, and parallel coordinates."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("textual")

from textual.widgets import Static

from burnt.monitor.plotting.chart_widget import Chart
from burnt.monitor.plotting.parallel import parallel_coordinates
from burnt.monitor.screens.run import RunScreen
from burnt.monitor.screens.run_list import RunsScreen
from burnt.monitor.screens.sweep import SweepScreen
from burnt.monitor.ui.table import Table
from burnt.store import RunWriter
from burnt.store.sweeps import SWEEP, Parameter, Sweep, Trial
from tests.monitor.driving import opened, press, text_of, until

SPACE = (
    Parameter(key="model.lr", kind="float", low=0.01, high=1.0, log=True),
    Parameter(key="kind", kind="choice", choices=("a", "b")),
)


def add_trial(
    folder: Path, number: int, lr: float, value: float | None, state: str = "complete"
) -> RunWriter:
    """Write a trial; its run is still open."""
    trial = Trial(number=number, params={"model.lr": lr, "kind": "ab"[number % 2]}, state=state)
    run = RunWriter.create(
        folder / trial.name, config={"config": trial.params, "metrics": {"score": "higher"}}
    )
    if value is not None:
        run.log(1, 1, {"score": value}, "valid")
    run.flush(10)
    if state != "running":
        run.close("finished" if state == "complete" else "crashed")
        trial = trial.replace(value=value, error="ValueError: no" if state == "failed" else None)
    trial.save(folder / trial.name / "trial.json")
    return run


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "tuned"
    folder.mkdir(parents=True)
    Sweep(target="a.py:main", space=SPACE, trials=12, metric="valid/score", direction="higher").save(
        folder / SWEEP
    )
    for number in range(1, 9):
        add_trial(folder, number, 0.01 * number, 0.1 * number if number != 4 else 0.05)
    add_trial(folder, 9, 0.5, None, "failed")
    return folder


def screen_text(screen: object, id: str) -> str:
    widget = screen.query_one(id)  # type: ignore[attr-defined]
    return text_of(widget) if not isinstance(widget, Static) else widget.content.plain  # type: ignore[union-attr]


async def test_a_sweep_that_has_ended_does_not_say_that_it_is_not_running(sweep: Path) -> None:
    for number in (10, 11, 12):
        async with opened(sweep, (120, 40)) as (app, _):
            assert f"{number - 1} of 12 trials, not running" in screen_text(app.screen, "#title")
        add_trial(sweep, number, 0.9, 0.75)
    async with opened(sweep, (120, 40)) as (app, _):
        assert "not running" not in screen_text(app.screen, "#title")


async def test_trials_are_shown_by_value_and_opened(sweep: Path) -> None:
    running = add_trial(sweep, 10, 0.9, 0.75, "running")
    async with opened(sweep, (120, 40)) as (app, pilot):
        screen = app.screen
        assert isinstance(screen, SweepScreen)
        assert "9 of 12 trials, 1 running" in screen_text(screen, "#title")
        table = screen.query_one(Table)
        assert table.row_keys == [8, 7, 6, 5, 3, 2, 1, 4, 10, 9]
        lines = [line.split() for line in text_of(table).splitlines()]
        assert lines[0] == ["trial", "state", "valid/score", "lr", "kind", "took"]
        assert lines[1][:6] == ["0008", "✓", "complete", "0.8000", "0.08", "a"]
        assert lines[9][:5] == ["0010", "●", "running", "0.7500", "0.9"]
        assert " ".join(lines[10]).endswith("ValueError: no")
        # A new value of the running trial is seen.
        running.log(2, 2, {"score": 0.95}, "valid")
        running.flush(10)
        await until(app, lambda: "0.9500" in text_of(table))
        best, trials = screen.query_one(Chart).view.curves
        assert list(best.ys) == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.5, 0.6, 0.7, 0.8])
        assert list(trials.xs) == [1, 2, 3, 4, 5, 6, 7, 8, 10]
        assert "model.lr" in screen_text(screen, "#parallel")
        shown = screen_text(screen, "#importance").splitlines()
        assert shown[1].startswith("model.lr")
        assert shown[2].split()[-1] == "0%"
        await press(app, pilot, "down", "enter")
        assert isinstance(app.screen, RunScreen)
        assert app.screen.view.folder.name == "0007"
        await press(app, pilot, "escape", "escape")
        assert isinstance(app.screen, RunsScreen)
    running.close("finished")


async def test_the_list_shows_a_sweep_as_one_row(sweep: Path) -> None:
    RunWriter.create(sweep.parent / "other").close("finished")
    async with opened(sweep.parent, (120, 24)) as (app, pilot):
        table = app.screen.query_one("#runs", Table)
        rows = [line for line in text_of(table).splitlines()[1:] if line.strip()]
        assert [row.split()[1] for row in rows] == ["other", "tuned/0008"]
        assert "best of 9/12 trials" in rows[1]
        await press(app, pilot, "down", "enter")
        assert isinstance(app.screen, SweepScreen)
        await press(app, pilot, "escape", "slash", *"lr<0.025", "enter")
        await until(app, lambda: len(table.row_keys) == 2)
        assert "best of" not in text_of(table)


async def test_a_small_terminal_shows_one_plot(sweep: Path) -> None:
    async with opened(sweep, (80, 24)) as (app, pilot):
        screen = app.screen
        for shown in ("#values", "#parallel", "#importance", "#values"):
            plots = [screen.query_one(id) for id in ("#values", "#parallel", "#importance")]
            assert [f"#{plot.id}" for plot in plots if plot.size.height] == [shown]
            assert screen.query_one(Table).size.height > 5
            await press(app, pilot, "v")


async def test_a_damaged_file_is_named(sweep: Path) -> None:
    (sweep / SWEEP).write_text("{")
    async with opened(sweep, (100, 24)) as (app, _):
        assert "Sweep cannot be read" in text_of(app.screen.query_one(Table))


async def test_a_trial_that_is_damaged_later_is_named(sweep: Path) -> None:
    async with opened(sweep, (150, 24)) as (app, _):
        (sweep / "0003" / "trial.json").write_text("{}")
        await until(app, lambda: "Trial cannot be read" in screen_text(app.screen, "#title"))
        assert "0008" in text_of(app.screen.query_one(Table))


def test_parallel_coordinates_reach_their_values() -> None:
    trials = [
        Trial(number=1, params={"model.lr": 1.0, "kind": "a"}, value=0.9),
        Trial(number=2, params={"model.lr": 0.01, "kind": "b"}, value=0.1),
    ]
    lines = parallel_coordinates(SPACE, trials, "score", 30, 9, selected=2)
    text = ["".join(part for part, _ in line) for line in lines]
    assert [line.split() for line in text[:2]] == [["model.lr", "kind", "score"], ["1.0", "b", "0.9000"]]
    assert text[-1].split() == ["0.01", "a", "0.1000"]
    columns = (5, 15, 25)
    top, bottom = text[2], text[-2]
    drawn = [[line[column] not in " │" for column in columns] for line in (top, bottom)]
    # lr: trial 1 above, 2 below; kind the other way round; the better value above. Ends have half a cell.
    assert drawn == [[True, True, True], [True, True, True]]
    styles = {style for line in lines[2:-1] for _, style in line}
    assert styles == {"best", "selected", "axis", ""}
    assert all(sum(map(len, (part for part, _ in line))) == 30 for line in lines)
    assert parallel_coordinates(SPACE, [], "score", 30, 9) == []
    assert parallel_coordinates(SPACE, trials, "score", 5, 9) == []
