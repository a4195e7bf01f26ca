"""Convolutions: what their families of cases do not show."""

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
    """Image, weight, bias, scale and residual of a convolution that keeps the size."""
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
    """By whoever is taken for a parameter: oneDNN knows fewer of them after a sum."""
    x, weight, bias, scale, residual = block()
    after = residual if summed else None
    wanted = F.conv2d(x, weight * scale.view(-1, 1, 1, 1), bias, padding=1)
    wanted = wanted + residual if summed else wanted
    if activation is not None:
        wanted = kernels.ACTIVATIONS[activation](wanted)
    result = kernels.conv(x, weight, bias, scale, after, activation, padding=1)
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)
    x[1, 2, 3, 4] = torch.nan
    result = kernels.conv(x, weight, bias, scale, after, activation, padding=1)
    assert int(result.isnan().sum()) == 5 * 9  # what the element reaches


def test_a_batch_norm_is_folded() -> None:
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


CL = {2: torch.channels_last, 3: torch.channels_last_3d}


def lying(tensor: Tensor, how: str) -> Tensor:
    """The same numbers, elsewhere in memory."""
    if how == "view":
        return torch.stack([tensor, tensor], -1)[..., 0]
    if how == "last":
        axes = tensor.dim() - 2
        return tensor.to(memory_format=CL[axes]) if axes > 1 else tensor.mT.contiguous().mT
    return tensor


def placed(tensor: Tensor) -> list[int]:
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def beside_float64(op: Any, args: tuple[Any, ...], taken: set[str]) -> None:
    """Every candidate of oneDNN's beside the definition: values, gradients and places in memory."""

    def found(call: Any, *given: Any) -> list[Tensor]:
        leaves = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
        made = call(*given)
        pull = ((torch.arange(made.numel()) % 7 - 2.5) / 4).view(made.shape).to(made.dtype)
        return [made.detach(), *(torch.autograd.grad(made, leaves, pull) if leaves else [])]

    wide = [a.detach().double().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args]
    exact, plain = found(op.reference, *wide), op.reference(*args)
    able = {n for n in ("onednn", "onednn packed") if op.candidates[n].why_not(args) is None}
    assert able == taken
    for name in able:
        ours = found(op.candidates[name], *args)
        assert placed(ours[0]) == placed(plain), name
        for one, other in zip(ours, exact, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-4, msg=lambda m, n=name: n + m)


