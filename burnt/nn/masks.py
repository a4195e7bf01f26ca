"""Masks for attention: booleans, True where a key is hidden from a query."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.errors import InputValueError


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
