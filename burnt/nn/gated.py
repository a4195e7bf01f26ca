"""Gated linear units with their Linears, and the feed-forward block made of one."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import UnsupportedError
from burnt.module import Module
from burnt.nn.checks import check_sizes
from burnt.nn.dropout import Dropout
from burnt.nn.linear import Linear

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
        approximate: of the GELU: ``"none"`` for the error function, ``"tanh"`` for its approximation.

    Other arguments and shapes are those of `SwiGlu`.

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
