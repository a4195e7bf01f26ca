"""Multi-head attention: of a sequence to itself or another one, and of a sequence to a context; masks.

Axes: B batch, L queries, S keys and values, H heads of the queries, K heads of keys and values, D size of a
head, E embed_dim.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from burnt import kernels
from burnt.config import Config
from burnt.errors import BurntError, InputTypeError, InputValueError, ShapeError, UnsupportedError
from burnt.module import Module
from burnt.nn.cache import KeyValueCache
from burnt.nn.checks import check_dtype
from burnt.nn.dropout import check_probability
from burnt.nn.linear import Linear
from burnt.nn.position import RotaryEncoding


def causal_mask(length: int, offset: int = 0, *, device: torch.device | str | None = None) -> Tensor:
    """Return a mask that hides later positions: an `attn_mask` of the attention layers.

    The layers' `is_causal=True` does the same without a mask in memory; this one is for combinations.

    Args:
        length: number L of queries.
        offset: number of keys before the first query, as in a `KeyValueCache`.
        device: where the mask lives.

    Returns:
        ``[L, offset + L]``, boolean: True where the key is later than the query.

    (Burn's ``generate_autoregressive_mask``; torch's ``generate_square_subsequent_mask`` has minus infinity
    for True.)

    >>> causal_mask(2, offset=1)
    tensor([[False, False,  True],
            [False, False, False]])
    """
    return torch.ones(length, offset + length, dtype=torch.bool, device=device).triu(1 + offset)


def length_mask(lengths: Tensor, steps: int) -> Tensor:
    """Return a mask that hides what is beyond the end of each sequence: a `key_padding_mask`.

    Args:
        lengths: ``[B]``, integers: the steps of each sequence, as the recurrent layers take them.
        steps: number S of steps of the padded batch.

    Returns:
        ``[B, S]``, boolean: True from the end of the sequence on.

    Raises:
        InputValueError: `lengths` are not one axis of integers.

    >>> length_mask(torch.tensor([2, 1]), steps=3)
    tensor([[False, False,  True],
            [False,  True,  True]])
    """
    if lengths.dim() != 1 or lengths.is_floating_point():
        raise InputValueError(
            "a mask is made of a length for each sequence",
            where="length_mask",
            expected="[batch], integers",
            found=f"{tuple(lengths.shape)}, {str(lengths.dtype).removeprefix('torch.')}",
            hint="padding_mask(tokens, pad_token) makes one of tokens" if lengths.dim() == 2 else None,
        )
    return torch.arange(steps, device=lengths.device) >= lengths.unsqueeze(1)


def padding_mask(tokens: Tensor, pad_token: int) -> Tensor:
    """Return a mask that hides padding: a `key_padding_mask` of the attention layers.

    Args:
        tokens: ``[B, S]``, integers.
        pad_token: the token that fills short sequences, at either end.

    Returns:
        ``[B, S]``, boolean: True where there is padding.

    Raises:
        InputValueError: `tokens` have not two axes.

    (Burn's ``generate_padding_mask`` fills sequences of different lengths, too: here
    `torch.nn.utils.rnn.pad_sequence`.)

    >>> padding_mask(torch.tensor([[5, 6, 0], [7, 0, 0]]), pad_token=0)
    tensor([[False, False,  True],
            [False,  True,  True]])
    """
    if tokens.dim() != 2:
        raise InputValueError(
            "a mask is made of the tokens of a batch",
            where="padding_mask",
            expected="[batch, steps]",
            found=tuple(tokens.shape),
            hint="of lengths: length_mask(lengths, steps); of one sequence: padding_mask(tokens[None], 0)[0]"
            if tokens.dim() == 1
            else None,
        )
    return tokens == pad_token


class _Attention(Module):
    """Base of both layers: projections, heads, masks, and the attention itself."""

    _KEY: ClassVar[str]
    """What messages call the keys."""

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dropout: float
    kdim: int
    vdim: int
    quiet_softmax: bool
    scale: float | None
    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    out_proj: Linear

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        out_bias: bool | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        quiet_softmax: bool = False,
        scale: float | None = None,
        rotary: RotaryEncoding.Config | torch.nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_probability(type(self).__name__, dropout)
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self._check_sizes(head_dim)
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.dropout = dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.quiet_softmax = quiet_softmax
        self.scale = scale

        def parameter(*shape: int) -> Parameter:
            return Parameter(torch.empty(shape, device=device, dtype=dtype))

        q_size, kv_size, _ = self._sizes()
        packed = self.kdim == self.vdim == embed_dim
        for name, tensor in (
            ("in_proj_weight", parameter(q_size + 2 * kv_size, embed_dim) if packed else None),
            ("q_proj_weight", None if packed else parameter(q_size, embed_dim)),
            ("k_proj_weight", None if packed else parameter(kv_size, self.kdim)),
            ("v_proj_weight", None if packed else parameter(kv_size, self.vdim)),
            ("in_proj_bias", parameter(q_size + 2 * kv_size) if bias else None),
        ):
            self.register_parameter(name, tensor)
        self.out_proj = Linear(q_size, embed_dim, bias if out_bias is None else out_bias, device, dtype)
        self.reset_parameters()
        self.rotary = self._build_rotary(rotary, device)

    def _build_rotary(
        self, rotary: RotaryEncoding.Config | torch.nn.Module | None, device: torch.device | str | None
    ) -> torch.nn.Module | None:
        if rotary is not None and not isinstance(rotary, Config | torch.nn.Module):
            raise InputTypeError(
                "this is not a rotary encoding",
                where=self._name(),
                expected="a RotaryEncoding, its Config, another module, or None",
                found=repr(rotary),
                hint=f"rotary=nn.RotaryEncoding.Config(head_dim={self.head_dim})",
            )
        built: torch.nn.Module | None = rotary.init(device) if isinstance(rotary, Config) else rotary
        if isinstance(built, RotaryEncoding) and built.head_dim != self.head_dim:
            raise ShapeError(
                "the rotary encoding does not fit the heads",
                where=self._name(),
                expected=f"head_dim={self.head_dim}, the size of a head",
                found=f"head_dim={built.head_dim}",
            )
        return built

    def reset_parameters(self) -> None:
        """Reinitialise the input projections (Xavier uniform), and set the biases to zero."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                torch.nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                torch.nn.init.zeros_(bias)

    @classmethod
    def _copy_of(cls, attention: torch.nn.MultiheadAttention, **sizes: Any) -> Self:
        """Build a copy of torch's layer, with the arguments `sizes` for keys and values."""
        if attention.bias_k is not None:
            raise UnsupportedError(
                "an attention has no learned extra key",
                found="a torch.nn.MultiheadAttention with add_bias_kv",
                hint="a new layer with quiet_softmax=True can attend to nothing, too",
            )
        weight = attention.out_proj.weight
        options: dict[str, Any] = {
            "dropout": attention.dropout,
            "bias": attention.in_proj_bias is not None,
            "quiet_softmax": attention.add_zero_attn,
            "device": weight.device,
            "dtype": weight.dtype,
        }
        copy = cls(attention.embed_dim, attention.num_heads, **sizes, **options)
        copy.load_state_dict(attention.state_dict())
        return copy.train(attention.training)

    def _sizes(self) -> list[int]:
        """Return the sizes of all heads together, of queries, keys and values."""
        kv_size = self.num_kv_heads * self.head_dim
        return [self.num_heads * self.head_dim, kv_size, kv_size]

    def _attend(
        self,
        q_BHLD: Tensor,
        k_BKSD: Tensor,
        v_BKSD: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        *,
        is_batched: bool,
        need_weights: bool,
        causal: bool = False,
        bottom_right: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the output ``[B, L, E]``, and the weights; with `bottom_right` the last query is at the last
        key."""
        keys = k_BKSD
        mask = self._mask(q_BHLD, keys, attn_mask, key_padding_mask)
        if mask is not None and mask.dtype == torch.bool:
            mask = ~mask
        after = 0
        if self.quiet_softmax:
            # A key of zeros, which all see, has a score of zero; its value adds nothing.
            k_BKSD, v_BKSD = F.pad(k_BKSD, (0, 0, 1, 0)), F.pad(v_BKSD, (0, 0, 1, 0))
            if mask is not None:
                mask = F.pad(mask, (1, 0), value=mask.dtype == torch.bool)
            after = 0 if bottom_right else 1
        heads_BHLD = kernels.attention(
            q_BHLD,
            k_BKSD,
            v_BKSD,
            mask,
            window=(None, after) if causal else None,
            bottom_right=bottom_right,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        output: Tensor = self.out_proj(heads_BHLD.transpose(1, 2).flatten(2))
        output = output if is_batched else output[0]
        if not need_weights:
            return output
        places = {"causal": causal, "bottom_right": bottom_right}
        weights = self._weights(q_BHLD, keys, attn_mask, key_padding_mask, **places)
        return output, weights if is_batched else weights[0]

    def _weights(
        self,
        q_BHLD: Tensor,
        k_BKSD: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        *,
        causal: bool = False,
        bottom_right: bool = False,
    ) -> Tensor:
        """Return the weights of `_attend` before dropout, ``[B, H, L, S]``."""
        mask = self._mask(q_BHLD, k_BKSD, attn_mask, key_padding_mask)
        k_BHSD = k_BKSD.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        # Products that are not yet scaled may overflow float16.
        scores_BHLS = (q_BHLD * scale) @ k_BHSD.transpose(-2, -1)
        if mask is not None:
            scores_BHLS = (
                scores_BHLS.masked_fill(mask, float("-inf"))
                if mask.dtype == torch.bool
                else scores_BHLS + mask
            )
        if causal:
            queries, keys = scores_BHLS.shape[-2:]
            first = 1 + keys - queries if bottom_right else 1
            later = torch.ones(queries, keys, dtype=torch.bool, device=q_BHLD.device).triu(first)
            scores_BHLS = scores_BHLS.masked_fill(later, float("-inf"))
        if self.quiet_softmax:
            with_nothing: Tensor = F.pad(scores_BHLS, (1, 0)).softmax(-1)
            return with_nothing[..., 1:]
        # A softmax over no keys is NaN, as is its gradient; here the result is zero.
        nothing = (scores_BHLS == float("-inf")).all(-1, keepdim=True)
        weights: Tensor = scores_BHLS.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
        return weights

    def _project(self, *inputs: Tensor) -> list[Tensor]:
        """Project query, key and value, or only the first, and split into heads: BHLD, BKSD, BKSD."""
        weight = self.in_proj_weight  # each weight is read once: next to an adapter, it is then computed
        if weight is not None and len(inputs) == 3 and inputs[0] is inputs[1] is inputs[2]:
            packed = F.linear(inputs[0], weight, self.in_proj_bias)
            return [self._heads(x) for x in torch.split_with_sizes(packed, self._sizes(), dim=-1)]
        weights: tuple[Any, ...]
        if weight is None:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")[: len(inputs)]
            weights = tuple(getattr(self, name) for name in names)
        else:
            weights = torch.split_with_sizes(weight, self._sizes())
        biases: tuple[Tensor | None, ...] = (None, None, None)
        if self.in_proj_bias is not None:
            biases = torch.split_with_sizes(self.in_proj_bias, self._sizes())
        return [self._heads(F.linear(x, w, b)) for x, w, b in zip(inputs, weights, biases, strict=False)]

    def _heads(self, x: Tensor) -> Tensor:
        x = x if x.dim() == 3 else x.unsqueeze(0)
        return x.reshape(*x.shape[:2], x.shape[2] // self.head_dim, self.head_dim).transpose(1, 2)

    def _check_inputs(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> None:
        batch = query.shape[:-2]
        # Any stored parameter's: next to an adapter, reading an input projection computes it.
        dtype = next(self.parameters()).dtype
        self._check_input("query", query, dtype, batch, "L", self.embed_dim)
        if key is not None:
            self._check_input(self._KEY, key, dtype, batch, "S", self.kdim)
            if value is not None:
                self._check_input("value", value, dtype, batch, key.shape[-2], self.vdim)

    def _check_input(
        self, name: str, x: Tensor, dtype: torch.dtype, batch: torch.Size, length: int | str, size: int
    ) -> None:
        """Check that `x` is ``[*batch, length, size]``; a length that is a letter may be any."""
        if x.dtype != dtype:
            check_dtype(self._name(), name, x, dtype)
        shape = x.shape
        fits = len(shape) in (2, 3) and shape[:-2] == batch and shape[-1] == size
        if fits and (isinstance(length, str) or shape[-2] == length):
            return
        raise ShapeError(
            f"the {name} does not fit an attention",
            where=self._name(),
            expected=f"({', '.join(str(n) for n in (*batch, length, size))})"
            if len(shape) in (2, 3)
            else f"[batch, length, {size}] or [length, {size}]",
            found=tuple(shape),
        )

    def _mask(
        self, q_BHLD: Tensor, k_BKSD: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        """Combine all masks to one that broadcasts to BHLS: boolean (True hides), or added to the scores."""
        for name, given in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
            if given is not None and not isinstance(given, Tensor):
                raise InputTypeError(
                    f"{name} must be a tensor",
                    where=self._name(),
                    expected="a tensor, or None",
                    found=type(given).__name__,
                    hint=f"{name}=torch.tensor({name}), True where a key is hidden",
                )
        masks: list[Tensor] = []
        batch, length, keys = q_BHLD.shape[0], q_BHLD.shape[2], k_BKSD.shape[2]
        if attn_mask is not None:
            masks.append(self._attn_mask(attn_mask, batch, length, keys))
        if key_padding_mask is not None:
            mask = key_padding_mask if key_padding_mask.dim() == 2 else key_padding_mask.unsqueeze(0)
            if tuple(mask.shape) != (batch, keys):
                raise ShapeError(
                    "key_padding_mask does not fit the keys",
                    where=self._name(),
                    expected=f"{(batch, keys)}, a value for each key",
                    found=tuple(key_padding_mask.shape),
                )
            masks.append(mask[:, None, None, :])
        for mask in masks:
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise BurntError(
                    "a mask must be boolean or floating",
                    where=self._name(),
                    expected="booleans, True where a key is hidden, or floats that are added to the scores",
                    found=mask.dtype,
                    hint="mask == 0 hides the keys that an integer mask marks with 0",
                )
        if not masks:
            return None
        if all(mask.dtype == torch.bool for mask in masks):
            hidden = masks[0]
            for mask in masks[1:]:
                hidden = hidden | mask
            return hidden
        total = torch.zeros((), dtype=q_BHLD.dtype, device=q_BHLD.device)
        for mask in masks:
            if mask.dtype == torch.bool:
                total = torch.where(mask, float("-inf"), total)
            else:
                total = total + mask.to(total.dtype)
        return total

    def _check_cache(self, cache: KeyValueCache | None) -> None:
        if cache is not None and not isinstance(cache, KeyValueCache):
            raise InputTypeError(
                "an attention layer cannot use this as a cache",
                where=self._name(),
                expected="a KeyValueCache, or None",
                found=type(cache).__name__,
                hint="cache = burnt.nn.KeyValueCache(), before the first step",
            )

    def _attn_mask(self, mask: Tensor, batch: int, length: int, keys: int) -> Tensor:
        shape = tuple(mask.shape)
        if shape == (length, keys):
            return mask[None, None]
        if shape == (batch * self.num_heads, length, keys):
            return mask.reshape(batch, self.num_heads, length, keys)
        if shape == (batch, length, keys):
            return mask[:, None]
        if (
            len(shape) == 4
            and shape[0] in (1, batch)
            and shape[1] in (1, self.num_heads)
            and shape[2:] == (length, keys)
        ):
            return mask
        raise ShapeError(
            "attn_mask does not fit queries and keys",
            where=self._name(),
            expected=f"{(length, keys)}, {(batch, length, keys)}, {(batch * self.num_heads, length, keys)} "
            f"or {(batch, self.num_heads, length, keys)}",
            found=shape,
            hint="a mask of only keys is a key_padding_mask" if shape == (batch, keys) else None,
        )

    def _name(self) -> str:
        return f"{type(self).__name__}({self.embed_dim}, num_heads={self.num_heads})"

    def _check_sizes(self, head_dim: int | None) -> None:
        if self.num_heads < 1 or (head_dim is None and self.embed_dim % self.num_heads):
            raise ShapeError(
                "embed_dim cannot be split into heads",
                where=type(self).__name__,
                expected="embed_dim, a multiple of num_heads",
                found=f"embed_dim={self.embed_dim}, num_heads={self.num_heads}",
                hint=_divisors_hint("num_heads", self.embed_dim),
            )
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ShapeError(
                "heads of the queries cannot share heads of the keys evenly",
                where=type(self).__name__,
                expected="num_heads, a multiple of num_kv_heads",
                found=f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}",
                hint=_divisors_hint("num_kv_heads", self.num_heads),
            )


class MultiHeadAttention(_Attention, init=False):
    r"""Every query takes a weighted mean of values, in several subspaces at once.

    .. math:: \mathrm{head}_h = \mathrm{softmax}(Q_h K_h^\top / \sqrt{D} + M) V_h, \quad
              y = \mathrm{concat}(\mathrm{head}_h) W_O^\top + b_O

    Args:
        embed_dim: size E of queries and outputs; a multiple of `num_heads`, unless `head_dim` is given.
        num_heads: number H of heads.
        num_kv_heads: number K of heads of keys and values, each shared by H / K heads of the queries (grouped
            queries); None is `num_heads`.
        head_dim: size D of a head; None is ``embed_dim / num_heads``.
        dropout: probability of dropping an attention weight while training.
        bias: whether the projections have biases.
        out_bias: whether the output projection has one; None is `bias`.
        kdim: size of the keys' vectors; None is `embed_dim`.
        vdim: size of the values' vectors; None is `embed_dim`.
        quiet_softmax: add 1 to the denominator of the softmax, so that a head can attend to nothing (torch's
            ``add_zero_attn``).
        scale: factor of the scores; None is ``1 / sqrt(head_dim)``.
        rotary: encodes the positions of queries and keys: a `RotaryEncoding`, its Config, or any module that
            is called with ``[B, H, L, D]`` and the position of the first vector.

    Shapes:
        query ``[B, L, E]``, key ``[B, S, kdim]``, value ``[B, S, vdim]``, or all without B; output
        ``[B, L, E]``. With ``kdim == vdim == E`` there is one ``in_proj_weight`` ``[(H + 2 K) D, E]``, rows
        of query, key and value in this order, else ``q_proj_weight``, ``k_proj_weight``, ``v_proj_weight``;
        ``in_proj_bias`` is ``[(H + 2 K) D]``, ``out_proj`` a Linear.

    Raises:
        ShapeError: `embed_dim` is not a multiple of `num_heads`, or `num_heads` none of `num_kv_heads`;
            `rotary` is for heads of another size.
        InputValueError: `dropout` is not a probability.

    A query whose keys are all masked gets a mean of nothing, zeros, and so ``out_proj.bias`` (torch's layer
    gives NaN or zeros, by code path; Burn a mean of all values).

    With K = H the parameters, their names and initial values are as in
    :class:`torch.nn.MultiheadAttention`, whose state loads unchanged; `from_torch` takes the whole layer. The
    batch always comes first, and weights are returned only on request, for each head. (Burn's
    MultiHeadAttention has four Linears and a dropout of 0.1.) Vaswani et al., 2017; Ainslie et al., 2023;
    Miller, 2023 (quiet softmax).

    >>> MultiHeadAttention(8, num_heads=4, num_kv_heads=2)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    _KEY = "key"

    rotary: torch.nn.Module | None

    @classmethod
    def from_torch(cls, attention: torch.nn.MultiheadAttention) -> Self:
        """Build a copy of torch's layer; its input has the batch axis first.

        Raises:
            UnsupportedError: the layer has `add_bias_kv`, a learned key which all queries see.
        """
        return cls._copy_of(attention, kdim=attention.kdim, vdim=attention.vdim)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
        offset: int | Tensor | tuple[Tensor, Tensor] | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend.

        Args:
            query: ``[B, L, E]``.
            key: ``[B, S, kdim]``; None is `query`.
            value: ``[B, S, vdim]``; None is `key`.
            attn_mask: ``[L, S]``, ``[B, L, S]``, ``[B * H, L, S]`` (as in torch's layer) or ``[B, H, L, S]``
                with 1 for B or H allowed. Boolean: True hides the key from the query (as in torch's layer and
                Burn, not as in `scaled_dot_product_attention`). Floating: added to the scores.
            key_padding_mask: ``[B, S]``. Boolean: True hides the key from all queries. Floating: added.
            is_causal: query i sees keys 0 to i; masks come on top.
            cache: the keys and values of earlier tokens, to which the new ones are added. The queries come
                after all keys in the cache, and see these and the new keys up to themselves, whatever
                `is_causal` says. S of the masks counts the keys in the cache, too.
            offset: what `rotary` is called with, such as its ``cos_sin(L, cache.length)``, computed once for
                several layers; None is the length of the cache, 0 without one.
            need_weights: whether to return the attention weights, too.

        Returns:
            ``[B, L, E]``; with `need_weights` also the weights before dropout, ``[B, H, L, S]``, which are
            held in memory only for this.

        Raises:
            ShapeError: an input or a mask of the wrong shape, or a cache that does not fit.
            BurntError: a mask that is neither boolean nor floating, or of the wrong type, as a cache may be.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check_cache(cache)
        self._check_inputs(query, key, value)
        if cache is not None and key.shape[-2] != query.shape[-2]:
            raise ShapeError(
                "a cache is for a sequence that attends to itself",
                where=self._name(),
                expected=f"a key for each of the {query.shape[-2]} queries",
                found=f"{key.shape[-2]} keys",
                hint="CrossAttention caches the keys of a context",
            )
        q_BHLD, k_BKSD, v_BKSD = self._project(query, key, value)
        if self.rotary is not None:
            if offset is None:
                offset = 0 if cache is None else cache.length
            q_BHLD, k_BKSD = self.rotary(q_BHLD, offset), self.rotary(k_BKSD, offset)
        if cache is not None:
            k_BKSD, v_BKSD = cache.append(k_BKSD, v_BKSD)
            is_causal = query.shape[-2] > 1  # a single query is the last and sees all
        return self._attend(
            q_BHLD,
            k_BKSD,
            v_BKSD,
            attn_mask,
            key_padding_mask,
            is_batched=query.dim() == 3,
            need_weights=need_weights,
            causal=is_causal,
            bottom_right=cache is not None,
        )

    def attention_weights(
        self,
        query: Tensor,
        key: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the attention weights of `forward`, before dropout: ``[B, H, L, S]``.

        Takes what `forward` takes, and computes no output.
        """
        key = query if key is None else key
        self._check_inputs(query, key, None)
        q_BHLD, k_BKSD = self._project(query, key)
        if self.rotary is not None:
            q_BHLD, k_BKSD = self.rotary(q_BHLD, 0), self.rotary(k_BKSD, 0)
        weights = self._weights(q_BHLD, k_BKSD, attn_mask, key_padding_mask, causal=is_causal)
        return weights if query.dim() == 3 else weights[0]


class CrossAttention(_Attention):
    r"""Every query takes a weighted mean of the values of a context: another sequence, or an image's patches.

    A `MultiHeadAttention` whose keys and values both come from one context, which may be cached.

    Args:
        context_dim: size C of the context's vectors (Burn's ``d_context``); None is `embed_dim`.

    Other arguments are as in `MultiHeadAttention` (Burn's ``d_model`` is `embed_dim`, its ``d_head``
    `head_dim`).

    Shapes:
        query ``[B, L, E]``, context ``[B, S, C]``, or both without B; output ``[B, L, E]``. The parameters
        are as in a `MultiHeadAttention` with ``kdim = vdim = C``.

    Raises:
        ShapeError: `embed_dim` is not a multiple of `num_heads`, or `num_heads` none of `num_kv_heads`.
        InputValueError: `dropout` is not a probability.

    Vaswani et al., 2017; torch has only the general layer.

    >>> CrossAttention(8, num_heads=2, context_dim=6)(torch.zeros(2, 5, 8), torch.zeros(2, 9, 6)).shape
    torch.Size([2, 5, 8])
    """

    _KEY = "context"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        context_dim: int | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        out_bias: bool | None = None,
        quiet_softmax: bool = False,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        size = embed_dim if context_dim is None else context_dim
        super().__init__(
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dropout=dropout,
            bias=bias,
            out_bias=out_bias,
            kdim=size,
            vdim=size,
            quiet_softmax=quiet_softmax,
            scale=scale,
            device=device,
            dtype=dtype,
        )

    @property
    def context_dim(self) -> int:
        """The size C of the context's vectors."""
        return self.kdim

    @classmethod
    def from_torch(cls, attention: torch.nn.MultiheadAttention) -> Self:
        """Build a copy of torch's layer; its inputs have the batch axis first.

        Raises:
            UnsupportedError: keys and values have different sizes, or the layer has `add_bias_kv`.
        """
        if attention.kdim != attention.vdim:
            raise UnsupportedError(
                "a CrossAttention takes keys and values from one context",
                expected="kdim equal to vdim",
                found=f"kdim={attention.kdim}, vdim={attention.vdim}",
                hint="MultiHeadAttention.from_torch",
            )
        return cls._copy_of(attention, context_dim=attention.kdim)

    def forward(
        self,
        query: Tensor,
        context: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend to a context.

        Args:
            query: ``[B, L, E]``.
            context: ``[B, S, C]``; may be None with a cache that is filled.
            attn_mask: added to the scores, or True at keys to hide, as in `MultiHeadAttention.forward`.
            key_padding_mask: ``[B, S]``, as in `MultiHeadAttention.forward`.
            cache: filled with the context's keys and values at the first call; later calls take them from it
                and ignore `context`, until ``cache.reset()``.
            need_weights: whether to return the attention weights, too.

        Returns:
            ``[B, L, E]``; with `need_weights` also the weights before dropout, ``[B, H, L, S]``.

        Raises:
            ShapeError: an input or a mask of the wrong shape.
            BurntError: no context, or a mask or cache as for `MultiHeadAttention.forward`.
        """
        self._check_cache(cache)
        if cache is not None and cache.key is not None and cache.value is not None:
            self._check_inputs(query, None, None)
            (q_BHLD,), k_BKSD, v_BKSD = self._project(query), cache.key, cache.value
            if q_BHLD.shape[0] != k_BKSD.shape[0]:
                raise ShapeError(
                    "the query does not fit the context in the cache",
                    where=self._name(),
                    expected=f"({k_BKSD.shape[0]}, L, {self.embed_dim})",
                    found=tuple(query.shape),
                    hint="cache.reset() before another context, cache.reorder(index) for another batch of it",
                )
        elif context is not None:
            self._check_inputs(query, context, None)
            q_BHLD, k_BKSD, v_BKSD = self._project(query, context, context)
            if cache is not None:
                cache.append(k_BKSD, v_BKSD)
        else:
            raise BurntError(
                "there is nothing to attend to",
                where=self._name(),
                expected="a context, or a cache that an earlier call has filled",
                found="no cache" if cache is None else "an empty cache",
            )
        masks, is_batched = (attn_mask, key_padding_mask), query.dim() == 3
        return self._attend(q_BHLD, k_BKSD, v_BKSD, *masks, is_batched=is_batched, need_weights=need_weights)


def _divisors_hint(name: str, size: int) -> str:
    return f"{name} may be " + ", ".join(str(n) for n in range(1, min(size, 128) + 1) if size % n == 0)
