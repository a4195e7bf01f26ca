"""Dequantized weights and quantized activations become burnt's quantized layers, and equal ONNX Runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx.parser
import onnxruntime
import torch

import burnt.onnx
from burnt.nn.quantized import Quantized, QuantizedConv, QuantizedEmbedding, QuantizedLinear
from burnt.onnx.importer.package import write_package
from burnt.onnx.importer.program import Statement
from tests.onnx.importer_files import tensor

_RNG = np.random.default_rng(3)


def _scale(*shape: int, dtype: str = "float32") -> onnx.TensorProto:
    return tensor(_RNG.uniform(0.01, 0.1, shape).astype(dtype))


def _ints(kind: str, *shape: int) -> onnx.TensorProto:
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int4": (-8, 8), "uint4": (0, 16)}[kind]
    return tensor(_RNG.integers(low, high, shape), kind)


_DQ = "w = DequantizeLinear{options}({names})"
CASES: dict[str, Any] = {
    # weight, scale, zero point, attributes of DequantizeLinear, the op, the input's shape, the scheme
    "matmul_tensor": (_ints("int8", 6, 5), _scale(), None, "", "MatMul(x, w)", (2, 3, 6), "int8-tensor"),
    "matmul_channel": (_ints("int8", 6, 5), _scale(5), None, "<axis=1>", "MatMul(x, w)", (2, 6), "int8"),
    "matmul_uint8": (
        _ints("uint8", 6, 5),
        _scale(5),
        _ints("uint8", 5),
        "<axis=1>",
        "MatMul(x, w)",
        (2, 6),
        "int8-asymmetric",
    ),
    "matmul_int4_blocks": (
        _ints("int4", 64, 5),
        _scale(2, 5),
        None,
        "<axis=0, block_size=32>",
        "MatMul(x, w)",
        (3, 64),
        "int4-block32-float32",
    ),
    "matmul_uint4_blocks": (
        _ints("uint4", 64, 5),
        _scale(4, 5),
        _ints("uint4", 4, 5),
        "<axis=0, block_size=16>",
        "MatMul(x, w)",
        (3, 64),
        "int4-block16-asymmetric-float32",
    ),
    "gemm": (_ints("int8", 5, 6), _scale(5), None, "<axis=0>", "Gemm<transB=1>(x, w)", (2, 6), "int8"),
    "conv": (
        _ints("int8", 4, 3, 3, 3),
        _scale(4),
        None,
        "<axis=0>",
        "Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)",
        (2, 3, 7, 7),
        "int8",
    ),
    "gather": (_ints("int8", 9, 6), _scale(9), None, "<axis=0>", "Gather(w, ids)", None, "int8"),
    # Along the inputs of a MatMul, burnt has no such scheme.
    "matmul_other_axis": (_ints("int8", 6, 5), _scale(6), None, "<axis=0>", "MatMul(x, w)", (2, 6), None),
}


def _model(weight: Any, scale: Any, zero: Any, options: str, op: str, shape: Any, prefix: str = "") -> Any:
    names = ["q", "s"] + (["z"] if zero is not None else [])
    given = "float[" + ",".join(map(str, shape)) + "] x" if shape else "int64[n] ids"
    body = f"{prefix} {_DQ.format(options=options, names=', '.join(names))} y = {op}"
    text = f'<ir_version: 10, opset_import: ["": 21]> m ({given}) => (float[] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for name, value in zip(names, (weight, scale, zero), strict=False):
        value.name = name
        model.graph.initializer.append(value)
    return model


def _run(model: onnx.ModelProto, x: Any) -> Any:
    """Run without optimizations, one of which quantizes inputs of matmuls to 8 bits."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def _layers(module: torch.nn.Module) -> list[Quantized]:
    return [layer for layer in module.modules() if isinstance(layer, Quantized)]


@pytest.mark.parametrize("name", CASES)
def test_dequantized_weight_is_a_quantized_layer(name: str, tmp_path: Path) -> None:
    """The scheme is the expected one, and the written Python computes the same."""
    *parts, shape, scheme = CASES[name]
    model = _model(*parts, shape)
    x = np.array([0, 8, 3, 5]) if shape is None else _RNG.standard_normal(shape).astype(np.float32)
    want = _run(model, x)
    module = burnt.onnx.load(model)
    assert [layer.scheme.name for layer in _layers(module)] == ([scheme] if scheme else [])
    with torch.no_grad():
        found = module(torch.from_numpy(x))
    np.testing.assert_allclose(found.numpy(), want, atol=1e-5 * float(np.abs(want).max()))
    if name in ("matmul_uint4_blocks", "conv", "gather"):
        path = write_package(module, tmp_path / "package", name="Model", title="A model.")
        spec = importlib.util.spec_from_file_location("written", path)
        assert spec is not None
        assert spec.loader is not None
        written = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(written)
        with torch.no_grad():
            assert torch.equal(written.load()(torch.from_numpy(x)), found)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("name", ["matmul_channel", "conv", "matmul_uint8"])
