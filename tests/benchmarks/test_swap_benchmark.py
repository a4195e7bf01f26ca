"""The benchmark of swapped models: its rows and its table."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.running import ROOT, output_of

pytest.importorskip("transformers")


@pytest.fixture
def swap(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("swap")
    sys.modules.pop("swap")


@pytest.mark.full
def test_every_row_runs(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    printed = output_of(
        "swap.py", "--quick", "--rivals", "eager", "--seconds", "0", "--json", str(file), "--report"
    )
    results = json.loads(file.read_text())
    models = ("BERT", "Llama", "GPT-2", "ViT", "ConvNeXt", "ResNet")
    both = [f"{name} {what}" for name in models for what in ("training", "inference")]
    assert list(results["rows"]) == [*both, "Llama 1B training"]
    for name, row in results["rows"].items():
        [line] = [line for line in printed.splitlines() if line.startswith(f"{name}  ")]
        found = row["ratios"]["eager"]
        assert 0 < found["low"] <= found["ratio"] <= found["high"]
        assert f"{found['ratio']:.2f} (" in line
        if row["target"] is not None:
            assert row["met"] == (found["ratio"] >= row["target"])
            assert f"{row['target']:g} {'✓' if row['met'] else '✗'}" in line
        assert (row["error"] is None) == name.endswith("training")
        assert row["error"] is None or row["error"] < 1e-4
    assert printed.count("sites, mode='train'") == 7
    assert printed.count("sites, mode='infer'") == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--quick", "--save"], "ratios of --quick say nothing"), (["--rivals", "jax"], "--rivals: jax")],
)
def test_bad_options(swap: Any, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        swap.main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_is_saved(swap: Any) -> None:
    row = {
        "ms": {"swapped": 100.0, "eager": 200.0},
        "ratios": {"eager": {"ratio": 2.0, "low": 1.9, "high": 2.1}},
        "failed": {"inductor": "CompileError: no compiler"},
        "target": 1.5,
        "met": True,
        "error": 1e-6,
        "swapped": 3,
        "left": 4,
    }
    results = {"machine": {"cores": 2}, "rivals": ["eager", "inductor"], "rows": {"BERT training": row}}
    written = swap.markdown(results)
    assert "| BERT training | 100 | 2.00 (1.90-2.10) | - (CompileError) | 1.5 ✓ | 1e-06 | 3, 4 |" in written
    assert "BERT training, inductor: CompileError: no compiler" in written
