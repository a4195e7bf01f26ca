"""`scaled_linear` and `scaled_conv` in Triton: products of 8-bit values, scaled and quantized where they end.

Products of integers are added in int32, those of float8 numbers in float32: by tensor cores where they have
float8, else as float16, which holds all float8 numbers. The epilogue repeats the reference's operations one
by one, so that integer results are the same. A convolution is a product whose left operand is gathered
through windows: M are its positions, N its output channels, K the channels of a tap.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.render.triton.layout import INT32_INDEX_LIMIT
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.matmul_template import tile_index
from burnt.kernels.interface.launch import Launch, run_all
from burnt.kernels.ops.quantized.quantize import FLOAT8
from burnt.kernels.ops.quantized.scaled import ConvCall, LinearCall
from burnt.kernels.ops.quantized.values_triton import activate, decode_float16, requantize

_PARTS_TILE = 16, 128  # of a program that adds split sums


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _store_scaled(  # type: ignore[no-untyped-def]
    sums,  # [rows, columns]
    row,
    column,
    in_tile,
    x_scale,  # one element, or one for each row: a stride of 0 or 1
    scale,  # one element, or one for each column
    bias,  # one for each column, or None
    out_scale,  # one element or None
    out_zero,
    out,
    place,
    x_scale_stride,
    scale_stride,
    ACTIVATION: tl.constexpr,
    VALUE: tl.constexpr,
):
    """Scale sums, add the bias, apply the activation, quantize, and store them at `place`."""
    row_scale = tl.load(x_scale + row * x_scale_stride, mask=row >= 0, other=0.0).to(tl.float32)
    column_scale = tl.load(scale + column * scale_stride, mask=column >= 0, other=0.0).to(tl.float32)
    result = sums.to(tl.float32) * row_scale * column_scale
    if bias is not None:
        result += tl.load(bias + column, mask=column >= 0, other=0.0).to(tl.float32)
    result = activate(result, ACTIVATION)
    if out_scale is None:
        tl.store(out + place, result.to(out.dtype.element_ty), mask=in_tile)
    else:
        zero = 0.0
        if out_zero is not None:
            zero = tl.load(out_zero).to(tl.float32)
        tl.store(
            out + place, requantize(result, tl.load(out_scale).to(tl.float32), zero, VALUE), mask=in_tile
        )


@triton.jit  # type: ignore[untyped-decorator]
def _dot(x_MK, w_KN, sums, VALUE: tl.constexpr, FLOAT8: tl.constexpr, BLOCK_K: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the product of two tiles of 8-bit values to int32 or float32 sums."""
    if VALUE == "int8":
        return tl.dot(x_MK, w_KN, sums, out_dtype=tl.int32)
    elif FLOAT8:
        # Hopper's tensor cores add float8 products with 14 bits: after so many, add them in float32.
        IMPRECISE: tl.constexpr = BLOCK_K if BLOCK_K < 128 else 128
        return tl.dot(x_MK, w_KN, sums, max_num_imprecise_acc=IMPRECISE)
    else:
        return tl.dot(decode_float16(x_MK, VALUE), decode_float16(w_KN, VALUE), sums, input_precision="ieee")


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    x,  # [M, K], rows contiguous; of float8 numbers as such if FLOAT8, else their bytes
    values,  # [N, K], rows contiguous
    x_scale,
    scale,
    x_zero,  # one int8 element or None
    bias,
    out_scale,
    out_zero,
    out,  # [M, N]; [SPLIT, M, N] int32 or float32 where SPLIT > 1
    M,
    N,
    K,
    x_stride,
    value_stride,
    x_scale_stride,
    scale_stride,
    VALUE: tl.constexpr,
    FLOAT8: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute a tile of `burnt.kernels.scaled_linear`."""
    pid = tl.program_id(0)
    split = pid % SPLIT
    tile_m, tile_n, _ = tile_index(pid // SPLIT, M, N, BLOCK_M, BLOCK_N, GROUP)
    m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_m, in_n = m < M, n < N
    x_rows = x + (m * x_stride)[:, None]
    w_columns = values + (n * value_stride)[None, :]
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if VALUE == "int8" else tl.float32)
    column_sums = tl.zeros([BLOCK_N], tl.int32)
    length = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT) * BLOCK_K
    for begin in range(split * length, tl.minimum((split + 1) * length, K), BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        in_k = k < K
        x_MK = tl.load(x_rows + k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)
        w_KN = tl.load(w_columns + k[:, None], mask=in_k[:, None] & in_n[None, :], other=0.0)
        sums = _dot(x_MK, w_KN, sums, VALUE, FLOAT8, BLOCK_K)
        if x_zero is not None:
            column_sums += tl.sum(w_KN.to(tl.int32), 0)
    if x_zero is not None:
        sums -= tl.load(x_zero).to(tl.int32) * column_sums[None, :]
    row, column = m[:, None], n[None, :]
    in_tile = in_m[:, None] & in_n[None, :]
    if SPLIT > 1:
        tl.store(out + (split.to(tl.int64) * M + row) * N + column, sums, mask=in_tile)
    else:
        # Beyond the tile the last row and column are read again.
        _store_scaled(
            sums, tl.minimum(row, M - 1), tl.minimum(column, N - 1), in_tile, x_scale, scale, bias, out_scale,
            out_zero, out, row * N + column, x_scale_stride, scale_stride, ACTIVATION, VALUE,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def add_parts(  # type: ignore[no-untyped-def]
    parts,  # [SPLIT, M, N] int32 or float32
    x_scale,
    scale,
    bias,
    out_scale,
    out_zero,
    out,  # [M, N]
    M,
    N,
    x_scale_stride,
    scale_stride,
    VALUE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add the sums of split terms, in order; the rest is as in `multiply`."""
    row = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    column = (tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    in_tile = (row < M) & (column < N)
    place = row * N + column
    count = tl.full([], 1, tl.int64) * M * N
    sums = tl.zeros([BLOCK_M, BLOCK_N], parts.dtype.element_ty)
    for split in range(SPLIT):
        sums += tl.load(parts + split * count + place, mask=in_tile, other=0)
    _store_scaled(
        sums, tl.minimum(row, M - 1), tl.minimum(column, N - 1), in_tile, x_scale, scale, bias, out_scale,
        out_zero, out, place, x_scale_stride, scale_stride, ACTIVATION, VALUE,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def multiply_windows(  # type: ignore[no-untyped-def]
    x,  # [batch, groups K, depth, height, width]
    values,  # [groups N, K, taps of depth, height, width], contiguous
    x_scale,  # one element, or one for each sample: a stride of 0 or 1
    scale,
    x_zero,
    bias,
    out_scale,
    out_zero,
    out,  # [batch, groups N, positions], contiguous
    M,
    N,
    K,
    strides,  # of x
    sizes,  # depth, height, width of x
    out_sizes,
    taps,
    steps,  # of the window from one position to the next
    padding,
    dilation,
    x_scale_stride,
    scale_stride,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    WIDE: tl.constexpr,  # whether offsets need 64 bits
):
    """Compute a tile of `burnt.kernels.scaled_conv`, of the group of channels `tl.program_id(1)`."""
    INDEX: tl.constexpr = tl.int64 if WIDE else tl.int32
    group = tl.program_id(1).to(INDEX)
    tile_m, tile_n, _ = tile_index(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP)
    m = tl.minimum((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(INDEX), M - 1)
    n = tl.minimum((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(INDEX), N - 1)
    in_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M) < M
    in_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N) < N
    positions = out_sizes[0] * out_sizes[1] * out_sizes[2]
    sample, position = m // positions, m % positions
    d = position // (out_sizes[1] * out_sizes[2]) * steps[0] - padding[0]
    h = position // out_sizes[2] % out_sizes[1] * steps[1] - padding[1]
    w = position % out_sizes[2] * steps[2] - padding[2]
    num_taps = taps[0] * taps[1] * taps[2]
    zero = tl.full([], 0, tl.int8)
    if x_zero is not None:
        zero = tl.load(x_zero)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    column_sums = tl.zeros([BLOCK_N], tl.int32)
    chunks = tl.cdiv(K, BLOCK_K)
    for turn in range(num_taps * chunks):
        tap, k = turn // chunks, turn % chunks * BLOCK_K + tl.arange(0, BLOCK_K)
        at_d = d + tap // (taps[1] * taps[2]) * dilation[0]
        at_h = h + tap // taps[2] % taps[1] * dilation[1]
        at_w = w + tap % taps[2] * dilation[2]
        is_inside = (at_d >= 0) & (at_d < sizes[0]) & (at_h >= 0) & (at_h < sizes[1])
        is_inside = is_inside & (at_w >= 0) & (at_w < sizes[2])
        place = sample * strides[0] + at_d * strides[2] + at_h * strides[3] + at_w * strides[4]
        channel = (group * K + k) * strides[1]
        x_MK = tl.load(
            x + place[:, None] + channel[None, :], mask=is_inside[:, None] & (k < K)[None, :], other=0
        )
        if x_zero is not None:
            x_MK = tl.where(is_inside[:, None], x_MK, zero)  # padding stands for the number 0
        w_KN = tl.load(
            values + ((group * N + n)[None, :] * K + k[:, None]) * num_taps + tap,
            mask=(k < K)[:, None] & in_n[None, :],
            other=0,
        )
        sums = tl.dot(x_MK, w_KN, sums, out_dtype=tl.int32)
        if x_zero is not None:
            column_sums += tl.sum(w_KN.to(tl.int32), 0)
    if x_zero is not None:
        sums -= zero.to(tl.int32) * column_sums[None, :]
    column = (group * N + n)[None, :]
    place = (sample * (tl.num_programs(1) * N))[:, None] * positions + column * positions + position[:, None]
    _store_scaled(
        sums, sample[:, None], column, in_m[:, None] & in_n[None, :], x_scale, scale, bias, out_scale,
        out_zero, out, place, x_scale_stride, scale_stride, ACTIVATION, "int8",
    )  # fmt: skip


def _extent(tensor: Tensor) -> int:
    """Return the offset of a tensor's last element."""
    return sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _options(config: MatmulConfig) -> dict[str, Any]:
    """Return Triton's compile options: products are rounded before they are added, as in the reference."""
    return {**config.options, "enable_fp_fusion": False}


def _tile_constants(call: LinearCall | ConvCall, config: MatmulConfig) -> dict[str, Any]:
    tile = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k}
    return {"ACTIVATION": call.activation, "GROUP": config.group} | tile


def _count_tiles(rows: int, columns: int, config: MatmulConfig) -> int:
    return int(triton.cdiv(rows, config.block_m) * triton.cdiv(columns, config.block_n))


def _scales_and_bias(call: LinearCall | ConvCall) -> tuple[list[Tensor], tuple[int, ...], Tensor | None]:
    """Return both scales, the strides from one to the next, and the bias."""
    scales = [call.x_scale.reshape(-1).contiguous(), call.scale.reshape(-1).contiguous()]
    strides = tuple(int(s.numel() > 1) for s in scales)
    return scales, strides, None if call.bias is None else call.bias.contiguous()


def _result_dtype(call: LinearCall | ConvCall) -> torch.dtype:
    return call.values.dtype if call.out_scale is not None else call.dtype or torch.float32


def linear_launches(
    call: LinearCall, config: MatmulConfig, *, float8: bool = False
) -> tuple[list[Launch], Tensor]:
    """Return the launches of `burnt.kernels.scaled_linear`, and the tensor ``[rows, columns]`` they write.

    On the meta device nothing is allocated. `float8`: tensor cores multiply float8 numbers.
    """
    x, values = (t if t.stride(1) == 1 else t.contiguous() for t in (call.x, call.values))
    (rows, terms), columns = x.shape, values.shape[0]
    out = x.new_empty(rows, columns, dtype=_result_dtype(call))
    sum_dtype = torch.int32 if call.value == "int8" else torch.float32
    target = x.new_empty(config.split, rows, columns, dtype=sum_dtype) if config.split > 1 else out
    scales, scale_strides, bias = _scales_and_bias(call)
    end = (bias, call.out_scale, call.out_zero_point)
    multiplies_float8 = float8 and call.value != "int8"
    if multiplies_float8:  # their type lets them go from memory to tensor cores without a detour
        x, values = (t.view(FLOAT8[call.value]) for t in (x, values))
    arguments: tuple[Any, ...] = (x, values, *scales, call.x_zero_point, *end, target)
    arguments += (rows, columns, terms, x.stride(0), values.stride(0), *scale_strides)
    constants = {"VALUE": call.value, "FLOAT8": multiplies_float8, "SPLIT": config.split}
    grid: tuple[int, ...] = (_count_tiles(rows, columns, config) * config.split,)
    constants |= _tile_constants(call, config)
    first = Launch(multiply, grid, arguments, constants, _options(config))
    if config.split == 1:
        return [first], out
    height, width = _PARTS_TILE
    arguments = (target, *scales, *end, out, rows, columns, *scale_strides)
    constants = {"VALUE": call.value, "ACTIVATION": call.activation, "SPLIT": config.split}
    constants |= {"BLOCK_M": height, "BLOCK_N": width}
    grid = triton.cdiv(rows, height), triton.cdiv(columns, width)
    return [first, Launch(add_parts, grid, arguments, constants, {"enable_fp_fusion": False})], out


def conv_launches(call: ConvCall, config: MatmulConfig) -> tuple[list[Launch], Tensor]:
    """Return the launches of `burnt.kernels.scaled_conv`, and the tensor that they write.

    On the meta device nothing is allocated.
    """
    x, values, groups = call.x, call.values.contiguous(), call.groups
    lead = (1,) * (5 - x.dim())
    sizes, taps = lead + tuple(x.shape[2:]), lead + tuple(values.shape[2:])
    stride, padding, dilation = call.sizes
    steps, around, spread = (*lead, *stride), (*(0 for _ in lead), *padding), (*lead, *dilation)
    out_sizes = tuple(
        (size + 2 * pad - step_of_tap * (tap - 1) - 1) // step + 1
        for size, pad, step_of_tap, tap, step in zip(sizes, around, spread, taps, steps, strict=True)
    )
    out = x.new_empty(x.shape[0], values.shape[0], *out_sizes[len(lead) :], dtype=_result_dtype(call))
    scales, scale_strides, bias = _scales_and_bias(call)
    strides = (*x.stride()[:2], *(0 for _ in lead), *x.stride()[2:])
    rows, columns = x.shape[0] * math.prod(out_sizes), values.shape[0] // groups
    end = (bias, call.out_scale, call.out_zero_point)
    arguments: tuple[Any, ...] = (x, values, *scales, call.x_zero_point, *end, out)
    arguments += (rows, columns, values.shape[1], strides, sizes, out_sizes, taps, steps, around, spread)
    arguments += scale_strides
    constants = _tile_constants(call, config)
    constants["WIDE"] = max(map(_extent, (x, values, out))) > INT32_INDEX_LIMIT
    grid = _count_tiles(rows, columns, config), groups
    return [Launch(multiply_windows, grid, arguments, constants, _options(config))], out


def scaled_linear_triton(call: LinearCall, config: MatmulConfig, *, float8: bool = False) -> Tensor:
    """Compute `burnt.kernels.scaled_linear`; nothing may be empty."""
    rows = call._replace(x=call.x.reshape(-1, call.x.shape[-1]))
    launches, out = linear_launches(rows, config, float8=float8)
    run_all(launches, out)
    return out.view(*call.x.shape[:-1], out.shape[1])


def scaled_conv_triton(call: ConvCall, config: MatmulConfig) -> Tensor:
    """Compute `burnt.kernels.scaled_conv`; nothing may be empty."""
    launches, out = conv_launches(call, config)
    run_all(launches, out)
    return out
