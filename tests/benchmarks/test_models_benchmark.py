"""The benchmark of compiled models: its rows and its tables."""

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
def models(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("models")
    sys.modules.pop("models")


@pytest.mark.full
def test_every_row_runs(models: Any, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    options = ["--quick", "--rivals", "eager", "--seconds", "0", "--json", file]
    printed = output_of("models.py", *options, "--tables", "speed,errors")
    results = json.loads(file.read_text())
    assert list(results["rows"]) == list(models.ROWS)
    for name, row in results["rows"].items():
        [line] = [line for line in printed.splitlines() if line.startswith(f"{name}  ") and "%" in line]
        found = row["ratios"]["eager"]
        assert 0 < found["low"] <= found["ratio"] <= found["high"]
        assert f"{found['ratio']:.2f} (" in line
        assert 0 < row["library"] < 1
        assert row["peak"] > 0
    assert all(error < 1e-5 for each in results["errors"].values() for error in each.values())

    output_of("models.py", *options, "--tables", "first", "--rows", "encoder training$")
    [first] = json.loads(file.read_text())["first"].values()
    assert all(seconds > 0 for each in first.values() for seconds in each)


def test_the_share_of_the_library(models: Any) -> None:
    steps = dict(
        models.steps_of(models.ROWS["encoder inference"], ["eager"], True, models.torch.device("cpu"))
    )
    library, peak = models.profiled(steps["eager"], models.torch.device("cpu"))
    assert 0 < library < 1
    assert peak >= 2 * 16 * 32 * 4  # at least the result's bytes

    a = models.torch.randn(600, 600)
    library, peak = models.profiled(lambda: a @ a, a.device)
    assert library > 0.8
    assert peak == 600 * 600 * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--quick", "--save"], "ratios of --quick say nothing"), (["--rivals", "jax"], "--rivals: jax")],
)
def test_bad_options(
    models: Any, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        models.main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_is_saved(models: Any) -> None:
    row = {
        "ms": {"burnt": 100.0, "eager": 120.0},
        "ratios": {"eager": {"ratio": 1.2, "low": 1.1, "high": 1.3}},
        "failed": {"inductor": "CompileError: no compiler"},
        "aim": 1.12,
        "library": 0.75,
        "peak": 0.9,
    }
    results = {
        "machine": {"cores": 2},
        "rivals": ["eager", "inductor"],
        "rows": {"BERT training": row},
        "first": {"BERT training": {"aot_eager": [2.0, 1.9], "burnt": [3.5, 2.25]}},
        "errors": {"BERT training": {"eager": 1e-7, "burnt": 2e-7}},
    }
    written = models.markdown(results)
    assert "| BERT training | 100 | 1.20 (1.10-1.30) | - (CompileError) | 1.12 ✓ | 75% | 0.90 |" in written
    assert "| BERT training | 2.0 | 1.9 | 3.5 | 2.2 |" in written
    assert "| BERT training | 1.0e-07 | 2.0e-07 |" in written
    assert "BERT training, inductor: CompileError: no compiler" in written
