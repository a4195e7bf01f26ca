"""burnt's ops as ONNX's own, and quantized models as files of integers, compared with burnt.

`export` compares each file with its module in ONNX Runtime; these tests look at what is in the file, and
import it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import burnt
from burnt import kernels
from burnt.errors import InputValueError, UnsupportedError
from burnt.models import BertConfig, Gpt2Config, LlamaConfig, ResNetConfig, ViTConfig
from burnt.onnx import export
from burnt.onnx.export import OPSETS

SIZES: dict[str, Any] = {"d_model": 32, "num_layers": 1, "num_heads": 4}


def tokens() -> Tensor:
    return torch.randint(1, 50, (4, 6))


MODELS: dict[str, tuple[Any, Callable[[], Tensor]]] = {
    "llama": (LlamaConfig(vocab_size=50, d_ff=64, num_kv_heads=2, **SIZES), tokens),
    "bert": (BertConfig(vocab_size=50, d_ff=64, **SIZES), tokens),
    "gpt2": (Gpt2Config(vocab_size=50, **SIZES), tokens),
    "vit": (ViTConfig(image_size=12, patch_size=4, d_ff=64, **SIZES), lambda: torch.randn(4, 3, 12, 12)),
    "resnet": (
        ResNetConfig(stem_channels=8, channels=(8, 16), depths=(1, 1), block="basic"),
        lambda: torch.randn(4, 3, 32, 32),
    ),
}
SCHEMES = ("float", "int8", "int8-dynamic", "int8-static", "int4-block32")


def ops(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


@torch.no_grad()
@pytest.mark.sample(keep=("llama-int4-block32-23",))
@pytest.mark.parametrize(
    "case", ["-".join(map(str, case)) for case in itertools.product(MODELS, SCHEMES, (20, 23))]
)
def test_the_circle(case: str, tmp_path: Path) -> None:
    name, rest = case.split("-", 1)
    scheme, opset = rest.rsplit("-", 1)
    config, example = MODELS[name]
    model, x = config.init().eval(), example()
    if scheme != "float":
        burnt.quantize(model, scheme, calibrate=[x] if "static" in scheme else None)
    exported = export(model, x, tmp_path / "m.onnx", opset=int(opset))
    found, expected = burnt.onnx.load(tmp_path / "m.onnx")(x), model(x)
    expected = expected if isinstance(expected, Tensor) else next(iter(vars(expected).values()))
    # A number halfway between two integers may be rounded to either.
    tolerance = 2e-2 if scheme in ("int8-dynamic", "int8-static") else 1e-5
    for ours in (found,) if isinstance(found, Tensor) else found[:1]:
        assert (ours - expected).abs().max() <= tolerance * expected.abs().max()
    assert max(exported.errors.values()) <= tolerance


@torch.no_grad()
@pytest.mark.full
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_opset(name: str, opset: int, tmp_path: Path, run_file: Callable[..., Any]) -> None:
    config, example = MODELS[name]
    model, x = config.init().eval(), example()
    exported = export(model, x, tmp_path / "m.onnx", opset=opset)
    file = onnx.load(exported.path)
    onnx.checker.check_model(file, full_check=True)
    assert [(entry.domain, entry.version) for entry in file.opset_import] == [("", opset)]
    found = next(iter(run_file(exported.path, {exported.signature.inputs[0].name: x}).values()))
    expected = model(x)
    expected = expected if isinstance(expected, Tensor) else next(iter(vars(expected).values()))
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-5)


class Convolutions(torch.nn.Module):
    """A convolution, a depthwise one with strides, and a linear map of what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, groups=8, stride=2)
        self.head = torch.nn.Linear(8 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.depthwise(self.conv(x).relu()).relu().flatten(1))


@torch.no_grad()
@pytest.mark.full  # the layers of the circle have the same translations
@pytest.mark.parametrize(
    "case",
    [
        f"{scheme}-{opset}"
        for scheme in ("int8-static", "int8-static-asymmetric", "int8-tensor-static", "int4-block32-static")
        for opset in (18, 20, 21, 22, 23, 25)
    ],
)
def test_quantized_convolutions(case: str, tmp_path: Path, run_file: Callable[..., Any]) -> None:
    scheme, opset = case.rsplit("-", 1)
    model, x = Convolutions().eval(), torch.randn(4, 3, 7, 7)
    burnt.quantize(model, scheme, calibrate=[x])
    exported = export(model, x, tmp_path / "m.onnx", opset=int(opset), tolerance=1e-3)
    nodes = onnx.load(exported.path).graph.node
    by_output = {output: node for node in nodes for output in node.output}
    convolutions = [node for node in nodes if node.op_type == "Conv"]
    assert [by_output[node.input[0]].op_type for node in convolutions] == ["DequantizeLinear"] * 2
    # Its optimized graph, which `export` compares, rounds biases to multiples of the scales' product: numbers
    # near a tie (here one, by 5e-4 of a step) come out a quantization step apart.
    found = torch.from_numpy(run_file(exported.path, {"x": x}, optimized=False)["output"])
    torch.testing.assert_close(found, model(x), atol=1e-6, rtol=1e-5)


