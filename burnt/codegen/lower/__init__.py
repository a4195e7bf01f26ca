"""Lowering: a table from aten ops to functions that return `burnt.codegen.ir.Value`s.

An op that is not in the table runs as a call of torch's op; `burnt.explain` lists it as ``library``.
"""

from burnt.codegen.ir import const
from burnt.codegen.lower import (  # noqa: F401 - they register their lowerings
    conv,
    elementwise,
    gather,
    gelu,
    integers,
    pooling,
    random,
    reduction,
    views,
)
from burnt.codegen.lower.registry import LOWERINGS, Lowering, Scalar, Unlowered, pointwise, register_lowering

__all__ = ["LOWERINGS", "Lowering", "Scalar", "Unlowered", "const", "pointwise", "register_lowering"]
