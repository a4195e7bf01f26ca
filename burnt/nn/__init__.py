"""Layers and losses, a file per family."""

from __future__ import annotations

from burnt.nn.linear import Linear

__all__ = ["Linear"]
