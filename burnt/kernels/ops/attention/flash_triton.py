"""FlashAttention in Triton, forward and backward, where each query sees an interval of the keys.

The forward loops over blocks of keys with a running row maximum and sum of exponentials (Dao et al., 2022;
Milakov and Gimelshein, 2018) and stores each query's logsumexp, `lse`. In the backward, `backward_dots`
computes delta, the row sum of ``grad_out * out``; `backward_keys` computes dk and dv, one program per block
of keys; `backward_queries` computes dq. None accumulates into another's output, so results are the same from
run to run. That takes seven products per pair of blocks. With ADD_DQ it is five: programs of `backward_keys`
add their parts of dq in float32, by TMA reduction, in any order.

Each loop over blocks has up to three parts: blocks at the edges of the intervals test every key (EDGE),
blocks that all rows of the tile see need no test, and blocks outside are skipped. The score function and its
derivative are parameters of the kernels:

    score(s, b, h, i, j, args)         the new scores, given the scores `s` of query i and key j
    score_grad(s, b, h, i, j, args)    its derivative with respect to `s`

`i` and `j` broadcast to the tile, in either orientation.

Arguments are in bundles: `call` is a `Call`, `head` a `Head`, `tile` a `Tile`, and C are `Constants`.

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

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.kernels.interface.launch import Launch, run_all
from burnt.kernels.ops.attention.flash_config import KERNELS, FlashConfig

# --- bundles of arguments ---------------------------------------------------------------------------------


class Call(NamedTuple):
    """Arguments of all kernels, as launched."""

    q: Any  # [B, H, L, D]
    k: Any  # [B, H / GROUP, S, D]
    v: Any  # [B, H / GROUP, S, E]
    out: Any  # [B, H, L, E]; in the backward, its gradient
    lse: Any  # [B, H, L] float32, or [B, H, 2 * L] if LARGE_SCORES
    mask: Any  # [B, H, L, S], uint8 if MASK is 1, floats if it is 2
    begin_table: Any  # [B, L] int32, if HAS_TABLES: the keys that each query sees;
    end_table: Any  # for `backward_keys` [B, S], the queries that see each key
    seed: Any
    q_strides: Any
    k_strides: Any
    v_strides: Any
    out_strides: Any
    mask_strides: Any
    table_stride: Any
    heads: Any
    rows: Any
    keys: Any
    d_size: Any
    e_size: Any
    low: Any
    high: Any
    scale: Any
    dropout: Any
    args: Any  # of the score function


class Head(NamedTuple):
    """A head of a call: pointers to its elements, and numbers in the types that kernels need."""

    call: Any
    b: Any
    h: Any
    number: Any  # b * heads + h
    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    mask: Any
    begin_table: Any
    end_table: Any
    rows: Any
    keys: Any
    scale: Any
    dropout: Any


class Tile(NamedTuple):
    """The queries, or keys, of a program: the first, all, and the interval that each sees or is seen by."""

    start: Any
    index: Any
    begin: Any
    end: Any


class Constants(NamedTuple):
    """Constants of all kernels; the legend has the rest."""

    GROUP: int  # query heads per key head
    MASK: int  # 1: boolean, 2: additive
    HAS_LOW: bool
    HAS_HIGH: bool
    HAS_TABLES: bool
    DROPOUT: bool
    LARGE_SCORES: bool
    SCALED_LATER: bool  # scores are scaled after the maximum
    BLOCK_D: int
    BLOCK_E: int
    PAD_D: bool
    PAD_E: bool
    PRECISION: str
    WIDE: bool = False
    BLOCK_M: int = 0
    BLOCK_N: int = 0
    AHEAD: bool = False
    ADD_DQ: bool = False  # `backward_keys` adds to dq
    # Not a constant of the module: that would make keys of Triton's cache depend on what was compiled before.
    LOG2_E: float = 1.4426950408889634


# --- shared by all kernels --------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _as_index(size, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a size in the integer type that indices need."""
    if WIDE:
        return tl.full([], 0, tl.int64) + size
    else:
        return size


