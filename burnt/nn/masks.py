"""Masks for attention: booleans, True where a key is hidden from a query."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["causal_mask", "padding_mask"]


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


def padding_mask(tokens: Tensor, pad_token: int) -> Tensor:
    """Return a mask that hides padding: a `key_padding_mask` of the attention layers.

    Args:
        tokens: ``[B, S]``, integers.
        pad_token: the token that fills short sequences, at either end.

    Returns:
        ``[B, S]``, boolean: True where there is padding.

    (Burn's ``generate_padding_mask`` fills sequences of different lengths, too: here
    `torch.nn.utils.rnn.pad_sequence`.)

    >>> padding_mask(torch.tensor([[5, 6, 0], [7, 0, 0]]), pad_token=0)
    tensor([[False, False,  True],
            [False,  True,  True]])
    """
    return tokens == pad_token
