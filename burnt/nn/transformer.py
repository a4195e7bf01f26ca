"""Transformers: encoder and decoder layers, stacks of them, and the two together."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.config import Config
from burnt.errors import BurntError, InputTypeError, ShapeError, UnsupportedError
from burnt.module import Module
from burnt.nn.activation import ActivationName
from burnt.nn.attention import CrossAttention, MultiHeadAttention
from burnt.nn.cache import KeyValueCache, TransformerCache
from burnt.nn.checks import check_sizes
from burnt.nn.dropout import Dropout
from burnt.nn.feed_forward import FeedForwardActivation, FeedForwardBase, GatedFeedForward
from burnt.nn.moe import MoeFeedForward
from burnt.nn.norm import LayerNorm, RmsNorm
from burnt.nn.position import RotaryEncoding

FeedForwardConfig: TypeAlias = GatedFeedForward.Config | MoeFeedForward.Config
"""Feed-forwards that a Config can name in place of two Linears."""


class _TransformerLayer(FeedForwardBase, init=False):
    """Base of both layers: self-attention and feed-forward, and how they are added to their input."""

    self_attn: MultiHeadAttention
    norm1: LayerNorm | RmsNorm
    norm2: LayerNorm | RmsNorm
    dropout1: Dropout
    dropout2: Dropout
    norm_first: bool
    feed_forward: torch.nn.Module | None

    @classmethod
    def from_torch(cls, layer: torch.nn.TransformerEncoderLayer | torch.nn.TransformerDecoderLayer) -> Self:
        """Build a copy of torch's layer of the same kind; its inputs have the batch axis first.

        Raises:
            UnsupportedError: an activation that is a function which burnt has no name for.
        """
        weight = layer.linear1.weight
        build: Any = cls
        copied: Self = build(**arguments_of(layer), device=weight.device, dtype=weight.dtype)
        copied.load_state_dict(layer.state_dict())
        for name, part in list(copied.named_children()):  # each may have been changed individually
            given: Any = getattr(layer, name)
            if isinstance(part, MultiHeadAttention | CrossAttention):
                setattr(copied, name, part.from_torch(given))
            elif isinstance(part, LayerNorm):
                part.eps = given.eps
            elif isinstance(part, Dropout):
                part.p = given.p
        return copied.train(layer.training)

    def _add(self, x: Tensor, norm: torch.nn.Module, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """Add what a branch computes of `x`, and normalise the branch's input or the sum."""
        added: Tensor = x + branch(norm(x)) if self.norm_first else norm(x + branch(x))
        return added

    def _transform(self, x: Tensor) -> Tensor:
        output: Tensor = self._feed_forward(x) if self.feed_forward is None else self.feed_forward(x)
        return output


