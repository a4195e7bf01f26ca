"""The app as a person uses it: keys and clicks in, what is on the screen out."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")

from textual import events
from textual.command import CommandPalette
from textual.widgets import Input

from burnt.cli import main
from burnt.monitor import app as app_module
from burnt.monitor.app import MonitorApp
from burnt.monitor.data.runs import Checkpoint, RunLibrary
from burnt.monitor.plotting.chart_widget import Chart
from burnt.monitor.screens import run as run_module
from burnt.monitor.screens.compare import CompareScreen
from burnt.monitor.screens.panes import log as log_pane
from burnt.monitor.screens.panes.log import LogPane
from burnt.monitor.screens.panes.tables import best_checkpoint
from burnt.monitor.screens.run import RunScreen
from burnt.monitor.screens.run_list import RunsScreen
from burnt.monitor.ui.dialogs import ConfirmScreen, EndScreen, HelpScreen, PromptScreen, TextScreen
from burnt.monitor.ui.keymap import APP, CHART, LIST, RUNS
from burnt.monitor.ui.table import Table
from burnt.monitor.ui.theme import LIGHT
from burnt.store import RunWriter
from burnt.store.control import Inbox
from tests.monitor.driving import PATIENCE, opened, press, until


def make(folder: Path, state: str = "finished", steps: int = 40, **values: float) -> None:
    run = RunWriter.create(folder, config={"lr": 0.1, "model": {"hidden": 64}})
    for step in range(1, steps + 1):
        run.log(step, step // 10 + 1, {"loss": 1 / step, "accuracy": step / 100, **values})
    run.log(steps, 4, {"loss": 0.5 / steps}, split="valid")
    run.event("epoch", 20, epoch=1, values={})
    run.log_line("first line")
    run.log_line("a warning about something", "warning")
    run.system({"cpu.percent": 12.0, "memory.used_bytes": 2.0**30, "memory.total_bytes": 2.0**32})
    run.progress(steps, 4, total_steps=steps, total_epochs=4)
    run.close(state, None if state == "finished" else f"it was {state}")  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    for name, state in (("alpha", "finished"), ("beta", "crashed"), ("gamma-10", "stopped")):
        make(folder / name, state)
    return folder


@pytest.fixture
def runs(three: Path, tmp_path: Path) -> Path:
    """Three runs of the test's own, which are written once and copied."""
    return shutil.copytree(three, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[RunWriter]:
    """A run that this process writes."""
    run = RunWriter.create(tmp_path / "live")
    run.log(1, 1, {"loss": 0.5, "learning_rate": 0.1})
    run.progress(1, 1, total_steps=10)
    run.flush()
    yield run
    run.close("finished")


def notifications(app: MonitorApp) -> list[str]:
    return [notification.message for notification in app._notifications]


def screen_text(app: MonitorApp) -> str:
    """What is on the screen, without styles."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


def table(app: MonitorApp) -> list[str]:
    """The lines of the table that is shown, without the headings."""
    rows = next(rows for rows in app.screen.query(Table) if rows.region.height)
    return [
        rows.render_line(y).text.strip()
        for y in range(rows.header_height, rows.header_height + len(rows.row_keys))
    ]


async def test_the_list_shows_runs_states_and_why(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        assert isinstance(app.screen, RunsScreen)
        text = screen_text(app)
        for word in ("✓ finished", "✗ crashed", "■ stopped", "valid/loss", "100 %", "0.0125", "3 runs"):
            assert word in text
        await press(app, pilot, "down")
        assert "it was crashed" in screen_text(app)
        await pilot.click(Table, offset=(5, 2), times=2)
        await app.wait_until_idle(PATIENCE)
        assert isinstance(app.screen, RunScreen)
        assert app.screen.view.label == "beta"


async def test_filter_by_words_and_by_expression(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        await press(app, pilot, "slash", *"alph")
        assert len(table(app)) == 1
        assert screen_text(app).splitlines()[-2].strip() == "alph"
        await press(app, pilot, "escape")
        assert len(table(app)) == 3
        await press(app, pilot, "slash", "slash", "left_square_bracket")
        assert app.screen.query_one(Input).has_class("wrong")
        assert screen_text(app).splitlines()[-2].startswith("/[")
        assert "invalid regular expression: unterminated character set" in screen_text(app)
        assert len(table(app)) == 3
        await press(app, pilot, *"ag", "right_square_bracket", "enter")
        assert len(table(app)) == 2 or len(table(app)) == 3
        await press(app, pilot, "slash")
        app.screen.query_one(Input).value = "/gamma-\\d+/"
        await app.wait_until_idle(PATIENCE)
        assert [line.split()[1] for line in table(app)] == ["gamma-10"]
        for text in ("/^gamma-[0-9]+$", "/10$", "/gam.*stopped", "/^(?!.*(finished|crashed))"):
            app.screen.query_one(Input).value = text
            await app.wait_until_idle(PATIENCE)
            assert [line.split()[1] for line in table(app)] == ["gamma-10"], text
        await press(app, pilot, "enter", "escape")
        assert len(table(app)) == 3
        app.screen.query_one(Input).value = "nothing like this"
        await app.wait_until_idle(PATIENCE)
        assert "No run matches the filter." in screen_text(app)


async def test_sorting_by_key_and_by_click(runs: Path) -> None:
    def names(app: MonitorApp) -> list[str]:
        return [line.split()[1] for line in table(app)]

    (runs / "odd").mkdir()
    (runs / "odd" / "run.db").write_bytes(b"nothing")
    async with opened(runs) as (app, pilot):
        assert names(app) == ["gamma-10", "beta", "alpha", "odd"]
        await press(app, pilot, "S")
        assert names(app) == ["alpha", "beta", "gamma-10", "odd"]
        await press(app, pilot, "s")
        assert names(app) == ["alpha", "beta", "gamma-10", "odd"]
        await press(app, pilot, "S")
        assert names(app) == ["odd", "gamma-10", "beta", "alpha"]
        for _ in range(11):  # all columns: every time it can be seen what it is sorted by
            await press(app, pilot, "s")
            assert "▲" in screen_text(app).splitlines()[2]
        column = screen_text(app).splitlines()[2].index("state")
        await pilot.click(Table, offset=(column, 0))
        await app.wait_until_idle(PATIENCE)
        assert names(app) == ["beta", "gamma-10", "alpha", "odd"]


async def test_sorting_takes_digits_that_are_no_numbers(tmp_path: Path) -> None:
    make(tmp_path / "exp-10²", steps=2)
    make(tmp_path / "exp-9", steps=2)
    async with opened(tmp_path) as (app, pilot):
        await press(app, pilot, "s")
        assert [line.split()[1] for line in table(app)] == ["exp-9", "exp-10²"]


async def test_marked_runs_are_compared(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        await press(app, pilot, "space", "c")
        assert isinstance(app.screen, RunsScreen)  # one is not enough, and that is said
        await press(app, pilot, "space")
        assert "◆" not in screen_text(app)
        await press(app, pilot, "space", "down", "space")
        assert "2 marked" in screen_text(app)
        await press(app, pilot, "c")
        assert isinstance(app.screen, CompareScreen)
        assert "beta" in screen_text(app)
        await press(app, pilot, "escape")
        assert isinstance(app.screen, RunsScreen)


async def test_a_run_opens_with_plots_and_every_pane_shows(runs: Path) -> None:
    expected = {
        "1": "loss",
        "2": "accuracy",
        "3": "CPU %",
        "4": "a warning about something",
        "5": "There are no checkpoints.",
        "6": "epoch",
        "7": "model.hidden",
        "8": "has not recorded a model summary",
        "9": "recorded",
        "K": "No kernel has been chosen.",
    }
    async with opened(runs) as (app, pilot):
        await press(app, pilot, "enter")
        assert isinstance(app.screen, RunScreen)
        assert [chart.view.title for chart in app.screen.query(Chart)] == ["loss", "accuracy"]
        assert [curve.label for curve in app.screen.query(Chart).first().view.curves] == ["train", "valid"]
        for key, word in expected.items():
            await press(app, pilot, key)
            assert word in screen_text(app), key
        await press(app, pilot, "1", "right_square_bracket")
        assert app.screen.current == 1
        await press(app, pilot, "left_square_bracket", "left_square_bracket")
        assert app.screen.current > 1
        await pilot.click("#tabs", offset=(2, 0))
        await app.wait_until_idle(PATIENCE)
        assert app.screen.current == 0
        await press(app, pilot, "escape")
        assert isinstance(app.screen, RunsScreen)


@pytest.mark.full
async def test_why_a_run_ended_is_shown_in_its_head(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run")
    run.log(7, 1, {"loss": float("nan")})
    run.event(
        "error", 7, error="NonFiniteError", message="the loss became nan", cause="nan", traceback="File x"
    )
    run.close("crashed", "NonFiniteError: the loss became nan")
    async with opened(tmp_path / "run") as (app, pilot):
        assert isinstance(app.screen, RunScreen)
        assert "not a number at step 7: NonFiniteError: the loss became nan" in screen_text(app)
        await press(app, pilot, "6", "down", "enter")
        assert isinstance(app.screen, TextScreen)
        assert "File x" in screen_text(app)
        await press(app, pilot, "escape")
        assert isinstance(app.screen, RunScreen)


async def test_events_are_filtered_and_the_newest_stays_in_sight(live: RunWriter) -> None:
    async with opened(live.folder) as (app, pilot):
        live.event("note", 1, text="remember this")
        await asyncio.to_thread(live.flush)
        await press(app, pilot, "6")
        await until(app, lambda: "remember this" in table(app)[0])
        live.event("learning_rate", 2, value=0.5)
        await asyncio.to_thread(live.flush)
        await until(app, lambda: len(table(app)) == 3)
        rows = next(rows for rows in app.screen.query(Table) if rows.region.height)
        assert (rows.cursor, "learning rate" in table(app)[0]) == (0, True)
        await press(app, pilot, "slash", *"note", "enter")
        assert len(table(app)) == 1
        await press(app, pilot, "slash", "escape")
        assert len(table(app)) == 3


async def test_plots_axis_log_smoothing_full_size_and_pages(tmp_path: Path) -> None:
    make(tmp_path / "run", **{f"metric{i}": 1.0 for i in range(12)})
    async with opened(tmp_path / "run") as (app, pilot):

        def views() -> list[Any]:
            return [chart.view for chart in app.screen.query(Chart)]

        assert {view.x for view in views()} == {"step"}
        await press(app, pilot, "x")
        assert {view.x for view in views()} == {"epoch"}
        assert views()[0].curves[0].xs[19] == 1.0
        await press(app, pilot, "x", "x", "y", "s")
        assert [(view.x, view.log_y, view.smoothing > 0) for view in views()] == [("step", True, True)] * len(
            views()
        )
        first = [view.title for view in views()]
        await press(app, pilot, "pagedown")
        assert [view.title for view in views()] != first
        await press(app, pilot, "pageup", "down", "f")
        assert [view.title for view in views()] == [first[1]]
        await press(app, pilot, "f")
        assert [view.title for view in views()] == first
        await press(app, pilot, "slash", *"metric1")
        assert [view.title for view in views()] == ["metric1", "metric10", "metric11"]
        await press(app, pilot, "enter", "escape")
        assert [view.title for view in views()] == first
        assert isinstance(app.screen, RunScreen)


@pytest.mark.full
async def test_zoom_and_crosshair_are_those_of_all_charts(tmp_path: Path) -> None:
    make(tmp_path / "run", steps=5000)
    async with opened(tmp_path / "run") as (app, pilot):
        loss, accuracy = app.screen.query(Chart)
        before = len(loss.view.curves[0].xs)
        await press(app, pilot, *["plus"] * 12)
        assert loss.view.range_x == accuracy.view.range_x
        assert loss.view.range_x is not None
        low, high = loss.view.range_x
        steps_seen = [x for x in loss.view.curves[0].xs if low <= x <= high]
        assert steps_seen == list(range(int(steps_seen[0]), int(steps_seen[-1]) + 1))  # every point there is
        assert min(loss.view.curves[0].xs) == 1
        assert max(loss.view.curves[0].xs) == 5000
        await press(app, pilot, "left")
        assert loss.view.crosshair is not None
        assert loss.view.crosshair == accuracy.view.crosshair
        await press(app, pilot, "0", "escape")
        assert loss.view.range_x is None
        assert len(loss.view.curves[0].xs) == before
        assert isinstance(app.screen, RunScreen)


async def test_a_chart_grows_with_its_run_and_stands_still_without(live: RunWriter) -> None:
    async with opened(live.folder) as (app, _):
        chart = app.screen.query(Chart).first()
        assert len(chart.view.curves[0].xs) == 1
        live.log(2, 1, {"loss": 0.25})
        live.progress(2, 1, total_steps=10)
        await asyncio.to_thread(live.flush)
        await until(app, lambda: len(chart.view.curves[0].xs) == 2)
        assert "2/10" in screen_text(app)
        view = chart.view
        await app.wait_until_idle(PATIENCE)
        assert chart.view is view


async def test_the_log_is_searched_and_followed(live: RunWriter) -> None:
    for number in range(200):
        live.log_line(f"line {number}")
    live.log_line("the needle")
    for number in range(200, 400):
        live.log_line(f"line {number}")
    live.flush()
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "4")
        assert "line 399" in screen_text(app)
        live.log_line("one more")
        await asyncio.to_thread(live.flush)
        await until(app, lambda: "one more" in screen_text(app))
        await press(app, pilot, "slash", *"NEEDLE", "enter")
        assert "the needle" in screen_text(app)
        assert "match 1 of 1" in screen_text(app)
        assert not app.screen.query_one(LogPane)._is_following
        live.log_line("does not scroll")
        await asyncio.to_thread(live.flush)
        await app.wait_until_idle(PATIENCE)
        assert "the needle" in screen_text(app)
        await press(app, pilot, "F")
        await until(app, lambda: "does not scroll" in screen_text(app))


async def test_a_search_counts_what_it_finds(live: RunWriter) -> None:
    for number in range(40):
        live.log_line(f"line {number}")
    live.flush()
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "4", "slash", *"line 1", "enter")
        assert "match 11 of 11" in screen_text(app)
        assert app.screen.query_one(Table).cursor == 19
        await press(app, pilot, "m")
        assert "match 10 of 11" in screen_text(app)
        await press(app, pilot, "M", "M")  # the second finds none, which is said
        assert "match 11 of 11" in screen_text(app)
        assert any("not found later" in message for message in notifications(app))
        await press(app, pilot, "down")
        assert "  11 matches" in screen_text(app)
        await press(app, pilot, *"mmmmmmmmmmm")
        assert "match 1 of 11" in screen_text(app)
        assert app.screen.query_one(Table).cursor == 1
        live.log_line("line 1 again")
        await asyncio.to_thread(live.flush)
        await until(app, lambda: "match 1 of 12" in screen_text(app))
        await press(app, pilot, "slash", "9")
        assert "of 12" not in screen_text(app)
        await press(app, pilot, "enter")
        assert "match 4 of 4" in screen_text(app)
        await press(app, pilot, "slash", "x", "enter")
        assert "0 matches" in screen_text(app)
        await press(app, pilot, "slash", "escape")
        assert "matches" not in screen_text(app)


@pytest.mark.full
async def test_only_what_is_new_is_made_for_the_log_and_the_events(
    live: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: calls.append(name) or original(*args))

    counted(log_pane, "_line_cells")
    counted(log_pane, "_event_row")
    live.log_line("x" * 20_000)
    live.log_line("second")
    live.event("note", 1, text="first")
    live.flush()
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "enter", "4")
        rows = app.screen.query_one(LogPane).query_one(Table)
        assert calls == ["_line_cells"] * 2
        assert max(len(text) for cells in rows._rows for part in cells for text, _ in part) == 1_000
        live.log_line("third")
        live.flush()
        await until(app, lambda: len(rows.row_keys) == 3)
        assert calls == ["_line_cells"] * 3
        calls.clear()
        await press(app, pilot, "6")
        shown = len(calls)
        reads: list[object] = []
        read = log_pane.EventsPane.read
        monkeypatch.setattr(log_pane.EventsPane, "read", lambda self: reads.append(1) or read(self))
        live.progress(5, 1, total_steps=10)
        live.flush()
        await until(app, lambda: "5/10" in screen_text(app))
        assert not reads
        live.event("note", 2, text="another")
        live.flush()
        await until(app, lambda: "another" in screen_text(app))
        assert len(calls) == shown + 1


def answer(run: RunWriter, inbox: Inbox, status: str, reason: str | None = None) -> Any:
    """What a training does with the next command."""
    command = inbox.poll()[0]
    run.event(
        "command", 1, id=command.id, command=command.kind, value=command.value, status=status, reason=reason
    )
    run.flush()
    inbox.mark_answered(command.id)
    return command


async def test_a_command_is_confirmed_sent_and_answered(live: RunWriter) -> None:
    inbox = Inbox(live.lease)
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "p")
        assert isinstance(app.screen, ConfirmScreen)
        await press(app, pilot, "escape")
        assert inbox.poll() == []
        await press(app, pilot, "p", "y")
        await until(app, lambda: "pause: sent" in screen_text(app))
        command = await asyncio.to_thread(answer, live, inbox, "done")
        assert command.kind == "pause"
        await until(app, lambda: "pause: done" in screen_text(app))
        await press(app, pilot, "l")
        await press(app, pilot, *"1e-4", "enter")
        await until(app, lambda: "learning rate" in screen_text(app) and "sent" in screen_text(app))
        command = await asyncio.to_thread(answer, live, inbox, "refused", "it is paused")
        assert (command.kind, command.value) == ("lr", 1e-4)
        await until(app, lambda: "refused, it is paused" in screen_text(app))
        assert notifications(app) == ["learning rate 1e-4: refused, it is paused"]


@pytest.mark.full
async def test_a_commands_status_goes_away_when_the_run_has_ended(
    live: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_SHOW_ANSWER_SECONDS", 1.0)
    inbox = Inbox(live.lease)
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "p", "y")
        await until(app, lambda: "pause: sent" in screen_text(app))
        await asyncio.to_thread(answer, live, inbox, "done")
        await asyncio.to_thread(live.close, "stopped", "enough")
        await until(app, lambda: "pause: done" in screen_text(app) and "■ stopped" in screen_text(app))
        await until(app, lambda: "pause: done" not in screen_text(app))


async def test_a_paused_run_offers_to_go_on(live: RunWriter) -> None:
    async with opened(live.folder) as (app, _):
        assert "p pause" in screen_text(app).splitlines()[-1]
        live.progress(1, 1, total_steps=10, activity="paused")
        await asyncio.to_thread(live.flush)
        await until(app, lambda: "p resume" in screen_text(app).splitlines()[-1])


async def test_stopping_needs_more_than_enter(live: RunWriter) -> None:
    inbox = Inbox(live.lease)
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "X", "enter")
        assert isinstance(app.screen, RunScreen)
        assert inbox.poll() == []
        await press(app, pilot, "X")
        await pilot.click("#yes")
        await until(app, lambda: "stop with a checkpoint: sent" in screen_text(app))
        assert [command.kind for command in inbox.poll()] == ["stop"]


async def test_keys_typed_at_once_go_to_the_window_that_the_first_one_opens(live: RunWriter) -> None:
    inbox = Inbox(live.lease)

    def type_at_once(app: MonitorApp, *keys: str) -> None:
        for key in keys:
            event = events.Key(key, key if len(key) == 1 else "." if key == "full_stop" else None)
            event.set_sender(app)
            app.post_message(event)

    async with opened(live.folder) as (app, _):
        type_at_once(app, "l", "0", "full_stop", "5", "enter")
        await until(app, lambda: "learning rate 0.5: sent" in screen_text(app))
        type_at_once(app, "n", *"pale", "enter")
        await until(app, lambda: "note pale: sent" in screen_text(app))
        assert [(command.kind, command.value) for command in inbox.poll()] == [("lr", 0.5), ("note", "pale")]


@pytest.mark.full
async def test_keys_wait_for_a_window_that_opens_slowly(
    live: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to a training that keeps every core busy: else they would do something on the screen behind it."""
    inbox = Inbox(live.lease)
    note = RunScreen.action_note

    async def slow(self: RunScreen) -> None:
        await asyncio.sleep(0.5)
        await note(self)

    monkeypatch.setattr(RunScreen, "action_note", slow)
    monkeypatch.setattr(app_module, "_CLOSED_TARGET_SECONDS", 0.05)
    async with opened(live.folder) as (app, _):
        for key in ("n", *"pale", "enter"):
            event = events.Key(key, key if len(key) == 1 else None)
            event.set_sender(app)
            app.post_message(event)
        await until(app, lambda: "note pale: sent" in screen_text(app))
        assert [command.value for command in inbox.poll()] == ["pale"]


@pytest.mark.full
async def test_what_is_typed_after_enter_is_no_part_of_the_answer(live: RunWriter) -> None:
    inbox = Inbox(live.lease)
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "n", *"pale", "6")
        field = app.screen.query_one(Input)
        for _ in range(2):  # enter, pressed twice
            field.post_message(Input.Submitted(field, "pale"))
        await until(app, lambda: "note pale: sent" in screen_text(app))
        assert isinstance(app.screen, RunScreen)
        assert [command.value for command in inbox.poll()] == ["pale"]


