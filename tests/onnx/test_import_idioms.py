"""Idioms that exporters take apart come back as one would write them, and only where they are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx.parser
import onnxruntime
import torch

import burnt
from burnt import nn
from burnt.onnx.importer.package import module_source
from tests.onnx.importer_files import calls_of, compare, parse, read, read_by

_RNG = np.random.default_rng(7)


def _array(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.standard_normal(shape).astype(np.float32)


def check(
    signature: str, body: str, *inputs: np.ndarray[Any, Any], ir: int = 10, **constants: Any
) -> tuple[Any, list[str]]:
    """Compare a graph with ONNX Runtime; return the module and what it calls, layers by their class.

    Args:
        signature: of the graph in ONNX's text: ``(float[n, 4] x) => (float[n, 4] y)``.
        body: its nodes.
        inputs: in order.
        ir: the version of the IR.
        constants: by name; numbers are int64 if they are integers, else float32.
    """
    model = parse(f"{signature} {{ {body} }}", ir=ir)
    model.graph.initializer.extend(read_by(model, constants))
    module = compare(model, *inputs)
    return module, calls_of(module)


# --- grouped-query attention ------------------------------------------------------------------------------

_HEADS = {"axis": [2], "wide": [2, 2, 3, 5, 4], "merged": [2, 6, 5, 4], "kv": [2, 5, 2, 4], "half": 0.5}
_REPEAT = """
    {x}1 = Unsqueeze({x}, {axis}) {x}2 = Expand({x}1, {wide}) {x}3 = Reshape({x}2, {merged})
"""
_ATTENTION = """
    t = Transpose<perm = [0, 1, 3, 2]>(k3) s = MatMul(q, t) u = Mul(s, half) w = Softmax<axis = -1>(u)
    y = MatMul(w, v3)
"""
_PLAIN = {"axis": "axis", "wide": "wide", "merged": "merged"}


def _grouped(keys: dict[str, str], rest: str = "", shape: str = "2, 2, 5, 4", **constants: Any) -> list[str]:
    body = _REPEAT.format(x="k", **keys) + _REPEAT.format(x="v", **_PLAIN) + _ATTENTION + rest
    signature = f"(float[2, 6, 3, 4] q, float[{shape}] k, float[2, 2, 5, 4] v) => (float[a, b, c, d] y)"
    sizes = [int(size) for size in shape.split(",")]
    arrays = _array(2, 6, 3, 4), _array(*sizes), _array(2, 2, 5, 4)
    return check(signature, body, *arrays, **(_HEADS | constants))[1]


def test_repeated_heads_become_grouped_query_attention() -> None:
    assert _grouped(_PLAIN) == ["F.scaled_dot_product_attention"]


@pytest.mark.parametrize(
    ("keys", "shape", "constants"),
    [
        (
            _PLAIN | {"axis": "first"},
            "2, 2, 5, 4",
            {"first": [1], "wide_1": [2, 3, 2, 5, 4]},
        ),  # all, then again
        (
            _PLAIN | {"wide": "longer"},
            "2, 2, 1, 4",
            {"longer": [2, 2, 3, 5, 4]},
        ),  # positions are repeated too
        (
            _PLAIN | {"wide": "both"},
            "2, 1, 5, 4",
            {"both": [2, 2, 3, 5, 4]},
        ),  # one head as two, each repeated
    ],
    ids=["another axis", "positions too", "heads that are broadcast"],
)
def test_other_repeats_are_computed(keys: dict[str, str], shape: str, constants: dict[str, Any]) -> None:
    """The keys are repeated in another way than the values."""
    if "wide_1" in constants:
        keys = keys | {"wide": "wide_1"}
    calls = _grouped(keys, shape=shape, **constants)
    assert calls[-1] == "F.scaled_dot_product_attention"
    assert len(calls) > 3


def test_repeated_heads_that_are_read_elsewhere_stay() -> None:
    body = (
        _REPEAT.format(x="k", **_PLAIN) + _REPEAT.format(x="v", **_PLAIN) + _ATTENTION.replace("y =", "z =")
    )
    signature = "(float[2, 6, 3, 4] q, float[2, 2, 5, 4] k, float[2, 2, 5, 4] v) => (float[a, b, c, d] y)"
    body += "m = ReduceMean<keepdims = 1>(k3) y = Add(z, m)"
    _, calls = check(signature, body, _array(2, 6, 3, 4), _array(2, 2, 5, 4), _array(2, 2, 5, 4), **_HEADS)
    assert calls[:3] == ["torch.unsqueeze", "torch.Tensor.expand", "torch.flatten"]


def test_attention_of_onnx_with_fewer_key_heads() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 23]>
        g (float[2, 6, 3, 4] q, float[2, 2, 5, 4] k, float[2, 2, 5, 4] v) => (float[2, 6, 3, 4] y)
        { y = Attention(q, k, v) }"""
    )
    module, arrays = burnt.onnx.load(model), (_array(2, 6, 3, 4), _array(2, 2, 5, 4), _array(2, 2, 5, 4))
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(
        None, dict(zip("qkv", arrays, strict=True))
    )
    torch.testing.assert_close(
        module(*map(torch.from_numpy, arrays)), torch.from_numpy(want), rtol=1e-4, atol=1e-5
    )
    (statement,) = module.program.statements
    assert statement.call.function == "F.scaled_dot_product_attention"
    assert statement.call.kwargs["enable_gqa"] is True


