"""Branches, loops, sequences and optionals."""

from __future__ import annotations

from typing import Any

import torch

from burnt.errors import UnsupportedError
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import torch_dtype
from burnt.onnx.importer.node import Node, handler


def _results(build: Build, node: Node, function: str, *args: Any, hint: str = "x", **kwargs: Any) -> Any:
    """Call a function that returns a tuple with an element per output of the node."""
    if node.num_outputs > 1:
        return build.calls(function, *args, count=node.num_outputs, hint=hint, **kwargs)
    return build.call("ops.item", build.call(function, *args, hint="results", **kwargs), 0, hint=hint)


@handler("If")
def _if(build: Build, node: Node) -> Any:
    condition = build.tensor(node, 0)
    then = build.body(node.attr("then_branch"), "then_branch")
    otherwise = build.body(node.attr("else_branch"), "else_branch")
    return _results(build, node, "ops.if_", condition, then, otherwise, hint="branch")


@handler("Loop")
def _loop(build: Build, node: Node) -> Any:
    graph = node.attr("body")
    count = build.integer(node, 0)
    carried = [build.tensor(node, i) for i in range(2, node.num_inputs)]
    body = build.body(graph, "loop_body")
    empty = []
    for value in graph.outputs[1 + len(carried) :]:
        sizes = tuple(size if isinstance(size, int) else 0 for size in (value.shape or ()))
        dtype = None if value.dtype is None else torch_dtype(value.dtype.value)
        empty.append((sizes, dtype or torch.float32))
    arguments = (count, build.tensor(node, 1), body, carried, empty)
    return _results(build, node, "ops.loop", *arguments, hint="looped", device=build.device())


@handler("Scan", since=9)
def _scan(build: Build, node: Node) -> Any:
    graph, num_scanned = node.attr("body"), node.attr("num_scan_inputs")
    values = build.tensors_of(node)
    states, scanned = values[:-num_scanned], values[-num_scanned:]
    num_outputs = node.num_outputs - len(states)
    body = build.body(graph, "scan_body")
    return _results(
        build,
        node,
        "ops.scan",
        body,
        states,
        scanned,
        node.attr("scan_input_axes", [0] * num_scanned),
        [bool(d) for d in node.attr("scan_input_directions", [0] * num_scanned)],
        node.attr("scan_output_axes", [0] * num_outputs),
        [bool(d) for d in node.attr("scan_output_directions", [0] * num_outputs)],
        hint="scanned",
    )


@handler("Scan", since=8)
def _batched_scan(build: Build, node: Node) -> Any:
    graph, num_scanned = node.attr("body"), node.attr("num_scan_inputs")
    if node.has(0):
        raise UnsupportedError(
            "a Scan of version 8 with lengths of sequences cannot be imported",
            where=node.name,
            expected="no sequence_lens",
            found="sequence_lens",
        )
    values = build.tensors_of(node)[1:]
    body = build.body(graph, "scan_body")
    directions = [bool(d) for d in node.attr("directions", [0] * num_scanned)]
    states, scanned = values[:-num_scanned], values[-num_scanned:]
    num_outputs = node.num_outputs - len(states)
    return _results(
        build, node, "ops.batched_scan", body, states, scanned, directions, num_outputs, hint="scanned"
    )


@handler("SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength")
def _sequence_op(build: Build, node: Node) -> Any:
    functions = {
        "SequenceAt": "item",
        "SequenceInsert": "insert",
        "SequenceErase": "erase",
        "SequenceLength": "sequence_length",
    }
    values = [value for value in build.tensors_of(node) if value is not None]
    extra = {"device": build.device()} if node.op == "SequenceLength" else {}
    return build.call(f"ops.{functions[node.op]}", *values, hint="sequence", **extra)


@handler("Optional")
def _optional(build: Build, node: Node) -> Any:
    return build.tensor(node, 0)