class TransformerEncoderLayer(_TransformerLayer):
    r"""Self-attention and two Linears, each with dropout, a residual connection and a norm.

    .. math:: x \leftarrow \mathrm{norm}_1(x + \mathrm{attention}(x)), \quad
              y = \mathrm{norm}_2(x + W_2\,f(W_1 x))

    or, with `norm_first`, :math:`x + \mathrm{attention}(\mathrm{norm}_1(x))` and so on.

    Args:
        d_model: size E of the vectors; a multiple of `num_heads`.
        num_heads: heads of the attention.
        d_ff: size between the two Linears (torch's ``dim_feedforward``).
        dropout: probability, after the attention (and of its weights), after `f` and after the second Linear.
        activation: `f`: a name, a Config or a module, or ``"swiglu"`` or ``"geglu"``, as in
            `PositionWiseFeedForward`.
        norm_first: normalise what goes into attention and Linears, and not the sums.
        norm: ``"layer"`` for LayerNorms, ``"rms"`` for RmsNorms.
        layer_norm_eps: added to the variance, or the mean square.
        bias: whether Linears and norms have biases.
        num_kv_heads: heads of keys and values, None for `num_heads`.
        quiet_softmax: let a head attend to nothing, as in `MultiHeadAttention`.
        rotary: encodes the positions of queries and keys, as in `MultiHeadAttention`.
        feed_forward: replaces the two Linears; then `d_ff` and `activation` are unused. Any module that maps
            ``[..., d_model]`` to the same, or the Config of a `GatedFeedForward` or `MoeFeedForward`.

    Shapes:
        input ``[B, L, d_model]`` or ``[L, d_model]``, output the same.

    Raises:
        ShapeError: `d_model` is not a multiple of `num_heads`, or `num_heads` none of `num_kv_heads`; a size
            is not a positive integer, or not the one that `rotary` or `feed_forward` is for.
        ConfigError: there is no such activation.
        UnsupportedError: there is no such norm.

    Parameters, their names and initial values are as in :class:`torch.nn.TransformerEncoderLayer`; the
    batch comes first. (Burn's default activation is Gelu.) Vaswani et al., 2017; Xiong et al., 2020.

    >>> TransformerEncoderLayer(8, num_heads=2, d_ff=16)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int = 2048,
        *,
        dropout: float = 0.1,
        activation: FeedForwardActivation | torch.nn.Module = "relu",
        norm_first: bool = False,
        norm: Literal["layer", "rms"] = "layer",
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        num_kv_heads: int | None = None,
        quiet_softmax: bool = False,
        rotary: RotaryEncoding.Config | torch.nn.Module | None = None,
        feed_forward: FeedForwardConfig | torch.nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(type(self).__name__, d_model=d_model, num_heads=num_heads)
        attention: dict[str, Any] = {"num_kv_heads": num_kv_heads, "quiet_softmax": quiet_softmax}
        attention |= {"dropout": dropout, "bias": bias, "device": device, "dtype": dtype}
        self.self_attn = MultiHeadAttention(d_model, num_heads, rotary=rotary, **attention)
        self.feed_forward = _build_feed_forward(feed_forward, d_model, type(self).__name__, device, dtype)
        if feed_forward is None:
            self._build_feed_forward(d_model, d_ff, activation, dropout, bias, device, dtype)
        options = norm, d_model, layer_norm_eps, bias, device, dtype
        self.norm1, self.norm2 = build_norm(*options), build_norm(*options)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.norm_first = norm_first

    def forward(
        self,
        input: Tensor,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Encode `input` ``[B, L, d_model]``; masks and cache as in `MultiHeadAttention.forward`."""
        options: dict[str, Any] = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
        options |= {"is_causal": is_causal, "cache": cache}
        x = self._add(input, self.norm1, lambda x: self.dropout1(self.self_attn(x, **options)))
        return self._add(x, self.norm2, lambda x: self.dropout2(self._transform(x)))


