"""Lowerings of matrix products, for targets that print them: a fold whose elements are products.

They stand in a table of their own: elsewhere torch's calls serve, and what they make is worth saving.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from burnt.codegen.ir import Expr, Index, Matmul, Value, Var, reduction_result, variables, walk
from burnt.codegen.lower.registry import (
    LOWERINGS,
    SHORT,
    Unlowered,
    aten,
    cast,
    compute_dtype,
    meta_of,
    pointwise,
)
from burnt.codegen.precision import precision

__all__ = [
    "LEAST",
    "MATMULS",
    "MATRICES",
    "expensive_rows",
    "is_cheap",
    "lowers_matmul",
    "matmul",
    "matmul_value",
    "operands_of",
    "why_eager",
    "why_not_fused",
]

MATMULS: dict[Any, Callable[..., Any]] = {}
MATRICES = aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default
"""Those of matrices, ``[*, rows, terms]`` by ``[*, terms, columns]``."""
_FACTORS: dict[Any, tuple[int, ...]] = {}
LEAST = 16
"""Rows, columns and terms, as the units for products take them."""

_VIEWS = frozenset(
    getattr(aten, name).default
    for name in ("view", "_unsafe_view", "t", "permute", "expand", "unsqueeze", "squeeze", "detach", "alias")
) | {aten.transpose.int, aten.squeeze.dim, aten.squeeze.dims}
_DTYPES = (torch.float32, *SHORT)
_CHEAP_OPS = """
    const number load index cast as identity where masked add sub mul neg not and or abs relu eq ne lt le gt
    ge maximum minimum
"""
_CHEAP = frozenset(_CHEAP_OPS.split())
_MOST_OPS, _MOST_LOADS, _MOST_WHOLE = 16, 5, 3


def matmul_value(
    shape: Sequence[int],
    extents: Sequence[int],
    factors: Callable[[Index, Index], tuple[Expr, Expr]],
    dtype: torch.dtype,
) -> Value:
    """The sum of products of two factors, in float32, given in the dtype that they have in memory.

    Args:
        shape: of the result, ``[*, rows, columns]``.
        extents: what is summed over.
        factors: of which the first does not depend on the column, the second not on the row, as functions of
            an index and a place in `extents`.
        dtype: the factors'.

    Raises:
        Unlowered: of dtypes or sizes that units for products do not take.
    """
    if dtype not in _DTYPES or min(*shape[-2:], math.prod(extents)) < LEAST or 0 in shape:
        raise Unlowered
    inside = compute_dtype(dtype)

    def body(outer: Index, inner: Index) -> Expr:
        return Expr.make("mul", [cast(factor, inside) for factor in factors(outer, inner)], inside)

    fold = Matmul("sum", tuple(shape), tuple(extents), inside, body, dtype, precision())

    def at(index: Index) -> Expr:
        made = reduction_result(fold, index)
        return made if dtype == inside else Expr.make("as", (made,), dtype)

    return Value(fold.shape, dtype, at)


def matmul(left: Value, right: Value) -> Value:
    """``[*, rows, k] @ [*, k, columns]``, the leading axes alike.

    Raises:
        Unlowered: of dtypes or sizes that units for products do not take.
    """
    *lead, rows, terms = left.shape
    if right.dtype != left.dtype:
        raise Unlowered

    def factors(outer: Index, inner: Index) -> tuple[Expr, Expr]:
        *at, row, column = outer
        (term,) = inner
        return left.at((*at, row, term)), right.at((*at, term, column))

    return matmul_value((*lead, rows, right.shape[-1]), (terms,), factors, left.dtype)


def operands_of(node: Node) -> list[Node]:
    """The tensors that a product multiplies."""
    return [node.args[k] for k in _FACTORS[node.target]]  # type: ignore[misc]


def why_eager(node: Node) -> str | None:
    """Why a product had better be torch's own call, or None.

    Its libraries are hard to beat at products and nothing else. What makes a kernel of our own worth while
    is what it computes beside.
    """
    factors = operands_of(node)
    precise = factors[0].meta["val"].dtype == torch.float32 and precision() == "ieee"
    if precise and not is_depthwise(node):  # of which nothing goes through units for products
        return "float32 is multiplied without tensor cores unless burnt.kernels.set_precision allows them"
    if node.target == aten.convolution_backward.default:
        return "its own call makes all gradients of a convolution"
    if (why := why_not_fused(node)) is not None:
        return why
    near = (*map(_base, factors), *_readers(node))
    lowered = [n.op == "call_function" and n.target in LOWERINGS for n in near]
    return None if any(lowered) else "its own call does all of it"


def is_depthwise(node: Node) -> bool:
    """Whether a node is a convolution of which each channel has a kernel of its own."""
    weight = operands_of(node)[-1].meta["val"]
    return node.target == aten.convolution.default and bool(weight.shape[1] == 1 and node.args[8] > 1)  # type: ignore[operator]


def why_not_fused(node: Node) -> str | None:
    """Why a product had better be torch's own call whatever is computed beside it, or None."""
    if node.target not in (aten.convolution.default, aten.convolution_backward.default):
        return None
    if is_depthwise(node):
        return None
    images = [f.meta["val"] for f in operands_of(node)[:-1]]
    if all(x.shape[1] == 1 or x.stride(1) == 1 for x in images):
        return None
    return "a convolution's input is not channels-last: what its kernel multiplies lies apart"


