"""Misfit: why a layer does not accept an input."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Misfit"]


@dataclass(frozen=True)
class Misfit:
    """An input that a layer does not accept.

    Args:
        expected: the shapes that fit, as text.
        found: the shape, or dtype and shape, of the input.
        size: the input's number of features or channels, if that is what does not fit.
        unit: "features" or "channels".
        instead: the layer that would fit, as Python code.
        hint: what to do, if it is known without other layers; for a dtype the method that converts.
        dtype: the input's dtype, if that is what does not fit.
    """

    expected: str
    found: str
    size: int | None = None
    unit: str = "features"
    instead: str | None = None
    hint: str | None = None
    dtype: torch.dtype | None = None
