"""Lookups by grids of positions: the same as ONNX Runtime's, and no lookup where axes are added alone."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx.parser
import onnxruntime
import torch

import burnt.onnx
from burnt.onnx.importer.program import Statement
from tests.onnx.importer_files import read, tensor

_BODY = """
    s = Shape<start=0, end=1>(x) rows = Squeeze(s) t = Shape<start=1, end=2>(x) columns = Squeeze(t)
    r = Range({start}, rows, one) c = Range(zero, {limit}, one)
    row = Unsqueeze(r, {row_axes}) column = Unsqueeze(c, {column_axes})
    both = Max(row, column) shape = Shape(both)
    big_row = Expand(row, shape) big_column = Expand(column, shape)
    i = Unsqueeze(big_row, last) j = Unsqueeze(big_column, last)
    indices = Concat<axis = -1>({order}) y = GatherND(x, indices)
"""
_PLAIN = {
    "start": "zero",
    "limit": "columns",
    "row_axes": "not_0",
    "column_axes": "not_3",
    "order": "i, j",
    "shapes": "int64[n] r, int64[n] c",
}
_CONSTANTS = {
    "zero": 0,
    "one": 1,
    "three": 3,
    "last": [-1],
    "not_0": [1, 2, 3],
    "not_1": [0, 2, 3],
    "not_3": [0, 1, 2],
}


def _calls(table: str, result: str, **changes: str) -> list[str]:
    """Return the functions that an imported lookup calls, compared with ONNX Runtime at two sizes."""
    given = _PLAIN | changes
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{table}] x) => (float[{result}] y) <{given["shapes"]}> {{ {_BODY.format(**given)} }}"""
    model = onnx.parser.parse_model(text)
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        tensor(np.array(value, np.int64), name=name) for name, value in _CONSTANTS.items() if name in used
    )
    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (4, 5):
        x = np.arange(size * size, dtype=np.float32).reshape(size, size)
        assert np.array_equal(module(torch.from_numpy(x)).numpy(), session.run(None, {"x": x})[0])
    return [statement.call.function for statement in module.program.statements]


def test_all_positions_of_a_table_add_axes() -> None:
    """Sizes are equal by their names."""
    assert _calls("n, n", "n, 1, 1, n") == ["ops.unsqueeze"]
    assert _calls("n, m", "n, 1, 1, m", shapes="int64[n] r, int64[m] c") == ["ops.unsqueeze"]
    assert _calls("n, n", "1, n, 1, n", row_axes="not_1") == ["ops.unsqueeze"]


@pytest.mark.parametrize(
    ("table", "result", "changes"),
    [
        ("n, m", "k, 1, 1, m", {"start": "three", "shapes": "int64[k] r, int64[m] c"}),
        ("n, m", "n, 1, 1, k", {"limit": "three", "shapes": "int64[n] r, int64[k] c"}),
        ("n, m", "n, 1, 1, n", {"limit": "rows"}),
        ("n, n", "n, 1, 1, n", {"order": "j, i"}),
        ("n, n", "n, 1, 1, n", {"order": "i, i"}),
        ("n, n", "n, 1, 1, n", {"row_axes": "not_3", "column_axes": "not_0"}),
    ],
    ids=["from a start", "to an end", "a size of another name", "swapped", "diagonal", "transposed"],
)
def test_others_are_looked_up(table: str, result: str, changes: dict[str, str]) -> None:
    assert "ops.gather_nd" in _calls(table, result, **changes)


@pytest.mark.parametrize("name", ["bert.dynamo", "llama.dynamo"])
def test_the_mask_of_a_transformer_gets_axes(name: str) -> None:
    program = burnt.onnx.load(read(name)).program
    assert "ops.gather_nd" not in {s.call.function for s in program.statements if isinstance(s, Statement)}
