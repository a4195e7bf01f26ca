"""Attributes, shapes and graphs that few exporters write, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import burnt
from burnt.errors import UnsupportedError
from burnt.onnx.importer.package import module_source, write_package
from tests.onnx.test_import_files import import_package

Arrays = Mapping[str, np.ndarray[Any, Any]]

RNG = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


def _model(text: str, constants: Arrays | None = None, ml: int = 1) -> ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": {ml}]>\n{text}')
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def _expected(model: ModelProto, inputs: Arrays) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def _check(model: ModelProto, inputs: Arrays) -> burnt.Module:
    """Compare with ONNX Runtime; return the imported module."""
    module = burnt.onnx.load(model)
    with torch.no_grad():
        found = module(*map(torch.from_numpy, inputs.values()))
    found = found if isinstance(found, tuple) else (found,)
    for one, other in zip(found, _expected(model, inputs), strict=True):
        np.testing.assert_allclose(one.numpy(force=True), other, rtol=1e-4, atol=1e-5, strict=True)
    return module


# --- patterns ---------------------------------------------------------------------------------------------

GELU = """g (float[N, 4] x) => (float[a, b, c] y) {
    s = Div(x, root)  e = Erf(s)  u = Add(e, one)  m = Mul(x, u)  y = Mul(m, half)
}"""
LAYER_NORM = """g (float[N, 4, 4] x) => (float[a, b, c] y) {
    mean = ReduceMean<axes = [AXIS]>(x)  c = Sub(x, mean)  mean2 = ReduceMean<axes = [-1]>(x)
    d = Sub(x, mean2)  p = Mul(d, d)  v = ReduceMean<axes = [-1]>(p)  w = Add(v, eps)  s = Sqrt(w)
    n = Div(c, s)  q = Mul(n, scale)  y = Add(q, bias)
}"""


def test_constants_with_more_axes_than_their_operand_keep_them() -> None:
    constants = {"root": np.float32(2**0.5), "one": np.ones((1, 1, 1), np.float32), "half": np.float32(0.5)}
    _check(_model(GELU, constants), {"x": _floats(3, 4)})


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_layer_norm_takes_the_mean_of_one_axis(axis: int) -> None:
    constants = {"eps": np.float32(1e-5), "scale": _floats(4), "bias": _floats(4)}
    _check(_model(LAYER_NORM.replace("AXIS", str(axis)), constants), {"x": _floats(3, 4, 4)})


@pytest.mark.parametrize("op", ["LayerNormalization", "pattern"])
def test_a_scale_of_one_number_is_broadcast(op: str) -> None:
    text = LAYER_NORM.replace("AXIS", "-1")
    if op != "pattern":
        text = f"g (float[N, 4, 4] x) => (float[a, b, c] y) {{ y = {op}(x, scale, bias) }}"
    constants = {"scale": _floats(1), "bias": _floats(1)} | (
        {"eps": np.float32(1e-5)} if op == "pattern" else {}
    )
    _check(_model(text, constants), {"x": _floats(3, 4, 4)})


def test_a_mask_may_repeat_the_scores() -> None:
    text = """g (float[1, 2, L, 4] q, float[1, 2, 4, S] k, float[1, 2, S, 4] v, float[B, 1, L, S] mask)
        => (float[B, 2, L, 4] y) {
        s = MatMul(q, k)  u = Add(s, mask)  w = Softmax<axis = -1>(u)  y = MatMul(w, v)
    }"""
    shapes = {"q": (1, 2, 3, 4), "k": (1, 2, 4, 5), "v": (1, 2, 5, 4), "mask": (2, 1, 3, 5)}
    _check(_model(text), {name: _floats(*shape) for name, shape in shapes.items()})


# --- blocks and identities --------------------------------------------------------------------------------


def _turn(k: int, first: str, second: str, x: str) -> str:
    return f"""a{k} = MatMul({x}, {first})  b{k} = Tanh(a{k})  c{k} = MatMul(b{k}, {second})
    d{k} = Relu(c{k})  h{k} = Add(d{k}, {x})
    """


@pytest.mark.parametrize("weights", [["abcc", "abde"], ["ccab", "deab"]])
def test_a_layer_in_two_places_of_one_turn_is_no_block(weights: Sequence[str]) -> None:
    for number, names in enumerate(weights):
        text = _turn(0, names[0], names[1], "x") + _turn(1, names[2], names[3], "h0")
        model = _model(
            f"g (float[N, 3] x) => (float[M, 3] h1) {{ {text} }}",
            {n: _floats(3, 3) for n in sorted(set(names))},
        )
        module = _check(model, {"x": _floats(2, 3)})
        assert ("for block in self.blocks:" in module_source(module, "M", "m")) == bool(number)


@pytest.mark.parametrize("condition", [True, False])
def test_branches_that_return_values_from_around_them(condition: bool) -> None:
    text = """g (bool c, float[N, 3] x) => (float[N, 3] y, float[N, 3] z) {
        r = Relu(x)
        y = If(c) <then_branch = t () => (float[N, 3] u) { u = Identity(x) },
                   else_branch = e () => (float[N, 3] v) { v = Identity(r) }>
        z = If(c) <then_branch = t2 () => (float[N, 3] u2) { u2 = Identity(r) },
                   else_branch = e2 () => (float[N, 3] v2) { v2 = Neg(r) }>
    }"""
    _check(_model(text), {"c": np.array(condition), "x": _floats(2, 3)})


def test_outputs_of_one_value_keep_their_names_and_weights_stay_one() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] y, float[N, 3] z, float[3, 3] v) {
        y = MatMul(x, w)  z = Identity(y)  v = Identity(w)
    }"""
    module = _check(_model(text, {"w": _floats(3, 3)}), {"x": _floats(2, 3)})
    assert module.output_names == ["y", "z", "v"]
    assert len(list(module.parameters())) == 1