@pytest.mark.parametrize("name", ["llama.dynamo", "gemma.legacy"])
def test_llama_reads_as_one_would_write_it(name: str) -> None:
    """Grouped-query attention and the gated feed-forward block."""
    module = burnt.onnx.load(read(name))
    text = module_source(module, "M", "m")
    assert "enable_gqa=True" in text
    assert not any(f"{function}(" in text for function in ("ops.expand", "ops.gather", "reshape"))
    mlp = module.get_submodule("model.model.layers.0.mlp")
    assert isinstance(mlp, nn.GatedFeedForward)
    assert mlp.activation == ("silu" if "llama" in name else "gelu_tanh")
    assert "self.mlp = nn.GatedFeedForward(16, 24" in text


# --- rolls, slices, pads and expands ----------------------------------------------------------------------

_CUTS = "a = Slice(x, {low}, far, {axis}) b = Slice(x, zero, {high}, {axis}) y = Concat<axis = {to}>({order})"
_ROLL = {"low": "two", "high": "two", "axis": "one", "to": 1, "order": "a, b"}
_BOUNDS = {"zero": [0], "one": [1], "two": [2], "three": [3], "back": [-2], "far": [2**62], "minus": [-1]}


@pytest.mark.parametrize(
    ("changes", "shape", "shift"),
    [
        ({}, "2, 5", -2),
        ({}, "n, m", -2),
        ({"low": "back", "high": "back"}, "n, m", 2),
        ({"low": "three", "high": "three"}, "2, 5", 2),  # the shorter way
        ({"low": "three", "high": "three"}, "n, m", None),  # an axis of 2 is not rotated
        ({"low": "three"}, "2, 5", None),
        ({"order": "b, a"}, "2, 5", None),
        ({"order": "a, b, a"}, "2, 5", None),
        ({"to": 0, "low": "three", "high": "two"}, "2, 5", None),
    ],
)
def test_a_roll(changes: dict[str, Any], shape: str, shift: int | None) -> None:
    body = _CUTS.format(**(_ROLL | changes))
    signature = f"(float[{shape}] x) => (float[a, b] y)"
    for size in (5,) if shape == "2, 5" else (1, 2, 5):
        module, calls = check(signature, body, _array(2, size), **_BOUNDS)
        assert (calls == ["torch.roll"]) == (shift is not None)
        if shift is not None:
            assert module.program.statements[0].call.args[1:] == (shift, 1)


def test_rolls_of_two_axes_are_one_call() -> None:
    body = "a = Slice(x, two, far, one) b = Slice(x, zero, two, one) c = Concat<axis = 1>(a, b) "
    body += "d = Slice(c, back, far, two) e = Slice(c, zero, back, two) y = Concat<axis = 2>(d, e)"
    module, calls = check("(float[n, 5, 6] x) => (float[n, 5, 6] y)", body, _array(2, 5, 6), **_BOUNDS)
    assert calls == ["torch.roll"]
    assert "torch.roll(x, shifts=(-2, 2), dims=(1, 2))" in module_source(module, "M", "m")


def test_slices_of_other_axes_are_one_subscript() -> None:
    constants = _BOUNDS | {"step": [2]}
    body = "a = Slice(x, zero, far, one, step) b = Slice(a, one, far, two, step) y = Relu(b)"
    module, calls = check("(float[n, 5, 6] x) => (float[a, b, c] y)", body, _array(2, 5, 6), **constants)
    assert calls == ["ops.slice_", "torch.relu"]
    assert "x[:, ::2, 1::2]" in module_source(module, "M", "m")
    same = "a = Slice(x, zero, far, one, step) b = Slice(a, one, far, one) y = Relu(b)"
    _, calls = check("(float[n, 5, 6] x) => (float[a, b, c] y)", same, _array(2, 5, 6), **constants)
    assert calls == ["ops.slice_", "ops.slice_", "torch.relu"]
    read_twice = "a = Slice(x, zero, far, one, step) b = Slice(a, one, far, two) "
    read_twice += "m = ReduceMax<keepdims=1>(a) y = Add(b, m)"
    _, calls = check("(float[n, 5, 6] x) => (float[a, b, c] y)", read_twice, _array(2, 5, 6), **constants)
    assert calls.count("ops.slice_") == 2


