"""Layers with quantized weights: every scheme on every kind of layer, and whatever torch does to a module."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import burnt
from burnt.errors import RecordError, ShapeError
from burnt.nn.quantized import Quantized, QuantizedConv, QuantizedEmbedding, QuantizedLinear
from burnt.record import record_of

VALUES = ("int8", "int4", "int2", "fp8", "e5m2", "float4")
INTEGERS = VALUES[:3]
SCHEMES = [
    f"{value}-{level}{zero}{activations}"
    for value, level, zero, activations in itertools.product(
        VALUES,
        ("tensor", "channel", "block4", "block32"),
        ("", "-asymmetric"),
        ("", "-dynamic", "-dynamic_tensor", "-static"),
    )
    if value in INTEGERS or not (zero or activations == "-dynamic_tensor")
]
SOME = (
    "int8",
    "int4-block32-asymmetric",
    "fp8",
    "int8-dynamic",
    "fp8-dynamic",
    "int4-block32-dynamic",
    "int8-static",
    "fp8-static",
    "int4-block32-static",
)
WHOLE = "int8-asymmetric-dynamic_tensor"
FEW = ("int8", "int4-block32-asymmetric", "int8-dynamic", "fp8-dynamic", "int4-block32-static")
EACH = [s if s in FEW else pytest.param(s, marks=pytest.mark.full) for s in (*SOME, WHOLE)]


def hf_conv1d() -> nn.Module:
    layer: nn.Module = pytest.importorskip("transformers.pytorch_utils").Conv1D(6, 21)
    nn.init.normal_(layer.get_parameter("bias"))
    return layer


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "Linear": (lambda: nn.Linear(13, 7), (5, 13)),
    "Linear without bias": (lambda: nn.Linear(64, 1, bias=False), (3, 2, 64)),
    "Linear of one": (lambda: nn.Linear(1, 5), (4, 1)),
    "burnt Linear": (lambda: burnt.nn.Linear(33, 9), (33,)),
    "HF Conv1D": (hf_conv1d, (2, 4, 21)),
    "Conv1d": (lambda: nn.Conv1d(3, 5, 3, padding=1), (3, 9)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), groups=2), (2, 4, 7, 6)),
    "same": (lambda: nn.Conv2d(3, 4, (4, 3), padding="same", dilation=2), (2, 3, 9, 8)),
    "circular": (lambda: nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular"), (2, 3, 9, 8)),
    "reflect": (lambda: nn.Conv2d(3, 4, (4, 3), padding="same", padding_mode="reflect"), (3, 9, 8)),
    "causal": (lambda: burnt.nn.Conv1d(3, 4, 3, padding=((2, 0),)), (2, 3, 9)),
    "burnt Conv2d": (lambda: burnt.nn.Conv2d(3, 4, 3, stride=2, padding="same"), (2, 3, 9, 8)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1, bias=False), (2, 2, 4, 5, 3)),
    "Embedding": (lambda: nn.Embedding(11, 13, padding_idx=2), None),
    "burnt Embedding": (lambda: burnt.nn.Embedding(11, 7), None),
}
FAST = [LAYERS["Linear"], LAYERS["Conv2d"], LAYERS["circular"], LAYERS["Embedding"]]


def inputs(shape: tuple[int, ...] | None, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randint(11, (3, 4)) if shape is None else torch.randn(shape).to(dtype)


def quantized(build: Callable[[], nn.Module], scheme: str, x: Tensor, dtype: Any = torch.float32) -> Any:
    """The layer, calibrated with `x` if the scheme is static."""
    model = nn.Sequential(build().to(dtype))
    report = burnt.quantize(model, scheme, calibrate=[x] if "static" in scheme else None)
    assert len(report.quantized) == 1, report
    return model


def error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.sample(2)
@pytest.mark.parametrize("step", [53, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", LAYERS)
def test_every_scheme_computes_with_its_weight(name: str, step: int) -> None:
    """Equal to the original layer with the dequantized weight; quantized inputs are rounded besides."""
    build, shape = LAYERS[name]
    dtypes = itertools.cycle((torch.float32, torch.bfloat16, torch.float16))
    schemes = SCHEMES[13 * list(LAYERS).index(name) % step :: step]
    for scheme, dtype in zip(schemes, dtypes, strict=False):
        torch.manual_seed(1)
        x = inputs(shape, dtype)
        model = quantized(build, scheme, x, dtype)
        layer: Quantized = model[0]
        plain = burnt.dequantize(copy.deepcopy(model))
        found, expected = model(x), plain(x)
        assert (found.dtype, found.shape) == (dtype, expected.shape), scheme
        rounded = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
        if scheme.endswith(("dynamic", "dynamic_tensor", "static")) and shape is not None:
            rounded = 0.2 if "e5m2" in scheme else 0.05 if "f" in scheme else 0.03
        assert error(found, expected) <= rounded, scheme
        stored = sum(b.nbytes for b in (layer.values, layer.scale, layer.zero_point) if b is not None)
        assert layer.scheme.num_bytes(layer.rows, layer.columns) == stored, scheme


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", EACH)
def test_gradients_are_those_of_the_dequantized_layer(scheme: str) -> None:
    """To the bit or nearly, in transforms and twice too: rounding the input has the gradient one."""
    for build, shape in [*FAST[:3], LAYERS["causal"], LAYERS["reflect"], LAYERS["HF Conv1D"]]:
        x = inputs(shape).requires_grad_()
        model = quantized(build, scheme, x)
        plain = burnt.dequantize(copy.deepcopy(model))
        weight = torch.randn_like(plain(x))
        ours, theirs = (torch.autograd.grad((m(x) * weight).sum(), [x, m[0].bias]) for m in (model, plain))
        for a, b in zip(ours, theirs, strict=True):
            assert error(a, b) < 1e-6
        (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        first.square().sum().backward()
        if x.dim() > 1 and shape in ((5, 13), (2, 4, 7, 6)):
            each = torch.func.vmap(torch.func.grad(lambda t, m=model: m(t).square().sum()))(x.detach())
            expected = [
                torch.autograd.grad(model(t).square().sum(), t)[0] for t in x.detach().requires_grad_()
            ]
            assert error(each, torch.stack(expected)) < 1e-4
        parameters = dict(model.named_parameters())
        grads = torch.func.grad(lambda p, m=model, x=x: torch.func.functional_call(m, p, (x,)).sum())(
            parameters
        )
        assert error(grads["0.bias"], torch.autograd.grad(plain(x).sum(), plain[0].bias)[0]) < 1e-6


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", EACH)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_the_dtype_of_a_plain_layer(scheme: str, dtype: torch.dtype) -> None:
    for build, shape in FAST:
        x = inputs(shape)
        model = quantized(build, scheme, x)
        plain = burnt.dequantize(copy.deepcopy(model))
        for grad in (True, False):
            leaf = x.clone().requires_grad_(grad and shape is not None)
            with torch.autocast("cpu", dtype), torch.set_grad_enabled(grad):
                found, expected = model(leaf), plain(leaf)
            assert found.dtype == expected.dtype
            assert error(found, expected) < 0.05
            if leaf.requires_grad:
                grads = torch.autograd.grad(found.float().sum(), [leaf, model[0].bias])
                assert {g.dtype for g in grads} == {torch.float32}


def test_integers_are_summed_exactly_under_autocast() -> None:
    x = torch.randn(5, 2000)
    model = quantized(lambda: nn.Linear(2000, 8), "int8-dynamic", x)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(x)
    assert torch.equal(found, expected.bfloat16())


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", EACH)
def test_whatever_torch_does_to_a_module(scheme: str) -> None:
    for build, shape in FAST:
        x = inputs(shape)
        model = quantized(build, scheme, x)
        layer = model[0]
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        with torch.inference_mode():
            expected = model(x)
            assert torch.equal(torch.load(file, weights_only=False)(x), expected)
            assert torch.equal(copy.deepcopy(model)(x), expected)
        meta = copy.deepcopy(model).to("meta")
        empty = copy.deepcopy(meta).to_empty(device="cpu")
        for other in (meta, empty, *(copy.deepcopy(model).type(t) for t in (torch.float16, torch.float64))):
            for name in ("values", "scale", "zero_point", "input_scale", "input_zero_point"):
                mine, its = getattr(layer, name), getattr(other[0], name)
                assert getattr(mine, "dtype", None) == getattr(its, "dtype", None), name
        empty.load_state_dict(model.state_dict())
        with torch.inference_mode():
            assert torch.equal(empty(x), expected)
        double = copy.deepcopy(model).double()
        assert double(x.double() if shape else x).dtype == double[0].weight.dtype == torch.float64


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's Dynamo
@pytest.mark.parametrize("scheme", [*SOME, WHOLE])
def test_vmap_and_compile(scheme: str) -> None:
    for build, shape in FAST[:2]:
        x = torch.stack([inputs(shape) for _ in range(3)])
        model = quantized(build, scheme, x[0])
        with torch.no_grad():
            each = torch.stack([model(t) for t in x])
            assert error(torch.func.vmap(model)(x), each) < 1e-5
        torch._dynamo.reset()
        compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
        leaf = x[0].requires_grad_()
        for found, expected in zip(
            *(torch.autograd.grad(m(leaf).square().sum(), [leaf, model[0].bias]) for m in (compiled, model)),
            strict=True,
        ):
            assert error(found, expected) < 1e-5


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", EACH)
def test_layouts_and_empty_batches(scheme: str) -> None:
    linear = quantized(lambda: nn.Linear(64, 8), scheme, torch.randn(5, 64))
    conv = quantized(lambda: nn.Conv2d(3, 4, 3), scheme, torch.randn(2, 3, 6, 6))
    assert linear(torch.zeros(0, 64)).shape == (0, 8)
    assert linear(torch.zeros(2, 0, 64)).shape == (2, 0, 8)
    assert conv(torch.zeros(0, 3, 6, 6)).shape == (0, 4, 4, 4)
    x, image = torch.randn(64, 5).t(), torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    torch.testing.assert_close(linear(x), linear(x.contiguous()), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(conv(image), conv(image.contiguous()), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(copy.deepcopy(conv).to(memory_format=torch.channels_last)(image), conv(image))


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", EACH)
def test_inputs_that_do_not_fit(scheme: str) -> None:
    linear = quantized(lambda: nn.Linear(40, 8), scheme, torch.randn(5, 40))
    for columns in (20, 50, 64):  # blocks of 32 are padded to 64
        with pytest.raises(ShapeError, match=r"expected  \(\.\.\., 40\)"):
            linear(torch.randn(2, columns))
    with pytest.raises(ShapeError, match="QuantizedLinear"):
        burnt.check(linear, torch.randn(2, 64))
    conv = quantized(lambda: nn.Conv2d(3, 4, 3), scheme, torch.randn(2, 3, 6, 6))
    with torch.no_grad(), pytest.raises(ShapeError, match=r"\(N, 3, H, W\)"):
        conv(torch.randn(2, 5, 6, 6))
    with pytest.raises(IndexError):
        quantized(lambda: nn.Embedding(10, 32), scheme, torch.arange(10))(torch.tensor([10]))


def test_what_restored_layers_keep() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4)).eval()
    model[0].requires_grad_(False)
    burnt.quantize(model, "int8")
    assert [p.requires_grad for p in model.parameters()] == [False, True]
    burnt.dequantize(model)
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    assert not model[0].training


def test_a_record_of_another_kind_of_layer(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 8))
    burnt.quantize(model, "int8")
    record_of(model).save(tmp_path / "a.safetensors")
    other = nn.Sequential(nn.Embedding(8, 64))
    with pytest.raises(RecordError, match=r"expected  a torch\.nn\.modules\.linear\.Linear"):
        burnt.load_weights(other, tmp_path / "a.safetensors")
    assert type(other[0]) is nn.Embedding


def test_sizes_are_attributes() -> None:
    """Under torch's names, for `burnt.summary` and other readers."""
    linear = QuantizedLinear(nn.Linear(3, 2), burnt.QuantScheme())
    conv = QuantizedConv(nn.Conv2d(3, 4, 5), burnt.QuantScheme())
    table = QuantizedEmbedding(nn.Embedding(9, 7, padding_idx=1), burnt.QuantScheme())
    assert (linear.in_features, linear.out_features, linear.nf) == (3, 2, 2)
    assert (conv.in_channels, conv.out_channels, conv.kernel_size) == (3, 4, (5, 5))
    assert (table.num_embeddings, table.embedding_dim, table.padding_idx) == (9, 7, 1)