class WholeTensor(torch.nn.Module):
    """Uses the values of `quantize_tensor` itself."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values, scale, zero_point = kernels.quantize_tensor(x)
        return values, scale, zero_point, (values.float() - zero_point.float()) * scale


@pytest.mark.full
@torch.no_grad()
def test_values_of_quantize_tensor_are_signed(tmp_path: Path, run_file: Callable[..., Any]) -> None:
    x = torch.randn(4, 5)
    exported = export(WholeTensor(), x, tmp_path / "m.onnx")
    for found, expected in zip(run_file(exported.path, {"x": x}).values(), WholeTensor()(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-6, rtol=1e-6)


class Kernels(torch.nn.Module):
    """Ops of burnt.kernels, as `burnt.swap` calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))
        self.bias = torch.nn.Parameter(torch.rand(8))
        angles = torch.rand(5, 3)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        normed, total = kernels.rms_norm(x, self.weight, 1e-3, x.flip(-1))
        again, _ = kernels.layer_norm(total, self.weight, self.bias, 1e-2, x, "gelu")
        cos, sin = self.get_buffer("cos"), self.get_buffer("sin")
        heads = torch.stack([normed, again], 1)
        q, k = kernels.rope(heads, cos, sin), kernels.rope(heads, cos, sin, interleaved=True)
        return kernels.attention(q, k, heads, causal=True, scale=0.7), kernels.rope(x, cos, sin)


@torch.no_grad()
@pytest.mark.parametrize("opset", [pytest.param(18, marks=pytest.mark.full), 23])
def test_ops_of_burnt_are_onnx_s_own(opset: int, tmp_path: Path) -> None:
    model, x = Kernels(), torch.randn(4, 5, 8)
    exported = export(model, x, tmp_path / "m.onnx", opset=opset)
    assert max(exported.errors.values()) < 1e-5
    file = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(file, full_check=True)
    assert [(entry.domain, entry.version) for entry in file.opset_import] == [("", opset)]
    found, since_23 = ops(tmp_path / "m.onnx"), {"Attention", "RMSNormalization", "RotaryEmbedding"}
    assert "LayerNormalization" in found
    assert found & since_23 == (since_23 if opset == 23 else set())
    for ours, expected in zip(burnt.onnx.load(tmp_path / "m.onnx")(x), model(x), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


class Masked(torch.nn.Module):
    """Attention of an input with itself, under a mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask).transpose(1, 2).flatten(2)


@pytest.mark.full
@torch.no_grad()
@pytest.mark.parametrize("opset", [pytest.param(22, marks=pytest.mark.full), 23])
@pytest.mark.parametrize(
    "axes",
    [
        pytest.param((1, 1, 6), id="keys"),
        pytest.param((1, 6, 6), id="both", marks=pytest.mark.full),
        pytest.param((1, 6, 1), id="queries", marks=pytest.mark.full),
    ],
)
def test_masks_of_attention_broadcast(axes: tuple[int, ...], opset: int, tmp_path: Path) -> None:
    path, x, mask = tmp_path / "m.onnx", torch.randn(3, 6, 8), torch.randn(3, *axes)
    lengths = {axis: "length" for axis, size in enumerate(mask.shape) if size == 6}
    export(Masked(), (x, mask), path, opset=opset, open_axes={"x": {1: "length"}, "mask": lengths})
    assert ("Attention" in ops(path)) == (opset == 23)
    assert ("Expand" in ops(path)) == (opset == 23 and axes != (1, 6, 6))
    session = onnxruntime.InferenceSession(path)
    for batch, length in ((1, 2), (4, 9)):
        x = torch.randn(batch, length, 8)
        mask = torch.randn(batch, *(length if size == 6 else 1 for size in axes))
        (found,) = session.run(None, {"x": x.numpy(), "mask": mask.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), Masked()(x, mask), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(burnt.onnx.load(path)(x, mask), Masked()(x, mask), atol=1e-5, rtol=1e-5)


class Ranks(torch.nn.Module):
    """Attention of 2 to 5 axes, with heads that are equal, grouped or broadcast."""

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        attention, one = F.scaled_dot_product_attention, x[:, :1]
        return (
            attention(x[0, 0], x[0, 1], x[0, 2]),
            attention(x[:, 0], x[:, 1], x[:, 2], attn_mask=mask[:, 0], scale=0.7),
            attention(x[None], x[None], x[None], attn_mask=mask),
            attention(x.unflatten(1, (2, 2)), one[:, :, None], one[:, :, None], is_causal=True),
            attention(x, one, one),
            attention(x, x, x, enable_gqa=True),
            attention(x, one, one, attn_mask=mask, enable_gqa=True),
        )


@torch.no_grad()
@pytest.mark.full
@pytest.mark.parametrize("opset", [20, 23])
def test_attention_of_any_rank(opset: int, tmp_path: Path) -> None:
    path, x, mask = tmp_path / "m.onnx", torch.randn(3, 4, 5, 8), torch.randn(3, 1, 1, 5)
    assert max(export(Ranks(), (x, mask), path, opset=opset).errors.values()) < 1e-5
    for ours, expected in zip(burnt.onnx.load(path)(x, mask), Ranks()(x, mask), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


class Layers(torch.nn.Module):
    """The layers that are quantized: an embedding, linear maps of two and three axes, a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 64)
        self.linear = torch.nn.Linear(64, 64)
        self.conv = torch.nn.Conv1d(64, 64, 3, padding=1)
        self.head = torch.nn.Linear(64, 64)

    def forward(self, t: Tensor) -> Tensor:
        """A name that the exporter gives values, too."""
        x = F.gelu(self.linear(self.embedding(t))).mT
        return self.head(self.conv(x).amax(-1))


