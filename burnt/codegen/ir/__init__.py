"""The intermediate representation: what a tensor's element is, and what a kernel does.

    expr     indices, expressions, reductions, buffers, values: what an element is
    kernel   steps and the kernel that holds them: what is computed in which loops
    loops    adjacent loops merged into one

A tensor is a function from an index to an expression, so views cost nothing: they change the index on the way
to what they read. The other packages import these names from here.
"""

from burnt.codegen.ir.expr import (
    DTYPES,
    Buffer,
    Check,
    Computed,
    Expr,
    Index,
    IndexExpr,
    Materialized,
    Matmul,
    PooledMatmul,
    Reduction,
    Scan,
    Split,
    Value,
    Var,
    bounds_checked,
    index_exprs,
    index_value,
    load,
    materialized,
    ravel,
    rebuild,
    reduction_result,
    scan_result,
    substitute,
    unravel,
    variables,
    walk,
)
from burnt.codegen.ir.kernel import (
    Kernel,
    OnlineReduction,
    PartialSum,
    ReductionStep,
    ScanStep,
    Store,
    depends_on,
)

__all__ = [
    "DTYPES",
    "Buffer",
    "Check",
    "Computed",
    "Expr",
    "Index",
    "IndexExpr",
    "Kernel",
    "Materialized",
    "Matmul",
    "OnlineReduction",
    "PartialSum",
    "PooledMatmul",
    "Reduction",
    "ReductionStep",
    "Scan",
    "ScanStep",
    "Split",
    "Store",
    "Value",
    "Var",
    "bounds_checked",
    "depends_on",
    "index_exprs",
    "index_value",
    "load",
    "materialized",
    "ravel",
    "rebuild",
    "reduction_result",
    "scan_result",
    "substitute",
    "unravel",
    "variables",
    "walk",
]
