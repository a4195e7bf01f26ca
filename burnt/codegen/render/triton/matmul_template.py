"""The matrix product in Triton, written once: what its factors are and where its elements go is passed in.

`left`, `right` and `tail` are functions that a plan's kernel brings along (`print_triton_product`):

    left(row, term, in_row, in_term, batch, args)        a tile of the first factor
    right(term, column, in_term, in_column, batch, args)  a tile of the second
    tail(sums, row, column, in_row, in_column, batch, args)   stores what is made of a tile of sums

`args` holds the kernel's tensors, numbers and sizes. Rows, terms and columns are places in flattened axes.

A factor that is a tensor as it lies in memory may be copied by the device's own units (TMA) instead. It comes
with a function that describes the tensor, and `left` or `right` is one of a tile's first places:

    describe(args, ROWS, COLUMNS)                        its tensor descriptor, for tiles of this size
    left(descriptor, row, term, batch, args, ROWS, COLUMNS)   a tile
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_parts", "add_runs", "by_window", "multiply", "window_of"]


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _tile(  # type: ignore[no-untyped-def]
    pid,
    rows,
    columns,
    BM: tl.constexpr,
    BN: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A program's tile: GROUP rows of tiles are gone through together, for what they share to stay near."""
    down = tl.cdiv(rows, BM)
    across = tl.cdiv(columns, BN)
    per_batch = down * across
    batch = pid // per_batch
    pid = pid % per_batch
    first = pid // (GROUP * across) * GROUP
    height = tl.minimum(down - first, GROUP)
    m = first + pid % (GROUP * across) % height
    n = pid % (GROUP * across) // height
    return m, n, batch


