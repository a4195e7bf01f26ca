"""Attention, rotary embedding, caches, and the activations of transformers."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import torch_dtype
from burnt.onnx.importer.matching import shape_of
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.registry import handler


@handler("Attention")
def _attention(build: Build, node: Node) -> Any:
    inputs = [build.tensor(node, i) for i in range(7)]
    options: dict[str, Any] = {
        "num_heads": node.attr("q_num_heads"),
        "kv_num_heads": node.attr("kv_num_heads"),
        "scale": node.attr("scale"),
    }
    if node.attr("is_causal", 0):
        options["is_causal"] = True
    if node.attr("softcap", 0.0):
        options["softcap"] = node.attr("softcap")
    window = node.attr("left_window_size", -1), node.attr("right_window_size", -1)
    if window != (-1, -1):
        options["window"] = window
    if node.attr("softmax_precision"):
        options["softmax_dtype"] = torch_dtype(node.attr("softmax_precision"))
    mode = node.attr("qk_matmul_output_mode", 0)
    if node.uses_output(3):
        options["scores"] = mode
    options = {key: value for key, value in options.items() if value is not None}
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


@handler("FlexAttention", domain="ai.onnx.preview")
def _flex_attention(build: Build, node: Node) -> Any:
    options: dict[str, Any] = {}
    for name in ("score_mod", "prob_mod"):
        if node.attr(name) is not None:
            options[name] = build.body(node.attr(name), name)
    if node.attr("softmax_precision"):
        options["softmax_dtype"] = torch_dtype(node.attr("softmax_precision"))
    inputs = build.tensors_of(node)[:3]
    return build.call("ops.flex_attention", *inputs, node.attr("scale"), hint="attention", **options)


@handler("LinearAttention")
def _linear_attention(build: Build, node: Node) -> Any:
    return build.calls(
        "ops.linear_attention",
        *[build.tensor(node, i) for i in range(6)],
        count=2,
        hint="attention",
        num_heads=node.attr("q_num_heads"),
        kv_num_heads=node.attr("kv_num_heads"),
        scale=node.attr("scale", 0.0),
        update_rule=node.text("update_rule", "gated_delta"),
    )


@handler("RotaryEmbedding")
def _rotary_embedding(build: Build, node: Node) -> Any:
    options = {
        "interleaved": bool(node.attr("interleaved", 0)),
        "rotary_dim": node.attr("rotary_embedding_dim", 0),
        "num_heads": node.attr("num_heads", 0),
    }
    options = {key: value for key, value in options.items() if value}
    return build.call("ops.rotary_embedding", *build.tensors_of(node), hint="rotated", **options)


@handler("TensorScatter")
def _tensor_scatter(build: Build, node: Node) -> Any:
    inputs = [build.tensor(node, i) for i in range(3)]
    circular = node.text("mode", "linear") == "circular"
    return build.call("ops.tensor_scatter", *inputs, node.attr("axis", -2), circular, hint="cache")


@handler("Gelu", domain="com.microsoft")
def _gelu(build: Build, node: Node) -> Any:
    approximate = node.text("approximate", "none")
    extra = {} if approximate == "none" else {"approximate": approximate}
    return build.call("F.gelu", build.tensor(node, 0), hint="gelu", **extra)