class TransformerDecoderLayer(_TransformerLayer):
    r"""Causal self-attention, attention to a memory, and two Linears, each with dropout, residual and norm.

    .. math:: x \leftarrow \mathrm{norm}_1(x + \mathrm{attention}(x)), \quad
              x \leftarrow \mathrm{norm}_2(x + \mathrm{attention}(x, \mathrm{memory})), \quad
              y = \mathrm{norm}_3(x + W_2\,f(W_1 x))

    or, with `norm_first`, :math:`x + \mathrm{attention}(\mathrm{norm}_1(x))` and so on.

    Args:
        memory_dim: size of the memory's vectors; None is `d_model`.

    Other arguments, and errors, are as in `TransformerEncoderLayer`, for both attentions; `rotary` is for
    the self-attention.

    Shapes:
        input ``[B, L, d_model]``, memory ``[B, S, memory_dim]``, or both without B; output as the input.

    Parameters, their names and initial values are as in :class:`torch.nn.TransformerDecoderLayer`; the
    batch comes first, and the self-attention is causal unless ``is_causal=False`` (in torch and Burn only
    with a mask). Without a memory, a decoder is a `TransformerEncoderLayer` with ``is_causal=True``. (Burn's
    default activation is Gelu.) Vaswani et al., 2017; Xiong et al., 2020.

    >>> layer = TransformerDecoderLayer(8, num_heads=2, d_ff=16)
    >>> layer(torch.zeros(2, 5, 8), torch.zeros(2, 9, 8)).shape
    torch.Size([2, 5, 8])
    """

    multihead_attn: CrossAttention
    norm3: LayerNorm | RmsNorm
    dropout3: Dropout

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int = 2048,
        *,
        memory_dim: int | None = None,
        dropout: float = 0.1,
        activation: FeedForwardActivation | torch.nn.Module = "relu",
        norm_first: bool = False,
        norm: Literal["layer", "rms"] = "layer",
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        num_kv_heads: int | None = None,
        quiet_softmax: bool = False,
        rotary: RotaryEncoding.Config | torch.nn.Module | None = None,
        feed_forward: FeedForwardConfig | torch.nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(type(self).__name__, d_model=d_model, num_heads=num_heads)
        attention: dict[str, Any] = {"num_kv_heads": num_kv_heads, "quiet_softmax": quiet_softmax}
        attention |= {"dropout": dropout, "bias": bias, "device": device, "dtype": dtype}
        self.self_attn = MultiHeadAttention(d_model, num_heads, rotary=rotary, **attention)
        self.multihead_attn = CrossAttention(d_model, num_heads, context_dim=memory_dim, **attention)
        self.feed_forward = _build_feed_forward(feed_forward, d_model, type(self).__name__, device, dtype)
        if feed_forward is None:
            self._build_feed_forward(d_model, d_ff, activation, dropout, bias, device, dtype)
        options = norm, d_model, layer_norm_eps, bias, device, dtype
        self.norm1, self.norm2, self.norm3 = (build_norm(*options) for _ in range(3))
        self.dropout1, self.dropout2, self.dropout3 = (Dropout(dropout) for _ in range(3))
        self.norm_first = norm_first

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
        cache: KeyValueCache | None = None,
        memory_cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Decode.

        Args:
            input: ``[B, L, d_model]``.
            memory: ``[B, S, memory_dim]``; may be None once `memory_cache` is filled.
            attn_mask: mask of the self-attention's scores, as in `MultiHeadAttention.forward`.
            key_padding_mask: ``[B, L]``, hides keys from the self-attention.
            is_causal: position i sees only positions 0 to i.
            memory_mask: an `attn_mask` ``[L, S]`` of the attention to the memory.
            memory_key_padding_mask: ``[B, S]``, hides keys from the attention to the memory.
            cache: earlier keys and values of the self-attention, as in `MultiHeadAttention.forward`.
            memory_cache: the memory's keys and values, as the cache in `CrossAttention.forward`.
        """
        own: dict[str, Any] = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
        own |= {"is_causal": is_causal, "cache": cache}
        outer: dict[str, Any] = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
        outer |= {"cache": memory_cache}
        x = self._add(input, self.norm1, lambda x: self.dropout1(self.self_attn(x, **own)))
        x = self._add(x, self.norm2, lambda x: self.dropout2(self.multihead_attn(x, memory, **outer)))
        return self._add(x, self.norm3, lambda x: self.dropout3(self._transform(x)))


def _build_feed_forward(
    given: FeedForwardConfig | torch.nn.Module | None,
    d_model: int,
    where: str,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> torch.nn.Module | None:
    """Return the module of the argument `feed_forward`, which must be for vectors of this size."""
    if given is not None and not isinstance(given, Config | torch.nn.Module):
        raise InputTypeError(
            "this is not a feed-forward of a transformer",
            where=where,
            expected="the Config of a GatedFeedForward or MoeFeedForward, a module, or None",
            found=repr(given),
            hint=f"two Linears with another activation: activation={given!r}"
            if given in (*get_args(ActivationName), "swiglu", "geglu")
            else None,
        )
    module: torch.nn.Module | None = given.init(device, dtype) if isinstance(given, Config) else given
    if isinstance(module, GatedFeedForward | MoeFeedForward) and module.d_model != d_model:
        raise ShapeError(
            "the feed-forward does not fit the transformer",
            where=where,
            expected=f"d_model={d_model}",
            found=f"{type(module).__name__} with d_model={module.d_model}",
        )
    return module


def build_norm(
    kind: str,
    d_model: int,
    eps: float,
    bias: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> LayerNorm | RmsNorm:
    """Build a norm of a transformer by name."""
    if kind == "layer":
        return LayerNorm(d_model, eps, bias=bias, device=device, dtype=dtype)
    if kind == "rms":
        return RmsNorm(d_model, eps, device=device, dtype=dtype)
    raise UnsupportedError("a transformer has no such norm", expected="'layer' or 'rms'", found=repr(kind))


def arguments_of(
    layer: torch.nn.TransformerEncoderLayer | torch.nn.TransformerDecoderLayer,
) -> dict[str, Any]:
    """Return the arguments of a layer equal to torch's."""
    return {
        "d_model": layer.self_attn.embed_dim,
        "num_heads": layer.self_attn.num_heads,
        "d_ff": layer.linear1.out_features,
        "dropout": layer.dropout.p,
        "activation": _activation_from_torch(layer.activation),
        "norm_first": layer.norm_first,
        "layer_norm_eps": layer.norm1.eps,
        "bias": layer.linear1.bias is not None,
    }


