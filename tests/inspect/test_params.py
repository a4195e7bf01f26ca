import pytest
import torch
from torch import nn

from burnt.errors import ConfigError
from burnt.inspect import freeze, map_params, num_params, unfreeze, visit
from tests.messages import raises


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())
        self.decoder = nn.Linear(4, 3, bias=False)
        self.tied = nn.Linear(4, 3, bias=False)
        self.tied.weight = self.decoder.weight


def test_num_params_counts_shared_ones_once():
    model = Net()
    assert num_params(model) == 3 * 4 + 4 + 4 + 4 + 4 * 3
    model.encoder[0].weight.requires_grad_(False)
    assert num_params(model, trainable=False) == 12
    assert num_params(model, trainable=True) == 24
    assert num_params(nn.ReLU()) == 0


def test_visit_goes_by_path_once():
    model = Net()
    seen = {}
    visit(model, lambda path, parameter: seen.setdefault(path, parameter))
    encoder = [f"encoder.{i}.{name}" for i in (0, 1) for name in ("weight", "bias")]
    assert list(seen) == [*encoder, "decoder.weight"]
    assert seen["decoder.weight"] is model.tied.weight


def test_map_params_keeps_ties_and_requires_grad():
    model = Net()
    model.encoder[0].bias.requires_grad_(False)
    expected = {name: parameter.detach() * 2 for name, parameter in model.named_parameters()}
    map_params(model, lambda path, parameter: parameter * 2)
    assert model.tied.weight is model.decoder.weight
    assert not model.encoder[0].bias.requires_grad
    assert model.encoder[0].weight.requires_grad
    assert model.encoder[0].weight.is_leaf
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name])


def test_map_params_takes_a_parameter_as_it_is():
    model = nn.Linear(2, 2)
    new = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    map_params(model, lambda path, parameter: new if path == "weight" else parameter)
    assert model.weight is new
    assert not model.weight.requires_grad
    assert model.bias.requires_grad


def test_map_params_reaches_the_second_list_of_recurrent_layers():
    lstm = nn.LSTM(3, 4)
    map_params(lstm, lambda path, parameter: torch.zeros_like(parameter))
    output, _ = lstm(torch.randn(5, 2, 3))
    assert output.abs().max() == 0


def test_map_params_refuses_what_is_no_tensor_and_leaves_the_model():
    model = nn.Linear(2, 2)
    weight = model.weight
    with raises(ConfigError, "bias", "NoneType"):
        map_params(model, lambda path, parameter: parameter * 0 if path == "weight" else None)
    assert model.weight is weight


@pytest.mark.parametrize(
    ("patterns", "paths"),
    [
        ((), ["encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias", "decoder.weight"]),
        (("encoder.*.bias",), ["encoder.0.bias", "encoder.1.bias"]),
        (("encoder",), ["encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias"]),
        (("encoder.1",), ["encoder.1.weight", "encoder.1.bias"]),
        (("decoder", "encoder.0.bias"), ["encoder.0.bias", "decoder.weight"]),
        (("tied.weight",), ["decoder.weight"]),  # the other name of a shared parameter
        (("*coder.[0]",), ["encoder.0.weight", "encoder.0.bias"]),
        (("decoder | encoder.*.bias",), ["encoder.0.bias", "encoder.1.bias", "decoder.weight"]),
    ],
)
def test_freeze_and_unfreeze(patterns, paths):
    model = Net()
    assert freeze(model, *patterns) == paths
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == paths
    assert unfreeze(model, *patterns) == paths
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("encodr", "did you mean 'encoder'?"),
        ("encoder.0.weigth", "did you mean 'encoder.0.weight'?"),
        ("encoder.2", "this module exists, but has no parameters"),
        ("zzz", "the first path is 'encoder.0.weight'"),
        ("zzz|decodr", "did you mean 'decoder'?"),
        ("coder", None),
        ("encoder.0.w", None),  # a prefix is not a match
    ],
)
def test_a_pattern_that_matches_nothing_is_an_error_and_changes_nothing(pattern, hint):
    model = Net()
    with raises(ConfigError, repr(pattern)) as error:
        freeze(model, "decoder", pattern)
    if hint:
        assert error.value.hint == hint
    assert all(p.requires_grad for p in model.parameters())


def test_an_alternative_that_matches_nothing_gives_a_warning():
    model = Net()
    with pytest.warns(UserWarning, match="decodr") as warned:
        assert freeze(model, "tied", "decodr.* | *.wieght |decoder") == ["decoder.weight"]
    what = "in the pattern 'decodr.* | *.wieght |decoder' matches no parameter: did you mean"
    assert [str(warning.message) for warning in warned] == [
        f"'decodr.*' {what} 'decoder'?",
        f"'*.wieght' {what} '*.weight'?",
    ]
    assert warned[0].filename == __file__
