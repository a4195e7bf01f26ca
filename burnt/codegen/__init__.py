"""The compiler behind `fuse`: traces a function of tensors, lowers it to loops, generates and runs kernels.

It imports torch, numpy and burnt's lowest-level modules only. Names are imported on first use.
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
