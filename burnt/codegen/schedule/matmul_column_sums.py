"""Compute column sums of a matmul's result from its tiles, while they are in registers.

The statistics of batch norm and the gradient of a bias are sums over all rows of what a matmul has just
stored; a kernel of their own would read it again. Here the matmul's kernel stores a partial sum for every
`ROWS_PER_CHUNK` rows, and a small kernel adds these up in order. What is computed from rows and sums is then
elementwise. Sums of squares are about the mean of their own chunk, and are combined as in Chan, Golub and
LeVeque, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
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
    cast,
    const,
    load,
    ravel,
    rebuild,
    reduction_result,
    substitute,
    unravel,
    walk,
)
from burnt.codegen.ir.kernel import replace_reductions
from burnt.codegen.schedule.passes import as_online_reduction

ROWS_PER_CHUNK = 64
"""Rows per partial sum: no tile of such a matmul has fewer."""


def fuse_column_sums(kernels: list[Kernel], new_buffer: Callable[..., Buffer]) -> None:
    """Fuse sums over the rows of matmul results into the matmuls' kernels.

    The kernels of a plan, in order, are changed in place; `new_buffer` is `KernelBuilder.new_temporary`.
    """
    for kernel in [k for k in kernels if k.matmul is not None]:
        for sums in kernels[kernels.index(kernel) + 1 :]:
            position = kernels.index(sums)
            later = {b for k in kernels[kernels.index(kernel) : position] for b in k.buffers_written}
            column_sums = _match_column_sums(sums, kernel, later)
            if column_sums is not None:
                kernels[position : position + 1] = _fuse(sums, kernel, column_sums, new_buffer)


class _ColumnSums(NamedTuple):
    """Sums over all rows of what a matmul's kernel stores."""

    reductions: list[ReductionStep]  # the sums; a sum of squares comes after the sum for its mean
    elements: list[Expr]  # the summed expression of each, in the loops of the matmul's kernel
    rows: int  # the number of rows of the matmul
    columns: list[Var]  # the loops of its kernel over its columns
    loops: list[Var]  # the loops of the sums' kernel, in the order of the columns


def _match_column_sums(sums: Kernel, kernel: Kernel, later: Container[Buffer]) -> _ColumnSums | None:
    """Return the column sums that a kernel computes; None if it does anything but sum over the matmul's rows.

    The buffers in `later` are not written yet when the matmul's kernel runs.
    """
    reductions = sums.reductions
    if not reductions or sums.kind != "reduction" or sums.num_chunks or sums.scratch:
        return None
    sum_steps = [as_online_reduction(reduction, reductions) or reduction for reduction in reductions.values()]
    kinds = {
        reduction.kind if isinstance(reduction, OnlineReduction) else reduction.reduction.kind
        for reduction in sum_steps
    }
    if not kinds <= {"sum", "squares"} or len({reduction.inner for reduction in sum_steps}) != 1:
        return None
    exprs = list(walk([reduction.body for reduction in sum_steps]))
    read: set[tuple[Buffer, IndexExpr]] = {e.extra for e in exprs if e.op == "load"}
    stores = {s.buffer: s for s in kernel.stores if not isinstance(s, PartialSum)}
    # The sums may read one element of the matmul's result, and values that are the same for all rows.
    inner = set(sum_steps[0].inner)
    varying = [(buffer, offset) for buffer, offset in read if offset.variables() & inner]
    if len(varying) != 1 or varying[0][0] not in stores or any(e.op == "reduced" for e in exprs):
        return None
    ((buffer, offset),) = varying
    if any(other in later for other, _ in read if other is not buffer):
        return None
    store, step = stores[buffer], kernel.matmul
    assert step is not None
    *lead, row, column = step.index
    axes = [[v for v in kernel.outer if v in ix.variables()] for ix in (row, column)]
    loops = [_sort_by_stride(offset, each) for each in (sum_steps[0].inner, sums.outer)]
    sizes, other_sizes = ([math.prod(v.extent for v in each) for each in pair] for pair in (axes, loops))
    if any(ix.variables() for ix in lead) or sizes != other_sizes or sizes[0] % ROWS_PER_CHUNK:
        return None
    steps = [_common_stride(store.offset, each) for each in axes]
    same_layout = (
        steps == [_common_stride(offset, each) for each in loops] and offset.const == store.offset.const
    )
    if None in steps or not same_layout:
        return None
    value, known = store.body, load(buffer, offset)
    if value.op == "as":
        value = cast(value.args[0], buffer.dtype)  # sum the value as rounded for the store

    def swap(e: Expr) -> Expr | None:
        return value if e is known else None

    mapping: dict[Var, IndexExpr] = {}
    for own_loops, other_loops in zip(axes, loops, strict=True):
        mapping |= zip(
            other_loops, unravel(_linear_index(own_loops), [v.extent for v in other_loops]), strict=True
        )
    elements = [substitute(rebuild(reduction.body, replace=swap), mapping) for reduction in sum_steps]
    return _ColumnSums(sum_steps, elements, sizes[0], axes[1], loops[1])


