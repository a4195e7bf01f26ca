"""The compiler behind `fuse`: traces a function of tensors, lowers it to loops, generates and runs kernels.

It imports torch, numpy and burnt's lowest-level modules only. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.codegen.explanation import Explanation as Explanation
    from burnt.codegen.explanation import explain as explain
    from burnt.codegen.function import Function as Function
    from burnt.codegen.function import fuse as fuse

_NAMES = {"burnt.codegen.explanation": "Explanation explain", "burnt.codegen.function": "Function fuse"}
if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(globals(), _NAMES)
