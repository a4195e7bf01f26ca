"""Shape arithmetic becomes expressions of sizes, and constants become numbers: equal to ONNX Runtime."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnxruntime
import torch

import burnt.onnx
from burnt.onnx import functions
from burnt.onnx.importer import integers
from burnt.onnx.importer.package import module_source
from burnt.onnx.importer.program import Arithmetic, Name, Size, Statement, getter
from burnt.onnx.importer.python.expressions import code_of
from tests.onnx.importer_files import parse

_SIZES = [(2, 3), (7, 4)]  # two before and after the constants that are subtracted
_RNG = np.random.default_rng(0)


def _check(body: str, *calls: str, dtype: Any = np.int64, sizes: Any = _SIZES, **arrays: Any) -> Any:
    """Compare a graph of one input of dynamic sizes with ONNX Runtime, and the calls of its program."""
    model = parse(body, **arrays)
    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in sizes:
        x = np.asarray(_RNG.integers(-5, 5, shape), dtype)
        (expected,) = session.run(None, {"x": x})
        found = module(torch.from_numpy(x)).numpy()
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
    statements = [s for s in module.program.statements if isinstance(s, Statement)]
    assert [s.call.function for s in statements] == list(calls)
    assert not list(module.buffers()) or not calls
    return module


_ROWS_AND_COLUMNS = "s = Shape(x) n = Gather(s, zero) m = Gather(s, one)"
_CONSTANTS = {f"c{abs(i)}" if i >= 0 else f"neg{-i}": np.array(i) for i in (2, 4, 5, -1, -3)} | {
    "zero": np.array(0),
    "one": np.array(1),
    "axis": np.array([0]),
    "two_f": np.array(2, np.float32),
}


@pytest.mark.parametrize(
    "nodes",
    [
        "d = Sub(n, c5) e = Div(d, c2)",
        "d = Sub(n, c5) e = Div(d, neg3)",
        "d = Sub(n, m) p = Mul(m, n) e = Div(p, d)",
        "e = Div(m, c2)",
        "d = Sub(n, c5) e = Mod(d, c4)",
        "d = Sub(n, c5) e = Mod(d, neg3)",
        "r = Mod(n, c4) d = Sub(c4, r) e = Mod(d, c4)",
        "e = Mod<fmod=1>(n, c4)",
        "d = Sub(n, c5) e = Neg(d)",
        "d = Sub(n, m) a = Max(d, zero) b = Min(d, c2) f = Mul(a, b) e = Max(f, n, m)",
        "d = Sub(n, c5) e = Clip(d, neg1, c4)",
        "i = Cast<to=6>(n) j = Add(i, i) e = Cast<to=7>(j)",
        "f = Cast<to=1>(n) q = Div(f, two_f) r = Floor(q) e = Cast<to=7>(r)",
        "f = Cast<to=1>(n) q = Div(f, two_f) r = Ceil(q) e = Cast<to=7>(r)",
        "d = Sub(n, c5) f = Cast<to=11>(d) t = Cast<to=11>(c2) q = Div(f, t) e = Cast<to=7>(q)",
        "f = Cast<to=1>(n) q = Div(f, two_f) e = Cast<to=7>(q)",
        "e = ReduceProd<keepdims=0>(s)",
        "e = ReduceMax<keepdims=0>(s, axis)",
        "r = Slice(s, last, first, axis, backwards) v = Gather(r, axis) e = Squeeze(v)",
        "t = Reshape(s, square) u = Transpose(t) e = GatherND(u, index)",
        "a, b = Split<num_outputs=2>(s) e = Reshape(b, scalar)",
        "c = Greater(n, neg1) d = Not(c) o = Or(d, c) a = And(c, o) e = Where(a, n, m)",
        "c = Less(n, zero) d = LessOrEqual(zero, m) o = Xor(d, c) e = Where(o, n, m)",
        "z = Size(s) k = Cast<to=9>(z) e = Where(k, n, m)",
    ],
)
def test_arithmetic(nodes: str) -> None:
    """One statement is left, also where differences are negative."""
    given = _CONSTANTS | {
        "last": np.array([-1]),
        "first": np.array([-(2**63)]),
        "backwards": np.array([-1]),
        "square": np.array([-1, 2]),
        "index": np.array([1, 0]),
        "scalar": np.array([], np.int64),
    }
    used = {name: array for name, array in given.items() if f"{name}" in f"{nodes} {_ROWS_AND_COLUMNS}"}
    body = f"(int64[n, m] x) => (int64[n, m] y) {{ {_ROWS_AND_COLUMNS} {nodes} y = Add(x, e) }}"
    _check(body, "torch.add", **used)


def test_division_of_differences() -> None:
    """ONNX rounds towards zero, Python down."""
    body = (
        "(int64[n, m] x) => (int64[n, m] y) { s = Shape(x) d = Sub(s, five) q = Div(d, two) y = Tile(x, s) }"
    )
    _check(body, "ops.tile", five=np.array(5), two=np.array(2))
    body = """(int64[n, m] x) => (int64[k, l] y) {
        s = Shape(x) d = Sub(s, five) q = Div(d, two) p = Concat<axis=0>(zeros, q) y = Pad(x, p) }"""
    module = _check(body, "F.pad", five=np.array(5), two=np.array(2), zeros=np.array([0, 0]))
    assert "ops.truncated_div(x.shape[1] - 5, 2)" in module_source(module, "M", "m")


def test_expand_as_torch_exports_it() -> None:
    """-1 stands for the tensor's own size; no size is -1."""
    body = """(int64[n, m] x) => (int64[n, k, m] y) {
        s = Shape(x) n = Gather(s, zero) m = Gather(s, one) n_1 = Unsqueeze(n, axis) m_1 = Unsqueeze(m, axis)
        v = Concat<axis=0>(n_1, minus_one, m_1)
        l = Shape(v) ones = ConstantOfShape<value=int64[1]{1}>(l) negative = Mul(ones, minus_1)
        e = Equal(v, negative) w = Where(e, ones, v) u = Unsqueeze(x, axis_1) y = Expand(u, w) }"""
    arrays = {name: np.array(n) for name, n in {"zero": 0, "one": 1, "minus_1": -1}.items()}
    arrays |= {name: np.array([n]) for name, n in {"axis": 0, "axis_1": 1, "minus_one": -1}.items()}
    _check(body, "torch.unsqueeze", **arrays)  # the sizes are those that it has


