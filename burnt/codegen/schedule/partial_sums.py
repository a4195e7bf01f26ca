"""Sums over rows, taken along while the rows themselves are gone through.

The gradient of a norm's weight is a sum over the rows whose own gradients the same tensors make. Two kernels
would read them twice. Here the sums join the kernel of the rows as partial ones, over runs of consecutive
rows, and a small kernel adds these up. Their number depends on sizes alone, so that results do not depend on
how many threads there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from burnt.codegen.ir import (
    Buffer,
    Expr,
    IndexExpr,
    Kernel,
    PartialSum,
    Reduction,
    ReductionStep,
    ScanStep,
    Store,
    Var,
    load,
    rebuild,
    reduction_result,
    substitute,
    walk,
)

__all__ = ["combine_partial_sums"]

_SHORTEST = 16  # rows of a run: below, partial sums are a large part of what is moved
_COLUMNS = 1 << 15  # sums of a run that stay in a core's second cache


def combine_partial_sums(kernels: list[Kernel], runs: int, count: int) -> int:
    """Let sums over rows join kernels that go through these rows.

    Args:
        kernels: of a plan, in order; changed in place.
        runs: how many runs of turns there are at the most; 0 where kernels can have none.
        count: of buffers between kernels so far.

    Returns:
        the count with those that are new.
    """
    if not runs:
        return count
    for sums in list(kernels):
        if not _is_sums(sums):
            continue
        for rows in kernels:
            if rows is sums or not _may_join(sums, rows, kernels):
                continue
            walk_of_rows = _as_rows(rows, sums)
            if walk_of_rows is None:
                continue
            count = _join(sums, rows, walk_of_rows, runs, count)
            kernels.remove(sums)
            kernels.insert(kernels.index(rows) + 1, sums)
            break
    return count


def _is_sums(kernel: Kernel) -> bool:
    """Whether it does nothing but sum over all of some loops, each for itself, and store what comes of it."""
    folds = [step for step in kernel.steps if isinstance(step, ReductionStep)]
    stores = [step for step in kernel.steps if isinstance(step, Store)]
    return (
        kernel.kind == "reduction"
        and len({step.inner for step in folds}) == 1
        and math.prod(v.extent for v in kernel.outer) <= _COLUMNS
        and all(step.reduction.kind == "sum" and step.reduction.dtype.is_floating_point for step in folds)
        and not any(e.op == "reduced" for e in walk([step.body for step in folds]))
        and not any(step.inner for step in stores)
        and not any(isinstance(step, PartialSum) for step in stores)
    )


def _may_join(sums: Kernel, rows: Kernel, kernels: Sequence[Kernel]) -> bool:
    """Whether they read mostly the same, and neither needs what comes between them."""
    bytes_of = {b: math.prod(b.shape) * b.dtype.itemsize for b in sums.buffers_read}
    shared = sum(size for b, size in bytes_of.items() if b in rows.buffers_read)
    if 2 * shared < sum(bytes_of.values()):
        return False
    first, last = sorted((kernels.index(sums), kernels.index(rows)))
    between = kernels[first : last + 1]
    if kernels[first] is sums:
        return not any(k.buffers_read.keys() & sums.buffers_written.keys() for k in between)
    return not any(k.buffers_written.keys() & sums.buffers_read.keys() for k in between)


def _as_rows(rows: Kernel, sums: Kernel) -> dict[Var, IndexExpr] | None:
    """The loops of the sums as those of the rows, which an elementwise kernel is given for that."""
    fold = next(step for step in sums.steps if isinstance(step, ReductionStep))
    over, columns = [v.extent for v in fold.inner], [v.extent for v in sums.outer]
    if math.prod(over) < 2 * _SHORTEST or rows.scratch or rows.kind == "scan":
        return None
    if rows.kind == "elementwise":
        if [v.extent for v in rows.outer] != over + columns:
            return None
        turns, inner = rows.outer[: len(over)], rows.outer[len(over) :]
        rows.outer = turns
        for step in rows.steps:
            step.inner = inner
    else:
        turns = rows.outer
        if [v.extent for v in turns] != over:
            return None
        found = [step.inner for step in rows.steps if [v.extent for v in step.inner] == columns]
        if not found:
            return None
        inner = found[0]
    return dict(zip((*fold.inner, *sums.outer), map(IndexExpr.of, (*turns, *inner)), strict=True))


def _join(sums: Kernel, rows: Kernel, loops: dict[Var, IndexExpr], runs: int, count: int) -> int:
    turns = math.prod(v.extent for v in rows.outer)
    rows.num_chunks = rows.num_chunks or min(runs, turns // _SHORTEST)
    sizes = [v.extent for v in sums.outer]
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    index = tuple(map(IndexExpr.of, sums.outer))
    inner = tuple(next(iter(loops[v].terms)) for v in sums.outer)
    totals: dict[tuple[object, ...], Expr] = {}
    steps: list[ReductionStep | ScanStep | Store] = []
    for step in sums.steps:
        if isinstance(step, ReductionStep):
            count += 1
            shape = (rows.num_chunks, *sizes)
            buffer = Buffer(
                f"t{count}", "intermediate", count, shape, (math.prod(sizes), *strides), step.body.dtype
            )
            place = buffer.at((IndexExpr(), *(loops[v] for v in sums.outer)))
            rows.steps.append(PartialSum(buffer, inner, place, substitute(step.body, loops), inner))  # type: ignore[arg-type]
            run = Var(rows.num_chunks)

            def body(
                outer: tuple[IndexExpr, ...], over: tuple[IndexExpr, ...], buffer: Buffer = buffer
            ) -> Expr:
                return load(buffer, buffer.at((*over, *outer)))

            total = Reduction("sum", tuple(sizes), (rows.num_chunks,), step.reduction.dtype, body)
            steps.append(ReductionStep(total, index, (run,), body(index, (IndexExpr.of(run),))))
            totals[step.reduction, step.index] = reduction_result(total, index)
        elif isinstance(step, Store):
            step.value = rebuild(
                step.value, replace=lambda e: totals.get(e.extra) if e.op == "reduced" else None
            )
            steps.append(step)
    sums.steps = steps
    return count
