"""A lazy layer becomes the layer that torch's lazy one becomes, of burnt's class."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import burnt
from burnt import nn

CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], Callable[[], torch.nn.Module]]] = {
    "LazyLinear": ({"out_features": 5}, (2, 7), lambda: torch.nn.LazyLinear(5)),
    "LazyConv1d": (
        {"out_channels": 4, "kernel_size": 3, "padding": "same"},
        (2, 3, 9),
        lambda: torch.nn.LazyConv1d(4, 3, padding="same"),
    ),
    "LazyConv2d": (
        {"out_channels": 4, "kernel_size": (2, 3), "groups": 2, "bias": False},
        (2, 6, 7, 8),
        lambda: torch.nn.LazyConv2d(4, (2, 3), groups=2, bias=False),
    ),
    "LazyConv3d": ({"out_channels": 4, "kernel_size": 2}, (2, 3, 4, 5, 6), lambda: torch.nn.LazyConv3d(4, 2)),
    "LazyConvTranspose1d": (
        {"out_channels": 4, "kernel_size": 3, "stride": 2},
        (2, 3, 9),
        lambda: torch.nn.LazyConvTranspose1d(4, 3, 2),
    ),
    "LazyConvTranspose2d": (
        {"out_channels": 4, "kernel_size": 2},
        (2, 3, 4, 5),
        lambda: torch.nn.LazyConvTranspose2d(4, 2),
    ),
    "LazyConvTranspose3d": (
        {"out_channels": 4, "kernel_size": 2},
        (2, 3, 4, 5, 6),
        lambda: torch.nn.LazyConvTranspose3d(4, 2),
    ),
    "LazyBatchNorm": ({"eps": 0.1}, (4, 3, 5, 6), lambda: torch.nn.LazyBatchNorm2d(0.1)),
    "LazyInstanceNorm": (
        {"affine": True, "track_running_stats": True},
        (4, 3, 5),
        lambda: torch.nn.LazyInstanceNorm1d(affine=True, track_running_stats=True),
    ),
}
every = pytest.mark.parametrize("name", CASES)


def test_every_lazy_layer_is_here() -> None:
    assert set(CASES) == {name for name in nn.__all__ if name.startswith("Lazy")}


@every
def test_becomes_the_layer_with_torchs_values(name: str) -> None:
    arguments, shape, twin = CASES[name]
    x = torch.randn(shape)
    results = []
    for build in (lambda: getattr(nn, name)(**arguments), twin):
        torch.manual_seed(0)
        layer = build()
        results.append((layer(x), layer.state_dict()))
        results.append((layer(x), layer.state_dict()))
    torch.testing.assert_close(results[:2], results[2:])
    layer = getattr(nn, name)(**arguments)
    assert isinstance(layer, getattr(nn, name.removeprefix("Lazy")))
    layer(x)
    assert type(layer) is getattr(nn, name.removeprefix("Lazy"))


@every
def test_the_config_is_that_of_the_layer_it_became(name: str, tmp_path: Any) -> None:
    arguments, shape, _ = CASES[name]
    config = getattr(nn, name).Config(**arguments)
    assert type(config).from_json(config.to_json()) == config
    layer = config.init()
    layer(torch.randn(shape))
    layer.save(tmp_path / "layer.safetensors")
    loaded = getattr(nn, name.removeprefix("Lazy")).load(tmp_path / "layer.safetensors")
    assert repr(loaded) == repr(layer)
    torch.testing.assert_close(loaded.state_dict(), layer.state_dict())


@every
def test_a_state_makes_the_parameters(name: str) -> None:
    arguments, shape, _ = CASES[name]
    x = torch.randn(shape)
    trained, layer = getattr(nn, name)(**arguments), getattr(nn, name)(**arguments)
    trained(x)
    layer.load_state_dict(trained.state_dict())
    torch.testing.assert_close(layer.eval()(x), trained.eval()(x))
    assert layer.extra_repr() == trained.extra_repr()


def test_a_copy_is_independent() -> None:
    layer = nn.LazyLinear(2)
    twin = copy.deepcopy(layer)
    layer(torch.zeros(1, 3))
    twin(torch.zeros(1, 4))
    assert (layer.in_features, twin.in_features) == (3, 4)


def test_norms_without_parameters_and_of_another_rank() -> None:
    for layer in (nn.LazyInstanceNorm(), nn.LazyBatchNorm(affine=False), nn.LazyBatchNorm(bias=False)):
        layer(torch.randn(2, 3, 4, 5, 6))
        assert layer.num_features == 3
        assert type(layer) in (nn.InstanceNorm, nn.BatchNorm)
    assert layer.bias is None


def test_padding_of_burnts_convolutions() -> None:
    layer = nn.LazyConv1d(2, 3, 2, padding=((2, 0),))
    assert layer(torch.zeros(1, 4, 10)).shape == (1, 2, 5)


def test_check_and_summary_in_a_model() -> None:
    model = torch.nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm(), nn.Flatten(), nn.LazyLinear(2))
    report = burnt.check(model, torch.zeros(3, 2, 8))
    assert tuple(report.outputs.shape) == (3, 2)  # of the batch size that was given
    assert type(model[0]) is nn.LazyConv1d  # a copy was run
    model(torch.zeros(3, 2, 8))
    assert [type(layer).__name__ for layer in model] == ["Conv1d", "BatchNorm", "Flatten", "Linear"]