@triton.jit  # type: ignore[untyped-decorator]
def _head_of(call, b, h, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return query head `h` of batch element `b`, with its keys."""
    b, h = b.to(tl.int64), h.to(tl.int64)
    rows, keys = _as_index(call.rows, C.WIDE), _as_index(call.keys, C.WIDE)
    number, kv_head = b * call.heads + h, h // C.GROUP
    return Head(
        call, b, h, number,
        call.q + b * call.q_strides[0] + h * call.q_strides[1],
        call.k + b * call.k_strides[0] + kv_head * call.k_strides[1],
        call.v + b * call.v_strides[0] + kv_head * call.v_strides[1],
        call.out + b * call.out_strides[0] + h * call.out_strides[1],
        call.lse + number * (2 * rows if C.LARGE_SCORES else rows),
        call.mask + b * call.mask_strides[0] + h * call.mask_strides[1],
        call.begin_table + b * call.table_stride, call.end_table + b * call.table_stride,
        rows, keys, tl.full([], call.scale, tl.float32), tl.full([], call.dropout, tl.float32),
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _load_tile(  # type: ignore[no-untyped-def]
    base, row, stride, rows, columns, BLOCK: tl.constexpr, CHECK_ROWS: tl.constexpr, PAD: tl.constexpr
):
    """Load rows of a matrix; with CHECK_ROWS or PAD, elements outside of the matrix are zero."""
    column = tl.arange(0, BLOCK)
    in_bounds = tl.full([1, 1], True, tl.int1)
    if CHECK_ROWS:
        in_bounds &= (row < rows)[:, None]
    if PAD:
        in_bounds &= (column < columns)[None, :]
    return tl.load(base + row[:, None] * stride + column[None, :], mask=in_bounds, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _load_row(base, row, rows, other, CHECK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load a number per row; with CHECK, those past the last row are `other`."""
    if CHECK:
        return tl.load(base + row, mask=row < rows, other=other)
    else:
        return tl.load(base + row)


@triton.jit  # type: ignore[untyped-decorator]
def _visible_interval(head, i, size, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the interval that `i` sees: from the tables, or ``[i + low, i + high)`` if there are limits."""
    if C.HAS_TABLES:
        return tl.load(head.begin_table + i), tl.load(head.end_table + i)
    else:
        begin = i * 0
        end = begin + size
        if C.HAS_LOW:
            begin = tl.minimum(tl.maximum(i + head.call.low, 0), size)
        if C.HAS_HIGH:
            end = tl.minimum(tl.maximum(i + head.call.high, 0), size)
        return begin, end


@triton.jit  # type: ignore[untyped-decorator]
def _visible_tile(  # type: ignore[no-untyped-def]
    head, start, rows, size, TILE: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr
):
    """Return the tile at `start`, and where the three parts of its loop over blocks begin and end.

    The second part is the range of blocks that need no test.
    """
    index = start + tl.arange(0, TILE)
    begin, inner_end = _visible_interval(head, start, size, C)
    inner_begin, end = _visible_interval(head, tl.minimum(start + TILE, rows) - 1, size, C)
    begin = begin // BLOCK * BLOCK
    end = tl.maximum((end + BLOCK - 1) // BLOCK * BLOCK, begin)
    inner_begin = tl.minimum((inner_begin + BLOCK - 1) // BLOCK * BLOCK, end)
    inner_end = tl.minimum(tl.maximum(inner_end // BLOCK * BLOCK, inner_begin), end)
    first, past = _visible_interval(head, tl.minimum(index, rows - 1), size, C)
    return Tile(start, _as_index(index, C.WIDE), first, past), (begin, inner_begin, inner_end, end)


@triton.jit  # type: ignore[untyped-decorator]
def _query_tile(call, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the program's head, tile of queries and `_visible_tile`'s ranges.

    The last tiles, which see most keys, start first.
    """
    num_tiles = tl.cdiv(_as_index(call.rows, C.WIDE), C.BLOCK_M)
    program = tl.program_id(0)
    number = program // num_tiles
    head = _head_of(call, number // call.heads, number % call.heads, C)
    start = (num_tiles - 1 - program % num_tiles) * C.BLOCK_M
    tile, ranges = _visible_tile(head, start, head.rows, head.keys, C.BLOCK_M, C.BLOCK_N, C)
    return head, tile, ranges


@triton.jit  # type: ignore[untyped-decorator]
def _compute_scores(  # type: ignore[no-untyped-def]
    qk, head, i, j, score: tl.constexpr, C: tl.constexpr, EDGE: tl.constexpr, SCALED_LATER: tl.constexpr
):
    """Return masked scores, in base-2 units unless LARGE_SCORES; with SCALED_LATER, not yet scaled."""
    if SCALED_LATER:
        s = qk
    elif not C.LARGE_SCORES:
        s = qk * (head.scale * C.LOG2_E)
    else:
        s = qk * head.scale
        if score is not None:
            s = score(s, head.b, head.h, i, j, head.call.args)
    if C.MASK != 0:
        in_bounds = i < head.rows
        if EDGE:
            in_bounds &= j < head.keys
        pointers = head.mask + i * head.call.mask_strides[2] + j * head.call.mask_strides[3]
        mask_value = tl.load(pointers, mask=in_bounds, other=0)
        if C.MASK == 1:
            s = tl.where(mask_value != 0, s, float("-inf"))
        else:
            s += mask_value.to(tl.float32)
    return s


@triton.jit  # type: ignore[untyped-decorator]
def _exp_difference(difference, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the exponential of a difference of scores."""
    if C.LARGE_SCORES:
        return tl.exp2(difference * C.LOG2_E)
    else:
        return tl.exp2(difference)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_weights(s, lse, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the softmax weights of scores, given what `_load_lse` returns."""
    if C.LARGE_SCORES:
        return tl.exp2((s - lse[0]) * C.LOG2_E - lse[1])
    else:
        return tl.exp2(s - lse[0])


@triton.jit  # type: ignore[untyped-decorator]
def _load_lse(head, row, C: tl.constexpr, CHECK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load row maxima and logarithms of sums; without LARGE_SCORES, their sum as both."""
    row_max = _load_row(head.lse, row, head.rows, float("inf"), CHECK)
    if C.LARGE_SCORES:
        return row_max, _load_row(head.lse + head.rows, row, head.rows, 0.0, CHECK)
    else:
        return row_max, row_max


@triton.jit
def _keep_words(word, dropout):  # type: ignore[no-untyped-def]
    return ((word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08 >= dropout).to(tl.int8)


@triton.jit  # type: ignore[untyped-decorator]
def _dropout_mask(head, query, start, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the dropout mask of a tile ``[M, N]``, as `reference.dropout_mask` defines it."""
    group = (start // 4 + tl.arange(0, C.BLOCK_N // 4)).to(tl.uint32)[None, :]
    row = query.to(tl.uint32)[:, None]
    zero = group * 0 + row * 0
    seed = tl.load(head.call.seed).to(tl.uint64)
    words = tl.philox(seed, zero + group, zero + row, zero + head.number.to(tl.uint32), zero)
    even = tl.join(_keep_words(words[0], head.dropout), _keep_words(words[2], head.dropout))
    odd = tl.join(_keep_words(words[1], head.dropout), _keep_words(words[3], head.dropout))
    return tl.reshape(tl.join(even, odd), [C.BLOCK_M, C.BLOCK_N]) != 0


@triton.jit
def _keep_scale(head):  # type: ignore[no-untyped-def]
    """Return what dropout multiplies the weights that it keeps by."""
    return tl.where(head.dropout < 1.0, 1.0 / (1.0 - head.dropout), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store_tile(  # type: ignore[no-untyped-def]
    base, values, row, stride, rows, columns, BLOCK: tl.constexpr
):
    """Store rows of a matrix."""
    column = tl.arange(0, BLOCK)[None, :]
    in_bounds = (row < rows)[:, None] & (column < columns)
    tl.store(base + row[:, None] * stride + column, values.to(base.dtype.element_ty), mask=in_bounds)


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
def _multiply_keys(q_MD, head, start, C: tl.constexpr, EDGE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the products of a tile of queries with the block of keys at `start`."""
    column = _as_index(start + tl.arange(0, C.BLOCK_N), C.WIDE)
    call = head.call
    k_ND = _load_tile(head.k, column, call.k_strides[2], head.keys, call.d_size, C.BLOCK_D, EDGE, C.PAD_D)
    return tl.dot(q_MD, tl.trans(k_ND), input_precision=C.PRECISION)


@triton.jit  # type: ignore[untyped-decorator]
def _add_keys(  # type: ignore[no-untyped-def]
    state,  # of the loop over keys: acc, row_sum, row_max
    qk,
    head,
    tile,
    start,
    score: tl.constexpr,
    C: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Add the block of keys at `start`, whose products with the queries are `qk`, to a tile's output."""
    acc, row_sum, row_max = state
    call = head.call
    column = _as_index(start + tl.arange(0, C.BLOCK_N), C.WIDE)
    i, j = tile.index[:, None], column[None, :]
    s = _compute_scores(qk, head, i, j, score, C, EDGE, C.SCALED_LATER)
    if EDGE:
        s = tl.where((j >= tile.begin[:, None]) & (j < tile.end[:, None]), s, float("-inf"))
    block_max = tl.max(s, 1)
    if C.SCALED_LATER:
        # The maximum of scores times a positive scale is theirs times the scale: fewer multiplications.
        block_max *= head.scale * C.LOG2_E
    new_max = tl.maximum(row_max, block_max)
    safe_max = new_max
    if EDGE or C.MASK != 0 or score is not None:
        # A query that has seen no key yet would subtract -inf from -inf.
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
    if C.SCALED_LATER:
        s *= head.scale * C.LOG2_E
    p = _exp_difference(s - safe_max[:, None], C)
    rescale = _exp_difference(row_max - safe_max, C)
    row_sum = row_sum * rescale + tl.sum(p, 1)
    acc = acc * rescale[:, None]
    if C.DROPOUT:
        p = tl.where(_dropout_mask(head, tile.index, start, C), p, 0.0)
    v_NE = _load_tile(head.v, column, call.v_strides[2], head.keys, call.e_size, C.BLOCK_E, EDGE, C.PAD_E)
    acc = tl.dot(p.to(v_NE.dtype), v_NE, acc, input_precision=C.PRECISION)
    return acc, row_sum, new_max


@triton.jit  # type: ignore[untyped-decorator]
def forward_kernel(call, score: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute `out` and `lse` of a tile of one head's queries per program."""
    head, tile, ranges = _query_tile(call, C)
    row, rows = tile.index, head.rows
    q_MD = _load_tile(head.q, row, call.q_strides[2], rows, call.d_size, C.BLOCK_D, True, C.PAD_D)
    state = (
        tl.full([C.BLOCK_M, C.BLOCK_E], 0.0, tl.float32),
        tl.full([C.BLOCK_M], 0.0, tl.float32),
        tl.full([C.BLOCK_M], float("-inf"), tl.float32),
    )
    for part in tl.static_range(3):
        if part > 0 or C.HAS_LOW or C.HAS_TABLES:
            begin, end = ranges[part], ranges[part + 1]
            if C.AHEAD and part == 1:
                # Tensor cores multiply the next block while this one's exponentials are computed; after the
                # last block, that one again.
                last = tl.maximum(end - C.BLOCK_N, begin)
                qk = _multiply_keys(q_MD, head, begin, C, True)
            for key in range(begin, end, C.BLOCK_N):
                if C.AHEAD and part == 1:
                    next_qk = _multiply_keys(q_MD, head, tl.minimum(key + C.BLOCK_N, last), C, False)
                else:
                    qk = _multiply_keys(q_MD, head, key, C, part != 1)
                state = _add_keys(state, qk, head, tile, key, score, C, part != 1)
                if C.AHEAD and part == 1:
                    qk = next_qk
    acc, row_sum, row_max = state
    no_keys = row_sum == 0.0
    inv_sum = 1.0 / tl.where(no_keys, 1.0, row_sum)
    if C.DROPOUT:
        inv_sum *= _keep_scale(head)
    out_ME = tl.where(no_keys[:, None], 0.0, acc * inv_sum[:, None])
    _store_tile(head.out, out_ME, row, call.out_strides[2], rows, call.e_size, C.BLOCK_E)
    # For a query that sees no key, an infinite row maximum makes its weights zero in the backward.
    log_sum = tl.log2(tl.where(no_keys, 1.0, row_sum))
    if C.LARGE_SCORES:
        tl.store(head.lse + rows + row, log_sum, mask=row < rows)
    else:
        row_max += log_sum
    tl.store(head.lse + row, tl.where(no_keys, float("inf"), row_max), mask=row < rows)


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
    grad_out += b * grad_out_strides[0] + h * grad_out_strides[1]
    out += b * out_strides[0] + h * out_strides[1]
    grad_out_ME = _load_tile(grad_out, row, grad_out_strides[2], rows, e_size, BLOCK_E, True, True)
    out_ME = _load_tile(out, row, out_strides[2], rows, e_size, BLOCK_E, True, True)
    delta_M = tl.sum(grad_out_ME.to(tl.float32) * out_ME.to(tl.float32), 1)
    tl.store(delta + head.to(tl.int64) * rows + row, delta_M, mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _add_queries(  # type: ignore[no-untyped-def]
    state,  # of the loop over queries: dk, dv
    k_ND,
    v_NE,
    head,
    delta,
    dq,  # the descriptor, if ADD_DQ
    tile,
    start,
    score: tl.constexpr,
    score_grad: tl.constexpr,
    C: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Add the block of queries at `start` to the gradients of a tile of keys and values."""
    dk, dv = state
    call = head.call
    row = _as_index(start + tl.arange(0, C.BLOCK_M), C.WIDE)
    i, j = row[None, :], tile.index[:, None]
    q_MD = _load_tile(head.q, row, call.q_strides[2], head.rows, call.d_size, C.BLOCK_D, EDGE, C.PAD_D)
    qk = tl.dot(k_ND, tl.trans(q_MD), input_precision=C.PRECISION)
    s = _compute_scores(qk, head, i, j, score, C, True, False)
    row_max_M, log_sum_M = _load_lse(head, row, C, EDGE)
    p = _softmax_weights(s, (row_max_M[None, :], log_sum_M[None, :]), C)
    if EDGE:
        p = tl.where((i >= tile.begin[:, None]) & (i < tile.end[:, None]), p, 0.0)
    grad_out_ME = _load_tile(
        head.out, row, call.out_strides[2], head.rows, call.e_size, C.BLOCK_E, EDGE, C.PAD_E
    )
    dp = tl.dot(v_NE, tl.trans(grad_out_ME), input_precision=C.PRECISION)
    dropped = p
    if C.DROPOUT:
        keep = tl.trans(_dropout_mask(head, row, tile.start, C))
        dropped = tl.where(keep, p * _keep_scale(head), 0.0)
        dp = tl.where(keep, dp * _keep_scale(head), 0.0)
    dv = tl.dot(dropped.to(grad_out_ME.dtype), grad_out_ME, dv, input_precision=C.PRECISION)
    delta_M = _load_row(delta + head.number * head.rows, row, head.rows, 0.0, EDGE)
    ds = p * (dp - delta_M[None, :])
    if score is not None:
        ds = tl.where(p > 0.0, ds * score_grad(qk * head.scale, head.b, head.h, i, j, call.args), 0.0)
    ds = ds.to(q_MD.dtype)
    dk = tl.dot(ds, q_MD, dk, input_precision=C.PRECISION)
    if C.ADD_DQ:
        ds = tl.where(j < head.keys, ds, 0.0).to(ds.dtype)  # past the last key, p is not 0 and may overflow
        dq_MD = tl.trans(tl.dot(tl.trans(k_ND), ds, input_precision=C.PRECISION))
        padded_rows = (head.rows + C.BLOCK_M - 1) // C.BLOCK_M * C.BLOCK_M
        dq.atomic_add([(head.number * padded_rows + start).to(tl.int32), 0], dq_MD)
    return dk, dv


@triton.jit  # type: ignore[untyped-decorator]
def backward_keys(  # type: ignore[no-untyped-def]
    call,
    delta,
    dk,  # [B, H / GROUP, S, D]
    dv,
    dq,  # [B * H * L, D] float32, if ADD_DQ, not scaled yet; each head's rows are padded to whole blocks
    dk_strides,
    dv_strides,
    dq_shape,
    score: tl.constexpr,
    score_grad: tl.constexpr,
    C: tl.constexpr,
):
    """Compute dk and dv of one block per program, summed over the query heads that share the key head."""
    call = Call(*call)  # in loops, Triton 3.6 forgets constants of nested tuples that a kernel is given
    num_tiles = tl.cdiv(_as_index(call.keys, C.WIDE), C.BLOCK_N)
    kv_heads = call.heads // C.GROUP
    kv_program = tl.program_id(0) // num_tiles
    b, kv_head = (kv_program // kv_heads).to(tl.int64), (kv_program % kv_heads).to(tl.int64)
    head = _head_of(call, b, kv_head * C.GROUP, C)
    start = tl.program_id(0) % num_tiles * C.BLOCK_N
    tile, ranges = _visible_tile(head, start, head.keys, head.rows, C.BLOCK_N, C.BLOCK_M, C)
    column, keys = tile.index, head.keys
    k_ND = _load_tile(head.k, column, call.k_strides[2], keys, call.d_size, C.BLOCK_D, True, C.PAD_D)
    v_NE = _load_tile(head.v, column, call.v_strides[2], keys, call.e_size, C.BLOCK_E, True, C.PAD_E)
    state = (
        tl.full([C.BLOCK_N, C.BLOCK_D], 0.0, tl.float32),
        tl.full([C.BLOCK_N, C.BLOCK_E], 0.0, tl.float32),
    )
    if C.ADD_DQ:
        dq = tl.make_tensor_descriptor(
            dq, [dq_shape[0], dq_shape[1]], [dq_shape[1], 1], [C.BLOCK_M, C.BLOCK_D]
        )
    for group_index in range(C.GROUP):
        query_head = _head_of(call, b, kv_head * C.GROUP + group_index, C)
        for part in tl.static_range(3):
            if part > 0 or C.HAS_LOW or C.HAS_TABLES:
                for query in tl.range(ranges[part], ranges[part + 1], C.BLOCK_M, disable_licm=C.ADD_DQ):
                    state = _add_queries(
                        state, k_ND, v_NE, query_head, delta, dq, tile, query, score, score_grad, C, part != 1
                    )
    dk_ND, dv_NE = state
    dk += b * dk_strides[0] + kv_head * dk_strides[1]
    dv += b * dv_strides[0] + kv_head * dv_strides[1]
    _store_tile(dk, dk_ND * head.scale, column, dk_strides[2], keys, call.d_size, C.BLOCK_D)
    _store_tile(dv, dv_NE, column, dv_strides[2], keys, call.e_size, C.BLOCK_E)


@triton.jit  # type: ignore[untyped-decorator]
def _add_key_gradients(  # type: ignore[no-untyped-def]
    dq,
    q_MD,
    grad_out_ME,
    lse,  # of `_load_lse`, [M, 1] each
    delta_M,
    head,
    tile,
    start,
    score: tl.constexpr,
    score_grad: tl.constexpr,
    C: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Add the block of keys at `start` to the gradient of a tile of queries."""
    call = head.call
    column = _as_index(start + tl.arange(0, C.BLOCK_N), C.WIDE)
    i, j = tile.index[:, None], column[None, :]
    k_ND = _load_tile(head.k, column, call.k_strides[2], head.keys, call.d_size, C.BLOCK_D, EDGE, C.PAD_D)
    v_NE = _load_tile(head.v, column, call.v_strides[2], head.keys, call.e_size, C.BLOCK_E, EDGE, C.PAD_E)
    qk = tl.dot(q_MD, tl.trans(k_ND), input_precision=C.PRECISION)
    p = _softmax_weights(_compute_scores(qk, head, i, j, score, C, EDGE, False), lse, C)
    if EDGE:
        p = tl.where((j >= tile.begin[:, None]) & (j < tile.end[:, None]), p, 0.0)
    dp = tl.dot(grad_out_ME, tl.trans(v_NE), input_precision=C.PRECISION)
    if C.DROPOUT:
        dp = tl.where(_dropout_mask(head, tile.index, start, C), dp * _keep_scale(head), 0.0)
    ds = p * (dp - delta_M[:, None])
    if score is not None:
        ds = tl.where(p > 0.0, ds * score_grad(qk * head.scale, head.b, head.h, i, j, call.args), 0.0)
    return tl.dot(ds.to(k_ND.dtype), k_ND, dq, input_precision=C.PRECISION)


@triton.jit  # type: ignore[untyped-decorator]
def backward_queries(  # type: ignore[no-untyped-def]
    call,
    delta,
    dq,  # [B, H, L, D]
    dq_strides,
    score: tl.constexpr,
    score_grad: tl.constexpr,
    C: tl.constexpr,
):
    """Compute the gradient of a tile of one head's queries per program."""
    head, tile, ranges = _query_tile(call, C)
    row, rows = tile.index, head.rows
    q_MD = _load_tile(head.q, row, call.q_strides[2], rows, call.d_size, C.BLOCK_D, True, C.PAD_D)
    grad_out_ME = _load_tile(head.out, row, call.out_strides[2], rows, call.e_size, C.BLOCK_E, True, C.PAD_E)
    row_max_M, log_sum_M = _load_lse(head, row, C, True)
    lse = row_max_M[:, None], log_sum_M[:, None]
    delta_M = _load_row(delta + head.number * rows, row, rows, 0.0, True)
    acc = tl.full([C.BLOCK_M, C.BLOCK_D], 0.0, tl.float32)
    for part in tl.static_range(3):
        if part > 0 or C.HAS_LOW or C.HAS_TABLES:
            for key in range(ranges[part], ranges[part + 1], C.BLOCK_N):
                acc = _add_key_gradients(
                    acc, q_MD, grad_out_ME, lse, delta_M, head, tile, key, score, score_grad, C, part != 1
                )
    dq += head.b * dq_strides[0] + head.h * dq_strides[1]
    _store_tile(dq, acc * head.scale, row, dq_strides[2], rows, call.d_size, C.BLOCK_D)


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

    @property
    def is_plain(self) -> bool:
        """Whether there is no mask, dropout or score function; with these, the kernel `both` spills."""
        return self.mask is None and self.seed is None and self.score is None


def _make_launch(
    kernel: Any, num_programs: int, call: Call, others: tuple[Any, ...], constants: dict[str, Any],
    blocks: FlashConfig,
) -> Launch:  # fmt: skip
    """Build a launch; all of its arguments decide whether indices need 64 bits."""
    wide = _needs_int64((*call, *others))
    sizes = constants["C"]._replace(WIDE=wide, BLOCK_M=blocks.m, BLOCK_N=blocks.n, AHEAD=blocks.ahead)
    return Launch(kernel, (num_programs,), (call, *others), {**constants, "C": sizes}, blocks.options)


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
    call, constants = _arguments(q, k, v, out, lse, problem)
    del constants["score_grad"]
    num_programs = triton.cdiv(rows, blocks["forward"].m) * batch * heads
    run([_make_launch(forward_kernel, num_programs, call, (), constants, blocks["forward"])], q)
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
    needs_grad: Sequence[bool] = (True, True),
    run: Callable[[list[Launch], Tensor], None] = run_all,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of q, k and v.

    Args are those and the results of `forward`; the gradient of `out` has a last stride of 1. `needs_grad`:
    whether dq is needed, and whether dk or dv, or each of them, are.
    """
    batch, heads, rows, head_size = q.shape
    keys, value_size = v.shape[2:]
    delta = lse.new_empty(batch, heads, rows)
    dq = dk = dv = None
    config = blocks["dots"]
    arguments = (grad_out, out, delta, _strides(grad_out), _strides(out), heads, rows, value_size)
    constants: dict[str, Any] = {"BLOCK_M": config.m, "BLOCK_E": _padded_size(value_size)}
    num_programs = triton.cdiv(rows, config.m) * batch * heads
    launches = [Launch(backward_dots, (num_programs,), arguments, constants, config.options)]
    # Additions to dq in any order round differently from run to run.
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    needs_grad = needs_grad[0], any(needs_grad[1:])
    is_one_pass = "both" in blocks and all(needs_grad) and problem.is_plain and not is_deterministic
    if needs_grad[1]:
        # Stored as [B, S, K, D], like the keys, which are often parts of one packed tensor.
        dk = k.new_empty(batch, keys, k.shape[1], head_size).transpose(1, 2)
        dv = v.new_empty(batch, keys, k.shape[1], value_size).transpose(1, 2)
        config = blocks["both" if is_one_pass else "keys"]
        call, constants = _arguments(q, k, v, grad_out, lse, problem, over_keys=True)
        constants["C"] = constants["C"]._replace(ADD_DQ=is_one_pass)
        padded_rows = triton.cdiv(rows, config.m) * config.m
        sum_shape = (batch * heads * padded_rows, -(-head_size // 4) * 4) if is_one_pass else (0, 0)
        dq_sum = lse.new_zeros(sum_shape) if is_one_pass else delta
        results = delta, dk, dv, dq_sum, _strides(dk), _strides(dv), sum_shape
        num_programs = triton.cdiv(keys, config.n) * batch * k.shape[1]
        launches.append(_make_launch(backward_keys, num_programs, call, results, constants, config))
    if needs_grad[0]:
        dq = q.new_empty(batch, rows, heads, head_size).transpose(1, 2)
        if not is_one_pass:
            call, constants = _arguments(q, k, v, grad_out, lse, problem)
            num_programs = triton.cdiv(rows, blocks["queries"].m) * batch * heads
            others = delta, dq, _strides(dq)
            launches.append(
                _make_launch(backward_queries, num_programs, call, others, constants, blocks["queries"])
            )
    run(launches, q)
    if is_one_pass:
        torch.mul(dq_sum.view(batch, heads, padded_rows, -1)[:, :, :rows, :head_size], problem.scale, out=dq)
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
    names = dict(zip(kernels, KERNELS, strict=False))
    if found[-1].kernel is backward_keys and all(needs_grad):
        names[backward_keys] = KERNELS[4]
    return {names[launch.kernel]: launch for launch in found}


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, *, over_keys: bool = False
) -> tuple[Call, dict[str, Any]]:
    """Return the arguments that all kernels take, and the constants but for block sizes.

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
    # Convert to float: Triton would compile an int parameter for a whole number.
    call = Call(
        q, k, v, out, lse, mask, *tables, q if problem.seed is None else problem.seed, _strides(q),
        _strides(k), _strides(v), _strides(out), mask_strides, table_stride, q.shape[1], q.shape[2],
        k.shape[2], size, value_size, low or 0, high or 0, float(problem.scale), float(problem.dropout),
        problem.args,
    )  # fmt: skip
    is_large = problem.has_large_scores
    constants = Constants(
        GROUP=q.shape[1] // k.shape[1],
        MASK=mask_kind,
        HAS_LOW=low is not None,
        HAS_HIGH=high is not None,
        HAS_TABLES=problem.tables is not None,
        DROPOUT=problem.seed is not None,
        LARGE_SCORES=is_large,
        SCALED_LATER=problem.scale > 0 and not is_large,
        BLOCK_D=block_d,
        BLOCK_E=block_e,
        PAD_D=block_d != size,
        PAD_E=block_e != value_size,
        PRECISION=problem.precision if q.dtype == torch.float32 else "ieee",
    )
    return call, {"score": problem.score, "score_grad": problem.score_grad, "C": constants}


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
