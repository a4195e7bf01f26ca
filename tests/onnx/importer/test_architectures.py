"""Small graphs as torch's exporters write them for architectures that tests/onnx/files does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import burnt
from burnt.onnx.importer.package import module_source
from tests.onnx.test_import_layers import check, model_of, weights

LAST, MOST, LEAST = np.array([-1]), np.array([2**63 - 1]), np.array([-(2**63)])


def _source(model: Any) -> str:
    return module_source(burnt.onnx.load(model), "Model", "A model.")


def _written_sizes(model: Any) -> str:
    """Return the list of sizes in the Python of a model."""
    line = next(line for line in _source(model).splitlines() if "torch.tensor" in line or "integers" in line)
    text = line[line.index("[") : line.rindex("]") + 1]
    return text.replace("add.", "x.").replace("*x.shape[:2]", "x.shape[0], x.shape[1]")


# --- pads and shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pads", "value", "calls", "padding"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 0], 0.0, ["Conv2d"], (1, 1)),
        ([0, 0, 1, 2, 0, 0, 1, 2], 0.0, ["Conv2d"], (2, 3)),
        ([0, 0, 0, 0, 0, 0, 1, 1], 0.0, ["F.pad", "Conv2d"], (1, 1)),
        ([0, 0, 1, 1, 0, 0, 1, 1], 0.5, ["F.pad", "Conv2d"], (1, 1)),
        ([0, 0, -1, -1, 0, 0, -1, -1], 0.0, ["F.pad", "Conv2d"], (1, 1)),
        ([0, 1, 0, 0, 0, 1, 0, 0], 0.0, ["F.pad", "Conv2d"], (1, 1)),
    ],
)
def test_a_pad_of_zeros_is_that_of_the_convolution_after_it(
    pads: list[int], value: float, calls: list[str], padding: tuple[int, int]
) -> None:
    channels = 3 + pads[1] + pads[5]
    body = "p = Pad(x, pads, value) y = Conv<pads=[1,1,1,1]>(p, w)"
    constants = {"pads": np.array(pads), "value": value, "w": weights(4, channels, 3, 3)}
    model = model_of(body, "float[n,3,7,8] x", constants)
    assert check(model, weights(2, 3, 7, 8)) == calls
    (conv,) = burnt.onnx.load(model).children()
    assert conv.padding == padding


def test_a_pad_that_others_read_stays_for_them() -> None:
    body = "p = Pad(x, pads) c = Conv(p, w) d = ReduceMax<axes=[2,3]>(p) y = Add(c, d)"
    constants = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": weights(3, 3, 1, 1)}
    calls = check(model_of(body, "float[n,3,5,5] x", constants, opset=13), weights(2, 3, 5, 5) - 5)
    assert calls == ["F.pad", "Conv2d", "torch.amax", "torch.add"]


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([1, 1], []),
        ([1, 1, 1], []),
        ([1, 1, 1, 1], ["torch.Tensor.expand"]),
        ([1, 2, 1], ["torch.Tensor.expand"]),
    ],
)
def test_an_expansion_by_ones_is_none(sizes: list[int], calls: list[str]) -> None:
    model = model_of("e = Expand(x, sizes) y = Neg(e)", "float[n,1,4] x", {"sizes": np.array(sizes)})
    assert check(model, weights(3, 1, 4)) == [*calls, "torch.neg"]


def test_one_tensor_is_not_concatenated() -> None:
    assert check(model_of("c = Concat<axis=1>(x) y = Neg(c)", "float[n,4] x", {}), weights(3, 4)) == [
        "torch.neg"
    ]


_HALVES = """
    h = MatMul(x, w) b = Add(h, bias) s = Shape(b) n = Gather(s, axis) m = Add(n, one) k = Div(m, two)
    l = Mul(k, two) f = Slice(b, zero, k, axis) g = Slice(b, k, l, axis) y = Mul(f, g)
