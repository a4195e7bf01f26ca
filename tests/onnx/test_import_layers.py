"""What exporters take apart becomes layers and single calls again, and equals ONNX Runtime."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx.parser
import torch

import burnt
from burnt.onnx.importer.package import write_package
from burnt.onnx.importer.program import Statement
from tests.onnx.importer_files import calls_of, compare, parse, read_by

_RNG = np.random.default_rng(5)


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.standard_normal(shape).astype(np.float32)


def model_of(body: str, inputs: str, constants: dict[str, Any], opset: int = 18) -> onnx.ModelProto:
    """Return a model with the output ``y`` from ONNX's text: ``inputs`` such as ``float[n,6] x``."""
    model = parse(f"({inputs}) => (float[] y) {{ {body} }}", opset=opset, ir=9)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(read_by(model, constants))
    return model


def check(model: onnx.ModelProto, *inputs: np.ndarray[Any, Any], tolerance: float = 1e-5) -> list[str]:
    """Compare with ONNX Runtime, to a tolerance of the output's scale; return what the module calls."""
    return calls_of(compare(model, *inputs, tolerance=tolerance))


_ROWS = "float[n,5,6] x, float[n,5,6] z"
_CLIP = "a = Add(x, three) b = Clip(a, zero, six) "
_NORM = (
    "m = ReduceMean<keepdims=1>(x, axes) d = Sub(x, m) p = Pow(d, two) v = ReduceMean<keepdims=1>(p, axes) "
)
_NORM += "e = Add(v, eps) s = Sqrt(e) n = Div(d, s) "
_GELU = "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) g = Mul(d, half) "
_NUMBERS = {"one": 1.0, "half": 0.5, "root": 2.0**0.5, "three": 3.0, "zero": 0.0, "six": 6.0, "sixth": 1 / 6}
_NUMBERS |= {"two": 2.0, "eps": 1e-3, "quick": 1.702, "twenty": 20.0, "seven": 7.0}

