"""Find the interior of loops, where bounds tests hold, rows worth prefetching, and phases of strides."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Expr,
    IndexExpr,
    Kernel,
    Split,
    Store,
    Var,
    const,
    index_exprs,
    rebuild,
    walk,
)

_MIN_ROW_BYTES = 640  # shorter rows are prefetched well enough by the hardware
_MAX_POOLING_BYTES = 1 << 13  # bytes prefetched per iteration of a pooling kernel: a quarter of an L1 cache
_MAX_ROW_BYTES = 1 << 17  # bytes of rows prefetched while others are reduced: half of a small L2 cache


def interior_range(loop: Var, exprs: Sequence[Expr]) -> tuple[int, int, list[Expr]]:
    """Return the range of a loop in which all bounds tests on its own index hold, and these tests.

    A test compares an ``index`` with a constant. Tests that also depend on other loops are ignored. If no
    iteration passes all tests, the range is the whole loop, without tests.
    """
    start, end, tests = 0, loop.extent, []
    for expr in walk(exprs):
        if expr.op not in ("ge", "lt") or expr.args[0].op != "index" or expr.args[1].op != "const":
            continue
        index, bound = expr.args[0].extra[0], expr.args[1].extra[0]
        if list(index.terms) != [loop]:
            continue
        step, rest = index.terms[loop], bound - index.const
        # step * i >= rest, or step * i < rest, which is -step * i >= 1 - rest.
        if expr.op == "lt":
            step, rest = -step, 1 - rest
        if step > 0:
            start = max(start, -(-rest // step))
        else:
            end = min(end, rest // step + 1)
        tests.append(expr)
    return (start, end, tests) if start < end else (0, loop.extent, [])


def split_row_index(
    buffer: Buffer, offset: IndexExpr, span: tuple[Var, int, int]
) -> tuple[IndexExpr, IndexExpr, IndexExpr] | None:
    """Split an index into row and column, so that a loop may load from another row where its own is invalid.

    `span` is the loop with its start and stop. Return the row's start, the start of a row that is always in
    bounds, and the index along the row; None where the buffer has no such row.
    """
    loop, first, stop = span
    step = offset.stride(loop)
    reach = sum((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
    if step is None or step < 0 or step * (stop - 1 - first) > reach or offset.computed_exprs():
        return None
    along = IndexExpr({loop: step})
    return offset - along, IndexExpr(const=-step * first), along


def next_pooling_rows(kernel: Kernel) -> list[tuple[Buffer, IndexExpr, int]]:
    """Return the rows that the next iteration of a pooling kernel loads and this one does not.

    Each is a contiguous range: its buffer, first index and number of elements. The hardware prefetches along
    one long row, but not from an iteration's rows to the next one's. Max pooling over 3 x 3 with stride 2 of
    rows of 2 KB takes a third of the time if rows are prefetched, where one prefetch covers adjacent rows;
    half the time with two.
    """
    if kernel.kind != "pooling" or not kernel.outer:
        return []
    outer_loop = kernel.outer[-1]
    rows_read: dict[tuple[Buffer, IndexExpr], int] = {}
    for step, expr in zip(kernel.steps, kernel.exprs, strict=True):
        for e in walk([expr]):
            if e.op != "load" or e.args or not step.inner:
                continue
            (buffer, offset), along = e.extra, step.inner[-1]
            long = along.extent * buffer.dtype.itemsize >= _MIN_ROW_BYTES and buffer.role != "local"
            if long and offset.stride(along) == 1 and (offset.stride(outer_loop) or 0) > 0:
                rows_read[buffer, offset - IndexExpr.of(along)] = along.extent
    rows = [
        (buffer, start + start.terms[outer_loop], extent) for (buffer, start), extent in rows_read.items()
    ]
    rows = [(buffer, start, extent) for buffer, start, extent in rows if (buffer, start) not in rows_read]
    stretches: list[tuple[Buffer, IndexExpr, int]] = []
    for buffer, start, extent in sorted(rows, key=lambda row: row[1].const):
        for i, (other, first, length) in enumerate(stretches):
            distance = start - first
            if other is buffer and not distance.terms and distance.const <= 2 * length:
                stretches[i] = (buffer, first, max(length, distance.const + extent))
                break
        else:
            stretches.append((buffer, start, extent))
    for i, (buffer, start, extent) in enumerate(stretches):
        # One range without gaps: skipping every other row costs more time than loading it.
        advance = start.terms[outer_loop]
        stretches[i] = (buffer, start, advance if advance <= 2 * extent else extent)
    num_bytes = sum(extent * buffer.dtype.itemsize for buffer, _, extent in stretches)
    return stretches if num_bytes <= _MAX_POOLING_BYTES else []


def next_reduction_rows(lead: Var, last: Var, exprs: Sequence[Expr]) -> list[tuple[Buffer, IndexExpr]]:
    """Return the rows that reductions along two loops load in the next iteration of the outer loop.

    The gradient of batch normalisation of 16 x 64 x 56 x 56 takes 0.65 ms if they are prefetched one
    iteration early, and 1.0 ms otherwise (two threads of a Zen 5): each row spans only three pages, too few
    for the hardware prefetcher.
    """
    rows: dict[tuple[Buffer, IndexExpr], None] = {}
    for e in walk(exprs):
        if e.op != "load" or e.args:
            continue
        buffer, offset = e.extra
        advance = 0 if offset.computed_exprs() else offset.stride(lead) or 0
        if buffer.role != "local" and offset.stride(last) == 1 and advance > last.extent:
            rows[buffer, offset - IndexExpr.of(last) + advance] = None
    sizes = [last.extent * buffer.dtype.itemsize for buffer, _ in rows]
    return list(rows) if sizes and min(sizes) >= _MIN_ROW_BYTES and sum(sizes) <= _MAX_ROW_BYTES else []


def next_output_rows(kernel: Kernel, stores: Sequence[Store], last: Var) -> list[tuple[Buffer, IndexExpr]]:
    """Return the output rows to prefetch during a reduction that saves its elements in scratch memory.

    `stores` are those in the reduction's pass. Saved elements are expensive to compute, so memory is idle
    meanwhile, and a cache line is read before it is written. Cross entropy with its gradient, 4096 x 4096,
    takes 5.5 ms instead of 7.7 if the gradient's lines are prefetched while exponentials are computed (two
    threads of a Zen 4).
    """
    if not any(step.buffer.role == "local" for step in stores):
        return []
    rows: dict[tuple[Buffer, IndexExpr], None] = {}
    for step in kernel.steps[kernel.steps.index(stores[-1]) + 1 :]:
        if type(step) is not Store or step.buffer.role == "local" or len(step.inner) != 1:
            continue
        (along,) = step.inner
        is_full = along.extent == last.extent and not step.offset.computed_exprs()
        if is_full and step.offset.stride(along) == 1:
            rows[step.buffer, step.offset - IndexExpr.of(along)] = None
    sizes = [last.extent * buffer.dtype.itemsize for buffer, _ in rows]
    return list(rows) if sizes and min(sizes) >= _MIN_ROW_BYTES and sum(sizes) <= _MAX_ROW_BYTES else []


# Unroll loops whose indices contain divisions by the period after which the index pattern repeats. The
# gradient of pooling with stride 2 is an example: element `i` is in the windows `i // 2` and `i // 2 -
# 1`, at positions `i % 2` and `i % 2 + 2`. In a loop over `q` with one body for `i = 2 * q` and one for
# `i = 2 * q + 1`, no index is divided, most tests are constant, and loads and stores are vectorised.

_MAX_PERIOD = 4  # iterations of a period: more make the source too long


def index_period(loop: Var, stores: Sequence[Store]) -> int:
    """Return the number of iterations after which every divided index advances by an integer quotient.

    1 if no index is divided along the loop, or if the period would be too long.
    """
    period = 1
    exprs = walk([step.body for step in stores])
    for index in (*(ix for e in exprs for ix in index_exprs(e)), *(step.offset for step in stores)):
        for atom in _nested_splits(index):
            if loop not in atom.inner.variables():
                continue
            step = atom.inner.stride(loop)
            if step is None:
                return 1
            period = math.lcm(period, atom.divisor // math.gcd(step, atom.divisor))
    draws_random = any(e.op in ("uniform", "random") for e in walk([step.body for step in stores]))
    return period if period <= min(_MAX_PERIOD, loop.extent // 2) and not draws_random else 1


def unroll_period(
    loop: Var, period: int, stores: Sequence[Store]
) -> tuple[Var, list[list[Store]], list[list[Store]]]:
    """Unroll a loop by its period.

    Return the loop over whole periods; for each iteration of a period, its stores in that loop; for each
    iteration after the last whole period, its stores.
    """
    periods = Var(loop.extent // period)
    bodies = [
        [_substitute(s, loop, IndexExpr.of(periods) * period + i) for s in stores] for i in range(period)
    ]
    remainder = range(loop.extent // period * period, loop.extent)
    return periods, bodies, [[_substitute(s, loop, IndexExpr.of(i)) for s in stores] for i in remainder]


def _nested_splits(index: IndexExpr) -> Iterator[Split]:
    for atom in index.terms:
        if isinstance(atom, Split):
            yield atom
            yield from _nested_splits(atom.inner)


def _substitute(step: Store, loop: Var, index: IndexExpr) -> Store:
    """Return a store with the loop's index replaced, and without the tests that become constant."""
    mapping = {loop: index}
    body = rebuild(step.body, lambda ix: ix.substitute(mapping), _simplify_known_tests)
    return dataclasses.replace(step, offset=step.offset.substitute(mapping), body=body)


def _simplify_known_tests(e: Expr) -> Expr | None:
    """Simplify an expression whose test is constant within the bounds of the loops; None if there is none."""
    if e.op in ("ge", "lt", "eq") and e.args[0].op == "index" and e.args[1].op == "const":
        (index,), (bound,) = e.args[0].extra, e.args[1].extra
        low, high = index.bounds()
        if e.op == "eq":
            known = True if low == high == bound else None if low <= bound <= high else False
        else:
            below = True if high < bound else False if low >= bound else None
            known = below if e.op == "lt" or below is None else not below
        return None if known is None else const(known, torch.bool)
    if e.op == "and" and e.dtype == torch.bool:
        for i, argument in enumerate(e.args):
            if argument.op == "const":
                return e.args[1 - i] if argument.extra[0] else argument
    if e.op in ("masked", "where") and e.args[0].op == "const":
        return e.args[1] if e.args[0].extra[0] else e.args[2]
    return None