async def test_a_wrong_learning_rate_is_refused_and_one_far_off_asked_for_once_more(live: RunWriter) -> None:
    inbox = Inbox(live.lease)
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "l", *"fast", "enter")
        assert isinstance(app.screen, PromptScreen)
        assert "the learning rate is not valid" in screen_text(app)
        assert "a finite number above 0" in screen_text(app)
        await press(app, pilot, "escape", "l")
        assert "It is now 0.1." in screen_text(app).replace("│", "").replace("\n", "")
        await press(app, pilot, *"1e9", "enter")
        assert isinstance(app.screen, ConfirmScreen)
        assert "1e+10 times the current 0.1" in screen_text(app)
        await press(app, pilot, "enter")  # the button that has the focus cancels
        assert isinstance(app.screen, RunScreen)
        assert inbox.poll() == []
        await press(app, pilot, "l", *"1e9", "enter", "y")
        await until(app, lambda: "sent" in screen_text(app))
        assert [command.value for command in inbox.poll()] == [1e9]


async def test_a_learning_rate_set_by_hand_is_in_the_head(live: RunWriter) -> None:
    async with opened(live.folder, size=(80, 24)) as (app, _):
        assert "by hand" not in screen_text(app)
        live.event("learning_rate", 1, value=0.002)
        await asyncio.to_thread(live.flush)
        await until(app, lambda: "learning rate 0.002, set by hand" in screen_text(app))
        live.event("learning_rate", 1, value=None)
        await asyncio.to_thread(live.flush)
        await until(app, lambda: "learning rate 0.1 " in screen_text(app))
        assert "by hand" not in screen_text(app)


