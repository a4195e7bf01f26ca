"""The pane with the machine's load, and the ranks of a run."""

from __future__ import annotations

from pathlib import Path

from burnt.monitor.screens.panes.system import SystemPane
from burnt.monitor.ui.table import Table
from burnt.store import RunWriter
from tests.monitor.driving import opened, press, text_of
from tests.store.test_ranks import folder as folder


async def test_the_monitor_shows_the_ranks(folder: Path) -> None:
    async with opened(folder, size=(80, 24)) as (app, pilot):
        await press(app, pilot, "enter", "3")
        shown = text_of(app.screen.query_one(SystemPane).query_one(Table)).splitlines()
        assert " ".join(shown[0].split()) == "rank state step ms own ms data wait rank wait GPU memory"
        assert [line.split()[:2] for line in shown[1:4]] == [
            ["0", "finished"],
            ["1", "finished"],
            ["2", "crashed"],
        ]
        assert [line.endswith("slowest") for line in shown[1:4]] == [False, True, False]
    RunWriter.create(folder.parent / "alone").close("finished")
    async with opened(folder.parent / "alone") as (app, pilot):
        await press(app, pilot, "enter", "3")
        assert not app.screen.query_one(SystemPane).query(Table)
