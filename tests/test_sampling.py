"""The mark `sample`: what the fast run takes, what `--full` takes, and what another seed draws."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFTEST = """
from tests import sampling

def pytest_configure(config):
    for name in ("sample", "full", "beyond"):
        config.addinivalue_line("markers", name)

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    sampling.mark(items)
"""
TESTS = """
import pytest

@pytest.mark.sample
@pytest.mark.parametrize("a", "pqr")
@pytest.mark.parametrize("b", [lambda: 1, lambda: 2, lambda: 3, lambda: 4])
def test_each_value(a, b): pass

@pytest.mark.sample(5)
@pytest.mark.parametrize("n", [*range(30), pytest.param(30, marks=pytest.mark.full)])
def test_five(n): pass

@pytest.mark.full
@pytest.mark.sample(0, full=7)
@pytest.mark.parametrize("n", range(40))
def test_long(n): pass

@pytest.mark.sample(keep=("b", "d"))
@pytest.mark.parametrize("name", "abcd")
@pytest.mark.parametrize("n", range(2))
def test_named(n, name): pass

@pytest.mark.parametrize("n", range(3))
def test_all(n): pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    return tmp_path


def collected(folder: Path, marks: str, seed: int = 0) -> dict[str, list[str]]:
    """The cases that a run takes, by test."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    ]
    done = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder), "-m", marks],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BURNT_SEED": str(seed),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # which takes longer than the collecting
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if "::" in line:
            test, case = line.partition("::")[2].rstrip("]").split("[")
            found.setdefault(test, []).append(case)
    return found


def test_what_a_run_takes(folder: Path) -> None:
    fast = collected(folder, "not full")
    assert fast == collected(folder, "not full", seed=1)
    assert [len(fast[name]) for name in ("test_each_value", "test_five", "test_all")] == [4, 5, 3]
    assert {case.split("-")[0] for case in fast["test_each_value"]} == {f"<lambda>{i}" for i in range(4)}
    assert {case.split("-")[1] for case in fast["test_each_value"]} == set("pqr")
    assert "30" not in fast["test_five"]
    assert sorted(fast["test_named"]) == ["0-b", "0-d", "1-b", "1-d"]
    assert "test_long" not in fast
    whole = collected(folder, "not beyond")
    assert {name: len(cases) for name, cases in whole.items()} == {
        "test_each_value": 12, "test_five": 31, "test_long": 7, "test_named": 8, "test_all": 3,
    }  # fmt: skip
    other = collected(folder, "not beyond", seed=1)
    assert len(other["test_long"]) == 7
    assert other["test_long"] != whole["test_long"]
    assert len(collected(folder, "")["test_long"]) == 40
