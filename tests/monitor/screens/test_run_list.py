"""The list of runs: its columns, search, tags and removal, and what is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")

from textual.widgets import Input

from burnt.monitor.app import MonitorApp
from burnt.monitor.data.preferences import ListPreferences, Preferences
from burnt.monitor.data.runs import RunView
from burnt.monitor.screens.list_columns import (
    ChooseColumnsScreen,
    automatic_columns,
    candidates,
    headings,
    sort_value,
)
from burnt.monitor.screens.run_list import RunsScreen
from burnt.monitor.ui.dialogs import ConfirmScreen, PromptScreen
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.table import Table
from burnt.store import RunWriter
from burnt.store.tags import add_note, change_tags, read_tags
from tests.monitor.driving import opened, press, text_of, until

SIZE = (150, 24)


def make(
    root: Path, name: str, lr: Any = 0.1, loss: float = 1.0, state: str = "finished", **top: Any
) -> None:
    config = {"config": {"lr": lr, "model": {"hidden": 64}}, "seed": 7, **top}
    run = RunWriter.create(root / name, config=config)
    run.log(1, 1, {"loss": loss}, "train")
    run.log(1, 1, {"loss": loss}, "valid")
    run.log(1, 1, {"loss": loss / 2}, "shifted")
    run.progress(1, 1, total_steps=1)
    run.close(state)  # type: ignore[arg-type]


def lines(app: MonitorApp, id: str = "#runs") -> list[list[str]]:
    table = app.screen_stack[1].query_one(id, Table)
    return [table.render_line(y).text.split() for y in range(len(table.row_keys) + 1)]


def names(app: MonitorApp) -> list[str]:
    return [line[1] for line in lines(app)[1:]]


async def test_settings_are_columns_that_are_chosen_sorted_and_remembered(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", "auto"), ("c", 0.02), ("d", 1e-5)):
        make(tmp_path / "runs", name, lr)
    remembered = tmp_path / "state" / "monitor.json"
    async with opened(tmp_path / "runs", SIZE, preferences=Preferences(remembered)) as (app, pilot):
        assert "lr" in lines(app)[0]  # as it differs
        assert "hidden" not in lines(app)[0]
        await press(app, pilot, "o", "slash", *"hidden", "enter", "space", "escape")
        assert lines(app)[0][-1] == "hidden"
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        screen._sort_by("setting:config.lr", False)
        assert names(app) == ["d", "c", "a", "b"]  # numbers before texts
        await press(app, pilot, "S")
        assert names(app) == ["b", "a", "c", "d"]
    async with opened(tmp_path / "runs", SIZE, preferences=Preferences(remembered)) as (app, pilot):
        assert lines(app)[0][-1] == "hidden"
        assert names(app) == ["b", "a", "c", "d"]
        await press(app, pilot, "o", "r", "escape")
        assert "hidden" not in lines(app)[0]


async def test_columns_move_and_hide(tmp_path: Path) -> None:
    make(tmp_path, "a", 1)
    make(tmp_path, "b", 2)
    async with opened(tmp_path, SIZE) as (app, pilot):
        before = lines(app)[0]
        await press(app, pilot, "o", "greater_than_sign", "space")
        assert isinstance(app.screen, ChooseColumnsScreen)
        assert "progress" not in lines(app)[0] or "state" not in lines(app)[0]
        await press(app, pilot, "r", "g", "greater_than_sign", "escape")
        after = lines(app)[0]
        assert after[1:3] == before[2:0:-1]
        assert sorted(after) == sorted(before)


@pytest.mark.parametrize(
    "content",
    ["", "[", "[]", '{"version": 1, "theme": 4}', '{"lists": {"x": {"sort": 5}}}', '{"version": 9}', "\xe9"],
)
def test_what_was_remembered_badly_is_forgotten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "monitor.json"
    path.write_text(content, encoding="latin-1")
    preferences = Preferences(path)
    assert (preferences.theme, preferences.list_of([tmp_path])) == (None, ListPreferences())
    preferences.set_theme("light")
    shown = ListPreferences(("a",), "a", True)
    preferences.set_list([tmp_path], shown)
    again = Preferences(path)
    assert (again.theme, again.list_of([tmp_path])) == ("light", shown)


async def test_how_a_run_ended_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    ends = {
        "early": "stopped early: valid/loss has not improved on 0.5 for 2 epochs",
        "by-hand": "stopped by x",
    }
    for name, reason in ends.items():
        run = RunWriter.create(tmp_path / name, config={"ranked_by": "valid/accuracy"})
        run.log(3, 1, {"loss": float("nan") if name == "by-hand" else 0.5, "accuracy": 0.25}, "valid")
        run.progress(3, 1, total_steps=5)
        run.close("stopped", reason)
    async with opened(tmp_path, (130, 24)) as (app, pilot):
        rows = {line[1]: line for line in lines(app)}
        assert rows["early"][2:5] == ["✓", "stopped", "early"]
        assert "%" not in rows["early"]
        assert rows["by-hand"][2:5] == ["■", "stopped", "!"]
        assert "60" in rows["by-hand"]
        assert "valid/accuracy" in lines(app)[0]
        assert "0.2500" in rows["early"]
        await press(app, pilot, "end")
        assert ends["early"] in text_of(app.screen.query_one("#about"))


async def test_the_filter_is_the_search(tmp_path: Path) -> None:
    for name, lr, loss in (("a", 0.1, 1.0), ("b", 0.2, 0.5), ("c", 0.3, 0.25)):
        make(tmp_path, name, lr, loss, "crashed" if name == "a" else "finished")
    change_tags(tmp_path / "b", add=["baseline"])
    async with opened(tmp_path, SIZE) as (app, pilot):
        await press(app, pilot, "slash")
        field = app.screen.query_one(FilterInput)
        for query, found in (
            ("lr>0.15", ["c", "b"]),
            ("lr>0.15 -tag:baseline", ["c"]),
            ("state:crashed,finished valid/loss>0.4", ["b", "a"]),
            ("best:shifted/loss<0.2", ["c"]),
            ("tag:base*", ["b"]),
        ):
            field.value = query
            await app.wait_until_idle(30)
            assert names(app) == found, query
        field.value = "lr>x"
        await app.wait_until_idle(30)
        assert names(app) == ["b"]  # of the last valid one
        assert "character 4: > compares with a number; expected a number" in field.render_line(0).text
        field.value = "loss<0.3"
        await app.wait_until_idle(30)
        assert names(app) == []
        assert "no run has loss: did you mean valid/loss?" in field.render_line(0).text


async def test_tags_are_added_to_marked_runs_and_removed(tmp_path: Path) -> None:
    make(tmp_path, "a")
    make(tmp_path, "b")
    async with opened(tmp_path, SIZE) as (app, pilot):
        await press(app, pilot, "space", "down", "space", "plus", *"no/tag", "enter")
        assert isinstance(app.screen, PromptScreen)
        assert read_tags(tmp_path / "a") == ()
        app.screen.query_one(Input).value = "baseline paper"
        await press(app, pilot, "enter")
        await until(app, lambda: "tags" in lines(app)[0])
        assert [read_tags(tmp_path / name) for name in "ab"] == [("baseline", "paper")] * 2
        await press(app, pilot, "escape", "minus", *"paper", "enter")  # of the one under the cursor
        await until(app, lambda: read_tags(tmp_path / "a") == ("baseline",))
        assert read_tags(tmp_path / "b") == ("baseline", "paper")


async def test_runs_are_removed_after_a_question(tmp_path: Path) -> None:
    for name in "abc":
        make(tmp_path, name)
    async with opened(tmp_path, SIZE) as (app, pilot):
        await press(app, pilot, "space", "down", "space", "D")
        await until(app, lambda: isinstance(app.screen, ConfirmScreen))
        await press(app, pilot, "enter")  # the cancel button has the focus
        assert len(names(app)) == 3
        await press(app, pilot, "D")
        await until(app, lambda: isinstance(app.screen, ConfirmScreen))
        await press(app, pilot, "y")
        await until(app, lambda: names(app) == ["a"])
        assert [path.name for path in tmp_path.iterdir()] == ["a"]


async def test_a_live_run_is_not_removed(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "live") as run:
        run.flush()
        async with opened(tmp_path, SIZE) as (app, pilot):
            await press(app, pilot, "D")
            await until(app, lambda: bool(app._notifications))
            (notification,) = app._notifications
            assert "is running and is not removed" in notification.message
            assert len(app.screen_stack) == 2


async def test_a_fork_shows_its_parent(tmp_path: Path) -> None:
    make(tmp_path, "digits")
    make(tmp_path, "digits-b", fork={"folder": "../digits", "step": 120})
    make(tmp_path, "digits-c", fork={"folder": "../gone", "step": 3})
    async with opened(tmp_path, (180, 24)) as (app, _):
        texts = [" ".join(line) for line in lines(app)]
        assert "digits-c fork of gone@3 (missing)" in texts[1]
        assert "digits-b fork of digits@120" in texts[2]
        assert "fork" not in texts[3]


async def test_notes_of_ended_runs_are_events(tmp_path: Path) -> None:
    make(tmp_path, "a")
    add_note(tmp_path / "a", "from a shell", 1)
    async with opened(tmp_path, SIZE) as (app, pilot):
        await press(app, pilot, "enter", "6", "n", *"later", "enter")
        table = app.screen.query_one("EventsPane Table", Table)

        def texts() -> str:
            return "\n".join(table.render_line(y).text for y in range(table.size.height))

        await until(app, lambda: "later" in texts())
        assert "from a shell" in texts()


async def test_keys_and_values_of_settings_cannot_steer_the_terminal(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        make(tmp_path, name, **{"evil\x1b[2J": f"\x1b[31m{number}"})
    async with opened(tmp_path, SIZE) as (app, pilot):
        await press(app, pilot, "o")
        text = "".join(strip.text for strip in app.screen._compositor.render_strips())
        assert "\x1b" not in text
        assert "evil" in "".join(lines(app)[0])


def test_which_columns_there_are(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        own = {"lr": lr, "folder": name, "resume": name == "a"}
        make(tmp_path, name, config=own, extra={"model": {"hidden": name}}, long=name * 40)
    views = [RunView(tmp_path / name) for name in "ab"]
    for view in views:
        view.refresh()
    found = {one.key: one.kind for one in candidates(views)}
    assert found["setting:config.lr"] == found["setting:long"] == "differs"
    assert found["setting:seed"] == "same in all"
    assert found["metric:shifted/loss"] == "metric"
    assert automatic_columns(views) == ["setting:config.lr", "setting:extra.model.hidden"]
    keys = [
        "setting:config.lr",
        "setting:config.model.hidden",
        "setting:extra.model.hidden",
        "metric:valid/loss",
    ]
    assert headings(keys, views) == ["lr", "config.model.hidden", "extra.model.hidden", "valid/loss"]
    assert sort_value(views[0], "metric:shifted/loss") == (0, 0.5)
    assert sort_value(views[0], "setting:nothing") != sort_value(views[0], "setting:nothing")  # NaN