def test_padding_as_torch_exports_it() -> None:
    """Pairs from the last axis to the first are reversed and transposed."""
    body = """(int64[n, m] x) => (int64[k, l] y) {
        s = Shape(x) n = Gather(s, zero) r = Mod(n, four) d = Sub(four, r) p = Mod(d, four)
        p_1 = Unsqueeze(p, axis) v = Concat<axis=0>(one, two, zero_1, p_1) l = Shape(v) rest = Sub(four_1, l)
        none = ConstantOfShape<value=int64[1]{0}>(rest) w = Concat<axis=0>(v, none) t = Reshape(w, pairs)
        reversed = Slice(t, last, first, axis, last) u = Transpose<perm=[1, 0]>(reversed)
        flat = Reshape(u, last) pads = Cast<to=7>(flat) y = Pad(x, pads) }"""
    arrays = {"zero": np.array(0), "four": np.array(4), "pairs": np.array([-1, 2])}
    vectors = {"axis": 0, "one": 1, "two": 2, "zero_1": 0, "four_1": 4, "last": -1, "first": -(2**63) + 1}
    module = _check(body, "F.pad", **arrays, **{name: np.array([n]) for name, n in vectors.items()})
    assert "F.pad(x, (1, 2, 0, (4 - x.shape[0] % 4) % 4))" in module_source(module, "M", "m")


