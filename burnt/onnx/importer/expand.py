"""Functions as their bodies: those that the model defines, and ops of ONNX that have no handler but a body.

Shapes and dtypes are inferred afterwards, so that handlers see what the inserted nodes have.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from burnt.errors import RecordError
from burnt.onnx.importer.node import find_handler
from burnt.onnx.importer.qoperators import expand_qoperators
from burnt.onnx.importer.shapes import infer_shapes
from burnt.onnx.importer.symbols import name_symbols

if TYPE_CHECKING:
    import onnx_ir as ir


_MAX_ROUNDS = 8  # bodies of ONNX's ops call other ops that have bodies: three rounds as of version 28


def expand(model: ir.Model, where: str, max_nodes: int) -> None:
    """Replace calls of functions by their bodies, in place, and infer shapes and dtypes.

    Functions that call each other in a circle, and models of more nodes than `max_nodes`, are refused.
    """
    expand_qoperators(model)
    _set_versions(model.graph)
    if model.functions:
        _check_size(model, where, max_nodes)
        for function in model.functions.values():
            _set_versions(function)
        _adopt_opsets(model)
        _inline(model)
    _infer(model)
    for _ in range(_MAX_ROUNDS):
        if not _add_bodies(model):
            name_symbols(model)
            return
        _check_size(model, where, max_nodes)
        _inline(model)
        for node in list(model.graph):  # outputs that a body does not compute, and nothing reads
            if node.op_type == "Constant" and not node.outputs[0].name and not node.outputs[0].uses():
                model.graph.remove(node)
        _infer(model)


_PATCHING = threading.Lock()


def _inline(model: ir.Model) -> None:
    """Replace calls of functions by their bodies, by onnx_ir's pass, in linear time.

    The pass counts from 1 for each new name, and compares all functions with each other: both are quadratic.
    """
    from onnx_ir.passes.common import InlinePass, inliner

    last: dict[tuple[int, str], int] = {}

    def make_unique_name(name: str, _: Any, used: set[str]) -> str:
        number, found = last.get((id(used), name), 1), name
        while found in used:
            number += 1
            found = f"{name}_{number}"
        last[id(used), name] = number
        used.add(found)
        return found

    def abbreviate(ids: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
        names = {key: "_".join(filter(None, key[1:])) for key in ids}
        domains = Counter(key[1:] for key in names)
        return {key: f"{key[0]}_{name}" if domains[key[1:]] > 1 else name for key, name in names.items()}

    module: Any = inliner
    with _PATCHING:
        before = module._make_unique_name, module._abbreviate
        module._make_unique_name, module._abbreviate = make_unique_name, abbreviate
        try:
            InlinePass()(model)
        finally:
            module._make_unique_name, module._abbreviate = before


def version_of(node: ir.Node) -> int:
    """Return the version of the operator set of a node's domain, which `expand` has noted."""
    return 1 if node.version is None else node.version


def _infer(model: ir.Model) -> None:
    """Infer shapes and dtypes."""
    infer_shapes(model)
    if _infer_preprocessing(model):
        infer_shapes(model)


_PREPROCESSING = "Scaler", "Normalizer", "Imputer", "Binarizer"


def _infer_preprocessing(model: ir.Model) -> bool:
    """Give what scales or fills in features a shape, which ONNX does not; return whether any was found."""
    import onnx_ir as ir

    found = False
    for node in model.graph:
        is_known = node.domain == "ai.onnx.ml" and node.op_type in _PREPROCESSING
        source, output = node.inputs[0] if is_known else None, node.outputs[0]
        if source is None or source.shape is None or output.shape is not None:
            continue
        output.shape = source.shape.copy()
        keeps = node.op_type in ("Imputer", "Binarizer")
        output.type = source.type if keeps else ir.TensorType(ir.DataType.FLOAT)
        found = True
    return found


def _set_versions(graph: ir.Graph | ir.Function) -> None:
    """Note the version of each node; a function's may differ from the version of the model around it."""
    for node in graph.all_nodes():
        node.version = graph.opset_imports.get(node.domain, graph.opset_imports.get("ai.onnx"))


