"""The benchmarks of the Learner and of imports run and print every row, measured or said to be absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.running import output_of

RIVALS = ["hand-written loop", "burnt", "accelerate", "lightning", "lightning, one self.log"]


@pytest.mark.full
def test_every_rival_has_a_row(tmp_path: Path) -> None:
    printed = output_of("learner.py", "--quick", "--json", str(tmp_path / "results.json"))
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["machine"]["torch"]
    assert len(results["tasks"]) == 2
    for name, task in results["tasks"].items():
        assert name in printed
        assert list(task["rows"]) == RIVALS
        for rival, row in task["rows"].items():
            (line,) = [
                line for line in printed.partition(name)[2].splitlines() if line.startswith(f"  {rival}  ")
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
    assert "memory growth" in printed


@pytest.mark.full
def test_imports_benchmark_has_a_row_for_each_candidate() -> None:
    printed = output_of("imports.py", "--quick")
    for name in ("import torch", "import burnt", "burnt.Module", "burnt.train.SupervisedTraining"):
        assert f"\n{name}  " in printed
