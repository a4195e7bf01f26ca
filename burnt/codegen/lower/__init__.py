"""Lowering: a table from aten ops to functions that return `burnt.codegen.ir.Value`s.

An op that is not in the table runs as a call of torch's op; `burnt.explain` lists it as ``library``.

    registry     the table, and the helpers that lowerings share
    elementwise  arithmetic, comparisons, where, casts, constants
    integers     divisions, powers and shifts of integers
    views        views, concatenation, padding
    reduction    sums, extremes, variances
    gather       indexing by tensors, and its gradients
    random       random numbers, dropout
    scan         cumulative sums and the like
    pooling      max and average pooling, and their gradients
    matmul       matmuls, on targets that have kernels for them
    float8       bytes as float8 numbers
    conv         convolutions as matmuls, on the same targets
"""

from burnt.codegen.ir import const
from burnt.codegen.lower import (  # noqa: F401 - they register their lowerings
    conv,
    elementwise,
    float8,
    gather,
    integers,
    pooling,
    random,
    reduction,
    scan,
    views,
)
from burnt.codegen.lower.registry import (
    LOWERINGS,
    Lowering,
    Scalar,
    Unlowered,
    pointwise,
    register_lowering,
)

__all__ = ["LOWERINGS", "Lowering", "Scalar", "Unlowered", "const", "pointwise", "register_lowering"]
