"""Small ONNX files, written without an exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper


def write(
    path: Path,
    op: str = "Neg",
    input_shape: Sequence[int | str | None] = ("batch", 2),
    output_shape: Sequence[int | str | None] | None = None,
    dtype: int = TensorProto.FLOAT,
    metadata: Mapping[str, str] | None = None,
    **attributes: object,
) -> Path:
    """Write a model of one operator, from x to y."""
    value = helper.make_tensor_value_info
    inputs = [value("x", dtype, list(input_shape))]
    outputs = [value("y", dtype, list(input_shape if output_shape is None else output_shape))]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "small", inputs, outputs)
    # The versions that every ONNX Runtime of the last years reads.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.save(model, path)
    return path