def test_weights_of_several_layers_stay_one_parameter() -> None:
    text = """g (float[N, 3] x) => (float[N, 3] y) {
        a = MatMul(x, v)  b = Add(a, bias)  c = MatMul(b, w)  d = Add(c, bias)  e = PRelu(d, slope)
        y = Mul(e, slope)
    }"""
    constants = {"v": _floats(3, 3), "w": _floats(3, 3), "bias": _floats(3), "slope": _floats(3)}
    module = _check(_model(text, constants), {"x": _floats(2, 3)})
    assert sum(p.numel() for p in module.parameters()) == 3 * 3 * 2 + 3 + 3


# --- ops --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.4, 0.6, 1.5])
def test_the_first_resize_rounds_up_where_it_reduces(scale: float) -> None:
    model = _model("g (float[1, 1, 1, 5] x) => (float[a, b, c, d] y) { y = Resize(x, scales) }")
    model.opset_import[0].version, model.ir_version = 10, 5
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 1, scale], np.float32), "scales"))
    _check(model, {"x": _floats(1, 1, 1, 5)})


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_half_pixels_of_one_element(mode: str) -> None:
    options = f'mode = "{mode}", coordinate_transformation_mode = "pytorch_half_pixel"'
    text = f"g (float[1, 1, 4, 3] x) => (float[a, b, c, d] y) {{ y = Resize<{options}>(x, , scales) }}"
    _check(_model(text, {"scales": np.array([1, 1, 1, 0.5], np.float32)}), {"x": _floats(1, 1, 4, 3)})


_CUBIC = ["antialias = 1", "exclude_outside = 1", "cubic_coeff_a = -0.5"]


@pytest.mark.parametrize("coordinates", ["align_corners", "tf_crop_and_resize", "half_pixel"])
@pytest.mark.parametrize(
    ("mode", "options"),
    [("nearest", ""), ("linear", ""), ("linear", "antialias = 1"), *(("cubic", o) for o in ("", *_CUBIC))],
)
def test_resize_where_size_times_scale_is_no_integer(mode: str, options: str, coordinates: str) -> None:
    """Corners are aligned by the integer size of the result; ONNX's own reference takes the fraction."""
    attributes = f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}"'
    attributes += f", {options}" if options else ""
    attributes += ", extrapolation_value = 3.0" if coordinates == "tf_crop_and_resize" else ""
    attributes += ', nearest_mode = "floor"' if mode != "linear" else ""
    text = f"g (float[N, 2, H, W] x) => (float[a, b, c, d] y) {{ y = Resize<{attributes}>(x, roi, scales) }}"
    roi = np.array([0, 0, 0.2, -0.3, 1, 1, 0.7, 1], np.float32)
    module = _model(text, {"scales": np.array([1, 1, 2.3, 0.6], np.float32), "roi": roi})
    module.opset_import[0].version = 19
    for height, width in ((7, 8), (9, 4)):
        _check(module, {"x": _floats(1, 2, height, width)})


