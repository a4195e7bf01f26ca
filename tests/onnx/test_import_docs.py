"""docs/import-export.md has the ops that have handlers."""

from pathlib import Path

from burnt.onnx.importer.summary import ops_table

PAGE = Path(__file__).parents[2] / "docs" / "import-export.md"


def test_the_table_of_ops_is_current():
    assert ops_table() in PAGE.read_text(encoding="utf-8"), "run scripts/onnx_ops"
