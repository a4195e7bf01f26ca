"""Transformer encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import UnsupportedError
from burnt.module import Module
from burnt.nn.attention import MultiHeadAttention
from burnt.nn.dropout import Dropout
from burnt.nn.linear import Linear
from burnt.nn.norm import LayerNorm

__all__ = ["TransformerEncoder", "TransformerEncoderLayer"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class TransformerEncoderLayer(Module):
    r"""Self-attention and two Linears, each with dropout, a residual connection and a layer norm.

    .. math:: x \leftarrow \mathrm{norm}_1(x + \mathrm{attention}(x)), \quad
              y = \mathrm{norm}_2(x + W_2\,f(W_1 x))

    or, with `norm_first`, :math:`x + \mathrm{attention}(\mathrm{norm}_1(x))` and so on.

    Args:
        d_model: size E of the vectors; a multiple of `num_heads`.
        num_heads: heads of the attention.
        d_ff: size between the two Linears (torch's ``dim_feedforward``).
        dropout: probability, after the attention (and of its weights), after `f` and after the second Linear.
        activation: `f`.
        norm_first: normalise what goes into attention and Linears, and not the sums.
        layer_norm_eps: added to the variance.
        bias: whether Linears and norms have biases.
        num_kv_heads: heads of keys and values, None for `num_heads`.
        device: where the parameters live.
        dtype: dtype of the parameters.

    Shapes:
        input ``[B, L, d_model]`` or ``[L, d_model]``, output the same.

    Parameters, their names and initial values are those of :class:`torch.nn.TransformerEncoderLayer`; the
    batch comes first. (Burn's default activation is Gelu.) Vaswani et al., 2017; Xiong et al., 2020.

    >>> import torch
    >>> TransformerEncoderLayer(8, num_heads=2, d_ff=16)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    self_attn: MultiHeadAttention
    linear1: Linear
    dropout: Dropout
    linear2: Linear
    norm1: LayerNorm
    norm2: LayerNorm
    dropout1: Dropout
    dropout2: Dropout
    activation: str
    norm_first: bool

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int = 2048,
        *,
        dropout: float = 0.1,
        activation: Literal["relu", "gelu", "silu"] = "relu",
        norm_first: bool = False,
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        num_kv_heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(
            d_model,
            num_heads,
            num_kv_heads=num_kv_heads,
            dropout=dropout,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.linear1 = Linear(d_model, d_ff, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(d_ff, d_model, bias, device, dtype)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = _known(activation)
        self.norm_first = norm_first

    @classmethod
    def from_torch(cls, layer: torch.nn.TransformerEncoderLayer) -> Self:
        """Build a copy of torch's layer; its input has the batch axis first.

        Raises:
            UnsupportedError: an activation other than ReLU, GELU and SiLU.
        """
        weight = layer.linear1.weight
        copy = cls(**_arguments(layer), device=weight.device, dtype=weight.dtype)
        copy.load_state_dict(layer.state_dict())
        # These may have been changed individually.
        copy.self_attn = MultiHeadAttention.from_torch(layer.self_attn)
        copy.norm2.eps = layer.norm2.eps
        copy.dropout1.p, copy.dropout2.p = layer.dropout1.p, layer.dropout2.p
        return copy.train(layer.training)

    def forward(
        self,
        input: Tensor,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Encode `input` ``[B, L, d_model]``; masks as in `MultiHeadAttention.forward`."""

        def attend(x: Tensor) -> Tensor:
            attended = self.self_attn(
                x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal
            )
            return self.dropout1(attended)  # type: ignore[no-any-return]

        def feed_forward(x: Tensor) -> Tensor:
            hidden = self.dropout(_ACTIVATIONS[self.activation](self.linear1(x)))
            return self.dropout2(self.linear2(hidden))  # type: ignore[no-any-return]

        x = input
        if self.norm_first:
            x = x + attend(self.norm1(x))
            return x + feed_forward(self.norm2(x))
        x = self.norm1(x + attend(x))
        output: Tensor = self.norm2(x + feed_forward(x))
        return output


class TransformerEncoder(Module):
    """A stack of `TransformerEncoderLayer`.

    Args:
        d_model: size E of the vectors; a multiple of `num_heads`.
        num_heads: heads of the attention.
        d_ff: size between the two Linears of a layer (torch's ``dim_feedforward``).
        num_layers: number of layers.
        dropout: probability, as in a layer.
        activation: between the two Linears.
        norm_first: as in a layer.
        final_norm: whether a LayerNorm follows the last layer, as is usual with `norm_first` (torch's
            ``norm``).
        layer_norm_eps: added to the variance.
        bias: whether Linears and norms have biases.
        num_kv_heads: heads of keys and values, None for `num_heads`.
        device: where the parameters live.
        dtype: dtype of the parameters.

    Shapes:
        input ``[B, L, d_model]`` or ``[L, d_model]``, output the same.

    Parameters and their names are those of :class:`torch.nn.TransformerEncoder`, whose state loads unchanged.
    Each layer draws its own initial values; torch's layers all start as copies of one. (Burn's default
    activation is Gelu.)

    >>> import torch
    >>> encoder = TransformerEncoder(d_model=8, num_heads=2, d_ff=16, num_layers=2)
    >>> encoder(torch.zeros(2, 5, 8), is_causal=True).shape
    torch.Size([2, 5, 8])
    """

    layers: list[TransformerEncoderLayer]
    norm: LayerNorm | None

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        *,
        dropout: float = 0.1,
        activation: Literal["relu", "gelu", "silu"] = "relu",
        norm_first: bool = False,
        final_norm: bool = False,
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        num_kv_heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.layers = [
            TransformerEncoderLayer(
                d_model,
                num_heads,
                d_ff,
                dropout=dropout,
                activation=activation,
                norm_first=norm_first,
                layer_norm_eps=layer_norm_eps,
                bias=bias,
                num_kv_heads=num_kv_heads,
                device=device,
                dtype=dtype,
            )
            for _ in range(num_layers)
        ]
        self.norm = (
            LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype) if final_norm else None
        )

    @classmethod
    def from_torch(cls, encoder: torch.nn.TransformerEncoder) -> Self:
        """Build a copy of torch's encoder; its input has the batch axis first.

        Raises:
            UnsupportedError: an activation other than ReLU, GELU and SiLU, or a norm other than LayerNorm.
        """
        if encoder.norm is not None and not isinstance(encoder.norm, torch.nn.LayerNorm):
            raise UnsupportedError(
                "a TransformerEncoder ends with a LayerNorm or with nothing",
                found=f"a {type(encoder.norm).__name__}",
            )
        first = encoder.layers[0]
        copy = cls(**_arguments(first), num_layers=0)
        copy.layers = [TransformerEncoderLayer.from_torch(layer) for layer in encoder.layers]
        if encoder.norm is not None:
            copy.norm = _layer_norm_from_torch(encoder.norm)
        return copy.train(encoder.training)

    def forward(
        self,
        input: Tensor,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Encode `input` ``[B, L, d_model]``; masks as in `MultiHeadAttention.forward`."""
        x = input
        for layer in self.layers:
            x = layer(x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal)
        return x if self.norm is None else self.norm(x)


def _layer_norm_from_torch(norm: torch.nn.LayerNorm) -> LayerNorm:
    copy = LayerNorm(tuple(norm.normalized_shape), norm.eps, norm.elementwise_affine, norm.bias is not None)
    for parameter in norm.parameters():
        copy.to(device=parameter.device, dtype=parameter.dtype)
    copy.load_state_dict(norm.state_dict())
    return copy


def _known(activation: str) -> str:
    if activation not in _ACTIVATIONS:
        raise UnsupportedError(
            "a transformer has no such activation", expected=" or ".join(_ACTIVATIONS), found=repr(activation)
        )
    return activation


def _arguments(layer: torch.nn.TransformerEncoderLayer) -> dict[str, Any]:
    """Return the arguments of a `TransformerEncoderLayer` equal to torch's."""
    return {
        "d_model": layer.self_attn.embed_dim,
        "num_heads": layer.self_attn.num_heads,
        "d_ff": layer.linear1.out_features,
        "dropout": layer.dropout.p,
        "activation": _activation_name(layer.activation),
        "norm_first": layer.norm_first,
        "layer_norm_eps": layer.norm1.eps,
        "bias": layer.linear1.bias is not None,
    }


def _activation_name(activation: object) -> str:
    if activation is F.relu or isinstance(activation, torch.nn.ReLU):
        return "relu"
    if activation is F.gelu or (isinstance(activation, torch.nn.GELU) and activation.approximate == "none"):
        return "gelu"
    if activation is F.silu or isinstance(activation, torch.nn.SiLU):
        return "silu"
    raise UnsupportedError(
        "a transformer has no such activation", expected="ReLU, GELU or SiLU", found=repr(activation)
    )
