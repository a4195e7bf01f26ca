"""The snapshot in plain text and as data."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from burnt.monitor.snapshot_text import snapshot_data, snapshot_lines
from burnt.store import RunWriter


def make(folder: Path, end: str = "finished", reason: str | None = None) -> None:
    run = RunWriter.create(folder, config={"lr": 0.1})
    for step in range(1, 11):
        run.log(step, 1, {"loss": 1 / step, "accuracy": step / 10})
    run.log(11, 1, {"loss": math.nan})
    run.progress(11, 2, total_steps=20, total_epochs=4)
    run.event("note", 3, text="hello")
    run.log_line("a line of the log")
    run.close(end, reason)  # type: ignore[arg-type]


def test_several_runs_are_a_line_each_newest_first(tmp_path: Path) -> None:
    make(tmp_path / "old")
    make(tmp_path / "new", "crashed", "ValueError: no\nsecond line")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.db").write_bytes(b"nothing")
    head, first, second, third = snapshot_lines([tmp_path])
    assert head.split()[:3] == ["run", "state", "progress"]
    assert first.split()[:5] == ["new", "crashed", "epoch", "2/4", "55%"]
    assert first.endswith("ValueError: no")
    assert second.split()[:2] == ["old", "finished"]
    assert "nan" in second
    assert "0.1000" in second
    assert third.split()[:2] == ["odd", "unreadable"]


def test_a_single_run_shows_its_numbers_events_and_log(tmp_path: Path) -> None:
    make(tmp_path / "run")
    text = "\n".join(snapshot_lines([tmp_path / "run"]))
    for word in ("train/loss", "train/accuracy", "1.0000", "hello", "a line of the log", "finished"):
        assert word in text
    assert all(line.isprintable() for line in text.splitlines())


def test_a_run_that_goes_on_has_an_activity_and_an_end_in_sight(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run")
    run.progress(5, 1, total_steps=10, activity="validating")
    run.flush()
    [document] = snapshot_data([tmp_path])
    assert (document["state"], document["activity"]) == ("running", "validating")
    assert document["progress"]["fraction"] == 0.5
    assert document["progress"]["eta"] > 0
    assert "running (validating)" in snapshot_lines([tmp_path])[1]
    run.close("finished")


def test_the_state_is_json_and_says_what_cannot_be_read(tmp_path: Path) -> None:
    make(tmp_path / "run", "stopped", "by hand")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.db").write_bytes(b"nothing")
    found = {Path(document["folder"]).name: document for document in snapshot_data([tmp_path])}
    assert (found["run"]["state"], found["run"]["reason"]) == ("stopped", "by hand")
    last = {entry["name"]: entry for entry in found["run"]["last"]}
    assert (last["accuracy"]["value"], last["accuracy"]["step"]) == (1.0, 10)
    assert math.isnan(last["loss"]["value"])
    assert found["run"]["best"]["value"] == 0.1
    assert found["odd"]["state"] == "unreadable"
    assert "run.db" in found["odd"]["error"]


def test_an_empty_folder_has_no_runs(tmp_path: Path) -> None:
    assert snapshot_lines([tmp_path]) == [f"no runs in {tmp_path}"]
    assert snapshot_data([tmp_path]) == []


def test_a_snapshot_needs_neither_textual_nor_torch(tmp_path: Path) -> None:
    make(tmp_path / "run")
    code = (
        "import sys; sys.modules['textual'] = sys.modules['torch'] = None;"
        "from burnt.cli import main; raise SystemExit(main(sys.argv[1:]))"
    )
    for option in ("--once", "--json"):
        done = subprocess.run(
            [sys.executable, "-c", code, "monitor", str(tmp_path), option], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "finished" in done.stdout
    assert json.loads(done.stdout)[0]["state"] == "finished"
    app = subprocess.run(
        [sys.executable, "-c", code, "monitor", str(tmp_path), "--svg", str(tmp_path / "x.svg")],
        capture_output=True,
        text=True,
    )
    assert app.returncode == 1
    assert 'pip install "burnt[tui]"' in app.stderr
    assert "Traceback" not in app.stderr


@pytest.mark.parametrize("name", ["\x1b[31m", "a\nb", "ü"])
def test_names_are_one_printable_line(tmp_path: Path, name: str) -> None:
    make(tmp_path / name)
    found = snapshot_lines([tmp_path])
    assert found[1].isprintable()
    assert found[1].split()[1] == "finished"


def test_events_are_described_in_words_with_rounded_values(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run")
    run.event("stopping", 8, waited=1)
    run.event(
        "checkpoint", 8, path="step-00000008", values={"valid/loss": 0.29855883041083864}, bytes=1231200
    )
    run.event("command", 9, command="lr", value=0.001, status="done", reason=None, sender="me", id="x")
    run.event("learning_rate", 9, value=None)
    run.event("error", 9, error="ValueError", message="no\n  hint\x1b[31m", traceback="long")
    run.close("crashed", "ValueError: no")
    text = "\n".join(snapshot_lines([tmp_path / "run"]))
    for words in (
        "checkpoint     step-00000008  valid/loss 0.2986  1.2 MiB",
        "command        lr 0.0010: done",
        "learning rate  follows the schedule",
        "error          ValueError: no; hint\\x1b[31m",
        "end            crashed: ValueError: no",
    ):
        assert words in text
    assert "stopping" not in text


def test_nothing_that_a_run_says_steers_the_terminal_and_columns_stay_in_line(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "数字\x1b]0;x\x07")
    run.log(1, 1, {"lo\x1bss": 0.5, "損失": 0.25})
    run.event("no\x1bte", 1, text="\x1b[2J")
    run.log_line("\x1b[2J", "le\x1bvel")
    run.close("crashed", "\x1b[2J")
    found = snapshot_lines([tmp_path])
    assert all(line.isprintable() for line in found)
    metrics = [line for line in found if line.startswith(("metric  ", "train/"))]
    assert len(metrics) == 3
    assert len({cell_len(line) for line in metrics}) == 1
