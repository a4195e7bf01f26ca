"""Lowerings of matrix products, for targets that print them: a fold whose elements are products.

They stand in a table of their own: elsewhere torch's calls serve, and what they make is worth saving.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from burnt.codegen.ir import Expr, Index, Product, Value, reduced, walk
from burnt.codegen.lower.table import (
    LOWERINGS,
    SHORT,
    Unlowered,
    aten,
    cast,
    compute_dtype,
    meta_of,
    pointwise,
)

__all__ = ["PRODUCTS", "is_cheap", "precision", "product", "why_torch"]

PRODUCTS: dict[Any, Callable[..., Value]] = {}

_VIEWS = frozenset(
    getattr(aten, name).default
    for name in ("view", "_unsafe_view", "t", "permute", "expand", "unsqueeze", "squeeze", "detach", "alias")
) | {aten.transpose.int, aten.squeeze.dim, aten.squeeze.dims}
_DTYPES = (torch.float32, *SHORT)
_LEAST = 16  # rows, columns and terms, as the units for products take them
_CHEAP_OPS = """
    const number load index cast as identity where masked add sub mul neg not and or abs relu eq ne lt le gt
    ge maximum minimum
"""
_CHEAP = frozenset(_CHEAP_OPS.split())
_MOST_OPS, _MOST_LOADS = 12, 3


def product(left: Value, right: Value) -> Value:
    """``[*, rows, k] @ [*, k, columns]``, the leading axes alike; summed in float32, given in `left`'s dtype.

    Raises:
        Unlowered: of dtypes or sizes that units for products do not take.
    """
    *lead, rows, terms = left.shape
    columns = right.shape[-1]
    dtype = left.dtype
    if dtype not in _DTYPES or right.dtype != dtype or min(rows, columns, terms) < _LEAST or 0 in lead:
        raise Unlowered
    inside = compute_dtype(dtype)

    def body(outer: Index, inner: Index) -> Expr:
        *at, row, column = outer
        (term,) = inner
        factors = left.at((*at, row, term)), right.at((*at, term, column))
        return Expr.make("mul", [cast(factor, inside) for factor in factors], inside)

    fold = Product("sum", (*lead, rows, columns), (terms,), inside, body, dtype, precision())

    def at(index: Index) -> Expr:
        made = reduced(fold, index)
        return made if dtype == inside else Expr.make("as", (made,), dtype)

    return Value(fold.shape, dtype, at)


_PRECISIONS = {"highest": "ieee", "high": "tf32", "medium": "flex32"}


def precision() -> str:
    """How float32 is multiplied, as `torch.set_float32_matmul_precision` wants it."""
    return _PRECISIONS[torch.get_float32_matmul_precision()]


def why_torch(node: Node) -> str | None:
    """Why a product had better be torch's own call, or None.

    Its libraries are hard to beat at products and nothing else. What makes a kernel of our own worth while
    is what it computes beside.
    """
    value = node.meta["val"]
    if value.dtype == torch.float32 and precision() == "ieee":
        return (
            "float32 is multiplied without tensor cores unless torch.set_float32_matmul_precision allows it"
        )
    factors = [_base(n) for n in node.args[-2:] if isinstance(n, Node)]
    lowered = [n.op == "call_function" and n.target in LOWERINGS for n in (*factors, *_readers(node))]
    return None if any(lowered) else "its own call does all of it"


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


def _of(*ops: Any) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    def register(fn: Callable[..., Value]) -> Callable[..., Value]:
        PRODUCTS.update(dict.fromkeys(ops, fn))
        return fn

    return register


@_of(aten.mm.default, aten.bmm.default)
def _mm(meta: torch.Tensor, left: Value, right: Value) -> Value:
    return product(left, right)


@_of(aten.addmm.default, aten.baddbmm.default)
def _addmm(
    meta: torch.Tensor, added: Value, left: Value, right: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    made = _scaled(product(left, right), alpha, meta)
    if isinstance(beta, int | float) and beta == 0:
        return made  # and what is added is not looked at, NaN or not
    return pointwise("add", meta, [made, _scaled(added, beta, meta_of(added.shape, added.dtype))], meta.dtype)


def is_cheap(element: Expr) -> bool:
    """Whether a factor's element may be computed wherever a tile is read, several times in all."""
    ops = [e.op for e in walk([element])]
    return len(ops) <= _MOST_OPS and ops.count("load") <= _MOST_LOADS and _CHEAP.issuperset(ops)
