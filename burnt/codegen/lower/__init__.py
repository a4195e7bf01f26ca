"""Lowering: from aten ops to values of the intermediate form.

A table from op to function. What is not in it runs as torch's own call, and is reported as such.

    table        the table, and what its rows are made of
    elementwise  arithmetic, comparisons, choices, conversions, constants
    integers     divisions, powers and shifts of integers
    views        views and what is made of parts
    reductions   sums, extremes, variances
    gathers      look-ups by tensors of indices, and their gradients
    random       random numbers, dropout
    scans        cumulative sums and the like
    windows      pooling and its gradients
    products     matrix products, and
    convolutions which are some, on targets that print them
"""

from burnt.codegen.lower import (  # each fills its part of the table
    convolutions,
    elementwise,
    gathers,
    integers,
    random,
    reductions,
    scans,
    views,
    windows,
)
from burnt.codegen.lower.table import LOWERINGS, Lowering, Number, Unlowered, const, lowered, pointwise

__all__ = [
    "LOWERINGS",
    "Lowering",
    "Number",
    "Unlowered",
    "const",
    "convolutions",
    "elementwise",
    "gathers",
    "integers",
    "lowered",
    "pointwise",
    "random",
    "reductions",
    "scans",
    "views",
    "windows",
]
