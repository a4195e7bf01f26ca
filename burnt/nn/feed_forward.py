"""The feed-forward of transformers: two Linears with an activation between them."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from burnt.module import Module
from burnt.nn.activation import ActivationConfig, ActivationName, activation_error, build_activation
from burnt.nn.checks import check_sizes
from burnt.nn.dropout import Dropout
from burnt.nn.gated import gated
from burnt.nn.linear import Linear

FeedForwardActivation: TypeAlias = ActivationConfig | Literal["swiglu", "geglu"]
"""An activation by name or Config, or a gated unit, whose first Linear has twice as many outputs."""


class _GatedUnit(Module):
    """Multiplies the second half of the last axis by the activated first half."""

    kind: str

    def __init__(self, kind: Literal["swiglu", "geglu"]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, input: Tensor) -> Tensor:
        gate, up = input.chunk(2, dim=-1)
        return gated(gate, up, "silu" if self.kind == "swiglu" else "gelu")


class FeedForwardBase(Module):
    """Base of modules that have a feed-forward, whose parameters have the names of torch's transformers."""

    linear1: Linear
    dropout: Dropout
    linear2: Linear
    activation: torch.nn.Module

    def __init__(self) -> None:
        super().__init__()

    def _build_feed_forward(
        self,
        d_model: int,
        d_ff: int,
        activation: FeedForwardActivation | torch.nn.Module,
        dropout: float,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        check_sizes(type(self).__name__, d_model=d_model, d_ff=d_ff)
        gated = activation in ("swiglu", "geglu")
        self.linear1 = Linear(d_model, 2 * d_ff if gated else d_ff, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(d_ff, d_model, bias, device, dtype)
        if activation == "swiglu" or activation == "geglu":
            self.activation = _GatedUnit(activation)
        elif isinstance(activation, str) and activation not in get_args(ActivationName):
            raise activation_error(activation, also=("swiglu", "geglu"))
        else:
            self.activation = build_activation(activation, device, dtype)

    def _feed_forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return output


class PositionWiseFeedForward(FeedForwardBase):
    r"""Two Linears with an activation between them, for each position: :math:`y = W_2\,f(W_1 x)`.

    Args:
        d_model: size E of input and output.
        d_ff: size between the Linears.
        dropout: probability, after the activation.
        activation: :math:`f`: a name, a Config or a module; ``"swiglu"`` and ``"geglu"`` multiply one half of
            what a twice as large first Linear gives by the activated other half.
        bias: whether the Linears have biases.

    Shapes:
        input ``[*, d_model]``, output the same; ``linear1`` and ``linear2`` are Linears.

    Raises:
        ConfigError: there is no such activation.
        ShapeError: a size is not a positive integer.

    (Burn's default activation is Gelu, its dropout 0.1; its Linears are ``linear_inner`` and
    ``linear_outer``.) Vaswani et al., 2017; Shazeer, 2020 (gated units).

    >>> PositionWiseFeedForward(8, 32, activation="swiglu")(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        activation: FeedForwardActivation | torch.nn.Module = "relu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._build_feed_forward(d_model, d_ff, activation, dropout, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[*, d_model]`` to the same shape."""
        return self._feed_forward(input)
