"""`attention`, the public function: converts its options, draws a dropout seed, and calls the op.

The op `dot_product_attention` is in `burnt.kernels.ops.attention.reference`; its candidates are in `chunked`
(tiles of queries, any device) and `flash` (Triton). Calls with a score function go to `score_mod`.

Axes: B batch, H query heads, K key and value heads (H is a multiple of K), L queries, S keys, D head size of
queries and keys, E head size of values, N packed sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnt import _torch
from burnt.errors import InputTypeError
from burnt.kernels.ops.attention.reference import (
    ScoreMod,
    check_scalars,
    dot_product_attention,
    eager_attention,
    traceable_attention,
)
from burnt.kernels.ops.attention.score_mod import attention_with_score


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
    score: ScoreMod | None = None,
) -> Tensor:
    r"""Compute scaled dot-product attention.

    .. math:: \mathrm{softmax}(Q K^\top / \sqrt{D} + M) \, V

    Args:
        q: ``[B, H, L, D]``, of a floating-point dtype. Views, such as transposed ones, are not copied.
        k: ``[B, K, S, D]``; H is a multiple of K, and H / K query heads share a key head (grouped queries).
        v: ``[B, K, S, E]``.
        mask: broadcasts to ``[B, H, L, S]``. Boolean: True where the query sees the key. Floating point:
            added to the scores.
        causal: query i sees keys 0 to i; with `bottom_right`, keys 0 to i + S - L.
        window: how many keys before and after its own position a query sees; None for all. With `causal`,
            none after it.
        bottom_right: align the last query with the last key (of `lengths`, or of its sequence), as needed
            with a KV cache. Otherwise, as in torch, the first query is aligned with the first key.
        scale: factor of the scores; None is ``1 / sqrt(D)``.
        softcap: scores `s` become ``softcap * tanh(s / softcap)``, before masks and slopes.
        slopes: ``[H]``, ALiBi: the distance of query and key times the slope is subtracted from the scores.
        lengths: ``[B]``, int32 or int64: number of valid keys; the others are masked.
        q_starts: ``[N + 1]``, int32 or int64: start offsets of the sequences packed into a batch of one, and
            the end of the last; a query sees only keys of its own sequence.
        k_starts: the same for the keys.
        dropout: probability of dropping a weight; the others are scaled by ``1 / (1 - dropout)``.
        seed: ``[]``, int64, of the dropout mask; None draws one from torch's generator. A seed drops the same
            weights on every device.
        score: a function ``score(s, b, h, i, j)`` that returns new scores, given scores and the int32 indices
            of batch, query head, query and key, all of which broadcast. It must be elementwise and written in
            torch functions, like flex_attention's `score_mod`. It is applied after `softcap` and before
            slopes and masks, and may index tensors that it captures:
            ``lambda s, b, h, i, j: s + bias[h, i - j + 99]``. It is tested on a few scores and compiled into
            kernels: define it once, not anew for each call.

    Returns:
        ``[B, H, L, E]`` in the dtype of `q`, stored as ``[B, L, H, E]``, so that joining the heads is a view.
        A query that sees no key gives zeros and gets no gradient.

    Raises:
        InputTypeError: `window` is not a pair, or `score` is not a function of five arguments.
        InputValueError: `dropout`, `window` or `softcap` is out of range, `score` is not elementwise, or, on
            the CPU, `lengths` or starts are out of range.

    As `torch.nn.functional.scaled_dot_product_attention`, which returns NaN or zeros for a query that sees no
    key, depending on its backend. Compilers and transforms that trace the call record torch's own op where it
    has the options. Vaswani et al., 2017; Dao, 2023; Press et al., 2022 (slopes).

    >>> q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)
    >>> attention(q, k, torch.tensor([1.0, 3.0]).view(1, 1, 2, 1), causal=True).flatten()
    tensor([1., 2.])
    """
    before, after = _window_sizes(window)
    check_scalars(softcap, dropout)
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
        return traceable_attention(*args) if score is None else eager_attention(*args, score)
    if score is None:
        return dot_product_attention(*args)
    cast_args, no_autocast = dot_product_attention.under_autocast(args)
    with no_autocast:
        return attention_with_score(score, *cast_args)


def _window_sizes(window: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """Return how many keys a query sees before and after its own position."""
    if window is None:
        return None, None
    pair = tuple(window) if isinstance(window, tuple | list) else ()
    if len(pair) != 2 or not all(n is None or isinstance(n, int) for n in pair):
        raise InputTypeError(
            "the window of attention must be a pair",
            where="burnt.kernels.attention",
            expected="(keys before the query's position, keys after it), each an int or None for all",
            found=window,
            hint=f"window=({window}, {window})" if isinstance(window, int) else None,
        )
    return pair
