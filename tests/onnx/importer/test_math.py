"""What ONNX's own tests lack: dynamic axes, folded constants, layers, random numbers, outer values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest
import torch

from burnt import nn
from burnt.onnx import functions
from burnt.onnx.backend import run_node, supports_device
from burnt.onnx.importer.load import load
from burnt.onnx.importer.program import Call, Define, Name, Program, Statement


def imported(text: str, opset: int = 21) -> tuple[torch.nn.Module, Any]:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
    return load(model), onnx.reference.ReferenceEvaluator(model)


def called(module: Any) -> list[str]:
    return [s.call.function for s in module.program.statements if isinstance(s, Statement)]


def test_dynamic_axes_stay_dynamic() -> None:
    module, reference = imported("""
        g (float[n, m] x) => (float[k] y) {
            shape = Shape(x)
            two = Constant<value_int = 2>()
            doubled = Mul(shape, two)
            zeros = ConstantOfShape(doubled)
            total = ReduceSum<keepdims = 0>(x)
            filled = Add(zeros, total)
            minus = Constant<value_ints = [-1]>()
            y = Reshape(filled, minus)
        }""")
    for sizes in ((2, 3), (5, 1)):
        x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
        np.testing.assert_array_equal(module(torch.from_numpy(x)), reference.run(None, {"x": x})[0])


def test_constants_are_folded() -> None:
    module, _ = imported("""
        g (float[n] x) => (float[n] y) {
            a = Constant<value_ints = [1, 2]>()
            b = Constant<value_ints = [3, 4]>()
            product = Mul(a, b)
            total = ReduceSum<keepdims = 0>(product)
            cast = Cast<to = 1>(total)
            y = Mul(x, cast)
        }""")
    assert called(module) == ["torch.mul"]
    torch.testing.assert_close(module(torch.ones(2)), torch.full((2,), 11.0))


def test_product_and_bias_become_a_linear_layer() -> None:
    module, reference = imported("""
        g (float[n, 2] x) => (float[n, 3] y)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 0, -1}> {
            product = MatMul(x, w)
            y = Add(b, product)
        }""")
    (layer,) = module.children()
    assert isinstance(layer, nn.Linear)
    assert layer.bias is not None
    x = np.array([[1, -1], [2, 0.5]], np.float32)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach(), reference.run(None, {"x": x})[0])


def test_a_weight_that_is_used_twice_is_one_parameter() -> None:
    module, _ = imported("""
        g (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
            a = MatMul(x, w)
            y = MatMul(a, w)
        }""")
    assert [tuple(p.shape) for p in module.parameters()] == [(2, 2)]


def test_a_loop_reads_values_around_it() -> None:
    """The value is used nowhere after the loop's body is defined; its iterations need it all the same."""
    module, reference = imported("""
        g (float[n] x, int64 count) => (float[n] y, float[s, n] all) {
            step = Mul(x, x)
            go = Constant<value = bool {1}>()
            y, all = Loop(count, go, x)
            <body = b (int64 i, bool c, float[n] v) => (bool c2, float[n] w, float[n] e) {
                c2 = Identity(c)
                w = Add(v, step)
                e = Identity(w)
            }>
        }""")
    x = np.array([1, 2], np.float32)
    for count in (3, 1):
        want = reference.run(None, {"x": x, "count": np.array(count)})
        for have, expected in zip(module(torch.from_numpy(x), torch.tensor(count)), want, strict=True):
            np.testing.assert_array_equal(have, expected)
    last, collected = module(torch.from_numpy(x), torch.tensor(0))
    np.testing.assert_array_equal(last, x)
    assert collected.shape[0] == 0


def test_names_live_as_long_as_the_functions_that_read_them() -> None:
    body = Program(["x"], [(Name("x"), Name("outer"))])
    first, last = Statement(("outer",), Call("torch.ones", (1,))), Statement(("y",), Call("f", (Name("f"),)))
    program = Program([], [Name("y")], [first, Define("f", body), last])
    assert program.last_uses() == [(), (), ("f", "outer")]


def test_ops_of_old_versions_are_broadcast_by_an_axis() -> None:
    module, _ = imported(
        "g (float[2, 3, 4] x, float[3] b) => (float[2, 3, 4] y) { y = Add<axis = 1, broadcast = 1>(x, b) }",
        opset=6,
    )
    x, b = torch.zeros(2, 3, 4), torch.arange(3.0)
    torch.testing.assert_close(module(x, b), x + b[:, None])


def test_softmax_below_version_13_is_over_all_axes_from_one_on() -> None:
    module, _ = imported("g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax(x) }", opset=11)
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found = module(torch.from_numpy(x))
    torch.testing.assert_close(found.sum((1, 2)), torch.ones(2))


@pytest.mark.parametrize(
    ("draw", "mean", "std"),
    [
        (lambda: functions.random_normal([20000], 2.0, 3.0, torch.float32), 2.0, 3.0),
        (lambda: functions.random_uniform([20000], -1.0, 3.0, torch.float32), 1.0, 4 / 12**0.5),
        (lambda: functions.bernoulli(torch.full((20000,), 0.25), torch.float32), 0.25, 0.433),
        (
            lambda: functions.multinomial(torch.log(torch.tensor([[1.0, 3.0]])), 20000, torch.int32),
            0.75,
            0.433,
        ),
    ],
    ids=["normal", "uniform", "bernoulli", "multinomial"],
)
def test_random_numbers_have_the_distribution(
    draw: Callable[[], torch.Tensor], mean: float, std: float
) -> None:
    torch.manual_seed(0)
    found = draw().float()
    assert abs(found.mean() - mean) < 0.05 * std
    assert abs(found.std() - std) < 0.05 * std


def test_bernoulli_gives_1_with_the_given_probability() -> None:
    module, _ = imported("g (float[n] x) => (float[n] y) { y = Bernoulli(x) }")
    assert module(torch.tensor([0.0, 1.0] * 8)).tolist() == [0.0, 1.0] * 8


def test_the_backend_runs_single_nodes() -> None:
    node = onnx.helper.make_node("Mul", ["a", "b"], ["c"])
    (found,) = run_node(node, [np.array([1, 2], np.int64), np.array([3, 4], np.int64)])
    np.testing.assert_array_equal(found, [3, 8])
    assert supports_device("CPU")