"""


def test_features_that_weights_fix_are_numbers() -> None:
    ints = {name: np.array([i]) for i, name in enumerate(("zero", "one", "two"))}
    constants = ints | {"axis": np.array([2]), "w": weights(4, 6), "bias": weights(6)}
    model = model_of(_HALVES, "float[n,t,4] x", constants)
    check(model, weights(2, 5, 4))
    assert "x[..., :3] * x[..., 3:6]" in _source(model)


def test_a_batch_and_a_length_that_the_file_fixes_stay_open() -> None:
    """The file says [2, 5, 4]; its nodes work for others, and features alone are fixed by the weights."""
    body = "h = MatMul(x, w) s = Shape(h) n = Gather(s, first) c = Concat<axis=0>(n, rest) y = Reshape(h, c)"
    constants = {"w": weights(4, 6), "first": np.array([0]), "rest": np.array([-1, 3])}
    module = burnt.onnx.load(model_of(body, "float[2,5,4] x", constants))
    for batch, length in ((2, 5), (3, 8)):
        assert module(torch.randn(batch, length, 4)).shape == (batch, 2 * length, 3)


def test_sizes_of_transposed_and_broadcast_values() -> None:
    body = """
        c = Conv(x, w) t = Transpose<perm=[0,2,3,1]>(c) u = Add(t, row) s = Shape(u) y = Cast<to=1>(s)
    """
    model = model_of(body, "float[n,3,h,v] x", {"w": weights(6, 3, 1, 1), "row": weights(5, 1)})
    check(model, weights(2, 3, 4, 5))
    assert _written_sizes(model) == "[x.shape[0], x_2.shape[1], 5, 6]"


def test_the_end_of_a_slice_of_some_length() -> None:
    """``start + (end - start)``, as torch.split has it, and ``-n``, as torch.export's FloorDiv has it."""
    body = """
        s = Shape(x) n = Gather(s, zero) m = Gather(s, one) d = Sub(m, n) e = Add(n, d) f = Mul(minus, n)
        g = Add(e, f) c = Concat<axis=0>(e, g) y = Cast<to=1>(c)
    """
    ints = {"zero": np.array([0]), "one": np.array([1]), "minus": np.array([-1])}
    model = model_of(body, "float[n,m] x", ints)
    check(model, weights(2, 5))
    assert _written_sizes(model) == "[m, m - n]"


# --- attention --------------------------------------------------------------------------------------------

_ROOTS = """
    s = Shape(q) d = Slice(s, first, last) f = Cast<to=1>(d) r = Sqrt(f) i = Div(one, r)
    a = Sqrt(i) b = Sqrt(i) t = Transpose<perm=[0,1,3,2]>(k) m = Mul(q, a) n = Mul(t, b)
    g = MatMul(m, n) w = Softmax<axis=-1>(g) y = MatMul(w, v)
"""
_QKV = "float[b,h,l,d] q, float[b,h,m,d] k, float[b,h,m,e] v"


@pytest.mark.parametrize(
    ("changes", "is_attention"),
    [({}, True), ({"first": np.array([-2]), "last": LAST}, False), ({"one": 2.0}, False)],
)
def test_attention_with_the_root_of_its_scale_on_both_sides(
    changes: dict[str, Any], is_attention: bool
) -> None:
    """scaled_dot_product_attention by ``torch.onnx.export(dynamo=False)`` with an open length."""
    model = model_of(_ROOTS, _QKV, {"first": LAST, "last": MOST, "one": 1.0} | changes)
    calls = check(model, weights(2, 3, 4, 8), weights(2, 3, 5, 8), weights(2, 3, 5, 6))
    assert (calls == ["F.scaled_dot_product_attention"]) == is_attention
    assert ("scale=" in _source(model)) != is_attention


_SWAP = """
    s = Shape(k) columns = Slice(s, last, most) rows = Slice(s, before, last)
    leading = Slice(s, least, before)
    flat = Concat<axis=0>(last, rows, columns) f = Reshape(k, flat) t = Transpose<perm=[0,2,1]>(f)
    whole = Concat<axis=0>(leading, columns, rows) r = Reshape(t, whole)
    m = Mul(q, root) n = Mul(r, root) g = MatMul(m, n) w = Softmax<axis=-1>(g) y = MatMul(w, v)
"""


