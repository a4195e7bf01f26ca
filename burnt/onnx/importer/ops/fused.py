"""ONNX Runtime's fused ops (domain com.microsoft), as its optimizer writes them."""

from __future__ import annotations

from typing import Any

from burnt.errors import UnsupportedError
from burnt.onnx.importer.build import Build, Node
from burnt.onnx.importer.registry import find_handler, handler

MS = "com.microsoft"
_ACTIVATIONS = {"Relu": "torch.relu", "Tanh": "torch.tanh", "Sigmoid": "torch.sigmoid"}


@handler("BiasGelu", domain=MS)
def _bias_gelu(build: Build, node: Node) -> Any:
    total = build.call("torch.add", *build.tensors_of(node), hint="x")
    return build.call("F.gelu", total, hint="gelu")


@handler("FastGelu", domain=MS)
def _fast_gelu(build: Build, node: Node) -> Any:
    x = build.tensor(node, 0)
    if node.has(1):
        x = build.call("torch.add", x, build.tensor(node, 1), hint="x")
    return build.call("F.gelu", x, hint="gelu", approximate="tanh")


@handler("QuickGelu", domain=MS)
def _quick_gelu(build: Build, node: Node) -> Any:
    return build.call("ops.quick_gelu", build.tensor(node, 0), node.attr("alpha", 1.702), hint="gelu")


@handler("SkipLayerNormalization", domain=MS)
def _skip_layer_norm(build: Build, node: Node) -> Any:
    inputs = [build.tensor(node, i) for i in range(5)]
    y, total = build.calls("ops.skip_layer_norm", *inputs, node.attr("epsilon", 1e-12), count=2, hint="norm")
    return y, None, None, total


@handler("SkipSimplifiedLayerNormalization", domain=MS)
def _skip_rms_norm(build: Build, node: Node) -> Any:
    inputs = [build.tensor(node, i) for i in range(4)]
    y, total = build.calls("ops.skip_rms_norm", *inputs, node.attr("epsilon", 1e-12), count=2, hint="norm")
    return y, None, None, total


@handler("EmbedLayerNormalization", domain=MS)
def _embed_layer_norm(build: Build, node: Node) -> Any:
    inputs = [build.tensor(node, i) for i in range(9)]
    eps = node.attr("epsilon", 1e-12)
    return build.calls("ops.embed_layer_norm", *inputs, eps, count=3, hint="embedded")


@handler("FusedMatMul", "TransposeMatMul", domain=MS)
def _fused_matmul(build: Build, node: Node) -> Any:
    _refuse(node, "transBatchA", "transBatchB")
    flags = bool(node.attr("transA", 0)), bool(node.attr("transB", 0))
    return build.call(
        "ops.fused_matmul", *build.tensors_of(node), node.attr("alpha", 1.0), *flags, hint="matmul"
    )


def _refuse(node: Node, *attributes: str) -> None:
    for name in attributes:
        if node.attr(name):
            raise UnsupportedError(
                f"an attribute of {node.op} is not supported",
                where=node.name,
                expected=f"no {name}",
                found=node.attr(name),
            )


@handler("FusedConv", "FusedGemm", domain=MS)
def _fused_activation(build: Build, node: Node) -> Any:
    plain = "Conv" if node.op == "FusedConv" else "Gemm"
    found = find_handler("", plain, 13)
    assert found is not None
    y = found(build, node)
    if node.has(3):  # FusedConv's Z
        y = build.call("torch.add", y, build.tensor(node, 3), hint="x")
    name = node.text("activation", "")
    if name == "LeakyRelu":
        slope = node.attr("activation_alpha", (node.attr("activation_params") or [0.01])[0])
        return build.call("F.leaky_relu", y, slope, hint="x")
    if name and name not in _ACTIVATIONS:
        raise UnsupportedError(
            f"an activation of {node.op} is not supported",
            where=node.name,
            expected=", ".join([*_ACTIVATIONS, "LeakyRelu"]),
            found=name,
        )
    return build.call(_ACTIVATIONS[name], y, hint="x") if name else y


