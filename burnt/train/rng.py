"""The global random states, taken and put back, so that a resumed run draws what it would have drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["capture", "restore"]


def capture() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of torch (CPU and every CUDA device) as tensors, of Python and NumPy as JSON."""
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return tensors, {
        "python": [version, list(words), gauss],
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
    }


def restore(tensors: dict[str, Tensor], document: dict[str, Any]) -> None:
    """Put back what `capture` took; states of CUDA devices that are not here are left out."""
    torch.set_rng_state(tensors["torch"])
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            if f"cuda{i}" in tensors:
                torch.cuda.set_rng_state(tensors[f"cuda{i}"], i)
    version, words, gauss = document["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = document["numpy"]
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
