"""Lowerings of matmuls, for targets that have matmul kernels: a sum whose terms are products of two operands.

They have a table of their own: other targets call the library, and save its results for the backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from burnt.codegen.ir import Expr, Index, Matmul, Value, Var, cast, reduction_result, variables, walk
from burnt.codegen.lower.registry import (
    HALF_TO_FLOAT32,
    LOWERINGS,
    Unlowered,
    aten,
    compute_dtype,
    meta_tensor,
    pointwise,
    rounded,
)
from burnt.codegen.precision import precision

MATMUL_LOWERINGS: dict[Any, Callable[..., Any]] = {}
MM_OPS = aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default
"""The ops that multiply ``[*, rows, terms]`` by ``[*, terms, columns]``."""
_CONVOLUTIONS = aten.convolution.default, aten.convolution_backward.default
_OPERAND_POSITIONS: dict[Any, tuple[int, ...]] = {}
MIN_MATMUL_SIZE = 16
"""Minimum number of rows, columns and terms: the size of a tensor core's tile."""

_VIEW_OPS = frozenset(
    getattr(aten, name).default
    for name in ("view", "_unsafe_view", "t", "permute", "expand", "unsqueeze", "squeeze", "detach", "alias")
) | {aten.transpose.int, aten.squeeze.dim, aten.squeeze.dims}
_MATMUL_DTYPES = (torch.float32, *HALF_TO_FLOAT32)
_CHEAP_OP_NAMES = """
    const number load index cast as identity where masked add sub mul neg not and or xor shl shr abs relu eq
    ne lt le gt ge maximum minimum decode_float8
"""
_CHEAP_OPS = frozenset(_CHEAP_OP_NAMES.split())
_MAX_OPS, _MAX_LOADS, _MAX_FULL_LOADS = 16, 5, 3


def matmul_value(
    shape: Sequence[int],
    extents: Sequence[int],
    operands: Callable[[Index, Index], tuple[Expr, Expr]],
    dtype: torch.dtype,
) -> Value:
    """Return a matmul ``[*, rows, columns]``: the sum of products of two operands, accumulated in float32.

    `operands` returns the elements of both for an index into `shape` and one into `extents`, the axes that
    are summed over. The first must not depend on the column, the second not on the row. `dtype` is the
    operands' in memory, and the result's. Raises `Unlowered` if tensor cores do not support the dtype or the
    sizes.
    """
    if dtype not in _MATMUL_DTYPES or min(*shape[-2:], math.prod(extents)) < MIN_MATMUL_SIZE or 0 in shape:
        raise Unlowered
    math_dtype = compute_dtype(dtype)

    def body(outer: Index, inner: Index) -> Expr:
        return product(operands(outer, inner), math_dtype)

    node = Matmul("sum", tuple(shape), tuple(extents), math_dtype, body, dtype, precision())
    return Value(node.shape, dtype, lambda index: rounded(reduction_result(node, index), dtype))


def product(operands: tuple[Expr, Expr], dtype: torch.dtype) -> Expr:
    """Return the product of two elements, computed in a dtype."""
    left, right = operands
    return cast(left, dtype) * cast(right, dtype)


def matmul(left: Value, right: Value) -> Value:
    """Return ``[*, rows, k] @ [*, k, columns]``, with the same leading axes."""
    *lead, rows, terms = left.shape
    if right.dtype != left.dtype:
        raise Unlowered

    def operands(outer: Index, inner: Index) -> tuple[Expr, Expr]:
        *at, row, column = outer
        (term,) = inner
        return left.at((*at, row, term)), right.at((*at, term, column))

    return matmul_value((*lead, rows, right.shape[-1]), (terms,), operands, left.dtype)


def operands_of(node: Node) -> list[Node]:
    """Return the argument nodes that a matmul or convolution multiplies."""
    return [node.args[k] for k in _OPERAND_POSITIONS[node.target]]  # type: ignore[misc]


def why_library_call(node: Node) -> str | None:
    """Return why a matmul should be a library call, or None if it should be generated.

    A generated kernel is worth it only for what is fused with it: at a matmul alone, libraries are hard to
    beat.
    """
    operands = operands_of(node)
    is_ieee_float32 = operands[0].meta["val"].dtype == torch.float32 and precision() == "ieee"
    if is_ieee_float32 and not is_depthwise(node):  # which uses no tensor cores
        return "float32 is multiplied without tensor cores unless burnt.kernels.set_precision allows them"
    if node.target == aten.convolution_backward.default:
        return "one library call computes all gradients of a convolution"
    if (why := why_always_library_call(node)) is not None:
        return why
    neighbors = (*map(_strip_views, operands), *_users_through_views(node))
    are_lowered = [n.op == "call_function" and n.target in LOWERINGS for n in neighbors]
    return None if any(are_lowered) else "nothing to fuse with it"


