"""Shapes and dtypes of a model's values, by ONNX's shape inference.

onnx_ir has a pass for this. Its time is quadratic in the number of initializers, and it parses the whole
result into a second model; here only the inferred types are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from burnt.onnx.importer.matching import array_of

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


_MOST_BYTES = 1000  # of an initializer whose values shapes may depend on
_MOST_PROPAGATED = 2**21  # elements that ONNX follows through the graph, each in 70 bytes
_GENERATING = {
    "ConstantOfShape": 0,
    "Range": 1,
    "Expand": 1,
    "Tile": 1,
    "Pad": 1,
    "Resize": 2,
    "HannWindow": 0,
}
"""Ops that make vectors, and the input with their size."""
_PROPAGATING = {"Mul", "Cast", "Sub", "Concat", "Add", "Slice", "Gather", "Squeeze", "Unsqueeze"}


def infer_shapes(model: ir.Model) -> None:
    """Infer shapes and dtypes, in place; if that fails, for models that say too little, they stay unknown."""
    import onnx

    proto = _without_weights(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=_has_few_elements(model.graph))
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):  # the last two: C++, protobuf
        return
    _adopt(model.graph, inferred.graph)


def _has_few_elements(graph: ir.Graph) -> bool:
    """Whether the vectors that ONNX follows through ops on shapes have few elements in all.

    It has no limit of its own: a Concat of a vector with itself, some times over, takes any memory.
    """
    lengths: dict[ir.Value | None, int] = {}  # of vectors
    bounds: dict[ir.Value | None, float] = {}  # of the sum of their elements

    def length(value: ir.Value | None) -> int:
        if value is not None and value not in lengths and value.shape is not None and len(value.shape) == 1:
            return value.shape[0] if isinstance(value.shape[0], int) else 0
        return lengths.get(value, 0)

    def bound(value: ir.Value | None) -> float:
        known = None if value in bounds else array_of(value, 2)
        if known is None or known.dtype.kind not in "iuf":
            return bounds.get(value, 0.0)
        return float(np.abs(known.astype(np.float64)).sum())

    for node in graph.all_nodes():
        op, output = node.op_type, node.outputs[0] if node.outputs else None
        if op in _PROPAGATING:
            sizes, numbers = [length(value) for value in node.inputs], [bound(value) for value in node.inputs]
            if any(sizes):
                lengths[output] = sum(sizes) if op == "Concat" else max(sizes)
            if any(numbers):
                bounds[output] = math.prod(numbers) if op == "Mul" else sum(numbers)
        elif (at := _GENERATING.get(op, -1)) in range(len(node.inputs)) and (size := bound(node.inputs[at])):
            lengths[output] = int(min(size, _MOST_PROPAGATED)) * max(1, length(node.inputs[0]))
    return sum(lengths.values()) < _MOST_PROPAGATED


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """Return a model whose large initializers are inputs: protobuf holds 2 GB, and would copy them twice."""
    import onnx
    import onnx_ir as ir

    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    graph, initializers = model.graph, model.graph.initializers
    proto.graph.name = graph.name or "graph"
    for value in initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        if value.shape is None:
            value.shape = ir.Shape(tensor.shape)  # type: ignore[arg-type]
        value.dtype = tensor.dtype if value.dtype is None else value.dtype
        if tensor.nbytes <= _MOST_BYTES:
            ir.serde.serialize_tensor_into(proto.graph.initializer.add(), tensor)
            proto.graph.initializer[-1].name = value.name or ""
    others = [value for value in graph.inputs if value.name not in initializers]
    for value in (*others, *initializers.values()):
        ir.serde.serialize_value_into(proto.graph.input.add(), value)
    for node in graph:
        ir.serde.serialize_node_into(proto.graph.node.add(), node)
        for output in node.outputs:
            if output.type is not None and output.name and not output.is_graph_output():
                ir.serde.serialize_value_into(proto.graph.value_info.add(), output)
    for value in graph.outputs:
        ir.serde.serialize_value_into(proto.graph.output.add(), value)
        # Users name the axes of outputs (dynamic_axes of torch.onnx.export), and nothing checks the names.
        for size in proto.graph.output[-1].type.tensor_type.shape.dim:
            size.ClearField("dim_param")
    return proto


def _adopt(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    """Take over the types of values of a graph and of the graphs in it, where they are known."""
    types = {info.name: info.type for info in (*proto.input, *proto.value_info, *proto.output)}
    known: dict[bytes, tuple[ir.DataType | None, ir.Shape | None]] = {}
    for value in graph.inputs:
        _set_type(value, types.get(value.name or ""), known)
    for node, node_proto in zip(graph, proto.node, strict=True):
        for output in node.outputs:
            _set_type(output, types.get(output.name or ""), known)
        for attribute in node_proto.attribute:
            if attribute.HasField("g"):
                _adopt(node.attributes[attribute.name].as_graph(), attribute.g)
            elif attribute.graphs:
                bodies = node.attributes[attribute.name].as_graphs()
                for body, body_proto in zip(bodies, attribute.graphs, strict=True):
                    _adopt(body, body_proto)


def _set_type(
    value: ir.Value, proto: Any, known: dict[bytes, tuple[ir.DataType | None, ir.Shape | None]]
) -> None:
    """Set dtype and shape of a value; many values have the same, which are parsed once."""
    import onnx_ir as ir

    if proto is None:
        return
    key = proto.SerializeToString()
    if key not in known:
        kind = ir.serde.deserialize_type_proto_for_type(proto)
        shape = ir.serde.deserialize_type_proto_for_shape(proto)
        known[key] = None if kind is None else kind.dtype, shape
    dtype, shape = known[key]
    if dtype is not None and value.dtype != dtype:
        value.type = ir.serde.deserialize_type_proto_for_type(proto)  # of its own: it can be changed
    if shape is not None and value.shape != shape:
        value.shape = shape.copy()