@handler("MatMulNBits", domain=MS)
def _matmul_nbits(build: Build, node: Node) -> Any:
    if node.has(4):
        raise UnsupportedError(
            "MatMulNBits with group indices is not supported",
            where=node.name,
            expected="no g_idx",
            found="g_idx",
        )
    inputs = [build.tensor(node, i) for i in (0, 1, 2, 3, 5)]
    sizes = {"k": node.attr("K"), "n": node.attr("N"), "bits": node.attr("bits", 4)}
    return build.call("ops.matmul_nbits", *inputs, hint="linear", block=node.attr("block_size"), **sizes)


@handler("MatMulIntegerToFloat", domain=MS)
def _matmul_integer_to_float(build: Build, node: Node) -> Any:
    return build.call("ops.matmul_integer_to_float", *build.tensors_of(node), hint="matmul")


@handler("DynamicQuantizeMatMul", domain=MS)
def _dynamic_matmul(build: Build, node: Node) -> Any:
    return build.call("ops.dynamic_quantize_matmul", *build.tensors_of(node), hint="matmul")


def _options(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {"num_heads": node.attr("num_heads"), "scale": node.attr("scale") or None}
    found["is_causal"] = bool(node.attr("unidirectional", 0)) or None
    found["mask_value"] = node.attr("mask_filter_value")
    return {key: value for key, value in found.items() if value is not None}


@handler("Attention", domain=MS)
def _packed_attention(build: Build, node: Node) -> Any:
    _refuse(node, "do_rotary", "qkv_hidden_sizes", "past_present_share_buffer")
    inputs = [build.tensor(node, i) for i in range(6)]
    return build.calls("ops.packed_attention", *inputs, count=2, hint="attention", **_options(node))


@handler("MultiHeadAttention", domain=MS)
def _multi_head_attention(build: Build, node: Node) -> Any:
    inputs = [build.tensor(node, i) for i in range(8)]
    return build.calls("ops.multi_head_attention", *inputs, count=3, hint="attention", **_options(node))


@handler("RotaryEmbedding", domain=MS)
def _rotary(build: Build, node: Node) -> Any:
    _refuse(node, "is_packed_batching", "scale" if node.attr("scale", 1.0) != 1.0 else "is_packed_batching")
    options = {
        "interleaved": bool(node.attr("interleaved", 0)),
        "num_heads": node.attr("num_heads", 0),
        "rotary_dim": node.attr("rotary_embedding_dim", 0),
    }
    options = {key: value for key, value in options.items() if value}
    return build.call("ops.rotary", *build.tensors_of(node), hint="rotated", **options)


@handler("GroupQueryAttention", domain=MS)
def _group_query_attention(build: Build, node: Node) -> Any:
    _refuse(node, "smooth_softmax", "k_quant_type", "v_quant_type", "qk_output")
    if any(node.has(i) for i in range(9, node.num_inputs)):
        raise UnsupportedError(
            "GroupQueryAttention with positions, a bias or a sink is not supported",
            where=node.name,
            expected="at most 9 inputs",
            found=f"{node.num_inputs} inputs",
        )
    inputs = [build.tensor(node, i) for i in (0, 1, 2, 3, 4, 5, 7, 8)]
    options: dict[str, Any] = {
        "num_heads": node.attr("num_heads"),
        "kv_num_heads": node.attr("kv_num_heads"),
        "scale": node.attr("scale") or None,
        "softcap": node.attr("softcap") or None,
        "window": None if node.attr("local_window_size", -1) < 0 else node.attr("local_window_size"),
        "rotate": bool(node.attr("do_rotary", 0)) or None,
        "interleaved": bool(node.attr("rotary_interleaved", 0)) or None,
    }
    options = {key: value for key, value in options.items() if value is not None}
    return build.calls("ops.group_query_attention", *inputs, count=3, hint="attention", **options)
