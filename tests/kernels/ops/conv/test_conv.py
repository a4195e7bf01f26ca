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


CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def with_layout(tensor: Tensor, layout: str) -> Tensor:
    """Return the same numbers in another memory layout."""
    if layout == "view":
        return torch.stack([tensor, tensor], -1)[..., 0]
    if layout == "last":
        axes = tensor.dim() - 2
        return tensor.to(memory_format=CHANNELS_LAST[axes]) if axes > 1 else tensor.mT.contiguous().mT
    return tensor


def strides_of_long_axes(tensor: Tensor) -> list[int]:
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def beside_float64(op: Any, args: tuple[Any, ...], supporting: set[str]) -> None:
    """Compare values, gradients and strides of oneDNN's candidates with the reference in float64."""

    def output_and_grads(call: Any, *given: Any) -> list[Tensor]:
        leaves = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
        result = call(*given)
        grad_out = ((torch.arange(result.numel()) % 7 - 2.5) / 4).view(result.shape).to(result.dtype)
        return [result.detach(), *(torch.autograd.grad(result, leaves, grad_out) if leaves else [])]

    wide = [a.detach().double().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args]
    exact, eager = output_and_grads(op.reference, *wide), op.reference(*args)
    supporting_now = {n for n in ("onednn", "onednn packed") if op.candidates[n].why_not(args) is None}
    assert supporting_now == supporting
    for name in supporting_now:
        ours = output_and_grads(op.candidates[name], *args)
        assert strides_of_long_axes(ours[0]) == strides_of_long_axes(eager), name
        for one, other in zip(ours, exact, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-4, msg=lambda m, n=name: n + m)


# Number of axes, layouts of x, weight and residual, and whether gradients are required.
LAYOUTS = [
    *[(1, x, "first", r, g) for x in ("first", "last", "view") for r in ("first", "last") for g in (0, 1)],
    *[(n, x, w, "last", g) for n in (2, 3) for x in ("first", "last", "view") for w in ("first", "last")
      for g in (0, 1)],
]  # fmt: skip


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("axes", "x_layout", "w_layout", "r_layout", "needs_grad"), LAYOUTS)
@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "relu2"])
def test_onednn_convolutions(
    axes: int, x_layout: str, w_layout: str, r_layout: str, needs_grad: bool, activation: str | None
) -> None:
    torch.manual_seed(0)
    grad = {"requires_grad": bool(needs_grad)}
    x = with_layout(torch.randn(2, 4, *[9, 8, 7][:axes]), x_layout).requires_grad_(bool(needs_grad))
    weight = torch.nn.Parameter(with_layout(torch.randn(6, 2, *[3, 2, 3][:axes]) / 4, w_layout), **grad)
    bias, scale = torch.randn(6, **grad), torch.rand(6, **grad)
    sizes = ([2, 1, 2][:axes], [1, 2, 0][:axes], [1, 2, 1][:axes], 2)
    shape = kernels.conv.reference(x, weight, None, None, None, None, *sizes).shape
    residual = with_layout(torch.randn(shape), r_layout).requires_grad_(bool(needs_grad))
    can_pack = not needs_grad and (axes == 1 or x_layout == "last")
    supporting = {"onednn", "onednn packed"} if can_pack else {"onednn"}
    for sums in ((bias, scale, residual), (bias, None, None), (None, scale, None)):
        beside_float64(kernels.conv, (x, weight, *sums, activation, *sizes), supporting)
    if axes > 1 and x_layout == "last":
        mixed_layouts = (x, weight, None, None, residual.contiguous().detach(), None, *sizes)
        beside_float64(kernels.conv, mixed_layouts, {"onednn"})


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("axes", "x_layout", "w_layout", "r_layout", "needs_grad"), LAYOUTS)
def test_onednn_transposed_convolutions(
    axes: int, x_layout: str, w_layout: str, r_layout: str, needs_grad: bool
) -> None:
    torch.manual_seed(0)
    grad = {"requires_grad": bool(needs_grad)}
    x = with_layout(torch.randn(2, 4, *[5, 4, 3][:axes]), x_layout).requires_grad_(bool(needs_grad))
    weight = torch.nn.Parameter(with_layout(torch.randn(4, 3, *[3, 2, 3][:axes]) / 4, w_layout), **grad)
    can_pack = not needs_grad and (axes == 1 or x_layout == "last")
    supporting = {"onednn", "onednn packed"} if can_pack else {"onednn"}
    two, one = [2, 1, 2][:axes], [1, 0, 1][:axes]
    for sizes in ((1, 0, 0, 2, 1), (two, one, one, 2, 1), (2, 1, 0, 2, two), (3, 0, 2, 2, 1)):
        for activation in (None, "relu", "silu", "relu2"):
            for bias in (None, torch.randn(6, **grad)):
                beside_float64(kernels.conv_transpose, (x, weight, bias, activation, *sizes), supporting)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_onednn_without_a_batch_and_with_second_derivatives() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 6, 5), torch.randn(6, 2, 3, 3)
    beside_float64(
        kernels.conv, (x, weight, None, None, torch.randn(6, 4, 3), "relu", 1, 0, 1, 2), {"onednn"}
    )
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    beside_float64(kernels.conv_transpose, (x, weight, None, "relu", 2, 0, 0, 2, 1), {"onednn"})

    def second(op: Any, *args: Any) -> list[Tensor]:
        leaves = [a.detach().requires_grad_() for a in (x, weight)]
        result = op(*leaves, *args)
        first = torch.autograd.grad(result.pow(3).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.sin().sum() for g in first), leaves))

    sizes = (None, "silu", 2, 1, 1, 2, 1)
    for ours, theirs in zip(
        second(kernels.conv_transpose.candidates["onednn"], *sizes),
        second(kernels.conv_transpose.reference, *sizes),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_reasons_why_onednn_is_unsupported() -> None:
    signals, weight = torch.randn(2, 4, 9), torch.randn(6, 4, 3)
    plain: tuple[Any, ...] = (None, None, None, None, 1, 0, 1, 1)
    why_not = kernels.conv.candidates["onednn"].why_not
    assert (
        why_not((signals.double(), weight.double(), *plain))
        == "oneDNN does not support float64 on this machine"
    )
    assert why_not((signals[:0], weight, *plain)) == "an empty tensor"
    assert "is not contiguous" in (why_not((signals, with_layout(weight, "view"), *plain)) or "")


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
    for name in ("onednn", "onednn packed"):
        assert kernels.conv.candidates[name].why_not((x, weight, *plain)) == without
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
