"""Transposed convolutions: the gradients of the convolutions, with the padding names and pairs of those."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from burnt import kernels, nn
from burnt.errors import InputValueError, ShapeError
from tests.nn.case import record_calls


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments that the op is called with."""
    return record_calls(monkeypatch, kernels.conv_transpose)


@pytest.mark.parametrize("batch", [(2,), ()])
def test_large_ones_are_the_ops(calls: list[tuple[Any, ...]], batch: tuple[int, ...]) -> None:
    settings = {"stride": (2, 1), "padding": (1, 2), "output_padding": (1, 0), "groups": 2, "dilation": 2}
    layer, x = nn.ConvTranspose2d(16, 24, 3, **settings), torch.randn(*batch, 16, 33, 40)  # type: ignore[arg-type]
    theirs = torch.nn.ConvTranspose2d(16, 24, 3, **settings)  # type: ignore[arg-type]
    theirs.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), theirs(x), rtol=1e-4, atol=1e-4)
    torch.export.export(layer, (x,))
    torch.jit.trace(layer, (x,), check_trace=False)
    assert len(calls) == 1


@pytest.mark.parametrize("channels", [2, 32])
def test_uneven_padding_is_cut_off(calls: list[tuple[Any, ...]], channels: int) -> None:
    layer = nn.ConvTranspose2d(channels, 6, 4, 2, ((1, 2), 1))
    x = torch.randn(2, channels, 20, 33)
    whole = F.conv_transpose2d(x, layer.weight, layer.bias, 2)
    torch.testing.assert_close(layer(x), whole[..., 1:-2, 1:-1], rtol=1e-4, atol=1e-5)
    assert len(calls) == (channels == 32)
    valid = nn.ConvTranspose2d(channels, 6, 4, 2, "valid")
    valid.load_state_dict(layer.state_dict())
    torch.testing.assert_close(valid(x), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (4, 1), (2, 3)])
def test_same_is_the_gradient_of_a_convolution_with_same(stride: int, kernel: int, dilation: int) -> None:
    forward = nn.Conv1d(2, 3, kernel, stride, "same", dilation, bias=False)
    layer = nn.ConvTranspose1d(3, 2, kernel, stride, "same", bias=False, dilation=dilation)
    layer.load_state_dict(forward.state_dict())
    x, y = torch.randn(1, 2, 4 * stride, requires_grad=True), torch.randn(1, 3, 4)
    (expected,) = torch.autograd.grad(forward(x), x, y)
    assert layer(y).shape == x.shape
    torch.testing.assert_close(layer(y), expected)


@pytest.mark.parametrize("size", [(9, 11), (10, 11), (2, 3, 10, 12)])
def test_the_size_of_the_output_may_be_chosen(size: tuple[int, ...]) -> None:
    layer, x = nn.ConvTranspose2d(4, 3, 3, (2, 3), 1), torch.randn(2, 4, 5, 4)
    theirs = torch.nn.ConvTranspose2d(4, 3, 3, (2, 3), 1)
    theirs.load_state_dict(layer.state_dict())
    assert layer(x, size).shape[-2:] == size[-2:] or size == (9, 11)
    torch.testing.assert_close(layer(x, size), theirs(x, size))  # type: ignore[arg-type]


def test_the_size_of_the_output_after_uneven_padding() -> None:
    layer = nn.ConvTranspose1d(4, 3, 3, 2, ((1, 0),))
    assert layer(torch.randn(2, 4, 5)).shape[-1] == 10
    assert layer(torch.randn(4, 5), (11,)).shape == (3, 11)


@pytest.mark.parametrize("size", [(9, 9), (11, 9), (8, 9), (9,), (2, 3, 9, 10, 1), (2, 9, 10)])
def test_a_size_that_cannot_be_made_is_refused(size: tuple[int, ...]) -> None:
    layer = nn.ConvTranspose2d(4, 3, 3, (2, 3), 1)
    with pytest.raises(ShapeError) as caught:
        layer(torch.randn(2, 4, 5, 4), size)
    assert caught.value.expected == "output_size from (9, 10) to (10, 12), for an input of (2, 4, 5, 4)"
    assert caught.value.found == size


def test_same_and_output_padding_exclude_each_other() -> None:
    with pytest.raises(InputValueError, match="output_padding is not valid") as caught:
        nn.ConvTranspose1d(2, 3, 3, 2, "same", 1)
    assert caught.value.expected == "0, since padding='same' decides the size of the output"
