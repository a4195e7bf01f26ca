"""Run a command and return what it prints."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import burnt
from burnt.cli import main
from tests import forked
from tests.fixtures import Capture

ROOT = Path(burnt.__file__).parents[1]


def printed(capsys: Capture, *words: str, code: int = 0) -> str:
    """Run a command that ends with an exit code, 0 by default; return its standard output."""
    assert main([*words]) == code
    return capsys.readouterr().out


def refused(capsys: Capture, *words: str, code: int = 2) -> str:
    """Run a command that ends with an exit code, 2 by default; return its standard error, without earlier."""
    capsys.readouterr()
    assert main([*words]) == code
    return capsys.readouterr().err


def runs_printed(capsys: Capture, *words: str, code: int = 0) -> str:
    """Run `burnt runs ...`, which writes nothing to standard error; return its standard output."""
    assert main(["runs", *words]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def runs_refused(capsys: Capture, code: int, *words: str) -> str:
    """Run `burnt runs ...`, which prints nothing to standard output; return its standard error."""
    assert main(["runs", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def in_terminal(*words: str, columns: int = 80, stdin: bool = False, **env: str) -> str:
    """Run Python with these arguments in a pseudo-terminal; return what it shows there, colours and all."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=follower if stdin else None,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns), **env},
    )
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65536):
            shown += part
    except OSError:  # so Linux says that nobody writes any more
        pass
    os.close(leader)
    assert process.wait(timeout=120) == 0, shown
    return shown.decode()


def run_script(factory: pytest.TempPathFactory, name: str, code: str) -> Path:
    """Write a script to a folder of its own and run it there, in another process; return the folder."""
    folder = factory.mktemp("script")
    done = forked.run(code, file=folder / name, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder
