"""Optimize one kernel: the order of its loops and steps, and what its passes over a row share.

A pass is one traversal of a kernel's inner loops. A softmax has three: the maximum, the sum of exponentials,
and the division. The functions here change a kernel in place, in the order of `KernelBuilder.build_kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    OnlineReduction,
    Reduction,
    ReductionStep,
    Store,
    Var,
    depends_on,
    index_value,
    load,
    rebuild,
    substitute,
    variables,
    walk,
)
from burnt.codegen.ir.kernel import replace_reductions
from burnt.codegen.ir.loops import contiguous_strides
from burnt.codegen.lower.registry import HALF_TO_FLOAT32
from burnt.codegen.schedule.capabilities import OnlineThresholds

# Ops that cost about as much as a load. The others take a few tens of instructions: it is faster to store
# their result and load it again than to compute it twice (softmax of 4096 x 1024 float32, storing exp: 1.3
# times).
_CHEAP_OPS = """
    const number load index reduced cast as identity where masked add sub mul neg not and or xor shl shr abs
    sign relu decode_float8
    eq ne lt le gt ge maximum minimum fmax fmin copysign ceil floor round trunc
"""
_CHEAP = frozenset(_CHEAP_OPS.split())
LANES = 16
"""Minimum number of adjacent columns that a column kernel processes together (see `lane_loop`)."""


def is_cheap(expr: Expr) -> bool:
    """Whether computing an expression again costs about as much as loading what it reads.

    What is the same for a whole row does not count.
    """
    loops = variables([expr])
    return all(e.op != "masked" and (e.op in _CHEAP or variables([e]) != loops) for e in walk([expr]))


def order_loops_and_steps(kernel: Kernel) -> None:
    """Order loops by stride, and group steps that can share a pass."""
    _order_loops(kernel)
    levels: list[int] = []
    for i, step in enumerate(kernel.steps):
        min_levels = [
            level + 1
            for other, level in zip(kernel.steps[:i], levels, strict=True)
            if depends_on(step, other)
        ]
        levels.append(max(min_levels, default=0))
    loops = list(dict.fromkeys(step.inner for step in kernel.steps))
    order = sorted(
        range(len(levels)),
        key=lambda i: (levels[i], loops.index(kernel.steps[i].inner), isinstance(kernel.steps[i], Store)),
    )
    kernel.steps = [kernel.steps[i] for i in order]


def _order_loops(kernel: Kernel) -> None:
    """Put inner loops with the largest strides outermost, except those of argmax and argmin.

    Their result counts elements in the loops' original order.
    """
    used = [index.without_computed() for index in kernel.indices]
    ordered = [set(s.inner) for s in kernel.reductions.values() if s.reduction.kind.startswith("arg")]
    for step in kernel.steps:
        if len(step.inner) > 1 and set(step.inner) not in ordered:
            total_stride = {v: sum(abs(index.stride(v) or 0) for index in used) for v in step.inner}
            step.inner = tuple(sorted(step.inner, key=lambda v: -total_stride[v]))


def lane_loop(kernel: Kernel) -> Var | None:
    """Return the outer loop along which most of the accessed memory is contiguous; None if there is none.

    There is one if a kernel reduces columns of a row-major matrix: adjacent columns, or lanes, are then
    processed together, as SIMD vectors.
    """
    votes: dict[Var | None, int] = {}
    inner = {v for step in kernel.steps for v in step.inner}
    loads = [e.extra for e in walk(kernel.exprs) if e.op == "load"]
    stores = [(step.buffer, step.offset) for step in kernel.stores]
    for buffer, offset in (*loads, *stores):
        if buffer.role == "local":
            continue
        size = math.prod(v.extent for v in offset.variables())
        for loop in (None, *kernel.outer):
            if offset.stride(loop) == 1 if loop is not None else any(offset.stride(v) == 1 for v in inner):
                votes[loop] = votes.get(loop, 0) + size
    best = max(votes, key=lambda v: votes[v], default=None)
    return best if best is not None and best.extent >= 8 else None


def simplify_one_hot_sum(kernel: Kernel) -> None:
    """Replace a sum in which a one-hot mask selects one element by that element.

    The gradient of a gather is such a sum.
    """
    elements: dict[tuple[Reduction, Index], Expr] = {}
    for key, step in kernel.reductions.items():
        if step.reduction.kind == "sum" and len(step.inner) == 1:
            element = _one_hot_element(step.body, step.inner[0])
            if element is not None:
                elements[key] = element
                kernel.steps.remove(step)
    if elements:
        for user in kernel.steps:
            user.body = replace_reductions(user.body, elements)
        inner = {step.inner for step in kernel.steps}
        if len(inner) == 1 and not kernel.reductions:
            # No reduction is left: the inner loops can be outer loops.
            kernel.outer += inner.pop()
            for user in kernel.steps:
                user.inner = ()


def _one_hot_element(body: Expr, loop: Var) -> Expr | None:
    """Return the sum of a body that is nonzero in one iteration of a loop only; None for any other body."""
    if body.op != "where" or body.args[2].op != "const" or body.args[2].extra[0] != 0:
        return None
    tests, found = [body.args[0]], []
    while any(test.op == "and" for test in tests):
        tests = [part for test in tests for part in (test.args if test.op == "and" else (test,))]
    for test in tests:
        if test.op == "eq" and test.args[1].op == "index" and test.args[1].extra[0] == IndexExpr.of(loop):
            found.append(test)
    if len(found) != 1:
        return None
    (test,) = found
    selected, rest = test.args[0], [t for t in tests if t is not test]
    if selected.dtype != torch.int64 or loop in variables([selected, body.args[1], *rest]):
        return None
    inside = selected.lt(index_value(IndexExpr(const=loop.extent)))
    for part in (*rest, selected.ge(0)):
        inside = inside & part
    return inside.where(*body.args[1:])


def hoist_reciprocal(kernel: Kernel) -> None:
    """Compute the reciprocal of a softmax's sum once per row, and multiply by it.

    The sum is at least 1, because its largest term is, so the reciprocal adds one rounding error and cannot
    overflow. A vector division takes as long as ten vector multiplications.
    """
    reductions = kernel.reductions

    def reduced_element(e: Expr, kind: str) -> Expr | None:
        """Return what a reduction of this kernel and kind reduces; None if this is not its result."""
        step = reductions.get(e.extra) if e.op == "reduced" else None
        return step.body if step is not None and step.reduction.kind == kind else None

    def replacement(e: Expr) -> Expr | None:
        body = reduced_element(e.args[1], "sum") if e.op == "div" else None
        if body is None or body.op != "exp" or body.args[0].op != "sub":
            return None
        x, row_max = body.args[0].args
        return e.args[0] * e.args[1].apply("reciprocal") if reduced_element(row_max, "max") is x else None

    for step in kernel.stores:
        step.body = rebuild(step.body, replace=replacement)


def cache_shared_exprs(kernel: Kernel, scratch_bytes: int) -> None:
    """Store expensive expressions that several passes compute, so that the later passes load them.

    They are stored in local buffers while scratch is left. Others are stored in the memory of a result that
    the last of these passes overwrites.
    """
    groups = kernel.passes()
    if len(groups) < 2 or not scratch_bytes:
        return
    if lane_loop(kernel) is not None:
        scratch_bytes //= LANES
    passes_of: dict[Expr, list[int]] = {}
    for i, group in enumerate(groups):
        for e in unconditional_exprs([step.body for step in group]):
            passes_of.setdefault(e, []).append(i)
    chosen: dict[Expr, None] = {}

    def choose(e: Expr, inner: tuple[Var, ...], visited: set[Expr]) -> None:
        if e in visited:
            return
        visited.add(e)
        shared = [i for i in passes_of.get(e, ()) if groups[i][0].inner == inner]
        if len(shared) > 1 and variables([e]) >= set(inner) and _is_expensive(e, inner):
            chosen[e] = None
            return
        for argument in e.args:
            choose(argument, inner, visited)

    for group in groups:
        if group[0].inner:
            visited: set[Expr] = set()
            for step in group:
                choose(step.body, group[0].inner, visited)
    reused_buffers: set[Buffer] = set()
    largest_first = sorted(chosen, key=lambda e: -sum(1 for _ in walk([e])))
    for n, e in enumerate(largest_first):
        first, *others = passes_of[e]
        inner = groups[first][0].inner
        dtype = HALF_TO_FLOAT32.get(e.dtype, e.dtype)
        size = math.prod(v.extent for v in inner) * dtype.itemsize
        if size <= scratch_bytes:
            scratch_bytes -= size
            shape = tuple(v.extent for v in inner)
            buffer = Buffer(f"l{n}", "local", 0, shape, contiguous_strides(shape), dtype)
            offset = buffer.at(tuple(map(IndexExpr.of, inner)))
        else:
            result = _find_reusable_store(groups[others[-1]], inner, dtype)
            if result is None or result.buffer in reused_buffers:
                continue
            buffer, offset = result.buffer, result.offset
            reused_buffers.add(buffer)
        loaded = load(buffer, offset)
        if dtype != e.dtype:
            loaded = Expr.make("as", (loaded,), e.dtype)
        for i in others:
            if groups[i][0].inner != inner:
                continue
            for step in groups[i]:
                step.body = rebuild(step.body, replace={e: loaded}.get)
        store = Store(buffer, inner, offset, e, inner)
        kernel.steps.insert(kernel.steps.index(groups[first][-1]) + 1, store)
        groups[first].append(store)


def fuse_online_reductions(
    kernel: Kernel, thresholds: OnlineThresholds, computed_twice: Container[Reduction] = ()
) -> None:
    """Compute sums of exponentials or squares online, in the pass of the maximum or sum that they need.

    This runs after `cache_shared_exprs`: a sum whose exponentials are stored for a later pass stays a pass of
    its own, as it computes them anyway. Sums in `computed_twice`, by several kernels, are not changed: all
    kernels must get the same bits, because the gradient of a maximum compares elements with it for equality.
    """
    reductions = kernel.reductions
    for step in reductions.values():
        online = as_online_reduction(step, reductions)
        is_stored = any(s.body is step.body for s in kernel.stores)
        if online is None or is_stored or step.reduction in computed_twice:
            continue
        if _is_faster_online(online, kernel, thresholds):
            kernel.steps.remove(step)
            kernel.steps.insert(kernel.steps.index(online.reference) + 1, online)


def _is_faster_online(step: OnlineReduction, kernel: Kernel, thresholds: OnlineThresholds) -> bool:
    """Whether one pass is faster than two, by the target's thresholds."""
    loads = {e.extra: e.dtype.itemsize for e in walk([step.body]) if e.op == "load"}
    row_bytes = sum(loads.values()) * step.iterations
    if lane_loop(kernel) is not None:
        return row_bytes * LANES >= thresholds.column_tile_bytes
    if (
        step.kind == "squares"
        and row_bytes * math.prod(v.extent for v in kernel.outer) < thresholds.squares_total_bytes
    ):
        return False
    innermost_bytes = row_bytes // step.iterations * step.inner[-1].extent
    return innermost_bytes >= (
        thresholds.exp_row_bytes if step.kind == "exp" else thresholds.squares_row_bytes
    )


