"""`conv` and `conv_transpose`: candidates, errors and cases that `test_families` does not cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import InputRuntimeError, InputTypeError, InputValueError
from tests.processors import NAMES

LAST = torch.channels_last


def block() -> tuple[Tensor, torch.nn.Parameter, Tensor, Tensor, Tensor]:
    """Return image, weight, bias, scale and residual of a convolution that keeps the size."""
    torch.manual_seed(0)
    x, residual = (torch.randn(2, 5, 8, 7).to(memory_format=LAST) for _ in range(2))
    weight = torch.nn.Parameter(torch.randn(5, 5, 3, 3), requires_grad=False)
    return x, weight, torch.randn(5), torch.rand(5), residual


def expected(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, residual: Tensor) -> Tensor:
    plain = F.conv2d(x.double(), weight.double(), padding=1) * scale.double().view(-1, 1, 1)
    return F.relu(plain + bias.double().view(-1, 1, 1) + residual.double()).float()


def made(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, residual: Tensor) -> Tensor:
    result: Tensor = kernels.conv(x, weight, bias, scale, residual, "relu", padding=1)
    return result


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_packed_weight_follows_its_changes() -> None:
    x, weight, bias, scale, residual = block()
    args = (x, weight, bias, scale, residual, "relu", 1, 1, 1, 1)
    assert kernels.conv.candidates["onednn packed"].why_not(args) is None
    assert "onednn packed" in str(kernels.explain(kernels.conv, *args))
    torch.testing.assert_close(made(*args[:5]), expected(*args[:5]), rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]
    for changed in (weight, scale):
        changed.mul_(2)
        torch.testing.assert_close(made(*args[:5]), expected(*args[:5]), rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]
    other = torch.rand(5)
    torch.testing.assert_close(
        made(x, weight, bias, other, residual),
        expected(x, weight, bias, other, residual),
        rtol=1e-5,
        atol=1e-5,
    )
    smaller, left = x[:1, :, :4], residual[:1, :, :4]
    torch.testing.assert_close(
        made(
            smaller.contiguous(memory_format=LAST), weight, bias, other, left.contiguous(memory_format=LAST)
        ),
        expected(smaller, weight, bias, other, left),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("activation", [None, *kernels.ACTIVATIONS])
def test_every_activation(activation: str | None, summed: bool) -> None:
    """By the candidate chosen for a parameter; with a residual oneDNN fuses no activation."""
    x, weight, bias, scale, residual = block()
    maybe_residual = residual if summed else None
    expected_output = F.conv2d(x, weight * scale.view(-1, 1, 1, 1), bias, padding=1)
    expected_output = expected_output + residual if summed else expected_output
    if activation is not None:
        expected_output = kernels.ACTIVATIONS[activation](expected_output)
    result = kernels.conv(x, weight, bias, scale, maybe_residual, activation, padding=1)
    torch.testing.assert_close(result, expected_output, rtol=1e-5, atol=1e-5)
    x[1, 2, 3, 4] = torch.nan
    result = kernels.conv(x, weight, bias, scale, maybe_residual, activation, padding=1)
    assert int(result.isnan().sum()) == 5 * 9  # the outputs that depend on the element


def test_folded_norm_replaces_a_batch_norm() -> None:
    torch.manual_seed(0)
    conv, norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4).eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.normal_()
        norm.bias.normal_()
        x = torch.randn(2, 3, 6, 6)
        scale, bias = kernels.folded_norm(
            norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps, conv.bias
        )
        torch.testing.assert_close(kernels.conv(x, conv.weight, bias, scale), norm(conv(x)))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("form", [LAST, torch.channels_last_3d], ids=str)
@pytest.mark.parametrize("has_packed_form", [False, True])
@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "relu2"])
def test_onednn_convolutions(
    form: torch.memory_format, has_packed_form: bool, activation: str | None
) -> None:
    torch.manual_seed(0)
    axes = 2 if form is LAST else 3
    x = torch.randn(2, 4, *[9, 8, 7][:axes]).to(memory_format=form)
    weight = torch.randn(6, 2, *[3, 2, 3][:axes]) / 4
    weight = weight.to(memory_format=form) if has_packed_form else weight
    bias, scale = torch.randn(6), torch.rand(6)
    sizes = ([2, 1, 2][:axes], [1, 2, 0][:axes], [1, 2, 1][:axes], 2)
    plain = kernels.conv.reference(x, weight, None, None, None, None, *sizes)
    packed = kernels.conv.candidates["onednn packed"]
    for sums in ((bias, scale, torch.randn_like(plain)), (bias, None, None), (None, scale, None)):
        args = (x, weight, *sums, activation, *sizes)
        assert packed.why_not(args) is None
        exact = kernels.conv.reference(*[a.double() if isinstance(a, Tensor) else a for a in args])
        result = packed(*args)
        assert result.stride() == kernels.conv.reference(*args).stride()
        torch.testing.assert_close(result, exact.float(), rtol=1e-4, atol=1e-4)


def test_reasons_why_onednn_is_unsupported() -> None:
    x, weight, bias, scale, residual = block()
    why_not = kernels.conv.candidates["onednn packed"].why_not
    grad = weight.detach().requires_grad_()
    cases: dict[str, tuple[Any, ...]] = {
        "oneDNN does not support float64 on this machine": (x.double(), weight.double()),
        "x is not a batch of images or volumes": (x[0], weight),
        "x is not channels-last": (x.contiguous(), weight),
        "an empty tensor": (x, weight[:0]),
        "the residual is not channels-last": (x, weight, bias, scale, residual.contiguous()),
        "a gradient is required: the weight changes with every step": (x, grad),
    }
    sizes: tuple[Any, ...] = (None, 1, 1, 1, 1)
    for reason, args in cases.items():
        assert why_not((*args, *[None] * (5 - len(args)), *sizes)) == reason


@pytest.mark.parametrize(
    ("dtype", "able"),
    [
        (torch.float32, set(NAMES)),
        (torch.bfloat16, {"Intel AVX-512", "Intel AMX", "AMD AVX-512"}),
        (torch.float16, {"Intel AMX"}),
        (torch.float64, set()),
    ],
    ids=["float32", "bfloat16", "float16", "float64"],
)
def test_onednn_supports_the_dtypes_that_the_processor_has_instructions_for(
    dtype: torch.dtype, able: set[str], processor: str
) -> None:
    x = torch.zeros(2, 4, 8, 8, dtype=dtype).contiguous(memory_format=LAST)
    weight = torch.nn.Parameter(torch.zeros(6, 4, 3, 3, dtype=dtype), requires_grad=False)
    plain: tuple[Any, ...] = (None, None, None, None, 1, 0, 1, 1)
    without = (
        None
        if processor in able
        else f"oneDNN does not support {str(dtype).removeprefix('torch.')} on this machine"
    )
    assert kernels.conv.candidates["onednn packed"].why_not((x, weight, *plain)) == without
    assert (kernels.conv.chosen(x, weight).candidate.name == "onednn packed") == (processor in able)


def test_strides_are_torchs() -> None:
    x, weight, *_ = block()
    for image in (x, x.contiguous()):
        ours, theirs = kernels.conv(image, weight, padding=1), F.conv2d(image, weight, padding=1)
        assert ours.stride() == theirs.stride()
        assert kernels.conv(image, weight, padding=1, activation="relu").stride() == theirs.stride()


def test_without_a_batch() -> None:
    x, weight, *_ = block()
    torch.testing.assert_close(kernels.conv(x[0], weight), F.conv2d(x[0], weight))
    torch.testing.assert_close(kernels.conv_transpose(x[0], weight), F.conv_transpose2d(x[0], weight))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(
    ("kernel", "dilation"), [((3, 3), 1), ((2, 5), 1), ((4, 3), 3), ((1, 2), 2)], ids=str
)
def test_named_padding(padding: str, kernel: tuple[int, int], dilation: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 4, 11, 9, requires_grad=True), torch.randn(6, 2, *kernel)
    for image in (x, x[0]):
        theirs = F.conv2d(image.double(), weight.double(), None, 1, padding, dilation, 2)
        ours = kernels.conv(image, weight, None, None, None, None, 1, padding, [dilation], 2)
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4)
    named = kernels.conv(x, weight, padding=padding, dilation=dilation, groups=2)
    (ours,), (plain,) = (
        torch.autograd.grad(result.square().sum(), [x])
        for result in (named, F.conv2d(x, weight, None, 1, padding, dilation, 2))
    )
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_named_padding_is_traced_as_numbers() -> None:
    x, weight, *_ = block()
    seen = torch.fx.experimental.proxy_tensor.make_fx(lambda t: kernels.conv(t, weight, padding="same"))(x)
    (call,) = [n for n in seen.graph.nodes if n.op == "call_function"]
    assert call.target is torch.ops.burnt.conv.default
    assert call.args[7] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding": "some"}, "'valid', 'same' with a stride of 1, or numbers"),
        ({"padding": "same", "stride": 2}, "'valid', 'same' with a stride of 1, or numbers"),
        ({"stride": 0}, "stride of conv is not valid"),
        ({"padding": [1, 1, 1]}, "an integer of at least 0, or 2 of them"),
        ({"groups": 2}, "x with 5 channels per group"),
        ({"dilation": 9}, "the kernel of conv is larger than the padded x"),
        ({"bias": torch.ones(3)}, "bias of conv has the wrong shape"),
        ({"residual": torch.ones(2, 5, 8, 7)}, "residual of conv has the wrong shape"),
        ({"weight": torch.ones(5, 5, 3)}, "x and weight of conv do not have matching axes"),
    ],
)
def test_bad_input_of_a_convolution(arguments: dict[str, object], message: str) -> None:
    x, weight, *_ = block()
    with pytest.raises(InputRuntimeError, match="(?s)" + message.replace("[", r"\[")):
        kernels.conv(**{"x": x, "weight": weight, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "groups"])
@pytest.mark.parametrize("value", [1.5, None, "same", (1.0, 1.0)])
def test_sizes_that_are_not_integers(name: str, value: Any) -> None:
    x, weight, *_ = block()
    for call in (kernels.conv, kernels.conv_transpose):
        if (name, value, call) == ("padding", "same", kernels.conv):
            continue  # supported
        with pytest.raises(InputTypeError, match=f"{name} of conv\\w* is not an integer"):
            call(x, weight, **{name: value})


def test_bad_input_of_a_transposed_convolution() -> None:
    x, weight, *_ = block()
    for padding in (5, 20):
        with pytest.raises(RuntimeError):  # the message depends on the library that torch uses
            F.conv_transpose2d(x, weight, padding=padding)
        with pytest.raises(InputRuntimeError, match="the output of conv_transpose would be empty"):
            kernels.conv_transpose(x, weight, padding=padding)
    with pytest.raises(InputRuntimeError, match="less than stride or dilation"):
        kernels.conv_transpose(x, weight, output_padding=1)
    with pytest.raises(InputRuntimeError, match="x with 5 channels, divisible by the number of groups"):
        kernels.conv_transpose(x[:, :3], weight)
    with pytest.raises(InputValueError, match="relu"):
        kernels.conv_transpose(x, weight, activation="rleu")


@pytest.mark.parametrize("padding", [1, "same", "valid"])
def test_named_padding_compiles_to_a_full_graph(padding: int | str) -> None:
    x, weight, *_ = block()
    compiled = torch.compile(
        lambda t: kernels.conv(t, weight, padding=padding), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(x), kernels.conv(x, weight, padding=padding))
