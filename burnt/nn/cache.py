"""Key-value caches: what attention layers keep of earlier tokens, so that each new one is computed once.

Axes: B batch, K heads of keys and values, S keys so far, L new keys, D size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.errors import BurntError, ShapeError


class KeyValueCache:
    """The projected keys and values of one attention layer: of earlier tokens, or of a context.

    Args:
        max_len: number of keys to allocate memory for at the first step, which later steps write into; None
            concatenates at each step, which gradients can flow through.
        key: ``[B, K, S, D]``, to begin with keys that were computed before, as in an exported step.
        value: ``[B, K, S, D]``, as `key`.

    Raises:
        BurntError: `key` without `value`, or `value` without `key`.
        ShapeError: they do not fit each other, or `max_len`.

    The first step determines batch size, dtype and device. `MultiHeadAttention` adds the keys and values of
    its input to a cache; `CrossAttention` fills an empty one with its context's, and then ignores the
    context.

    >>> cache = KeyValueCache()
    >>> key, value = cache.append(torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 5, 8))
    >>> key, value = cache.append(torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8))
    >>> cache.length, key.shape
    (6, torch.Size([2, 4, 6, 8]))
    """

    def __init__(
        self, max_len: int | None = None, *, key: Tensor | None = None, value: Tensor | None = None
    ) -> None:
        self.max_len = max_len
        self._key: Tensor | None = None
        self._value: Tensor | None = None
        self._length: int = 0
        if (key is None) != (value is None):
            raise BurntError(
                "a cache needs keys and values",
                where="KeyValueCache",
                expected="both or neither",
                found="only keys" if value is None else "only values",
            )
        if key is not None and value is not None:
            self.append(key, value)

    @property
    def length(self) -> int:
        """The number S of keys so far, which is the position of the next token."""
        return self._length

    @property
    def key(self) -> Tensor | None:
        """The keys so far, ``[B, K, S, D]``; None before the first step."""
        return None if self._key is None else self._key[:, :, : self._length]

    @property
    def value(self) -> Tensor | None:
        """The values so far, ``[B, K, S, D]``; None before the first step."""
        return None if self._value is None else self._value[:, :, : self._length]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values ``[B, K, L, D]``; return all, ``[B, K, S + L, D]``.

        Raises:
            ShapeError: another batch size or other heads than before, other values than keys, or more keys
                than `max_len`.
            BurntError: gradients are recorded, and the memory was allocated by `max_len`.
        """
        self._check(key, value)
        end = self._length + key.shape[2]
        if self.max_len is not None:
            if self._key is None or self._value is None:
                batch, heads, _, size = key.shape
                self._key = key.new_empty(batch, heads, self.max_len, size)
                self._value = value.new_empty(batch, heads, self.max_len, value.shape[-1])
            self._key[:, :, self._length : end] = key
            self._value[:, :, self._length : end] = value
        elif self._key is None or self._value is None:
            self._key, self._value = key, value
        else:
            self._key, self._value = torch.cat([self._key, key], 2), torch.cat([self._value, value], 2)
        self._length = end
        return self._key[:, :, :end], self._value[:, :, :end]

    def reset(self) -> None:
        """Forget all keys and values, and free their memory."""
        self._key = self._value = None
        self._length = 0

    def reorder(self, index: Tensor) -> None:
        """Replace sequence b of the batch by sequence ``index[b]``, as a beam search does.

        Args:
            index: integers ``[any]``; the batch gets as many sequences.
        """
        if self._key is not None and self._value is not None:
            self._key, self._value = self._key.index_select(0, index), self._value.index_select(0, index)

    def __repr__(self) -> str:
        return f"KeyValueCache(length={self._length}, max_len={self.max_len})"

    def _check(self, key: Tensor, value: Tensor) -> None:
        if key.dim() != 4 or value.dim() != 4 or key.shape[:3] != value.shape[:3]:
            raise ShapeError(
                "keys and values do not fit each other",
                where=repr(self),
                expected="(B, K, L, D) with equal B, K and L",
                found=f"{tuple(key.shape)} and {tuple(value.shape)}",
            )
        if self._key is not None and (self._key.shape[:2], self._key.shape[3]) != (
            key.shape[:2],
            key.shape[3],
        ):
            batch, heads, _, size = self._key.shape
            raise ShapeError(
                "the keys do not fit those in the cache",
                where=repr(self),
                expected=f"({batch}, {heads}, L, {size})",
                found=tuple(key.shape),
                hint="cache.reset() before another batch" if batch != key.shape[0] else None,
            )
        if self.max_len is None:
            return
        if self._length + key.shape[2] > self.max_len:
            raise ShapeError(
                "the sequence is longer than the cache",
                where=repr(self),
                expected=f"at most {self.max_len} keys",
                found=self._length + key.shape[2],
                hint="make max_len larger, or leave it out; cache.reset() before another sequence",
            )
        if (key.requires_grad or value.requires_grad) and torch.is_grad_enabled():
            raise BurntError(
                "no gradient flows through a cache with max_len",
                where=repr(self),
                hint="use torch.no_grad() for inference, or leave out max_len",
            )


class TransformerCache:
    """The caches of all layers of a `TransformerEncoder` or `TransformerDecoder`, made by its `new_cache`.

    Args:
        num_layers: number of layers.
        max_len: number of keys that the self-attention allocates for, as in `KeyValueCache`.

    `self_attn` holds a `KeyValueCache` for each layer's own tokens, `cross_attn` one for its projection of
    the memory, which an encoder leaves empty.

    >>> from burnt import nn
    >>> decoder = nn.TransformerEncoder(d_model=8, num_heads=2, d_ff=16, num_layers=2).eval()
    >>> tokens, cache = torch.randn(1, 5, 8), decoder.new_cache()
    >>> steps = [decoder(tokens[:, i : i + 1], is_causal=True, cache=cache) for i in range(5)]
    >>> torch.allclose(torch.cat(steps, 1), decoder(tokens, is_causal=True), atol=1e-5)
    True
    """

    def __init__(self, num_layers: int, max_len: int | None = None) -> None:
        self.self_attn = [KeyValueCache(max_len) for _ in range(num_layers)]
        self.cross_attn = [KeyValueCache() for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """The number of tokens so far, which is the position of the next one."""
        return self.self_attn[0].length if self.self_attn else 0

    def reset(self) -> None:
        """Forget all tokens and the memory."""
        for cache in self.self_attn + self.cross_attn:
            cache.reset()

    def reorder(self, index: Tensor) -> None:
        """Replace sequence b of the batch by sequence ``index[b]``: `KeyValueCache.reorder`."""
        for cache in self.self_attn + self.cross_attn:
            cache.reorder(index)

    def __repr__(self) -> str:
        return f"TransformerCache(num_layers={len(self.self_attn)}, length={self.length})"