def as_online_reduction(
    step: ReductionStep, reductions: Mapping[tuple[Reduction, Index], ReductionStep]
) -> OnlineReduction | None:
    """Convert a sum of ``exp(x - max(x))`` or ``(x - mean(x))**2`` to an online one; None for any other."""
    body, ignores_infinite_max = step.body, False
    if step.reduction.kind != "sum" or not step.inner or not body.dtype.is_floating_point:
        return None
    if body.op == "exp" and body.args[0].op == "sub":
        kind, (x, other) = "exp", body.args[0].args
        if other.op == "where" and _is_infinite(other.args[0], other.args[2]) and _is_const(other.args[1], 0):
            ignores_infinite_max, other = True, other.args[2]
    elif body.op == "mul" and body.args[0] is body.args[1] and body.args[0].op == "sub":
        kind, (x, other) = "squares", body.args[0].args
        if other.op != "div" or not _is_count(other.args[1], step.iterations):
            return None
        other = other.args[0]
    else:
        return None
    other = strip_casts(other)
    reference = reductions.get(other.extra) if other.op == "reduced" else None
    if reference is None or reference.reduction.kind != {"exp": "max", "squares": "sum"}[kind]:
        return None
    if [v.extent for v in reference.inner] != [v.extent for v in step.inner]:
        return None
    x = substitute(x, dict(zip(step.inner, map(IndexExpr.of, reference.inner), strict=True)))
    if strip_casts(x) is not strip_casts(reference.body):
        return None
    return OnlineReduction(
        step.reduction, step.index, reference.inner, x, kind, reference, ignores_infinite_max
    )