@pytest.mark.parametrize("least", [LEAST, np.array([0])])
def test_attention_whose_key_is_swapped_by_reshapes(least: np.ndarray[Any, Any]) -> None:
    """scaled_dot_product_attention by ``torch.onnx.export(dynamo=True)``."""
    sizes = {"last": LAST, "before": np.array([-2]), "most": MOST, "least": least}
    model = model_of(_SWAP, _QKV.replace("d]", "8]"), sizes | {"root": 8**-0.25})
    calls = check(model, weights(2, 3, 4, 8), weights(2, 3, 5, 8), weights(2, 3, 5, 6))
    assert calls == ["F.scaled_dot_product_attention"]


# --- activations, norms, constants ------------------------------------------------------------------------


def test_the_gelu_of_bloom() -> None:
    body = """
        h = Mul(x, half) r = Mul(x, root) c = Mul(x, cubic) s = Mul(c, x) p = Add(s, one) i = Mul(r, p)
        t = Tanh(i) u = Add(t, one) y = Mul(h, u)
    """
    constants = {"half": 0.5, "root": 0.79788456, "cubic": 0.044715, "one": 1.0}
    assert check(model_of(body, "float[n,6] x", constants), weights(4, 6)) == ["F.gelu"]
    assert "F.gelu" not in check(model_of(body, "float[n,6] x", constants | {"cubic": 0.04}), weights(4, 6))


_PLAIN = "s = Constant<value_floats=[1.0,1.0,1.0,1.0]>() y = LayerNormalization<epsilon=1e-3>(x, s)"


def test_a_layer_norm_of_ones_that_are_no_weights_has_none() -> None:
    """Two layers share the ones of an exporter, and stay two layers."""
    body = _PLAIN.replace("y =", "m =").replace(">(x", ">(x") + " y = LayerNormalization<epsilon=1e-3>(m, s)"
    model = model_of(body, "float[n,4] x", {})
    assert check(model, weights(3, 4)) == ["LayerNorm", "LayerNorm"]
    module = burnt.onnx.load(model)
    assert len(list(module.children())) == 2
    assert not list(module.parameters())
    assert "nn.LayerNorm((4,), eps=0.001, elementwise_affine=False)" in _source(model)


@pytest.mark.parametrize("name", ["norm.weight", "weight"])
def test_a_layer_norm_of_ones_with_a_name_is_trained(name: str) -> None:
    model = model_of("y = LayerNormalization(x, w)", "float[n,4] x", {"w": np.ones(4)})
    model.graph.initializer[0].name = model.graph.node[0].input[1] = name
    assert [p.shape for p in burnt.onnx.load(model).parameters()] == [(4,)]


def test_constants_of_one_element_are_numbers() -> None:
    """Initializers of one element may be weights, and are not."""
    body = """
        low = Constant<value_floats=[-3.0]>() high = Constant<value_floats=[0.5]>()
        c = Greater(x, high) w = Where(c, low, high) v = Add(w, weight) y = Mul(v, x)
    """
    model = model_of(body, "float[n,4] x", {"weight": np.array([0.25])})
    check(model, weights(3, 4))
    assert "torch.where(x > 0.5, -3.0, 0.5) + self.weight" in _source(model)
    assert len(list(burnt.onnx.load(model).parameters())) == 1


def test_equal_to_true_is_the_truth_value() -> None:
    body = "c = Less(x, half) e = Equal(c, yes) y = Cast<to=1>(e)"
    model = model_of(body, "float[n,4] x", {"half": 0.5, "yes": np.array(True)})
    assert check(model, weights(3, 4)) == ["torch.lt", "torch.Tensor.to"]
    one = model_of(
        "c = Cast<to=7>(x) e = Equal(c, one) y = Cast<to=1>(e)", "float[n,4] x", {"one": np.array(1)}
    )
    assert check(one, weights(3, 4)) == ["torch.Tensor.to", "torch.eq", "torch.Tensor.to"]


