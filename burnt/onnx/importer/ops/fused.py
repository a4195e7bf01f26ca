"""ONNX Runtime's fused ops (domain com.microsoft), as its optimizer writes them."""

from __future__ import annotations

from typing import Any

import torch

from burnt import nn
from burnt.errors import UnsupportedError
from burnt.onnx import functions
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.quantized import QuantizedWeight, add_quantized
from burnt.onnx.importer.registry import find_handler, handler
from burnt.scheme import QuantScheme

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


@handler("SkipLayerNormalization", domain=MS)
def _skip_layer_norm(build: Build, node: Node) -> Any:
    inputs = build.tensors_of(node, 5)
    y, total = build.calls("ops.skip_layer_norm", *inputs, node.attr("epsilon", 1e-12), count=2, hint="norm")
    return y, None, None, total


@handler("SkipSimplifiedLayerNormalization", domain=MS)
def _skip_rms_norm(build: Build, node: Node) -> Any:
    inputs = build.tensors_of(node, 4)
    y, total = build.calls("ops.skip_rms_norm", *inputs, node.attr("epsilon", 1e-12), count=2, hint="norm")
    return y, None, None, total


@handler("FusedMatMul", "TransposeMatMul", domain=MS)
def _fused_matmul(build: Build, node: Node) -> Any:
    transposed = ("transpose_a", False, "transA"), ("transpose_b", False, "transB")
    flags = node.options(*transposed, ("batch_a", False, "transBatchA"), ("batch_b", False, "transBatchB"))
    inputs = *build.tensors_of(node), node.attr("alpha", 1.0)
    return build.call("ops.fused_matmul", *inputs, hint="matmul", **flags)


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
    layer = _nbits_layer(build, node)
    if layer is not None:
        return layer
    inputs = build.tensors_of(node, 6)
    sizes = {"k": node.attr("K"), "n": node.attr("N"), "bits": node.attr("bits", 4)}
    return build.call("ops.matmul_nbits", *inputs, hint="linear", block=node.attr("block_size"), **sizes)


def _nbits_layer(build: Build, node: Node) -> Any:
    """Return the call of a quantized layer; None if burnt has none with this weight."""
    packed, scales, zeros, bias = (build.constant(node, i) for i in (1, 2, 3, 5))
    is_known = packed is not None and scales is not None and (zeros is not None or not node.has(3))
    if not is_known or node.has(4) or (bias is None and node.has(5)) or not node.is_only_use(1):
        return None
    assert packed is not None
    assert scales is not None
    n, k, bits, block = (node.attr(name, 4) for name in ("N", "K", "bits", "block_size"))
    blocks = -(-k // max(1, block))
    if packed.size * 8 != n * blocks * block * bits or scales.size != n * blocks:
        raise node.refusal(
            "K", f"K, N, bits and block_size of a weight {packed.shape}, scales {scales.shape}"
        )
    if bits not in (2, 4, 8) or scales.dtype.name not in ("float32", "float16", "bfloat16"):
        return None
    tensors = [None if array is None else to_tensor(array) for array in (packed, scales, zeros)]
    assert tensors[0] is not None
    assert tensors[1] is not None
    half = 2 ** (bits - 1)
    zero_point = None
    if tensors[2] is not None and tensors[2].dtype == torch.uint8:
        zero_point = functions.nbits_codes(tensors[2], n, bits)[:, : -(-k // block)] - half
    elif tensors[2] is not None:
        zero_point = tensors[2].float().reshape(n, -1) - half
        if bool((zero_point != zero_point.round()).any()) or float(zero_point.abs().max()) > half:
            return None
    weight = functions.nbits_weight(
        tensors[0], tensors[1], tensors[2], None, k=k, n=n, bits=bits, block=block
    )
    scheme = QuantScheme(f"int{bits}", "block", block, symmetric=zero_point is None, scale=scales.dtype.name)
    linear = nn.Linear(k, n, bias=bias is not None, device="meta", dtype=weight.dtype)
    if bias is not None:
        linear.bias = torch.nn.Parameter(to_tensor(bias))
    whole = None if zero_point is None else zero_point.to(torch.int8)
    found = QuantizedWeight(scheme, weight, tensors[1].reshape(n, -1), whole)
    return add_quantized(build, node, linear, found, hint="linear", x=build.tensor(node, 0))


def _options(node: Node) -> dict[str, Any]:
    names = ("scale", 0.0), ("is_causal", False, "unidirectional"), ("mask_value", None, "mask_filter_value")
    return node.options(("num_heads", None), *names)


@handler("Attention", domain=MS)
def _packed_attention(build: Build, node: Node) -> Any:
    options = _options(node) | node.options(("sizes", None, "qkv_hidden_sizes"))
    inputs = build.tensors_of(node, 6)
    return build.calls("ops.packed_attention", *inputs, count=2, hint="attention", **options)


@handler("MultiHeadAttention", domain=MS)
def _multi_head_attention(build: Build, node: Node) -> Any:
    inputs = build.tensors_of(node, 8)
    return build.calls("ops.multi_head_attention", *inputs, count=3, hint="attention", **_options(node))


@handler("RotaryEmbedding", domain=MS)
def _rotary(build: Build, node: Node) -> Any:
    if node.attr("scale", 1.0) != 1.0:
        raise node.refusal("scale", "1.0")
    sizes = ("num_heads", 0), ("rotary_dim", 0, "rotary_embedding_dim")
    options = node.options(("interleaved", False), *sizes)
    return build.call("ops.rotary", *build.tensors_of(node), hint="rotated", **options)


@handler("GroupQueryAttention", domain=MS)
def _group_query_attention(build: Build, node: Node) -> Any:
    node.ignore("qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon")  # of inputs that are refused
    if any(node.has(i) for i in range(9, node.num_inputs)):
        raise UnsupportedError(
            "GroupQueryAttention with positions, a bias or a sink is not supported",
            where=node.name,
            expected="at most 9 inputs",
            found=f"{node.num_inputs} inputs",
        )
    inputs = build.tensors_of(node, 9)
    inputs[6] = build.integer(node, 6)
    options = node.options(
        *(("num_heads", None), ("kv_num_heads", None), ("scale", 0.0), ("softcap", 0.0)),
        ("window", -1, "local_window_size"),
        *(("rotate", False, "do_rotary"), ("interleaved", False, "rotary_interleaved")),
    )
    return build.calls("ops.group_query_attention", *inputs, count=3, hint="attention", **options)
