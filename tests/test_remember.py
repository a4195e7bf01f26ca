"""A long run of the tests goes on where it was cut off, unless a source has changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"


@pytest.mark.full  # which alone remembers
@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_passed_is_left_out_until_a_source_changes(tmp_path: Path, workers: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST.read_text())
    for name in ("constraints.txt", "README.md"):
        (tmp_path / name).write_text("")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    test = tmp_path / "tests" / "test_it.py"
    test.write_text("import os\ndef test_a(): pass\ndef test_b(): assert os.environ['GOOD'] == '1'\n")

    def run(good: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--remember=memory.json"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "GOOD": good},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout.splitlines()[-1]

    assert "1 failed, 1 passed" in run("0")
    # With workers, xdist counts no deselected tests.
    assert run("1").startswith(("1 passed, 1 deselected", "1 passed in"))
    assert "passed" not in run("1")
    test.write_text(test.read_text() + "\n")
    assert "2 passed" in run("1")