def test_a_signal_without_an_axis_of_parts() -> None:
    body = "y = STFT<onesided=1>(x, step, window)"
    model = model_of(body, "float[n,32] x", {"step": np.array(4), "window": np.hanning(8)})
    assert check(model, weights(2, 32), tolerance=1e-4) == ["ops.stft"]


# --- what is written --------------------------------------------------------------------------------------


def test_many_outputs_are_shortened_in_the_docstring() -> None:
    names = [f"present_{i}_key_value" for i in range(9)]
    nodes = " ".join(f"{name} = Mul(x, x)" for name in names)
    model = model_of(nodes + " y = Neg(x)", "float[n,4] x", {})
    model.graph.output[0].name = names[0]
    for name in names[1:]:
        model.graph.output.add().CopyFrom(model.graph.output[0])
        model.graph.output[-1].name = name
    lines = _source(model).splitlines()
    assert (
        '        """Return present_0_key_value, present_1_key_value, present_2_key_value and 6 more."""'
        in lines
    )
    assert max(map(len, lines)) <= 110


def test_long_slices_are_broken_as_ruff_does() -> None:
    body = """
        s = Shape(hidden_states_of_an_encoder) n = Gather(s, axis) m = Div(n, two) k = Mul(m, two)
        f = Slice(hidden_states_of_an_encoder, m, k, axis) y = Neg(f)
    """
    ints = {"axis": np.array([2]), "two": np.array([2])}
    shape = "float[n,t,size_of_the_last_axis_of_all_its_states]"
    text = _source(model_of(body, f"{shape} hidden_states_of_an_encoder", ints))
    assert "hidden_states_of_an_encoder[\n" in text
    assert max(map(len, text.splitlines())) <= 110


def test_slices_of_long_bounds_are_calls() -> None:
    """What Mask2Former computes of the sizes of its levels."""
    names = [f"level_{i}_of_the_pyramid" for i in range(4)]
    sizes = " ".join(f"s{i} = Shape<start=1>({name}) p{i} = ReduceProd(s{i})" for i, name in enumerate(names))
    body = f"{sizes} a = Add(p0, p1) b = Add(a, p2) c = Add(b, p3) y = Slice({names[0]}, p3, c, axis)"
    inputs = ", ".join(f"float[n,h{i},w{i}] {name}" for i, name in enumerate(names))
    lines = _source(model_of(body, inputs, {"axis": np.array([1])})).splitlines()
    assert any("ops.slice_(" in line for line in lines)
    assert max(map(len, lines)) <= 110


def test_layers_that_read_a_past_and_the_size_of_another() -> None:
    """Decoders with a cache: the length of one past is read by all layers, and the past by one of them."""

    def layer(i: int, x: str, y: str) -> str:
        return f"""
            h{i} = MatMul({x}, w{i}) g{i} = Tanh(h{i}) k{i} = Concat<axis=1>(past_{i}_key, g{i})
            r{i} = ReduceSum<keepdims=1>(k{i}, axis)
            s{i} = Shape<start=1,end=2>(past_2_key) f{i} = Cast<to=1>(s{i})
            d{i} = Div(r{i}, f{i}) {y} = Add({x}, d{i})
        """

    body = layer(0, "x", "a") + layer(1, "a", "b") + layer(2, "b", "y")
    names = ("x", *(f"past_{i}_key" for i in range(3)))
    inputs = ", ".join(f"float[n,{size},4] {name}" for size, name in zip("1ttt", names, strict=True))
    constants = {f"w{i}": weights(4, 4) for i in range(3)} | {"axis": np.array([1])}
    model = model_of(body, inputs, constants)
    arrays = [weights(2, 1, 4), *(weights(2, 3, 4) for _ in range(3))]
    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, dict(zip(names, arrays, strict=True)))
    with torch.no_grad():
        torch.testing.assert_close(module(*map(torch.from_numpy, arrays)), torch.from_numpy(want))
    source = _source(model)
    assert "self.blocks = torch.nn.ModuleList(Block() for _ in range(3))" in source
    assert "def forward(self, hidden: Tensor, past_key: Tensor, t: int)" in source