@pytest.mark.parametrize("scales", [[2.3], [0.6, 2.3], [0.6, 1.7, 2.3]])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_aligns_corners_along_some_axes(mode: str, scales: list[float]) -> None:
    rank = len(scales)
    attributes = f'axes = {list(range(2, 2 + rank))}, mode = "{mode}"'
    attributes += ', coordinate_transformation_mode = "align_corners"'
    dims = ["1", "1", "5", "6", "4"][: 2 + rank]
    text = f"g (float[{', '.join(dims)}] x) => (float[{', '.join('abcde'[: 2 + rank])}] y) {{ "
    text += f"y = Resize<{attributes}>(x, , scales) }}"
    model = _model(text, {"scales": np.array(scales, np.float32)})
    model.opset_import[0].version = 19
    _check(model, {"x": _floats(*map(int, dims))})


def test_resize_with_half_pixels_of_tensorflow() -> None:
    attributes = 'mode = "nearest", coordinate_transformation_mode = "tf_half_pixel_for_nn", '
    attributes += 'nearest_mode = "floor"'
    text = f"g (float[1, 1, 4, 9] x) => (float[a, b, c, d] y) {{ y = Resize<{attributes}>(x, roi, scales) }}"
    constants = {"scales": np.array([1, 1, 0.6, 1.5], np.float32), "roi": np.zeros(0, np.float32)}
    model = _model(text, constants)
    model.opset_import[0].version = 11
    _check(model, {"x": _floats(1, 1, 4, 9)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "area"),
        ("coordinate_transformation_mode", "corners"),
        ("nearest_mode", "round"),
        ("keep_aspect_ratio_policy", "crop"),
    ],
)
def test_resize_refuses_words_that_it_does_not_know(name: str, value: str) -> None:
    text = (
        f'g (float[1, 1, 4, 4] x) => (float[a, b, c, d] y) {{ y = Resize<{name} = "{value}">(x, , scales) }}'
    )
    with pytest.raises(UnsupportedError, match=f"attribute {name} of Resize") as caught:
        burnt.onnx.load(_model(text, {"scales": np.array([1, 1, 2, 2], np.float32)}))
    assert f"found     {name}={value}" in str(caught.value)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_a_global_pool_of_an_input_without_a_shape(op: str) -> None:
    x = _floats(2, 3, 2, 3, 4)
    model = _model(f"g (float[N, C, D, H, W] x) => (float[a, b, c, d, e] y) {{ y = {op}(x) }}")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    _check(model, {"x": x})


@pytest.mark.parametrize("include", [0, 1])
def test_a_window_far_larger_than_the_input(include: int) -> None:
    """As EfficientNet pools, whose window is as large as there are channels: one of 2560 x 2560."""
    options = f"kernel_shape=[2560, 2560], strides=[2560, 2560], ceil_mode=1, count_include_pad={include}"
    text = f"g (float[N, 2, H, W] x) => (float[N, 2, a, b] y) {{ y = AveragePool<{options}>(x) }}"
    _check(_model(text), {"x": _floats(3, 2, 4, 5)})


def test_logic_with_a_constant_truth_value() -> None:
    text = "g (bool[N] x) => (bool[N] a, bool[N] b, bool[N] c) { a = And(x, t)  b = Or(x, t)  c = Xor(x, t) }"
    _check(_model(text, {"t": np.array(True)}), {"x": np.array([True, False])})


def test_the_sign_of_nan_is_nan() -> None:
    _check(
        _model("g (float[N] x) => (float[N] y) { y = Sign(x) }"), {"x": np.array([np.nan, -2], np.float32)}
    )


def test_an_embedding_without_segments_is_of_the_first_one() -> None:
    names = ["ids", "", "words", "places", "kinds", "scale", "shift"]
    node = helper.make_node("EmbedLayerNormalization", names, ["y", "m"], domain="com.microsoft")
    shapes = [(7, 4), (5, 4), (2, 4), (4,), (4,)]
    tables = [numpy_helper.from_array(_floats(*s), n) for n, s in zip(names[2:], shapes, strict=True)]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT32, ["B", "T"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "T", 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [ids], [y], tables)
    _check(
        helper.make_model(graph, opset_imports=opsets, ir_version=8), {"ids": np.array([[1, 2, 3]], np.int32)}
    )