def _sort_by_stride(offset: IndexExpr, loops: Sequence[Var]) -> list[Var]:
    return sorted(loops, key=lambda v: -(offset.stride(v) or 0))


def _common_stride(offset: IndexExpr, loops: Sequence[Var]) -> int | None:
    """Return the stride of loops that can be merged into one; None if they cannot."""
    step, size = offset.stride(loops[-1]) if loops else None, 1
    for v in reversed(loops):
        if step is None or offset.stride(v) != step * size:
            return None
        size *= v.extent
    return step


def _linear_index(loops: Sequence[Var]) -> IndexExpr:
    """Return the number of an iteration in nested loops, counting in execution order."""
    return ravel(tuple(map(IndexExpr.of, loops)), [v.extent for v in loops])


def _fuse(
    sums: Kernel, kernel: Kernel, column_sums: _ColumnSums, new_buffer: Callable[..., Buffer]
) -> list[Kernel]:
    """Add partial sums to a matmul's kernel; return the kernels that replace the sums' kernel."""
    kernel.num_chunks = column_sums.rows // ROWS_PER_CHUNK
    width = math.prod(v.extent for v in column_sums.columns)
    offset = _linear_index(column_sums.columns)
    partials: dict[tuple[str, Expr], Buffer] = {}

    def partial_buffer(kind: str, element: Expr) -> Buffer:
        """Return the buffer of partial sums of an element; the matmul's kernel writes it."""
        if (kind, element) not in partials:
            partial = partials[kind, element] = new_buffer((kernel.num_chunks, width), element.dtype)
            kernel.steps.append(PartialSum(partial, (), offset, element, kernel.outer, kind))
        return partials[kind, element]

    loops, chunk = column_sums.loops, Var(kernel.num_chunks)
    index, shape = tuple(map(IndexExpr.of, loops)), tuple(v.extent for v in loops)
    totals: dict[tuple[Reduction, Index], Expr] = {}
    steps: list[ReductionStep | ScanStep | Store] = []
    for reduction, element in zip(column_sums.reductions, column_sums.elements, strict=True):

        def body(
            outer: Index, over: Index, reduction: ReductionStep = reduction, element: Expr = element
        ) -> Expr:
            part_index = (*over, ravel(outer, shape))
            sums_buffer = partial_buffer("sum", element)
            partial_sum = load(sums_buffer, sums_buffer.at(part_index))
            if not isinstance(reduction, OnlineReduction):
                return partial_sum
            squares_buffer = partial_buffer("squares", element)
            total = totals[reduction.reference.reduction, reduction.reference.index]
            deviation = partial_sum * (1 / ROWS_PER_CHUNK) - total * (1 / column_sums.rows)
            correction = const(ROWS_PER_CHUNK, element.dtype) * (deviation * deviation)
            return load(squares_buffer, squares_buffer.at(part_index)) + correction

        total_sum = Reduction("sum", shape, (kernel.num_chunks,), element.dtype, body)
        steps.append(ReductionStep(total_sum, index, (chunk,), body(index, (IndexExpr.of(chunk),))))
        totals[reduction.reduction, reduction.index] = reduction_result(total_sum, index)
    stores = sums.stores
    row_stores = [step for step in stores if step.inner]
    in_memory: dict[tuple[Reduction, Index], Expr] = {}
    if row_stores:
        for key, total in totals.items():
            buffer = new_buffer((width,), total.dtype)
            steps.append(Store(buffer, (), _linear_index(loops), total, tuple(loops)))
            in_memory[key] = load(buffer, _linear_index(loops))
    for step in stores:
        step.body = replace_reductions(step.body, in_memory if step.inner else totals)
    steps += [step for step in stores if not step.inner]
    replacements = [Kernel("", tuple(loops), steps)]
    for inner in dict.fromkeys(step.inner for step in row_stores):
        same_loops = [step for step in row_stores if step.inner == inner]
        outer = _sort_by_stride(same_loops[-1].offset, [*sums.outer, *inner])
        for step in same_loops:
            step.inner = ()
        replacements.append(Kernel("", tuple(outer), list(same_loops)))
    return replacements
