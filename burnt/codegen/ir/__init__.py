"""The intermediate representation: expressions for tensor elements, and kernels that compute them in loops.

    expr     index expressions, element expressions, reductions, scans, buffers, values
    kernel   a kernel and its steps: what is computed in which loops
    loops    create, split and merge loops

A tensor is a function from an index to an expression, so views cost nothing: they only change the index. The
other packages import these names from here.
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
    checked_value,
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
    "checked_value",
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
