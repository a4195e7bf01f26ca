"""Transformers: stacks of encoder and decoder layers, and the two together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor

from burnt.errors import BurntError, InputTypeError, UnsupportedError
from burnt.module import Module
from burnt.nn.cache import TransformerCache
from burnt.nn.checks import check_sizes
from burnt.nn.feed_forward import FeedForwardActivation
from burnt.nn.norm import LayerNorm, RmsNorm
from burnt.nn.position import RotaryEncoding
from burnt.nn.transformer_layer import (
    FeedForwardConfig,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    arguments_of,
    build_norm,
)

Layer = TypeVar("Layer", TransformerEncoderLayer, TransformerDecoderLayer)


class _Stack(Module, Generic[Layer]):
    """What encoder and decoder share: layers, and a norm after the last one."""

    _LAYER: ClassVar[Any]
    layers: list[Layer]
    norm: LayerNorm | RmsNorm | None

    def __init__(self, build: Callable[[], Layer], num_layers: int, norm: LayerNorm | RmsNorm | None) -> None:
        super().__init__()
        check_sizes(type(self).__name__, smallest=0, num_layers=num_layers)
        self.layers = [build() for _ in range(num_layers)]
        self.norm = norm

    @classmethod
    def from_torch(cls, stack: torch.nn.TransformerEncoder | torch.nn.TransformerDecoder) -> Self:
        """Build a copy of torch's encoder or decoder; its inputs have the batch axis first.

        Raises:
            UnsupportedError: an activation that is a function which burnt has no name for, or a norm other
                than LayerNorm.
        """
        arguments: dict[str, Any] = arguments_of(stack.layers[0])
        copy = cls(**arguments, num_layers=0)
        copy.layers = [cls._LAYER.from_torch(layer) for layer in stack.layers]
        copy.norm = _norm_from_torch(stack.norm, cls.__name__)
        return copy.train(stack.training)

    def new_cache(self, max_len: int | None = None) -> TransformerCache:
        """Return an empty cache for step-by-step inference; `max_len` as in `KeyValueCache`."""
        return TransformerCache(len(self.layers), max_len)

    def _caches(self, cache: TransformerCache | None) -> list[tuple[Any, Any]]:
        """Return the caches of each layer's self-attention and attention to the memory."""
        count = len(self.layers)
        if cache is None:
            return [(None, None)] * count
        if not isinstance(cache, TransformerCache):
            raise InputTypeError(
                "a transformer cannot use this as a cache",
                where=type(self).__name__,
                expected="a TransformerCache, or None",
                found=type(cache).__name__,
                hint="cache = model.new_cache(), before the first step",
            )
        if len(cache.self_attn) != count:
            raise BurntError(
                "the cache is of another stack",
                where=type(self).__name__,
                expected=f"a cache of {count} layers",
                found=repr(cache),
                hint="cache = model.new_cache()",
            )
        return list(zip(cache.self_attn, cache.cross_attn, strict=True))


