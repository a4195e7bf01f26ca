"""The matmul in Triton, written once; its operands and its epilogue are passed in as functions.

`left`, `right` and `epilogue` are functions that `print_matmul` prints for each kernel, or written by hand:

    left(row, term, in_row, in_term, batch, args)             a tile of the left operand
    right(term, column, in_term, in_column, batch, args)      a tile of the right operand
    epilogue(sums, row, column, in_row, in_column, batch, args)   stores what is computed from a tile of sums

`args` holds the kernel's tensors, numbers and sizes. Rows, columns and terms are indices into the flattened
axes M, N and K.

An operand that is a tensor in memory may be loaded by tensor descriptor (TMA) instead. Then `left` or `right`
takes a tile's first indices, and a further function makes the descriptor:

    describe(args, ROWS, COLUMNS)                             the tensor descriptor, for tiles of this size
    left(descriptor, row, term, batch, args, ROWS, COLUMNS)   a tile

Operands that need constants, SETTINGS, take a tile's first indices too, and mask it themselves:

    left(row, term, batch, args, SETTINGS, ROWS, COLUMNS)     a tile
    epilogue(sums, row, column, in_row, in_column, batch, args, SETTINGS)

Where tiles lie in GROUPS groups of rows or terms, a function finds tile number `pid`: its first row, the end
of the rows, the number of the tile of columns, the batch, the first and the end of the terms:

    locate(pid, args, GROUPS, BLOCK_M, BLOCK_N, GROUP)

Constants: BLOCK_M, BLOCK_N, BLOCK_K: the tile; GROUP: rows of tiles that are processed together; SPLIT_K:
programs that share the terms of a tile; WIDTH: columns that the epilogue handles at a time; EVEN_K: BLOCK_K
divides the number of terms; PRECISION: Triton's input precision, ``flex32``, or ``int8`` or ``float8``, the
operands; INT64_INDICES: indices have 64 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def tile_index(  # type: ignore[no-untyped-def]
    pid, rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, batches=1
):
    """The tile of a program. GROUP rows of tiles are processed together, to share operands in L2.

    If GROUP is 1, so are the batches of a tile, and where their number and that of columns are constants,
    nothing is divided by a run-time number.
    """
    num_m = tl.cdiv(rows, BLOCK_M)
    num_n = tl.cdiv(columns, BLOCK_N)
    if GROUP == 1:
        return pid // batches // num_n, pid // batches % num_n, pid % batches
    per_batch = num_m * num_n
    batch = pid // per_batch
    pid = pid % per_batch
    first_m = pid // (GROUP * num_n) * GROUP
    group_m = tl.minimum(num_m - first_m, GROUP)
    m = first_m + pid % (GROUP * num_n) % group_m
    n = pid % (GROUP * num_n) // group_m
    return m, n, batch


@triton.jit  # type: ignore[untyped-decorator]
def _make_descriptor(args, describe: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """An operand's tensor descriptor; 0 if it is loaded through pointers."""
    if describe is None:
        return 0
    else:
        return describe(args, ROWS, COLUMNS)


@triton.jit  # type: ignore[untyped-decorator]
def run_epilogue(  # type: ignore[no-untyped-def]
    sums,
    row,
    start,
    in_row,
    columns,
    batch,
    args,
    epilogue: tl.constexpr,
    SETTINGS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Run the epilogue of a tile, WIDTH columns at a time: a whole tile and the epilogue's temporaries do not
    fit into the registers.
    """
    if BLOCK_N > WIDTH:
        first, second = tl.split(tl.permute(tl.reshape(sums, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1]))
        HALF: tl.constexpr = BLOCK_N // 2
        run_epilogue(
            first, row, start, in_row, columns, batch, args, epilogue, SETTINGS, BLOCK_M, HALF, WIDTH
        )
        start += HALF
        run_epilogue(
            second, row, start, in_row, columns, batch, args, epilogue, SETTINGS, BLOCK_M, HALF, WIDTH
        )
    else:
        column = start + tl.arange(0, BLOCK_N)[None, :]
        if SETTINGS is None:
            epilogue(sums, row, column, in_row, column < columns, batch, args)
        else:
            epilogue(sums, row, column, in_row, column < columns, batch, args, SETTINGS)


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(left, right, sums, PRECISION: tl.constexpr, BLOCK_K: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the product of two tiles to int32 or float32 sums."""
    if PRECISION == "flex32":
        return tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), sums, input_precision="ieee")
    elif PRECISION == "int8":
        return tl.dot(left, right, sums, out_dtype=tl.int32)
    elif PRECISION == "float8":
        # Hopper's tensor cores add float8 products with 14 bits: after so many, add them in float32.
        IMPRECISE: tl.constexpr = BLOCK_K if BLOCK_K < 128 else 128
        return tl.dot(left, right, sums, max_num_imprecise_acc=IMPRECISE)
    else:
        return tl.dot(left, right, sums, input_precision=PRECISION)


