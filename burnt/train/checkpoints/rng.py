"""Capture and restore the global random states, so that a resumed run draws the same random numbers."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class RandomStates:
    """A snapshot of the global random states: of torch (CPU and all CUDA devices), of Python and of NumPy."""

    tensors: dict[str, Tensor]
    document: dict[str, Any]

    @classmethod
    def capture(cls) -> RandomStates:
        """Return the current states."""
        tensors = {"torch": torch.get_rng_state()}
        if torch.cuda.is_available():
            tensors |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
        version, words, gauss = random.getstate()
        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        return cls(
            tensors,
            {
                "python": [version, list(words), gauss],
                "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
            },
        )

    def restore(self) -> None:
        """Restore the states, but skip CUDA devices that this machine lacks."""
        torch.set_rng_state(self.tensors["torch"])
        if torch.cuda.is_available():
            for i in range(torch.cuda.device_count()):
                if f"cuda{i}" in self.tensors:
                    torch.cuda.set_rng_state(self.tensors[f"cuda{i}"], i)
        version, words, gauss = self.document["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, position, has_gauss, cached = self.document["numpy"]
        np.random.set_state((name, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
