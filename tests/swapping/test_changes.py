"""What is changed in a model after it was swapped counts: weights by `.data`, settings."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

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
            result = model(x)
        if model is layer:
            expected = result
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_a_folded_norm_that_is_changed_in_part_by_data(always):
    block = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 8)
    theirs, ours = both(block, x, mode="infer", only="conv_block")
    for of_norm in ("weight", "bias", "running_mean", "running_var"):
        for model in (theirs, ours):
            getattr(model[1], of_norm).data[5] = 0.25
        with torch.no_grad():
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


# --- settings


def circular(layer):
    layer.padding_mode = "circular"
    layer._reversed_padding_repeated_twice = [1, 1, 1, 1]


def seamless(layer):
    layer._conv_forward = lambda x, weight, bias: F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), weight, bias)


IMAGES = torch.randn(2, 3, 8, 8)
SETTINGS = {
    "padding_mode": (nn.Conv2d(3, 4, 3, padding=1), IMAGES, circular),
    "_conv_forward": (nn.Conv2d(3, 4, 3, padding=1), IMAGES, seamless),
    "max_norm": (nn.Embedding(5, 4), torch.arange(5), lambda layer: setattr(layer, "max_norm", 0.1)),
    "inplace": (nn.SiLU(), IMAGES, lambda layer: setattr(layer, "inplace", True)),
    "dim": (nn.Softmax(1), torch.randn(3, 4), lambda layer: setattr(layer, "dim", None)),
    "output_size": (nn.AdaptiveAvgPool2d(2), IMAGES, lambda layer: setattr(layer, "output_size", (None, 1))),
    "weight": (
        nn.LayerNorm((8, 8), bias=False),
        IMAGES,
        lambda layer: layer.register_parameter("weight", None),
    ),
}


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_a_setting_that_burnt_does_not_take(always, name, settled):
    layer, x, change = SETTINGS[name]
    layer = copy.deepcopy(layer)
    if settled:
        theirs, ours = both(layer, x)
    else:
        theirs, ours = layer, copy.deepcopy(layer)
        burnt.swap(ours)
    change(theirs)
    change(ours)
    given = [x.clone(), x.clone()]
    torch.testing.assert_close(ours(given[0]), theirs(given[1]))
    assert torch.equal(*given)


def test_a_gradient_that_is_sparse_from_now_on(always):
    _, ours = both(nn.Embedding(5, 4), torch.arange(5))
    ours.sparse = True
    ours(torch.arange(3)).sum().backward()
    assert ours.weight.grad.is_sparse


def test_averages_over_all_batches(always):
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(4, 3, 8, 8)
    theirs, ours = both(model, x)
    for each in (theirs, ours):
        update_bn([x, 2 * x], each)
    torch.testing.assert_close(ours[1].running_mean, theirs[1].running_mean)
    torch.testing.assert_close(ours[1].running_var, theirs[1].running_var)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_attention_that_gets_a_key_of_zeros(always):
    x = torch.randn(2, 5, 8)
    theirs, ours = both(Attention(), x)
    for each in (theirs, ours):
        each.attend.add_zero_attn = True
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("change", ["averages", "norm"])
def test_a_folded_norm_that_is_one_no_more(always, change):
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 8)
    theirs, ours = both(block, x, mode="infer", only="conv_block")
    for each in (theirs, ours):
        if change == "averages":
            each[1].running_mean = each[1].running_var = None
        else:
            each[1] = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_without_weight_of_another_axis_is_refused_as_by_torch(always, norm):
    theirs, ours = both(norm(6, elementwise_affine=False), torch.randn(3, 6))
    for wrong in (torch.randn(2, 5), torch.randn(2, 12), torch.randn(6, 1)):
        for each in (theirs, ours):
            with pytest.raises(RuntimeError, match="normalized_shape"):
                each(wrong)
