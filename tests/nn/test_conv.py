"""Conv2d goes by `burnt.kernels.conv` where that may pay, and by torch's call where calls are recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels, nn
from burnt.errors import InputRuntimeError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments that the op is called with."""
    known: list[tuple[Any, ...]] = []
    op = kernels.conv

    def call(*args: Any) -> Tensor:
        known.append(args)
        return op(*args)  # type: ignore[no-any-return]

    monkeypatch.setattr(kernels, "conv", call)
    return known


def gradients(layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    result = layer(x)
    return [result, *torch.autograd.grad(result.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("batch", [(2,), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_large_ones_are_the_ops(calls: list[tuple[Any, ...]], bias: bool, batch: tuple[int, ...]) -> None:
    settings = {"stride": (2, 1), "padding": (1, 2), "dilation": 2, "groups": 2, "bias": bias}
    layer, x = nn.Conv2d(16, 24, 3, **settings), torch.randn(*batch, 16, 33, 40)  # type: ignore[arg-type]
    exact = torch.nn.Conv2d(16, 24, 3, **settings, dtype=torch.float64)  # type: ignore[arg-type]
    exact.load_state_dict(layer.state_dict())
    for ours, theirs in zip(gradients(layer, x), gradients(exact, x.double()), strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-3)
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(
    "settings",
    [
        {"padding": "same"},
        {"padding": "same", "kernel_size": (4, 3)},
        {"padding": "valid"},
        {"padding": 1, "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_every_padding_is_torchs(calls: list[tuple[Any, ...]], settings: dict[str, Any]) -> None:
    settings = {"kernel_size": 3, **settings}
    layer, x = nn.Conv2d(16, 24, **settings), torch.randn(2, 16, 33, 40)
    theirs = torch.nn.Conv2d(16, 24, **settings)
    theirs.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), theirs(x), rtol=1e-4, atol=1e-4)
    assert len(calls) == ("padding_mode" not in settings)


def test_small_and_recorded_ones_are_torchs(calls: list[tuple[Any, ...]]) -> None:
    layer = nn.Conv2d(16, 24, 3)
    layer(torch.randn(1, 16, 5, 5))
    torch.export.export(layer, (torch.randn(2, 16, 33, 40),))
    assert not calls


def test_other_channels_are_refused() -> None:
    with pytest.raises(InputRuntimeError, match="the channels of x and weight of conv do not match"):
        nn.Conv2d(16, 24, 3)(torch.randn(2, 8, 66, 40))


def test_a_parametrized_weight_is_computed_once() -> None:
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.Conv2d(16, 24, 3))
    theirs = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Conv2d(16, 24, 3))
    theirs.load_state_dict(layer.state_dict())
    x = torch.randn(2, 16, 33, 40)
    torch.testing.assert_close(layer(x), theirs(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        layer.parametrizations.weight[0]._u,
        theirs.parametrizations.weight[0]._u,  # type: ignore[index, union-attr]
    )


def test_complex_numbers_and_tracers_are_torchs(calls: list[tuple[Any, ...]]) -> None:
    layer = nn.Conv2d(16, 24, 3, dtype=torch.complex64)
    layer(torch.randn(2, 16, 33, 40, dtype=torch.complex64))
    plain, x = nn.Conv2d(16, 24, 3), torch.randn(2, 16, 33, 40)
    traced = torch.jit.trace(plain, (x,), check_trace=False)
    assert not calls
    torch.testing.assert_close(traced(x), plain(x), rtol=1e-4, atol=1e-5)


def test_a_weight_changed_through_data_counts() -> None:
    layer, x = nn.Conv2d(16, 24, 3), torch.randn(2, 16, 33, 40).to(memory_format=torch.channels_last)
    layer.to(memory_format=torch.channels_last)
    with torch.no_grad():
        before = layer(x)
        layer.weight.data.mul_(2)
        assert layer.bias is not None
        layer.bias.data.mul_(2)
        torch.testing.assert_close(layer(x), 2 * before, rtol=1e-4, atol=1e-4)
