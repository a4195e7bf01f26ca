"""Tensors' math made into callables: traced, lowered to loops, printed as kernels, compiled and called.

Stands on torch, numpy and the lowest rooms of burnt alone. Nothing is imported here but on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.codegen.explanation import Explanation, explain
    from burnt.codegen.function import Function, fuse

_HOMES = {
    "Explanation": "burnt.codegen.explanation",
    "Function": "burnt.codegen.function",
    "explain": "burnt.codegen.explanation",
    "fuse": "burnt.codegen.function",
}
__getattr__, __dir__ = attach(globals(), _HOMES)

__all__ = ["Explanation", "Function", "explain", "fuse"]
