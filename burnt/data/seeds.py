"""Random generators by keys such as (seed, epoch, batch), and the global states seeded for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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


def seed_global_states(seed: int) -> None:
    """Seed the global random states of Python, NumPy and torch on the CPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also ask for CUDA's, which has locks


@contextmanager
def seeded_globally(seed: int, cuda_devices: Sequence[int] = ()) -> Iterator[None]:
    """Seed the global random states, and restore them at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=cuda_devices):
        seed_global_states(seed)
        for device in cuda_devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _sequence(*keys: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([key & 0xFFFF_FFFF_FFFF_FFFF for key in keys])
