"""Steps of optimizers in the table of kernels: they come to the same."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks.running import ROOT, output_of


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("kernel_table.steps")


@pytest.mark.full
def test_the_table_of_kernels_has_them(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    printed = output_of("kernels.py", "--quick", "--rows", "in 6 tensors", "--json", str(file))
    results = json.loads(file.read_text())
    assert results["rows"] == {}
    (row,) = results["steps"].values()
    assert row["burnt"]["ms"] > 0
    assert f"{row['torch']['ratio']:.2f} (" in printed
    assert f"{row['lists']['ratio']:.2f} (" in printed


def test_what_is_aimed_at_is_written_and_what_fell_is_named(
    steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, cpu = importlib.import_module("kernel_table.report"), importlib.import_module("kernel_table.cpu")
    effort = cpu.Effort(rounds=2, seconds=0, least=2, divisor=5000)
    row = steps.measure(steps.ADAMW, effort)
    assert row["torch"]["target"] == 1.4
    assert row["torch"]["met"] == (row["torch"]["ratio"] >= 1.4)
    now = {"machine": {}, "rivals": [], "rows": {}, "steps": {"a": row}}
    assert "| optimizer step | burnt ms | x torch, fused | x torch, lists |" in report.markdown(now)
    assert " / 1.4 " in report.markdown(now)
    before = {"rows": {}, "steps": {"a": row | {"lists": row["lists"] | {"ratio": 1e6}}}}
    assert report.worse(now, {"rows": {}}) == []
    (fell,) = report.worse(now, before)
    assert fell.endswith("x lists; it was 1000000.00")


def test_steps_that_come_to_something_else_are_found(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(steps.runs(steps.SGD, 5000)) == ["burnt", "lists", "torch"]
    monkeypatch.setitem(steps.OURS, "sgd", lambda: steps.optim.Sgd(momentum=0.5))
    with pytest.raises(SystemExit, match="torch and burnt come to different parameters"):
        steps.runs(steps.SGD, 5000)


def test_tensors_are_spread_and_matrices_of_blocks(steps: Any) -> None:
    sizes = [n for (n,) in steps.ADAMW.shapes(1)]
    assert len(sizes) == 300
    assert sum(sizes) == pytest.approx(50_000_000, rel=1e-3)
    assert max(sizes) / min(sizes) > 500
    assert steps.ON_CPU[-1].shapes(1)[:6] == [*[(256, 256)] * 4, (1024, 256), (256, 1024)]
    assert torch.Size(steps.ON_CPU[-1].shapes(32)[0]) == (8, 8)
