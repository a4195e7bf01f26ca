"""The benchmarks of the Learner and of imports run and print every row, measured or said to be absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIVALS = ["hand-written loop", "burnt", "accelerate", "lightning", "lightning, one self.log"]


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), "--quick", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.mark.full
def test_every_rival_has_a_row(tmp_path: Path) -> None:
    done = run("learner.py", "--json", str(tmp_path / "results.json"))
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["machine"]["torch"]
    assert len(results["tasks"]) == 2
    for name, task in results["tasks"].items():
        assert name in done.stdout
        assert list(task["rows"]) == RIVALS
        for rival, row in task["rows"].items():
            (line,) = [
                line
                for line in done.stdout.partition(name)[2].splitlines()
                if line.startswith(f"  {rival}  ")
            ][:1]
            if "skipped" in row:
                assert "is not installed" in line
                continue
            low, high = row["interval"]
            assert low <= row["above"] <= high
            assert row["microseconds"] > 0
            assert f"{row['microseconds']:.1f}" in line
        assert task["rows"]["hand-written loop"]["above"] == 0
        assert "skipped" not in task["rows"]["burnt"]
    assert results["log_5_metrics_microseconds"]["median"] > 0
    assert results["memory_growth"]["steps"] == 200
    assert "memory growth" in done.stdout


@pytest.mark.full
def test_imports_benchmark_has_a_row_for_each_candidate() -> None:
    done = run("imports.py")
    assert done.returncode == 0, done.stderr
    for name in ("import torch", "import burnt", "burnt.Module", "burnt.train.SupervisedTraining"):
        assert f"\n{name}  " in done.stdout
