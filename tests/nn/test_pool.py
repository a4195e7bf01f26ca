"""Pools are torch's by value for every input that torch takes; others are refused, in words of the layer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import burnt
from burnt import nn
from burnt.errors import InputValueError, ShapeError

SIZES = {1: (9,), 2: (9, 8), 3: (9, 8, 6)}
POOLS = {
    "MaxPool": {"kernel_size": 2},
    "AvgPool": {"kernel_size": 2},
    "AdaptiveMaxPool": {"output_size": 2},
    "AdaptiveAvgPool": {"output_size": 2},
}


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", [*POOLS, "LPPool"])
def test_without_a_batch_axis(name: str, axes: int) -> None:
    arguments: dict[str, Any] = POOLS.get(name, {"norm_type": 3.0, "kernel_size": 2})
    ours = getattr(nn, f"{name.replace('LPP', 'LpP')}{axes}d")(**arguments)
    theirs = getattr(torch.nn, f"{name}{axes}d")(**arguments)
    x = torch.rand(3, *SIZES[axes])
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", [*POOLS, "LpPool"])
def test_another_number_of_axes_is_refused(name: str, axes: int) -> None:
    layer = getattr(nn, f"{name}{axes}d")(**POOLS.get(name, {"norm_type": 2.0, "kernel_size": 2}))
    shape = ("L", "H, W", "D, H, W")[axes - 1]
    for wrong in (axes, axes + 3):
        with pytest.raises(ShapeError, match="the input does not fit a pooling layer") as caught:
            layer(torch.zeros([4] * wrong))
        assert caught.value.where == type(layer).__name__
        assert caught.value.expected == f"(N, C, {shape}) or (C, {shape})"
        assert caught.value.found == (4,) * wrong


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_unpooling_inverts_pooling(axes: int) -> None:
    x = torch.rand(2, 3, *SIZES[axes])
    maxima, indices = getattr(nn, f"MaxPool{axes}d")(3, 2, return_indices=True)(x)
    again = getattr(nn, f"MaxUnpool{axes}d")(3, 2)(maxima, indices, output_size=x.shape)
    assert again.shape == x.shape
    torch.testing.assert_close(again[again != 0], x[again != 0])
    assert set(again[again != 0].tolist()) == set(maxima.flatten().tolist())


@pytest.mark.parametrize("norm_type", [0, -1.0, math.inf, math.nan])
def test_a_norm_must_be_positive_and_finite(norm_type: float) -> None:
    for kind in (nn.LpPool1d, nn.LpPool2d, nn.LpPool3d):
        with pytest.raises(InputValueError, match="norm_type is not valid") as caught:
            kind(norm_type, 2)
        assert caught.value.where == kind.__name__
        assert bool(caught.value.hint) == (norm_type == math.inf)


def test_a_high_norm_is_nearly_the_maximum() -> None:
    x = torch.rand(1, 2, 8, 8, dtype=torch.float64) + 0.5
    torch.testing.assert_close(nn.LpPool2d(200.0, 2)(x), nn.MaxPool2d(2)(x), atol=0.02, rtol=0.01)


def test_settings_of_a_record_are_compared() -> None:
    report = nn.MaxPool1d(2).load_record(nn.MaxPool1d(3).into_record())
    assert "kernel_size: 3 in the record, 2 here" in str(report)


def test_check_names_the_pool_and_what_it_takes() -> None:
    model = torch.nn.Sequential(nn.Conv1d(3, 4, 2), nn.Flatten(1), nn.MaxPool2d(2))
    with pytest.raises(ShapeError) as caught:
        burnt.check(model, torch.zeros(2, 3, 9))
    assert str(caught.value) == (
        "ShapeError in model.2   MaxPool2d\n"
        "  expected  (N, C, H, W) or (C, H, W)\n"
        "  found     (2, 32)\n"
        "  from      model.1   Flatten -> (2, 32)\n"
        "            model.0   Conv1d(3 -> 4, 2) -> (2, 4, 8)"
    )