def test_ranges() -> None:
    """Also those without elements, which torch refuses, and those that go down."""
    constants = {"zero": np.array(0), "one": np.array(1), "five": np.array(5), "down": np.array(-2)}
    begin = "(int64[n, m] x) => (int64[k] y) { s = Shape(x) n = Gather(s, zero) m = Gather(s, one)"
    _check(f"{begin} y = Range(zero, n, one) }}", "torch.arange", **constants)
    module = _check(f"{begin} d = Sub(n, five) y = Range(zero, d, one) }}", "torch.arange", **constants)
    assert "torch.arange(max(x.shape[0] - 5, 0), device=x.device)" in module_source(module, "M", "m")
    _check(f"{begin} d = Sub(n, five) y = Range(d, zero, down) }}", "torch.arange", **constants)
    for start, limit, delta in [(0, -3, 1), (0, 7, 2), (5, -2, -3), (5, 6, -1), (3, 3, 1)]:
        given = [torch.tensor(n, dtype=torch.int32) for n in (start, limit, delta)]
        assert functions.arange(*given).tolist() == list(range(start, limit, delta))


def test_shapes_of_a_tensor() -> None:
    """All sizes of one tensor are its shape, and several in a row a part of it."""
    body = """(int64[n, m] x) => (int64[a, b, c] y) {
        u = Unsqueeze(x, axis) v = Unsqueeze(u, axis) s = Shape(v) r = Reshape(x, s) t = Slice(s, axis, two)
        w = Concat<axis=0>(t, minus_one) y = Reshape(r, w) }"""
    arrays = {"axis": np.array([0]), "two": np.array([2]), "minus_one": np.array([-1])}
    module = _check(body, "ops.unsqueeze", "torch.reshape", **arrays)  # the first one changes nothing
    text = module_source(module, "M", "m")
    (name,) = re.findall(r"(\w+) = x\[None, None\]", text)
    assert f".reshape(*{name}.shape[:2], -1)" in text


def test_unknown_comparisons_are_left_to_the_model() -> None:
    """Whether a size is 2 differs from call to call."""
    body = """(int64[n, m] x) => (int64[n, m] y) {
        s = Shape(x) n = Gather(s, zero) e = Equal(n, two) w = Where(e, seven, n) y = Mul(x, w) }"""
    constants = {"zero": np.array(0), "two": np.array(2), "seven": np.array(7)}
    _check(body, "ops.integers", "torch.eq", "torch.where", "torch.mul", **constants)


def test_same_sizes_become_a_tensor_once() -> None:
    """Two nodes that no rule computes read them."""
    body = """(int64[n, m] x) => (int64[k] y) {
        s = Shape(x) t = Shape(x) a = CumSum(s, zero) b = CumSum<reverse=1>(t, zero) y = Add(a, b) }"""
    _check(body, "ops.integers", "ops.cumsum", "ops.cumsum", "torch.add", zero=np.array(0))


def test_results_that_are_read_twice_do_not_grow() -> None:
    """Each node doubles the one before: as an expression of its own, the last had 2^30 sizes."""
    doublings = " ".join(f"d{i + 1} = Add(d{i}, d{i})" for i in range(30))
    nodes = f"s = Shape(x) d0 = Gather(s, zero) {doublings} y = Add(x, d30)"
    body = f"(int64[n, m] x) => (int64[n, m] y) {{ {nodes} }}"
    module = _check(body, "ops.integers", *["torch.add"] * 27, zero=np.array(0))
    assert len(module_source(module, "M", "m")) < 4000


