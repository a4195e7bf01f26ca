"""The import_onnx example, in short: import, fine-tuning, quantization, export."""

from __future__ import annotations

import runpy
from pathlib import Path

import onnx
import pytest

pytest.importorskip("onnxruntime", reason="no ONNX Runtime here: pip install 'burnt[onnx]'")
pytest.importorskip("sklearn", reason="no scikit-learn here: pip install 'burnt[examples]'")

from tests.onnx.translations import translations_parsed_once

__all__ = ["translations_parsed_once"]

FOLDER = Path(__file__).parent.parent.parent / "examples" / "import_onnx"


def test_a_file_of_scikit_learn_is_fine_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnx.load(FOLDER / "digits.onnx").producer_name == "skl2onnx"
    main = runpy.run_path(str(FOLDER / "finetune.py"))["main"]
    found = main(["--epochs", "4", "--out", str(tmp_path)])
    given, tuned, int8 = (found[name] for name in ("given", "fine-tuned", "int8"))
    assert 0.75 < given[0] < 0.85
    assert tuned[0] > given[0] + 0.04
    assert abs(int8[0] - tuned[0]) < 0.02
    assert int8[1] < 0.7 * tuned[1]
    assert f"given{given[0]:>17.1%}{given[1]:>10,}" in capsys.readouterr().out
    file = onnx.load(tmp_path / "digits-int8.onnx")
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in file.graph.node}