async def test_a_run_that_ended_takes_no_commands(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        await press(app, pilot, "enter")
        bar = screen_text(app).splitlines()[-1]
        assert "x axis" in bar
        assert not any(word in bar for word in ("pause", "stop", "checkpoint", "rate"))
        for key in ("p", "X", "w", "l"):
            await press(app, pilot, key)
            assert isinstance(app.screen, RunScreen), key
        assert any("Cannot send commands to" in message for message in notifications(app))


async def test_help_is_what_can_be_pressed(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        actions = {key.action for _, key in app.active_keys()}
        assert {key.action for key in (*LIST, *RUNS, *APP)} <= actions
        await press(app, pilot, "question_mark")
        assert isinstance(app.screen, HelpScreen)
        for key in RUNS:
            assert key.help in screen_text(app)
        await press(app, pilot, "escape", "enter")
        assert {key.action for key in CHART} <= {key.action for _, key in app.active_keys()}


@pytest.mark.full
async def test_a_long_help_says_how_much_of_it_is_out_of_sight(runs: Path) -> None:
    async with opened(runs, size=(80, 24)) as (app, pilot):
        await press(app, pilot, "enter", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        assert "more lines below: ↓ or page down   esc closes" in screen_text(app)
        await press(app, pilot, "end")
        assert "more line" not in screen_text(app)
        assert "The mouse works too" in screen_text(app)
        await press(app, pilot, "escape")
        await pilot.resize_terminal(120, 60)
        await press(app, pilot, "question_mark")
        assert "more line" not in screen_text(app)
        assert "esc closes" in screen_text(app)


@pytest.mark.full
async def test_every_key_of_every_table_has_its_action(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        await press(app, pilot, "enter")
        for pane in "123456789K":
            await press(app, pilot, pane)
            for node, key in app.active_keys():
                name = key.action.partition("(")[0].rpartition(".")[2]
                assert hasattr(node, f"action_{name}"), (node, key)


async def test_the_palette_finds_actions_and_panes(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        await press(app, pilot, "enter")
        titles = {command.title.partition(":")[0] for command in app.get_system_commands(app.screen)}
        assert {"Stop", "Pause", "Checkpoints", "Quit", "Smooth"} <= titles
        await pilot.press("ctrl+p")
        await pilot.pause(0.2)
        await pilot.press(*"checkpoints")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await until(app, lambda: "There are no checkpoints." in screen_text(app))
        await pilot.press("ctrl+p")
        await pilot.pause(0.2)
        await pilot.press(*"light")
        async with asyncio.timeout(PATIENCE):
            while "Dark/light: " not in screen_text(app):
                await pilot.pause(0.1)
        await pilot.press("enter")
        await until(app, lambda: app.theme == LIGHT.name)


async def test_a_terminal_of_any_size_shows_what_fits(runs: Path) -> None:
    async with opened(runs, size=(60, 20)) as (app, pilot):
        for size in ((40, 10), (3, 2), (100, 30)):
            await pilot.resize_terminal(*size)
            await press(app, pilot, "enter", *"123456789K", "escape")
        assert "gamma-10" in screen_text(app)
        assert notifications(app) == []


@pytest.mark.full
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_nothing_is_wider_than_the_screen(runs: Path, size: tuple[int, int]) -> None:
    async with opened(runs, size) as (app, pilot):
        for keys in ("down", "enter", *"123456789K"):
            await press(app, pilot, keys)
            lines = app.screen._compositor.render_strips()
            assert all(strip.cell_length == size[0] for strip in lines)
            assert "?" in lines[-1].text
            assert "quit" in lines[-1].text


async def test_new_deleted_and_damaged_runs_while_open(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        make(runs / "delta")
        shutil.rmtree(runs / "beta")
        (runs / "alpha" / "run.db").write_bytes(b"x" * 4096)
        await press(app, pilot, "f5")
        await until(app, lambda: "delta" in screen_text(app) and "! unreadable" in screen_text(app))
        await press(app, pilot, "f5")
        assert "beta" not in screen_text(app)


async def test_a_run_deleted_or_damaged_while_it_is_shown(runs: Path) -> None:
    async with opened(runs) as (app, pilot):
        await press(app, pilot, "enter")
        folder = app.screen.view.folder
        shutil.rmtree(folder)
        await until(app, lambda: "deleted" in screen_text(app))
        for key in "123456789K":
            await press(app, pilot, key)
        await press(app, pilot, "escape", "down", "enter")
        (app.screen.view.folder / "run.db").write_bytes(b"x" * 4096)
        await until(app, lambda: "unreadable" in screen_text(app))
        for key in "123456789K":
            await press(app, pilot, key)


async def test_an_unreadable_run_has_no_pane_that_says_otherwise(runs: Path) -> None:
    (runs / "odd").mkdir()
    (runs / "odd" / "run.db").write_bytes(b"x" * 4096)
    async with opened(runs) as (app, pilot):
        await press(app, pilot, "end", "enter")
        for key in "1245679":
            await press(app, pilot, key)
            assert "the run cannot be read" in screen_text(app), key


async def test_the_events_of_a_killed_training_end_with_that(tmp_path: Path) -> None:
    code = (
        "import os, sys; from burnt.store import RunWriter\n"
        "run = RunWriter.create(sys.argv[1]); run.log(1, 1, {'loss': 1.0}); run.flush(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False)
    async with opened(tmp_path / "run") as (app, pilot):
        await press(app, pilot, "6")
        assert "crashed" in table(app)[0]
        assert "ended without closing the run" in table(app)[0]
        assert "start" in table(app)[1]


async def test_an_empty_folder_waits_for_a_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        assert "No runs in" in screen_text(app)
        make(tmp_path / "first")
        await press(app, pilot, "f5")
        assert "first" in screen_text(app)


async def test_names_and_texts_cannot_steer_the_terminal(tmp_path: Path) -> None:
    run = RunWriter.create(
        tmp_path / "a[bold]b\x1b]0;b\x07", name="\x1b[31mred", config={"key\x07": "\x1b]0;title\x07"}
    )
    run.log(1, 1, {"lo\x1bss": 1.0}, split="va\x1blid")
    run.log(1, 1, {"lo\x1bss": 2.0})
    run.progress(1, 1, activity="\x1b[2Jtraining")
    run.log_line("\x1b[2J [link=x]gone")
    run.event("note", 1, text="\x1b[2J[/]")
    run.flush()
    with sqlite3.connect(run.folder / "run.db", isolation_level=None) as connection:
        connection.execute("UPDATE attempt SET host = 'h\x1b[5most'")
    connection.close()
    async with opened(tmp_path) as (app, pilot):
        for keys in (
            "down",
            "enter",
            *"123456789K",
            "1",
            "x",
            "escape",
            "slash",
            *"zz",
            "escape",
            "enter",
            "6",
        ):
            await press(app, pilot, keys)
            text = screen_text(app)
            assert "\x1b" not in text
            assert "\x07" not in text
        assert "[/]" in text
        run.close("crashed", "\x1b[2J [red]")
        await until(app, lambda: "[red]" in screen_text(app))
        assert "\x1b" not in screen_text(app)


@pytest.mark.full
async def test_events_and_tables_of_other_writers_may_be_odd(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run", config={"a": [1, {"b": None}], "c": {}})
    run.event("checkpoint", 1, path=None, values=[1])
    run.event("epoch", 1, epoch="x")
    run.event("learning_rate", value="x")
    for kind in ("stopping", "error", "command", "signal", "note", "end", "something else"):
        run.event(kind)
    run.record_table("model", [], [])
    run.system({})
    run.log_line("")
    run.log(1, None, {"": float("inf"), "loss": float("nan")}, split="")
    run.close("crashed", "")
    async with opened(tmp_path / "run") as (app, pilot):
        for keys in (*"123456789K", "6", "down", "enter", "escape", *"1xysf", "plus", "left"):
            await press(app, pilot, keys)
        assert "crashed" in screen_text(app)


async def test_numbers_that_are_none_are_shown_as_such(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "diverged")
    run.log(1, 1, {"loss": 0.5})
    (run.folder / "checkpoints" / "step-1").mkdir(parents=True)
    values = {"valid/loss": math.nan, "valid/top\x1b]0;x\x07": math.inf, "other": "a word"}
    run.event("checkpoint", 1, path="step-1", values=values)
    run.system({"cpu.percent": math.nan, "memory.used_bytes": math.inf, "gpu0\x1b[5m.watts": -math.inf})
    run.close("finished")
    async with opened(tmp_path) as (app, pilot):
        await press(app, pilot, "enter", "3")
        text = screen_text(app)
        assert all(part in text for part in ("CPU nan", "memory inf", "gpu0\\x1b[5m -inf"))
        await press(app, pilot, "5")
        text = screen_text(app)
        assert all(part in text for part in ("valid/loss nan", "valid/top\\x1b]0;x\\x07 inf", "a word"))
        assert "\x1b" not in text
        assert "★" not in text


@pytest.mark.full
async def test_a_checkpoint_tells_first_what_it_is_judged_by(live: RunWriter) -> None:
    (live.folder / "checkpoints" / "step-8").mkdir(parents=True)
    values = {"train/loss": 0.1, "train/accuracy": 0.2, "valid/accuracy": 0.3, "valid/loss": 0.4}
    live.event("checkpoint", 8, path="step-8", values=values, bytes=1)
    live.flush()
    async with opened(live.folder) as (app, pilot):
        await press(app, pilot, "5")
        assert "valid/loss 0.4000  valid/accuracy 0.3000  train/loss 0.1000" in table(app)[0]


def test_the_best_checkpoint_is_the_oldest_of_equals() -> None:
    def checkpoint(step: int, **values: Any) -> Checkpoint:
        return Checkpoint(f"step-{step}", step, 1, 0.0, {f"valid/{name}": v for name, v in values.items()})

    found = [checkpoint(1, loss="NaN"), checkpoint(2, loss=0.5), checkpoint(3, loss=0.5)]
    assert best_checkpoint(found) == (found[1], "valid/loss")
    found = [checkpoint(1, accuracy=0.5), checkpoint(2, accuracy=0.9), checkpoint(3, accuracy=0.9)]
    assert best_checkpoint(found) == (found[1], "valid/accuracy")
    found = [Checkpoint(f"step-{n}", n, 1, 0.0, {"b/loss": 1 / n, "a/loss": n}) for n in (1, 2)]
    assert best_checkpoint(found, {"ranked_by": "a/loss"}) == (found[0], "a/loss")
    assert best_checkpoint(found) == (found[1], "b/loss")


_ODD = {
    "progress": "UPDATE progress SET data = '[]'",
    "config": "UPDATE attempt SET config = '[1, 2]'",
    "event": "INSERT INTO event SELECT NULL, attempt, time, step, kind, '[3]' FROM event LIMIT 1",
    "time": "UPDATE event SET time = 1e20",
    "created": "UPDATE run SET created = 1e20",
    "log": "UPDATE log_line SET time = 1e20",
    "words": "UPDATE event SET data = 'no JSON'",
    "pid": "UPDATE attempt SET pid = -5, ended = NULL",
}


@pytest.mark.full
@pytest.mark.parametrize("what", [*_ODD, "all of it"])
async def test_odd_content_of_one_run_ends_neither_the_app_nor_a_snapshot(
    runs: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(runs / "beta" / "run.db", isolation_level=None) as connection:
        for statement in _ODD.values() if what == "all of it" else [_ODD[what]]:
            connection.execute(statement)
    connection.close()
    async with opened(runs) as (app, pilot):
        assert len(table(app)) == 3
        await press(app, pilot, "down", "enter", *"4567", "escape")
        assert app.is_running
        assert len(table(app)) == 3
    assert main(["monitor", "--once", str(runs)]) == 0
    assert "gamma-10" in capsys.readouterr().out
    assert main(["monitor", "--once", str(runs / "beta")]) == 0


async def test_what_cannot_be_shown_is_reported_and_the_rest_goes_on(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of the pane")

    def is_notified(app: MonitorApp, text: str) -> bool:
        return any(text in message for message in notifications(app))

    async with opened(runs) as (app, pilot):
        await press(app, pilot, "enter")
        for place in ("read", "_show"):
            with monkeypatch.context() as patch:
                patch.setattr(LogPane, place, broken)
                await press(app, pilot, "4")
                await until(app, lambda: is_notified(app, "of the pane"))
            await press(app, pilot, "escape", "down", "enter")
        with monkeypatch.context() as patch:
            patch.setattr(RunLibrary, "refresh", broken)
            await until(app, lambda: is_notified(app, "cannot read data: ZeroDivisionError"))
        await press(app, pilot, "6")
        assert app.is_running
    assert "Traceback" in caplog.text


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ((), RunScreen),
        (("question_mark",), HelpScreen),
        (("p",), ConfirmScreen),
        (("n", "a"), PromptScreen),
        (("l", *"1e9", "enter"), ConfirmScreen),
        (("6", "enter"), TextScreen),
        (("ctrl+p",), CommandPalette),
        (("4", "slash", "a"), RunScreen),
    ],
)
async def test_ctrl_c_goes_to_the_training_whatever_is_open(
    live: RunWriter, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...], shown: type[Any]
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(app_module.os, "kill", lambda pid, number: sent.append(number))
    async with opened(live.folder, training_pid=4321) as (app, pilot):
        await press(app, pilot, *keys)
        assert isinstance(app.screen, shown)
        await press(app, pilot, "ctrl+c")
        assert isinstance(app.screen, shown)
        await pilot.resize_terminal(60, 20)
        await app.wait_until_idle(PATIENCE)
        await press(app, pilot, "ctrl+c")
        assert sent == [signal.SIGINT] * 2


async def test_an_attached_monitor_begins_with_the_run(
    live: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.flush()
    monkeypatch.setattr(app_module.Refresher, "start", lambda self: None)  # nothing is read later on
    app = MonitorApp(RunLibrary([live.folder]), training_pid=4321)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, RunsScreen)


async def test_an_attached_monitor_closes_after_the_end(live: RunWriter) -> None:
    async with opened(live.folder, training_pid=os.getpid()) as (app, pilot):
        await asyncio.to_thread(live.close, "finished")
        await until(app, lambda: isinstance(app.screen, EndScreen) and "Press any key" in screen_text(app))
        await pilot.press("x")
        async with asyncio.timeout(PATIENCE):
            while app.is_running:
                await asyncio.sleep(0.01)
        assert app.return_code == 0


async def test_a_disk_that_hangs_does_not_hold_up_the_keys(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    hanging = threading.Event()
    release = threading.Event()
    refresh = RunLibrary.refresh

    def slow(self: RunLibrary, *, rescan: bool = False) -> bool:
        if hanging.is_set():
            release.wait(PATIENCE)
        return refresh(self, rescan=rescan)

    monkeypatch.setattr(RunLibrary, "refresh", slow)
    async with opened(runs) as (app, pilot):
        hanging.set()
        app.refresher.wake()
        await pilot.press("down", "enter")
        await pilot.pause(0.2)
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        hanging.clear()
        release.set()
