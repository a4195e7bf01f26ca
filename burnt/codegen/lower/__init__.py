"""Lowering: from aten ops to values of the IR.

A table from op to function. What is not in it runs as torch's own call, and is reported as such.

    registry     the table, and the helpers that lowerings are written with
    elementwise  arithmetic, comparisons, where, casts, constants
    integers     divisions, powers and shifts of integers
    views        views, concatenation, padding
    reduction    sums, extremes, variances
    gather       indexing by tensors, and its gradients
    random       random numbers, dropout
    scan         cumulative sums and the like
    pooling      pooling and its gradients
    matmul       matrix products, on targets that have kernels for them
    conv         convolutions, as matrix products
"""

from burnt.codegen.lower import conv, elementwise, gather, integers, pooling, random, reduction, scan, views
from burnt.codegen.lower.registry import LOWERINGS, Lowering, Scalar, Unlowered, const, lowered, pointwise

__all__ = [
    "LOWERINGS",
    "Lowering",
    "Scalar",
    "Unlowered",
    "const",
    "conv",
    "elementwise",
    "gather",
    "integers",
    "lowered",
    "pointwise",
    "pooling",
    "random",
    "reduction",
    "scan",
    "views",
]
