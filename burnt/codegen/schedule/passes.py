"""Passes of a kernel over its rows: which steps share one, and what is kept from one for the next."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

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
    ScanStep,
    Store,
    Var,
    depends_on,
    index_exprs,
    index_value,
    load,
    rebuild,
    substitute,
    variables,
    walk,
)
from burnt.codegen.lower.registry import HALF_TO_FLOAT32, const

__all__ = [
    "LANES",
    "OnlineThresholds",
    "arrange",
    "cache_shared_exprs",
    "fuse_online_reductions",
    "hoist_reciprocal",
    "lane_of",
    "online_of",
    "plain",
    "simplify_one_hot_sum",
    "unguarded",
]

# Ops that cost about as much as a load; of the others, a few tens of instructions, one is worth a load and a
# store (softmax of 4096 x 1024 float32 with its exp kept: 1.3 times as fast as computed twice).
_CHEAP_OPS = """
    const number load index reduced cast as identity where masked add sub mul neg not and or xor abs sign relu
    eq ne lt le gt ge maximum minimum fmax fmin copysign ceil floor round trunc
"""
_CHEAP = frozenset(_CHEAP_OPS.split())
LANES = 16
"""Turns of the loop that memory runs along which a kernel by columns takes together, at the least."""


class OnlineThresholds(NamedTuple):
    """The bytes from which on a sum shares the pass of a fold whose result it needs (`ir.Online`).

    Args:
        exp: that are read along the innermost loop, for a sum of exponentials.
        squares: the same, for a sum of squares.
        total: of all rows, for a sum of squares.
        columns: of `LANES` neighbours, where memory runs along an outer loop.
    """

    exp: int = 0
    squares: int = 0
    total: int = 0
    columns: int = 0


def arrange(kernel: Kernel) -> None:
    """Nest loops as memory lies, and bring steps together that can share a pass."""
    _nest(kernel)
    levels: list[int] = []
    for i, step in enumerate(kernel.steps):
        before = [
            level + 1
            for other, level in zip(kernel.steps[:i], levels, strict=True)
            if depends_on(step, other)
        ]
        levels.append(max(before, default=0))
    loops = list(dict.fromkeys(step.inner for step in kernel.steps))
    order = sorted(
        range(len(levels)),
        key=lambda i: (levels[i], loops.index(kernel.steps[i].inner), isinstance(kernel.steps[i], Store)),
    )
    kernel.steps = [kernel.steps[i] for i in order]


def _nest(kernel: Kernel) -> None:
    """Put inner loops with the largest strides outermost, unless places are counted along them."""
    walked = [place.without_computed() for expr in walk(kernel.exprs) for place in index_exprs(expr)]
    walked += [step.offset.without_computed() for step in kernel.steps if isinstance(step, Store)]
    counted = [
        set(step.inner)
        for step in kernel.steps
        if isinstance(step, ReductionStep) and step.reduction.kind.startswith("arg")
    ]
    for step in kernel.steps:
        if len(step.inner) > 1 and set(step.inner) not in counted:
            reach = {v: sum(abs(place.stride(v) or 0) for place in walked) for v in step.inner}
            step.inner = tuple(sorted(step.inner, key=lambda v: -reach[v]))


def lane_of(kernel: Kernel) -> Var | None:
    """The outer loop that most of what is moved lies along, where the inner loops do not."""
    votes: dict[Var | None, int] = {}
    inner = {v for step in kernel.steps for v in step.inner}
    loads = [e.extra for e in walk(kernel.exprs) if e.op == "load"]
    stores = [(step.buffer, step.offset) for step in kernel.steps if isinstance(step, Store)]
    for buffer, place in (*loads, *stores):
        assert isinstance(buffer, Buffer)
        assert isinstance(place, IndexExpr)
        if buffer.role == "local":
            continue
        size = math.prod(v.extent for v in place.variables())
        for along in (None, *kernel.outer):
            if place.stride(along) == 1 if along is not None else any(place.stride(v) == 1 for v in inner):
                votes[along] = votes.get(along, 0) + size
    best = max(votes, key=lambda v: votes[v], default=None)
    return best if best is not None and best.extent >= 8 else None


def simplify_one_hot_sum(kernel: Kernel) -> None:
    """Take the one element that a sum picks, as the gradient of a look-up does, without the sum."""
    picked: dict[tuple[object, ...], Expr] = {}
    for step in kernel.steps:
        if isinstance(step, ReductionStep) and step.reduction.kind == "sum" and len(step.inner) == 1:
            element = _picked(step.body, step.inner[0])
            if element is not None:
                picked[step.reduction, step.index] = element

    def swap(e: Expr) -> Expr | None:
        return picked.get(e.extra) if e.op == "reduced" else None

    if picked:
        kernel.steps = [
            s for s in kernel.steps if not (isinstance(s, ReductionStep) and (s.reduction, s.index) in picked)
        ]
        for step in kernel.steps:
            _set(step, rebuild(_expr(step), replace=swap))
        inner = {step.inner for step in kernel.steps}
        if len(inner) == 1 and not any(isinstance(step, ReductionStep) for step in kernel.steps):
            # Nothing holds the rows together any more.
            kernel.outer += inner.pop()
            for step in kernel.steps:
                step.inner = ()


def _picked(body: Expr, along: Var) -> Expr | None:
    """What the sum of a body comes to that is not 0 at one place of a loop; None for any other body."""
    if body.op != "where" or body.args[2].op != "const" or body.args[2].extra[0] != 0:
        return None
    tests, found = [body.args[0]], []
    while any(test.op == "and" for test in tests):
        tests = [part for test in tests for part in (test.args if test.op == "and" else (test,))]
    for test in tests:
        if test.op == "eq" and test.args[1].op == "index" and test.args[1].extra[0] == IndexExpr.of(along):
            found.append(test)
    if len(found) != 1:
        return None
    (test,) = found
    place, rest = test.args[0], [t for t in tests if t is not test]
    if place.dtype != torch.int64 or along in variables([place, body.args[1], *rest]):
        return None
    low = Expr.make("ge", (place, const(0, torch.int64)), torch.bool)
    inside = Expr.make("lt", (place, index_value(IndexExpr(const=along.extent))), torch.bool)
    for part in (*rest, low):
        inside = Expr.make("and", (inside, part), torch.bool)
    return Expr.make("where", (inside, *body.args[1:]), body.dtype)


def hoist_reciprocal(kernel: Kernel) -> None:
    """Divide by a softmax's sum once for each row.

    Such a sum is at least 1, since the largest of its elements is, so that its reciprocal loses a rounding
    and no more. A vector's division takes as long as ten of its products.
    """
    bodies = {(s.reduction, s.index): s.body for s in kernel.steps if isinstance(s, ReductionStep)}
    kinds = {(s.reduction, s.index): s.reduction.kind for s in kernel.steps if isinstance(s, ReductionStep)}

    def swap(e: Expr) -> Expr | None:
        if e.op != "div" or e.args[1].op != "reduced" or kinds.get(e.args[1].extra) != "sum":  # type: ignore[arg-type]
            return None
        body = bodies[e.args[1].extra]  # type: ignore[index]
        if body.op != "exp" or body.args[0].op != "sub":
            return None
        x, peak = body.args[0].args
        if peak.op != "reduced" or kinds.get(peak.extra) != "max" or bodies[peak.extra] is not x:  # type: ignore[arg-type, index]
            return None
        once = Expr.make("reciprocal", (e.args[1],), e.dtype)
        return Expr.make("mul", (e.args[0], once), e.dtype)

    for step in kernel.steps:
        if isinstance(step, Store):
            step.value = rebuild(step.value, replace=swap)


def cache_shared_exprs(kernel: Kernel, scratch: int) -> None:
    """Store what is dear and needed by more than one pass, for the later ones to load.

    It goes into local buffers as far as scratch does, and then to where the last of these passes will store
    one of the kernel's results.
    """
    groups = kernel.passes()
    if len(groups) < 2 or not scratch:
        return
    if lane_of(kernel) is not None:
        scratch //= LANES
    met: dict[Expr, list[int]] = {}
    for i, group in enumerate(groups):
        for e in unguarded([_expr(step) for step in group]):
            met.setdefault(e, []).append(i)
    chosen: dict[Expr, None] = {}

    def choose(e: Expr, inner: tuple[Var, ...], visited: set[Expr]) -> None:
        if e in visited:
            return
        visited.add(e)
        shared = [i for i in met.get(e, ()) if groups[i][0].inner == inner]
        if len(shared) > 1 and variables([e]) >= set(inner) and _is_dear(e, inner):
            chosen[e] = None
            return
        for argument in e.args:
            choose(argument, inner, visited)

    for group in groups:
        if group[0].inner:
            visited: set[Expr] = set()
            for step in group:
                choose(_expr(step), group[0].inner, visited)
    lent: set[Buffer] = set()
    held = sorted(chosen, key=lambda e: -sum(1 for _ in walk([e])))
    for n, e in enumerate(held):
        first, *others = met[e]
        inner = groups[first][0].inner
        dtype = HALF_TO_FLOAT32.get(e.dtype, e.dtype)
        size = math.prod(v.extent for v in inner) * dtype.itemsize
        if size <= scratch:
            scratch -= size
            buffer = _local(f"l{n}", inner, dtype)
            place = buffer.at(tuple(map(IndexExpr.of, inner)))
        else:
            result = _result_of(groups[others[-1]], inner, dtype)
            if result is None or result.buffer in lent:
                continue
            buffer, place = result.buffer, result.offset
            lent.add(buffer)
        back = load(buffer, place)
        if dtype != e.dtype:
            back = Expr.make("as", (back,), e.dtype)
        for i in others:
            if groups[i][0].inner != inner:
                continue
            for step in groups[i]:
                _swap(step, e, back)
        store = Store(buffer, inner, place, e, inner)
        kernel.steps.insert(kernel.steps.index(groups[first][-1]) + 1, store)
        groups[first].append(store)


def fuse_online_reductions(
    kernel: Kernel, joins: OnlineThresholds, several: Container[Reduction] = ()
) -> None:
    """Let sums of exponentials, and of squares, share a pass with the fold whose result they need.

    It comes after `cache_shared_exprs`: an exponential that a later pass needs again is not computed for this
    one, too. What several kernels compute must come out the same in all of them, to the bit: the gradient of
    a maximum asks which elements are equal to it. So sums that are among `several` are left as they are.
    """
    folds = {(s.reduction, s.index): s for s in kernel.steps if isinstance(s, ReductionStep)}
    for step in list(folds.values()):
        made = online_of(step, folds)
        kept = any(isinstance(s, Store) and s.value is step.body for s in kernel.steps)
        if made is None or kept or step.reduction in several:
            continue
        if _gains(made, kernel, joins):
            kernel.steps.remove(step)
            kernel.steps.insert(kernel.steps.index(made.reference) + 1, made)


def _gains(step: OnlineReduction, kernel: Kernel, joins: OnlineThresholds) -> bool:
    """Whether two passes would take longer."""
    loads = {e.extra: e.dtype.itemsize for e in walk([step.body]) if e.op == "load"}
    row = sum(loads.values()) * step.iterations
    if lane_of(kernel) is not None:
        return row * LANES >= joins.columns
    if step.kind == "squares" and row * math.prod(v.extent for v in kernel.outer) < joins.total:
        return False
    straight = row // step.iterations * step.inner[-1].extent
    return straight >= (joins.exp if step.kind == "exp" else joins.squares)


def online_of(
    step: ReductionStep, folds: Mapping[tuple[Reduction, Index], ReductionStep]
) -> OnlineReduction | None:
    """A fold as one that needs no result of another's; None where it is no such sum."""
    body, finite = step.body, False
    if step.reduction.kind != "sum" or not step.inner or not body.dtype.is_floating_point:
        return None
    if body.op == "exp" and body.args[0].op == "sub":
        kind, (x, other) = "exp", body.args[0].args
        if other.op == "where" and _is_infinite(other.args[0], other.args[2]) and _is(other.args[1], 0):
            finite, other = True, other.args[2]
    elif body.op == "mul" and body.args[0] is body.args[1] and body.args[0].op == "sub":
        kind, (x, other) = "squares", body.args[0].args
        if other.op != "div" or not _counts(other.args[1], step.iterations):
            return None
        other = other.args[0]
    else:
        return None
    other = plain(other)
    beside = folds.get(other.extra) if other.op == "reduced" else None  # type: ignore[arg-type]
    if beside is None or beside.reduction.kind != {"exp": "max", "squares": "sum"}[kind]:
        return None
    if [v.extent for v in beside.inner] != [v.extent for v in step.inner]:
        return None
    x = substitute(x, dict(zip(step.inner, map(IndexExpr.of, beside.inner), strict=True)))
    if plain(x) is not plain(beside.body):
        return None
    return OnlineReduction(step.reduction, step.index, beside.inner, x, kind, beside, finite)