@triton.jit  # type: ignore[untyped-decorator]
def _compute_tile(  # type: ignore[no-untyped-def]
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
    epilogue: tl.constexpr,
    describe_left: tl.constexpr,
    describe_right: tl.constexpr,
    locate: tl.constexpr,
    GROUPS: tl.constexpr,
    SETTINGS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT_K: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    INT64_INDICES: tl.constexpr,
):
    """Compute tile `pid`; if SPLIT_K > 1, only a part of its sums, which is stored to `parts`."""
    split = pid % SPLIT_K
    if locate is None:
        m, n, batch = tile_index(pid // SPLIT_K, rows, columns, BLOCK_M, BLOCK_N, GROUP, batches)
        first_row, row_end, begin, end = m * BLOCK_M, rows, 0, terms
    else:
        first_row, row_end, n, batch, begin, end = locate(
            pid // SPLIT_K, args, GROUPS, BLOCK_M, BLOCK_N, GROUP
        )
    first_column = n * BLOCK_N
    if INT64_INDICES:
        first_row, first_column, batch = first_row.to(tl.int64), first_column.to(tl.int64), batch.to(tl.int64)
    row = first_row + tl.arange(0, BLOCK_M)[:, None]
    column = first_column + tl.arange(0, BLOCK_N)[None, :]
    in_row, in_column = row < row_end, column < columns
    length = tl.cdiv(tl.cdiv(end - begin, BLOCK_K), SPLIT_K) * BLOCK_K
    begin += split * length
    end = tl.minimum(begin + length, end)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if PRECISION == "int8" else tl.float32)
    for start in tl.range(begin, end, BLOCK_K):
        term = start + tl.arange(0, BLOCK_K)
        if INT64_INDICES:
            term = term.to(tl.int64)
        if EVEN_K:
            in_k = tl.full([BLOCK_K], True, tl.int1)
        else:
            in_k = term < end
        first = tl.cast(start, tl.int32)
        if SETTINGS is not None:
            left_tile = left(first_row, first, batch, args, SETTINGS, BLOCK_M, BLOCK_K)
        elif describe_left is None:
            left_tile = left(row, term[None, :], in_row, in_k[None, :], batch, args)
        else:
            left_tile = left(
                descriptors[0], tl.cast(first_row, tl.int32), first, batch, args, BLOCK_M, BLOCK_K
            )
        if SETTINGS is not None:
            right_tile = right(first, first_column, batch, args, SETTINGS, BLOCK_K, BLOCK_N)
        elif describe_right is None:
            right_tile = right(term[:, None], column, in_k[:, None], in_column, batch, args)
        else:
            right_tile = right(
                descriptors[1], first, tl.cast(first_column, tl.int32), batch, args, BLOCK_K, BLOCK_N
            )
        sums = _multiply(left_tile, right_tile, sums, PRECISION, BLOCK_K)
    if SPLIT_K > 1:
        offset = ((split.to(tl.int64) * batches + batch) * rows + row) * columns + column
        tl.store(parts + offset, sums, mask=in_row & in_column)
    else:
        run_epilogue(
            sums, row, first_column, in_row, columns, batch, args, epilogue, SETTINGS, BLOCK_M, BLOCK_N, WIDTH
        )


