"""Flash attention in Triton: forward and backward, of queries that each see an interval of the keys.

The forward goes through the keys by blocks with a running maximum and sum of exponentials (Dao et al., 2022;
Milakov and Gimelshein, 2018) and keeps the logarithm of each query's sum. The backward is three kernels, none
of which adds to what another one has written, so that its results are the same from run to run: a dot product
for each query, gradients of keys and values (a program a block of keys), gradients of queries.

Keys that all queries of a tile see are gone through without a test; those at the edges of what they see, with
one. What lies outside is not gone through. Scores and their derivatives are functions that come along:

    score(s, b, h, i, j, args)    what becomes of scores `s` of query i and key j
    slope(s, b, h, i, j, args)    its derivative by `s`

`i` and `j` are blocks that broadcast to the tile, either way round. Legend: M a tile's queries, N its keys, D
and E sizes of heads, which blocks may exceed. Exponents are of 2: `lse` is a logarithm to that base.

FAR: scores may be as far from zero as finfo.min, which masks are made of, since a mask is added or there is a
function. There they stay natural until their maximum is taken from them, lest the factor makes infinities of
them, and `lse` has two rows a head, maxima and logarithms of sums: added up, nothing of the latter were left.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.kernels.ops.attention.flash_config import FlashConfig

__all__ = [
    "Launch",
    "Problem",
    "backward",
    "backward_dots",
    "backward_keys",
    "backward_queries",
    "capped",
    "capped_slope",
    "capped_sloped",
    "forward",
    "forward_kernel",
    "launches",
    "one",
    "sloped",
]

_LOG2_E = tl.constexpr(1.4426950408889634)


# --- parts of all kernels ---------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _sized(size, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A size that indices are computed from, in as many bits as these need."""
    if WIDE:
        return tl.full([], 0, tl.int64) + size
    else:
        return size