def _adopt_opsets(model: ir.Model) -> None:
    """Let functions import what the model does: the inliner refuses others, and nodes know their version."""
    for function in model.functions.values():
        for domain in function.opset_imports:
            if domain in model.opset_imports:
                function.opset_imports[domain] = model.opset_imports[domain]


def _check_size(model: ir.Model, where: str, max_nodes: int) -> None:
    """Count the nodes that the expanded model will have; the bodies are not expanded for it."""
    sizes: dict[Any, int] = {}
    callees = {
        key: [node.op_identifier() for node in function.all_nodes()]
        for key, function in model.functions.items()
    }
    open_: set[Any] = set()
    stack: list[tuple[Any, bool]] = [(key, False) for key in callees]
    while stack:
        key, is_done = stack.pop()
        if is_done:
            open_.discard(key)
            sizes[key] = sum(sizes.get(callee, 1) for callee in callees[key])
        elif key not in sizes:
            if key in open_:
                continue
            open_.add(key)
            stack.append((key, True))
            for callee in callees[key]:
                if callee in open_:
                    raise RecordError(
                        "functions of the model call each other in a circle",
                        where=where,
                        expected="functions that end",
                        found=f"{callee[1]} calls itself",
                    )
                if callee in callees and callee not in sizes:
                    stack.append((callee, False))
    total = sum(sizes.get(node.op_identifier(), 1) for node in model.graph.all_nodes())
    if total > max_nodes:
        raise RecordError(
            "the model is too large to import",
            where=where,
            expected=f"at most {max_nodes:,} nodes",
            found=f"{total:,} with its functions inlined",
        )


def _add_bodies(model: ir.Model) -> bool:
    """Give the model functions for ops without a handler, where ONNX has a body for them."""
    found = False
    for number, node in enumerate(list(model.graph.all_nodes())):
        version = version_of(node)
        if find_handler(node.domain, node.op_type, version) is not None:
            continue
        function = _body_of(node, version, f"burnt_{number}")
        if function is not None:
            for name, attribute in list(node.attributes.items()):
                if attribute.type.name in ("GRAPH", "GRAPHS"):  # are part of the body already
                    del node.attributes[name]
            node.overload = function.overload
            model.functions[function.identifier()] = function
            found = True
    if found:
        _adopt_opsets(model)
    return found


def _body_of(node: ir.Node, version: int, overload: str) -> ir.Function | None:
    import onnx
    import onnx_ir as ir

    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    inlined = [v for v in schema.function_opset_versions if v <= version]
    typed = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if inlined:
        raw = schema.get_function_with_opset_version(max(inlined))
    elif typed:
        raw = schema.get_context_dependent_function_with_opset_version(
            max(typed), ir.to_proto(node).SerializeToString(), [_type_of(value) for value in node.inputs]
        )
    else:
        return None
    if not raw:
        return None
    proto = onnx.FunctionProto()
    proto.ParseFromString(raw)
    if not proto.node:
        return None
    del proto.output[len(node.outputs) :]
    computed = {*proto.input, *(name for part in proto.node for name in part.output)}
    for name, output in zip(proto.output, node.outputs, strict=False):
        if name not in computed:
            if output.uses() or output.is_graph_output():
                return None
            proto.node.add(op_type="Constant", output=[name]).attribute.add(name="value_int", type="INT")
    proto.domain, proto.name, proto.overload = node.domain, node.op_type, overload
    del proto.attribute[:]  # an attribute that the node leaves out has the schema's default
    for attribute in schema.attributes.values():
        if attribute.default_value.name:
            proto.attribute_proto.append(attribute.default_value)
        else:
            proto.attribute.append(attribute.name)
    function = ir.serde.deserialize_function(proto)
    _set_versions(function)
    return function


def _type_of(value: ir.Value | None) -> bytes:
    """Return the type of a value as a serialized TypeProto, empty where it is unknown."""
    import onnx
    import onnx_ir as ir

    proto = onnx.TypeProto()
    if value is not None and value.type is not None:
        ir.serde.serialize_type_into(proto, value.type)
        if value.shape is not None:
            ir.serde.serialize_shape_into(proto, value.shape)
    return bytes(proto.SerializeToString())
