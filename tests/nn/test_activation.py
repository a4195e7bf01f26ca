"""Activations that torch lacks, against float64 formulas; bad arguments; activations by name."""

from typing import Any, get_args

import numpy as np
import pytest
import torch

import burnt
from burnt import Config, nn
from burnt.errors import ConfigError, InputValueError
from burnt.nn.activation import ActivationName

POINTS = [-np.inf, -3.0, -1.0, -0.5, -0.25, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 3.0, np.inf, np.nan]


@pytest.mark.parametrize(
    ("layer", "formula"),
    [
        (nn.Relu2(), lambda x: np.maximum(x, 0) ** 2),
        (nn.ThresholdedRelu(), lambda x: np.where(np.isnan(x) | (x > 1), x, 0)),
        (nn.ThresholdedRelu(-0.5), lambda x: np.where(np.isnan(x) | (x > -0.5), x, 0)),
        (nn.Shrink(), lambda x: np.where(np.abs(x) <= 0.5, 0, x)),
        (nn.Shrink(0.25, 1.0), lambda x: np.where(np.abs(x) <= 0.25, 0, x - np.sign(x))),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_values_of_what_torch_lacks(layer: torch.nn.Module, formula: Any) -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    torch.testing.assert_close(layer(x), torch.from_numpy(formula(x.numpy())), equal_nan=True)
    inner = torch.linspace(-2, 2, 40, dtype=torch.float64, requires_grad=True)  # not at a bend
    assert torch.autograd.gradcheck(layer, inner)


def test_shrink_has_torchs_as_special_cases() -> None:
    x = torch.randn(100)
    assert torch.equal(nn.Shrink(0.3)(x), nn.Hardshrink(0.3)(x))
    assert torch.equal(nn.Shrink(0.3, 0.3)(x), nn.Softshrink(0.3)(x))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4, 5)], ids=str)
def test_softmax2d_is_over_channels(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(nn.Softmax2d()(x), torch.softmax(x, -3))


@pytest.mark.parametrize(
    ("build", "expected", "found"),
    [
        (lambda: nn.Hardtanh(1.0, 1.0), "less than max_val, 1.0", 1.0),
        (lambda: nn.Rrelu(0.5, 0.1), "at most upper, 0.1", 0.5),
        (lambda: nn.Shrink(-1.0), "at least 0", -1.0),
        (lambda: nn.Softshrink(-1.0), "at least 0", -1.0),
        (lambda: nn.Hardshrink(-1.0), "at least 0", -1.0),
    ],
)
def test_bad_arguments(build: Any, expected: str, found: float) -> None:
    with pytest.raises(InputValueError) as caught:
        build()
    assert (caught.value.expected, caught.value.found) == (expected, found)


# by name


@pytest.mark.parametrize("name", get_args(ActivationName))
def test_every_name_builds_the_layer_of_that_name(name: str) -> None:
    layer = nn.build_activation(name)
    assert isinstance(layer, burnt.Module)
    assert type(layer).__name__.lower() == name.removesuffix("_tanh").replace("_", "")
    x = torch.randn(3, 4)
    assert layer(x).shape == x.shape


def test_every_activation_has_a_name_unless_it_has_required_arguments_or_other_shapes() -> None:
    layers = {
        name.lower()
        for name, kind in vars(nn.activation).items()
        if isinstance(kind, type) and kind.__module__ == "burnt.nn.activation" and hasattr(nn, name)
    }
    named = {name.replace("_", "") for name in get_args(ActivationName)}
    assert named - layers == {"gelutanh"}
    assert layers - named == {"glu", "softmax", "logsoftmax", "softmin", "softmax2d", "threshold"}
    configs = {kind.__qualname__ for kind in get_args(nn.ActivationConfig) if isinstance(kind, type)}
    assert {name.removesuffix(".Config").lower() for name in configs} == layers - {"glu"}


def test_what_it_builds_from() -> None:
    assert nn.build_activation("gelu_tanh").approximate == "tanh"
    assert nn.build_activation(nn.LeakyRelu.Config(negative_slope=0.2)).negative_slope == 0.2
    assert nn.build_activation({"type": "Softmax", "dim": 1}).dim == 1
    layer = torch.nn.Hardswish()
    assert nn.build_activation(layer) is layer
    prelu = nn.build_activation("prelu", "meta", torch.float64)
    assert prelu.weight.is_meta
    assert prelu.weight.dtype == torch.float64


class NetConfig(Config):
    activation: nn.ActivationConfig = "relu"


class Block(burnt.Module):
    activation: torch.nn.Module

    def __init__(self, activation: nn.ActivationConfig | torch.nn.Module = "silu") -> None:
        super().__init__()
        self.activation = nn.build_activation(activation)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.activation(input)
        return output


@pytest.mark.parametrize(
    "activation", ["gelu", nn.LeakyRelu.Config(negative_slope=0.2), nn.Prelu.Config(alpha=0.1)], ids=repr
)
def test_in_a_users_config_and_in_a_derived_one(activation: nn.ActivationConfig, tmp_path: Any) -> None:
    config = NetConfig(activation=activation)
    assert NetConfig.from_json(config.to_json()) == config
    block = Block.Config(activation=config.activation).init()
    assert repr(block.activation) == repr(nn.build_activation(activation))
    block.save(tmp_path / "block.safetensors")
    assert repr(Block.load(tmp_path / "block.safetensors")) == repr(block)
    assert NetConfig().override(["activation=mish"]).activation == "mish"
    assert NetConfig().override(['activation={"type": "Elu"}']).activation == nn.Elu.Config()


@pytest.mark.parametrize(
    ("activation", "hint"),
    [
        ("gelo", "did you mean 'gelu'?"),
        ("leakyrelu", "did you mean 'leaky_relu'?"),
        (torch.relu, "by name: 'relu'"),
    ],
)
def test_what_is_no_activation(activation: Any, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        nn.build_activation(activation)
    assert caught.value.hint == hint
    assert caught.value.expected.startswith("celu, elu, gelu, gelu_tanh")
    with pytest.raises(ConfigError) as caught:
        NetConfig(activation=activation)
    assert caught.value.hint == hint
    assert caught.value.expected.startswith("'celu' | 'elu'")
    assert caught.value.expected.endswith("| one of 30 Configs, such as Celu.Config")


def test_a_dict_that_is_no_activation() -> None:
    with pytest.raises(ConfigError) as caught:
        nn.build_activation({"type": "LeakyRelu", "negative_slop": 0.2})
    assert str(caught.value).startswith("Activation cannot be read\n  in        activation.negative_slop\n")
    assert "did you mean 'negative_slope'?" in str(caught.value)
