"""The CPU candidates of quantized ops, against float64, numpy's int64 and ONNX Runtime."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch, kernels
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.kernels.ops.quantized.quantize import quantized_example
from tests import forked

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
linear_c = kernels.quantized_linear.candidates["c"]


def int8(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)


@needs_compiler
@pytest.mark.sample(16)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize(
    ("value", "block", "zero"),
    [
        ("int8", 0, False),
        ("int8", 4, True),
        ("int8", 32, True),
        ("int4", 0, True),
        ("int4", 8, False),
        ("int4", 32, True),
        ("int2", 32, False),
        ("float8_e4m3", 0, False),
        ("float8_e5m2", 64, False),
        ("float4_e2m1", 32, False),
    ],
)
def test_few_rows_in_c(value: str, block: int, zero: bool, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    for k, n in [(37, 5), (1100, 9)]:
        padded = -(-k // block) * block if block else k
        values, scale, zero_point = quantized_example(CPU, n, padded, value, block, zero)
        scale = scale.to(dtype)
        x, bias = torch.randn(rows, k).to(dtype), torch.randn(n).to(dtype)
        args = (x, values, scale, zero_point, bias, "relu", value, block)
        assert linear_c.why_not(args) is None
        weight = kernels.dequantize.reference(
            values, scale.double(), zero_point, value, block, k, torch.float64
        )
        expected = F.relu(x.double() @ weight.t() + bias.double())
        largest = x.double().abs() @ weight.abs().t() + bias.double().abs()
        tolerance = 4 * torch.finfo(dtype).eps * float(largest.max())
        found = linear_c(*args)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


@needs_compiler
@pytest.mark.parametrize("value", ["float8_e4m3", "float8_e5m2"])
def test_every_float8_code_in_c(value: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(256, 1)
    dtype = torch.float8_e4m3fn if value == "float8_e4m3" else torch.float8_e5m2
    for rows in (1, 3):
        found = linear_c(torch.ones(rows, 1), codes, torch.ones(1, 1), None, None, None, value, 0)
        torch.testing.assert_close(
            found[-1], codes.view(dtype).float().view(-1), equal_nan=True, rtol=0, atol=0
        )


@needs_compiler
def test_c_takes_strided_rows_special_values_and_any_number_of_threads() -> None:
    values, scale, _ = quantized_example(CPU, 33, 70, "int4", 0)
    x = torch.randn(70, 5).t()
    x[1, 3], x[2, 4], x[3, 5] = float("nan"), float("inf"), -float("inf")
    args = (x, values, scale, None, None, None, "int4", 0)
    expected = kernels.quantized_linear.reference(*args)
    torch.testing.assert_close(linear_c(*args), expected, equal_nan=True)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(linear_c(*args))
    torch.set_num_threads(threads)
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
    zeros = linear_c(x.nan_to_num(0, 0, 0), values, scale * 0, None, None, None, "int4", 0)
    assert not zeros.any()


def test_why_c_does_not_run() -> None:
    values, scale, _ = quantized_example(CPU, 3, 8, "int4", 2)
    small_blocks = (torch.ones(2, 8), values, scale, None, None, None, "int4", 2)
    values, scale, _ = quantized_example(CPU, 3, 8, "int8")

    def why(x: Tensor) -> str | None:
        return linear_c.why_not((x, values, scale, None, None, None, "int8", 0))

    if find_compiler() is not None:
        assert "blocks of 2 columns: they take a multiple of 4 bytes" in str(linear_c.why_not(small_blocks))
        assert "65 rows" in str(why(torch.ones(65, 8)))
        assert why(torch.ones(0, 8)) == "an empty tensor"
        assert "float64" in str(why(torch.ones(2, 8).double()))
        assert why(torch.ones(2, 8, requires_grad=True)) == "a gradient is required"


def test_empty_tensors() -> None:
    values, scale, _ = quantized_example(CPU, 3, 8, "int8")
    assert kernels.quantized_linear(torch.ones(0, 8), values, scale).shape == (0, 3)
    assert kernels.scaled_linear(int8(0, 8), values, torch.tensor(1.0), scale).shape == (0, 3)


def scaled_candidates(op: Any, args: tuple[Any, ...]) -> list[tuple[str, Any]]:
    full = (*args, *op.defaults[len(args) :])
    found = [
        (name, candidate)
        for name, candidate in op.candidates.items()
        if name != "generated" and candidate.why_not(full) is None
    ]
    return [*((name, lambda c=c: c(*full)) for name, c in found), ("front", lambda: op(*args))]


@pytest.mark.parametrize("extreme", ["random", "-128 x -128", "127 x -128", "127 x 127"])
@pytest.mark.parametrize("k", [1, 37, 1024, 5000])
@pytest.mark.parametrize("zero", [None, -128, 127])
def test_sums_of_integers_are_numpys(k: int, zero: int | None, extreme: str) -> None:
    x, values = int8(4, k), int8(6, k, seed=1)
    if extreme != "random":
        left, right = map(int, extreme.split(" x "))
        x, values = torch.full_like(x, left), torch.full_like(values, right)
    zero_point = None if zero is None else torch.tensor(zero, dtype=torch.int8)
    sums = (x.numpy().astype(np.int64) - (zero or 0)) @ values.numpy().astype(np.int64).T
    args = (x, values, torch.tensor(1.0), torch.ones(1, 1), zero_point)
    for name, call in scaled_candidates(kernels.scaled_linear, args):
        assert np.array_equal(call().numpy(), sums.astype(np.float32)), name


@pytest.mark.sample(2)
@pytest.mark.parametrize("per_tensor", [True, False])
@pytest.mark.parametrize("x_zero", [None, -128, 7])
def test_zero_points_of_weights(x_zero: int | None, per_tensor: bool) -> None:
    """Also with groups, whose inputs are summed each for itself, and padding by the input's zero point."""
    zero = None if x_zero is None else torch.tensor(x_zero, dtype=torch.int8)
    one, rows = torch.tensor(1.0), 1 if per_tensor else 6
    scale, zeros = torch.ones(rows, 1), int8(rows, 1, seed=2)
    for k in (2, 300, 3000):
        x, values = int8(4, k), int8(6, k, seed=1)
        sums = (x.double() - (x_zero or 0)) @ (values.double() - zeros.double()).t()
        args = (x, values, one, scale, zero, None, None, None, None, "int8", None, zeros)
        for name, call in scaled_candidates(kernels.scaled_linear, args):
            assert torch.equal(call(), sums.float()), name
    image, kernel = int8(2, 4, 9, 7), int8(6, 2, 3, 2, seed=1)
    sums = F.conv2d(
        image.double() - (x_zero or 0), kernel.double() - zeros.double().view(-1, 1, 1, 1), None, 1, 1, 1, 2
    )
    args = (image, kernel, one, scale, zero, None, None, 1, 1, 1, 2, None, None, None, zeros)
    for name, call in scaled_candidates(kernels.scaled_conv, args):
        assert torch.equal(call(), sums.float()), name