def _activation_from_torch(activation: Any) -> str | torch.nn.Module:
    if isinstance(activation, torch.nn.Module):
        return copy.deepcopy(activation)
    # Where the function's name is burnt's name for it, the activation has torch's defaults.
    name = getattr(activation, "__name__", "")
    if name in get_args(ActivationName) and activation in (
        getattr(F, name, None),
        getattr(torch, name, None),
    ):
        return name
    raise UnsupportedError(
        "a transformer has no such activation",
        expected="a function of torch with one argument, such as torch.nn.functional.gelu, or a module",
        found=repr(activation),
        hint="a function as a module: class Activation(torch.nn.Module)",
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

    Other arguments, and errors, are as in a layer; a module as `activation` or `rotary` is shared by all.

    Shapes:
        input ``[B, L, d_model]`` or ``[L, d_model]``, output the same.

    Parameters and their names are as in :class:`torch.nn.TransformerEncoder`, whose state loads unchanged.
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
            attn_mask: mask of the scores, as in `MultiHeadAttention.forward`.
            key_padding_mask: ``[B, L]``, hides keys, as in `MultiHeadAttention.forward`.
            is_causal: position i sees only positions 0 to i.
            cache: what `new_cache` made, with earlier positions. The input then comes after these and sees
                them, and `is_causal` holds; masks count the earlier positions, too.

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

    Other arguments, and errors, are as in a layer and in a `TransformerEncoder`.

    Shapes:
        input ``[B, L, d_model]``, memory ``[B, S, memory_dim]``, or both without B; output as the input.

    Parameters and their names are as in :class:`torch.nn.TransformerDecoder`, whose state loads unchanged;
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
            attn_mask: mask of the self-attention's scores, as in `MultiHeadAttention.forward`.
            key_padding_mask: ``[B, L]``, hides keys from the self-attention.
            is_causal: position i sees only positions 0 to i.
            memory_mask: an `attn_mask` ``[L, S]`` of the attention to the memory.
            memory_key_padding_mask: ``[B, S]``, hides keys from the attention to the memory.
            cache: what `new_cache` made, with earlier positions. The input then comes after these and sees
                them, and `is_causal` holds; masks count the earlier positions, too.

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

    Other arguments, and errors, are as in a `TransformerEncoder` (torch's ``nhead`` is `num_heads`).

    Shapes:
        source ``[B, S, d_model]``, target ``[B, L, d_model]``, or both without B; output as the target.

    Parameters and their names are as in :class:`torch.nn.Transformer`, whose state loads unchanged;
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
            is_causal: position i of the target sees only its positions 0 to i.
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
