"""FlashAttention in Triton, forward and backward, where each query sees an interval of the keys.

The forward loops over blocks of keys with a running row maximum and sum of exponentials (Dao et al., 2022;
Milakov and Gimelshein, 2018) and stores each query's logsumexp, `lse`. The backward has three kernels. None
accumulates into another's output, so results are the same from run to run: `backward_dots` computes delta,
the row sum of ``grad_out * out``; `backward_keys` computes dk and dv, one program per block of keys;
`backward_queries` computes dq.

Each loop over blocks has up to three parts: blocks at the edges of the intervals test every key (EDGE),
blocks that all rows of the tile see need no test, and blocks outside are skipped. The score function and its
derivative are parameters of the kernels:

    score(s, b, h, i, j, args)         the new scores, given the scores `s` of query i and key j
    score_grad(s, b, h, i, j, args)    its derivative with respect to `s`

`i` and `j` broadcast to the tile, in either orientation.

Legend: M is a tile's queries, N its keys, D the head size of queries and keys, E that of values; a suffix
gives a tensor's axes, as in `k_ND`. The blocks BLOCK_D and BLOCK_E are powers of two; PAD_D and PAD_E say
that they exceed the head sizes. `row` and `column` are the indices of a tile's queries and keys; `rows` and
`keys` are their totals. WIDE: indices need 64 bits. Exponentials and logarithms (`lse`) are to base 2.

LARGE_SCORES: scores may be as large as finfo.min, which masks use, because a mask is added or there is a
score function. Multiplying by log2(e) could then overflow to infinity, so scores stay in natural units until
the row maximum is subtracted. `lse` then has two rows per head, row maxima and logarithms of sums: in their
sum, the logarithm would be lost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.kernels.interface.launch import Launch, run_all
from burnt.kernels.ops.attention.flash_config import KERNELS, FlashConfig

_LOG2_E = tl.constexpr(1.4426950408889634)


# --- shared by all kernels --------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _as_index(size, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a size in the integer type that indices need."""
    if WIDE:
        return tl.full([], 0, tl.int64) + size
    else:
        return size


@triton.jit  # type: ignore[untyped-decorator]
def _load_tile(  # type: ignore[no-untyped-def]
    base, row, column, stride, rows, columns, CHECK_ROWS: tl.constexpr, CHECK_COLUMNS: tl.constexpr
):
    """Load a tile of a matrix; with CHECK_ROWS or CHECK_COLUMNS, elements outside of the matrix are zero."""
    pointers = base + row[:, None] * stride + column[None, :]
    if CHECK_ROWS:
        if CHECK_COLUMNS:
            return tl.load(pointers, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0.0)
        else:
            return tl.load(pointers, mask=(row < rows)[:, None], other=0.0)
    else:
        if CHECK_COLUMNS:
            return tl.load(pointers, mask=(column < columns)[None, :], other=0.0)
        else:
            return tl.load(pointers)


@triton.jit  # type: ignore[untyped-decorator]
def _visible_interval(  # type: ignore[no-untyped-def]
    i,
    begin_table,
    end_table,
    low,
    high,
    size,
    HAS_LOW: tl.constexpr,
    HAS_HIGH: tl.constexpr,
    HAS_TABLES: tl.constexpr,
):
    """Return the interval that `i` sees: from the tables, or ``[i + low, i + high)`` if there are limits."""
    if HAS_TABLES:
        return tl.load(begin_table + i), tl.load(end_table + i)
    else:
        begin = i * 0
        end = begin + size
        if HAS_LOW:
            begin = tl.minimum(tl.maximum(i + low, 0), size)
        if HAS_HIGH:
            end = tl.minimum(tl.maximum(i + high, 0), size)
        return begin, end