def test_gathernd_of_single_elements() -> None:
    text = "g (float[N] x, int64[1] i) => (float y) { y = GatherND(x, i) }"
    _check(_model(text), {"x": _floats(4), "i": np.array([-1])})


@pytest.mark.parametrize("size", [1, 5])
def test_a_range_that_ends_before_it_starts_is_empty(size: int) -> None:
    text = """g (float[N] x, int64 start) => (int64[a] y, int64[b] z) {
        s = Shape(x)  n = Squeeze(s)  m = Sub(n, three)  y = Range(zero, m, one)  z = Range(start, n, one)
    }"""
    numbers = {"zero": 0, "one": 1, "three": 3}
    constants = {name: np.array(number) for name, number in numbers.items()}
    _check(_model(text, constants), {"x": _floats(size), "start": np.array(2)})


def test_the_variance_of_equal_numbers_is_never_negative() -> None:
    text = "g (float[N, 2, 4, 4] x) => (float[a, b, c, d] y) { y = MeanVarianceNormalization(x) }"
    module = burnt.onnx.load(_model(text))
    assert torch.equal(module(torch.full((2, 2, 4, 4), 0.1)).isnan().any(), torch.tensor(False))
    x = torch.from_numpy(_floats(2, 2, 4, 4)) + 1000
    var, mean = torch.var_mean(x.double(), (0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(module(x).double(), (x - mean) / var.sqrt(), rtol=1e-3, atol=1e-3)


def test_a_group_norm_of_single_elements() -> None:
    x, scale, bias = _floats(1, 2), _floats(2), _floats(2)
    names = ["x", "scale", "bias"]
    node = helper.make_node("GroupNormalization", names, ["y"], num_groups=2)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    _check(model, {"x": x, "scale": scale, "bias": bias})


def test_integers_of_unknown_dtype_are_divided_as_integers() -> None:
    model = _model("g (int64[N] x, int64[N] d) => (int64[N] y) { n = Neg(x)  y = Div(n, d) }")
    inputs = {"x": np.array([7, -9]), "d": np.array([2, 2])}
    (expected,) = _expected(model, inputs)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.ClearField("type")
    found = burnt.onnx.load(model)(*map(torch.from_numpy, inputs.values()))
    np.testing.assert_array_equal(found.numpy(), expected, strict=True)


# --- ai.onnx.ml -------------------------------------------------------------------------------------------


def _trees(weights: Sequence[float], class_id: int, post: str, base: Sequence[float] = ()) -> ModelProto:
    """A tree of two leaves, both of one class of two."""
    attributes = {
        "nodes_treeids": [0] * 3,
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0] * 3,
        "nodes_values": [0.0] * 3,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [class_id] * 2,
        "class_weights": list(weights),
        "classlabels_int64s": [3, 5],
        "post_transform": post,
    } | ({"base_values": list(base)} if base else {})
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **attributes
    )
    return _ml(node, [TensorProto.INT64, TensorProto.FLOAT])


def _ml(node: Any, types: Sequence[int], version: int = 3) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 1])
    outputs = [helper.make_tensor_value_info(n, t, None) for n, t in zip(node.output, types, strict=True)]
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(helper.make_graph([node], "g", [x], outputs), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("weights", [(0.2, 0.9), (-0.7, 0.4)], ids=["positive", "mixed"])
@pytest.mark.parametrize(("class_id", "base"), [(0, ()), (0, (0.3,)), (1, ())])
def test_trees_of_two_classes_with_one_score(
    weights: Sequence[float], class_id: int, base: Sequence[float], post: str
) -> None:
    x = np.array([[-1.0], [1.0]], np.float32)
    _check(_trees(weights, class_id, post, base), {"x": x})


def test_trees_of_one_score_with_two_base_values_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="more base values"):
        burnt.onnx.load(_trees((0.2, 0.9), 0, "NONE", (0.1, 0.3)))


def test_a_softmax_of_one_target_is_left_out() -> None:
    node = helper.make_node(
        "LinearRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        coefficients=[0.5],
        intercepts=[0.2],
        targets=1,
        post_transform="SOFTMAX",
    )
    _check(_ml(node, [TensorProto.FLOAT]), {"x": np.array([[-1.0], [1.0]], np.float32)})


