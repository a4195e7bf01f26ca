"""`quantized_linear` in Triton: a matrix-vector kernel, and a product that decodes the weight as it is read.

The weight is the left operand of the product, which tensor cores read from registers. Both may split the
terms over programs. N and K are the rows and columns of the weight, M the rows of x. Products are added in
float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.precision import dot_precision, precision
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.tile_config import TileConfig
from burnt.kernels.interface.launch import Launch
from burnt.kernels.ops.matmul_triton import matmul_launches, partial_sums, reduce_launches
from burnt.kernels.ops.quantized.values_triton import activate, decode
from burnt.kernels.ops.quantized.weight_only import LinearArguments
from burnt.scheme import VALUES


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _store(sums, n, m, in_n, in_m, batch, args, SETTINGS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scale sums of whole rows of the weight, add the bias, apply the activation, and store them."""
    _, _, scale, _, bias, out, N, _, _, _, _, _, scale_stride = args
    if SETTINGS[2] == 0:
        sums *= tl.load(scale + n * scale_stride, mask=in_n, other=0.0).to(tl.float32)
    if bias is not None:
        sums += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)
    ACTIVATION: tl.constexpr = SETTINGS[3]  # Triton 3.6 passes elements of a tuple on as values
    tl.store(out + m * N + n, activate(sums, ACTIVATION).to(out.dtype.element_ty), mask=in_n & in_m)