ACTIVATIONS = {
    # nodes, and what they become
    "swiglu": ("s = Sigmoid(x) a = Mul(x, s) y = Mul(a, z)", ["ops.swiglu"]),
    "swiglu, up first": ("s = Sigmoid(x) a = Mul(s, x) y = Mul(z, a)", ["ops.swiglu"]),
    "geglu": (_GELU + "y = Mul(g, z)", ["ops.geglu"]),
    "silu read twice": (
        "s = Sigmoid(x) a = Mul(x, s) b = Mul(a, z) y = Add(a, b)",
        ["F.silu", "torch.mul", "torch.add"],
    ),
    "quick gelu": ("a = Mul(x, quick) s = Sigmoid(a) y = Mul(x, s)", ["ops.quick_gelu"]),
    "hard swish": ("h = HardSigmoid<alpha=0.16666667,beta=0.5>(x) y = Mul(x, h)", ["F.hardswish"]),
    "hard swish, clipped": (_CLIP + "c = Mul(x, b) y = Div(c, six)", ["F.hardswish"]),
    "hard swish, times a sixth": (_CLIP + "c = Mul(b, sixth) y = Mul(c, x)", ["F.hardswish"]),
    "hard sigmoid": (_CLIP + "y = Div(b, six)", ["F.hardsigmoid"]),
    "hard sigmoid of another slope": (
        "h = HardSigmoid<alpha=0.2>(x) y = Mul(x, h)",
        ["ops.hard_sigmoid", "torch.mul"],
    ),
    "clip to 7": (
        "a = Add(x, three) b = Clip(a, zero, seven) y = Div(b, six)",
        ["torch.add", "torch.clamp", "torch.div"],
    ),
    "relu6": ("y = Clip(x, zero, six)", ["F.relu6"]),
    "relu6 as a minimum": ("r = Relu(x) y = Min(r, six)", ["F.relu6"]),
    "softplus": ("a = Exp(x) b = Add(a, one) y = Log(b)", ["F.softplus"]),
    "softplus with a threshold": (
        "a = Softplus(x) b = Greater(x, twenty) y = Where(b, x, a)",
        ["F.softplus"],
    ),
    "mish": ("a = Softplus(x) b = Tanh(a) y = Mul(x, b)", ["F.mish"]),
    "mish of exp": ("a = Exp(x) b = Add(one, a) c = Log(b) d = Tanh(c) y = Mul(d, x)", ["F.mish"]),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_one_call(name: str) -> None:
    body, want = ACTIVATIONS[name]
    has_two = re.search(r"\bz\b", body) is not None
    arrays = [4 * weights(3, 5, 6) for _ in range(1 + has_two)]
    assert check(model_of(body, _ROWS if has_two else "float[n,5,6] x", _NUMBERS), *arrays) == want


def test_a_gate_that_is_broadcast_stays_a_product() -> None:
    """Squeeze and excitation multiplies by a gate per channel: no gated unit."""
    model = model_of("s = Sigmoid(x) a = Mul(x, s) y = Mul(a, z)", "float[n,4,5,5] x, float[n,4,1,1] z", {})
    assert check(model, weights(2, 4, 5, 5), weights(2, 4, 1, 1)) == ["F.silu", "torch.mul"]


def test_a_gated_unit_runs_the_kernel_and_has_gradients() -> None:
    """burnt.kernels computes it, before and after a swap."""
    model = model_of("s = Sigmoid(x) a = Mul(x, s) y = Mul(a, z)", _ROWS, {})
    module = burnt.onnx.load(model)
    gate, up = torch.randn(2, 5, 6, requires_grad=True), torch.randn(2, 5, 6)
    want = torch.nn.functional.silu(gate) * up
    with pytest.MonkeyPatch.context() as patch:
        kernel = mock.Mock(wraps=burnt.kernels.swiglu)
        patch.setattr(burnt.kernels, "swiglu", kernel)
        torch.testing.assert_close(module(gate, up), want)
        burnt.swap(module, mode="infer")
        torch.testing.assert_close(module(gate, up), want)
    assert kernel.in_layer.call_count == 2
    (grad,) = torch.autograd.grad(module(gate, up).sum(), gate)
    torch.testing.assert_close(grad, torch.autograd.grad(want.sum(), gate)[0])


_FLAT = "sizes = Shape<start=0>(x) a = Reshape(x, groups) "
_FLAT += "b = InstanceNormalization<epsilon=0.001>(a, ones, zeros) "
_GROUPS = {"groups": np.array([0, 2, -1]), "ones": np.ones(2), "zeros": np.zeros(2)}
_PER_CHANNEL = {"w": weights(6, 1, 1), "bias": weights(6, 1, 1)}
_AXIS_1 = _NUMBERS | {"axes": np.array([1])} | _PER_CHANNEL
_LAST = _NUMBERS | {"axes": np.array([-1])}
_IMAGES = "float[n,6,h,w] x"
NORMS: dict[str, Any] = {
    # nodes, inputs, constants, what they become
    "group norm": (
        _FLAT + "c = Reshape(b, sizes) d = Mul(c, w) y = Add(d, bias)",
        _IMAGES,
        _GROUPS | _PER_CHANNEL,
        ["GroupNorm"],
    ),
    "group norm of the flat weights": (
        _FLAT
        + "c = Reshape(b, sizes) u = Unsqueeze(w, ends) d = Mul(c, u) "
        + "t = Unsqueeze(bias, ends) y = Add(d, t)",
        _IMAGES,
        _GROUPS | {"w": weights(6), "bias": weights(6), "ends": np.array([1, 2])},
        ["GroupNorm"],
    ),
    "group norm without weights": (_FLAT + "y = Reshape(b, sizes)", _IMAGES, _GROUPS, ["GroupNorm"]),
    "an instance norm of groups with a scale": (
        _FLAT + "y = Reshape(b, sizes)",
        _IMAGES,
        _GROUPS | {"ones": np.array([1.0, 2.0])},
        ["torch.reshape", "InstanceNorm", "torch.reshape"],
    ),
    "instance norm": (
        "y = InstanceNormalization(x, w, bias)",
        _IMAGES,
        {"w": weights(6), "bias": weights(6)},
        ["InstanceNorm"],
    ),
    "channels first": (
        _NORM + "q = Mul(w, n) y = Add(q, bias)",
        _IMAGES,
        _AXIS_1,
        ["torch.movedim", "LayerNorm", "torch.movedim"],
    ),
    "layer norm without bias": (
        _NORM + "y = Mul(n, w)",
        "float[n,5,6] x",
        _LAST | {"w": weights(6)},
        ["LayerNorm"],
    ),
    "layer norm of one scale": (
        _NORM + "y = Mul(n, w)",
        "float[n,5,6] x",
        _LAST | {"w": weights(1)},
        [
            "torch.mean",
            "torch.sub",
            "torch.pow",
            "torch.mean",
            "torch.add",
            "torch.sqrt",
            "torch.div",
            "torch.mul",
        ],
    ),
    "rms norm in float32 and back": (
        "c = Cast<to=1>(x) p = Pow(c, two) v = ReduceMean<keepdims=1>(p, axes) e = Add(v, eps) s = Sqrt(e) "
        "r = Div(one, s) n = Mul(c, r) t = Cast<to=1>(n) y = Mul(w, t)",
        "float[n,5,6] x",
        _LAST | {"w": weights(6)},
        ["RmsNorm"],
    ),
    "a layer norm of a shared weight": (
        _NORM + "a = Mul(n, w) b = Add(a, bias) y = Mul(b, w)",
        "float[n,5,6] x",
        _LAST | {"w": weights(6), "bias": weights(6)},
        ["ops.layer_norm", "torch.mul"],
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_a_layer(name: str) -> None:
    body, inputs, constants, want = NORMS[name]
    x = weights(2, 6, 5, 4) if inputs == _IMAGES else weights(3, 5, 6)
    calls = check(model_of(body, inputs, constants), x)
    assert calls == want


def test_a_norm_with_real_casts_stays() -> None:
    """Llama in float16 rounds what it has normalized, before it multiplies by the weight."""
    body = (
        "c = Cast<to=1>(x) p = Pow(c, two) v = ReduceMean<keepdims=1>(p, axes) e = Add(v, eps) s = Sqrt(e) "
        "r = Div(one, s) n = Mul(c, r) t = Cast<to=10>(n) h = Mul(w, t) y = Cast<to=1>(h)"
    )
    constants = {key: _NUMBERS[key] for key in ("two", "eps", "one")} | {"axes": np.array([-1])}
    model = model_of(body, "float16[n,6] x", constants | {"w": weights(6).astype(np.float16)})
    calls = check(model, weights(4, 6).astype(np.float16), tolerance=1e-3)
    assert "RmsNorm" not in calls


_AFTER = " m = Mul(c, s) y = Add(t, m)"
CONVS: dict[str, Any] = {
    # options, what follows the convolution ``c``, what they become
    "a batch norm": (
        "pads=[1,1,1,1]",
        " y = BatchNormalization(c, s1, t1, mean, var)",
        ["Conv2d", "BatchNorm"],
    ),
    "a product and a sum": ("strides=[2,2]", _AFTER, ["Conv2d"]),
    "a sum": ("", " y = Add(c, t)", ["Conv2d"]),
    "a product": ("", " y = Mul(c, s)", ["Conv2d", "torch.mul"]),
    "a product read twice": (
        "",
        " m = Mul(c, s) a = Add(m, t) y = Mul(a, m)",
        ["Conv2d", "torch.mul", "torch.add", "torch.mul"],
    ),
    "unequal pads": ("pads=[0,1,2,1]", _AFTER, ["F.pad", "Conv2d"]),
    "the same size": ('auto_pad="SAME_LOWER"', _AFTER, ["F.pad", "Conv2d"]),
    "the same size, strides": ('auto_pad="SAME_UPPER", strides=[2,2]', _AFTER, ["ops.pad_same", "Conv2d"]),
}


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("has_bias", [True, False])
def test_what_follows_a_convolution(name: str, has_bias: bool) -> None:
    options, after, want = CONVS[name]
    options = f"<group=2{', ' if options else ''}{options}>"
    constants = {"w": weights(6, 2, 3, 2), "b": weights(6), "s": weights(1, 6, 1, 1), "t": weights(6, 1, 1)}
    constants |= {"s1": weights(6), "t1": weights(6), "mean": weights(6), "var": weights(6) ** 2 + 0.1}
    body = f"c = Conv{options}(x, w{', b' if has_bias else ''}){after}"
    calls = check(model_of(body, "float[n,4,h,v] x", constants), weights(2, 4, 9, 8))
    assert calls == want


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ("strides=[2], pads=[1,1], output_padding=[1]", ["ConvTranspose1d"]),
        ("strides=[2], pads=[0,2]", ["ConvTranspose1d", "F.pad"]),
        ('strides=[2], auto_pad="SAME_LOWER"', ["ConvTranspose1d", "F.pad"]),
        ("strides=[2], output_shape=[15]", ["ops.conv_transpose", "torch.mul", "torch.add"]),
    ],
)
def test_what_follows_a_transposed_convolution(options: str, want: list[str]) -> None:
    constants = {"w": weights(4, 3, 3), "b": weights(3), "s": weights(1, 3, 1), "t": weights(3, 1)}
    model = model_of(f"c = ConvTranspose<{options}>(x, w, b){_AFTER}", "float[n,4,h] x", constants)
    assert check(model, weights(2, 4, 8)) == want


def test_convolutions_that_share_a_bias_are_layers() -> None:
    """Each keeps its weight; the bias, which is one parameter, is added."""
    constants = {"w": weights(4, 4, 3), "v": weights(4, 4, 1), "b": weights(4)}
    body = "c = Conv(x, w, b) d = Relu(c) y = Conv(d, v, b)"
    model = model_of(body, "float[n,4,h] x", constants)
    add = ["ops.align", "torch.add"]
    assert check(model, weights(2, 4, 9)) == ["Conv1d", *add, "torch.relu", "Conv1d", *add]
    assert sum(p.numel() for p in burnt.onnx.load(model).parameters()) == 4 * 4 * 4 + 4


def test_gemms_that_share_a_bias_are_layers() -> None:
    body = "c = Gemm(x, w, b) y = Gemm<transB=1>(c, v, b)"
    model = model_of(body, "float[n,4] x", {"w": weights(4, 4), "v": weights(4, 4), "b": weights(4)})
    assert check(model, weights(2, 4)) == ["Linear", "torch.add", "Linear", "torch.add"]


def test_quantize_folds_a_batch_norm() -> None:
    """As in a model of burnt's, where a norm follows a convolution."""
    constants = {
        "w": weights(6, 4, 3, 3),
        "s": weights(6),
        "t": weights(6),
        "mean": weights(6),
        "var": np.ones(6),
    }
    body = "c = Conv(x, w) y = BatchNormalization(c, s, t, mean, var)"
    module = burnt.onnx.load(model_of(body, "float[n,4,h,w] x", constants))
    x = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        want = module(x)
        burnt.quantize(module, "int8", calibrate=[x], fold_batch_norm=True)
        assert [type(layer).__name__ for layer in module.children()] == ["QuantizedConv", "Folded"]
        assert (module(x) - want).abs().max() < 0.05 * want.abs().max()


_RESIZE = {
    # mode, coordinates, more attributes, scales of the spatial axes, what it becomes
    "nearest": ("nearest", "asymmetric", 'nearest_mode="floor"', [2.0, 3.0], "F.interpolate"),
    "nearest, 1.5": ("nearest", "asymmetric", 'nearest_mode="floor"', [1.5], "ops.resize"),
    "nearest, 0.3": ("nearest", "asymmetric", 'nearest_mode="floor"', [0.3, 0.3], "ops.resize"),
    "nearest, 1.4": ("nearest", "asymmetric", 'nearest_mode="floor"', [1.4], "ops.resize"),
    "nearest, rounded": ("nearest", "half_pixel", "", [2.0, 3.3], "ops.resize"),
    "linear": ("linear", "half_pixel", "", [1.7], "F.interpolate"),
    "bilinear": ("linear", "half_pixel", "", [2.5, 0.6], "F.interpolate"),
    "trilinear": ("linear", "half_pixel", "", [2.0, 0.5, 1.5], "F.interpolate"),
    "bilinear, corners": ("linear", "align_corners", "", [2.5, 0.5], "F.interpolate"),
    "bilinear of torch": ("linear", "pytorch_half_pixel", "", [2.0, 3.3], "F.interpolate"),
    "bilinear of torch, smaller": ("linear", "pytorch_half_pixel", "", [0.25, 2.0], "ops.resize"),
    "bicubic": ("cubic", "half_pixel", "", [1.7, 0.75], "F.interpolate"),
    "bicubic, corners": ("cubic", "align_corners", "", [3.0, 3.0], "F.interpolate"),
    "bicubic of another kernel": ("cubic", "half_pixel", "cubic_coeff_a=-0.5", [1.7, 0.75], "ops.resize"),
}


@pytest.mark.parametrize("name", _RESIZE)
def test_resize_is_interpolate_where_it_computes_the_same(name: str) -> None:
    mode, coordinates, more, scales, want = _RESIZE[name]
    rank = len(scales)
    attributes = f'mode="{mode}", coordinate_transformation_mode="{coordinates}"{", " if more else ""}{more}'
    inputs = f"float[n,2,{','.join('abc'[:rank])}] x"
    model = model_of(
        f"y = Resize<{attributes}>(x, , scales)", inputs, {"scales": np.array([1.0, 1.0, *scales])}
    )
    for size in (4, 7, 16, 45):
        if size > 16 and rank == 3:
            continue
        x = weights(2, 2, *(size + axis for axis in range(rank)))
        assert check(model, x) == [want]


@pytest.mark.parametrize(
    ("sizes", "body", "options"),
    [
        ("float[2,2,7,5] x", "y = Resize<{}>(x, , , sizes)", {"size": [11, 4]}),
        (
            "float[n,2,h,w] x",
            "s = Shape(x) t = Mul(s, factors) y = Resize<{}>(x, , , t)",
            {"scale_factor": 3.0},
        ),
        (
            "float[n,2,h,w] x",
            "s = Shape<end=2>(x) t = Concat<axis=0>(s, new) y = Resize<{}>(x, , , t)",
            {"size": [11, 4]},
        ),
    ],
)
def test_resize_to_sizes(sizes: str, body: str, options: dict[str, Any]) -> None:
    constants = {
        "sizes": np.array([2, 2, 11, 4]),
        "factors": np.array([1, 1, 3, 3]),
        "new": np.array([11, 4]),
    }
    attributes = 'mode="linear", coordinate_transformation_mode="half_pixel"'
    model = model_of(body.format(attributes), sizes, constants)
    assert check(model, weights(2, 2, 7, 5))[-1:] == ["F.interpolate"]
    last = burnt.onnx.load(model).program.statements[-1]
    assert isinstance(last, Statement)
    assert last.call.kwargs == options | {"mode": "bilinear"}


def test_the_written_python_computes_the_same(tmp_path: Path) -> None:
    body = (
        _FLAT
        + "c = Reshape(b, sizes) d = Mul(c, w) e = Add(d, bias) f = Conv(e, k) g = Mul(f, s) h = Add(g, t) "
    )
    body += 'y = Resize<mode="cubic", coordinate_transformation_mode="half_pixel">(h, , scales)'
    constants = (
        _GROUPS | _PER_CHANNEL | {"k": weights(6, 6, 1, 1), "s": weights(6, 1, 1), "t": weights(6, 1, 1)}
    )
    module = burnt.onnx.load(model_of(body, _IMAGES, constants | {"scales": np.array([1.0, 1.0, 1.5, 2.0])}))
    path = write_package(module, tmp_path / "package", name="Model", title="A model.")
    spec = importlib.util.spec_from_file_location("written_layers", path)
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    x = torch.randn(2, 6, 5, 4)
    assert torch.equal(written.load()(x), module(x))
    text = path.read_text()
    assert 'scale_factor=[1.5, 2.0], mode="bicubic")' in text
    assert "nn.GroupNorm(2, 6, eps=" in text
