"""Convolutions: what their families of cases do not show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import InputRuntimeError, InputTypeError, InputValueError

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