@triton.jit  # type: ignore[untyped-decorator]
def _block_ranges(  # type: ignore[no-untyped-def]
    start,
    rows,
    begin_table,
    end_table,
    low,
    high,
    size,
    HAS_LOW: tl.constexpr,
    HAS_HIGH: tl.constexpr,
    HAS_TABLES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return where a tile's loop begins, the range of blocks that need no test, and where the loop ends."""
    last = tl.minimum(start + TILE, rows) - 1
    begin, inner_end = _visible_interval(
        start, begin_table, end_table, low, high, size, HAS_LOW, HAS_HIGH, HAS_TABLES
    )
    inner_begin, end = _visible_interval(
        last, begin_table, end_table, low, high, size, HAS_LOW, HAS_HIGH, HAS_TABLES
    )
    begin = begin // BLOCK * BLOCK
    end = tl.maximum((end + BLOCK - 1) // BLOCK * BLOCK, begin)
    inner_begin = tl.minimum((inner_begin + BLOCK - 1) // BLOCK * BLOCK, end)
    inner_end = tl.minimum(tl.maximum(inner_end // BLOCK * BLOCK, inner_begin), end)
    return begin, inner_begin, inner_end, end


@triton.jit  # type: ignore[untyped-decorator]
def _compute_scores(  # type: ignore[no-untyped-def]
    qk,
    scale,
    mask,
    b,
    h,
    i,
    j,
    valid_i,
    valid_j,
    i_stride,
    j_stride,
    args,
    score: tl.constexpr,
    MASK: tl.constexpr,
    EDGE: tl.constexpr,
    SCALED_LATER: tl.constexpr = False,
):
    """Return masked scores (MASK 1: boolean, 2: additive), in base-2 units unless LARGE_SCORES.

    With SCALED_LATER they are not multiplied by the scale.
    """
    LARGE_SCORES: tl.constexpr = score is not None or MASK == 2
    if SCALED_LATER:
        s = qk
    elif not LARGE_SCORES:
        s = qk * (scale * _LOG2_E)
    else:
        s = qk * scale
        if score is not None:
            s = score(s, b, h, i, j, args)
    if MASK != 0:
        pointers = mask + i * i_stride + j * j_stride
        if EDGE:
            mask_value = tl.load(pointers, mask=valid_i & valid_j, other=0)
        else:
            mask_value = tl.load(pointers, mask=valid_i, other=0)
        if MASK == 1:
            s = tl.where(mask_value != 0, s, float("-inf"))
        else:
            s += mask_value.to(tl.float32)
    return s


@triton.jit  # type: ignore[untyped-decorator]
def _exp_difference(difference, LARGE_SCORES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the exponential of a difference of scores."""
    if LARGE_SCORES:
        return tl.exp2(difference * _LOG2_E)
    else:
        return tl.exp2(difference)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_weights(s, row_max, log_sum, LARGE_SCORES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the softmax weights of scores; without LARGE_SCORES, `row_max` is the whole logsumexp."""
    if LARGE_SCORES:
        return tl.exp2((s - row_max) * _LOG2_E - log_sum)
    else:
        return tl.exp2(s - row_max)


@triton.jit  # type: ignore[untyped-decorator]
def _load_lse(lse, row, rows, EDGE: tl.constexpr, LARGE_SCORES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load row maxima and logarithms of sums; without LARGE_SCORES, their sum as both."""
    if EDGE:
        row_max = tl.load(lse + row, mask=row < rows, other=float("inf"))
    else:
        row_max = tl.load(lse + row)
    log_sum = row_max
    if LARGE_SCORES:
        if EDGE:
            log_sum = tl.load(lse + rows + row, mask=row < rows, other=0.0)
        else:
            log_sum = tl.load(lse + rows + row)
    return row_max, log_sum


@triton.jit
def _keep_words(word, dropout):  # type: ignore[no-untyped-def]
    return ((word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08 >= dropout).to(tl.int8)


@triton.jit  # type: ignore[untyped-decorator]
def _dropout_mask(  # type: ignore[no-untyped-def]
    seed, head, query, start, dropout, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Return the dropout mask of a tile ``[M, N]``, as `reference.dropout_mask` defines it."""
    group = (start // 4 + tl.arange(0, BLOCK_N // 4)).to(tl.uint32)[None, :]
    row = query.to(tl.uint32)[:, None]
    zero = group * 0 + row * 0
    words = tl.philox(tl.load(seed).to(tl.uint64), zero + group, zero + row, zero + head.to(tl.uint32), zero)
    even = tl.join(_keep_words(words[0], dropout), _keep_words(words[2], dropout))
    odd = tl.join(_keep_words(words[1], dropout), _keep_words(words[3], dropout))
    return tl.reshape(tl.join(even, odd), [BLOCK_M, BLOCK_N]) != 0


# --- score functions --------------------------------------------------------------------------------------


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def softcap_score(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """Return ``softcap * tanh(s / softcap)``; args: softcap."""
    return _tanh(s / args[0]) * args[0]


@triton.jit
def softcap_score_grad(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """Return the derivative of `softcap_score` and of `softcap_alibi_score`."""
    t = _tanh(s / args[0])
    return 1.0 - t * t


@triton.jit
def alibi_score(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """Subtract the ALiBi bias; args: softcap, slopes, position of query 0 among the keys."""
    return s - tl.load(args[1] + h).to(tl.float32) * tl.abs(i + args[2] - j).to(tl.float32)


@triton.jit
def softcap_alibi_score(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """Apply the softcap, then ALiBi."""
    return alibi_score(softcap_score(s, b, h, i, j, args), b, h, i, j, args)


@triton.jit
def unit_score_grad(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """Return the derivative of `alibi_score`."""
    return s * 0.0 + 1.0


# --- forward ----------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def _multiply_keys(  # type: ignore[no-untyped-def]
    q_MD, k, start, stride, keys, d_size, EDGE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PAD_D: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the products of a tile of queries with the block of keys at `start`."""
    column = _as_index(start + tl.arange(0, BLOCK_N), WIDE)
    k_ND = _load_tile(k, column, tl.arange(0, BLOCK_D), stride, keys, d_size, EDGE, PAD_D)
    return tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)


@triton.jit  # type: ignore[untyped-decorator]
def _add_keys(  # type: ignore[no-untyped-def]
    state,  # of the loop over keys: acc, row_sum, row_max
    qk,
    start,
    tile,  # what all blocks of keys share
    score: tl.constexpr,
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    POSITIVE: tl.constexpr,
    EDGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PAD_E: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the block of keys at `start`, whose products with the queries are `qk`, to a tile's output."""
    LARGE_SCORES: tl.constexpr = score is not None or MASK == 2
    # The maximum of scores times a positive scale is theirs times the scale: fewer multiplications.
    SCALED_LATER: tl.constexpr = POSITIVE and not LARGE_SCORES
    acc, row_sum, row_max = state
    v, mask, seed, b, h, head, row, rows, keys, begin_M, end_M = tile[:11]
    v_stride, mask_strides, e_size, scale, dropout, args = tile[11:]
    column = _as_index(start + tl.arange(0, BLOCK_N), WIDE)
    i, j = row[:, None], column[None, :]
    s = _compute_scores(
        qk, scale, mask, b, h, i, j, i < rows, j < keys, mask_strides[2], mask_strides[3], args, score, MASK,
        EDGE, SCALED_LATER,
    )  # fmt: skip
    if EDGE:
        s = tl.where((j >= begin_M[:, None]) & (j < end_M[:, None]), s, float("-inf"))
    block_max = tl.max(s, 1)
    if SCALED_LATER:
        block_max *= scale * _LOG2_E
    new_max = tl.maximum(row_max, block_max)
    safe_max = new_max
    if EDGE or MASK != 0 or score is not None:
        # A query that has seen no key yet would subtract -inf from -inf.
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
    if SCALED_LATER:
        s *= scale * _LOG2_E
    p = _exp_difference(s - safe_max[:, None], LARGE_SCORES)
    rescale = _exp_difference(row_max - safe_max, LARGE_SCORES)
    row_sum = row_sum * rescale + tl.sum(p, 1)
    acc = acc * rescale[:, None]
    if DROPOUT:
        p = tl.where(_dropout_mask(seed, head, row, start, dropout, BLOCK_M, BLOCK_N), p, 0.0)
    v_NE = _load_tile(v, column, tl.arange(0, BLOCK_E), v_stride, keys, e_size, EDGE, PAD_E)
    acc = tl.dot(p.to(v_NE.dtype), v_NE, acc, input_precision=PRECISION)
    return acc, row_sum, new_max


@triton.jit  # type: ignore[untyped-decorator]
def forward_kernel(  # type: ignore[no-untyped-def]
    q,  # [B, H, L, D]
    k,  # [B, H / GROUP, S, D]
    v,  # [B, H / GROUP, S, E]
    mask,  # [B, H, L, S], uint8 if MASK is 1, floats if it is 2
    begin_table,  # [B, L] int32, if HAS_TABLES: the keys that each query sees
    end_table,
    seed,
    out,  # [B, H, L, E]
    lse,  # [B, H, L] float32, or [B, H, 2 * L] if LARGE_SCORES
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    mask_strides,
    table_stride,
    heads,
    rows,
    keys,
    d_size,
    e_size,
    low,
    high,
    scale,
    dropout,
    args,
    score: tl.constexpr,
    GROUP: tl.constexpr,
    MASK: tl.constexpr,
    HAS_LOW: tl.constexpr,
    HAS_HIGH: tl.constexpr,
    HAS_TABLES: tl.constexpr,
    DROPOUT: tl.constexpr,
    POSITIVE: tl.constexpr,  # whether the scale is
    AHEAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PAD_D: tl.constexpr,
    PAD_E: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute a tile of one head's queries per program; the last tiles, which see most keys, start first."""
    rows, keys = _as_index(rows, WIDE), _as_index(keys, WIDE)
    num_tiles = tl.cdiv(rows, BLOCK_M)
    program = tl.program_id(0)
    start = (num_tiles - 1 - program % num_tiles) * BLOCK_M
    head = program // num_tiles
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    scale, dropout = tl.full([], scale, tl.float32), tl.full([], dropout, tl.float32)
    q += b * q_strides[0] + h * q_strides[1]
    k += b * k_strides[0] + h // GROUP * k_strides[1]
    v += b * v_strides[0] + h // GROUP * v_strides[1]
    out += b * out_strides[0] + h * out_strides[1]
    mask += b * mask_strides[0] + h * mask_strides[1]
    begin_table += b * table_stride
    end_table += b * table_stride
    row = start + tl.arange(0, BLOCK_M)
    ranges = _block_ranges(
        start, rows, begin_table, end_table, low, high, keys, HAS_LOW, HAS_HIGH, HAS_TABLES, BLOCK_M, BLOCK_N
    )
    begin_M, end_M = _visible_interval(
        tl.minimum(row, rows - 1), begin_table, end_table, low, high, keys, HAS_LOW, HAS_HIGH, HAS_TABLES
    )
    if WIDE:
        row = row.to(tl.int64)
    q_MD = _load_tile(q, row, tl.arange(0, BLOCK_D), q_strides[2], rows, d_size, True, PAD_D)
    acc = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    tile = (
        v, mask, seed, b, h, head, row, rows, keys, begin_M, end_M, v_strides[2], mask_strides, e_size, scale,
        dropout, args,
    )  # fmt: skip
    state = acc, row_sum, row_max
    for part in tl.static_range(3):
        if part > 0 or HAS_LOW or HAS_TABLES:
            begin, end = ranges[part], ranges[part + 1]
            if AHEAD and part == 1:
                # Tensor cores multiply the next block while this one's exponentials are computed; after the
                # last block, that one again.
                last = tl.maximum(end - BLOCK_N, begin)
                qk = _multiply_keys(
                    q_MD, k, begin, k_strides[2], keys, d_size, True, BLOCK_N, BLOCK_D, PAD_D, WIDE, PRECISION
                )
            for key in range(begin, end, BLOCK_N):
                if AHEAD and part == 1:
                    next_qk = _multiply_keys(
                        q_MD, k, tl.minimum(key + BLOCK_N, last), k_strides[2], keys, d_size, False, BLOCK_N,
                        BLOCK_D, PAD_D, WIDE, PRECISION,
                    )  # fmt: skip
                else:
                    qk = _multiply_keys(
                        q_MD, k, key, k_strides[2], keys, d_size, part != 1, BLOCK_N, BLOCK_D, PAD_D, WIDE,
                        PRECISION,
                    )  # fmt: skip
                state = _add_keys(
                    state, qk, key, tile, score, MASK, DROPOUT, POSITIVE, part != 1, BLOCK_M, BLOCK_N,
                    BLOCK_E, PAD_E, WIDE, PRECISION,
                )  # fmt: skip
                if AHEAD and part == 1:
                    qk = next_qk
    acc, row_sum, row_max = state
    no_keys = row_sum == 0.0
    inv_sum = 1.0 / tl.where(no_keys, 1.0, row_sum)
    if DROPOUT:
        inv_sum = tl.where(dropout < 1.0, inv_sum / (1.0 - dropout), 0.0)
    out_ME = tl.where(no_keys[:, None], 0.0, acc * inv_sum[:, None])
    column = tl.arange(0, BLOCK_E)
    pointers = out + row[:, None] * out_strides[2] + column[None, :]
    tl.store(
        pointers, out_ME.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < e_size)[None, :]
    )
    # For a query that sees no key, an infinite row maximum makes its weights zero in the backward.
    log_sum = tl.log2(tl.where(no_keys, 1.0, row_sum))
    if score is not None or MASK == 2:
        lse += head.to(tl.int64) * 2 * rows
        tl.store(lse + rows + row, log_sum, mask=row < rows)
    else:
        lse += head.to(tl.int64) * rows
        row_max += log_sum
    tl.store(lse + row, tl.where(no_keys, float("inf"), row_max), mask=row < rows)


# --- backward ---------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def backward_dots(  # type: ignore[no-untyped-def]
    grad_out,  # [B, H, L, E]
    out,
    delta,  # [B, H, L] float32
    grad_out_strides,
    out_strides,
    heads,
    rows,
    e_size,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Compute delta, the sum of ``grad_out * out`` for each query."""
    rows = _as_index(rows, True)
    num_tiles = tl.cdiv(rows, BLOCK_M)
    head = tl.program_id(0) // num_tiles
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    row = (tl.program_id(0) % num_tiles * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = tl.arange(0, BLOCK_E)
    in_bounds = (row < rows)[:, None] & (column < e_size)[None, :]
    grad_out += b * grad_out_strides[0] + h * grad_out_strides[1]
    out += b * out_strides[0] + h * out_strides[1]
    grad_out_ME = tl.load(
        grad_out + row[:, None] * grad_out_strides[2] + column[None, :], mask=in_bounds, other=0.0
    )
    out_ME = tl.load(out + row[:, None] * out_strides[2] + column[None, :], mask=in_bounds, other=0.0)
    delta_M = tl.sum(grad_out_ME.to(tl.float32) * out_ME.to(tl.float32), 1)
    tl.store(delta + head.to(tl.int64) * rows + row, delta_M, mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _accumulate_dk_dv(  # type: ignore[no-untyped-def]
    dk,
    dv,
    k_ND,
    v_NE,
    q,
    grad_out,
    mask,
    seed,
    lse,
    delta,
    begin,
    end,
    b,
    h,
    head,
    key_start,
    column,
    rows,
    keys,
    begin_N,
    end_N,
    q_stride,
    grad_out_stride,
    mask_strides,
    d_size,
    e_size,
    scale,
    dropout,
    args,
    score: tl.constexpr,
    score_grad: tl.constexpr,
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EDGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PAD_D: tl.constexpr,
    PAD_E: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Accumulate the queries from `begin` to `end` into the gradients of a block of keys and values."""
    LARGE_SCORES: tl.constexpr = score is not None or MASK == 2
    for start in range(begin, end, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        if WIDE:
            row = row.to(tl.int64)
        i, j = row[None, :], column[:, None]
        q_MD = _load_tile(q, row, tl.arange(0, BLOCK_D), q_stride, rows, d_size, EDGE, PAD_D)
        qk = tl.dot(k_ND, tl.trans(q_MD), input_precision=PRECISION)
        s = _compute_scores(
            qk, scale, mask, b, h, i, j, i < rows, j < keys, mask_strides[2], mask_strides[3], args,
            score, MASK, True,
        )  # fmt: skip
        row_max_M, log_sum_M = _load_lse(lse, row, rows, EDGE, LARGE_SCORES)
        if EDGE:
            delta_M = tl.load(delta + row, mask=row < rows, other=0.0)
        else:
            delta_M = tl.load(delta + row)
        p = _softmax_weights(s, row_max_M[None, :], log_sum_M[None, :], LARGE_SCORES)
        if EDGE:
            p = tl.where((i >= begin_N[:, None]) & (i < end_N[:, None]), p, 0.0)
        grad_out_ME = _load_tile(
            grad_out, row, tl.arange(0, BLOCK_E), grad_out_stride, rows, e_size, EDGE, PAD_E
        )
        dp = tl.dot(v_NE, tl.trans(grad_out_ME), input_precision=PRECISION)
        dropped = p
        if DROPOUT:
            keep = tl.trans(_dropout_mask(seed, head, row, key_start, dropout, BLOCK_M, BLOCK_N))
            keep_scale = tl.where(dropout < 1.0, 1.0 / (1.0 - dropout), 0.0)
            dropped = tl.where(keep, p * keep_scale, 0.0)
            dp = tl.where(keep, dp * keep_scale, 0.0)
        dv = tl.dot(dropped.to(grad_out_ME.dtype), grad_out_ME, dv, input_precision=PRECISION)
        ds = p * (dp - delta_M[None, :])
        if score is not None:
            ds = tl.where(p > 0.0, ds * score_grad(qk * scale, b, h, i, j, args), 0.0)
        dk = tl.dot(ds.to(q_MD.dtype), q_MD, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit  # type: ignore[untyped-decorator]
def backward_keys(  # type: ignore[no-untyped-def]
    q,  # as in the forward
    k,
    v,
    mask,
    begin_table,  # [B, S] int32, if HAS_TABLES: the queries that see each key
    end_table,
    seed,
    grad_out,  # [B, H, L, E]
    lse,  # as of the forward
    delta,
    dk,  # [B, H / GROUP, S, D]
    dv,
    q_strides,
    k_strides,
    v_strides,
    grad_out_strides,
    mask_strides,
    dk_strides,
    dv_strides,
    table_stride,
    heads,
    rows,
    keys,
    d_size,
    e_size,
    low,
    high,
    scale,
    dropout,
    args,
    score: tl.constexpr,
    score_grad: tl.constexpr,
    GROUP: tl.constexpr,
    MASK: tl.constexpr,
    HAS_LOW: tl.constexpr,
    HAS_HIGH: tl.constexpr,
    HAS_TABLES: tl.constexpr,
    DROPOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PAD_D: tl.constexpr,
    PAD_E: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute dk and dv of one block per program, summed over the query heads that share the key head."""
    rows, keys = _as_index(rows, WIDE), _as_index(keys, WIDE)
    num_tiles = tl.cdiv(keys, BLOCK_N)
    start = tl.program_id(0) % num_tiles * BLOCK_N
    kv_program = tl.program_id(0) // num_tiles
    b, kv_head = (kv_program // (heads // GROUP)).to(tl.int64), (kv_program % (heads // GROUP)).to(tl.int64)
    scale, dropout = tl.full([], scale, tl.float32), tl.full([], dropout, tl.float32)
    k += b * k_strides[0] + kv_head * k_strides[1]
    v += b * v_strides[0] + kv_head * v_strides[1]
    dk += b * dk_strides[0] + kv_head * dk_strides[1]
    dv += b * dv_strides[0] + kv_head * dv_strides[1]
    begin_table += b * table_stride
    end_table += b * table_stride
    column = start + tl.arange(0, BLOCK_N)
    ranges = _block_ranges(
        start, keys, begin_table, end_table, low, high, rows, HAS_LOW, HAS_HIGH, HAS_TABLES, BLOCK_N, BLOCK_M
    )
    begin_N, end_N = _visible_interval(
        tl.minimum(column, keys - 1), begin_table, end_table, low, high, rows, HAS_LOW, HAS_HIGH, HAS_TABLES
    )
    if WIDE:
        column = column.to(tl.int64)
    k_ND = _load_tile(k, column, tl.arange(0, BLOCK_D), k_strides[2], keys, d_size, True, PAD_D)
    v_NE = _load_tile(v, column, tl.arange(0, BLOCK_E), v_strides[2], keys, e_size, True, PAD_E)
    dk_acc = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_acc = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    LARGE_SCORES: tl.constexpr = score is not None or MASK == 2
    for group_index in range(GROUP):
        h = kv_head * GROUP + group_index
        head = b * heads + h
        q_h = q + b * q_strides[0] + h * q_strides[1]
        grad_out_h = grad_out + b * grad_out_strides[0] + h * grad_out_strides[1]
        mask_h = mask + b * mask_strides[0] + h * mask_strides[1]
        lse_h, delta_h = lse + head * (2 * rows if LARGE_SCORES else rows), delta + head * rows
        for part in tl.static_range(3):
            if part > 0 or HAS_LOW or HAS_TABLES:
                dk_acc, dv_acc = _accumulate_dk_dv(
                    dk_acc, dv_acc, k_ND, v_NE, q_h, grad_out_h, mask_h, seed, lse_h, delta_h, ranges[part],
                    ranges[part + 1], b, h, head, start, column, rows, keys, begin_N, end_N, q_strides[2],
                    grad_out_strides[2], mask_strides, d_size, e_size, scale, dropout, args, score,
                    score_grad, MASK, DROPOUT, part != 1, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, PAD_D, PAD_E,
                    WIDE, PRECISION,
                )  # fmt: skip
    in_bounds = (column < keys)[:, None]
    d, e = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_E)[None, :]
    pointers = dk + column[:, None] * dk_strides[2] + d
    tl.store(pointers, (dk_acc * scale).to(dk.dtype.element_ty), mask=in_bounds & (d < d_size))
    pointers = dv + column[:, None] * dv_strides[2] + e
    tl.store(pointers, dv_acc.to(dv.dtype.element_ty), mask=in_bounds & (e < e_size))


@triton.jit  # type: ignore[untyped-decorator]
def _accumulate_dq(  # type: ignore[no-untyped-def]
    dq,
    q_MD,
    grad_out_ME,
    k,
    v,
    mask,
    seed,
    row_max_M,
    log_sum_M,
    delta_M,
    begin,
    end,
    b,
    h,
    head,
    row,
    rows,
    keys,
    begin_M,
    end_M,
    k_stride,
    v_stride,
    mask_strides,
    d_size,
    e_size,
    scale,
    dropout,
    args,
    score: tl.constexpr,
    score_grad: tl.constexpr,
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EDGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PAD_D: tl.constexpr,
    PAD_E: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Accumulate the keys from `begin` to `end` into the gradient of a tile of queries."""
    LARGE_SCORES: tl.constexpr = score is not None or MASK == 2
    for start in range(begin, end, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        if WIDE:
            column = column.to(tl.int64)
        i, j = row[:, None], column[None, :]
        k_ND = _load_tile(k, column, tl.arange(0, BLOCK_D), k_stride, keys, d_size, EDGE, PAD_D)
        v_NE = _load_tile(v, column, tl.arange(0, BLOCK_E), v_stride, keys, e_size, EDGE, PAD_E)
        qk = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
        s = _compute_scores(
            qk, scale, mask, b, h, i, j, i < rows, j < keys, mask_strides[2], mask_strides[3], args,
            score, MASK, EDGE,
        )  # fmt: skip
        p = _softmax_weights(s, row_max_M[:, None], log_sum_M[:, None], LARGE_SCORES)
        if EDGE:
            p = tl.where((j >= begin_M[:, None]) & (j < end_M[:, None]), p, 0.0)
        dp = tl.dot(grad_out_ME, tl.trans(v_NE), input_precision=PRECISION)
        if DROPOUT:
            keep_scale = tl.where(dropout < 1.0, 1.0 / (1.0 - dropout), 0.0)
            dp = tl.where(
                _dropout_mask(seed, head, row, start, dropout, BLOCK_M, BLOCK_N), dp * keep_scale, 0.0
            )
        ds = p * (dp - delta_M[:, None])
        if score is not None:
            ds = tl.where(p > 0.0, ds * score_grad(qk * scale, b, h, i, j, args), 0.0)
        dq = tl.dot(ds.to(k_ND.dtype), k_ND, dq, input_precision=PRECISION)
    return dq


@triton.jit  # type: ignore[untyped-decorator]
def backward_queries(  # type: ignore[no-untyped-def]
    q,  # as in the forward
    k,
    v,
    mask,
    begin_table,
    end_table,
    seed,
    grad_out,  # [B, H, L, E]
    lse,  # as of the forward
    delta,
    dq,  # [B, H, L, D]
    q_strides,
    k_strides,
    v_strides,
    grad_out_strides,
    mask_strides,
    dq_strides,
    table_stride,
    heads,
    rows,
    keys,
    d_size,
    e_size,
    low,
    high,
    scale,
    dropout,
    args,
    score: tl.constexpr,
    score_grad: tl.constexpr,
    GROUP: tl.constexpr,
    MASK: tl.constexpr,
    HAS_LOW: tl.constexpr,
    HAS_HIGH: tl.constexpr,
    HAS_TABLES: tl.constexpr,
    DROPOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PAD_D: tl.constexpr,
    PAD_E: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute the gradient of a tile of one head's queries per program."""
    rows, keys = _as_index(rows, WIDE), _as_index(keys, WIDE)
    num_tiles = tl.cdiv(rows, BLOCK_M)
    program = tl.program_id(0)
    start = (num_tiles - 1 - program % num_tiles) * BLOCK_M
    head = (program // num_tiles).to(tl.int64)
    b, h = head // heads, head % heads
    scale, dropout = tl.full([], scale, tl.float32), tl.full([], dropout, tl.float32)
    q += b * q_strides[0] + h * q_strides[1]
    k += b * k_strides[0] + h // GROUP * k_strides[1]
    v += b * v_strides[0] + h // GROUP * v_strides[1]
    grad_out += b * grad_out_strides[0] + h * grad_out_strides[1]
    dq += b * dq_strides[0] + h * dq_strides[1]
    mask += b * mask_strides[0] + h * mask_strides[1]
    begin_table += b * table_stride
    end_table += b * table_stride
    row = start + tl.arange(0, BLOCK_M)
    ranges = _block_ranges(
        start, rows, begin_table, end_table, low, high, keys, HAS_LOW, HAS_HIGH, HAS_TABLES, BLOCK_M, BLOCK_N
    )
    begin_M, end_M = _visible_interval(
        tl.minimum(row, rows - 1), begin_table, end_table, low, high, keys, HAS_LOW, HAS_HIGH, HAS_TABLES
    )
    if WIDE:
        row = row.to(tl.int64)
    q_MD = _load_tile(q, row, tl.arange(0, BLOCK_D), q_strides[2], rows, d_size, True, PAD_D)
    grad_out_ME = _load_tile(
        grad_out, row, tl.arange(0, BLOCK_E), grad_out_strides[2], rows, e_size, True, PAD_E
    )
    LARGE_SCORES: tl.constexpr = score is not None or MASK == 2
    row_max_M, log_sum_M = _load_lse(
        lse + head * (2 * rows if LARGE_SCORES else rows), row, rows, True, LARGE_SCORES
    )
    delta_M = tl.load(delta + head * rows + row, mask=row < rows, other=0.0)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for part in tl.static_range(3):
        if part > 0 or HAS_LOW or HAS_TABLES:
            acc = _accumulate_dq(
                acc, q_MD, grad_out_ME, k, v, mask, seed, row_max_M, log_sum_M, delta_M, ranges[part],
                ranges[part + 1], b, h, head, row, rows, keys, begin_M, end_M, k_strides[2], v_strides[2],
                mask_strides, d_size, e_size, scale, dropout, args, score, score_grad, MASK, DROPOUT,
                part != 1, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, PAD_D, PAD_E, WIDE, PRECISION,
            )  # fmt: skip
    d = tl.arange(0, BLOCK_D)[None, :]
    pointers = dq + row[:, None] * dq_strides[2] + d
    tl.store(pointers, (acc * scale).to(dq.dtype.element_ty), mask=(row < rows)[:, None] & (d < d_size))


# --- launches ---------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """An attention call, apart from the tensors q, k and v.

    Query i sees keys ``[i + low, i + high)``, None for no limit; or instead of that `tables`, int32: begin
    and end of the keys that each query sees, ``[B or 1, L]``, and of the queries that see each key, ``[B or
    1, S]``. `mask` is ``[B, H, L, S]`` with any strides; `score` and `score_grad` are Triton functions as
    above, with the tuple `args` of at least one element; `precision` is of float32 matmuls.
    """

    scale: float
    low: int | None = None
    high: int | None = None
    tables: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    mask: Tensor | None = None
    score: Any = None
    score_grad: Any = None
    args: tuple[Any, ...] = (0,)
    dropout: float = 0.0
    seed: Tensor | None = None
    precision: str = "ieee"

    @property
    def has_large_scores(self) -> bool:
        """LARGE_SCORES of the kernels."""
        return self.score is not None or (self.mask is not None and self.mask.dtype != torch.bool)


def _make_launch(
    kernel: Any, num_programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], blocks: FlashConfig
) -> Launch:
    """Build a launch; all of its arguments decide whether indices need 64 bits."""
    values = {**constants, "BLOCK_M": blocks.m, "BLOCK_N": blocks.n, "AHEAD": blocks.ahead}
    values["WIDE"] = _needs_int64(arguments)
    used = {name: values[name] for name in _constant_names(kernel) if name in values}
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    return Launch(kernel, (num_programs,), arguments, used, options)


@functools.cache
def _constant_names(kernel: Any) -> tuple[str, ...]:
    return tuple(name for name in kernel.arg_names if name.isupper())


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    blocks: Mapping[str, FlashConfig],
    run: Callable[[list[Launch], Tensor], None] = run_all,
) -> tuple[Tensor, Tensor]:
    """Return the output ``[B, H, L, E]``, stored as ``[B, L, H, E]``, and `lse`, ``[B, H, L or 2 * L]``.

    q, k and v have a last stride of 1 and are not empty.
    """
    batch, heads, rows, _ = q.shape
    out = q.new_empty(batch, rows, heads, v.shape[3]).transpose(1, 2)
    lse = q.new_empty(batch, heads, 2 * rows if problem.has_large_scores else rows, dtype=torch.float32)
    (tensors, strides, numbers), constants = _common_arguments(q, k, v, problem, over_keys=False)
    arguments = (
        *tensors, out, lse, *strides[:3], _strides(out), *strides[3:], *numbers, problem.score
    )  # fmt: skip
    num_programs = triton.cdiv(rows, blocks["forward"].m) * batch * heads
    run([_make_launch(forward_kernel, num_programs, arguments, constants, blocks["forward"])], q)
    return out, lse


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    problem: Problem,
    blocks: Mapping[str, FlashConfig],
    needs_grad: tuple[bool, bool] = (True, True),
    run: Callable[[list[Launch], Tensor], None] = run_all,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of q, k and v.

    Args are those and the results of `forward`; the gradient of `out` has a last stride of 1. `needs_grad`:
    whether dq is needed, and whether dk and dv are.
    """
    batch, heads, rows, head_size = q.shape
    keys, value_size = v.shape[2:]
    delta = lse.new_empty(batch, heads, rows)
    dq = dk = dv = None
    config = blocks["dots"]
    arguments: tuple[Any, ...] = (grad_out, out, delta, _strides(grad_out), _strides(out))
    arguments += (heads, rows, value_size)
    num_programs = triton.cdiv(rows, config.m) * batch * heads
    launches = [
        _make_launch(backward_dots, num_programs, arguments, {"BLOCK_E": _padded_size(value_size)}, config)
    ]
    functions = (problem.score, problem.score_grad)
    if needs_grad[1]:
        # Stored as [B, S, K, D], like the keys, which are often parts of one packed tensor.
        dk = k.new_empty(batch, keys, k.shape[1], head_size).transpose(1, 2)
        dv = v.new_empty(batch, keys, k.shape[1], value_size).transpose(1, 2)
        (tensors, strides, numbers), constants = _common_arguments(q, k, v, problem, over_keys=True)
        arguments = (
            *tensors, grad_out, lse, delta, dk, dv, *strides[:3], _strides(grad_out), strides[3],
            _strides(dk), _strides(dv), strides[4], *numbers, *functions,
        )  # fmt: skip
        num_programs = triton.cdiv(keys, blocks["keys"].n) * batch * k.shape[1]
        launches.append(_make_launch(backward_keys, num_programs, arguments, constants, blocks["keys"]))
    if needs_grad[0]:
        dq = q.new_empty(batch, rows, heads, head_size).transpose(1, 2)
        (tensors, strides, numbers), constants = _common_arguments(q, k, v, problem, over_keys=False)
        arguments = (
            *tensors, grad_out, lse, delta, dq, *strides[:3], _strides(grad_out), strides[3], _strides(dq),
            strides[4], *numbers, *functions,
        )  # fmt: skip
        num_programs = triton.cdiv(rows, blocks["queries"].m) * batch * heads
        launches.append(_make_launch(backward_queries, num_programs, arguments, constants, blocks["queries"]))
    run(launches, q)
    return dq, dk, dv


def launches(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    blocks: Mapping[str, FlashConfig],
    *,
    gradients: bool = False,
    needs_grad: tuple[bool, bool] = (True, True),
) -> dict[str, Launch]:
    """Return the launches of `forward` and, with `gradients`, of `backward`, by the names in `KERNELS`.

    On the meta device nothing is allocated.
    """
    found: list[Launch] = []

    def collect(launches: list[Launch], tensor: Tensor) -> None:
        found.extend(launches)

    out, lse = forward(q, k, v, problem, blocks, collect)
    if gradients:
        backward(out, q, k, v, out, lse, problem, blocks, needs_grad, collect)
    kernels = (forward_kernel, backward_dots, backward_keys, backward_queries)
    names = dict(zip(kernels, KERNELS, strict=True))
    return {names[launch.kernel]: launch for launch in found}


def _common_arguments(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, over_keys: bool
) -> tuple[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], dict[str, Any]]:
    """Return what all kernels take: tensors, strides and numbers, and the constants that depend on them.

    `over_keys`: programs own blocks of keys, and need the interval of queries that see each key.
    """
    mask = q if problem.mask is None else problem.mask
    mask_strides = (0, 0, 0, 0) if problem.mask is None else tuple(mask.stride())
    mask_kind = 0 if problem.mask is None else 1 if mask.dtype == torch.bool else 2
    if mask_kind == 1:
        mask = mask.view(torch.uint8)
    low, high, tables = problem.low, problem.high, (q, q)
    if problem.tables is not None:
        tables = problem.tables[2:] if over_keys else problem.tables[:2]
    elif over_keys:
        # Query i sees key j where i + low <= j < i + high.
        low, high = None if high is None else 1 - high, None if low is None else 1 - low
    # Clamp limits beyond all queries or keys, so that adding them to an index does not overflow.
    length, size = (k.shape[2], q.shape[2]) if over_keys else (q.shape[2], k.shape[2])
    low, high = (None if limit is None else min(max(limit, -length), size) for limit in (low, high))
    table_stride = 0 if problem.tables is None or len(tables[0]) == 1 else tables[0].stride(0)
    size, value_size = q.shape[3], v.shape[3]
    block_d, block_e = _padded_size(size), _padded_size(value_size)
    tensors = (q, k, v, mask, *tables, q if problem.seed is None else problem.seed)
    strides = (_strides(q), _strides(k), _strides(v), mask_strides, table_stride)
    # Convert to float: Triton would compile an int parameter for a whole number.
    numbers = (
        q.shape[1], q.shape[2], k.shape[2], size, value_size, low or 0, high or 0, float(problem.scale),
        float(problem.dropout), problem.args,
    )  # fmt: skip
    constants = {
        "POSITIVE": problem.scale > 0,
        "GROUP": q.shape[1] // k.shape[1],
        "MASK": mask_kind,
        "HAS_LOW": low is not None,
        "HAS_HIGH": high is not None,
        "HAS_TABLES": problem.tables is not None,
        "DROPOUT": problem.seed is not None,
        "BLOCK_D": block_d,
        "BLOCK_E": block_e,
        "PAD_D": block_d != size,
        "PAD_E": block_e != value_size,
        "PRECISION": problem.precision if q.dtype == torch.float32 else "ieee",
    }
    return (tensors, strides, numbers), constants


def _strides(tensor: Tensor) -> tuple[int, int, int]:
    return tensor.stride(0), tensor.stride(1), tensor.stride(2)


def _padded_size(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


_INDEX_MARGIN = 512
"""How far an index may run past the end of an axis: a block, or a padded head size."""


def _needs_int64(arguments: Sequence[Any]) -> bool:
    """Whether a kernel's indices need 64 bits.

    Offsets of batches and heads always have 64 bits; only those within a head count. Checks all tensors among
    the arguments, read or written, and all sizes.
    """
    largest = 2 * _INDEX_MARGIN
    tensors: dict[int, Tensor] = {}  # by identity: q is passed in place of absent optional tensors
    for argument in arguments:
        if isinstance(argument, int):
            largest += abs(argument)
        elif isinstance(argument, Tensor):
            tensors[id(argument)] = argument
        elif isinstance(argument, tuple):
            tensors |= {id(item): item for item in argument if isinstance(item, Tensor)}
    for tensor in tensors.values():
        shape, strides = tensor.shape, tensor.stride()
        extent = 0
        for axis in range(max(min(2, len(shape) - 1), 0), len(shape)):
            extent += (shape[axis] + _INDEX_MARGIN) * abs(strides[axis])
        largest = max(largest, extent)
    return largest > 2**31 - 1
