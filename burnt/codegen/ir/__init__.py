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
    Ix,
    Kept,
    Pooled,
    Product,
    Reduction,
    Scan,
    Split,
    Value,
    Var,
    checked,
    index,
    kept,
    load,
    places,
    raveled,
    rebuilt,
    reduced,
    replaced,
    scanned,
    unraveled,
    variables,
    walk,
)
from burnt.codegen.ir.kernel import Fold, Kernel, Online, Partial, Running, Store, needs

__all__ = [
    "DTYPES",
    "Buffer",
    "Check",
    "Computed",
    "Expr",
    "Fold",
    "Index",
    "Ix",
    "Kept",
    "Kernel",
    "Online",
    "Partial",
    "Pooled",
    "Product",
    "Reduction",
    "Running",
    "Scan",
    "Split",
    "Store",
    "Value",
    "Var",
    "checked",
    "index",
    "kept",
    "load",
    "needs",
    "places",
    "raveled",
    "rebuilt",
    "reduced",
    "replaced",
    "scanned",
    "unraveled",
    "variables",
    "walk",
]
