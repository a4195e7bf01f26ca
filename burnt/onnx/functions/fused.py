"""Functions of ONNX Runtime's fused ops (domain com.microsoft)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.onnx.functions.attention import (
    attention_details,
    merge_heads,
    rotary_embedding,
    split_heads,
    tensor_scatter,
)
from burnt.onnx.functions.math import matmul_integer
from burnt.onnx.functions.normalization import layer_norm, rms_norm
from burnt.onnx.functions.quantization import dynamic_quantize_linear


def quick_gelu(x: Tensor, alpha: float = 1.702) -> Tensor:
    """Return ``x * sigmoid(alpha * x)``."""
    return x * torch.sigmoid(alpha * x)


def skip_layer_norm(
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-12,
) -> tuple[Tensor, Tensor]:
    """Return the layer norm of ``x + skip + bias``, and the sum."""
    total = x + skip if bias is None else x + skip + bias
    return layer_norm(total, scale, shift, -1, eps), total


def skip_rms_norm(
    x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None, eps: float = 1e-12
) -> tuple[Tensor, Tensor]:
    """Return the RMS norm of ``x + skip + bias``, and the sum."""
    total = x + skip if bias is None else x + skip + bias
    return rms_norm(total, scale, -1, eps), total


def embed_layer_norm(
    tokens: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    kinds: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    mask: Tensor | None = None,
    places: Tensor | None = None,
    eps: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the layer norm of the sum of embeddings, the number of tokens that the mask has, and the sum."""
    place = torch.arange(tokens.shape[1], device=tokens.device) if places is None else places
    total = words[tokens] + positions[place]
    if kinds is not None:
        total = total + (kinds[0] if segments is None else kinds[segments])
    lengths = tokens.new_zeros(tokens.shape[0], dtype=torch.int32)
    if mask is not None:
        lengths = mask.sum(-1).to(torch.int32)
    return layer_norm(total, scale, shift, -1, eps), lengths, total


def fused_matmul(
    a: Tensor,
    b: Tensor,
    alpha: float = 1.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
    batch_a: bool = False,
    batch_b: bool = False,
) -> Tensor:
    """Multiply matrices and a number.

    The last two axes of ``[..., M, K]`` or ``[..., K, N]`` are swapped before that with `transpose_a` or
    `transpose_b`; with `batch_a` or `batch_b` the first axis is the rows, before the batch's axes.
    """
    a = a.movedim(0, -2) if batch_a else a
    b = b.movedim(0, -2) if batch_b else b
    a = a.transpose(-1, -2) if transpose_a and a.dim() > 1 else a
    b = b.transpose(-1, -2) if transpose_b and b.dim() > 1 else b
    return alpha * torch.matmul(a, b)


def matmul_nbits(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    groups: Tensor | None = None,
    bias: Tensor | None = None,
    **sizes: int,
) -> Tensor:
    """Multiply ``[..., k]`` by a weight ``[n, k]`` of unsigned integers of 2, 4 or 8 bits, in blocks along k.

    `packed` is uint8, ``[n, blocks, block * bits / 8]``, the first value in the lowest bits; `scales` ``[n,
    blocks]``; `zero_points` packed like values, or in the dtype of scales, None for half the range. `groups`
    ``[k]`` has the block of each input; None where blocks are contiguous.
    """
    weight = nbits_weight(packed, scales, zero_points, groups, **sizes)
    return F.linear(x, weight.to(x.dtype), bias)


def nbits_codes(packed: Tensor, n: int, bits: int) -> Tensor:
    """Return the unsigned values ``[n, columns]`` of packed bytes, in float32."""
    return _unpack(packed.reshape(n, -1), bits)


