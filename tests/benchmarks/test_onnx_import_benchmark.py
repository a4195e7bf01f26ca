"""benchmarks/onnx_import.py: its smallest form, and its rows on a small file."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks.running import ROOT, output_of

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("onnx_import")


@torch.no_grad()
def test_rows_of_a_small_file(benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.onnx.importer_files import inputs_of, read

    model = read("bert.legacy")
    (tmp_path / "m.onnx").write_bytes(model)
    inputs = tuple(torch.from_numpy(array) for array in inputs_of(model).values())
    monkeypatch.setattr(benchmark, "inputs_of", lambda batch, length: inputs)
    row = benchmark.speeds(tmp_path / "m.onnx", 1, 5, rounds=2)
    assert set(row["ms"]) == {"ONNX Runtime", "imported", "swapped"}
    assert max(row["errors"].values()) < 1e-5
    assert row["swapped"]["low"] <= row["swapped"]["ratio"] <= row["swapped"]["high"]
    results = {
        "cpu": "a CPU",
        "threads": 1,
        "length": 5,
        "file bytes": 2_000_000,
        "seconds": 1.5,
        "memory": 2.6,
    }
    fast = {**row, "swapped": {"ratio": 0.91, "low": 0.9, "high": 1.0}}
    slow = {**row, "swapped": {"ratio": 0.89, "low": 0.8, "high": 1.0}}
    lines = benchmark.text({**results, "batch 1": fast, "batch 8": slow}).splitlines()
    assert lines[1] == "import of 2.0 MB: 1.50 s (aim 5: met), 2.60 x the file in memory (aim 2.5: missed)"
    assert "swapped x 0.91 (0.90-1.00), aim 0.9: met" in lines[2]
    assert "swapped x 0.89 (0.80-1.00), aim 0.9: missed" in lines[3]


@pytest.mark.full
def test_it_runs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    printed = output_of("onnx_import.py", "--quick", "--json", str(tmp_path / "r.json"))
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["memory"] > 1
    assert max(found["batch 8"]["errors"].values()) < 1e-4
    assert "x the file in memory" in printed