@triton.jit  # type: ignore[untyped-decorator]
def _load(base, row, column, stride, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of a matrix; zeros outside of it, where ROWS and COLUMNS say that it may reach there."""
    place = base + row[:, None] * stride + column[None, :]
    if ROWS:
        if COLUMNS:
            return tl.load(place, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0.0)
        else:
            return tl.load(place, mask=(row < rows)[:, None], other=0.0)
    else:
        if COLUMNS:
            return tl.load(place, mask=(column < columns)[None, :], other=0.0)
        else:
            return tl.load(place)


@triton.jit  # type: ignore[untyped-decorator]
def _seen(i, first, past, low, high, size, LEFT: tl.constexpr, RIGHT: tl.constexpr, TABLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What `i` sees: from the tables, or from `i + low` (if LEFT) to before `i + high` (if RIGHT)."""
    if TABLE:
        return tl.load(first + i), tl.load(past + i)
    else:
        begin = i * 0
        end = begin + size
        if LEFT:
            begin = tl.minimum(tl.maximum(i + low, 0), size)
        if RIGHT:
            end = tl.minimum(tl.maximum(i + high, 0), size)
        return begin, end


@triton.jit  # type: ignore[untyped-decorator]
def _spans(  # type: ignore[no-untyped-def]
    start,
    rows,
    first,
    past,
    low,
    high,
    size,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    TABLE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where a tile's loop over blocks begins, from where to where all of the tile sees all, where it ends."""
    last = tl.minimum(start + TILE, rows) - 1
    begin, inner_end = _seen(start, first, past, low, high, size, LEFT, RIGHT, TABLE)
    inner_begin, end = _seen(last, first, past, low, high, size, LEFT, RIGHT, TABLE)
    begin = begin // BLOCK * BLOCK
    end = tl.maximum((end + BLOCK - 1) // BLOCK * BLOCK, begin)
    inner_begin = tl.minimum((inner_begin + BLOCK - 1) // BLOCK * BLOCK, end)
    inner_end = tl.minimum(tl.maximum(inner_end // BLOCK * BLOCK, inner_begin), end)
    return begin, inner_begin, inner_end, end


@triton.jit  # type: ignore[untyped-decorator]
def _scores(  # type: ignore[no-untyped-def]
    products,
    scale,
    mask,
    b,
    h,
    i,
    j,
    in_i,
    in_j,
    i_stride,
    j_stride,
    args,
    score: tl.constexpr,
    MASK: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Scores with the mask: 1 is boolean, 2 is added. They are to the base of 2 if they are not FAR."""
    FAR: tl.constexpr = score is not None or MASK == 2
    if not FAR:
        s = products * (scale * _LOG2_E)
    else:
        s = products * scale
        if score is not None:
            s = score(s, b, h, i, j, args)
    if MASK != 0:
        place = mask + i * i_stride + j * j_stride
        if EDGE:
            given = tl.load(place, mask=in_i & in_j, other=0)
        else:
            given = tl.load(place, mask=in_i, other=0)
        if MASK == 1:
            s = tl.where(given != 0, s, float("-inf"))
        else:
            s += given.to(tl.float32)
    return s


@triton.jit  # type: ignore[untyped-decorator]
def _raised(difference, FAR: tl.constexpr):  # type: ignore[no-untyped-def]
    """The exponential of a difference of scores."""
    if FAR:
        return tl.exp2(difference * _LOG2_E)
    else:
        return tl.exp2(difference)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(s, top, log, FAR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scores as weights, from what is known of their queries; `top` is all of it where they are not far."""
    if FAR:
        return tl.exp2((s - top) * _LOG2_E - log)
    else:
        return tl.exp2(s - top)


@triton.jit  # type: ignore[untyped-decorator]
def _known(lse, row, rows, EDGE: tl.constexpr, FAR: tl.constexpr):  # type: ignore[no-untyped-def]
    """What is known of queries: maxima and logarithms, or what they add up to, twice."""
    if EDGE:
        top = tl.load(lse + row, mask=row < rows, other=float("inf"))
    else:
        top = tl.load(lse + row)
    log = top
    if FAR:
        if EDGE:
            log = tl.load(lse + rows + row, mask=row < rows, other=0.0)
        else:
            log = tl.load(lse + rows + row)
    return top, log


@triton.jit
def _stays(word, dropout):  # type: ignore[no-untyped-def]
    return ((word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08 >= dropout).to(tl.int8)


@triton.jit  # type: ignore[untyped-decorator]
def _kept(seed, head, query, start, dropout, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which weights of a tile ``[M, N]`` dropout leaves: `burnt.kernels.ops.attention.reference.kept`."""
    group = (start // 4 + tl.arange(0, N // 4)).to(tl.uint32)[None, :]
    row = query.to(tl.uint32)[:, None]
    zero = group * 0 + row * 0
    words = tl.philox(tl.load(seed).to(tl.uint64), zero + group, zero + row, zero + head.to(tl.uint32), zero)
    even = tl.join(_stays(words[0], dropout), _stays(words[2], dropout))
    odd = tl.join(_stays(words[1], dropout), _stays(words[3], dropout))
    return tl.reshape(tl.join(even, odd), [M, N]) != 0


# --- scores ---------------------------------------------------------------------------------------------


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def capped(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """``softcap * tanh(s / softcap)``; args: softcap."""
    return _tanh(s / args[0]) * args[0]


@triton.jit
def capped_slope(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """The derivative of `capped`, and of `capped_sloped`."""
    t = _tanh(s / args[0])
    return 1.0 - t * t


@triton.jit
def sloped(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """ALiBi; args: softcap, slopes, the shift of queries among keys."""
    return s - tl.load(args[1] + h).to(tl.float32) * tl.abs(i + args[2] - j).to(tl.float32)


@triton.jit
def capped_sloped(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """Both."""
    return sloped(capped(s, b, h, i, j, args), b, h, i, j, args)


@triton.jit
def one(s, b, h, i, j, args):  # type: ignore[no-untyped-def]
    """The derivative of `sloped`."""
    return s * 0.0 + 1.0


# --- forward ----------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def _forward_part(  # type: ignore[no-untyped-def]
    sums,
    total,
    top,
    queries,
    k,
    v,
    mask,
    seed,
    begin,
    end,
    b,
    h,
    head,
    row,
    rows,
    keys,
    first_M,
    past_M,
    k_row,
    v_row,
    mask_strides,
    d_size,
    e_size,
    scale,
    dropout,
    args,
    score: tl.constexpr,
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EDGE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    D_ODD: tl.constexpr,
    E_ODD: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What the keys from `begin` to `end` add to a tile of queries."""
    FAR: tl.constexpr = score is not None or MASK == 2
    for start in range(begin, end, N):
        column = start + tl.arange(0, N)
        if WIDE:
            column = column.to(tl.int64)
        i, j = row[:, None], column[None, :]
        k_ND = _load(k, column, tl.arange(0, D), k_row, keys, d_size, EDGE, D_ODD)
        s = tl.dot(queries, tl.trans(k_ND), input_precision=PRECISION)
        s = _scores(
            s, scale, mask, b, h, i, j, i < rows, j < keys, mask_strides[2], mask_strides[3], args, score,
            MASK, EDGE,
        )  # fmt: skip
        if EDGE:
            s = tl.where((j >= first_M[:, None]) & (j < past_M[:, None]), s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        base = higher
        if EDGE or MASK != 0 or score is not None:
            # A query that has seen nothing yet.
            base = tl.where(higher == float("-inf"), 0.0, higher)
        p = _raised(s - base[:, None], FAR)
        shrink = _raised(top - base, FAR)
        total = total * shrink + tl.sum(p, 1)
        sums = sums * shrink[:, None]
        if DROPOUT:
            p = tl.where(_kept(seed, head, row, start, dropout, M, N), p, 0.0)
        v_NE = _load(v, column, tl.arange(0, E), v_row, keys, e_size, EDGE, E_ODD)
        sums = tl.dot(p.to(v_NE.dtype), v_NE, sums, input_precision=PRECISION)
        top = higher
    return sums, total, top


@triton.jit  # type: ignore[untyped-decorator]
def forward_kernel(  # type: ignore[no-untyped-def]
    q,  # [B, H, L, D]
    k,  # [B, H / GROUP, S, D]
    v,  # [B, H / GROUP, S, E]
    mask,  # [B, H, L, S], uint8 if MASK is 1, floats if it is 2
    first,  # [B, L] int32, if TABLE
    past,
    seed,
    out,  # [B, H, L, E]
    lse,  # [B, H, L] float32, or [B, H, 2 * L] if FAR
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
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    TABLE: tl.constexpr,
    DROPOUT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    D_ODD: tl.constexpr,
    E_ODD: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program makes a tile of one head's queries; the last ones, which see most, come first."""
    rows, keys = _sized(rows, WIDE), _sized(keys, WIDE)
    tiles = tl.cdiv(rows, M)
    program = tl.program_id(0)
    start = (tiles - 1 - program % tiles) * M
    head = program // tiles
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    scale, dropout = tl.full([], scale, tl.float32), tl.full([], dropout, tl.float32)
    q += b * q_strides[0] + h * q_strides[1]
    k += b * k_strides[0] + h // GROUP * k_strides[1]
    v += b * v_strides[0] + h // GROUP * v_strides[1]
    out += b * out_strides[0] + h * out_strides[1]
    mask += b * mask_strides[0] + h * mask_strides[1]
    first += b * table_stride
    past += b * table_stride
    row = start + tl.arange(0, M)
    begin, inner_begin, inner_end, end = _spans(
        start, rows, first, past, low, high, keys, LEFT, RIGHT, TABLE, M, N
    )
    first_M, past_M = _seen(tl.minimum(row, rows - 1), first, past, low, high, keys, LEFT, RIGHT, TABLE)
    if WIDE:
        row = row.to(tl.int64)
    q_MD = _load(q, row, tl.arange(0, D), q_strides[2], rows, d_size, True, D_ODD)
    sums = tl.zeros([M, E], tl.float32)
    total = tl.zeros([M], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    if LEFT or TABLE:
        sums, total, top = _forward_part(
            sums, total, top, q_MD, k, v, mask, seed, begin, inner_begin, b, h, head, row, rows, keys,
            first_M, past_M, k_strides[2], v_strides[2], mask_strides, d_size, e_size, scale, dropout, args,
            score, MASK, DROPOUT, True, M, N, D, E, D_ODD, E_ODD, WIDE, PRECISION,
        )  # fmt: skip
    sums, total, top = _forward_part(
        sums, total, top, q_MD, k, v, mask, seed, inner_begin, inner_end, b, h, head, row, rows, keys,
        first_M, past_M, k_strides[2], v_strides[2], mask_strides, d_size, e_size, scale, dropout, args,
        score, MASK, DROPOUT, False, M, N, D, E, D_ODD, E_ODD, WIDE, PRECISION,
    )  # fmt: skip
    sums, total, top = _forward_part(
        sums, total, top, q_MD, k, v, mask, seed, inner_end, end, b, h, head, row, rows, keys,
        first_M, past_M, k_strides[2], v_strides[2], mask_strides, d_size, e_size, scale, dropout, args,
        score, MASK, DROPOUT, True, M, N, D, E, D_ODD, E_ODD, WIDE, PRECISION,
    )  # fmt: skip
    nothing = total == 0.0
    share = 1.0 / tl.where(nothing, 1.0, total)
    if DROPOUT:
        share = tl.where(dropout < 1.0, share / (1.0 - dropout), 0.0)
    made = tl.where(nothing[:, None], 0.0, sums * share[:, None])
    column = tl.arange(0, E)
    place = out + row[:, None] * out_strides[2] + column[None, :]
    tl.store(place, made.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < e_size)[None, :])
    # Of a query that sees nothing the exponentials are to be none in the backward.
    log = tl.log2(tl.where(nothing, 1.0, total))
    if score is not None or MASK == 2:
        lse += head.to(tl.int64) * 2 * rows
        tl.store(lse + rows + row, log, mask=row < rows)
    else:
        lse += head.to(tl.int64) * rows
        top += log
    tl.store(lse + row, tl.where(nothing, float("inf"), top), mask=row < rows)


# --- backward ---------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def backward_dots(  # type: ignore[no-untyped-def]
    pull,  # [B, H, L, E]: the cotangent of out
    out,
    dots,  # [B, H, L] float32
    pull_strides,
    out_strides,
    heads,
    rows,
    e_size,
    M: tl.constexpr,
    E: tl.constexpr,
):
    """For each query the dot product of its result and the result's cotangent."""
    rows = _sized(rows, True)
    tiles = tl.cdiv(rows, M)
    head = tl.program_id(0) // tiles
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    row = (tl.program_id(0) % tiles * M + tl.arange(0, M)).to(tl.int64)
    column = tl.arange(0, E)
    inside = (row < rows)[:, None] & (column < e_size)[None, :]
    pull += b * pull_strides[0] + h * pull_strides[1]
    out += b * out_strides[0] + h * out_strides[1]
    g = tl.load(pull + row[:, None] * pull_strides[2] + column[None, :], mask=inside, other=0.0)
    o = tl.load(out + row[:, None] * out_strides[2] + column[None, :], mask=inside, other=0.0)
    made = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(dots + head.to(tl.int64) * rows + row, made, mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _keys_part(  # type: ignore[no-untyped-def]
    of_k,
    of_v,
    k_ND,
    v_NE,
    q,
    pull,
    mask,
    seed,
    lse,
    dots,
    begin,
    end,
    b,
    h,
    head,
    key_start,
    column,
    rows,
    keys,
    first_N,
    past_N,
    q_row,
    pull_row,
    mask_strides,
    d_size,
    e_size,
    scale,
    dropout,
    args,
    score: tl.constexpr,
    slope: tl.constexpr,
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EDGE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    D_ODD: tl.constexpr,
    E_ODD: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What the queries from `begin` to `end` add to the gradients of a block of keys and values."""
    FAR: tl.constexpr = score is not None or MASK == 2
    for start in range(begin, end, M):
        row = start + tl.arange(0, M)
        if WIDE:
            row = row.to(tl.int64)
        i, j = row[None, :], column[:, None]
        q_MD = _load(q, row, tl.arange(0, D), q_row, rows, d_size, EDGE, D_ODD)
        products = tl.dot(k_ND, tl.trans(q_MD), input_precision=PRECISION)
        s = _scores(
            products, scale, mask, b, h, i, j, i < rows, j < keys, mask_strides[2], mask_strides[3], args,
            score, MASK, True,
        )  # fmt: skip
        top_M, log_M = _known(lse, row, rows, EDGE, FAR)
        if EDGE:
            dots_M = tl.load(dots + row, mask=row < rows, other=0.0)
        else:
            dots_M = tl.load(dots + row)
        p = _weights(s, top_M[None, :], log_M[None, :], FAR)
        if EDGE:
            p = tl.where((i >= first_N[:, None]) & (i < past_N[:, None]), p, 0.0)
        pull_ME = _load(pull, row, tl.arange(0, E), pull_row, rows, e_size, EDGE, E_ODD)
        of_p = tl.dot(v_NE, tl.trans(pull_ME), input_precision=PRECISION)
        dropped = p
        if DROPOUT:
            stays = tl.trans(_kept(seed, head, row, key_start, dropout, M, N))
            larger = tl.where(dropout < 1.0, 1.0 / (1.0 - dropout), 0.0)
            dropped = tl.where(stays, p * larger, 0.0)
            of_p = tl.where(stays, of_p * larger, 0.0)
        of_v = tl.dot(dropped.to(pull_ME.dtype), pull_ME, of_v, input_precision=PRECISION)
        of_s = p * (of_p - dots_M[None, :])
        if score is not None:
            of_s = tl.where(p > 0.0, of_s * slope(products * scale, b, h, i, j, args), 0.0)
        of_k = tl.dot(of_s.to(q_MD.dtype), q_MD, of_k, input_precision=PRECISION)
    return of_k, of_v


@triton.jit  # type: ignore[untyped-decorator]
def backward_keys(  # type: ignore[no-untyped-def]
    q,  # as in the forward
    k,
    v,
    mask,
    first,  # [B, S] int32, if TABLE: which queries see a key
    past,
    seed,
    pull,  # [B, H, L, E]
    lse,  # as of the forward
    dots,
    of_k,  # [B, H / GROUP, S, D]
    of_v,
    q_strides,
    k_strides,
    v_strides,
    pull_strides,
    mask_strides,
    of_k_strides,
    of_v_strides,
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
    slope: tl.constexpr,
    GROUP: tl.constexpr,
    MASK: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    TABLE: tl.constexpr,
    DROPOUT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    D_ODD: tl.constexpr,
    E_ODD: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program makes the gradients of a block of one head's keys and values, of all heads that share it."""
    rows, keys = _sized(rows, WIDE), _sized(keys, WIDE)
    tiles = tl.cdiv(keys, N)
    start = tl.program_id(0) % tiles * N
    shared = tl.program_id(0) // tiles
    b, kh = (shared // (heads // GROUP)).to(tl.int64), (shared % (heads // GROUP)).to(tl.int64)
    scale, dropout = tl.full([], scale, tl.float32), tl.full([], dropout, tl.float32)
    k += b * k_strides[0] + kh * k_strides[1]
    v += b * v_strides[0] + kh * v_strides[1]
    of_k += b * of_k_strides[0] + kh * of_k_strides[1]
    of_v += b * of_v_strides[0] + kh * of_v_strides[1]
    first += b * table_stride
    past += b * table_stride
    column = start + tl.arange(0, N)
    begin, inner_begin, inner_end, end = _spans(
        start, keys, first, past, low, high, rows, LEFT, RIGHT, TABLE, N, M
    )
    first_N, past_N = _seen(tl.minimum(column, keys - 1), first, past, low, high, rows, LEFT, RIGHT, TABLE)
    if WIDE:
        column = column.to(tl.int64)
    k_ND = _load(k, column, tl.arange(0, D), k_strides[2], keys, d_size, True, D_ODD)
    v_NE = _load(v, column, tl.arange(0, E), v_strides[2], keys, e_size, True, E_ODD)
    sums_k = tl.zeros([N, D], tl.float32)
    sums_v = tl.zeros([N, E], tl.float32)
    FAR: tl.constexpr = score is not None or MASK == 2
    for member in range(GROUP):
        h = kh * GROUP + member
        head = b * heads + h
        q_h = q + b * q_strides[0] + h * q_strides[1]
        pull_h = pull + b * pull_strides[0] + h * pull_strides[1]
        mask_h = mask + b * mask_strides[0] + h * mask_strides[1]
        lse_h, dots_h = lse + head * (2 * rows if FAR else rows), dots + head * rows
        if LEFT or TABLE:
            sums_k, sums_v = _keys_part(
                sums_k, sums_v, k_ND, v_NE, q_h, pull_h, mask_h, seed, lse_h, dots_h, begin, inner_begin, b,
                h, head, start, column, rows, keys, first_N, past_N, q_strides[2], pull_strides[2],
                mask_strides, d_size, e_size, scale, dropout, args, score, slope, MASK, DROPOUT, True, M, N,
                D, E, D_ODD, E_ODD, WIDE, PRECISION,
            )  # fmt: skip
        sums_k, sums_v = _keys_part(
            sums_k, sums_v, k_ND, v_NE, q_h, pull_h, mask_h, seed, lse_h, dots_h, inner_begin, inner_end, b,
            h, head, start, column, rows, keys, first_N, past_N, q_strides[2], pull_strides[2],
            mask_strides, d_size, e_size, scale, dropout, args, score, slope, MASK, DROPOUT, False, M, N,
            D, E, D_ODD, E_ODD, WIDE, PRECISION,
        )  # fmt: skip
        sums_k, sums_v = _keys_part(
            sums_k, sums_v, k_ND, v_NE, q_h, pull_h, mask_h, seed, lse_h, dots_h, inner_end, end, b,
            h, head, start, column, rows, keys, first_N, past_N, q_strides[2], pull_strides[2],
            mask_strides, d_size, e_size, scale, dropout, args, score, slope, MASK, DROPOUT, True, M, N,
            D, E, D_ODD, E_ODD, WIDE, PRECISION,
        )  # fmt: skip
    inside = (column < keys)[:, None]
    d, e = tl.arange(0, D)[None, :], tl.arange(0, E)[None, :]
    place = of_k + column[:, None] * of_k_strides[2] + d
    tl.store(place, (sums_k * scale).to(of_k.dtype.element_ty), mask=inside & (d < d_size))
    place = of_v + column[:, None] * of_v_strides[2] + e
    tl.store(place, sums_v.to(of_v.dtype.element_ty), mask=inside & (e < e_size))


@triton.jit  # type: ignore[untyped-decorator]
def _queries_part(  # type: ignore[no-untyped-def]
    of_q,
    q_MD,
    pull_ME,
    k,
    v,
    mask,
    seed,
    top_M,
    log_M,
    dots_M,
    begin,
    end,
    b,
    h,
    head,
    row,
    rows,
    keys,
    first_M,
    past_M,
    k_row,
    v_row,
    mask_strides,
    d_size,
    e_size,
    scale,
    dropout,
    args,
    score: tl.constexpr,
    slope: tl.constexpr,
    MASK: tl.constexpr,
    DROPOUT: tl.constexpr,
    EDGE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    D_ODD: tl.constexpr,
    E_ODD: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What the keys from `begin` to `end` add to the gradient of a tile of queries."""
    FAR: tl.constexpr = score is not None or MASK == 2
    for start in range(begin, end, N):
        column = start + tl.arange(0, N)
        if WIDE:
            column = column.to(tl.int64)
        i, j = row[:, None], column[None, :]
        k_ND = _load(k, column, tl.arange(0, D), k_row, keys, d_size, EDGE, D_ODD)
        v_NE = _load(v, column, tl.arange(0, E), v_row, keys, e_size, EDGE, E_ODD)
        products = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
        s = _scores(
            products, scale, mask, b, h, i, j, i < rows, j < keys, mask_strides[2], mask_strides[3], args,
            score, MASK, EDGE,
        )  # fmt: skip
        p = _weights(s, top_M[:, None], log_M[:, None], FAR)
        if EDGE:
            p = tl.where((j >= first_M[:, None]) & (j < past_M[:, None]), p, 0.0)
        of_p = tl.dot(pull_ME, tl.trans(v_NE), input_precision=PRECISION)
        if DROPOUT:
            larger = tl.where(dropout < 1.0, 1.0 / (1.0 - dropout), 0.0)
            of_p = tl.where(_kept(seed, head, row, start, dropout, M, N), of_p * larger, 0.0)
        of_s = p * (of_p - dots_M[:, None])
        if score is not None:
            of_s = tl.where(p > 0.0, of_s * slope(products * scale, b, h, i, j, args), 0.0)
        of_q = tl.dot(of_s.to(k_ND.dtype), k_ND, of_q, input_precision=PRECISION)
    return of_q


@triton.jit  # type: ignore[untyped-decorator]
def backward_queries(  # type: ignore[no-untyped-def]
    q,  # as in the forward
    k,
    v,
    mask,
    first,
    past,
    seed,
    pull,  # [B, H, L, E]
    lse,  # as of the forward
    dots,
    of_q,  # [B, H, L, D]
    q_strides,
    k_strides,
    v_strides,
    pull_strides,
    mask_strides,
    of_q_strides,
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
    slope: tl.constexpr,
    GROUP: tl.constexpr,
    MASK: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    TABLE: tl.constexpr,
    DROPOUT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    D_ODD: tl.constexpr,
    E_ODD: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program makes the gradient of a tile of one head's queries."""
    rows, keys = _sized(rows, WIDE), _sized(keys, WIDE)
    tiles = tl.cdiv(rows, M)
    program = tl.program_id(0)
    start = (tiles - 1 - program % tiles) * M
    head = (program // tiles).to(tl.int64)
    b, h = head // heads, head % heads
    scale, dropout = tl.full([], scale, tl.float32), tl.full([], dropout, tl.float32)
    q += b * q_strides[0] + h * q_strides[1]
    k += b * k_strides[0] + h // GROUP * k_strides[1]
    v += b * v_strides[0] + h // GROUP * v_strides[1]
    pull += b * pull_strides[0] + h * pull_strides[1]
    of_q += b * of_q_strides[0] + h * of_q_strides[1]
    mask += b * mask_strides[0] + h * mask_strides[1]
    first += b * table_stride
    past += b * table_stride
    row = start + tl.arange(0, M)
    begin, inner_begin, inner_end, end = _spans(
        start, rows, first, past, low, high, keys, LEFT, RIGHT, TABLE, M, N
    )
    first_M, past_M = _seen(tl.minimum(row, rows - 1), first, past, low, high, keys, LEFT, RIGHT, TABLE)
    if WIDE:
        row = row.to(tl.int64)
    q_MD = _load(q, row, tl.arange(0, D), q_strides[2], rows, d_size, True, D_ODD)
    pull_ME = _load(pull, row, tl.arange(0, E), pull_strides[2], rows, e_size, True, E_ODD)
    FAR: tl.constexpr = score is not None or MASK == 2
    top_M, log_M = _known(lse + head * (2 * rows if FAR else rows), row, rows, True, FAR)
    dots_M = tl.load(dots + head * rows + row, mask=row < rows, other=0.0)
    sums = tl.zeros([M, D], tl.float32)
    if LEFT or TABLE:
        sums = _queries_part(
            sums, q_MD, pull_ME, k, v, mask, seed, top_M, log_M, dots_M, begin, inner_begin, b, h, head,
            row, rows, keys, first_M, past_M, k_strides[2], v_strides[2], mask_strides, d_size, e_size, scale,
            dropout, args, score, slope, MASK, DROPOUT, True, M, N, D, E, D_ODD, E_ODD, WIDE, PRECISION,
        )  # fmt: skip
    sums = _queries_part(
        sums, q_MD, pull_ME, k, v, mask, seed, top_M, log_M, dots_M, inner_begin, inner_end, b, h, head,
        row, rows, keys, first_M, past_M, k_strides[2], v_strides[2], mask_strides, d_size, e_size, scale,
        dropout, args, score, slope, MASK, DROPOUT, False, M, N, D, E, D_ODD, E_ODD, WIDE, PRECISION,
    )  # fmt: skip
    sums = _queries_part(
        sums, q_MD, pull_ME, k, v, mask, seed, top_M, log_M, dots_M, inner_end, end, b, h, head,
        row, rows, keys, first_M, past_M, k_strides[2], v_strides[2], mask_strides, d_size, e_size, scale,
        dropout, args, score, slope, MASK, DROPOUT, True, M, N, D, E, D_ODD, E_ODD, WIDE, PRECISION,
    )  # fmt: skip
    d = tl.arange(0, D)[None, :]
    place = of_q + row[:, None] * of_q_strides[2] + d
    tl.store(place, (sums * scale).to(of_q.dtype.element_ty), mask=(row < rows)[:, None] & (d < d_size))


# --- launches ---------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """What is computed, but for the tensors of queries, keys and values.

    Args:
        scale: of the scores.
        low, high: a query i sees keys from ``i + low`` to before ``i + high``; None for all.
        tables: ``[B or 1, L]`` int32 twice, from where to where queries see; and the same ``[B or 1, S]`` of
            which queries see a key. In place of `low` and `high`.
        mask: ``[B, H, L, S]`` by strides, boolean or floating.
        score, slope: functions of the scores as above, or None.
        args: what they are given; one element at the least, if there are functions.
        dropout: the probability of a zero.
        seed: ``[]``, int64, if there is dropout.
        precision: of products of float32.
    """

    scale: float
    low: int | None = None
    high: int | None = None
    tables: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    mask: Tensor | None = None
    score: Any = None
    slope: Any = None
    args: tuple[Any, ...] = (0,)
    dropout: float = 0.0
    seed: Tensor | None = None
    precision: str = "ieee"

    @property
    def far(self) -> bool:
        """Whether scores may be far from zero, as in the kernels."""
        return self.score is not None or (self.mask is not None and self.mask.dtype != torch.bool)


class Launch(NamedTuple):
    """A kernel with all that it is given.

    Args:
        kernel: the Triton function.
        programs: how many.
        arguments: tensors, strides, numbers and functions, by position.
        constants: what it is compiled for, by name.
        blocks: warps and stages.
    """

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    blocks: FlashConfig

    @property
    def options(self) -> dict[str, int]:
        """Options of the compilation."""
        return {"num_warps": self.blocks.warps, "num_stages": self.blocks.stages}

    def __call__(self) -> None:
        """Launch it."""
        self.kernel[(self.programs,)](*self.arguments, **self.constants, **self.options)


def _launch(
    kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], blocks: FlashConfig
) -> Launch:
    """A launch. Only here is it decided whether 32 bits do for indices: by all of a kernel's arguments."""
    known = {**constants, "M": blocks.m, "N": blocks.n, "WIDE": _reaches_far(arguments)}
    given = {name: known[name] for name in _constants_of(kernel) if name in known}
    return Launch(kernel, programs, arguments, given, blocks)


@functools.cache
def _constants_of(kernel: Any) -> tuple[str, ...]:
    return tuple(name for name in kernel.arg_names if name.isupper())


def forward(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, blocks: Mapping[str, FlashConfig]
) -> tuple[Tensor, Tensor]:
    """The results ``[B, H, L, E]``, heads inside in memory, and `lse`, ``[B, H, L]``; FAR ``[B, H, 2 * L]``.

    Args:
        q: ``[B, H, L, D]``; the last stride of all three is 1, and none of them is empty.
        k: ``[B, K, S, D]``.
        v: ``[B, K, S, E]``.
        problem: the rest.
        blocks: of the kernel ``"forward"``.
    """
    launch, out, lse = _forward(q, k, v, problem, blocks)
    with _on(q):
        launch()
    return out, lse


def _forward(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, blocks: Mapping[str, FlashConfig]
) -> tuple[Launch, Tensor, Tensor]:
    """The launch of the forward, and what it writes."""
    batch, heads, rows, _ = q.shape
    out = q.new_empty(batch, rows, heads, v.shape[3]).transpose(1, 2)
    lse = q.new_empty(batch, heads, 2 * rows if problem.far else rows, dtype=torch.float32)
    (tensors, strides, numbers), constants = _arguments(q, k, v, problem, of_keys=False)
    given = (
        *tensors, out, lse, *strides[:3], _strides(out), *strides[3:], *numbers, problem.score
    )  # fmt: skip
    programs = triton.cdiv(rows, blocks["forward"].m) * batch * heads
    return _launch(forward_kernel, programs, given, constants, blocks["forward"]), out, lse


def backward(
    pull: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    problem: Problem,
    blocks: Mapping[str, FlashConfig],
    wanted: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of queries, keys and values.

    Args:
        pull: the cotangent of `out`; its last stride is 1.
        q: as in `forward`, as k and v.
        k: keys.
        v: values.
        out: what `forward` returned, as `lse`.
        lse: logarithms.
        problem: the rest.
        blocks: of the kernels ``"dots"``, ``"keys"`` and ``"queries"``.
        wanted: whether the gradient of queries is, and those of keys and values.
    """
    launches, gradients = _backward(pull, q, k, v, out, lse, problem, blocks, wanted)
    with _on(q):
        for launch in launches:
            launch()
    return gradients


def _backward(
    pull: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    problem: Problem,
    blocks: Mapping[str, FlashConfig],
    wanted: tuple[bool, bool],
) -> tuple[list[Launch], tuple[Tensor | None, Tensor | None, Tensor | None]]:
    """The launches of the backward, in order, and the gradients that they write."""
    batch, heads, rows, size = q.shape
    keys, wide = v.shape[2:]
    dots = lse.new_empty(batch, heads, rows)
    of_q = of_k = of_v = None
    chosen = blocks["dots"]
    arguments: tuple[Any, ...] = (pull, out, dots, _strides(pull), _strides(out), heads, rows, wide)
    programs = triton.cdiv(rows, chosen.m) * batch * heads
    launches = [_launch(backward_dots, programs, arguments, {"E": _power(wide)}, chosen)]
    functions = (problem.score, problem.slope)
    if wanted[1]:
        # As the keys lie: often parts of one tensor with the heads inside.
        of_k = k.new_empty(batch, keys, k.shape[1], size).transpose(1, 2)
        of_v = v.new_empty(batch, keys, k.shape[1], wide).transpose(1, 2)
        (tensors, strides, numbers), constants = _arguments(q, k, v, problem, of_keys=True)
        arguments = (
            *tensors, pull, lse, dots, of_k, of_v, *strides[:3], _strides(pull), strides[3], _strides(of_k),
            _strides(of_v), strides[4], *numbers, *functions,
        )  # fmt: skip
        programs = triton.cdiv(keys, blocks["keys"].n) * batch * k.shape[1]
        launches.append(_launch(backward_keys, programs, arguments, constants, blocks["keys"]))
    if wanted[0]:
        of_q = q.new_empty(batch, rows, heads, size).transpose(1, 2)
        (tensors, strides, numbers), constants = _arguments(q, k, v, problem, of_keys=False)
        arguments = (
            *tensors, pull, lse, dots, of_q, *strides[:3], _strides(pull), strides[3], _strides(of_q),
            strides[4], *numbers, *functions,
        )  # fmt: skip
        programs = triton.cdiv(rows, blocks["queries"].m) * batch * heads
        launches.append(_launch(backward_queries, programs, arguments, constants, blocks["queries"]))
    return launches, (of_q, of_k, of_v)


def launches(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    blocks: Mapping[str, FlashConfig],
    *,
    gradients: bool = False,
    wanted: tuple[bool, bool] = (True, True),
) -> dict[str, Launch]:
    """What `forward` and, where gradients are wanted, `backward` launch, by the names of `KERNELS`.

    Args:
        q: as in `forward`; on the meta device nothing is allocated.
        k: keys.
        v: values.
        problem: the rest.
        blocks: of all kernels.
        gradients: whether the backward's are listed too.
        wanted: as in `backward`.
    """
    launch, out, lse = _forward(q, k, v, problem, blocks)
    found = [launch]
    if gradients:
        found += _backward(out, q, k, v, out, lse, problem, blocks, wanted)[0]
    names = {
        forward_kernel: "forward",
        backward_dots: "dots",
        backward_keys: "keys",
        backward_queries: "queries",
    }
    return {names[each.kernel]: each for each in found}


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, of_keys: bool
) -> tuple[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], dict[str, Any]]:
    """What all kernels are given: tensors, strides and numbers; and constants that depend on these.

    Args:
        q: queries; any of what a kernel reads.
        k: keys.
        v: values.
        problem: the rest.
        of_keys: whether the kernel goes by keys, and wants to know which queries see them.
    """
    mask = q if problem.mask is None else problem.mask
    mask_strides = (0, 0, 0, 0) if problem.mask is None else tuple(mask.stride())
    kind = 0 if problem.mask is None else 1 if mask.dtype == torch.bool else 2
    if kind == 1:
        mask = mask.view(torch.uint8)
    low, high, tables = problem.low, problem.high, (q, q)
    if problem.tables is not None:
        tables = problem.tables[2:] if of_keys else problem.tables[:2]
    elif of_keys:
        # Query i sees key j where i + low <= j < i + high.
        low, high = None if high is None else 1 - high, None if low is None else 1 - low
    # A limit beyond all queries or keys is as good as one at their end, and does not overflow when added.
    length, size = (k.shape[2], q.shape[2]) if of_keys else (q.shape[2], k.shape[2])
    low, high = (None if limit is None else min(max(limit, -length), size) for limit in (low, high))
    table_stride = 0 if problem.tables is None or len(tables[0]) == 1 else tables[0].stride(0)
    size, wide = q.shape[3], v.shape[3]
    d, e = _power(size), _power(wide)
    tensors = (q, k, v, mask, *tables, q if problem.seed is None else problem.seed)
    strides = (_strides(q), _strides(k), _strides(v), mask_strides, table_stride)
    # Floats stay floats for Triton: it would take a whole number for an integer.
    numbers = (
        q.shape[1], q.shape[2], k.shape[2], size, wide, low or 0, high or 0, float(problem.scale),
        float(problem.dropout), problem.args,
    )  # fmt: skip
    constants = {
        "GROUP": q.shape[1] // k.shape[1],
        "MASK": kind,
        "LEFT": low is not None,
        "RIGHT": high is not None,
        "TABLE": problem.tables is not None,
        "DROPOUT": problem.seed is not None,
        "D": d,
        "E": e,
        "D_ODD": d != size,
        "E_ODD": e != wide,
        "PRECISION": problem.precision if q.dtype == torch.float32 else "ieee",
    }
    return (tensors, strides, numbers), constants


def _strides(tensor: Tensor) -> tuple[int, int, int]:
    return tensor.stride(0), tensor.stride(1), tensor.stride(2)


def _power(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


_PADDING = 512
"""What an index may be beyond the end of an axis: a block, or a head's size as a power of two."""


def _reaches_far(arguments: Sequence[Any]) -> bool:
    """Whether indices of a kernel need 64 bits.

    Batches and heads are 64-bit in any case; what is added within a head is not. Every tensor among the
    arguments counts, read or written, and all sizes.
    """
    most = 2 * _PADDING
    tensors: dict[int, Tensor] = {}  # by identity: q stands in for an optional tensor that is absent
    for argument in arguments:
        if isinstance(argument, int):
            most += abs(argument)
        elif isinstance(argument, Tensor):
            tensors[id(argument)] = argument
        elif isinstance(argument, tuple):
            tensors |= {id(each): each for each in argument if isinstance(each, Tensor)}
    for tensor in tensors.values():
        shape, strides = tensor.shape, tensor.stride()
        reach = 0
        for axis in range(max(min(2, len(shape) - 1), 0), len(shape)):
            reach += (shape[axis] + _PADDING) * abs(strides[axis])
        most = max(most, reach)
    return most > 2**31 - 1


def _on(tensor: Tensor) -> Any:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
