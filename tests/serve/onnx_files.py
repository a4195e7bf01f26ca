"""Small ONNX files, written without an exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper


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
    shapes = input_shape, input_shape if output_shape is None else output_shape
    return write_graph(
        path, [helper.make_node(op, ["x"], ["y"], **attributes)], *shapes, (dtype, dtype), metadata=metadata
    )


def write_graph(
    path: Path,
    nodes: Sequence[NodeProto],
    input_shape: Sequence[int | str | None],
    output_shape: Sequence[int | str | None],
    dtypes: tuple[int, int] = (TensorProto.FLOAT, TensorProto.FLOAT),
    constants: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a model of several operators and constants, from x to y."""
    shapes = zip("xy", dtypes, (input_shape, output_shape), strict=True)
    x, y = (helper.make_tensor_value_info(name, dtype, list(shape)) for name, dtype, shape in shapes)
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "small", [x], [y], tensors)
    # The versions that every ONNX Runtime of the last years reads.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.save(model, path)
    return path
