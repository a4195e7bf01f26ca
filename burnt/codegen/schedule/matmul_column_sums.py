"""Sums over the rows of a matrix product's result, taken along while its tiles are made.

The statistics of batch norm, and the gradient of a bias, are sums over all rows of what a product has just
stored: a kernel of their own would read it again. Here the product's kernel leaves a part of each sum for
every `ROWS_PER_CHUNK` rows, and a small kernel adds the parts up, in order; what is made of rows and sums is
elementwise then. Squares are summed about the mean of their own rows, and joined as in Chan, Golub and
LeVeque, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from burnt.codegen.ir import (
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    OnlineReduction,
    PartialSum,
    Reduction,
    ReductionStep,
    ScanStep,
    Store,
    Var,
    load,
    ravel,
    rebuild,
    reduction_result,
    substitute,
    unravel,
    walk,
)
from burnt.codegen.lower.registry import cast, const
from burnt.codegen.schedule.passes import online_of

__all__ = ["ROWS_PER_CHUNK", "fuse_column_sums"]

ROWS_PER_CHUNK = 64
"""Rows of a part: no tile of such a product has fewer."""


def fuse_column_sums(kernels: list[Kernel], count: int) -> int:
    """Let sums over the rows of products' results join the products' kernels.

    Args:
        kernels: of a plan, in order; changed in place.
        count: of buffers between kernels so far.

    Returns:
        the count with those that are new.
    """
    for kernel in [k for k in kernels if k.matmul is not None]:
        for sums in kernels[kernels.index(kernel) + 1 :]:
            where = kernels.index(sums)
            later = {b for k in kernels[kernels.index(kernel) : where] for b in k.buffers_written}
            found = _found(sums, kernel, later)
            if found is not None:
                kernels[where : where + 1], count = _join(sums, kernel, found, count)
    return count


class _Sums(NamedTuple):
    """Sums over all rows of what a product's kernel stores.

    Args:
        folds: the sums; squares come after what they are about.
        elements: of each, in the loops of the product's kernel.
        rows: of the product.
        columns: the loops of its kernel that are its columns.
        loops: those of the sums' kernel, in the order of the columns.
    """

    folds: list[ReductionStep]
    elements: list[Expr]
    rows: int
    columns: list[Var]
    loops: list[Var]


def _found(sums: Kernel, kernel: Kernel, later: Container[Buffer]) -> _Sums | None:
    """What a kernel sums, where its folds are sums over the rows of another one's product.

    Args:
        sums: the kernel.
        kernel: the other one.
        later: what is not there yet while the other one runs.
    """
    folds = {(s.reduction, s.index): s for s in sums.steps if isinstance(s, ReductionStep)}
    if not folds or sums.kind != "reduction" or sums.num_chunks or sums.scratch:
        return None
    joined = [online_of(fold, folds) or fold for fold in folds.values()]
    kinds = {fold.kind if isinstance(fold, OnlineReduction) else fold.reduction.kind for fold in joined}
    if not kinds <= {"sum", "squares"} or len({fold.inner for fold in joined}) != 1:
        return None
    inside = list(walk([fold.body for fold in joined]))
    read: set[tuple[Buffer, IndexExpr]] = {e.extra for e in inside if e.op == "load"}  # type: ignore[misc]
    stores = {s.buffer: s for s in kernel.steps if isinstance(s, Store) and not isinstance(s, PartialSum)}
    # One element of the product's, and what is the same for all rows.
    inner = set(joined[0].inner)
    along = [(buffer, place) for buffer, place in read if place.variables() & inner]
    if len(along) != 1 or along[0][0] not in stores or any(e.op == "reduced" for e in inside):
        return None
    ((buffer, place),) = along
    if any(other in later for other, _ in read if other is not buffer):
        return None
    store, step = stores[buffer], kernel.matmul
    assert step is not None
    *lead, row, column = step.index
    axes = [[v for v in kernel.outer if v in ix.variables()] for ix in (row, column)]
    loops = [_by_stride(place, each) for each in (joined[0].inner, sums.outer)]
    sizes, theirs = ([math.prod(v.extent for v in each) for each in pair] for pair in (axes, loops))
    if any(ix.variables() for ix in lead) or sizes != theirs or sizes[0] % ROWS_PER_CHUNK:
        return None
    steps = [_step_of(store.offset, each) for each in axes]
    alike = steps == [_step_of(place, each) for each in loops] and place.const == store.offset.const
    if None in steps or not alike:
        return None
    value, known = store.value, load(buffer, place)
    if value.op == "as":
        value = cast(value.args[0], buffer.dtype)  # rounded, as it is stored

    def swap(e: Expr) -> Expr | None:
        return value if e is known else None

    mapping: dict[Var, IndexExpr] = {}
    for ours, others in zip(axes, loops, strict=True):
        mapping |= zip(others, unravel(_turn(ours), [v.extent for v in others]), strict=True)
    elements = [substitute(rebuild(fold.body, replace=swap), mapping) for fold in joined]
    return _Sums(joined, elements, sizes[0], axes[1], loops[1])


def _by_stride(place: IndexExpr, loops: Sequence[Var]) -> list[Var]:
    return sorted(loops, key=lambda v: -(place.stride(v) or 0))


def _step_of(place: IndexExpr, loops: Sequence[Var]) -> int | None:
    """How far apart neighbours are along loops that are walked as one; None where they are not."""
    step, below = place.stride(loops[-1]) if loops else None, 1
    for v in reversed(loops):
        if step is None or place.stride(v) != step * below:
            return None
        below *= v.extent
    return step


def _turn(loops: Sequence[Var]) -> IndexExpr:
    """The number of a turn, in the order in which loops are nested."""
    return ravel(tuple(map(IndexExpr.of, loops)), [v.extent for v in loops])


def _join(sums: Kernel, kernel: Kernel, found: _Sums, count: int) -> tuple[list[Kernel], int]:
    """Let a product's kernel make the parts of sums; the kernels that are there in place of the sums'."""
    kernel.num_chunks = found.rows // ROWS_PER_CHUNK
    width = math.prod(v.extent for v in found.columns)
    place = _turn(found.columns)
    parts: dict[tuple[str, Expr], Buffer] = {}

    def part_of(kind: str, element: Expr) -> Buffer:
        """A buffer of parts, which the product's kernel fills."""
        if (kind, element) not in parts:
            size, strides = (kernel.num_chunks, width), (width, 1)
            name = f"t{count + len(parts) + 1}"
            made = Buffer(name, "intermediate", count + len(parts) + 1, size, strides, element.dtype)
            kernel.steps.append(PartialSum(made, (), place, element, kernel.outer, kind))
            parts[kind, element] = made
        return parts[kind, element]

    loops, run = found.loops, Var(kernel.num_chunks)
    index, shape = tuple(map(IndexExpr.of, loops)), tuple(v.extent for v in loops)
    totals: dict[tuple[object, ...], Expr] = {}
    steps: list[ReductionStep | ScanStep | Store] = []
    for fold, element in zip(found.folds, found.elements, strict=True):

        def body(outer: Index, over: Index, fold: ReductionStep = fold, element: Expr = element) -> Expr:
            at, dtype = (*over, ravel(outer, shape)), element.dtype
            of_sums = part_of("sum", element)
            added = load(of_sums, of_sums.at(at))
            if not isinstance(fold, OnlineReduction):
                return added
            of_squares = part_of("squares", element)
            total = totals[fold.reference.reduction, fold.reference.index]
            a_run, all_rows = (const(1 / n, dtype) for n in (ROWS_PER_CHUNK, found.rows))
            off = _made("sub", _made("mul", added, a_run), _made("mul", total, all_rows))
            about = _made("mul", const(ROWS_PER_CHUNK, dtype), _made("mul", off, off))
            return _made("add", load(of_squares, of_squares.at(at)), about)

        whole = Reduction("sum", shape, (kernel.num_chunks,), element.dtype, body)
        steps.append(ReductionStep(whole, index, (run,), body(index, (IndexExpr.of(run),))))
        totals[fold.reduction, fold.index] = reduction_result(whole, index)
    count += len(parts)
    stores = [step for step in sums.steps if isinstance(step, Store)]
    whole_rows = [step for step in stores if step.inner]
    in_memory: dict[tuple[object, ...], Expr] = {}
    if whole_rows:
        for key, total in totals.items():
            count += 1
            buffer = Buffer(f"t{count}", "intermediate", count, (width,), (1,), total.dtype)
            steps.append(Store(buffer, (), _turn(loops), total, tuple(loops)))
            in_memory[key] = load(buffer, _turn(loops))
    for step in stores:
        step.value = _with(in_memory if step.inner else totals, step.value)
    steps += [step for step in stores if not step.inner]
    made = [Kernel("", tuple(loops), steps)]
    for inner in dict.fromkeys(step.inner for step in whole_rows):
        walked = [step for step in whole_rows if step.inner == inner]
        outer = _by_stride(walked[-1].offset, [*sums.outer, *inner])
        for step in walked:
            step.inner = ()
        made.append(Kernel("", tuple(outer), list(walked)))
    return made, count


def _with(known: Mapping[tuple[object, ...], Expr], expr: Expr) -> Expr:
    """With what is known in place of folds."""
    return rebuild(expr, replace=lambda e: known.get(e.extra) if e.op == "reduced" else None)


def _made(op: str, a: Expr, b: Expr) -> Expr:
    return Expr.make(op, (a, b), a.dtype)
