"""Functions of attention, rotary embedding and key-value caches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.nn.feed_forward import gated


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return ``[B, T, H * D]`` as ``[B, H, T, D]``."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Return ``[B, H, T, D]`` as ``[B, T, H * D]``."""
    return x.transpose(1, 2).flatten(2)


def _repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], 1)


def _bias(
    query: Tensor,
    length: int,
    mask: Tensor | None,
    offset: Tensor | int,
    lengths: Tensor | None,
    is_causal: bool,
    window: tuple[int, int],
) -> Tensor | None:
    """Return what is added to scores: 0 or -inf, and the mask; None if nothing is."""
    bias: Tensor | None = None
    if mask is not None:
        missing = length - mask.shape[-1]
        if missing > 0:
            mask = F.pad(mask, (0, missing), value=False if mask.dtype == torch.bool else -math.inf)
        bias = _additive(mask, query) if mask.dtype == torch.bool else mask
    if is_causal or max(window) >= 0:
        place = torch.arange(query.shape[2], device=query.device)[:, None]
        shift = offset.reshape(-1, 1, 1, 1) if isinstance(offset, Tensor) else offset
        behind = place + shift - torch.arange(length, device=query.device)
        allowed = torch.ones_like(behind, dtype=torch.bool)
        if is_causal:
            allowed = behind >= 0
        if window[0] >= 0:
            allowed = allowed & (behind <= window[0])
        if window[1] >= 0:
            allowed = allowed & (-behind <= window[1])
        bias = _additive(allowed, query) if bias is None else bias + _additive(allowed, query)
    if lengths is not None:
        valid = torch.arange(length, device=query.device) < lengths.reshape(-1, 1, 1, 1)
        bias = _additive(valid, query) if bias is None else bias + _additive(valid, query)
    return bias


def _root_of_scale(query: Tensor, scale: float | None) -> Tensor:
    root = math.sqrt(query.shape[-1] ** -0.5 if scale is None else scale)
    return torch.tensor(root, dtype=query.dtype, device=query.device)


def _additive(allowed: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(allowed.shape, dtype=like.dtype, device=like.device).masked_fill(~allowed, -math.inf)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **options: Any
) -> Tensor:
    """`attention_details` without the other outputs."""
    return attention_details(query, key, value, mask, **options)[0]


