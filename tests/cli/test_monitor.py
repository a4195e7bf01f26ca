"""`burnt monitor` from the shell."""

from __future__ import annotations

import errno
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


def test_into_a_pipe_goes_a_snapshot_with_a_line_that_says_so(runs: Path) -> None:
    done = monitor(runs)
    assert done.returncode == 0
    assert "digits" in done.stdout
    assert "the output is not a terminal: this is a snapshot" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_dumb_terminal_gets_no_escape_codes(runs: Path, term: str) -> None:
    output = in_terminal("-m", "burnt", "monitor", str(runs), stdin=True, TERM=term)
    assert "digits" in output
    assert "TERM describes" in output
    assert "\x1b" not in output


def test_a_damaged_run_is_a_line_and_no_traceback(runs: Path) -> None:
    (runs / "bad").mkdir()
    (runs / "bad" / "run.db").write_bytes(b"damaged")
    for folder in (runs, runs / "bad"):
        done = monitor(folder, "--once")
        assert done.returncode == 0
        assert "unreadable" in done.stdout
        assert "the run's database is damaged" in done.stdout
        assert done.stderr == ""


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


def test_a_picture_that_cannot_be_written_is_an_error(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("textual")
    done = monitor(runs, "--svg", tmp_path / "no" / "x.svg")
    assert done.returncode == 1
    assert "the screenshot cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_monitor_takes_the_lowest_priority(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("textual")
    code = (
        "import os, sys; from burnt.cli import main; main(sys.argv[1:]);"
        "print(os.getpriority(os.PRIO_PROCESS, 0), [m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "monitor", str(runs), "--svg", str(tmp_path / "x.svg")],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "19 []", done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such"], "there is no folder 'no-such'"),
        ([".", "--fps", "1000"], "update rate is out of range"),
        ([".", "--svg", "x.svg", "--size", "big"], "size of the screenshot is invalid"),
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
