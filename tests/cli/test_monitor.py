"""`burnt monitor` from the shell."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from burnt.store import RunWriter
from tests.cli.commands import in_terminal, printed, refused
from tests.fixtures import Capture, Patch

COMMAND = [sys.executable, "-m", "burnt", "monitor"]


def monitor(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run = RunWriter.create(tmp_path / "runs" / "digits")
    run.log(1, 1, {"loss": 0.5})
    run.close("finished")
    return tmp_path / "runs"


def write(folder: Path, end: str = "finished", reason: str | None = None) -> None:
    run = RunWriter.create(folder, config={"lr": 0.1})
    for step in range(1, 11):
        run.log(step, 1, {"loss": 1 / step, "accuracy": step / 10})
    run.log(11, 1, {"loss": float("nan")})
    run.progress(11, 2, total_steps=20, total_epochs=4)
    run.close(end, reason)  # type: ignore[arg-type]


def test_several_runs_are_a_line_each_the_newest_first(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path / "old")
    write(tmp_path / "new", "crashed", "ValueError: no\nsecond line")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.db").write_bytes(b"nothing")
    head, first, second, third = printed(capsys, "monitor", str(tmp_path), "--once").splitlines()
    assert head.split()[:3] == ["run", "state", "progress"]
    assert first.split()[1:5] == ["crashed", "epoch", "2/4", "55%"]
    assert first.endswith("ValueError: no")
    assert second.split()[:2] == [f"{tmp_path}/old", "finished"]
    assert "nan" in second
    assert "0.1000" in second
    assert third.split()[:2] == [f"{tmp_path}/odd", "unreadable"]
    found = json.loads(printed(capsys, "monitor", str(tmp_path), "--json"))
    assert [run["state"] for run in found] == ["crashed", "finished", "unreadable"]
    last = {entry["name"]: entry for entry in found[1]["last"]}
    assert (last["accuracy"]["value"], last["accuracy"]["step"]) == (1.0, 10)
    assert last["loss"]["value"] == "NaN"
    assert found[1]["best"]["value"] == 0.1
    assert "run.db" in found[2]["error"]


def test_a_run_that_goes_on_has_an_activity_and_an_end_in_sight(tmp_path: Path, capsys: Capture) -> None:
    for name in ("run", "other"):
        run = RunWriter.create(tmp_path / name)
        run.progress(5, 1, total_steps=10, activity="validating")
        run.flush()
    document, _ = json.loads(printed(capsys, "monitor", str(tmp_path), "--json"))
    assert (document["state"], document["activity"]) == ("running", "validating")
    assert document["progress"]["fraction"] == 0.5
    assert document["progress"]["eta"] > 0
    assert "running (validating)" in printed(capsys, "monitor", str(tmp_path), "--once")


def test_a_snapshot_of_a_single_run_is_what_runs_show_prints(tmp_path: Path, capsys: Capture) -> None:
    run = RunWriter.create(tmp_path / "run")
    run.event("stopping", 8, waited=1)
    values = {"valid/loss": 0.29855883041083864}
    run.event("checkpoint", 8, path="step-00000008", values=values, bytes=1231200)
    run.event("command", 9, command="lr", value=0.001, status="done", reason=None, sender="me", id="x")
    run.event("learning_rate", 9, value=None)
    run.event("error", 9, error="ValueError", message="no\n  hint\x1b[31m", traceback="long")
    run.log_line("a line of the log")
    run.close("crashed", "ValueError: no")
    text = printed(capsys, "monitor", str(tmp_path), "--once")
    for words in (
        "checkpoint     step-00000008  valid/loss 0.2986  1.2 MiB",
        "command        lr 0.0010: done",
        "learning rate  follows the schedule",
        "error          ValueError: no; hint\\x1b[31m",
        "end            crashed: ValueError: no",
        "a line of the log",
    ):
        assert words in text
    assert "stopping" not in text
    assert text == printed(capsys, "runs", "show", str(tmp_path / "run"))


def test_an_empty_folder_has_no_runs(tmp_path: Path, capsys: Capture) -> None:
    assert f"no runs in {tmp_path}" in printed(capsys, "monitor", str(tmp_path), "--once")
    assert json.loads(printed(capsys, "monitor", str(tmp_path), "--json")) == []


def test_a_snapshot_needs_neither_textual_nor_torch(runs: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['textual'] = sys.modules['torch'] = None;"
        "from burnt.cli import main; folder, file = sys.argv[1:];"
        "print(main(['monitor', folder, '--once']), main(['monitor', folder, '--svg', file]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(runs), str(tmp_path / "x.svg")], capture_output=True, text=True
    )
    assert done.stdout.endswith("\n0 1\n"), done.stderr
    assert "finished" in done.stdout
    assert 'pip install "burnt[tui]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_into_a_pipe_goes_a_snapshot_with_a_line_that_says_so(runs: Path, capsys: Capture) -> None:
    text = printed(capsys, "monitor", str(runs))
    assert "digits" in text
    assert "the output is not a terminal: this is a snapshot" in text
    assert "\x1b" not in text


@pytest.mark.sample(1)
@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_dumb_terminal_gets_no_escape_codes(runs: Path, term: str) -> None:
    output = in_terminal("-m", "burnt", "monitor", str(runs), stdin=True, TERM=term)
    assert "digits" in output
    assert "TERM describes" in output
    assert "\x1b" not in output


def test_a_damaged_run_is_a_line_and_no_traceback(runs: Path, capsys: Capture) -> None:
    (runs / "bad").mkdir()
    (runs / "bad" / "run.db").write_bytes(b"damaged")
    for folder in (runs, runs / "bad"):
        text = printed(capsys, "monitor", str(folder), "--once")
        assert "unreadable" in text
        assert "the run's database is damaged" in text


@pytest.mark.full
def test_a_picture_is_svg(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("textual")
    file = tmp_path / "screen.svg"
    done = monitor(runs / "digits", "--svg", file, "--size", "100x30")
    assert done.returncode == 0, done.stderr
    text = "".join(ElementTree.parse(file).getroot().itertext()).replace("\xa0", " ")
    assert "finished" in text
    assert "loss" in text
    done = monitor(runs, "--svg", file, "--size", "100x12")
    assert done.returncode == 0, done.stderr
    text = "".join(ElementTree.parse(file).getroot().itertext()).replace("\xa0", " ")
    assert "finished" in text


def test_the_monitor_lowers_its_priority_and_tells_of_a_picture_it_cannot_write(
    runs: Path, tmp_path: Path
) -> None:
    pytest.importorskip("textual")
    code = (
        "import os, sys; from burnt.cli import main; print(main(sys.argv[1:]),"
        "os.getpriority(os.PRIO_PROCESS, 0), [m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "monitor", str(runs), "--svg", str(tmp_path / "no" / "x.svg")],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == f"1 {min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)} []"
    assert "the screenshot cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such"], "there is no folder 'no-such'"),
        ([".", "--fps", "1000"], "--fps is invalid"),
        ([".", "--svg", "x.svg", "--size", "big"], "--size is invalid"),
        ([".", "--svg", "x.svg", "--once"], "--svg cannot be combined with --once"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], message: str, capsys: Capture) -> None:
    assert message in refused(capsys, "monitor", *words)


def test_a_folder_that_cannot_be_read_does_not_seem_empty(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    scandir = os.scandir

    def refuse(path: Any = ".") -> Any:  # permissions do not hold for a test that root runs
        if os.fspath(path) == str(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    message = refused(capsys, "monitor", str(tmp_path), "--once")
    assert f"the folder '{tmp_path}' cannot be read" in message
    assert "Permission denied" in message


def test_a_mistyped_folder_is_guessed(runs: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(runs.parent)
    assert "did you mean runs?" in refused(capsys, "monitor", "rusn")


def test_a_name_is_looked_for_as_ctl_does(runs: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(runs.parent)
    assert "finished" in printed(capsys, "monitor", "digits", "--once")


def test_a_file_is_not_guessed(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").touch()
    output = refused(capsys, "monitor", "README.md")
    assert "a file" in output
    assert "did you mean" not in output
