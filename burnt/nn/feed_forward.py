"""The feed-forward of transformers: two Linears with an activation between them, and gated units."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import UnsupportedError
from burnt.module import Module
from burnt.nn.activation import ActivationConfig, ActivationName, activation_error, build_activation
from burnt.nn.checks import check_sizes
from burnt.nn.dropout import Dropout
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
        dropout: probability of dropping a value after the activation.
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


GateActivation = Literal["silu", "gelu", "gelu_tanh", "relu", "sigmoid"]


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Return ``activation(gate) * up``."""
    if activation == "silu":
        return kernels.swiglu.in_layer(gate, up)
    if activation in ("gelu", "gelu_tanh"):
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        return kernels.geglu.in_layer(gate, up, approximate)
    return (F.relu(gate) if activation == "relu" else torch.sigmoid(gate)) * up


def check_gate(activation: str, where: str) -> None:
    """Raise an UnsupportedError unless `gated` has an activation."""
    known = GateActivation.__args__  # type: ignore[attr-defined]
    if activation not in known:
        raise UnsupportedError(
            "a gate has no such activation", where=where, expected=" or ".join(known), found=repr(activation)
        )


class _GatedLinears(Module):
    in_features: int
    out_features: int
    gate_proj: Linear
    up_proj: Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.gate_proj = Linear(in_features, out_features, bias, device, dtype)
        self.up_proj = Linear(in_features, out_features, bias, device, dtype)


class SwiGlu(_GatedLinears, init=False):
    r"""Two Linears, one of which gates the other: :math:`y = \mathrm{silu}(W_g x) \odot W_u x`.

    Args:
        in_features: size of the input's last axis.
        out_features: size of the output's last axis.
        bias: whether the Linears have biases.

    Shapes:
        input ``[..., in_features]``, output ``[..., out_features]``; ``gate_proj`` and ``up_proj`` are
        Linears.

    `GatedFeedForward` is this with a third Linear. (Burn names the Linears ``linear_inner`` and
    ``linear_outer``.) Shazeer, 2020.

    >>> SwiGlu(3, 2)(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        return gated(self.gate_proj(input), self.up_proj(input), "silu")


class GeGlu(_GatedLinears):
    r"""Two Linears, one of which gates the other: :math:`y = \mathrm{gelu}(W_g x) \odot W_u x`.

    Args:
        approximate: the GELU's formula: ``"none"`` for the error function, ``"tanh"`` for an approximation.

    Other arguments and shapes are as in `SwiGlu`.

    Shazeer, 2020.

    >>> GeGlu(3, 2)(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    approximate: str

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        approximate: Literal["none", "tanh"] = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        activation = "gelu_tanh" if self.approximate == "tanh" else "gelu"
        return gated(self.gate_proj(input), self.up_proj(input), activation)


class GatedFeedForward(Module):
    r"""The feed-forward block of Llama and its like: :math:`y = W_d\,(f(W_g x) \odot W_u x)`.

    Args:
        d_model: size of input and output.
        d_ff: size between the Linears.
        activation: :math:`f`: ``"silu"`` for SwiGLU, ``"gelu"`` for GEGLU, ``"gelu_tanh"`` as in Gemma,
            ``"relu"`` for ReGLU, ``"sigmoid"`` for GLU.
        dropout: probability, before the last Linear.
        bias: whether the Linears have biases.

    Shapes:
        input ``[..., d_model]``, output the same; ``gate_proj``, ``up_proj`` and ``down_proj`` are Linears,
        named as in Hugging Face's Llama, Mistral, Qwen and Gemma, whose states load unchanged.

    Raises:
        ShapeError: a size is not a positive integer.
        UnsupportedError: another activation.

    Shazeer, 2020.

    >>> GatedFeedForward(8, 24)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    d_model: int
    d_ff: int
    activation: str
    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear
    dropout: Dropout

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: GateActivation = "silu",
        dropout: float = 0.0,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes("GatedFeedForward", d_model=d_model, d_ff=d_ff)
        check_gate(activation, f"GatedFeedForward({d_model}, {d_ff})")
        self.d_model = d_model
        self.d_ff = d_ff
        self.activation = activation
        self.gate_proj = Linear(d_model, d_ff, bias, device, dtype)
        self.up_proj = Linear(d_model, d_ff, bias, device, dtype)
        self.down_proj = Linear(d_ff, d_model, bias, device, dtype)
        self.dropout = Dropout(dropout)

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[..., d_model]`` to the same shape."""
        hidden = gated(self.gate_proj(input), self.up_proj(input), self.activation)
        output: Tensor = self.down_proj(self.dropout(hidden))
        return output
