"""ONNX Runtime's fused ops (com.microsoft), next to ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper

from burnt.onnx import backend

_RNG = np.random.default_rng(0)


def _f(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.standard_normal(shape).astype(np.float32)


def _model(
    op: str, inputs: list[Any], constants: set[int], outputs: int, **attributes: Any
) -> tuple[Any, Any]:
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        op, names, [f"y{i}" for i in range(outputs)], domain="com.microsoft", **attributes
    )
    given = {n: v for i, (n, v) in enumerate(zip(names, inputs, strict=False)) if n and i not in constants}
    fixed = [numpy_helper.from_array(inputs[i], names[i]) for i in sorted(constants)]
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in given.items()
        ],
        [
            helper.make_tensor_value_info(f"y{i}", 6 if op.startswith("Embed") and i else 1, None)
            for i in range(outputs)
        ],
        fixed,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), given


_U8 = np.uint8
_COS, _SIN = np.cos(_f(16, 4)), np.sin(_f(16, 4))
_COS_GQA, _SIN_GQA = np.cos(_f(16, 8)), np.sin(_f(16, 8))
_PACKED = _RNG.integers(0, 255, (6, 2, 16)).astype(_U8)
CASES: dict[str, Any] = {
    "bias_gelu": ("BiasGelu", [_f(2, 3, 8), _f(8)], {1}, 1, {}),
    "fast_gelu": ("FastGelu", [_f(2, 3, 8), _f(8)], {1}, 1, {}),
    "quick_gelu": ("QuickGelu", [_f(2, 3, 8)], set(), 1, {}),
    "gelu": ("Gelu", [_f(2, 3, 8)], set(), 1, {}),
    "skip_layer_norm": (
        "SkipLayerNormalization",
        [_f(2, 3, 8), _f(2, 3, 8), _f(8), _f(8), _f(8)],
        {2, 3, 4},
        1,
        {},
    ),
    "skip_rms_norm": ("SkipSimplifiedLayerNormalization", [_f(2, 3, 8), _f(2, 3, 8), _f(8)], {2}, 1, {}),
    "embed": (
        "EmbedLayerNormalization",
        [
            np.array([[1, 2, 3]], np.int32),
            np.array([[0, 1, 1]], np.int32),
            _f(9, 8),
            _f(5, 8),
            _f(2, 8),
            _f(8),
            _f(8),
        ],
        {2, 3, 4, 5, 6},
        2,
        {},
    ),
    "fused_matmul": (
        "FusedMatMul",
        [_f(2, 4, 3), _f(2, 5, 4)],
        set(),
        1,
        {"transA": 1, "transB": 1, "alpha": 0.5},
    ),
    "fused_conv": ("FusedConv", [_f(1, 2, 5, 5), _f(3, 2, 3, 3), _f(3)], {1, 2}, 1, {"activation": "Relu"}),
    "attention": ("Attention", [_f(2, 3, 8), _f(8, 24), _f(24)], {1, 2}, 1, {"num_heads": 2}),
    "attention_mask": (
        "Attention",
        [_f(2, 3, 8), _f(8, 24), _f(24), np.array([[1, 1, 0], [1, 1, 1]], np.int32)],
        {1, 2},
        1,
        {"num_heads": 2},
    ),
    "attention_causal": (
        "Attention",
        [_f(2, 3, 8), _f(8, 24), _f(24)],
        {1, 2},
        1,
        {"num_heads": 2, "unidirectional": 1},
    ),
    "multi_head": ("MultiHeadAttention", [_f(2, 3, 8), _f(2, 5, 8), _f(2, 5, 8)], set(), 1, {"num_heads": 2}),
    "multi_head_bias": (
        "MultiHeadAttention",
        [_f(2, 3, 8), _f(2, 5, 8), _f(2, 5, 8), _f(24)],
        {3},
        1,
        {"num_heads": 2},
    ),
    "rotary": (
        "RotaryEmbedding",
        [_f(2, 3, 16), np.array([[0, 1, 2], [3, 4, 5]], np.int64), _COS, _SIN],
        {2, 3},
        1,
        {},
    ),
    "rotary_interleaved": (
        "RotaryEmbedding",
        [_f(2, 2, 3, 8), np.array([2], np.int64), _COS, _SIN],
        {2, 3},
        1,
        {"interleaved": 1},
    ),
    "matmul_nbits": (
        "MatMulNBits",
        [_f(2, 3, 64), _PACKED.reshape(6, 2, 16), _f(12)],
        {1, 2},
        1,
        {"K": 64, "N": 6, "bits": 4, "block_size": 32},
    ),
    "matmul_nbits_zero": (
        "MatMulNBits",
        [_f(2, 3, 64), _PACKED.reshape(6, 2, 16), _f(12), _PACKED.reshape(-1)[:6].copy()],
        {1, 2, 3},
        1,
        {"K": 64, "N": 6, "bits": 4, "block_size": 32},
    ),
    "dynamic_matmul": (
        "DynamicQuantizeMatMul",
        [_f(3, 8), _PACKED.reshape(-1)[:40].reshape(8, 5), _f(1), np.array([7], _U8)],
        {1, 2, 3},
        1,
        {},
    ),
    "gqa": (
        "GroupQueryAttention",
        [
            _f(1, 3, 64),
            _f(1, 3, 32),
            _f(1, 3, 32),
            None,
            None,
            np.array([2], np.int32),
            np.array(3, np.int32),
            _COS_GQA,
            _SIN_GQA,
        ],
        {7, 8},
        3,
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
    ),
    "gqa_past": (
        "GroupQueryAttention",
        [
            _f(1, 1, 64),
            _f(1, 1, 32),
            _f(1, 1, 32),
            _f(1, 2, 4, 16),
            _f(1, 2, 4, 16),
            np.array([4], np.int32),
            np.array(5, np.int32),
            _COS_GQA,
            _SIN_GQA,
        ],
        {7, 8},
        3,
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fused_op_equals_onnxruntime(name: str) -> None:
    """Outputs agree to 1e-5 of their scale."""
    op, inputs, constants, outputs, attributes = CASES[name]
    model, given = _model(op, inputs, constants, outputs, **attributes)
    want = ort.InferenceSession(model.SerializeToString()).run(None, given)
    found = backend.prepare(model).run(list(given.values()))
    for a, b in zip(want, found, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(b, a, atol=1e-5 * max(1.0, float(np.abs(a).max())))
