"""The panel next to a run's plots: what it shows, what it leaves out, and when it is there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("textual")

from burnt.monitor.data.preferences import Preferences
from burnt.monitor.screens.panel import MIN_SCREEN_WIDTH, Panel, fit_sections
from burnt.store import RunWriter
from tests.monitor.driving import opened, press, text_of, until

CONFIG = {
    "config": {
        "lr": 0.003,
        "model": {"hidden": 32},
        "folder": "runs/a",
        **{f"option_{i}": i for i in range(40)},
    },
    "optimizer": "AdamW(weight_decay=0.01)",
    "ranked_by": "valid/accuracy",
}


def running(folder: Path) -> RunWriter:
    """A run that was resumed, with 32 metrics of which one is not finite."""
    RunWriter.create(folder, config=CONFIG).close("stopped")
    run = RunWriter.create(folder, config=CONFIG, resume=True, resumed_from_step=0)
    for step, loss in ((10, 0.25), (20, math.nan)):
        run.log(step, 2, {"loss": loss, "accuracy": step / 40, "learning_rate": 0.1}, "valid")
        run.log(step, 2, {f"metric_{i}": i for i in range(30)}, "train")
    run.system(
        {"cpu.percent": 47.0, "process.cpu_percent": 98.0, "memory.used_bytes": 2**31, "gpu0.percent": 87.0}
    )
    run.progress(20, 2, total_steps=80, total_epochs=8, activity="validating")
    run.flush(30)
    return run


def shown(panel: Panel) -> list[list[str]]:
    return [line.split() for line in text_of(panel.query_one("Static")).splitlines()]


async def test_a_run_at_a_glance(tmp_path: Path) -> None:
    with running(tmp_path):
        async with opened(tmp_path, (MIN_SCREEN_WIDTH, 30)) as (app, pilot):
            panel = app.screen.query_one(Panel)
            await until(app, lambda: {"attempt", "hidden"} <= {line[0] for line in shown(panel) if line})
            lines = shown(panel)
            assert lines[0][0] == "progress"
            assert lines[0][-2:] == ["25", "%"]
            facts = {line[0]: line[1:] for line in lines if line}
            assert facts["epoch"] == ["2/8"]
            assert facts["step"] == ["20/80"]
            assert facts["activity"] == ["validating"]
            assert facts["attempt"] == ["2,", "from", "step", "0"]
            assert "eta" in facts
            assert facts["values"] == ["last", "best"]
            assert facts["valid/loss"] == ["nan", "0.2500"]
            assert facts["valid/accuracy"] == ["0.5000", "0.5000"]
            assert facts["CPU"] == ["47", "%,", "process", "98", "%"]
            assert facts["gpu0"] == ["87", "%"]
            assert facts["lr"] == ["0.003"]
            assert facts["hidden"] == ["32"]
            assert "learning_rate" not in " ".join(facts)
            assert "folder" not in facts
            more = next(int(line[0]) for line in lines if line[1:] == ["more", "in", "2", "Numbers"])
            assert more + sum("/" in line[0] for line in lines if line) == 32
            assert lines[-1][1:] == ["more", "in", "7", "Config"]
            assert len(lines) == panel.size.height
            await pilot.resize_terminal(180, 100)
            await until(app, lambda: "optimizer" in {line[0] for line in shown(panel) if line})
            assert "more" not in {word for line in shown(panel) for word in line}


async def test_when_the_panel_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = tmp_path / "monitor.json"
    monkeypatch.chdir(tmp_path)  # a long path would leave no room for the step
    with running(Path("run")):
        async with opened(Path("run"), (MIN_SCREEN_WIDTH, 24), preferences=Preferences(remembered)) as (
            app,
            pilot,
        ):
            panel, title = app.screen.query_one(Panel), app.screen.query_one("#title")
            assert panel.display
            assert "step" not in text_of(title)
            await press(app, pilot, "2")
            assert not panel.display  # the table takes the width
            assert "step 20/80" in text_of(title)
            await press(app, pilot, "1")
            assert panel.display
            await pilot.resize_terminal(MIN_SCREEN_WIDTH - 1, 24)
            await until(app, lambda: not panel.display)
            assert "step 20/80" in text_of(title)
            await press(app, pilot, "i")
            assert "from 120 columns" in next(iter(app._notifications)).message
            await pilot.resize_terminal(MIN_SCREEN_WIDTH, 24)
            await until(app, lambda: panel.display)
            await press(app, pilot, "i")
            assert not panel.display
        async with opened(tmp_path / "run", (150, 24), preferences=Preferences(remembered)) as (app, pilot):
            assert not app.screen.query_one(Panel).display
            await press(app, pilot, "i")
            assert app.screen.query_one(Panel).display


@pytest.mark.parametrize("height", range(1, 60))
def test_sections_fill_the_height(height: int) -> None:
    sizes = [5, 30, 4, 40]
    counts = fit_sections(sizes, height)
    num_shown = sum(count > 0 for count in counts)
    used = sum(counts) + 2 * num_shown - 1
    assert counts[0] == sizes[0]
    assert all(counts[:num_shown])
    assert used <= max(height, 6)
    assert used == height or num_shown < 4
