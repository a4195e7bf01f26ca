"""`scripts/quickstart` as a new user runs it, in an environment where everything is installed already."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from burnt.store import RunReader, find_runs
from tests.emulator import ROOT, Emulator, environment


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository, with an environment that is this one."""
    root = tmp_path / "burnt"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    shutil.copytree(ROOT / "examples", root / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    programs = root / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("python", ""), ("burnt", "-m burnt")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        program.chmod(0o755)
    # What the script notes when it has installed burnt, so that it does not try.
    note = subprocess.run(
        'cat pyproject.toml constraints.txt | cksum | tr -d "\\n"', shell=True, cwd=root, capture_output=True
    )
    (root / ".venv" / ".installed-examples,tui").write_text(f"{note.stdout.decode()} {root}")
    return root


def only_run(root: Path) -> Path:
    (folder,) = find_runs(root / "runs")
    return folder


@pytest.mark.full
def test_in_a_terminal_it_opens_the_monitor(copy: Path) -> None:
    with Emulator([copy / "scripts" / "quickstart", "epochs=200"], columns=120, rows=40) as terminal:
        terminal.wait_for_screen("● running", "loss", "accuracy", "epoch ", "/200", "q quit")
        terminal.type("X")
        terminal.wait_for_screen("Stop ")
        terminal.type("y")
        terminal.wait_for_screen("The training has ended")
        terminal.type(" ")
        terminal.wait_for("What to try next")
        assert terminal.wait_for_end() == 0
        assert terminal.leftovers() == []
        for words in ("Test results per digit:", "burnt monitor", "burnt ctl runs/"):
            assert words in terminal.written()
    with RunReader(only_run(copy)) as reader:
        assert reader.state() == "stopped"


def test_it_trains_with_what_it_is_given_and_says_what_to_try(copy: Path) -> None:
    """With a burnt that notes its arguments; `examples/test_digits.py` runs the training itself."""
    burnt = copy / ".venv" / "bin" / "burnt"
    burnt.write_text('#!/bin/sh\necho "burnt $*"; exit ${FAILS:-0}\n')
    for code, says_what_to_try in (("0", True), ("3", False)):
        done = subprocess.run(
            [copy / "scripts" / "quickstart", "epochs=1", "model.hidden=16"],
            env=environment({"FAILS": code}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == int(code), done.stderr
        assert "burnt train examples/digits/train.py:main epochs=1 model.hidden=16\n" in done.stdout
        assert ("What to try next" in done.stdout) == says_what_to_try


@pytest.mark.full
def test_without_a_terminal_it_says_lines(copy: Path) -> None:
    done = subprocess.run(
        [copy / "scripts" / "quickstart", "epochs=1"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "epoch 1/1  valid  loss" in done.stdout
    assert "Training finished: 1 epochs" in done.stdout
    assert "What to try next" in done.stdout
    with RunReader(only_run(copy)) as reader:
        assert reader.state() == "finished"
