"""ShapeMismatch: why a layer does not accept an input."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_INPUTS = {3: "sequences", 4: "images", 5: "volumes"}


def rank_hint(name: str, rank: int) -> str | None:
    """Name the layer like ``Conv3d`` for inputs of another number of axes, batch and channels included.

    >>> rank_hint("Conv3d", 4)
    '4 axes: Conv2d is for images'
    """
    if rank not in _INPUTS or name[-2:] not in ("1d", "2d", "3d") or name.endswith(f"{rank - 2}d"):
        return None
    return f"{rank} axes: {name[:-2]}{rank - 2}d is for {_INPUTS[rank]}"


def is_rank_hint(hint: str | None) -> bool:
    """Whether a hint is, or ends with, one of `rank_hint`."""
    return hint is not None and hint.endswith(tuple(f"d is for {inputs}" for inputs in _INPUTS.values()))


@dataclass(frozen=True)
class ShapeMismatch:
    """An input that a layer does not accept: `expected` and `found` as text.

    `size` and `dtype` are the input's where they do not fit; `unit` is "features" or "channels". `instead` is
    the layer that would fit, as Python code; `hint` what to do, if it is known without other layers.
    """

    expected: str
    found: str
    size: int | None = None
    unit: str = "features"
    instead: str | None = None
    hint: str | None = None
    dtype: torch.dtype | None = None