def test_a_pad_of_nothing_vanishes() -> None:
    signature = "(float[n, 3] x) => (float[a, b] y)"
    assert check(signature, "p = Pad(x, pads) y = Relu(p)", _array(2, 3), pads=[0] * 4)[1] == ["torch.relu"]
    assert check(signature, "p = Pad(x, pads) y = Relu(p)", _array(2, 3), pads=[0, 0, 0, 1])[1][0] == "F.pad"


@pytest.mark.parametrize(
    ("x", "sizes", "function"),
    [
        ("n, 1", [1, 3], "torch.Tensor.expand"),
        ("n, 3", [2, 1, 1], "torch.Tensor.expand"),
        ("n, 3", [1, 3], None),
        ("n, 3", "k, 3", "ops.expand"),  # k is 1, and n is not
        ("1, 3", "k, 3", "torch.Tensor.expand"),
        ("n, 3", "n, 3", None),
    ],
)
def test_an_expand(x: str, sizes: Any, function: str | None) -> None:
    """torch's where the size of the input is 1, or that of the result is."""
    first = 1 if x.startswith("1") else 2
    given = _array(first, 1 if x.endswith("1") else 3)
    if isinstance(sizes, list):
        _, calls = check(
            f"(float[{x}] x) => (float[a, b] y)"
            if len(sizes) == 2
            else f"(float[{x}] x) => (float[a, b, c] y)",
            "e = Expand(x, sizes) y = Relu(e)",
            given,
            sizes=sizes,
        )
    else:
        other = _array({"n": first, "k": 1}[sizes[0]], 3)
        body = "s = Shape(z) e = Expand(x, s) y = Relu(e)"
        _, calls = check(f"(float[{x}] x, float[{sizes}] z) => (float[a, b] y)", body, given, other)
    assert calls == [*([function] if function else []), "torch.relu"]


# --- gated feed-forward blocks ----------------------------------------------------------------------------

_BLOCK = (
    "g = MatMul(x, gate) s = Sigmoid(g) a = Mul(g, s) u = MatMul({up}, up) h = Mul(a, u) y = MatMul(h, down)"
)


@pytest.mark.parametrize("change", ["", "input", "size", "gate is read", "bias"])
def test_a_gated_block(change: str, tmp_path: Path) -> None:
    body = _BLOCK.format(up="z" if change == "input" else "x")
    if change == "gate is read":
        body = body.replace(
            "y = MatMul(h, down)", "d = MatMul(h, down) m = ReduceMax<keepdims = 0>(u) y = Add(d, m)"
        )
    if change == "bias":
        body = body.replace("y = MatMul(h, down)", "d = MatMul(h, down) y = Add(d, bias)")
    arrays = {
        "gate": _array(4, 6),
        "up": _array(4, 6),
        "down": _array(6, 3 if change == "size" else 4),
        "bias": _array(4),
    }
    signature = "(float[n, 4] x, float[n, 4] z) => (float[a, b] y)"
    if change != "input":
        signature = signature.replace(", float[n, 4] z", "")
    inputs = [_array(5, 4), _array(5, 4)][: 1 + (change == "input")]
    module, calls = check(signature, body, *inputs, **arrays)
    assert (calls == ["GatedFeedForward"]) == (not change)
    if not change:
        assert "nn.GatedFeedForward(4, 6)" in module_source(module, "M", "m")
        (name,) = module._modules
        assert torch.equal(module.get_submodule(name).up_proj.weight, torch.from_numpy(arrays["up"].T))


# --- masks, rotary embedding, rows ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert.legacy", "distilbert.legacy", "bert.dynamo"])
def test_the_mask_of_a_padding_is_that_of_the_input(name: str) -> None:
    text = module_source(burnt.onnx.load(read(name)), "M", "m")
    assert "attention_mask.to(torch.bool)[:, None, None]" in text
    assert "ops.gather(" not in text
    assert ">= 0" not in text