@pytest.mark.parametrize("version", [2, 4])
def test_a_label_encoder_finds_nan_since_version_4(version: int) -> None:
    node = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_floats=[0.0, float("nan")],
        values_int64s=[5, 7],
    )
    x = np.array([[0.0], [np.nan], [1.0]], np.float32)
    _check(_ml(node, [TensorProto.INT64], version), {"x": x})


def test_a_scaler_of_float64_returns_float32() -> None:
    text = "g (double[N, 2] x) => (float[N, 2] y) { y = ai.onnx.ml.Scaler<offset = [1.5], scale = [2.0]>(x) }"
    _check(_model(text), {"x": np.array([[1.0, 2.0]])})


# --- found by random graphs -------------------------------------------------------------------------------


def test_a_mask_that_is_true_everywhere_adds_its_axes() -> None:
    text = """g (bool[2, n] x) => (bool[a, b, c] y) <int64 z = {0}, int64 o = {1}, int64[2] axes = {0, 2}> {
        s = Shape(x)  n = Gather(s, o)  r = Range(z, n, o)  g = GreaterOrEqual(r, z)
        u = Unsqueeze(g, axes)  both = And(x, u)  y = Not(both)
    }"""
    for size in (1, 2):
        _check(_model(text), {"x": _floats(2, size) > 0})


def test_a_slice_that_ends_at_the_size_of_what_it_cuts(tmp_path: Path) -> None:
    text = """g (float[n, 6] x) => (float[a, b] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}> {
        inner = Slice(x, one, four, one)  s = Shape(inner)  end = Slice(s, one, two)
        y = Slice(inner, zero, end, zero)
    }"""
    inputs = {"x": _floats(3, 6)}
    module = _check(_model(text), inputs)
    write_package(module, tmp_path / "sliced_twice", name="Sliced", title="Sliced.")
    written = import_package(tmp_path / "sliced_twice").load()
    torch.testing.assert_close(written(torch.from_numpy(inputs["x"])), module(torch.from_numpy(inputs["x"])))


def test_a_size_of_a_constant_is_a_constant() -> None:
    text = """g (float[n, 4] x) => (float[a, b] y)
    <int64 one = {1}, int64[1] zero = {0}, float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
        s = Shape(w)  size = Gather(s, one)  end = Unsqueeze(size, zero)  y = Slice(x, zero, end, zero)
    }"""
    _check(_model(text), {"x": _floats(5, 4)})


def test_weights_may_have_the_names_of_attributes_of_modules() -> None:
    names = ["load", "program", "kind", "axes", "signature", "summary"]
    text = "g (float[n, 4] x) => (float[n, 4] y) { "
    for before, name, after in zip(["x", *"abcde"], names, [*"abcde", "y"], strict=True):
        text += f"{after} = Add({before}, {name}) "
    _check(_model(text + "}", {name: _floats(4) for name in names}), {"x": _floats(2, 4)})


def test_a_size_that_a_reshape_has_twice() -> None:
    text = """g (float[n, m, 4] x) => (float[a, b, c] y)
    <int64 zero = {0}, int64[1] open = {-1}, int64[1] axis = {0}> {
        s = Shape(x)  n = Gather(s, zero)  v = Unsqueeze(n, axis)  t = Concat<axis = 0>(v, v, open)
        r = Reshape(x, t)  y = Relu(r)
    }"""
    _check(_model(text), {"x": _floats(2, 3, 4)})


@pytest.mark.parametrize(
    ("shape", "sizes", "declared"),
    [((2, 3, 4), (-1, 6), "n, 6"), ((2, 12), (-1, 3, 2), "n, 3, 2"), ((4, 5, 6), (-1, 2), "n, m")],
)
def test_results_need_not_have_the_sizes_that_the_file_declares(
    shape: tuple[int, ...], sizes: tuple[int, ...], declared: str
) -> None:
    """ONNX Runtime warns of a batch that is not that of the input, and returns what the nodes compute."""
    given = ", ".join(["n", *map(str, shape[1:])])
    model = _model(
        f"g (float[{given}] x) => (float[{declared}] y) {{ y = Reshape(x, sizes) }}",
        {"sizes": np.array(sizes)},
    )
    _check(model, {"x": _floats(*shape)})


def test_names_of_the_axes_of_outputs_are_not_relied_on() -> None:
    text = """g (float[n, m] x) => (float[n, m] y, float[a, b] z) {
        y = Transpose(x)  e = Exp(y)  s = Shape(e)  z = Reshape(x, s)
    }"""
    _check(_model(text), {"x": _floats(2, 3)})
