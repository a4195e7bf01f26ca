"""Random generators by keys such as (seed, epoch, batch), independent of the global states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def numpy_generator(*keys: int) -> np.random.Generator:
    """Return NumPy's generator for the keys."""
    return np.random.Generator(np.random.Philox(_sequence(*keys)))


def torch_generator(*keys: int) -> torch.Generator:
    """Return torch's generator for the keys, on the CPU."""
    return torch.Generator().manual_seed(seed_of(*keys))


def seed_of(*keys: int) -> int:
    """Return a seed for the keys, from 0 to 2**63 - 1."""
    words: Sequence[int] = _sequence(*keys).generate_state(1, np.uint64).tolist()
    return words[0] >> 1  # torch wants a seed that fits a signed 64-bit integer


def _sequence(*keys: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([key & 0xFFFF_FFFF_FFFF_FFFF for key in keys])
