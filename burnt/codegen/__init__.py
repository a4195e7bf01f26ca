"""Tensors' math made into callables: traced, lowered to loops, printed as kernels, compiled and called.

Stands on torch, numpy and the lowest rooms of burnt alone. Nothing is imported here but on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.codegen.function import Function, fuse

_HOMES = {"Function": "burnt.codegen.function", "fuse": "burnt.codegen.function"}
__getattr__, __dir__ = attach(globals(), _HOMES)

__all__ = ["Function", "fuse"]