@triton.jit  # type: ignore[untyped-decorator]
def _described(args, describe: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A factor's tensor descriptor; nothing where it is read through pointers."""
    if describe is None:
        return 0
    else:
        return describe(args, ROWS, COLUMNS)


@triton.jit  # type: ignore[untyped-decorator]
def _sums(  # type: ignore[no-untyped-def]
    m,
    n,
    row,
    column,
    in_row,
    in_column,
    batch,
    begin,
    end,
    args,
    descriptors,
    left: tl.constexpr,
    right: tl.constexpr,
    describe_left: tl.constexpr,
    describe_right: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    SPECIALIZED: tl.constexpr,
):
    """A tile of the product, over the terms from `begin` to `end`; EVEN: BK divides their number;
    SPECIALIZED: some warps copy, others multiply."""
    sums = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(begin, end, BK, warp_specialize=SPECIALIZED):
        term = start + tl.arange(0, BK)
        if WIDE:
            term = term.to(tl.int64)
        if EVEN:
            inside = tl.full([BK], True, tl.int1)
        else:
            inside = term < end
        if describe_left is None:
            a = left(row, term[None, :], in_row, inside[None, :], batch, args)
        else:
            a = left(descriptors[0], tl.cast(m * BM, tl.int32), tl.cast(start, tl.int32), batch, args, BM, BK)
        if describe_right is None:
            b = right(term[:, None], column, inside[:, None], in_column, batch, args)
        else:
            b = right(
                descriptors[1], tl.cast(start, tl.int32), tl.cast(n * BN, tl.int32), batch, args, BK, BN
            )
        if PRECISION == "flex32":
            sums = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), sums, input_precision="ieee")
        else:
            sums = tl.dot(a, b, sums, input_precision=PRECISION)
    return sums


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    sums,
    row,
    start,
    in_row,
    columns,
    batch,
    args,
    tail: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The tail of a tile, WIDTH columns at a time: a whole one, and what a tail computes, is more than there
    are registers for."""
    if BN > WIDTH:
        near, far = tl.split(tl.permute(tl.reshape(sums, [BM, 2, BN // 2]), [0, 2, 1]))
        _finish(near, row, start, in_row, columns, batch, args, tail, BM, BN // 2, WIDTH)
        _finish(far, row, start + BN // 2, in_row, columns, batch, args, tail, BM, BN // 2, WIDTH)
    else:
        column = start + tl.arange(0, BN)[None, :]
        tail(sums, row, column, in_row, column < columns, batch, args)


@triton.jit  # type: ignore[untyped-decorator]
def _make(  # type: ignore[no-untyped-def]
    pid,
    args,
    descriptors,
    parts,
    batches,
    rows,
    columns,
    terms,
    left: tl.constexpr,
    right: tl.constexpr,
    tail: tl.constexpr,
    describe_left: tl.constexpr,
    describe_right: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    SPECIALIZED: tl.constexpr,
):
    """Tile `pid`, or where SPLIT is more than 1, a part of its sums, which goes to `parts`."""
    part = pid % SPLIT
    m, n, batch = _tile(pid // SPLIT, rows, columns, BM, BN, GROUP)
    row = m * BM + tl.arange(0, BM)[:, None]
    column = n * BN + tl.arange(0, BN)[None, :]
    if WIDE:
        row, column, batch = row.to(tl.int64), column.to(tl.int64), batch.to(tl.int64)
    in_row, in_column = row < rows, column < columns
    length = tl.cdiv(tl.cdiv(terms, BK), SPLIT) * BK
    sums = _sums(
        m, n, row, column, in_row, in_column, batch, part * length, tl.minimum((part + 1) * length, terms),
        args, descriptors, left, right, describe_left, describe_right,
        BM, BN, BK, EVEN, PRECISION, WIDE, SPECIALIZED,
    )  # fmt: skip
    if SPLIT > 1:
        place = ((part.to(tl.int64) * batches + batch) * rows + row) * columns + column
        tl.store(parts + place, sums, mask=in_row & in_column)
    else:
        start = n * BN
        if WIDE:
            start = start.to(tl.int64)
        _finish(sums, row, start, in_row, columns, batch, args, tail, BM, BN, WIDTH)


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    args,
    parts,  # [SPLIT, batches, rows, columns] float32, where SPLIT > 1
    batches,
    rows,
    columns,
    terms,
    left: tl.constexpr,
    right: tl.constexpr,
    tail: tl.constexpr,
    describe_left: tl.constexpr,
    describe_right: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    SPECIALIZED: tl.constexpr,
):
    """A program makes a tile, or where PROGRAMS is not 0, every PROGRAMS-th one: the loads of the next tile's
    first factors are then under way while a tile's tail is computed."""
    descriptors = (_described(args, describe_left, BM, BK), _described(args, describe_right, BK, BN))
    if PROGRAMS == 0:
        _make(
            tl.program_id(0), args, descriptors, parts, batches, rows, columns, terms, left, right, tail,
            describe_left, describe_right,
            BM, BN, BK, GROUP, SPLIT, WIDTH, EVEN, PRECISION, WIDE, SPECIALIZED,
        )  # fmt: skip
    else:
        tiles = SPLIT * batches * tl.cdiv(rows, BM) * tl.cdiv(columns, BN)
        # One loop for tiles and terms, or one whose warps have work of their own.
        for pid in tl.range(
            tl.program_id(0), tiles, PROGRAMS, flatten=not SPECIALIZED, warp_specialize=SPECIALIZED
        ):
            _make(
                pid, args, descriptors, parts, batches, rows, columns, terms, left, right, tail,
                describe_left, describe_right,
                BM, BN, BK, GROUP, SPLIT, WIDTH, EVEN, PRECISION, WIDE, False,
            )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def add_parts(  # type: ignore[no-untyped-def]
    args,
    parts,  # [SPLIT, batches, rows, columns] float32
    batches,
    rows,
    columns,
    tail: tl.constexpr,
    SPLIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A program adds a tile's parts up, in order."""
    m, n, batch = _tile(tl.program_id(0), rows, columns, HEIGHT, WIDTH, 1)
    row = m * HEIGHT + tl.arange(0, HEIGHT)[:, None]
    column = n * WIDTH + tl.arange(0, WIDTH)[None, :]
    if WIDE:
        row, column, batch = row.to(tl.int64), column.to(tl.int64), batch.to(tl.int64)
    in_row, in_column = row < rows, column < columns
    place = (batch.to(tl.int64) * rows + row) * columns + column
    step = tl.full([], 1, tl.int64) * batches * rows * columns
    sums = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for part in range(SPLIT):
        sums += tl.load(parts + part * step + place, mask=in_row & in_column, other=0.0)
    tail(sums, row, column, in_row, in_column, batch, args)


@triton.jit  # type: ignore[untyped-decorator]
def by_window(values, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile whose windows, SIZE rows each, are along an axis of their own, the second."""
    ROWS: tl.constexpr = values.shape[0] // SIZE
    return tl.reshape(values, [ROWS, SIZE, values.shape[1]])


@triton.jit  # type: ignore[untyped-decorator]
def window_of(row, in_row, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The windows of a tile's rows, and which are inside of the product: all of a window is, or nothing."""
    ROWS: tl.constexpr = row.shape[0] // SIZE
    first = tl.min(tl.reshape(row, [ROWS, SIZE]), 1) // SIZE
    there = tl.max(tl.reshape(in_row.to(tl.int32), [ROWS, SIZE]), 1) > 0
    return tl.expand_dims(first, 1), tl.expand_dims(there, 1)


@triton.jit  # type: ignore[untyped-decorator]
def add_runs(  # type: ignore[no-untyped-def]
    values,  # [rows, columns] of a tile
    row,
    in_row,
    in_column,
    sums,  # [runs, width]
    place,
    width,
    RUN: tl.constexpr,
    SQUARES: tl.constexpr,
):
    """Store the sum of each RUN rows of a tile, or of the squares of what they differ by from their mean.

    RUN divides the number of all rows, so that a run is inside of the product or beyond it.
    """
    added = by_window(tl.where(in_row, values, 0.0), RUN)
    made = tl.sum(added, 1)
    if SQUARES:
        off = added - tl.expand_dims(made / RUN, 1)
        made = tl.sum(off * off, 1)
    run, there = window_of(row, in_row, RUN)
    tl.store(sums + run * width + place, made, mask=there & in_column)
