"""Multi-head attention.

Axes: B batch, L queries, S keys and values, H heads of the queries, K heads of keys and values, D size of a
head, E embed_dim.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import BurntError, ShapeError, UnsupportedError
from burnt.module import Module
from burnt.nn.linear import Linear

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(Module):
    r"""Every query takes a weighted mean of values, in several subspaces at once.

    .. math:: \mathrm{head}_h = \mathrm{softmax}(Q_h K_h^\top / \sqrt{D} + M) V_h, \quad
              y = \mathrm{concat}(\mathrm{head}_h) W_O^\top + b_O

    Args:
        embed_dim: size E of queries and outputs; a multiple of `num_heads`.
        num_heads: number H of heads.
        num_kv_heads: number K of heads of keys and values, each shared by H / K heads of the queries (grouped
            queries); None is `num_heads`.
        dropout: probability of dropping an attention weight while training.
        bias: whether the four projections have biases.
        kdim: size of the keys' vectors; None is `embed_dim`.
        vdim: size of the values' vectors; None is `embed_dim`.
        device: where the parameters live.
        dtype: dtype of the parameters.

    Shapes:
        query ``[B, L, E]``, key ``[B, S, kdim]``, value ``[B, S, vdim]``, or all without B; output
        ``[B, L, E]``. With ``kdim == vdim == E`` there is one ``in_proj_weight`` ``[E + 2 K D, E]``, rows of
        query, key and value in this order, else ``q_proj_weight``, ``k_proj_weight``, ``v_proj_weight``;
        ``in_proj_bias`` is ``[E + 2 K D]``, ``out_proj`` a Linear.

    Raises:
        ShapeError: `embed_dim` is no multiple of `num_heads`, or `num_heads` none of `num_kv_heads`.

    A query whose keys are all masked gets a mean of nothing, zeros, and so ``out_proj.bias`` (torch's layer
    gives NaN or zeros, by code path; Burn a mean of all values).

    With K = H the parameters, their names and initial values are those of
    :class:`torch.nn.MultiheadAttention`, whose state loads unchanged; `from_torch` takes the whole layer. The
    batch always comes first, and the weights have a method of their own. (Burn's MultiHeadAttention has four
    Linears and a dropout of 0.1.) Vaswani et al., 2017; Ainslie et al., 2023.

    >>> import torch
    >>> MultiHeadAttention(8, num_heads=4, num_kv_heads=2)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    dropout: float
    kdim: int
    vdim: int
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
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.dropout = dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._check_sizes()

        def parameter(*shape: int) -> Parameter:
            return Parameter(torch.empty(shape, device=device, dtype=dtype))

        kv_size = self.num_kv_heads * self.head_dim
        packed = self.kdim == self.vdim == embed_dim
        for name, tensor in (
            ("in_proj_weight", parameter(embed_dim + 2 * kv_size, embed_dim) if packed else None),
            ("q_proj_weight", None if packed else parameter(embed_dim, embed_dim)),
            ("k_proj_weight", None if packed else parameter(kv_size, self.kdim)),
            ("v_proj_weight", None if packed else parameter(kv_size, self.vdim)),
            ("in_proj_bias", parameter(embed_dim + 2 * kv_size) if bias else None),
        ):
            self.register_parameter(name, tensor)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self.reset_parameters()

    @property
    def head_dim(self) -> int:
        """The size D of a head."""
        return self.embed_dim // self.num_heads

    def reset_parameters(self) -> None:
        """Reinitialise the input projections (Xavier uniform), and set the biases to zero."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                torch.nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
            torch.nn.init.zeros_(self.out_proj.bias)

    @classmethod
    def from_torch(cls, attention: torch.nn.MultiheadAttention) -> Self:
        """Build a copy of torch's layer; its input has the batch axis first.

        Raises:
            UnsupportedError: the layer has `add_bias_kv` or `add_zero_attn`.
        """
        if attention.bias_k is not None or attention.add_zero_attn:
            raise UnsupportedError(
                "MultiHeadAttention has no extra key",
                found="a torch.nn.MultiheadAttention with "
                + ("add_zero_attn" if attention.bias_k is None else "add_bias_kv"),
            )
        weight = attention.out_proj.weight
        copy = cls(
            attention.embed_dim,
            attention.num_heads,
            dropout=attention.dropout,
            bias=attention.in_proj_bias is not None,
            kdim=attention.kdim,
            vdim=attention.vdim,
            device=weight.device,
            dtype=weight.dtype,
        )
        copy.load_state_dict(attention.state_dict())
        return copy.train(attention.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
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

        Returns:
            ``[B, L, E]``.

        Raises:
            ShapeError: an input or a mask of the wrong shape.
            BurntError: a mask that is neither boolean nor floating.
        """
        q_BHLD, k_BKSD, v_BKSD = self._project(query, key, value)
        mask = self._mask(q_BHLD, k_BKSD, attn_mask, key_padding_mask, False)
        heads_BHLD = kernels.attention(
            q_BHLD,
            k_BKSD,
            v_BKSD,
            ~mask if mask is not None and mask.dtype == torch.bool else mask,
            causal=is_causal,
            dropout=self.dropout if self.training else 0.0,
        )
        output: Tensor = self.out_proj(heads_BHLD.transpose(1, 2).flatten(2))
        return output if query.dim() == 3 else output[0]

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

        Takes what `forward` takes. `forward` itself never holds them in memory.
        """
        q_BHLD, k_BKSD, _ = self._project(query, key, None, weights_only=True)
        mask = self._mask(q_BHLD, k_BKSD, attn_mask, key_padding_mask, is_causal)
        k_BHSD = k_BKSD.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        scores_BHLS = q_BHLD @ k_BHSD.transpose(-2, -1) / self.head_dim**0.5
        if mask is not None:
            scores_BHLS = (
                scores_BHLS.masked_fill(mask, float("-inf"))
                if mask.dtype == torch.bool
                else scores_BHLS + mask
            )
        # A softmax over no keys is NaN, as is its gradient; here the result is zero.
        nothing = (scores_BHLS == float("-inf")).all(-1, keepdim=True)
        weights: Tensor = scores_BHLS.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
        return weights if query.dim() == 3 else weights[0]

    def _check_sizes(self) -> None:
        if self.num_heads < 1 or self.embed_dim % self.num_heads:
            raise ShapeError(
                "embed_dim cannot be split into heads",
                where="MultiHeadAttention",
                expected="embed_dim, a multiple of num_heads",
                found=f"embed_dim={self.embed_dim}, num_heads={self.num_heads}",
                hint=_divisors_hint("num_heads", self.embed_dim),
            )
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ShapeError(
                "heads of the queries cannot share heads of the keys evenly",
                where="MultiHeadAttention",
                expected="num_heads, a multiple of num_kv_heads",
                found=f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}",
                hint=_divisors_hint("num_kv_heads", self.num_heads),
            )

    def _project(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, *, weights_only: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project the inputs and split them into heads: BHLD, BKSD, BKSD (no values with `weights_only`)."""
        key = query if key is None else key
        value = key if value is None else value
        self._check_inputs(query, key, value, weights_only)
        kv_size = self.num_kv_heads * self.head_dim
        sizes = [self.embed_dim, kv_size, kv_size]
        if self.in_proj_weight is not None and key is query and value is query:
            packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            q, k, v = torch.split_with_sizes(packed, sizes, dim=-1)
        else:
            if self.in_proj_weight is not None:
                w_q, w_k, w_v = torch.split_with_sizes(self.in_proj_weight, sizes)
            else:
                assert self.q_proj_weight is not None
                assert self.k_proj_weight is not None
                assert self.v_proj_weight is not None
                w_q, w_k, w_v = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
            b_q = b_k = b_v = None
            if self.in_proj_bias is not None:
                b_q, b_k, b_v = torch.split_with_sizes(self.in_proj_bias, sizes)
            q, k = F.linear(query, w_q, b_q), F.linear(key, w_k, b_k)
            v = k if weights_only else F.linear(value, w_v, b_v)
        return (
            self._heads(q, self.num_heads),
            self._heads(k, self.num_kv_heads),
            self._heads(v, self.num_kv_heads),
        )

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        x = x if x.dim() == 3 else x.unsqueeze(0)
        return x.reshape(x.shape[0], x.shape[1], heads, self.head_dim).transpose(1, 2)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor, weights_only: bool) -> None:
        batch = tuple(query.shape[:-2])
        length = key.shape[-2] if key.dim() > 1 else "S"
        wanted: list[tuple[str, Tensor, tuple[object, ...]]] = [
            ("query", query, (*batch, "L", self.embed_dim)),
            ("key", key, (*batch, "S", self.kdim)),
        ]
        if not weights_only:
            wanted.append(("value", value, (*batch, length, self.vdim)))
        for name, tensor, shape in wanted:
            fits = tensor.dim() == len(shape) and all(
                isinstance(want, str) or size == want for size, want in zip(tensor.shape, shape, strict=True)
            )
            if not fits or tensor.dim() not in (2, 3):
                raise ShapeError(
                    f"the {name} does not fit an attention",
                    where=self._name(),
                    expected=f"({', '.join(str(size) for size in shape)})"
                    if tensor.dim() in (2, 3)
                    else f"[batch, length, {shape[-1]}] or [length, {shape[-1]}]",
                    found=tuple(tensor.shape),
                )

    def _mask(
        self,
        q_BHLD: Tensor,
        k_BKSD: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor | None:
        """Combine all masks to one that broadcasts to BHLS: boolean (True hides), or added to the scores."""
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
        if is_causal:
            masks.append(torch.ones(length, keys, dtype=torch.bool, device=q_BHLD.device).triu(1)[None, None])
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
            hint="a mask of keys alone is a key_padding_mask" if shape == (batch, keys) else None,
        )

    def _name(self) -> str:
        return f"MultiHeadAttention({self.embed_dim}, num_heads={self.num_heads})"


def _divisors_hint(name: str, size: int) -> str:
    return f"{name} may be " + ", ".join(str(n) for n in range(1, min(size, 128) + 1) if size % n == 0)
