"""Single nodes that ONNX's own tests leave out, next to ONNX Runtime."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
from onnx import helper, numpy_helper

from burnt.onnx import backend

_RNG = np.random.default_rng(0)
MS, ML = "com.microsoft", "ai.onnx.ml"


def _f(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.standard_normal(shape).astype(np.float32)


def _u8(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.integers(0, 255, shape).astype(np.uint8)


def _i32(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def _text(*values: str) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=object)


class Case(NamedTuple):
    """A node: inputs (None is left out), those that are constant, attributes."""

    op: str
    inputs: list[Any]
    attributes: dict[str, Any] = {}
    constants: tuple[int, ...] = ()
    outputs: int = 1
    domain: str = ""
    opset: int = 17


def _ml(op: str, inputs: list[Any], opset: int = 3, **attributes: Any) -> Case:
    return Case(op, inputs, attributes, domain=ML, opset=opset)


def _ms(op: str, inputs: list[Any], *constants: int, outputs: int = 1, **attributes: Any) -> Case:
    return Case(op, inputs, attributes, constants, outputs, MS)


def _lstm(**attributes: Any) -> Case:
    inputs = [3 * _f(4, 2, 3), _f(1, 20, 3), _f(1, 20, 5), _f(1, 40)]
    return Case("LSTM", inputs, {"hidden_size": 5, **attributes}, (1, 2, 3), 3)


def _gqa(steps: int, past: int, last: list[int], total: int, **attributes: Any) -> Case:
    batch = len(last)
    cache = [_f(batch, 2, past, 16), _f(batch, 2, past, 16)] if past else [None, None]
    cos, sin = np.cos(_f(16, 8)), np.sin(_f(16, 8))
    inputs = [_f(batch, steps, 64), _f(batch, steps, 32), _f(batch, steps, 32), *cache]
    inputs += [_i32(*last), np.array(total, np.int32), cos, sin]
    options = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, **attributes}
    return Case("GroupQueryAttention", inputs, options, (7, 8), 3, MS)


_MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
CASES: dict[str, Case] = {
    "max_roi_pool": Case(
        "MaxRoiPool",
        [_f(2, 3, 8, 8), np.array([[0, 0, 0, 7, 7], [1, 2, 1, 5, 6]], np.float32)],
        {"pooled_shape": [3, 2], "spatial_scale": 0.9},
    ),
    "global_lp_pool": Case("GlobalLpPool", [_f(2, 3, 4, 5)], {"p": 3}),
    "upsample_nearest": Case(
        "Upsample", [_f(1, 2, 3, 4), np.array([1, 1, 2, 1.5], np.float32)], {}, (1,), opset=9
    ),
    "upsample_linear": Case(
        "Upsample", [_f(1, 2, 3, 4), np.array([1, 1, 2, 3], np.float32)], {"mode": "linear"}, (1,), opset=9
    ),
    "lstm_clip": _lstm(clip=0.4),
    "lstm_input_forget": _lstm(input_forget=1),
    "fused_gemm": _ms("FusedGemm", [_f(3, 4), _f(4, 5), _f(5)], 1, 2, activation="Relu", alpha=0.5),
    "fused_gemm_leaky": _ms(
        "FusedGemm", [_f(3, 4), _f(5, 4), _f(5)], transB=1, activation="LeakyRelu", activation_alpha=0.2
    ),
    "integer_to_float": _ms(
        "MatMulIntegerToFloat", [_u8(3, 4), _u8(4, 5), _f(1), _f(5), _u8(1), _u8(5), _f(5)], 1, 3, 5, 6
    ),
    "integer_to_float_plain": _ms("MatMulIntegerToFloat", [_u8(3, 4), _u8(4, 5), _f(1), _f(1)], 1, 3),
    "matmul_batch_first": _ms("FusedMatMul", [_f(3, 2, 4), _f(4, 2, 5)], transBatchA=1, transBatchB=1),
    "matmul_batch_first_transposed": _ms(
        "FusedMatMul", [_f(4, 2, 3), _f(5, 2, 4)], transBatchA=1, transA=1, transBatchB=1, transB=1
    ),
    "nbits_groups": _ms(
        "MatMulNBits",
        [_f(3, 64), _u8(6, 2, 16), _f(12), None, _RNG.integers(0, 2, 64).astype(np.int32)],
        *(1, 2, 4),
        K=64,
        N=6,
        bits=4,
        block_size=32,
    ),
    "nbits_odd": _ms(
        "MatMulNBits",
        [_f(3, 40), _u8(6, 3, 16)[:, :2], _f(12), _u8(6), None, _f(6)],
        *(1, 2, 3, 5),
        K=40,
        N=6,
        bits=4,
        block_size=32,
    ),
    "nbits_8": _ms("MatMulNBits", [_f(3, 64), _u8(6, 2, 32), _f(12)], 1, 2, K=64, N=6, bits=8, block_size=32),
    "attention_sizes": _ms(
        "Attention", [_f(2, 3, 8), _f(8, 28), _f(28)], 1, 2, num_heads=2, qkv_hidden_sizes=[8, 8, 12]
    ),
    "heads_mask": _ms(
        "MultiHeadAttention", [_f(2, 3, 8), _f(2, 5, 8), _f(2, 5, 8), None, _MASK], num_heads=2
    ),
    "heads_lengths": _ms(
        "MultiHeadAttention", [_f(2, 3, 8), _f(2, 5, 8), _f(2, 5, 8), None, _i32(3, 5)], num_heads=2
    ),
    "heads_past": _ms(
        "MultiHeadAttention",
        [_f(2, 1, 8), _f(2, 1, 8), _f(2, 1, 8), None, None, None, _f(2, 2, 4, 4), _f(2, 2, 4, 4)],
        outputs=3,
        num_heads=2,
    ),
    "heads_bias": _ms(
        "MultiHeadAttention",
        [_f(2, 3, 8), _f(2, 5, 8), _f(2, 5, 8), None, None, _f(1, 2, 3, 5)],
        num_heads=2,
        scale=0.3,
    ),
    "heads_causal": _ms(
        "MultiHeadAttention", [_f(2, 5, 8), _f(2, 5, 8), _f(2, 5, 8)], num_heads=2, unidirectional=1
    ),
    "gqa_window": _gqa(7, 0, [6, 6], 7, local_window_size=3),
    "gqa_softcap": _gqa(5, 0, [4], 5, softcap=2.0, scale=0.5),
    "gqa_past_window": _gqa(1, 7, [7, 7], 8, local_window_size=3),
    "gqa_unequal": _gqa(1, 7, [7, 4], 8),
    "gqa_packed_steps": _gqa(2, 5, [6], 7),
    "imputer": _ml(
        "Imputer",
        [np.array([[1, np.nan], [2, 3]], np.float32)],
        imputed_value_floats=[5.0, 7.0],
        replaced_value_float=np.nan,
    ),
    "imputer_int": _ml(
        "Imputer", [np.array([[1, -1], [-1, 3]])], imputed_value_int64s=[9], replaced_value_int64=-1
    ),
    "one_hot_int": _ml("OneHotEncoder", [np.array([[1, 3], [2, 9]])], cats_int64s=[1, 2, 3], zeros=1),
    "one_hot_text": _ml("OneHotEncoder", [_text("a", "b", "c")], cats_strings=["b", "a"], zeros=1),
    "features": _ml("FeatureVectorizer", [_f(3, 2), _f(3, 4)], inputdimensions=[2, 4]),
    "features_cut": _ml("FeatureVectorizer", [_f(3, 2), _f(3, 4)], inputdimensions=[3, 2]),
    "category_to_int": _ml(
        "CategoryMapper",
        [_text("a", "x", "b")],
        cats_strings=["a", "b"],
        cats_int64s=[4, 7],
        default_int64=-2,
    ),
    "category_to_text": _ml(
        "CategoryMapper",
        [np.array([7, 1, 4])],
        cats_strings=["a", "b"],
        cats_int64s=[4, 7],
        default_string="?",
    ),
    "labels_1": _ml("LabelEncoder", [_text("b", "z", "a")], 1, classes_strings=["a", "b"], default_int64=-3),
    "labels_text_int": _ml(
        "LabelEncoder",
        [_text("b", "z", "a")],
        keys_strings=["a", "b"],
        values_int64s=[5, 6],
        default_int64=-3,
    ),
    "labels_int_float": _ml(
        "LabelEncoder", [np.array([1, 2, 8])], keys_int64s=[1, 2], values_floats=[0.5, 1.5], default_float=9.0
    ),
    "labels_float_text": _ml(
        "LabelEncoder", [np.array([1, 2.5, 3], np.float32)], keys_floats=[1.0, 2.5], values_strings=["a", "b"]
    ),
}

_TABLE = _text("a", "b", "c", "d", "", "f").reshape(2, 3)
_LAST = np.array([2])
CASES |= {
    "text_reshape": Case("Reshape", [_TABLE, np.array([0, -1, 1])], constants=(1,)),
    "text_flatten": Case("Flatten", [_TABLE], {"axis": -1}),
    "text_transpose": Case("Transpose", [_TABLE], {"perm": [1, 0]}),
    "text_transpose_constant": Case("Transpose", [_TABLE], {"perm": [1, 0]}, (0,)),
    "text_squeeze": Case("Squeeze", [_TABLE[None]]),
    "text_unsqueeze": Case("Unsqueeze", [_TABLE, _LAST], constants=(1,)),
    "text_slice": Case("Slice", [_TABLE, np.array([1]), np.array([3]), np.array([1])], constants=(1, 2, 3)),
    "text_expand": Case("Expand", [_TABLE, np.array([2, 1, 3])], constants=(1,)),
    "text_tile": Case("Tile", [_TABLE, np.array([2, 1])], constants=(1,)),
    "text_split": Case("Split", [_TABLE], {"axis": 0}, outputs=2),
    "text_gather": Case("Gather", [_TABLE, _LAST], {"axis": 1}),
    "text_gather_elements": Case("GatherElements", [_TABLE, np.array([[2], [0]])], {"axis": 1}),
    "text_gather_nd": Case("GatherND", [_TABLE, np.array([[1, 0]])]),
    "text_compress": Case("Compress", [_TABLE, np.array([True, False, True])], {"axis": 1}),
    "text_concat": Case("Concat", [_TABLE, _TABLE], {"axis": 1}),
    "text_reverse": Case("ReverseSequence", [_TABLE, np.array([2, 3])], {"batch_axis": 0, "time_axis": 1}),
}


def _model(case: Case) -> tuple[onnx.ModelProto, dict[str, Any]]:
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(case.inputs)]
    node = helper.make_node(
        case.op, names, [f"y{i}" for i in range(case.outputs)], domain=case.domain, **case.attributes
    )
    given = {
        n: v for i, (n, v) in enumerate(zip(names, case.inputs, strict=True)) if n and i not in case.constants
    }
    kinds = {
        n: 8 if v.dtype == object else helper.np_dtype_to_tensor_dtype(v.dtype) for n, v in given.items()
    }
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, kinds[n], v.shape) for n, v in given.items()],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(case.outputs)],
        [numpy_helper.from_array(case.inputs[i], names[i]) for i in case.constants],
    )
    version = 17 if case.domain else case.opset
    opsets = [helper.make_opsetid("", version)]
    if case.domain:
        opsets.append(helper.make_opsetid(case.domain, 1 if case.domain == MS else case.opset))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), given


@pytest.mark.parametrize("name", CASES)
def test_node_equals_onnxruntime(name: str) -> None:
    """Floating-point outputs agree to 1e-5 of their scale, others are equal."""
    case = CASES[name]
    model, given = _model(case)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    for output, info in zip(model.graph.output, session.get_outputs(), strict=True):
        kind = {"tensor(float)": 1, "tensor(int64)": 7, "tensor(string)": 8}[info.type]
        output.CopyFrom(helper.make_tensor_value_info(info.name, kind, None))
    want = session.run(None, given)
    found = backend.prepare(model).run(list(given.values()))
    for a, b in zip(want, found, strict=True):
        assert a.shape == b.shape
        if "gqa" in name and b.ndim == 4:  # places after the last key are not defined
            lasts = case.inputs[5]
            for row, last in enumerate(lasts):
                np.testing.assert_allclose(b[row, :, : last + 1], a[row, :, : last + 1], atol=1e-5)
        elif a.dtype == np.float32:
            np.testing.assert_allclose(b, a, atol=1e-5 * max(1.0, float(np.abs(a).max())))
        else:
            assert b.dtype == a.dtype
            np.testing.assert_array_equal(b, a)