def plain(expr: Expr) -> Expr:
    """Without conversions that leave a value as it is."""
    while expr.op in ("as", "identity") or (
        expr.op == "cast" and expr.args[0].dtype in HALF_TO_FLOAT32 and expr.dtype not in HALF_TO_FLOAT32
    ):
        expr = expr.args[0]
    return expr


def _is(expr: Expr, value: float) -> bool:
    return expr.op == "const" and expr.extra[0] == value


def _is_infinite(test: Expr, value: Expr) -> bool:
    """Whether a test is that of a value for infinity."""
    if test.op != "eq" or test.args[0].op != "abs" or not _is(test.args[1], math.inf):
        return False
    return test.args[0].args[0] is value


def _counts(expr: Expr, turns: int) -> bool:
    """Whether an expression is a number of turns."""
    expr = expr.args[0] if expr.op == "cast" else expr
    return expr.op == "index" and expr.extra[0] == IndexExpr(const=turns)


def _result_of(
    steps: Sequence[ReductionStep | Store], inner: tuple[Var, ...], dtype: torch.dtype
) -> Store | None:
    """A store of a pass in whose place an element of a dtype can lie for each of its turns."""
    for step in steps:
        fits = type(step) is Store and step.buffer.dtype == dtype and step.buffer.role != "local"
        if fits and variables([load(step.buffer, step.offset)]) >= set(inner):  # type: ignore[union-attr]
            return step  # type: ignore[return-value]
    return None


def _local(name: str, inner: tuple[Var, ...], dtype: torch.dtype) -> Buffer:
    strides, step = [], 1
    for var in reversed(inner):
        strides.append(step)
        step *= var.extent
    return Buffer(name, "local", 0, tuple(v.extent for v in inner), tuple(reversed(strides)), dtype)


def _expr(step: ReductionStep | ScanStep | Store) -> Expr:
    return step.value if isinstance(step, Store) else step.body


def _set(step: ReductionStep | ScanStep | Store, expr: Expr) -> None:
    if isinstance(step, Store):
        step.value = expr
    else:
        step.body = expr


def _swap(step: ReductionStep | Store, old: Expr, new: Expr) -> None:
    _set(step, rebuild(_expr(step), replace=lambda e: new if e is old else None))


def _is_dear(expr: Expr, inner: tuple[Var, ...]) -> bool:
    """Whether more than loads and arithmetic is computed anew for each turn of some loops."""
    return any(e.op not in _CHEAP and variables([e]).intersection(inner) for e in walk([expr]))


def unguarded(exprs: Sequence[Expr]) -> dict[Expr, None]:
    """What is computed for some expressions wherever they are, unlike what only holds under a test."""
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