def attention_details(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    num_heads: int | None = None,
    kv_num_heads: int | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    softcap: float = 0.0,
    window: tuple[int, int] = (-1, -1),
    scores: int | None = None,
    softmax_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Attention with ONNX's options.

    `query` is ``[B, H, T, D]``, or ``[B, T, H * D]`` with `num_heads`; `key` and `value` ``[B, K, S, D]``, or
    ``[B, S, K * D]`` with `kv_num_heads`, where K divides H. `mask` is boolean (True may be attended) or
    added to the scores, and broadcast to ``[B, H, T, S]``. `past_key` and `past_value` ``[B, K, P, D]`` come
    before the keys and values, `lengths` ``[B]`` says how many keys are valid. The `scale` None is 1 /
    sqrt(D), the `window` how many keys may be seen to the left and right, -1 for all. With `is_causal` no
    query sees later keys.

    Returns the result in the query's layout, all keys, all values, and scores: those after 0 the matmul, 1
    the `softcap`, 2 the mask, 3 softmax, or None. A query that may see no key gives zeros.
    """
    is_flat = query.dim() == 3
    if is_flat:
        assert num_heads is not None
        assert kv_num_heads is not None
        query = split_heads(query, num_heads)
        key, value = split_heads(key, kv_num_heads), split_heads(value, kv_num_heads)
    if past_key is not None and past_value is not None:
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    offset: Tensor | int = 0 if past_key is None else past_key.shape[2]
    if past_key is None and lengths is not None:
        offset = lengths - query.shape[2]
    bias = _bias(query, key.shape[2], mask, offset, lengths, is_causal, window)
    keys, values = _repeat_heads(key, query.shape[1]), _repeat_heads(value, query.shape[1])
    factor = _root_of_scale(query, scale)
    product = torch.matmul(query * factor, keys.transpose(-1, -2) * factor)
    stages = {0: product}
    if softcap > 0:
        product = torch.tanh(product / softcap) * softcap
    stages[1] = product
    product = product if bias is None else product + bias
    stages[2] = product
    wide = product if softmax_dtype is None else product.to(softmax_dtype)
    weights = torch.softmax(wide, -1)
    if bias is not None:
        weights = weights.masked_fill((bias == -math.inf).all(-1, keepdim=True), 0)
    weights = weights.to(query.dtype)
    stages[3] = weights
    result = torch.matmul(weights, values)
    shown = None if scores is None else stages[scores]
    return (merge_heads(result) if is_flat else result), key, value, shown


def rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
    rotary_dim: int = 0,
    num_heads: int = 0,
) -> Tensor:
    """Rotate pairs of features by their positions' angles. Su and others, 2021.

    `x` is ``[B, H, T, D]``, or ``[B, T, H * D]`` with `num_heads`. `cos` and `sin` are ``[positions, R / 2]``
    with `positions` ``[B, T]``, else ``[B, T, R / 2]``. Interleaved pairs are neighbours, others R / 2 apart;
    the first R = `rotary_dim` features are rotated, 0 is all.
    """
    heads = split_heads(x, num_heads) if x.dim() == 3 else x
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    size = rotary_dim or heads.shape[-1]
    rotated, rest = heads[..., :size], heads[..., size:]
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        rotated = torch.stack([cos * a - sin * b, sin * a + cos * b], -1).flatten(-2)
    else:
        a, b = rotated.chunk(2, -1)
        rotated = torch.cat([cos * a - sin * b, sin * a + cos * b], -1)
    result = torch.cat([rotated, rest], -1)
    return merge_heads(result) if x.dim() == 3 else result


def tensor_scatter(
    cache: Tensor, update: Tensor, starts: Tensor | None = None, axis: int = -2, circular: bool = False
) -> Tensor:
    """Return a copy of a cache ``[B, ...]`` with `update` written along an axis from given starts."""
    axis %= cache.dim()
    step = torch.arange(update.shape[axis], device=cache.device)
    first = torch.zeros(cache.shape[0], dtype=torch.int64, device=cache.device) if starts is None else starts
    place = first[:, None] + step
    if circular:
        place = place % cache.shape[axis]
    view = [1] * cache.dim()
    view[0], view[axis] = place.shape
    return cache.scatter(axis, place.reshape(view).expand(update.shape), update)


def swiglu(gate: Tensor, up: Tensor, alpha: float = 1.0) -> Tensor:
    """Return ``gate * sigmoid(alpha * gate) * up``; SwiGLU for an `alpha` of 1."""
    if alpha == 1.0:
        return gated(gate, up, "silu") if gate.shape == up.shape else F.silu(gate) * up
    return gate * torch.sigmoid(alpha * gate) * up


def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    """Return ``gelu(gate) * up``; `approximate` is GELU's, none or tanh."""
    if gate.shape != up.shape:
        return F.gelu(gate, approximate=approximate) * up
    return gated(gate, up, "gelu_tanh" if approximate == "tanh" else "gelu")


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Return a rotary position embedding: ``x cos + [-x2, x1] sin``, where x1 and x2 are the halves of x.

    Interleaved, x1 are the even features and x2 the odd ones, each pair side by side, as in GPT-J and Cohere.
    `cos` and `sin` broadcast to `x` ``[..., d]``. Su et al., 2021.

    >>> rotate(torch.tensor([1.0, 2.0]), torch.tensor(0.0), torch.tensor(1.0))
    tensor([-2.,  1.])
    >>> rotate(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(0.0), torch.tensor(1.0), interleaved=True)
    tensor([-2.,  1., -4.,  3.])
    """
    if interleaved:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        first, second = x.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1)
    return x * cos + rotated * sin