@triton.jit  # type: ignore[untyped-decorator]
def _decode_bytes(packed, zero, VALUE: tl.constexpr, PER_BYTE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Packed values ``[rows, groups, bytes]`` less zeros ``[rows, groups, 1]``, as float32 ``[rows, groups,
    values]``.
    """
    numbers = decode(packed, zero, 0, VALUE)
    if PER_BYTE == 2:
        numbers = tl.join(numbers, decode(packed, zero, 1, VALUE))
    elif PER_BYTE == 4:
        even = tl.join(numbers, decode(packed, zero, 2, VALUE))
        odd = tl.join(decode(packed, zero, 1, VALUE), decode(packed, zero, 3, VALUE))
        numbers = tl.join(even, odd)
    return tl.reshape(numbers, [packed.shape[0], packed.shape[1], packed.shape[2] * PER_BYTE])


@triton.jit  # type: ignore[untyped-decorator]
def multiply_vector(  # type: ignore[no-untyped-def]
    args,  # as in `launches`
    parts,  # [SPLIT, N, M] float32 where SPLIT > 1
    SETTINGS: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Multiply ROWS rows of the weight by one row of x, GROUPS groups of BYTES bytes at a time.

    A group shares a scale and is what a thread reads at once: its products are added without communication.
    """
    x, values, scale, zero, _, _, N, M, K, stored, x_stride, value_stride, scale_stride = args
    VALUE: tl.constexpr = SETTINGS[0]
    PER_BYTE: tl.constexpr = SETTINGS[1]
    BLOCK: tl.constexpr = SETTINGS[2]
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
        numbers = _decode_bytes(packed, offset, VALUE, PER_BYTE)
        products = numbers * tl.reshape(x_K, [1, GROUPS, BYTES * PER_BYTE])
        partial = tl.sum(products, 2)
        if BLOCK:
            partial *= tl.load(scale + place, mask=in_block, other=0.0).to(tl.float32)
        sums += partial
    total = tl.sum(sums, 1)[:, None]
    n, in_n = n[:, None], in_n[:, None]
    if SPLIT > 1:
        tl.store(parts + (split.to(tl.int64) * N + n) * M + m, total, mask=in_n)
    else:
        _store(total, n, m, in_n, True, 0, args, SETTINGS)


@triton.jit  # type: ignore[untyped-decorator]
def _load_weight(  # type: ignore[no-untyped-def]
    row, term, batch, args, SETTINGS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """A tile of the decoded weight ``[ROWS, COLUMNS]``, with the scales of blocks."""
    x, values, scale, zero, _, _, N, _, K, stored, _, value_stride, scale_stride = args
    VALUE: tl.constexpr = SETTINGS[0]
    PER_BYTE: tl.constexpr = SETTINGS[1]
    BLOCK: tl.constexpr = SETTINGS[2]
    GROUPS: tl.constexpr = COLUMNS // BLOCK if BLOCK > 0 and BLOCK < COLUMNS else 1
    BYTES: tl.constexpr = COLUMNS // PER_BYTE // GROUPS
    n, group = (row + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, GROUPS)
    in_n = n < N
    byte = term // PER_BYTE + group[:, None] * BYTES + tl.arange(0, BYTES)[None, :]
    is_stored = in_n[:, None, None] & (byte < stored)[None, :, :]
    packed = tl.load(values + (n * value_stride)[:, None, None] + byte[None, :, :], mask=is_stored, other=0)
    offset = tl.zeros([ROWS, GROUPS], tl.float32)
    factor = tl.full([ROWS, GROUPS], 1.0, tl.float32)
    if BLOCK:
        first = term + group * (BYTES * PER_BYTE)
        in_block = in_n[:, None] & (first < K)[None, :]
        place = (n * scale_stride)[:, None] + (first // BLOCK)[None, :]
        factor = tl.load(scale + place, mask=in_block, other=0.0).to(tl.float32)
        if zero is not None:
            offset = tl.load(zero + place, mask=in_block, other=0).to(tl.float32)
    elif zero is not None:
        offset += tl.load(zero + n * scale_stride, mask=in_n, other=0).to(tl.float32)[:, None]
    numbers = _decode_bytes(packed, tl.expand_dims(offset, 2), VALUE, PER_BYTE)
    return tl.reshape(numbers * tl.expand_dims(factor, 2), [ROWS, COLUMNS]).to(x.dtype.element_ty)


@triton.jit  # type: ignore[untyped-decorator]
def _load_x(  # type: ignore[no-untyped-def]
    term, column, batch, args, SETTINGS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """A tile of x, transposed: ``[ROWS, COLUMNS]`` of K and M."""
    x, _, _, _, _, _, _, M, K, _, x_stride, _, _ = args
    k, m = (term + tl.arange(0, ROWS))[:, None], (column + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    return tl.load(x + m * x_stride + k, mask=(k < K) & (m < M), other=0.0)


def launches(call: LinearArguments, config: Mapping[str, str]) -> tuple[list[Launch], Tensor]:
    """Return the launches of `burnt.kernels.quantized_linear`, and the result that they write.

    Blocks are a power of two, or 0. On the meta device nothing is allocated.
    """
    rows_of_x = call.x.reshape(-1, call.x.shape[-1])
    x, values = (t if t.stride(1) == 1 else t.contiguous() for t in (rows_of_x, call.values))
    scale, block = call.scale.contiguous(), call.block
    zero_point, bias = (None if t is None else t.contiguous() for t in (call.zero_point, call.bias))
    (rows, terms), columns = x.shape, values.shape[0]
    per_byte = VALUES[call.value].per_byte
    ((kind, text),) = config.items()
    out = x.new_empty(*call.x.shape[:-1], columns)
    scale_stride = 0 if scale.shape[0] == 1 and columns != 1 else scale.shape[1]
    args: tuple[Any, ...] = (x, values, scale, zero_point, bias, out, columns, rows, terms)
    # As an argument, the bytes of a row are known to be a multiple of 16.
    args += (values.shape[1], x.stride(0), values.stride(0), scale_stride)
    settings = call.value, per_byte, block, call.activation
    if kind == "tiles":
        sizes = MatmulConfig.of(text)
        sizes = dataclasses.replace(sizes, block_m=sizes.block_n, block_n=sizes.block_m)
        shape, loads, mode = (1, columns, rows, terms), (_load_weight, _load_x), dot_precision(precision())
        return matmul_launches(args, out, shape, sizes, *loads, _store, settings, mode, {}), out
    vector = TileConfig.of(text)
    parts = partial_sums(out, vector.chunks, (columns, rows), "ieee")
    group = min(16, block // per_byte, vector.cols) if block else min(16, vector.cols)
    constants = {"SETTINGS": settings, "SPLIT": vector.chunks, "ROWS": vector.rows}
    constants |= {"GROUPS": vector.cols // group, "BYTES": group}
    grid = triton.cdiv(columns, vector.rows) * vector.chunks, rows
    options = {"num_warps": vector.warps}  # products are added unrounded
    first = Launch(multiply_vector, grid, (args, parts), constants, options)
    parts_shape = 1, columns, rows
    return [first, *reduce_launches(args, parts, parts_shape, vector.chunks, _store, settings, {})], out