def test_changed_zero_points_are_summed_again() -> None:
    x, values, zeros = int8(3, 40), int8(5, 40, seed=1), int8(5, 1, seed=2)
    zero, one = torch.tensor(9, dtype=torch.int8), torch.tensor(1.0)
    for _ in range(2):
        sums = (x.long() - 9) @ (values.long() - zeros.long()).t()
        args = (x, values, one, one.view(1, 1), zero, None, None, None, None, "int8", None, zeros)
        assert torch.equal(kernels.scaled_linear(*args[:3], torch.ones(5, 1), *args[4:]), sums.float())
        zeros.neg_()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="an instruction set of x86")
def test_sums_are_exact_without_vnni() -> None:
    code = """
import torch
from burnt import _torch, kernels
x, w = torch.full((4, 5000), 127, dtype=torch.int8), torch.full((3, 5000), 127, dtype=torch.int8)
args = (x, w, torch.tensor(1.0), torch.ones(1, 1))
assert (kernels.scaled_linear(*args) == 5000 * 127 * 127).all()
image = torch.full((1, 8, 9, 9), 127, dtype=torch.int8)
out = kernels.scaled_conv(image, w[:, :72].reshape(3, 8, 3, 3), torch.tensor(1.0), torch.ones(1, 1))
assert (out == 72 * 127 * 127).all()
assert not _torch.onednn_convolves_int8_exactly()
# Without AVX-512, torch's own matmul of integers takes the place of oneDNN's.
print(_torch.onednn_adds_int8_exactly() or kernels.scaled_linear.chosen(*args).candidate.name == "float32")
"""
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX2", "BURNT_TUNE": "off", "PYTHONPATH": str(forked.ROOT)}
    out = forked.run(code, env={**os.environ, **environment})
    assert out.stdout.strip() == "True", out.stdout + out.stderr