def test_quantized_input_is_a_static_scheme(name: str, kind: str) -> None:
    """Scale and zero point of the input are those of the pair around it."""
    weight, scale, zero, options, op, shape, scheme = CASES[name]
    prefix = "xq = QuantizeLinear(input, xs, xz) x = DequantizeLinear(xq, xs, xz)"
    model = _model(weight, scale, zero, options, op, shape, prefix)
    model.graph.input[0].name = "input"
    model.graph.initializer.append(tensor(np.float32(0.03), name="xs"))
    model.graph.initializer.append(tensor(np.array(7 if kind == "int8" else 120), kind, name="xz"))
    x = _RNG.standard_normal(shape).astype(np.float32)
    want = _run(model, x)
    module = burnt.onnx.load(model)
    (layer,) = _layers(module)
    assert layer.scheme.name == f"{scheme}-static"
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), want, atol=1e-4 * np.abs(want).max())


_NET = """
    c = Conv<pads=[1,1,1,1]>(x, w1, b1) r = Relu(c) d = Conv<group=2, pads=[1,1,1,1]>(r, w2)
    e = Add(r, d) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(e) s = Sigmoid(p)
    f = Reshape(s, sizes) g = MatMul(f, w3) h = Add(g, b3) k = Reshape(h, tokens)
    t = Transpose<perm=[0,2,1]>(k)
    a = MatMul(k, t) q = Softmax<axis=-1>(a) v = MatMul(q, k) y = Gemm<transB=1>(h, w4, b4)
"""


class _Batches:
    """Inputs that the quantizer calibrates with."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.batches = [{"x": rng.standard_normal((2, 3, 6, 6)).astype(np.float32)} for _ in range(3)]

    def get_next(self) -> dict[str, Any] | None:
        return self.batches.pop() if self.batches else None


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 model with convolutions, a linear map, attention and pooling."""
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[n,3,6,6] x) => (float[n,5] y, float[n,4,3] v)'
    model = onnx.parser.parse_model(f"{text} {{ {_NET} }}")
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 4, 3, 3), "w3": (72, 12), "b3": (12,), "w4": (5, 12)}
    rng = np.random.default_rng(2)
    for name, shape in (shapes | {"b4": (5,)}).items():
        model.graph.initializer.append(tensor(rng.standard_normal(shape).astype(np.float32) / 3, name=name))
    for name, sizes in (("sizes", [-1, 72]), ("tokens", [-1, 4, 3])):
        model.graph.initializer.append(tensor(np.array(sizes), name=name))
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("activations", "per_channel"), [("QUInt8", True), ("QInt8", False)])
def test_files_of_the_static_quantizer_are_quantized_layers(
    net: Path, activations: str, per_channel: bool
) -> None:
    """QOperator format: results equal ONNX Runtime's, but for a quantization step where a tie is rounded."""
    tools = pytest.importorskip("onnxruntime.quantization")
    path = net.with_name("static.onnx")
    tools.quantize_static(
        net,
        path,
        _Batches(),
        quant_format=tools.QuantFormat.QOperator,
        per_channel=per_channel,
        activation_type=tools.QuantType[activations],
        weight_type=tools.QuantType.QInt8,
    )
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert {
        "QLinearConv",
        "QLinearMatMul",
        "QGemm",
        "QLinearAdd",
        "QLinearSigmoid",
        "QLinearSoftmax",
    } <= kinds
    module = burnt.onnx.load(path)
    scheme = "int8-static" if per_channel else "int8-tensor-static"
    assert [layer.scheme.name for layer in _layers(module)] == [scheme] * 4
    x = np.random.default_rng(3).standard_normal((5, 3, 6, 6)).astype(np.float32)
    wants = onnxruntime.InferenceSession(path).run(None, {"x": x})
    with torch.no_grad():
        results = module(torch.from_numpy(x))
    for found, want in zip(results, wants, strict=True):
        levels = np.unique(want)
        step = float(np.diff(levels).min())
        error = np.abs(found.numpy() - want)
        assert error.max() < 1.01 * step
        assert (error < 0.01 * step).mean() > 0.9


