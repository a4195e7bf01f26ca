"""Attention as its text says it, a query at a time: what the tests compare with."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor


def attention_by_hand(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    before: int | None = None,
    after: int | None = None,
    bottom_right: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    lengths: Tensor | None = None,
    q_starts: Tensor | None = None,
    k_starts: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    score: Any = None,
) -> Tensor:
    """The arguments of `burnt.kernels.dot_product_attention`, and a function of the scores."""
    (batch, heads, queries, size), keys = q.shape, k.shape[2]
    scale = size**-0.5 if scale is None else scale
    if mask is not None:
        mask = mask.expand(batch, heads, queries, keys)
    rows = []
    for b in range(batch):
        for h in range(heads):
            shared = h // (heads // k.shape[1])
            for i in range(queries):
                begin, end, place = 0, keys if lengths is None else min(int(lengths[b]), keys), i
                length = queries
                if q_starts is not None and k_starts is not None:
                    all_q, all_k = q_starts.tolist(), k_starts.tolist()
                    which = next((n for n in range(len(all_q) - 1) if all_q[n] <= i < all_q[n + 1]), None)
                    if which is None:
                        rows.append(q.new_zeros(v.shape[-1]) + 0 * q[b, h, i].sum())
                        continue
                    begin, end = all_k[which], all_k[which + 1]
                    length, place = all_q[which + 1] - all_q[which], i - all_q[which] + begin
                if bottom_right:
                    place += (end - begin) - length
                first = begin if before is None else max(begin, place - before)
                past = end if after is None else min(end, place + after + 1)
                seen = torch.arange(first, max(past, first))
                if mask is not None and mask.dtype == torch.bool:
                    seen = seen[mask[b, h, i, seen]]
                scores = k[b, shared, seen] @ q[b, h, i] * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if score is not None:
                    places = (torch.tensor(n) for n in (b, h, i))
                    scores = score(scores, *places, seen)
                if slopes is not None:
                    scores = scores - slopes[h] * (place - seen).abs()
                if mask is not None and mask.dtype != torch.bool:
                    scores = scores + mask[b, h, i, seen]
                if len(seen) == 0 or bool((scores == -torch.inf).all()):
                    rows.append(q.new_zeros(v.shape[-1]) + 0 * q[b, h, i].sum())
                    continue
                weights = scores.softmax(-1)
                if seed is not None:
                    drawn = [uniform(int(seed), b * heads + h, i, int(j)) for j in seen]
                    weights = weights * torch.tensor([u >= dropout for u in drawn]) / (1 - dropout)
                rows.append(weights @ v[b, shared, seen])
    return torch.stack(rows).view(batch, heads, queries, v.shape[-1])


def uniform(seed: int, head: int, query: int, key: int) -> float:
    """The number that a weight's dropout depends on: of a counter's four words, the key's own."""
    return (philox(seed, (key // 4, query, head, 0))[key % 4] >> 8) / 2**24


@cache
def philox(seed: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of Salmon et al., 2011."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = b >> 32 ^ c1 ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3
