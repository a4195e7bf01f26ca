"""Refused arguments of the layers that move elements; what inverts what."""

from typing import Any

import pytest
import torch

from burnt import nn
from burnt.errors import ConfigError, InputValueError


@pytest.mark.parametrize(
    "build", [lambda: nn.PixelShuffle(0), lambda: nn.PixelUnshuffle(0), lambda: nn.ChannelShuffle(0)]
)
def test_factors_are_positive(build: Any) -> None:
    with pytest.raises(InputValueError) as caught:
        build()
    assert (caught.value.expected, caught.value.found) == ("1 or more", 0)


def test_inverses() -> None:
    x = torch.randn(2, 12, 4, 6)
    assert torch.equal(nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(x)), x)
    assert torch.equal(nn.Flatten()(nn.Unflatten(1, (3, -1))(x)), x.flatten(1))
    assert torch.equal(nn.ChannelShuffle(4)(nn.ChannelShuffle(3)(x)), x)
    blocks = nn.Unfold(2, stride=2)(x)
    assert torch.equal(nn.Fold((4, 6), 2, stride=2)(blocks), x)


def test_a_config_of_sizes_reads_json() -> None:
    layer = nn.Unflatten.Config.from_json('{"dim": 1, "unflattened_size": [3, 4]}').init()
    assert layer.unflattened_size == (3, 4)
    with pytest.raises(ConfigError) as caught:
        nn.ReflectionPad2d.Config.from_json('{"padding": [1, 2, 3]}')
    assert caught.value.where == "padding"