def test_changed_weights_are_packed_again() -> None:
    x, values, zero = int8(3, 40), int8(5, 40, seed=1), torch.tensor(9, dtype=torch.int8)
    image, kernel = int8(1, 2, 5, 5), int8(4, 2, 3, 3, seed=1)
    one = torch.tensor(1.0)
    for _ in range(2):
        sums = (x.long() - 9) @ values.long().t()
        assert torch.equal(kernels.scaled_linear(x, values, one, one.view(1, 1), zero), sums.float())
        sums = F.conv2d(image.double() - 9, kernel.double()).float()
        assert torch.equal(kernels.scaled_conv(image, kernel, one, one.view(1, 1), zero), sums)
        values.neg_()
        kernel.neg_()


# --- ONNX Runtime -----------------------------------------------------------------------------------------


def run_onnx(nodes: list[tuple[str, list[str], list[str], dict[str, Any]]], **inputs: Tensor) -> np.ndarray:
    """Run nodes ``(type, inputs, outputs, attributes)`` on tensors by name; return the last one's result."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    helper = onnx.helper
    constants = [onnx.numpy_helper.from_array(t.numpy(), name) for name, t in inputs.items()]
    graph = helper.make_graph(
        [helper.make_node(kind, ins, outs, **attributes) for kind, ins, outs, attributes in nodes],
        "graph",
        [],
        [helper.make_empty_tensor_value_info(nodes[-1][2][0])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {})[0]
    return result


def test_quantize_and_dequantize_are_onnx_runtimes() -> None:
    x, scale = torch.randn(9, 32) * 3, torch.rand(9, 1) * 0.05
    zero = int8(9, 1)
    flat = {"x": x, "s": scale.view(-1), "z": zero.view(-1)}
    theirs = run_onnx([("QuantizeLinear", ["x", "s", "z"], ["q"], {"axis": 0})], **flat)
    values = kernels.quantize(x, scale, zero)
    assert np.array_equal(values.numpy(), theirs)
    flat = {"q": values, "s": scale.view(-1), "z": zero.view(-1)}
    theirs = run_onnx([("DequantizeLinear", ["q", "s", "z"], ["y"], {"axis": 0})], **flat)
    np.testing.assert_allclose(kernels.dequantize(values, scale, zero).numpy(), theirs, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["mixed", "positive", "negative", "zero", "ties"])
def test_quantize_tensor_is_onnx_runtimes(kind: str) -> None:
    x = {
        "mixed": torch.randn(7, 33) * 5,
        "positive": torch.rand(7, 33) + 1,
        "negative": -torch.rand(7, 33) - 1,
        "zero": torch.zeros(7, 33),
        "ties": torch.arange(-255, 256) / 2,
    }[kind]
    outputs = ["q", "s", "z"]
    for i, ours in enumerate(kernels.quantize_tensor(x)):
        nodes = [("DynamicQuantizeLinear", ["x"], outputs, {}), ("Identity", [outputs[i]], ["y"], {})]
        theirs = run_onnx(nodes, x=x)
        expected = torch.from_numpy(theirs.astype(np.float32)) - (0 if i == 1 else 128)
        assert torch.equal(ours.float().reshape(expected.shape), expected)


# Its own int8 products saturate without VNNI (reduce_range); weights of 7 bits are exact everywhere.
WEIGHT, IMAGE_WEIGHT = int8(11, 37, seed=1) // 2, int8(6, 2, 3, 2, seed=1) // 2


def test_scaled_linear_is_onnx_runtimes() -> None:
    x, zero = int8(5, 37), torch.tensor(-7, dtype=torch.int8)
    common = {"x": x, "w": WEIGHT.t().contiguous(), "xz": zero, "wz": torch.tensor(0, dtype=torch.int8)}
    sums = run_onnx([("MatMulInteger", ["x", "w", "xz", "wz"], ["y"], {})], **common)
    ours = kernels.scaled_linear(x, WEIGHT, torch.tensor(1.0), torch.ones(1, 1), zero)
    assert np.array_equal(ours.numpy(), sums.astype(np.float32))
    scales = {"xs": torch.tensor(0.25), "ws": torch.tensor(0.5), "ys": torch.tensor(64.0)}
    out_zero = torch.tensor(3, dtype=torch.int8)
    theirs = run_onnx(
        [("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], {})],
        **common,
        **scales,
        yz=out_zero,
    )
    args = (x, WEIGHT, scales["xs"], scales["ws"].view(1, 1), zero, None, None, scales["ys"], out_zero)
    assert np.array_equal(kernels.scaled_linear(*args).numpy(), theirs)
    dequantized = run_onnx(
        [
            ("DequantizeLinear", ["x", "xs", "xz"], ["a"], {}),
            ("DequantizeLinear", ["w", "ws", "wz"], ["b"], {}),
            ("MatMul", ["a", "b"], ["c"], {}),
            ("QuantizeLinear", ["c", "ys", "yz"], ["y"], {}),
        ],
        **common,
        **scales,
        yz=out_zero,
    )
    assert np.array_equal(kernels.scaled_linear(*args).numpy(), dequantized)


def test_scaled_conv_is_onnx_runtimes() -> None:
    x, zero = (int8(2, 4, 9, 7).int() + 128).byte(), torch.tensor(121, dtype=torch.uint8)
    ours_x, ours_zero = (x.int() - 128).to(torch.int8), torch.tensor(-7, dtype=torch.int8)
    sizes = {"strides": [2, 1], "pads": [1, 0, 1, 0], "dilations": [1, 2], "group": 2}
    ours = ((2, 1), (1, 0), (1, 2), 2)
    common = {"x": x, "w": IMAGE_WEIGHT, "xz": zero, "wz": torch.tensor(0, dtype=torch.int8)}
    sums = run_onnx([("ConvInteger", ["x", "w", "xz", "wz"], ["y"], sizes)], **common)
    args = (ours_x, IMAGE_WEIGHT, torch.tensor(1.0), torch.ones(1, 1), ours_zero, None, None, *ours)
    for name, call in scaled_candidates(kernels.scaled_conv, args):
        assert np.array_equal(call().numpy(), sums.astype(np.float32)), name
    scales = {"xs": torch.tensor(0.25), "ws": torch.tensor(0.5), "ys": torch.tensor(64.0)}
    theirs = run_onnx(
        [("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], sizes)],
        **common,
        **scales,
        yz=torch.tensor(131, dtype=torch.uint8),
    )
    again = (scales["ys"], torch.tensor(3, dtype=torch.int8))
    found = kernels.scaled_conv(
        ours_x, IMAGE_WEIGHT, scales["xs"], scales["ws"].view(1, 1), ours_zero, None, None, *ours, *again
    )
    assert np.array_equal(found.numpy().astype(np.int32) + 128, theirs.astype(np.int32))


def test_oneDNN_is_offered_where_it_is_exact() -> None:
    args = (int8(4, 64), int8(3, 64), torch.tensor(1.0), torch.ones(1, 1))
    reason = kernels.scaled_linear.candidates["onednn"].why_not((*args, *kernels.scaled_linear.defaults[4:]))
    assert (reason is None) == _torch.onednn_adds_int8_exactly()
    long = (int8(1, 70000), int8(1, 70000), *args[2:], *kernels.scaled_linear.defaults[4:])
    assert "70000 terms" in str(kernels.scaled_linear.candidates["onednn"].why_not(long))
    conv = (int8(1, 4, 5, 5), int8(3, 4, 3, 3), *args[2:], *kernels.scaled_conv.defaults[4:])
    reason = kernels.scaled_conv.candidates["onednn"].why_not(conv)
    assert (reason is None) == _torch.onednn_convolves_int8_exactly()
