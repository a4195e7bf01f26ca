"""Attention, as users call it: options in the field's words, dropout's seed, autocast, score functions.

The op beneath it is `burnt.kernels.ops.attention.reference`'s; its candidates are in `attention_tiled` (by
tiles of queries, anywhere) and `attention_flash` (in Triton); `attention_score` brings functions of the
scores.

Axes: B batch, H heads of the queries, K heads of keys and values (H is a multiple of K), L queries, S keys,
D and E sizes of a head in queries and keys, and in values; N sequences that are packed into one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnt import _torch
from burnt.errors import InputTypeError
from burnt.kernels.ops.attention.reference import (
    Score,
    check_numbers,
    defined,
    dot_product_attention,
    recorded,
)
from burnt.kernels.ops.attention.score_mod import attention_with_score

__all__ = ["attention"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    bottom_right: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    lengths: Tensor | None = None,
    q_starts: Tensor | None = None,
    k_starts: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    score: Score | None = None,
) -> Tensor:
    r"""Attention: means of values, weighted by the softmax of scores of queries and keys.

    .. math:: \mathrm{softmax}(Q K^\top / \sqrt{D} + M) \, V

    Args:
        q: ``[B, H, L, D]``, of a floating-point dtype. Views, such as transposed ones, are not copied.
        k: ``[B, K, S, D]``; H is a multiple of K, and H / K heads of the queries share one (grouped queries).
        v: ``[B, K, S, E]``.
        mask: broadcasts to ``[B, H, L, S]``. Boolean: True where the query sees the key. Floating: added to
            the scores.
        causal: query i sees keys 0 to i; with `bottom_right`, to i + S - L.
        window: how many keys before its own place, and after it, a query sees; None for all. With `causal`
            none after it.
        bottom_right: the last query has the last key's place (of `lengths`, or of its sequence), as it is
            when keys are kept from before. Otherwise, as in torch, the first has the first one's.
        scale: of the scores; None is ``1 / sqrt(D)``.
        softcap: scores `s` become ``softcap * tanh(s / softcap)``, before masks and slopes.
        slopes: ``[H]``, ALiBi: the distance of query and key, times a slope, is taken from the scores.
        lengths: ``[B]``, int32 or int64: how many keys there are; the others are not seen.
        q_starts: ``[N + 1]``, int32 or int64: sequences packed into a batch of one begin here, and the last
            ends; a query sees keys of its own sequence alone.
        k_starts: the same of the keys.
        dropout: the probability of dropping a weight; the others are scaled by ``1 / (1 - dropout)``.
        seed: ``[]``, int64, that dropout draws from; None draws one from torch's generator. The same weights
            are dropped for a seed, on any device.
        score: what becomes of scores: a function ``score(s, b, h, i, j)`` of them and of the indices of
            batch, head of the queries, query and key (int32), all of which broadcast; elementwise, in
            torch's functions, as flex_attention has it. It comes after `softcap`, before slopes and masks,
            and may look up tensors that it captures: ``lambda s, b, h, i, j: s + bias[h, i - j + 99]``.
            Kernels are made of it, and it is tried on a few scores: define it once, not anew for each call.

    Returns:
        ``[B, H, L, E]``, as `q`; in memory the heads are inside, so that joining them is a view. A query that
        sees nothing gives zeros, and gets no gradient.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputTypeError: a window that is no pair, or a score that is no function of the five.
        InputValueError: a probability, a window or a cap that is none, a score that is not elementwise, and
            on the CPU lengths or starts that are not among queries and keys.
        InputUnsupportedError: not of a floating-point dtype.

    As `torch.nn.functional.scaled_dot_product_attention`, which makes NaN or zeros, by code path, of a query
    that sees nothing. Where a call is recorded instead of run (compilers, transforms), torch's call is
    recorded, as far as it has the options. Vaswani et al., 2017; Dao, 2023; Press et al., 2022 (slopes).

    >>> q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)
    >>> attention(q, k, torch.tensor([1.0, 3.0]).view(1, 1, 2, 1), causal=True).flatten()
    tensor([1., 2.])
    """
    before, after = _ends(window)
    check_numbers(softcap, dropout)
    after = 0 if causal else after
    if dropout > 0 and seed is None:
        seed = torch.randint(1 << 62, (), device=q.device)
    if dropout == 0:
        seed = None
    args = (
        q, k, v, mask, before, after, bottom_right, scale, softcap, slopes, lengths, q_starts, k_starts,
        float(dropout), seed,
    )  # fmt: skip
    if torch.compiler.is_compiling() or not _torch.is_plain_call():
        return recorded(*args) if score is None else defined(*args, score)
    if score is None:
        return dot_product_attention(*args)
    given, without = dot_product_attention.under_autocast(args)
    with without:
        return attention_with_score(score, *given)


def _ends(window: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """How many keys are seen before and after a query's own.

    Raises:
        InputTypeError: it is no pair of whole numbers.
    """
    if window is None:
        return None, None
    pair = tuple(window) if isinstance(window, tuple | list) else ()
    if len(pair) != 2 or not all(n is None or isinstance(n, int) for n in pair):
        raise InputTypeError(
            "a window of attention is a pair",
            where="burnt.kernels.attention",
            expected="how many keys a query sees before its own place, and after it; None for all",
            found=window,
            hint=f"window=({window}, {window})" if isinstance(window, int) else None,
        )
    return pair