def _base(node: Node) -> Node:
    """What a node is a view of."""
    while node.target in _VIEWS:
        node = node.all_input_nodes[0]
    return node


def _readers(node: Node) -> list[Node]:
    """What reads a node or a view of it."""
    return [r for user in node.users for r in (_readers(user) if user.target in _VIEWS else [user])]


def _scaled(value: Value, factor: Any, meta: torch.Tensor) -> Value:
    plain = isinstance(factor, int | float) and factor == 1
    return value if plain else pointwise("mul", meta, [value, factor], meta.dtype)


def lowers_matmul(
    *ops: Any, factors: tuple[int, ...] = (-2, -1)
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a lowering of products: a decorator.

    Args:
        ops: overloads.
        factors: which of their arguments are multiplied.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        MATMULS.update(dict.fromkeys(ops, fn))
        _FACTORS.update(dict.fromkeys(ops, factors))
        return fn

    return register


@lowers_matmul(*MATRICES[:2])
def _mm(meta: torch.Tensor, left: Value, right: Value) -> Value:
    return matmul(left, right)


@lowers_matmul(*MATRICES[2:])
def _addmm(
    meta: torch.Tensor, added: Value, left: Value, right: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    made = _scaled(matmul(left, right), alpha, meta)
    if isinstance(beta, int | float) and beta == 0:
        return made  # and what is added is not looked at, NaN or not
    return pointwise("add", meta, [made, _scaled(added, beta, meta_of(added.shape, added.dtype))], meta.dtype)


def is_cheap(element: Expr) -> bool:
    """Whether a factor's element may be computed wherever a tile is read, several times in all."""
    found = list(walk([element]))
    loads = [e for e in found if e.op == "load"]
    whole = [e for e in loads if len(variables([e])) > 1]  # not the same for a row, or a column
    few = len(found) <= _MOST_OPS and len(loads) <= _MOST_LOADS and len(whole) <= _MOST_WHOLE
    return few and all(e.op in _CHEAP for e in found)


def expensive_rows(element: Expr, term: set[Var]) -> list[Expr]:
    """The largest parts of a factor's element that are dear and the same for all terms of a row."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    todo = [element]
    while todo:
        e = todo.pop()
        if e in seen:
            continue
        seen.add(e)
        inside = list(walk([e]))
        if all(part.op in _CHEAP for part in inside):
            continue
        if variables(inside) & term:
            # What a test stands before is not there where it fails.
            todo += [a for k, a in enumerate(e.args) if e.op != "masked" or k != 1]
        else:
            found[e] = None
    return list(found)
