"""Capture and restore the global random states, so that a resumed run draws the same random numbers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.device import random_states_of


@dataclasses.dataclass(frozen=True)
class RandomStates:
    """A snapshot of the global random states: of torch (CPU and accelerators), of Python and of NumPy."""

    tensors: dict[str, Tensor]
    document: dict[str, Any]

    @classmethod
    def capture(cls) -> RandomStates:
        """Return the current states."""
        tensors = {"torch": torch.get_rng_state()}
        tensors |= {f"{kind}{i}": runtime.get_rng_state(i) for kind, runtime, i in _accelerators()}
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
        """Restore the states, but skip devices that this machine lacks."""
        torch.set_rng_state(self.tensors["torch"])
        for kind, runtime, i in _accelerators():
            if f"{kind}{i}" in self.tensors:
                runtime.set_rng_state(self.tensors[f"{kind}{i}"], i)
        version, words, gauss = self.document["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, position, has_gauss, cached = self.document["numpy"]
        np.random.set_state((name, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))


def _accelerators() -> Iterator[tuple[str, ModuleType, int]]:
    """Yield the type, torch's module and the number of each accelerator that has random states."""
    kinds = {"cuda"} if torch.cuda.is_available() else set()
    current = torch.accelerator.current_accelerator(check_available=True)
    for kind in sorted(kinds if current is None else kinds | {current.type}):
        if (runtime := random_states_of(kind)) is not None:
            for i in range(runtime.device_count()):
                yield kind, runtime, i