@pytest.mark.parametrize(
    ("kind", "per_channel", "conv", "linear"),
    [
        ("QInt8", False, "int8-tensor-dynamic_tensor", "int8-tensor-dynamic_tensor"),
        ("QUInt8", True, "int8-tensor-asymmetric-dynamic_tensor", "int8-asymmetric-dynamic_tensor"),
    ],
)
def test_files_of_the_dynamic_quantizer(
    net: Path, kind: str, per_channel: bool, conv: str, linear: str
) -> None:
    tools = pytest.importorskip("onnxruntime.quantization")
    path = net.with_name("dynamic.onnx")
    tools.quantize_dynamic(net, path, per_channel=per_channel, weight_type=tools.QuantType[kind])
    assert {"ConvInteger", "MatMulInteger"} <= {node.op_type for node in onnx.load(path).graph.node}
    module = burnt.onnx.load(path)
    assert {(type(layer), layer.scheme.name) for layer in _layers(module)} == {
        (QuantizedConv, conv),
        (QuantizedLinear, linear),
    }
    assert not [name for name in _calls(module) if "quant" in name or "integer" in name]
    x = np.random.default_rng(3).standard_normal((5, 3, 6, 6)).astype(np.float32)
    with torch.no_grad():
        results = module(torch.from_numpy(x))
    for found, want in zip(results, _run_all(path, x), strict=True):
        np.testing.assert_allclose(found.numpy(), want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


DYNAMIC = """<ir_version: 8, opset_import: ["": 17]>
    m (int64[batch,length] ids) => (float[batch,length,6] y, float[batch,length,6] z)
    <uint8[9,6] table, float s = {0.5}, uint8 t = {3}, int8[6,6] w, int8 zero = {0}, float u = {0.25},
     float[6] a, float[6] b>
    {
        rows = Gather(table, ids)
        x = DequantizeLinear(rows, s, t)
        q, qs, qz = DynamicQuantizeLinear(x)
        i = MatMulInteger(q, w, qz, zero)
        f = Cast<to = 1>(i)
        scales = Mul(qs, u)
        g = Mul(f, scales)
        y = Add(g, a)
        h = Tanh(y)
        q2, qs2, qz2 = DynamicQuantizeLinear(h)
        i2 = MatMulInteger(q2, w, qz2, zero)
        f2 = Cast<to = 1>(i2)
        scales2 = Mul(u, qs2)
        g2 = Mul(scales2, f2)
        z = Add(OTHER, g2)
    }"""


def _dynamic(bias: str) -> Any:
    model = onnx.parser.parse_model(DYNAMIC.replace("OTHER", bias))
    rng = np.random.default_rng(0)
    arrays = {
        "table": rng.integers(0, 256, (9, 6)).astype(np.uint8),
        "w": rng.integers(-127, 128, (6, 6)).astype(np.int8),
        "a": rng.standard_normal(6).astype(np.float32),
        "b": rng.standard_normal(6).astype(np.float32),
    }
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in arrays]
    del model.graph.initializer[:]
    named = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model.graph.initializer.extend([*kept, *named])
    return model


@pytest.mark.parametrize("bias", ["a", "b"])
def test_products_of_one_integer_weight_call_one_layer(bias: str) -> None:
    """Also where their biases differ, which are added after it then."""
    model = _dynamic(bias)
    module = burnt.onnx.load(model)
    (linear,) = [layer for layer in _layers(module) if isinstance(layer, QuantizedLinear)]
    assert (linear.bias is not None) == (bias == "a")
    tables = [layer for layer in _layers(module) if isinstance(layer, QuantizedEmbedding)]
    assert [table.scheme.name for table in tables] == ["int8-tensor-asymmetric"]
    ids = np.array([[1, 8, 0], [3, 3, 2]])
    wants = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"ids": ids})
    with torch.no_grad():
        for result, want in zip(module(torch.from_numpy(ids)), wants, strict=True):
            np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-5)


def test_a_dynamic_import_trains_and_dequantizes() -> None:
    module, ids = burnt.onnx.load(_dynamic("a")), torch.tensor([[1, 8, 0], [3, 3, 2]])
    before = module(ids)
    before[1].sum().backward()
    assert [name for name, parameter in module.named_parameters() if parameter.grad is not None] == [
        "linear.bias"
    ]
    burnt.dequantize(module)
    assert not _layers(module)
    with torch.no_grad():
        for one, other in zip(module(ids), before, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0.01 * float(other.abs().max()))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_a_dynamic_import_is_written_as_it_was(net: Path, tmp_path: Path, kind: str) -> None:
    tools = pytest.importorskip("onnxruntime.quantization")
    path, written = tmp_path / "dynamic.onnx", tmp_path / "again.onnx"
    tools.quantize_dynamic(net, path, weight_type=tools.QuantType[kind])
    module, x = burnt.onnx.load(path), torch.randn(5, 3, 6, 6)
    burnt.onnx.export(module, x, written)
    counts = [
        [[node.op_type for node in onnx.load(file).graph.node].count(op) for file in (path, written)]
        for op in ("ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")
    ]
    assert all(before == after > 0 for before, after in counts), counts
    again = burnt.onnx.load(written)
    assert [(type(a), a.scheme) for a in _layers(again)] == [(type(a), a.scheme) for a in _layers(module)]
    with torch.no_grad():
        for one, other in zip(again(x), module(x), strict=True):
            torch.testing.assert_close(one, other)


def _calls(module: Any) -> list[str]:
    """Return the functions that a module calls."""
    return [s.call.function for s in module.program.statements if isinstance(s, Statement)]


def _run_all(path: Path, x: Any) -> list[Any]:
    outputs: list[Any] = onnxruntime.InferenceSession(path).run(None, {"x": x})
    return outputs


def test_a_quantized_op_of_computed_weights_is_exact() -> None:
    """QLinearConv and QLinearMatMul whose weights are not constants stay single functions."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    m (uint8[n,4] a, uint8[4,3] b, float s, uint8 z) => (uint8[n,3] y) {
        y = QLinearMatMul(a, s, z, b, s, z, s, z)
    }"""
    module = burnt.onnx.load(onnx.parser.parse_model(text))
    assert _calls(module) == ["ops.qlinear_matmul"]
