"""Attention and caches."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import torch_dtype
from burnt.onnx.importer.matching import shape_of
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.registry import handler


@handler("Attention")
def _attention(build: Build, node: Node) -> Any:
    inputs = build.tensors_of(node, 7)
    heads = ("num_heads", None, "q_num_heads"), ("kv_num_heads", None)
    options = node.options(*heads, ("scale", None), ("is_causal", False), ("softcap", 0.0))
    window = node.attr("left_window_size", -1), node.attr("right_window_size", -1)
    if window != (-1, -1):
        options["window"] = window
    if node.attr("softmax_precision"):
        options["softmax_dtype"] = torch_dtype(node.attr("softmax_precision"))
    mode = node.attr("qk_matmul_output_mode", 0)
    if node.uses_output(3):
        options["scores"] = mode
    while inputs[-1] is None:
        inputs.pop()
    if any(node.uses_output(i) for i in (1, 2, 3)):
        return build.calls("ops.attention_details", *inputs, count=4, hint="attention", **options)
    names = ["past_key", "past_value", "lengths"]
    extra = {name: v for name, v in zip(names, inputs[4:], strict=False) if v is not None}
    plain = not extra and set(options) <= {"scale", "is_causal"} and build.rank(node, 0) == 4
    count = _queries_per_head(node)
    if plain and len(inputs) == 3 and count and not options.get("is_causal"):
        options |= {"enable_gqa": True} if count > 1 else {}
        return build.call("F.scaled_dot_product_attention", *inputs, hint="attention", **options)
    return build.call("ops.attention", *inputs[:4], hint="attention", **extra, **options)


def _queries_per_head(node: Node) -> int:
    """Return how many heads of the query there are for each of keys and values; 0 where it is not known."""
    heads = [shape_of(value)[1] if shape_of(value) else None for value in node.node.inputs[:3]]
    if not all(type(number) is int for number in heads) or heads[1] != heads[2]:
        return 0
    return heads[0] // heads[1] if heads[1] and heads[0] % heads[1] == 0 else 0


@handler("TensorScatter")
def _tensor_scatter(build: Build, node: Node) -> Any:
    inputs = build.tensors_of(node, 3)
    circular = node.text("mode", "linear") == "circular"
    return build.call("ops.tensor_scatter", *inputs, node.attr("axis", -2), circular, hint="cache")