@triton.jit  # type: ignore[untyped-decorator]
def matmul(  # type: ignore[no-untyped-def]
    args,
    parts,  # [SPLIT_K, batches, rows, columns] float32, or int32, where SPLIT_K > 1
    batches,
    rows,
    columns,
    terms,
    left: tl.constexpr,
    right: tl.constexpr,
    epilogue: tl.constexpr,
    describe_left: tl.constexpr,
    describe_right: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    INT64_INDICES: tl.constexpr,
    SETTINGS: tl.constexpr = None,
    locate: tl.constexpr = None,
    GROUPS: tl.constexpr = 0,
):
    """Compute a tile per program, or, if PROGRAMS is not 0, every PROGRAMS-th tile: the first loads of the
    next tile then overlap the epilogue of this one.
    """
    descriptors = (
        _make_descriptor(args, describe_left, BLOCK_M, BLOCK_K),
        _make_descriptor(args, describe_right, BLOCK_K, BLOCK_N),
    )
    if PROGRAMS == 0:
        _compute_tile(
            tl.program_id(0), args, descriptors, parts, batches, rows, columns, terms, left, right, epilogue,
            describe_left, describe_right, locate, GROUPS, SETTINGS,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP, SPLIT_K, WIDTH, EVEN_K, PRECISION, INT64_INDICES,
        )  # fmt: skip
    else:
        tiles = SPLIT_K * batches * tl.cdiv(rows, BLOCK_M) * tl.cdiv(columns, BLOCK_N)
        # Flatten the loops over tiles and terms into one.
        for pid in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
            _compute_tile(
                pid, args, descriptors, parts, batches, rows, columns, terms, left, right, epilogue,
                describe_left, describe_right, locate, GROUPS, SETTINGS,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP, SPLIT_K, WIDTH, EVEN_K, PRECISION, INT64_INDICES,
            )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def reduce_split_k(  # type: ignore[no-untyped-def]
    args,
    parts,  # [SPLIT_K, batches, rows, columns] float32 or int32
    batches,
    rows,
    columns,
    epilogue: tl.constexpr,
    SPLIT_K: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INT64_INDICES: tl.constexpr,
    SETTINGS: tl.constexpr = None,
):
    """Add the split-K parts of a tile, in order."""
    m, n, batch = tile_index(tl.program_id(0), rows, columns, HEIGHT, WIDTH, 1, batches)
    row = m * HEIGHT + tl.arange(0, HEIGHT)[:, None]
    first_column = n * WIDTH
    if INT64_INDICES:
        row, first_column, batch = row.to(tl.int64), first_column.to(tl.int64), batch.to(tl.int64)
    column = first_column + tl.arange(0, WIDTH)[None, :]
    in_row, in_column = row < rows, column < columns
    offset = (batch.to(tl.int64) * rows + row) * columns + column
    split_stride = tl.full([], 1, tl.int64) * batches * rows * columns
    sums = tl.zeros([HEIGHT, WIDTH], parts.dtype.element_ty)
    for split in tl.range(0, SPLIT_K, loop_unroll_factor=8):  # loads in flight
        sums += tl.load(parts + split * split_stride + offset, mask=in_row & in_column, other=0)
    run_epilogue(
        sums, row, first_column, in_row, columns, batch, args, epilogue, SETTINGS, HEIGHT, WIDTH, WIDTH
    )


@triton.jit  # type: ignore[untyped-decorator]
def group_rows(values, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Give each SIZE consecutive rows of a tile an axis of their own, the second."""
    ROWS: tl.constexpr = values.shape[0] // SIZE
    return tl.reshape(values, [ROWS, SIZE, values.shape[1]])


@triton.jit  # type: ignore[untyped-decorator]
def group_index(row, in_row, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The index of each group of SIZE rows, and whether it is inside the matmul: all rows are, or none."""
    ROWS: tl.constexpr = row.shape[0] // SIZE
    group = tl.min(tl.reshape(row, [ROWS, SIZE]), 1) // SIZE
    in_group = tl.max(tl.reshape(in_row.to(tl.int32), [ROWS, SIZE]), 1) > 0
    return tl.expand_dims(group, 1), tl.expand_dims(in_group, 1)


@triton.jit  # type: ignore[untyped-decorator]
def store_row_sums(  # type: ignore[no-untyped-def]
    values,  # [rows, columns] of a tile
    row,
    in_row,
    in_column,
    sums,  # [chunks, width]
    column_offset,
    width,
    CHUNK: tl.constexpr,
    SQUARES: tl.constexpr,
):
    """Store the sum of each CHUNK rows of a tile, or the sum of squared deviations from their mean.

    CHUNK divides the number of rows, so a chunk is inside the matmul or outside.
    """
    groups = group_rows(tl.where(in_row, values, 0.0), CHUNK)
    total = tl.sum(groups, 1)
    if SQUARES:
        deviation = groups - tl.expand_dims(total / CHUNK, 1)
        total = tl.sum(deviation * deviation, 1)
    chunk, in_chunk = group_index(row, in_row, CHUNK)
    tl.store(sums + chunk * width + column_offset, total, mask=in_chunk & in_column)
