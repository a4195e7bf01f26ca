"""`quantized_linear` in Triton: a matrix-vector kernel, and one of tiles that are decoded when they are read.

Both may split the terms over programs; a third kernel then adds their sums. N and K are the rows and columns
of the weight, M the rows of x. Products are added in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.precision import dot_precision, precision
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.matmul_template import tile_index
from burnt.kernels.interface.launch import Launch, run_all
from burnt.kernels.ops.quantized.values_triton import activate, decode
from burnt.kernels.ops.quantized.weight_only import LinearArguments
from burnt.kernels.ops.quantized.weight_only_config import VectorConfig
from burnt.scheme import VALUES

_PARTS_BLOCK = 256  # elements per program that adds split sums


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def multiply_vector(  # type: ignore[no-untyped-def]
    x,  # [M, K], rows contiguous
    values,  # [N, bytes], rows contiguous
    scale,  # [N or 1, blocks or 1]
    zero,  # as scale, int8, or None
    bias,  # [N] or None
    out,  # [M, N]; [SPLIT, M, N] float32 where SPLIT > 1
    M,
    N,
    K,
    stored,  # bytes of a row of values; as an argument it is known to be a multiple of 16
    x_stride,
    value_stride,
    scale_stride,
    BLOCK: tl.constexpr,
    VALUE: tl.constexpr,
    PER_BYTE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Multiply ROWS rows of the weight by one row of x, GROUPS groups of BYTES bytes at a time.

    A group shares a scale and is what a thread reads at once: its products are added without communication.
    """
    pid = tl.program_id(0)
    m = tl.program_id(1).to(tl.int64)
    split = pid % SPLIT
    n = (pid // SPLIT * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    in_n = n < N
    group = tl.arange(0, GROUPS) * BYTES
    step: tl.constexpr = GROUPS * BYTES
    length = tl.cdiv(tl.cdiv(stored, step), SPLIT) * step
    row_values = values + (n * value_stride)[:, None, None]
    sums = tl.zeros([ROWS, GROUPS], tl.float32)
    row_zero = 0.0
    if zero is not None and BLOCK == 0:
        row_zero = tl.load(zero + n * scale_stride, mask=in_n, other=0).to(tl.float32)[:, None, None]
    for begin in range(split * length, tl.minimum((split + 1) * length, stored), step):
        byte = begin + group[:, None] + tl.arange(0, BYTES)[None, :]
        is_stored = in_n[:, None, None] & (byte < stored)[None, :, :]
        packed = tl.load(row_values + byte[None, :, :], mask=is_stored, other=0)
        column = begin * PER_BYTE + tl.arange(0, step * PER_BYTE)
        x_K = tl.load(x + m * x_stride + column, mask=column < K, other=0.0).to(tl.float32)
        in_block = in_n[:, None] & (begin + group < stored)[None, :]
        offset = row_zero
        if BLOCK:
            place = (n * scale_stride)[:, None] + ((begin + group) * PER_BYTE // BLOCK)[None, :]
            if zero is not None:
                offset = tl.load(zero + place, mask=in_block, other=0).to(tl.float32)[:, :, None]
        if PER_BYTE == 1:
            products = decode(packed, offset, 0, VALUE) * tl.reshape(x_K, [1, GROUPS, BYTES])
        elif PER_BYTE == 2:
            x0, x1 = tl.split(tl.reshape(x_K, [1, GROUPS, BYTES, 2]))
            products = decode(packed, offset, 0, VALUE) * x0 + decode(packed, offset, 1, VALUE) * x1
        else:
            even, odd = tl.split(tl.reshape(x_K, [1, GROUPS, BYTES, 2, 2]))
            x0, x2 = tl.split(even)
            x1, x3 = tl.split(odd)
            products = decode(packed, offset, 0, VALUE) * x0 + decode(packed, offset, 1, VALUE) * x1
            products += decode(packed, offset, 2, VALUE) * x2 + decode(packed, offset, 3, VALUE) * x3
        partial = tl.sum(products, 2)
        if BLOCK:
            partial *= tl.load(scale + place, mask=in_block, other=0.0).to(tl.float32)
        sums += partial
    total = tl.sum(sums, 1)
    if BLOCK == 0:
        total *= tl.load(scale + n * scale_stride, mask=in_n, other=0.0).to(tl.float32)
    if SPLIT > 1:
        tl.store(out + (split.to(tl.int64) * M + m) * N + n, total, mask=in_n)
    else:
        if bias is not None:
            total += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)
        tl.store(out + m * N + n, activate(total, ACTIVATION).to(out.dtype.element_ty), mask=in_n)


@triton.jit  # type: ignore[untyped-decorator]
def _decode_tile(  # type: ignore[no-untyped-def]
    packed, zero, scale, VALUE: tl.constexpr, PER_BYTE: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """Packed values ``[N, groups, bytes]`` as float32 ``[N, K]``; zeros and scales are ``[N, groups]``."""
    zero = tl.expand_dims(zero, 2)
    scale = tl.expand_dims(scale, 2)
    if PER_BYTE == 1:
        numbers = decode(packed, zero, 0, VALUE) * scale
    elif PER_BYTE == 2:
        numbers = tl.join(decode(packed, zero, 0, VALUE) * scale, decode(packed, zero, 1, VALUE) * scale)
    else:
        even = tl.join(decode(packed, zero, 0, VALUE) * scale, decode(packed, zero, 2, VALUE) * scale)
        odd = tl.join(decode(packed, zero, 1, VALUE) * scale, decode(packed, zero, 3, VALUE) * scale)
        numbers = tl.join(even, odd)
    return tl.reshape(numbers, [N, K])


@triton.jit  # type: ignore[untyped-decorator]
def multiply_tiles(  # type: ignore[no-untyped-def]
    x,  # parameters without a comment are as in `multiply_vector`
    values,
    scale,
    zero,
    bias,
    out,
    M,
    N,
    K,
    stored,
    x_stride,
    value_stride,
    scale_stride,
    BLOCK: tl.constexpr,
    VALUE: tl.constexpr,
    PER_BYTE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,  # rows of tiles that are processed together
    PRECISION: tl.constexpr,
):
    """Multiply a tile. The weight is the left operand, which tensor cores read from registers."""
    pid = tl.program_id(0)
    split = pid % SPLIT
    tile_n, tile_m, _ = tile_index(pid // SPLIT, N, M, BLOCK_N, BLOCK_M, GROUP)
    n = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    in_n, in_m = n < N, m < M
    GROUPS: tl.constexpr = BLOCK_K // BLOCK if BLOCK > 0 and BLOCK < BLOCK_K else 1
    BYTES: tl.constexpr = BLOCK_K // PER_BYTE // GROUPS
    group = tl.arange(0, GROUPS)
    inside = group[:, None] * BYTES + tl.arange(0, BYTES)[None, :]
    row_values = values + (n * value_stride)[:, None, None]
    offset = tl.zeros([BLOCK_N, GROUPS], tl.float32)
    factor = tl.full([BLOCK_N, GROUPS], 1.0, tl.float32)
    if zero is not None and BLOCK == 0:
        offset += tl.load(zero + n * scale_stride, mask=in_n, other=0).to(tl.float32)[:, None]
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    length = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT) * BLOCK_K
    for begin in range(split * length, tl.minimum((split + 1) * length, K), BLOCK_K):
        byte = begin // PER_BYTE + inside
        is_stored = in_n[:, None, None] & (byte < stored)[None, :, :]
        packed = tl.load(row_values + byte[None, :, :], mask=is_stored, other=0)
        if BLOCK:
            first = begin + group * (BYTES * PER_BYTE)
            in_block = in_n[:, None] & (first < K)[None, :]
            place = (n * scale_stride)[:, None] + (first // BLOCK)[None, :]
            factor = tl.load(scale + place, mask=in_block, other=0.0).to(tl.float32)
            if zero is not None:
                offset = tl.load(zero + place, mask=in_block, other=0).to(tl.float32)
        w_NK = _decode_tile(packed, offset, factor, VALUE, PER_BYTE, BLOCK_N, BLOCK_K)
        k = begin + tl.arange(0, BLOCK_K)
        x_KM = tl.load(
            x + (m * x_stride)[None, :] + k[:, None], mask=(k < K)[:, None] & in_m[None, :], other=0.0
        )
        if PRECISION == "flex32":
            sums = tl.dot(w_NK.to(tl.bfloat16), x_KM.to(tl.bfloat16), sums, input_precision="ieee")
        else:
            sums = tl.dot(w_NK.to(x_KM.dtype), x_KM, sums, input_precision=PRECISION)
    if BLOCK == 0:
        sums *= tl.load(scale + n * scale_stride, mask=in_n, other=0.0).to(tl.float32)[:, None]
    in_out = in_n[:, None] & in_m[None, :]
    if SPLIT > 1:
        place = (split.to(tl.int64) * M + m[None, :]) * N + n[:, None]
        tl.store(out + place, sums, mask=in_out)
    else:
        if bias is not None:
            sums += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)[:, None]
        result = activate(sums, ACTIVATION).to(out.dtype.element_ty)
        tl.store(out + m[None, :] * N + n[:, None], result, mask=in_out)


@triton.jit  # type: ignore[untyped-decorator]
def add_parts(  # type: ignore[no-untyped-def]
    parts,  # [SPLIT, M, N] float32
    bias,  # [N] or None
    out,  # [M, N]
    M,
    N,
    ACTIVATION: tl.constexpr,
    SPLIT: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Add the sums of split terms, in order, then the bias, and apply the activation."""
    count = tl.full([], 1, tl.int64) * M * N
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    is_inside = place < count
    total = tl.zeros([SIZE], tl.float32)
    for split in range(SPLIT):
        total += tl.load(parts + split * count + place, mask=is_inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + place % N, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(out + place, activate(total, ACTIVATION).to(out.dtype.element_ty), mask=is_inside)


def launches(call: LinearArguments, config: Mapping[str, str]) -> tuple[list[Launch], Tensor]:
    """Return the launches of `burnt.kernels.quantized_linear`, and the tensor ``[rows, columns]`` they write.

    Blocks are a power of two, or 0. On the meta device nothing is allocated.
    """
    x, values = (t if t.stride(1) == 1 else t.contiguous() for t in (call.x, call.values))
    scale, block = call.scale.contiguous(), call.block
    zero_point, bias = (None if t is None else t.contiguous() for t in (call.zero_point, call.bias))
    (rows, terms), columns = x.shape, values.shape[0]
    per_byte = VALUES[call.value].per_byte
    ((kind, text),) = config.items()
    sizes = VectorConfig.of(text) if kind == "vector" else MatmulConfig.of(text)
    out = x.new_empty(rows, columns)
    parts = x.new_empty(sizes.split, rows, columns, dtype=torch.float32) if sizes.split > 1 else out
    scale_stride = 0 if scale.shape[0] == 1 and columns != 1 else scale.shape[1]
    arguments: tuple[Any, ...] = (x, values, scale, zero_point, bias, parts, rows, columns, terms)
    arguments += (values.shape[1], x.stride(0), values.stride(0), scale_stride)
    end = {"ACTIVATION": call.activation, "SPLIT": sizes.split}
    constants = {"BLOCK": block, "VALUE": call.value, "PER_BYTE": per_byte, **end}
    if isinstance(sizes, VectorConfig):
        group = min(16, block // per_byte, sizes.bytes) if block else min(16, sizes.bytes)
        constants |= {"ROWS": sizes.rows, "GROUPS": sizes.bytes // group, "BYTES": group}
        grid: tuple[int, ...] = (triton.cdiv(columns, sizes.rows) * sizes.split, rows)
        first = Launch(multiply_vector, grid, arguments, constants, sizes.options)
    else:
        constants |= {"BLOCK_M": sizes.block_m, "BLOCK_N": sizes.block_n, "BLOCK_K": sizes.block_k}
        constants |= {"GROUP": sizes.group, "PRECISION": dot_precision(precision())}
        grid = (triton.cdiv(rows, sizes.block_m) * triton.cdiv(columns, sizes.block_n) * sizes.split,)
        first = Launch(multiply_tiles, grid, arguments, constants, sizes.options)
    if sizes.split == 1:
        return [first], out
    grid = (triton.cdiv(rows * columns, _PARTS_BLOCK),)
    constants = {**end, "SIZE": _PARTS_BLOCK}
    return [first, Launch(add_parts, grid, (parts, bias, out, rows, columns), constants, {})], out


def quantized_linear_triton(x: Tensor, *rest: Any, config: Mapping[str, str]) -> Tensor:
    """Compute `burnt.kernels.quantized_linear` with a choice of block sizes; nothing may be empty."""
    steps, out = launches(LinearArguments(x.reshape(-1, x.shape[-1]), *rest), config)
    run_all(steps, out)
    return out.view(*x.shape[:-1], out.shape[1])