class TransformerEncoder(_Stack[TransformerEncoderLayer]):
    """A stack of `TransformerEncoderLayer`; with ``is_causal=True``, a decoder as in GPT.

    Args:
        num_layers: number of layers.
        final_norm: whether a norm follows the last layer, as is usual with `norm_first` (torch's ``norm``).
        feed_forward: the Config of a `GatedFeedForward` or `MoeFeedForward` in place of the two Linears;
            `d_ff` and `activation` are unused then.

    Other arguments, and errors, are those of a layer; a module as `activation` or `rotary` is shared by all.

    Shapes:
        input ``[B, L, d_model]`` or ``[L, d_model]``, output the same.

    Parameters and their names are those of :class:`torch.nn.TransformerEncoder`, whose state loads unchanged.
    Each layer draws its own initial values; torch's layers all start as copies of one. (Burn's default
    activation is Gelu.)

    >>> encoder = TransformerEncoder(d_model=8, num_heads=2, d_ff=16, num_layers=2)
    >>> encoder(torch.zeros(2, 5, 8), is_causal=True).shape
    torch.Size([2, 5, 8])
    """

    _LAYER = TransformerEncoderLayer

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        *,
        dropout: float = 0.1,
        activation: FeedForwardActivation | torch.nn.Module = "relu",
        norm_first: bool = False,
        final_norm: bool = False,
        norm: Literal["layer", "rms"] = "layer",
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        num_kv_heads: int | None = None,
        quiet_softmax: bool = False,
        rotary: RotaryEncoding.Config | torch.nn.Module | None = None,
        feed_forward: FeedForwardConfig | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        build = functools.partial(
            TransformerEncoderLayer,
            d_model,
            num_heads,
            d_ff,
            dropout=dropout,
            activation=activation,
            norm_first=norm_first,
            norm=norm,
            layer_norm_eps=layer_norm_eps,
            bias=bias,
            num_kv_heads=num_kv_heads,
            quiet_softmax=quiet_softmax,
            rotary=rotary,
            feed_forward=feed_forward,
            device=device,
            dtype=dtype,
        )
        last = build_norm(norm, d_model, layer_norm_eps, bias, device, dtype) if final_norm else None
        super().__init__(build, num_layers, last)

    def forward(
        self,
        input: Tensor,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        cache: TransformerCache | None = None,
    ) -> Tensor:
        """Encode `input` ``[B, L, d_model]``.

        Args:
            input: ``[B, L, d_model]``.
            attn_mask: as in `MultiHeadAttention.forward`.
            key_padding_mask: as in `MultiHeadAttention.forward`.
            is_causal: position i sees positions 0 to i alone.
            cache: of `new_cache`, with earlier positions. The input then comes after these and sees them, and
                `is_causal` holds; masks count the earlier positions, too.

        Raises:
            ShapeError: an input or a mask of the wrong shape.
            BurntError: the cache of a stack with another number of layers.
        """
        x = input
        for layer, (self_cache, _) in zip(self.layers, self._caches(cache), strict=True):
            x = layer(
                x,
                attn_mask=attn_mask,
                key_padding_mask=key_padding_mask,
                is_causal=is_causal,
                cache=self_cache,
            )
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(_Stack[TransformerDecoderLayer]):
    """A stack of `TransformerDecoderLayer`, which attend to the output of an encoder.

    For a decoder without one, as in GPT, use a `TransformerEncoder` with ``is_causal=True``.

    Args:
        memory_dim: size of the memory's vectors; None is `d_model`.

    Other arguments, and errors, are those of a layer and of a `TransformerEncoder`.

    Shapes:
        input ``[B, L, d_model]``, memory ``[B, S, memory_dim]``, or both without B; output as the input.

    Parameters and their names are those of :class:`torch.nn.TransformerDecoder`, whose state loads unchanged;
    the self-attention is causal by default. Each layer draws its own initial values; torch's layers all start
    as copies of one. (Burn's default activation is Gelu.)

    >>> decoder = TransformerDecoder(d_model=8, num_heads=2, d_ff=16, num_layers=2).eval()
    >>> tokens, memory, cache = torch.randn(1, 5, 8), torch.randn(1, 9, 8), decoder.new_cache()
    >>> steps = [decoder(tokens[:, i : i + 1], memory, cache=cache) for i in range(5)]
    >>> torch.allclose(torch.cat(steps, 1), decoder(tokens, memory), atol=1e-5)
    True
    """

    _LAYER = TransformerDecoderLayer

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        *,
        memory_dim: int | None = None,
        dropout: float = 0.1,
        activation: FeedForwardActivation | torch.nn.Module = "relu",
        norm_first: bool = False,
        final_norm: bool = False,
        norm: Literal["layer", "rms"] = "layer",
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        num_kv_heads: int | None = None,
        quiet_softmax: bool = False,
        rotary: RotaryEncoding.Config | torch.nn.Module | None = None,
        feed_forward: FeedForwardConfig | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        build = functools.partial(
            TransformerDecoderLayer,
            d_model,
            num_heads,
            d_ff,
            memory_dim=memory_dim,
            dropout=dropout,
            activation=activation,
            norm_first=norm_first,
            norm=norm,
            layer_norm_eps=layer_norm_eps,
            bias=bias,
            num_kv_heads=num_kv_heads,
            quiet_softmax=quiet_softmax,
            rotary=rotary,
            feed_forward=feed_forward,
            device=device,
            dtype=dtype,
        )
        last = build_norm(norm, d_model, layer_norm_eps, bias, device, dtype) if final_norm else None
        super().__init__(build, num_layers, last)

    def forward(
        self,
        input: Tensor,
        memory: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = True,
        memory_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        cache: TransformerCache | None = None,
    ) -> Tensor:
        """Decode.

        Args:
            input: ``[B, L, d_model]``.
            memory: ``[B, S, memory_dim]``; with a cache, it is projected at the first step and ignored later.
            attn_mask: of the self-attention, as in `MultiHeadAttention.forward`.
            key_padding_mask: of the self-attention.
            is_causal: position i sees positions 0 to i alone.
            memory_mask: an `attn_mask` ``[L, S]`` of the attention to the memory.
            memory_key_padding_mask: ``[B, S]``, of the attention to the memory.
            cache: of `new_cache`, with earlier positions. The input then comes after these and sees them, and
                `is_causal` holds; masks count the earlier positions, too.

        Raises:
            ShapeError: an input or a mask of the wrong shape.
            BurntError: no memory, or the cache of a stack with another number of layers.
        """
        x = input
        for layer, (self_cache, memory_cache) in zip(self.layers, self._caches(cache), strict=True):
            x = layer(
                x,
                memory,
                attn_mask=attn_mask,
                key_padding_mask=key_padding_mask,
                is_causal=is_causal,
                memory_mask=memory_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                cache=self_cache,
                memory_cache=memory_cache,
            )
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """An encoder and a decoder that attends to the encoder's output.

    Args:
        num_encoder_layers: layers of the encoder.
        num_decoder_layers: layers of the decoder.
        final_norm: whether a norm follows the last layer of each stack.

    Other arguments, and errors, are those of a `TransformerEncoder` (torch's ``nhead`` is `num_heads`).

    Shapes:
        source ``[B, S, d_model]``, target ``[B, L, d_model]``, or both without B; output as the target.

    Parameters and their names are those of :class:`torch.nn.Transformer`, whose state loads unchanged;
    matrices start Xavier uniform. The batch comes first, the decoder is causal by default, and its attention
    to the memory ignores the source's padding (in torch only with masks). Vaswani et al., 2017.

    >>> model = Transformer(8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=16)
    >>> model(torch.zeros(2, 9, 8), torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    encoder: TransformerEncoder
    decoder: TransformerDecoder

    def __init__(
        self,
        d_model: int = 512,
        num_heads: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        d_ff: int = 2048,
        *,
        dropout: float = 0.1,
        activation: FeedForwardActivation | torch.nn.Module = "relu",
        norm_first: bool = False,
        final_norm: bool = True,
        norm: Literal["layer", "rms"] = "layer",
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        num_kv_heads: int | None = None,
        quiet_softmax: bool = False,
        rotary: RotaryEncoding.Config | torch.nn.Module | None = None,
        feed_forward: FeedForwardConfig | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "dropout": dropout,
            "activation": activation,
            "norm_first": norm_first,
            "final_norm": final_norm,
            "norm": norm,
            "layer_norm_eps": layer_norm_eps,
            "bias": bias,
            "num_kv_heads": num_kv_heads,
            "quiet_softmax": quiet_softmax,
            "rotary": rotary,
            "feed_forward": feed_forward,
            "device": device,
            "dtype": dtype,
        }
        self.encoder = TransformerEncoder(d_model, num_heads, d_ff, num_encoder_layers, **options)
        self.decoder = TransformerDecoder(d_model, num_heads, d_ff, num_decoder_layers, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all matrices (Xavier uniform)."""
        for parameter in self.parameters():
            if parameter.dim() == 2:  # the experts of a mixture keep their own initial values
                torch.nn.init.xavier_uniform_(parameter)

    @classmethod
    def from_torch(cls, transformer: torch.nn.Transformer) -> Self:
        """Build a copy of torch's model; its inputs have the batch axis first.

        Raises:
            UnsupportedError: a custom encoder or decoder, an activation that is a function which burnt has no
                name for, or a norm other than LayerNorm.
        """
        for stack, kind in (
            (transformer.encoder, torch.nn.TransformerEncoder),
            (transformer.decoder, torch.nn.TransformerDecoder),
        ):
            if type(stack) is not kind:
                raise UnsupportedError(
                    "a Transformer has an encoder and a decoder of torch",
                    expected=f"a {kind.__name__}",
                    found=f"a {type(stack).__name__}",
                )
        copy = cls(transformer.d_model, transformer.nhead, 0, 0, final_norm=False)
        copy.encoder = TransformerEncoder.from_torch(transformer.encoder)
        copy.decoder = TransformerDecoder.from_torch(transformer.decoder)
        return copy.train(transformer.training)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        source_key_padding_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        target_key_padding_mask: Tensor | None = None,
        is_causal: bool = True,
        memory_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Encode the source and decode the target.

        For inference step by step, call ``encoder`` once and then ``decoder`` with its cache.

        Args:
            source: ``[B, S, d_model]``.
            target: ``[B, L, d_model]``.
            source_mask: ``[S, S]``, an `attn_mask` of the encoder.
            source_key_padding_mask: ``[B, S]``, of the encoder.
            target_mask: ``[L, L]``, an `attn_mask` of the decoder.
            target_key_padding_mask: ``[B, L]``, of the decoder.
            is_causal: position i of the target sees its positions 0 to i alone.
            memory_mask: ``[L, S]``, an `attn_mask` of the decoder's attention to the encoder's output.
            memory_key_padding_mask: ``[B, S]``, of the same; None is `source_key_padding_mask`.
        """
        if memory_key_padding_mask is None:
            memory_key_padding_mask = source_key_padding_mask
        memory = self.encoder(source, attn_mask=source_mask, key_padding_mask=source_key_padding_mask)
        output: Tensor = self.decoder(
            target,
            memory,
            attn_mask=target_mask,
            key_padding_mask=target_key_padding_mask,
            is_causal=is_causal,
            memory_mask=memory_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )
        return output


def _norm_from_torch(norm: torch.nn.Module | None, name: str) -> LayerNorm | None:
    if norm is None:
        return None
    if not isinstance(norm, torch.nn.LayerNorm):
        raise UnsupportedError(
            f"a {name} ends with a LayerNorm or with nothing", found=f"a {type(norm).__name__}"
        )
    copy = LayerNorm(tuple(norm.normalized_shape), norm.eps, norm.elementwise_affine, norm.bias is not None)
    for parameter in norm.parameters():
        copy.to(device=parameter.device, dtype=parameter.dtype)
    copy.load_state_dict(norm.state_dict())
    return copy