STORED: dict[tuple[str, int | None], set[str]] = {
    ("int8", None): {"INT8"},
    ("int8-dynamic", None): {"INT8"},
    ("int8-static", None): {"INT8"},
    ("int8-block32-asymmetric", 21): {"INT8"},
    ("int8-tensor", 23): {"INT8"},
    ("int4-block32", None): {"INT4", "UINT8"},
    ("int4-block32-asymmetric", None): {"INT4", "UINT8"},
    ("int4-block32", 20): {"INT8", "UINT8"},
    ("int2-block32", None): {"INT4", "UINT8"},
    ("int2-channel-asymmetric", 21): {"INT4", "UINT8"},
    ("int4-block32-bfloat16", None): {"INT4", "UINT8"},
    ("fp8", 20): {"FLOAT8E4M3FN"},
    ("fp8-block32", None): {"FLOAT8E4M3FN"},
    ("float8_e5m2-tensor", 19): {"FLOAT8E5M2"},
}


@torch.no_grad()
@pytest.mark.sample(keep=("fp8",))
@pytest.mark.parametrize(("scheme", "opset"), STORED)
def test_weights_are_stored_in_their_type(scheme: str, opset: int | None, tmp_path: Path) -> None:
    model, x = Layers().eval(), tokens()
    burnt.quantize(model, scheme, calibrate=[x] if "static" in scheme else None)
    exported = export(model, x, tmp_path / "m.onnx", opset=opset)
    assert max(exported.errors.values()) < 2e-2
    file = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(file, full_check=True)
    name = onnx.TensorProto.DataType.Name
    large = {name(t.data_type) for t in file.graph.initializer if onnx.numpy_helper.to_array(t).size > 600}
    assert large - {"FLOAT", "FLOAT16"} == STORED[scheme, opset]
    values = [t for t in file.graph.initializer if onnx.numpy_helper.to_array(t).size > 64 * 8]
    assert all(name(t.data_type) not in {"FLOAT", "FLOAT16"} for t in values)
    ours, expected = burnt.onnx.load(tmp_path / "m.onnx")(x), model(x)
    assert (ours - expected).abs().max() <= 2e-2 * expected.abs().max()


def test_dequantized_weights_are_exact(tmp_path: Path, run_file: Callable[..., Any]) -> None:
    """The file's weight, in 4 bits with a block that does not divide the columns, next to the layer's."""
    model = torch.nn.Sequential(torch.nn.Linear(50, 8, bias=False))
    burnt.quantize(model, "int4-block32-asymmetric")
    export(model, torch.randn(4, 50), tmp_path / "m.onnx")
    found = run_file(tmp_path / "m.onnx", {"input": torch.eye(50)})["output"]
    torch.testing.assert_close(torch.from_numpy(found).T, model[0].weight, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("opset", [17, 26])
def test_an_opset_that_is_not_written(opset: int, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 8))
    with pytest.raises(InputValueError, match=rf"(?s)opset= is invalid.*18 to 25, or None.*{opset}"):
        export(model, torch.randn(4, 32), tmp_path / "m.onnx", opset=opset)


SCHEMES_REFUSED: dict[tuple[str, int | None], str] = {
    ("fp4-block32", None): r"in        0\n  expected  int8, int4, int2, or float8.*found     fp4-block32",
    ("fp8-dynamic", 23): r"without quantized inputs\n  found     fp8-dynamic",
    ("fp8", 18): r"the scheme fp8 cannot be exported in this opset.*expected  at least 19\n  found     18",
    ("fp8-block32", 20): r"the scheme fp8-block32 cannot.*expected  at least 21\n  found     20",
}


@pytest.mark.parametrize(("scheme", "opset"), SCHEMES_REFUSED)
def test_schemes_that_onnx_runtime_lacks(scheme: str, opset: int | None, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 8))
    burnt.quantize(model, scheme)
    with pytest.raises(UnsupportedError, match="(?s)" + SCHEMES_REFUSED[scheme, opset]):
        export(model, torch.randn(4, 32), tmp_path / "m.onnx", opset=opset)
    assert not (tmp_path / "m.onnx").exists()