@pytest.mark.parametrize(("positions", "is_true"), [("Range(zero, k, step)", True), ("Identity(x)", False)])
def test_a_comparison_that_always_holds(positions: str, is_true: bool) -> None:
    """Positions are at least 0; an input may be below."""
    body = f"s = Shape(x) k = Squeeze(s) p = {positions} c = GreaterOrEqual(p, zero) y = And(c, m)"
    constants = {"zero": 0, "step": 1}
    x, m = np.array([-1, 0, 3]), np.array([True, True, False])
    _, calls = check("(int64[n] x, bool[n] m) => (bool[n] y)", body, x, m, **constants)
    assert ("torch.logical_and" not in calls) == is_true


_LOOKUP = """
    s = Shape(m) r0 = Gather(s, i0) w = Gather(s, i1) w1 = Gather(s, one)
    rows = Range(zero, r0, step) columns = Range({start}, w, step)
    a = Unsqueeze(rows, right) b = Unsqueeze(columns, left) o = Mul(a, {width}) i = Add(b, o)
    f = Flatten<axis = 2>(m) g = Gather<axis = 0>(f, i) y = Squeeze(g, last)
"""


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [({}, True), ({"width": "two"}, False), ({"start": "step"}, False)],
    ids=["all positions", "another width", "another start"],
)
def test_a_lookup_in_a_flat_mask(changes: dict[str, str], is_found: bool) -> None:
    body = _LOOKUP.format(**({"start": "zero", "width": "w1"} | changes))
    constants = {"i0": 0, "i1": 1, "zero": 0, "step": 1, "one": [1], "two": [2], "last": [-1]}
    constants |= {"right": [1, 2, 3], "left": [0, 1, 2]}
    signature = "(float[n, k] m) => (float[a, b, c, d] y)"
    _, calls = check(signature, body, _array(3, 4), **constants)
    assert ("ops.gather" not in calls) == is_found


_ROTATE = """
    e = Slice(x, zero, far, last, two) o = Slice(x, {odd}, far, last, two) n = Neg(o)
    n1 = Unsqueeze(n, {axis}) e1 = Unsqueeze(e, {axis}) p = Concat<axis = {to}>({order}) r = Reshape(p, shape)
    a = Mul(x, cos) b = Mul(r, sin) y = Add(a, b)
"""


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [({}, True), ({"odd": "zero"}, False), ({"order": "e1, n1"}, False), ({"axis": "other", "to": 2}, False)],
    ids=["pairs", "even twice", "even first", "halves"],
)
def test_interleaved_rotary_embedding(changes: dict[str, Any], is_found: bool) -> None:
    body = _ROTATE.format(**({"odd": "one", "axis": "last", "to": -1, "order": "n1, e1"} | changes))
    constants = {"zero": [0], "one": [1], "two": [2], "far": [2**62], "last": [-1], "other": [2]}
    constants |= {"shape": [-1, 5, 6], "cos": _array(5, 6), "sin": _array(5, 6)}
    _, calls = check("(float[n, 5, 6] x) => (float[n, 5, 6] y)", body, _array(2, 5, 6), **constants)
    assert (calls == ["ops.rotate"]) == is_found


def test_layers_of_rows_take_the_tensor() -> None:
    """GPT-2 merges batch and positions around each layer."""
    body = "r = Reshape(x, rows) g = Gemm(r, weight, bias) s = Shape<end = 2>(x) "
    body += "t = Concat<axis = 0>(s, size) y = Reshape(g, t)"
    arrays = {"rows": [-1, 4], "weight": _array(4, 6), "bias": _array(6), "size": [6]}
    _, calls = check("(float[n, k, 4] x) => (float[a, b, c] y)", body, _array(2, 3, 4), **arrays)
    assert calls == ["Linear"]
    swapped = body.replace(
        "t = Concat<axis = 0>(s, size)", "t0 = Gather(s, swap) t = Concat<axis = 0>(t0, size)"
    )
    _, calls = check(
        "(float[n, k, 4] x) => (float[a, b, c] y)", swapped, _array(2, 3, 4), **arrays, swap=[1, 0]
    )
    assert "torch.reshape" in calls


def test_keys_that_are_transposed_as_matrices() -> None:
    """So does the newer exporter for scaled_dot_product_attention."""
    body = """s = Shape(k) h = Slice(s, zero, two) flat = Reshape(k, matrices)
        t = Transpose<perm = [0, 2, 1]>(flat) w = Concat<axis = 0>(h, four, five) y = Reshape(t, w)"""
    constants = {"zero": [0], "two": [2], "matrices": [-1, 5, 4], "four": [4], "five": [5]}
    signature = "(float[n, m, 5, 4] k) => (float[a, b, c, d] y)"
    _, calls = check(signature, body, _array(2, 3, 5, 4), **constants)
    assert calls == ["torch.transpose"]
