"""Comparing runs: curves in one plot, values, and what their configurations differ in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.pilot import Pilot

from burnt.monitor.app import MonitorApp
from burnt.monitor.plotting.chart_widget import Chart
from burnt.monitor.plotting.curves import RUN_STYLES
from burnt.monitor.plotting.run_curves import assign_styles, differences
from burnt.monitor.screens.compare import CompareScreen
from burnt.monitor.ui.table import Table
from burnt.plot.braille import PALETTE
from burnt.store import RunWriter, Series
from tests.monitor.driving import PATIENCE, opened, press, text_of


def make(root: Path, count: int = 3) -> None:
    for number in range(count):
        config = {"model": {"hidden": 64 if number else 32, "layers": 2}, "seed": number}
        with RunWriter.create(root / f"run-{number}", config=config) as run:
            for step in range(1, 41):
                run.log(step, 1 + step // 20, {"loss": 2.0 / step + number, "rate": 0.1}, split="train")
            run.log(20, 1, {"loss": 1.5 + number, "accuracy": 0.5 + number / 10}, split="valid")
            run.event("epoch", 20, epoch=1)
            run.log(40, 2, {"loss": 1.0 + number}, split="valid")
            run.event("epoch", 40, epoch=2)


@asynccontextmanager
async def comparison(
    root: Path, size: tuple[int, int] = (120, 36)
) -> AsyncIterator[tuple[MonitorApp, Pilot[None], CompareScreen]]:
    """Compare all runs in a folder."""
    async with opened(root, size) as (app, pilot):
        screen = CompareScreen(sorted(app.library.views, key=lambda view: view.label))
        app.push_screen(screen)
        await pilot.pause()
        await app.wait_until_idle(PATIENCE)
        yield app, pilot, screen


async def test_runs_lie_in_plots_with_their_values(tmp_path: Path) -> None:
    make(tmp_path)
    async with comparison(tmp_path) as (app, pilot, screen):
        chart = screen.query_one(Chart)
        assert chart.view.title == "valid/loss"
        assert [curve.label for curve in chart.view.curves] == ["run-0", "run-1", "run-2"]
        assert [list(curve.ys) for curve in chart.view.curves] == [[1.5, 1.0], [2.5, 2.0], [3.5, 3.0]]
        assert len({curve.color for curve in chart.view.curves}) == 3
        assert [one.view.title for one in screen.query(Chart)] == [
            "valid/loss",
            "train/loss",
            "valid/accuracy",
            "train/rate",
        ]
        shown = text_of(chart)
        assert shown.split()[:7] == ["valid/loss", "1", "1", "2", "2", "3", "3"]
        await press(app, pilot, "v")
        assert [one.view.title for one in screen.query(Chart)] == ["valid/loss"]
        shown = text_of(chart)
        assert "1 run-0" in shown
        assert {row[-1] for row in shown.splitlines() if row[-2:-1] == " "} >= {"1", "2", "3"}
        values = text_of(screen.query_one("#values", Table)).splitlines()
        assert values[1].split()[1:7] == ["1", "run-0", "✓", "finished", "1.0000", "40"]
        assert "★ 1.0000" in values[1]
        assert "★" not in values[2]


async def test_only_differing_keys_are_listed(tmp_path: Path) -> None:
    make(tmp_path)
    async with comparison(tmp_path) as (_, _, screen):
        rows = text_of(screen.query_one("#configs", Table)).splitlines()
        assert [row.split() for row in rows if row.strip()] == [
            ["differs", "in", "1", "2", "3"],
            ["hidden", "32", "64", "64"],
            ["seed", "0", "1", "2"],
        ]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("width", "is_shortened"), [(80, True), (200, False)])
async def test_settings_take_the_width_there_is(tmp_path: Path, width: int, is_shortened: bool) -> None:
    values = [f"Warmup(steps={number}, then=Cosine(lr=0.003, steps=17, end=0.0))" for number in (1, 2)]
    key = "schedule_of_the_first_phase_and_rate"
    for number, value in enumerate(values):
        RunWriter.create(tmp_path / f"run-{number}", config={key: value}).close("finished")
    async with comparison(tmp_path, (width, 36)) as (app, pilot, screen):
        table = screen.query_one("#configs", Table)
        row = text_of(table).splitlines()[1]
        assert key in row
        assert ("…" in row) == is_shortened
        assert all((value in row) != is_shortened for value in values)
        assert row.count("Warmup(step") == 2
        if not is_shortened:
            await pilot.resize_terminal(80, 36)
            await app.wait_until_idle(30)
            assert key in text_of(table)
            assert text_of(table).count("…") == 2


@pytest.mark.full
async def test_the_metric_is_chosen_by_key_and_by_name(tmp_path: Path) -> None:
    make(tmp_path)
    async with comparison(tmp_path) as (app, pilot, screen):
        seen = []
        for _ in range(4):
            assert screen.selected_chart.has_focus
            seen.append(screen.selected_chart.view.title)
            await press(app, pilot, "m")
        assert seen == ["valid/loss", "train/loss", "valid/accuracy", "train/rate"]
        await press(app, pilot, "M")
        assert screen.selected_chart.view.title == "train/rate"
        await press(app, pilot, "f")
        assert [one.view.title for one in screen.query(Chart)] == ["train/rate"]
        await press(app, pilot, "f")
        assert "★" not in text_of(screen.query_one("#values", Table)), "nobody knows which rate is better"
        await press(app, pilot, "slash", "a", "c", "c")
        assert screen.selected_chart.view.title == "valid/accuracy"
        values = text_of(screen.query_one("#values", Table)).splitlines()
        assert "★ 0.7000" in values[3]
        await press(app, pilot, "x", "enter")
        assert screen.selected_chart.has_focus
        assert screen.metric == Series("accuracy", "valid")
        await press(app, pilot, "tab")
        assert screen.metric == Series("rate", "train")
        for node, key in app.active_keys():
            assert hasattr(node, f"action_{key.action.partition('(')[0]}"), key


async def test_axes_smoothing_and_size(tmp_path: Path) -> None:
    make(tmp_path, 2)
    async with comparison(tmp_path) as (app, pilot, screen):
        chart = screen.query_one(Chart)
        await press(app, pilot, "x")
        assert chart.view.x == "epoch"
        assert list(chart.view.curves[0].xs) == [1.0, 2.0]
        await press(app, pilot, "x", "y", "s")
        assert chart.view[1:4] == ("time", True, 0.6)
        height = chart.size.height
        await press(app, pilot, "f")
        assert chart.size.height > height
        await press(app, pilot, "f", "escape")
        assert not isinstance(app.screen, CompareScreen)


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_eight_runs_have_room(tmp_path: Path, size: tuple[int, int]) -> None:
    make(tmp_path, 8)
    async with comparison(tmp_path, size) as (_, _, screen):
        chart = screen.query_one(Chart)
        assert len({curve.color for curve in chart.view.curves}) == 8
        assert any(0x2800 < ord(c) < 0x2900 for c in text_of(chart))
        values = text_of(screen.query_one("#values", Table))
        assert all(f"run-{number}" in values for number in range(8))
        assert "seed" in text_of(screen.query_one("#configs", Table))


async def test_a_run_that_cannot_be_read_or_lacks_the_metric_is_no_trouble(tmp_path: Path) -> None:
    make(tmp_path, 2)
    with RunWriter.create(tmp_path / "run-other") as run:
        run.log(1, 1, {"perplexity": 3.0})
    (tmp_path / "run-z").mkdir()
    (tmp_path / "run-z" / "run.db").write_bytes(b"not a database at all")
    async with comparison(tmp_path) as (_, _, screen):
        values = text_of(screen.query_one("#values", Table))
        assert "unreadable" in values
        assert "run-other" in values
        assert "★ 1.0000" in values


async def test_runs_without_metrics(tmp_path: Path) -> None:
    for name in "ab":
        RunWriter.create(tmp_path / name).close("finished")
    async with comparison(tmp_path) as (app, pilot, screen):
        assert "no metric has been logged yet" in text_of(screen.query_one(Chart))
        await press(app, pilot, "m", "slash", "q", "escape")
        assert "No run has recorded a configuration." in text_of(screen.query_one("#configs", Table))


async def test_new_values_appear(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "live")
    run.log(1, 1, {"loss": 1.0})
    run.flush()
    make(tmp_path, 1)
    async with comparison(tmp_path) as (app, pilot, screen):
        await press(app, pilot, "slash", "t", "r", "a", "i", "n", "enter")
        run.log(2, 1, {"loss": 0.25})
        run.flush()
        await app.wait_until_idle(30)
        curve = next(c for c in screen.selected_chart.view.curves if c.label == "live")
        assert list(curve.ys) == [1.0, 0.25]
    run.close("finished")


def test_configurations_differ_by_dotted_key() -> None:
    configs = [{"a": {"b": 1, "c": {"d": [1]}}}, {"a": {"b": 1, "c": {"d": [2]}}, "e": None}, {"a": 5}]
    assert differences(configs) == {
        "a.b": ["1", "1", None],
        "a.c.d": ["[1]", "[2]", None],
        "e": [None, "null", None],
        "a": [None, None, "5"],
    }
    assert differences([{}, {}]) == {}


def test_runs_look_as_they_always_do_and_later_ones_have_other_lines() -> None:
    views: Any = [SimpleNamespace(style_index=number) for number in (3, 11, 0, 35)]
    found = assign_styles(views)
    assert found[:3] == [(PALETTE[3], "solid"), (PALETTE[3], "dashed"), (PALETTE[0], "solid")]
    assert found[3] == RUN_STYLES[1]  # its own is that of the first
    assert len(set(found)) == 4


@pytest.mark.full
async def test_zooming_reads_finer_points(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with RunWriter.create(tmp_path / name) as run:
            for step in range(1, 20_001):
                run.log(step, 1, {"loss": (step * 7919 % 1000) / 1000})

    def within(screen: CompareScreen) -> list[int]:
        view = screen.query_one(Chart).view
        first, last = view.range_x or (0, 20_000)
        return [sum(first <= x <= last for x in curve.xs) for curve in view.curves]

    async with comparison(tmp_path) as (app, pilot, screen):
        chart = screen.query_one(Chart)
        whole = len(chart.view.curves[0].xs)
        chart.zoom((5_000.0, 5_400.0))
        coarse = within(screen)
        await press(app, pilot, "plus")
        assert chart.view.range_x is not None
        assert all(fine > 4 * before for fine, before in zip(within(screen), coarse, strict=True))
        await press(app, pilot, "x")  # another axis has no such part
        await press(app, pilot, "x", "x")
        assert len(chart.view.curves[0].xs) == whole


async def test_many_metrics_are_pages_of_charts(tmp_path: Path) -> None:
    for name in "ab":
        with RunWriter.create(tmp_path / name) as run:
            run.log(1, 1, {f"norm/layer{number}": float(number) for number in range(1, 120)})
    async with comparison(tmp_path, (80, 24)) as (app, pilot, screen):

        def titles() -> list[str]:
            return [chart.view.title.rpartition("layer")[2] for chart in screen.query(Chart)]

        assert titles() == ["1", "2", "3", "4"]  # as numbers
        await press(app, pilot, "pagedown")
        assert titles() == ["5", "6", "7", "8"]
        assert screen.selected_chart.view.title.endswith("layer5")
        await press(app, pilot, "M")
        assert titles() == ["1", "2", "3", "4"]
        assert screen.selected_chart is list(screen.query(Chart))[3]
        await press(app, pilot, "pageup", "M")
        assert titles() == ["117", "118", "119"]
        assert "metric 119 of 119" in str(screen.query_one("#title").render())


async def test_a_fork_lies_on_its_parent(tmp_path: Path) -> None:
    for name, first in (("parent", 1), ("fork", 11), ("orphan", 21)):
        fork = {"fork": "../parent", "orphan": "../gone"}.get(name)
        config = {"fork": {"folder": fork, "step": first - 1}} if fork else {}
        with RunWriter.create(tmp_path / name, config=config) as run:
            for step in range(first, 31):
                run.log(step, 1, {"loss": step / first})
    async with comparison(tmp_path) as (app, pilot, screen):
        curves = screen.selected_chart.view.curves
        assert [(curve.label, curve.faint) for curve in curves] == [
            ("fork", False),
            ("orphan", False),
            ("parent", False),
        ]
        assert [curve.xs[0] for curve in curves] == [11, 21, 1]
        values = text_of(screen.query_one("#values", Table))
        assert "fork  fork of parent@10" in values
        assert "orphan  fork of gone@20 (missing)" in values
        # Without the parent among the runs, its curve up to the fork is drawn dimmed.
        screen.views = [view for view in screen.views if view.label != "parent"]
        await press(app, pilot, "y")
        history, fork, _ = screen.selected_chart.view.curves
        assert (history.label, history.faint, list(history.xs)) == ("parent of 1", True, list(range(1, 11)))
        assert history.color == fork.color
        assert "dimmed: parent of 1, up to the fork" in str(screen.query_one("#title").render())
        await press(app, pilot, "x")
        history, fork, _ = screen.selected_chart.view.curves
        assert history.faint
        assert history.xs[-1] <= fork.xs[0]  # in seconds of training