def nbits_weight(
    packed: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    groups: Tensor | None,
    *,
    k: int,
    n: int,
    bits: int = 4,
    block: int = 32,
) -> Tensor:
    """Return the weight ``[n, k]`` that `matmul_nbits` multiplies by, in the dtype of the scales."""
    blocks = -(-k // block)
    values = nbits_codes(packed, n, bits)[:, :k]
    if groups is None:
        groups = torch.arange(k, device=packed.device) // block
    if zero_points is None:
        zero: Any = float(2 ** (bits - 1))
    else:
        is_packed = zero_points.dtype == torch.uint8
        zeros = nbits_codes(zero_points, n, bits)[:, :blocks] if is_packed else zero_points.reshape(n, blocks)
        zero = zeros[:, groups.long()]
    weight: Tensor = (values - zero) * scales.reshape(n, blocks)[:, groups.long()]
    return weight


def _unpack(packed: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(0, 8, bits, device=packed.device, dtype=torch.uint8)
    values: Tensor = ((packed[..., None] >> shifts) & (2**bits - 1)).flatten(-2)
    return values.float()


def matmul_integer_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Multiply 8-bit matrices, and by their scales; add a bias."""
    product = matmul_integer(a, b, a_zero, b_zero).to(a_scale.dtype) * (a_scale * b_scale)
    return product if bias is None else product + bias


def dynamic_quantize_matmul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Quantize `a` by its own range, and multiply by an 8-bit matrix."""
    values, scale, zero = dynamic_quantize_linear(a)
    return matmul_integer_to_float(values, b, scale, b_scale, zero, b_zero, bias)


def _key_mask(mask: Tensor | None, length: int) -> Tensor | None:
    """Return ONNX Runtime's mask (keys ``[B, S]``, lengths ``[B]``, or ``[B, T, S]``) as a boolean one."""
    if mask is None:
        return None
    if mask.dim() == 1:
        return torch.arange(length, device=mask.device) < mask[:, None, None, None]
    return mask.bool()[:, None, None] if mask.dim() == 2 else mask.bool()[:, None]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    past: tuple[Tensor | None, Tensor | None],
    scale: float | None,
    is_causal: bool,
    mask_value: float,
) -> tuple[Tensor, Tensor, Tensor]:
    length = k.shape[2] + (0 if past[0] is None else past[0].shape[2])
    allowed = _key_mask(mask, length)
    total = bias
    if allowed is not None:
        added = torch.zeros(allowed.shape, dtype=q.dtype, device=q.device).masked_fill(~allowed, mask_value)
        total = added if total is None else total + added
    y, key, value, _ = attention_details(
        q, k, v, total, past[0], past[1], scale=scale or None, is_causal=is_causal
    )
    return merge_heads(y), key, value


def packed_attention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    scores_bias: Tensor | None = None,
    *,
    num_heads: int,
    scale: float | None = None,
    is_causal: bool = False,
    mask_value: float = -10000.0,
    sizes: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of ``[B, T, I]`` with one weight ``[I, 3 E]``; returns keys and values stacked too.

    `sizes` are the columns of queries, keys and values where they are not a third each.
    """
    projected = torch.matmul(x, weight) if bias is None else torch.matmul(x, weight) + bias
    widths = [projected.shape[-1] // 3] * 3 if sizes is None else list(sizes)
    q, k, v = (split_heads(part, num_heads) for part in torch.split(projected, widths, -1))
    before = (None, None) if past is None else (past[0], past[1])
    y, key, value = _attend(q, k, v, mask, scores_bias, before, scale, is_causal, mask_value)
    return y, torch.stack([key, value]) if key.shape == value.shape else None


def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scores_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    num_heads: int,
    scale: float | None = None,
    is_causal: bool = False,
    mask_value: float = -10000.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of projected inputs ``[B, T, E]``; key and value may have their heads apart already."""
    if key is None or value is None:  # packed [B, T, H, 3, D]
        query, key, value = (part.flatten(2) for part in query.unbind(3))
    if bias is not None:
        q_size = query.shape[-1]
        query = query + bias[:q_size]
        if key.dim() == 3:
            key, value = key + bias[q_size : 2 * q_size], value + bias[2 * q_size :]
    q = split_heads(query, num_heads)
    k, v = (split_heads(part, num_heads) if part.dim() == 3 else part for part in (key, value))
    return _attend(q, k, v, mask, scores_bias, (past_key, past_value), scale, is_causal, mask_value)


def rotary(
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_dim: int = 0,
) -> Tensor:
    """Rotary embedding with ONNX Runtime's positions: ``[B, T]``, or the first one for all sequences."""
    if x.dim() == 3 and not num_heads:
        num_heads = x.shape[-1] // (rotary_dim or 2 * cos.shape[-1])
    if positions.numel() == 1:
        length = x.shape[1] if x.dim() == 3 else x.shape[2]
        positions = positions.reshape(1, 1) + torch.arange(length, device=x.device)
    size = rotary_dim or 2 * cos.shape[-1]
    return rotary_embedding(
        x, cos, sin, positions, interleaved=interleaved, rotary_dim=size, num_heads=num_heads
    )


def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    last: Tensor,
    total: Tensor | int,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    scale: float | None = None,
    softcap: float = 0.0,
    window: int = -1,
    rotate: bool = False,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Causal attention whose keys have fewer heads, of sequences that may differ in length.

    `query` is ``[B, T, H * D]``, or queries, keys and values next to each other; `key` and `value` ``[B, T, K
    * D]``. Of `past_key` and `past_value` ``[B, K, P, D]`` the valid keys of each sequence come first. `last`
    ``[B]`` is the place of each sequence's last key, `total` the longest sequence with the new keys: T if
    there are no earlier ones. With `rotate` queries and keys are rotated by `cos` and `sin`, ``[positions, R
    / 2]``. The `window` counts the query itself; -1 is all.

    Returns the result ``[B, T, H * D]``, and all keys and values ``[B, K, max(P, total), D]``. Results of
    queries after a sequence's last key mean nothing.
    """
    if key is None or value is None:
        size = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = torch.split(
            query, [num_heads * size, kv_num_heads * size, kv_num_heads * size], -1
        )
    q, k, v = split_heads(query, num_heads), split_heads(key, kv_num_heads), split_heads(value, kv_num_heads)
    steps, longest = q.shape[2], int(total)
    valid = last.reshape(-1).long() + 1
    earlier = torch.zeros_like(valid) if steps == longest else (valid - steps).clamp(min=0)
    places = earlier[:, None] + torch.arange(steps, device=q.device)
    if rotate and cos is not None and sin is not None:
        size = 2 * cos.shape[-1]
        q = rotary_embedding(q, cos, sin, places, interleaved=interleaved, rotary_dim=size)
        k = rotary_embedding(k, cos, sin, places, interleaved=interleaved, rotary_dim=size)
    if past_key is not None and past_value is not None:
        missing = max(longest - past_key.shape[2], 0)
        k = tensor_scatter(F.pad(past_key, (0, 0, 0, missing)), k, earlier, 2)
        v = tensor_scatter(F.pad(past_value, (0, 0, 0, missing)), v, earlier, 2)
    behind = places[:, :, None] - torch.arange(k.shape[2], device=q.device)
    mask = behind >= 0
    if window > 0:
        mask = mask & (behind < window)
    y, keys, values, _ = attention_details(q, k, v, mask[:, None], scale=scale or None, softcap=softcap)
    return merge_heads(y), keys, values
