import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import nn
from burnt.errors import ConfigError, UnsupportedError

# In float64, from their definitions.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
}


def by_hand(layer: Any, x: Tensor, activation: str) -> Tensor:
    def linear(name: str, x: Tensor) -> Tensor:
        projection = getattr(layer, name)
        output = x @ projection.weight.double().t()
        return output if projection.bias is None else output + projection.bias.double()

    hidden = ACTIVATIONS[activation](linear("gate_proj", x)) * linear("up_proj", x)
    return linear("down_proj", hidden) if hasattr(layer, "down_proj") else hidden


@pytest.mark.parametrize(
    ("layer", "activation"),
    [
        (nn.SwiGlu(6, 4), "silu"),
        (nn.GeGlu(6, 4, bias=True), "gelu"),
        (nn.GeGlu(6, 4, approximate="tanh"), "gelu_tanh"),
        *((nn.GatedFeedForward(6, 10, activation=a, bias=a == "silu"), a) for a in ACTIVATIONS),
    ],
)
def test_values_and_gradients_in_float64(layer: Any, activation: str) -> None:
    x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    expected = by_hand(layer, x, activation)
    found = layer(x.float())
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)
    grad = torch.randn_like(expected)
    wanted = [x, *layer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(found, wanted, grad.float()),
        torch.autograd.grad(expected, wanted, grad),
        atol=1e-5,
        rtol=1e-4,
    )


def test_dropout_is_before_the_last_linear() -> None:
    layer = nn.GatedFeedForward(4, 300, dropout=0.5)
    kept = []
    layer.down_proj.register_forward_pre_hook(lambda _, args: kept.append((args[0] != 0).double().mean()))
    layer(torch.ones(4))
    layer.eval()(torch.ones(4))
    assert 0.3 < kept[0] < 0.7
    assert kept[1] == 1


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="silu or gelu or gelu_tanh or relu or sigmoid") as caught:
        nn.GatedFeedForward(4, 8, activation="tanh")  # type: ignore[arg-type]
    assert caught.value.found == "'tanh'"
    with pytest.raises(ConfigError):
        nn.GatedFeedForward.Config(d_model=4, d_ff=8, activation="tanh")
