"""Fuse column sums into kernels that process the same rows, as partial sums over chunks of rows.

The gradient of a norm's weight is a sum over all rows, and the gradient of its input is computed row by row
from the same tensors; two kernels would read them twice. Here the kernel of the rows also computes one
partial sum per chunk of consecutive rows, and a small kernel adds these up. The number of chunks depends only
on sizes, so results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from burnt.codegen.ir import (
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    PartialSum,
    Reduction,
    ReductionStep,
    ScanStep,
    Store,
    Var,
    load,
    reduction_result,
    substitute,
    walk,
)
from burnt.codegen.ir.kernel import replace_reductions
from burnt.codegen.schedule.capabilities import PartialSumLimits


def combine_partial_sums(
    kernels: list[Kernel], limits: PartialSumLimits | None, new_buffer: Callable[..., Buffer]
) -> None:
    """Fuse column sums into kernels that process the same rows, within a target's limits.

    The kernels of a plan, in order, are changed in place; `new_buffer` is `KernelBuilder.new_temporary`.
    """
    if limits is None:
        return
    for sums in list(kernels):
        if not _is_column_sum(sums, limits):
            continue
        for rows in kernels:
            if rows is sums or not _can_fuse(sums, rows, kernels):
                continue
            loop_map = _map_loops(rows, sums, limits)
            if loop_map is None:
                continue
            _fuse(sums, rows, loop_map, limits, new_buffer)
            kernels.remove(sums)
            kernels.insert(kernels.index(rows) + 1, sums)
            break


def _is_column_sum(kernel: Kernel, limits: PartialSumLimits) -> bool:
    """Whether a kernel only computes sums over the same loops and stores what follows from each sum."""
    reductions = kernel.reductions.values()
    return (
        kernel.kind == "reduction"
        and len({step.inner for step in reductions}) == 1
        and limits.min_columns <= math.prod(v.extent for v in kernel.outer) <= limits.max_columns
        and all(
            step.reduction.kind == "sum" and step.reduction.dtype.is_floating_point for step in reductions
        )
        and not any(e.op == "reduced" for e in walk([step.body for step in reductions]))
        and not any(step.inner or isinstance(step, PartialSum) for step in kernel.stores)
    )


def _can_fuse(sums: Kernel, rows: Kernel, kernels: Sequence[Kernel]) -> bool:
    """Whether the kernels mostly read the same, and none between them reads or writes what would be moved."""
    bytes_of = {b: math.prod(b.shape) * b.dtype.itemsize for b in sums.buffers_read}
    shared = sum(size for b, size in bytes_of.items() if b in rows.buffers_read)
    if 2 * shared < sum(bytes_of.values()):
        return False
    first, last = sorted((kernels.index(sums), kernels.index(rows)))
    between = kernels[first : last + 1]
    if kernels[first] is sums:
        return not any(k.buffers_read.keys() & sums.buffers_written.keys() for k in between)
    return not any(k.buffers_written.keys() & sums.buffers_read.keys() for k in between)


def _map_loops(rows: Kernel, sums: Kernel, limits: PartialSumLimits) -> dict[Var, IndexExpr] | None:
    """Return the sums' loops in terms of the other kernel's; None if they do not match.

    An elementwise kernel's loops are divided into rows and columns for that.
    """
    reduction = next(iter(sums.reductions.values()))
    over, columns = [v.extent for v in reduction.inner], [v.extent for v in sums.outer]
    if math.prod(over) < 2 * limits.min_chunk_rows or rows.scratch or rows.kind in ("scan", "matmul"):
        return None
    if any(math.prod(v.extent for v in step.inner) > limits.max_columns for step in rows.steps):
        return None
    if rows.kind == "elementwise":
        if [v.extent for v in rows.outer] != over + columns:
            return None
        iterations, inner = rows.outer[: len(over)], rows.outer[len(over) :]
        rows.outer = iterations
        for step in rows.steps:
            step.inner = inner
    else:
        iterations = rows.outer
        if [v.extent for v in iterations] != over:
            return None
        candidates = [step.inner for step in rows.steps if [v.extent for v in step.inner] == columns]
        if not candidates:
            return None
        inner = candidates[0]
    return dict(zip((*reduction.inner, *sums.outer), map(IndexExpr.of, (*iterations, *inner)), strict=True))


def _fuse(
    sums: Kernel,
    rows: Kernel,
    loops: dict[Var, IndexExpr],
    limits: PartialSumLimits,
    new_buffer: Callable[..., Buffer],
) -> None:
    """Add partial sums to the kernel of the rows, and make the sums' kernel add them up."""
    iterations = math.prod(v.extent for v in rows.outer)
    rows.num_chunks = rows.num_chunks or min(limits.max_chunks, iterations // limits.min_chunk_rows)
    sizes = tuple(v.extent for v in sums.outer)
    index = tuple(map(IndexExpr.of, sums.outer))
    inner = tuple(next(iter(loops[v].terms)) for v in sums.outer)
    totals: dict[tuple[Reduction, Index], Expr] = {}
    steps: list[ReductionStep | ScanStep | Store] = []
    for step in sums.steps:
        if isinstance(step, ReductionStep):
            buffer = new_buffer((rows.num_chunks, *sizes), step.body.dtype)
            offset = buffer.at((IndexExpr(), *(loops[v] for v in sums.outer)))
            rows.steps.append(PartialSum(buffer, inner, offset, substitute(step.body, loops), inner))  # type: ignore[arg-type]
            chunk = Var(rows.num_chunks)

            def body(outer: Index, over: Index, buffer: Buffer = buffer) -> Expr:
                return load(buffer, buffer.at((*over, *outer)))

            total = Reduction("sum", sizes, (rows.num_chunks,), step.reduction.dtype, body)
            steps.append(ReductionStep(total, index, (chunk,), body(index, (IndexExpr.of(chunk),))))
            totals[step.reduction, step.index] = reduction_result(total, index)
        elif isinstance(step, Store):
            step.body = replace_reductions(step.body, totals)
            steps.append(step)
    sums.steps = steps
