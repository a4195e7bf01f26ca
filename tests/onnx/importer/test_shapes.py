"""Shapes and dtypes next to onnx_ir's pass."""

from __future__ import annotations

import gc

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from onnx_ir.passes.common import ShapeInferencePass

import burnt
from burnt.errors import RecordError
from burnt.onnx.importer.shapes import infer_shapes

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 400] x, bool c) => (float[m, 20] y) {
    h = MatMul(x, weight)
    shape = Constant<value_ints = [2, -1, 5]>()
    r = Reshape(h, shape)
    y = If (c) <
        then_branch = a () => (float[k, 20] p) { p = Tanh(h) },
        else_branch = b () => (float[k, 20] q) { e = Exp(h) q = Neg(e) }
    >
}"""


def test_types_are_those_of_onnx_ir() -> None:
    """Of values in bodies too, and with a weight that is left out for its size; outputs have no symbols."""
    proto = parser.parse_model(MODEL)
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((400, 20), np.float32), "weight"))
    models = [ir.from_proto(proto), ir.from_proto(proto)]
    infer_shapes(models[0])
    ShapeInferencePass(check_type=False, strict_mode=False)(models[1])
    found, expected = (
        {v.name: (v.dtype, str(v.shape)) for graph in m.graphs() for node in graph for v in node.outputs}
        for m in models
    )
    assert expected.pop("y") == (ir.DataType.FLOAT, "[m,20]")
    assert found.pop("y") == (ir.DataType.FLOAT, "[k,20]")  # of the branches
    assert found == expected
    assert found["h"] == (ir.DataType.FLOAT, "[n,20]")
    assert found["e"] == (ir.DataType.FLOAT, "[n,20]")
    assert found["r"][1].startswith("[2,")
    assert len(models[0].graph.inputs) == 2
    assert models[0].graph.initializers["weight"].const_value is not None


def test_a_failed_import_turns_garbage_collection_on_again() -> None:
    with pytest.raises(RecordError):
        burnt.onnx.load(b"no model")
    assert gc.isenabled()
