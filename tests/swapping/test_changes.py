"""What is changed in a model after it was swapped counts: weights by `.data`, settings."""

import copy

import pytest
import torch
from torch import nn

import burnt


def both(layer, x, **settings):
    """A layer, and a copy that is swapped and has been called."""
    ours = copy.deepcopy(layer)
    report = burnt.swap(ours, **settings)
    with torch.no_grad():
        for _ in range(2):
            ours(x)
    assert report.swapped, report
    return layer, ours


def conv(x):
    return x.contiguous(memory_format=torch.channels_last)


def lesion(weight):
    weight.data[3, 1:] = 0.0


def exchange(weight):
    weight.data.copy_(weight.data[[1, 0, *range(2, len(weight))]])


@pytest.mark.parametrize("change", [lesion, exchange])
@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv2d(8, 16, 3), conv(torch.randn(1, 8, 8, 8))),
        (nn.Conv2d(64, 128, 3), conv(torch.randn(2, 64, 16, 16))),
        (nn.ConvTranspose2d(8, 16, 3), conv(torch.randn(1, 8, 8, 8))),
        (nn.Linear(64, 32), torch.randn(2, 64)),
        (nn.Linear(256, 256), torch.randn(200, 256)),
    ],
    ids=["small conv", "conv", "transposed", "small linear", "linear"],
)
def test_weights_that_are_changed_in_part_by_data(always, layer, x, change):
    for model in both(layer.eval(), x, mode="infer"):
        change(model.weight)
        with torch.no_grad():
            made = model(x)
        if model is layer:
            expected = made
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)


def test_a_folded_norm_that_is_changed_in_part_by_data(always):
    block = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 8)
    theirs, ours = both(block, x, mode="infer", only="conv_block")
    for of_norm in ("weight", "bias", "running_mean", "running_var"):
        for model in (theirs, ours):
            getattr(model[1], of_norm).data[5] = 0.25
        with torch.no_grad():
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
