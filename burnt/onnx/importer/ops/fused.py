"""Attention; ONNX Runtime's fused ops (com.microsoft); nodes that `burnt.onnx.importer.patterns` writes."""

from __future__ import annotations

import math
from typing import Any

import torch

from burnt import nn
from burnt.errors import UnsupportedError
from burnt.onnx import functions
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor, torch_dtype
from burnt.onnx.importer.matching import DOMAIN, shape_of
from burnt.onnx.importer.node import Node, find_handler, handler
from burnt.onnx.importer.ops.layers import float_constant, set_weights
from burnt.onnx.importer.quantized import QuantizedWeight, add_quantized
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


@handler("ChannelsLayerNorm", domain=DOMAIN)
def _channels_layer_norm(build: Build, node: Node) -> Any:
    """LayerNorm over the channels of images, as ConvNeXt has it."""
    eps, x = node.attr("epsilon"), build.call("torch.movedim", build.tensor(node, 0), 1, -1, hint="x")
    weights = [float_constant(build, node, i) for i in range(1, node.num_inputs)]
    scale, bias = [*weights, None][:2]
    if scale is not None and (bias is not None or node.num_inputs == 2):
        layer = nn.LayerNorm(scale.size, eps, bias=bias is not None)
        set_weights(layer, weight=scale.reshape(-1), bias=None if bias is None else bias.reshape(-1))
        norm = build.layer(layer, x, hint="norm")
    else:
        norm = build.call("ops.layer_norm", x, *_flat_weights(build, node), eps=eps, hint="norm")
    return build.call("torch.movedim", norm, -1, 1, hint="x")


@handler("GroupNorm", domain=DOMAIN)
def _group_norm(build: Build, node: Node) -> Any:
    x, groups, eps = build.tensor(node, 0), node.attr("groups"), node.attr("epsilon")
    weights = [float_constant(build, node, i) for i in range(1, node.num_inputs)]
    if any(weight is None for weight in weights):
        return build.call("F.group_norm", x, groups, *_flat_weights(build, node), eps=eps, hint="norm")
    layer = nn.GroupNorm(groups, node.attr("channels"), eps, affine=bool(weights))
    arrays = zip(("weight", "bias"), weights, strict=False)
    set_weights(layer, **{name: None if array is None else array.reshape(-1) for name, array in arrays})
    return build.layer(layer, x, hint="norm")


def _flat_weights(build: Build, node: Node) -> list[Any]:
    """Return the weights of channels with one axis."""
    ranks = {index: build.rank(node, index) for index in range(1, node.num_inputs)}
    return [
        build.tensor(node, i)
        if rank == 1
        else build.call("torch.flatten", build.tensor(node, i), hint="flat")
        for i, rank in ranks.items()
    ]


@handler("Roll", domain=DOMAIN)
def _roll(build: Build, node: Node) -> Any:
    x, shifts = build.tensor(node, 0), {node.attr("axis"): node.attr("shift")}
    before = build.maker(x, "torch.roll") if node.is_only_use(0) else None
    if before is not None:
        values, axes = (one if isinstance(one, tuple) else (one,) for one in before.args[1:])
        if node.attr("axis") not in axes:
            x, shifts = before.args[0], dict(zip(axes, values, strict=True)) | shifts
    both = [tuple(shifts[axis] for axis in sorted(shifts)), tuple(sorted(shifts))]
    return build.call("torch.roll", x, *(one if len(one) > 1 else one[0] for one in both), hint="rolled")


@handler("Attention", domain=DOMAIN)
def _fused_attention(build: Build, node: Node) -> Any:
    scale, value = node.attr("scale"), node.node.inputs[0]
    size = value.shape[-1] if value is not None and value.shape is not None else None
    is_default = isinstance(size, int) and scale is not None and math.isclose(scale, size**-0.5, rel_tol=1e-6)
    extra = {} if is_default or scale is None else {"scale": scale}
    query, *both, mask = [*build.tensors_of(node), None][:4]
    if node.attr("grouped", 0):
        extra["enable_gqa"] = True
    inputs = [query, *both] if mask is None else [query, *both, mask]
    return build.call("F.scaled_dot_product_attention", *inputs, hint="attention", **extra)
