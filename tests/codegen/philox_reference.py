"""Random numbers by their definition: what the plan of a seed draws, for eager torch to run with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

# Bits of a uniform number that its dtype holds.
_BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}


def words(seed: int, stream: int, count: int, first: int = 0) -> np.ndarray:
    """The words of a stream from one on, by the definition of Philox4x32-10."""
    i = np.arange(first, first + count, dtype=np.uint64)
    x = [
        (i // 4) & 0xFFFFFFFF,
        (i // 4) >> np.uint64(32),
        np.full(count, stream, np.uint64),
        np.zeros(count, np.uint64),
    ]
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        a, b = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
        x = [(b >> high) ^ x[1] ^ np.uint64(key[0]), b & low, (a >> high) ^ x[3] ^ np.uint64(key[1]), a & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.choose((i % 4).astype(np.int64), x).astype(np.uint64)


def _of_pairs(drawn: np.ndarray) -> np.ndarray:
    """Numbers of 53 bits, of two words each."""
    result: np.ndarray = drawn[::2] * 2.0**-32 + (drawn[1::2] >> np.uint64(11)) * 2.0**-53
    return result


class _Flat(torch.autograd.Function):
    """Numbers that depend on others, with a gradient that is 0 whatever comes."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, of: Tensor) -> Tensor:
        return made * 1

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[None, Tensor]:
        return None, torch.zeros_like(cotangents[0])


class Drawn(TorchFunctionMode):
    """torch with the random numbers of a plan's seed in place of its own.

    Args:
        seed: of the plan.
        dtypes: of what each op draws, where a run in float64 follows one in the dtypes themselves; else they
            are noted here, as that run meets them.
    """

    def __init__(self, seed: int, dtypes: list[torch.dtype] | None = None) -> None:
        super().__init__()
        self.seed = seed
        self.known = dtypes
        self.dtypes: list[torch.dtype] = []

    def again(self) -> Drawn:
        """The same numbers, for a run of the same ops in float64."""
        return Drawn(self.seed, self.dtypes)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is torch.bernoulli:
            (share,) = args
            inside = torch.promote_types(self._begin(share), torch.float32)
            return _Flat.apply((self._uniform(share, inside) < share).to(share.dtype), share)
        if func is torch.rand_like:
            return self._uniform(args[0], self._begin(args[0])).to(args[0].dtype)
        if func is torch.randn_like:
            return self._normal(args[0], self._begin(args[0]))
        if func is torch.randint_like:
            like, bound = args
            self._begin(like)
            result = self._words(like.numel()) * np.uint64(bound) >> np.uint64(32)
            return torch.from_numpy(result.astype(np.int64)).reshape(like.shape).to(like.dtype)
        return func(*args, **kwargs)

    def _begin(self, like: Tensor) -> torch.dtype:
        """The next op's stream; the dtype that it draws in."""
        self.dtypes.append(like.dtype)
        return like.dtype if self.known is None else self.known[len(self.dtypes) - 1]

    def _words(self, count: int) -> np.ndarray:
        return words(self.seed, len(self.dtypes) - 1, count)

    def _uniform(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Numbers of [0, 1) with the bits of a dtype, in float64."""
        count = like.numel()
        if dtype == torch.float64:
            result = _of_pairs(self._words(2 * count))
        else:
            result = (self._words(count) >> np.uint64(32 - _BITS[dtype])) * 2.0 ** -_BITS[dtype]
        return torch.from_numpy(result).reshape(like.shape)

    def _normal(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """By Box and Muller, computed in float64 where the run is, and in float32 for what is narrower."""
        # The steps stay as they are, whatever looks on: nudged, radii close to 1 would leave their range.
        with _disable_current_modes():
            count = like.numel()
            if dtype == torch.float64:
                drawn = _of_pairs(self._words(4 * count))
                radius, angle = torch.from_numpy(drawn[::2] + 2.0**-54), torch.from_numpy(drawn[1::2])
            else:
                pairs = self._words(2 * count)
                # Rounded to float32 first: that is part of the definition.
                radius = torch.from_numpy(pairs[::2].astype(np.float32)) * 2.0**-32 + 2.0**-33
                angle = torch.from_numpy((pairs[1::2] >> np.uint64(8)).astype(np.float32)) * 2.0**-24
            if like.dtype == torch.float64:
                radius, angle = radius.double(), angle.double()
            result = torch.sqrt(torch.log(radius) * -2.0) * torch.cos(angle * (2 * math.pi))
            result = result.reshape(like.shape).to(like.dtype)
        return result * 1  # the numbers drawn are a result as others are

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        self._begin(x)
        kept = self._uniform(x, torch.float32) < np.float32(1 - p)
        return x * (kept.to(x.dtype) * (1 / (1 - p))).to(x.dtype)