def strip_casts(expr: Expr) -> Expr:
    """Remove the casts around an expression that do not change its value."""
    while expr.op in ("as", "identity") or (
        expr.op == "cast" and expr.args[0].dtype in HALF_TO_FLOAT32 and expr.dtype not in HALF_TO_FLOAT32
    ):
        expr = expr.args[0]
    return expr


def _is_const(expr: Expr, value: float) -> bool:
    return expr.op == "const" and expr.extra[0] == value


def _is_infinite(test: Expr, value: Expr) -> bool:
    """Whether a test is ``abs(value) == inf``."""
    if test.op != "eq" or test.args[0].op != "abs" or not _is_const(test.args[1], math.inf):
        return False
    return test.args[0].args[0] is value


def _is_count(expr: Expr, count: int) -> bool:
    expr = expr.args[0] if expr.op == "cast" else expr
    return expr.op == "index" and expr.extra[0] == IndexExpr(const=count)


def _find_reusable_store(
    steps: Sequence[ReductionStep | Store], inner: tuple[Var, ...], dtype: torch.dtype
) -> Store | None:
    """Return a store whose elements can hold another value of this dtype until they are stored."""
    for step in steps:
        fits = type(step) is Store and step.buffer.dtype == dtype and step.buffer.role != "local"
        if fits and variables([load(step.buffer, step.offset)]) >= set(inner):  # type: ignore[union-attr]
            return step  # type: ignore[return-value]
    return None


def _is_expensive(expr: Expr, inner: tuple[Var, ...]) -> bool:
    """Whether an expression computes more than loads and cheap arithmetic in each iteration of some loops."""
    return any(e.op not in _CHEAP and variables([e]).intersection(inner) for e in walk([expr]))


def unconditional_exprs(exprs: Sequence[Expr]) -> dict[Expr, None]:
    """Return the parts of expressions that are always computed, not only where a mask holds."""
    found: dict[Expr, None] = {}

    def visit(e: Expr) -> None:
        if e in found:
            return
        found[e] = None
        for i, argument in enumerate(e.args):
            if e.op != "masked" or i != 1:
                visit(argument)

    for e in exprs:
        visit(e)
    return found