def is_depthwise(node: Node) -> bool:
    """Whether a node is a depthwise convolution: one kernel per channel."""
    weight = operands_of(node)[-1].meta["val"]
    return node.target == aten.convolution.default and bool(weight.shape[1] == 1 and node.args[8] > 1)  # type: ignore[operator]


def why_always_library_call(node: Node) -> str | None:
    """Return why a matmul should be a library call whatever could be fused with it, or None."""
    if node.target not in _CONVOLUTIONS:
        return None
    if is_depthwise(node):
        return None
    inputs = [f.meta["val"] for f in operands_of(node)[:-1]]
    if all(x.shape[1] == 1 or x.stride(1) == 1 for x in inputs):
        return None
    return "a convolution's input is not channels-last, so its channels are not contiguous"


def _strip_views(node: Node) -> Node:
    """Return the node that a node is a view of, or the node itself if it is not a view."""
    while node.target in _VIEW_OPS:
        node = node.all_input_nodes[0]
    return node


def _users_through_views(node: Node) -> list[Node]:
    return [
        r for user in node.users for r in (_users_through_views(user) if user.target in _VIEW_OPS else [user])
    ]


def _scale(value: Value, scale: Any, meta: torch.Tensor) -> Value:
    is_one = isinstance(scale, int | float) and scale == 1
    return value if is_one else pointwise("mul", meta, [value, scale], meta.dtype)


def register_matmul_lowering(
    *ops: Any, operands: tuple[int, ...] = (-2, -1)
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: register a lowering of matmuls or convolutions, by the positions of their operands."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        MATMUL_LOWERINGS.update(dict.fromkeys(ops, fn))
        _OPERAND_POSITIONS.update(dict.fromkeys(ops, operands))
        return fn

    return register


@register_matmul_lowering(*MM_OPS[:2])
def _lower_mm(meta: torch.Tensor, left: Value, right: Value) -> Value:
    return matmul(left, right)


@register_matmul_lowering(*MM_OPS[2:])
def _lower_addmm(
    meta: torch.Tensor, bias: Value, left: Value, right: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    result = _scale(matmul(left, right), alpha, meta)
    if isinstance(beta, int | float) and beta == 0:
        return result  # as in torch, the input is ignored, even if it is NaN
    return pointwise(
        "add", meta, [result, _scale(bias, beta, meta_tensor(bias.shape, bias.dtype))], meta.dtype
    )


def count_reads(node: Node, operand: Node) -> int:
    """Return how many times a matmul or convolution computes an element of an operand for a tile.

    A convolution computes it for each tap (a depthwise one shares what its taps compute), and the gradient of
    its result for both gradients that it has.
    """
    if node.target not in _CONVOLUTIONS:
        return 1
    shape = operands_of(node)[-1].meta["val"].shape
    num_taps = 1 if shape[1] == 1 else math.prod(shape[2:])
    is_shared = node.target == aten.convolution_backward.default and operand is node.args[0]
    return num_taps * sum(node.args[-1][:2]) if is_shared else num_taps  # type: ignore[index,operator,arg-type]


def is_cheap_operand(element: Expr, num_reads: int = 1) -> bool:
    """Whether an operand's element may be recomputed every time that a tile of it is read.

    Not if that is several times: a load from memory takes less, and copies run on their own.
    """
    if num_reads > 1:
        while element.op == "masked":
            element = element.args[1]
        return element.op == "load"
    nodes = list(walk([element]))
    loads = [e for e in nodes if e.op == "load"]
    full_loads = [e for e in loads if len(variables([e])) > 1]  # that differ in each row and column
    is_small = len(nodes) <= _MAX_OPS and len(loads) <= _MAX_LOADS and len(full_loads) <= _MAX_FULL_LOADS
    return is_small and all(e.op in _CHEAP_OPS for e in nodes)


def expensive_row_parts(element: Expr, term_vars: set[Var]) -> list[Expr]:
    """Return the largest expensive parts of an operand's element that are the same for all terms of a row.

    `term_vars` are the loop variables of the sum's axis.
    """
    parts: dict[Expr, None] = {}
    seen: set[Expr] = set()
    todo = [element]
    while todo:
        e = todo.pop()
        if e in seen:
            continue
        seen.add(e)
        nodes = list(walk([e]))
        if all(inner.op in _CHEAP_OPS for inner in nodes):
            continue
        if variables(nodes) & term_vars:
            # Not the guarded argument of `masked`: where the test fails, it may be out of range.
            todo += [a for k, a in enumerate(e.args) if e.op != "masked" or k != 1]
        else:
            parts[e] = None
    return list(parts)