# The axes, how x, the weight and the residual lie, and whether gradients are wanted.
LYING = [
    *[(1, x, "first", r, g) for x in ("first", "last", "view") for r in ("first", "last") for g in (0, 1)],
    *[(n, x, w, "last", g) for n in (2, 3) for x in ("first", "last", "view") for w in ("first", "last")
      for g in (0, 1)],
]  # fmt: skip


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("axes", "x_lies", "w_lies", "r_lies", "trained"), LYING)
@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "relu2"])
def test_onednn_convolves(
    axes: int, x_lies: str, w_lies: str, r_lies: str, trained: bool, activation: str | None
) -> None:
    torch.manual_seed(0)
    grad = {"requires_grad": bool(trained)}
    x = lying(torch.randn(2, 4, *[9, 8, 7][:axes]), x_lies).requires_grad_(bool(trained))
    weight = torch.nn.Parameter(lying(torch.randn(6, 2, *[3, 2, 3][:axes]) / 4, w_lies), **grad)
    bias, scale = torch.randn(6, **grad), torch.rand(6, **grad)
    sizes = ([2, 1, 2][:axes], [1, 2, 0][:axes], [1, 2, 1][:axes], 2)
    shape = kernels.conv.reference(x, weight, None, None, None, None, *sizes).shape
    residual = lying(torch.randn(shape), r_lies).requires_grad_(bool(trained))
    packs = not trained and (axes == 1 or x_lies == "last")
    taken = {"onednn", "onednn packed"} if packs else {"onednn"}
    for sums in ((bias, scale, residual), (bias, None, None), (None, scale, None)):
        beside_float64(kernels.conv, (x, weight, *sums, activation, *sizes), taken)
    if axes > 1 and x_lies == "last":
        apart = (x, weight, None, None, residual.contiguous().detach(), None, *sizes)
        beside_float64(kernels.conv, apart, {"onednn"})


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("axes", "x_lies", "w_lies", "r_lies", "trained"), LYING)
def test_onednn_convolves_the_other_way(
    axes: int, x_lies: str, w_lies: str, r_lies: str, trained: bool
) -> None:
    torch.manual_seed(0)
    grad = {"requires_grad": bool(trained)}
    x = lying(torch.randn(2, 4, *[5, 4, 3][:axes]), x_lies).requires_grad_(bool(trained))
    weight = torch.nn.Parameter(lying(torch.randn(4, 3, *[3, 2, 3][:axes]) / 4, w_lies), **grad)
    packs = not trained and (axes == 1 or x_lies == "last")
    taken = {"onednn", "onednn packed"} if packs else {"onednn"}
    two, one = [2, 1, 2][:axes], [1, 0, 1][:axes]
    for sizes in ((1, 0, 0, 2, 1), (two, one, one, 2, 1), (2, 1, 0, 2, two), (3, 0, 2, 2, 1)):
        for activation in (None, "relu", "silu", "relu2"):
            for bias in (None, torch.randn(6, **grad)):
                beside_float64(kernels.conv_transpose, (x, weight, bias, activation, *sizes), taken)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_onednn_convolves_one_image_and_twice_differentiably() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 6, 5), torch.randn(6, 2, 3, 3)
    beside_float64(
        kernels.conv, (x, weight, None, None, torch.randn(6, 4, 3), "relu", 1, 0, 1, 2), {"onednn"}
    )
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    beside_float64(kernels.conv_transpose, (x, weight, None, "relu", 2, 0, 0, 2, 1), {"onednn"})

    def second(op: Any, *args: Any) -> list[Tensor]:
        leaves = [a.detach().requires_grad_() for a in (x, weight)]
        made = op(*leaves, *args)
        first = torch.autograd.grad(made.pow(3).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.sin().sum() for g in first), leaves))

    sizes = (None, "silu", 2, 1, 1, 2, 1)
    for ours, theirs in zip(
        second(kernels.conv_transpose.candidates["onednn"], *sizes),
        second(kernels.conv_transpose.reference, *sizes),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_onednn_leaves_what_it_cannot_take() -> None:
    signals, weight = torch.randn(2, 4, 9), torch.randn(6, 4, 3)
    plain: tuple[Any, ...] = (None, None, None, None, 1, 0, 1, 1)
    why_not = kernels.conv.candidates["onednn"].why_not
    assert why_not((signals.double(), weight.double(), *plain)) == "no oneDNN here for float64"
    assert why_not((signals[:0], weight, *plain)) == "an empty tensor"
    assert "is a view" in (why_not((signals, lying(weight, "view"), *plain)) or "")


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
def test_onednn_takes_what_the_processor_has_instructions_for(
    dtype: torch.dtype, able: set[str], processor: str
) -> None:
    x = torch.zeros(2, 4, 8, 8, dtype=dtype).contiguous(memory_format=LAST)
    weight = torch.nn.Parameter(torch.zeros(6, 4, 3, 3, dtype=dtype), requires_grad=False)
    plain: tuple[Any, ...] = (None, None, None, None, 1, 0, 1, 1)
    without = None if processor in able else f"no oneDNN here for {str(dtype).removeprefix('torch.')}"
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
def test_padding_by_a_word(padding: str, kernel: tuple[int, int], dilation: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 4, 11, 9, requires_grad=True), torch.randn(6, 2, *kernel)
    for image in (x, x[0]):
        theirs = F.conv2d(image.double(), weight.double(), None, 1, padding, dilation, 2)
        ours = kernels.conv(image, weight, None, None, None, None, 1, padding, [dilation], 2)
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4)
    named = kernels.conv(x, weight, padding=padding, dilation=dilation, groups=2)
    (ours,), (plain,) = (
        torch.autograd.grad(made.square().sum(), [x])
        for made in (named, F.conv2d(x, weight, None, 1, padding, dilation, 2))
    )
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_padding_by_a_word_is_recorded_as_numbers() -> None:
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
        ({"stride": 0}, "stride of conv does not fit its axes"),
        ({"padding": [1, 1, 1]}, "a number of at least 0, or 2 of them"),
        ({"groups": 2}, "x of 5 channels for each group"),
        ({"dilation": 9}, "the kernel of conv is larger than x with its padding"),
        ({"bias": torch.ones(3)}, "bias of conv is not one number for each channel"),
        ({"residual": torch.ones(2, 5, 8, 7)}, "residual of conv has another shape"),
        ({"weight": torch.ones(5, 5, 3)}, "x and weight of conv are not of the same axes"),
    ],
)
def test_bad_input_of_a_convolution(arguments: dict[str, object], message: str) -> None:
    x, weight, *_ = block()
    with pytest.raises(InputRuntimeError, match="(?s)" + message.replace("[", r"\[")):
        kernels.conv(**{"x": x, "weight": weight, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "groups"])
@pytest.mark.parametrize("value", [1.5, None, "same", (1.0, 1.0)])
def test_sizes_that_are_no_whole_numbers(name: str, value: Any) -> None:
    x, weight, *_ = block()
    for call in (kernels.conv, kernels.conv_transpose):
        if (name, value, call) == ("padding", "same", kernels.conv):
            continue  # a word that it knows
        with pytest.raises(InputTypeError, match=f"{name} of conv\\w* is no whole number"):
            call(x, weight, **{name: value})


def test_bad_input_of_a_transposed_one() -> None:
    x, weight, *_ = block()
    for padding in (5, 20):
        with pytest.raises(RuntimeError):  # what it says depends on the library that torch takes
            F.conv_transpose2d(x, weight, padding=padding)
        with pytest.raises(InputRuntimeError, match="cuts off all that there is"):
            kernels.conv_transpose(x, weight, padding=padding)
    with pytest.raises(InputRuntimeError, match="less than stride or dilation"):
        kernels.conv_transpose(x, weight, output_padding=1)
    with pytest.raises(InputRuntimeError, match="x of 5 channels, a multiple of the groups"):
        kernels.conv_transpose(x[:, :3], weight)
    with pytest.raises(InputValueError, match="relu"):
        kernels.conv_transpose(x, weight, activation="rleu")


@pytest.mark.parametrize("padding", [1, "same", "valid"])
def test_compilers_see_through_the_padding(padding: int | str) -> None:
    x, weight, *_ = block()
    compiled = torch.compile(
        lambda t: kernels.conv(t, weight, padding=padding), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(x), kernels.conv(x, weight, padding=padding))