# --- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "calls"),
    [
        ("y = Sub(a, x)", ["torch.sub"]),
        ("y = Add(a, x)", ["torch.add"]),
        ("y = Mul(x, a)", ["torch.mul"]),
        ("y = Max(x, a)", ["torch.clamp_min"]),
        ("y = Min(a, x)", ["torch.clamp_max"]),
        ("c = Less(a, x) y = Where(c, x, b)", ["torch.gt", "torch.where"]),
        ("c = Less(x, a) y = Where(c, a, x)", ["torch.lt", "torch.where"]),
        ("c = GreaterOrEqual(a, x) y = Where(c, b, a)", ["torch.le", "torch.where"]),
        ("c = Equal(a, x) t = And(yes, c) u = Or(t, no) y = Where(u, b, x)", ["torch.eq", "torch.where"]),
        ("d = Mul(x, ones) q = Div(d, ones) y = Neg(q)", ["torch.neg"]),
    ],
)
@pytest.mark.parametrize("dtype", ["float", "int64", "int32", "double", "float16"])
def test_constants_are_numbers(nodes: str, calls: list[str], dtype: str) -> None:
    """Results have the dtype of the file. Where torch would take another one, a constant stays a tensor."""
    kind = {"float": np.float32, "double": np.float64}.get(dtype) or np.dtype(dtype)
    given = {"a": np.array(2, kind), "b": np.array(-3, kind), "ones": np.array(1, kind)}
    given |= {"yes": np.array(True), "no": np.array(False)}
    used = {name: array for name, array in given.items() if f"{name}," in nodes or f" {name})" in nodes}
    body = f"({dtype}[n, m] x) => ({dtype}[n, m] y) {{ {nodes} }}"
    model = parse(body, **used)
    module = burnt.onnx.load(model)
    x = np.asarray(_RNG.integers(-4, 4, (3, 5)), kind)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = module(torch.from_numpy(x)).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert [s.call.function for s in module.program.statements] == calls
    has_tensor = "Where(c, b, a)" in nodes and dtype in ("int32", "double", "float16")
    assert len(list(module.buffers())) == has_tensor


def test_number_with_more_axes_keeps_them() -> None:
    """The result has the axes of a constant that has more than the input."""
    body = "(int64[n, m] x) => (int64[a, n, m] y) { y = Add(x, c) }"
    assert burnt.onnx.load(parse(body, c=np.full((1, 1, 1), 5)))(
        torch.zeros(2, 3, dtype=torch.int64)
    ).tolist() == [[[5] * 3] * 2]


def test_parameters_of_one_element_are_trained() -> None:
    """A scale with an axis is a parameter, also if it is 1."""
    model = parse("(float[n, m] x) => (float[n, m] y) { y = Mul(x, scale) }", scale=np.ones(1, np.float32))
    assert [name for name, _ in burnt.onnx.load(model).named_parameters()] == ["scale"]


# --- expressions ------------------------------------------------------------------------------------------

_RULES = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: int(np.trunc(a / b)),
    "remainder": lambda a, b: int(np.mod(a, b)),
    "minimum": min,
    "maximum": max,
}


def test_random_expressions() -> None:
    """Rules and bounds hold for all sizes, and the text computes what the expression does."""
    rng = random.Random(0)
    x = torch.empty(0, 1, 3)
    leaves = [*((Size(Name("x"), i), i and 2 * i - 1) for i in range(3)), *((i, i) for i in range(-3, 4))]
    found = list(leaves)
    kinds = set()
    for _ in range(1000):
        (a, value_a), (b, value_b) = rng.choice(found), rng.choice(found)
        name, expected = rng.choice(list(_RULES.items()))
        if value_b == 0 and name in ("divide", "remainder"):
            continue
        expr = getattr(integers, name)(a, b)
        value = expected(value_a, value_b)
        if expr is None:
            continue
        assert getter(expr)({"x": x}) == value
        assert eval(code_of(expr).text, {"x": x, "ops": functions}) == value, code_of(expr).text
        bound = integers.lower_bound(expr)
        assert bound is None or bound <= value
        for other, comparison in itertools.product(leaves, (integers.equal, integers.less)):
            known = comparison(expr, other[0])
            assert known in (None, value == other[1] if comparison is integers.equal else value < other[1])
        if abs(value) < 1000 and len(code_of(expr).text) < 200:
            found.append((expr, value))
        if isinstance(expr, Arithmetic):
            kinds.add(expr.symbol)
    assert kinds == {"+", "-", "*", "//", "%", "min", "max", "ops.truncated_div"}
