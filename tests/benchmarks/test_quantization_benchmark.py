"""benchmarks/quantization.py runs, and has every row and what follows from its samples."""

import json
import runpy
from pathlib import Path

import pytest

from tests.benchmarks.running import ROOT, run


@pytest.mark.full
def test_the_table_has_every_row(tmp_path: Path) -> None:
    for name in ("torchao", "onnxruntime", "transformers"):
        pytest.importorskip(name)
    done = run("quantization.py", "--quick", "--json", str(tmp_path / "r.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    assert set(found["rows"]) == {"decode int8", "decode int4", "linear int8", "RoBERTa int8"}
    assert found["rows"]["linear int8"]["failed"] == {}
    assert set(found["rows"]["linear int8"]["ratios"]) == {"float32", "torchao", "torch.ao", "ONNX Runtime"}
    assert all(0 < row["error"] < 0.1 for row in found["rows"].values())
    assert "share of" not in done.stderr
    assert "of a copy" in done.stdout


def test_a_ratio_is_the_median_of_the_rounds_and_an_aim_is_held_against_it() -> None:
    program = runpy.run_path(str(ROOT / "benchmarks" / "quantization.py"))
    found = program["Found"](
        {"burnt": [1.0, 1.0, 2.0], "float32": [3.0, 4.0, 10.0], "torchao": [2.0] * 3}, error=0.01
    )
    assert found.ratio("float32") == (4.0, 3.5, 4.5)
    row = program["Row"](None, "int8", None, {"float32": 3.9, "torchao": 1.0})
    result = program["as_json"](row, found)
    assert result["met"]
    assert result["ratios"]["torchao"]["ratio"] == 2.0
    missed = program["as_json"](program["Row"](None, "int8", None, {"float32": 4.1}), found)
    assert not missed["met"]
    lines = program["table"]({"rows": {"a": missed}})
    assert lines[1] == [
        "a",
        "int8",
        "1000",
        "4.00 (3.50-4.50)",
        "2.00 (1.50-2.00)",
        "-",
        "-",
        "4.1 ✗",
        "1.00%",
    ]
