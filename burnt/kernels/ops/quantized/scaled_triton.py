"""`scaled_linear` and `scaled_conv` in Triton: products of 8-bit values, scaled and quantized where they end.

Products of integers are added in int32, those of float8 numbers in float32: by tensor cores where they have
float8, else as float16, which holds all float8 numbers. The epilogue repeats the reference's operations one
by one, so that integer results are the same. A convolution is a product whose left operand is gathered
through windows: M are its positions, N its output channels, K the channels of each tap, tap by tap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt import _torch
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.kernels.interface.derived import derive
from burnt.kernels.interface.launch import Launch
from burnt.kernels.ops.matmul_triton import matmul_launches
from burnt.kernels.ops.quantized.quantize import FLOAT8
from burnt.kernels.ops.quantized.scaled import ConvCall, LinearCall, sum_rows
from burnt.kernels.ops.quantized.values_triton import activate, decode_float16, requantize


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _store_scaled(sums, row, column, in_row, in_column, batch, args, SETTINGS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scale sums, add the bias, apply the activation, quantize, and store them.

    Rows are the positions of all samples; the result is ``[samples, channels, positions]``.
    """
    VALUE: tl.constexpr = SETTINGS[0]  # Triton 3.6 passes elements of a tuple on as values
    ACTIVATION: tl.constexpr = SETTINGS[1]
    result_args, scales, quantization, _ = args
    out, columns, channels, positions = result_args
    x_scale, x_scale_stride, scale, scale_stride = scales
    x_zero, column_sums, bias, out_scale, out_zero = quantization
    sample, position = row // positions, row % positions
    column += batch * columns
    if x_zero is not None:
        sums -= tl.load(x_zero).to(tl.int32) * tl.load(column_sums + column, mask=in_column, other=0)
    row_scale = tl.load(x_scale + sample * x_scale_stride, mask=in_row, other=0.0).to(tl.float32)
    column_scale = tl.load(scale + column * scale_stride, mask=in_column, other=0.0).to(tl.float32)
    result = sums.to(tl.float32) * row_scale * column_scale
    if bias is not None:
        result += tl.load(bias + column, mask=in_column, other=0.0).to(tl.float32)
    result = activate(result, ACTIVATION)
    if out_scale is not None:
        zero = 0.0
        if out_zero is not None:
            zero = tl.load(out_zero).to(tl.float32)
        result = requantize(result, tl.load(out_scale).to(tl.float32), zero, VALUE)
    place = (sample * channels + column) * positions + position
    tl.store(out + place, result.to(out.dtype.element_ty), mask=in_row & in_column)


@triton.jit  # type: ignore[untyped-decorator]
def _load_values(values, row, stride, term, in_tile, SETTINGS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of 8-bit values, of rows that are contiguous; as float16 where there are no float8 units."""
    VALUE: tl.constexpr = SETTINGS[0]
    tile = tl.load(values + row * stride + term, mask=in_tile, other=0.0)
    if SETTINGS[2]:
        tile = decode_float16(tile, VALUE)
    return tile


@triton.jit  # type: ignore[untyped-decorator]
def _load_x(row, term, batch, args, SETTINGS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    x, _, rows, _, terms, stride, _ = args[3]
    m, k = (row + tl.arange(0, ROWS))[:, None], (term + tl.arange(0, COLUMNS))[None, :]
    return _load_values(x, m, stride, k, (m < rows) & (k < terms), SETTINGS)


@triton.jit  # type: ignore[untyped-decorator]
def _load_weight(  # type: ignore[no-untyped-def]
    term, column, batch, args, SETTINGS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    _, values, _, columns, terms, _, stride = args[3]
    k, n = (term + tl.arange(0, ROWS))[:, None], (column + tl.arange(0, COLUMNS))[None, :]
    return _load_values(values, n, stride, k, (k < terms) & (n < columns), SETTINGS)


@triton.jit  # type: ignore[untyped-decorator]
def _load_windows(row, term, batch, args, SETTINGS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    operands, strides, sizes, out_sizes, taps, steps, padding, dilation = args[3]
    x, _, x_zero, rows, _, channels, chunks = operands
    m = row + tl.arange(0, ROWS)
    positions = out_sizes[0] * out_sizes[1] * out_sizes[2]
    sample, position = m // positions, m % positions
    tap, k = term // COLUMNS // chunks, term // COLUMNS % chunks * COLUMNS + tl.arange(0, COLUMNS)
    d = position // (out_sizes[1] * out_sizes[2]) * steps[0] - padding[0]
    h = position // out_sizes[2] % out_sizes[1] * steps[1] - padding[1]
    w = position % out_sizes[2] * steps[2] - padding[2]
    d += tap // (taps[1] * taps[2]) * dilation[0]
    h += tap // taps[2] % taps[1] * dilation[1]
    w += tap % taps[2] * dilation[2]
    is_inside = (m < rows) & (d >= 0) & (d < sizes[0]) & (h >= 0) & (h < sizes[1]) & (w >= 0) & (w < sizes[2])
    place = sample * strides[0] + d * strides[2] + h * strides[3] + w * strides[4]
    channel = (batch * channels + k) * strides[1]
    in_tile = is_inside[:, None] & (k < channels)[None, :]
    tile = tl.load(x + place[:, None] + channel[None, :], mask=in_tile, other=0)
    if x_zero is not None:
        tile = tl.where(is_inside[:, None], tile, tl.load(x_zero))  # padding stands for the number 0
    return tile


@triton.jit  # type: ignore[untyped-decorator]
def _load_kernel(  # type: ignore[no-untyped-def]
    term, column, batch, args, SETTINGS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    operands, _, _, _, taps, _, _, _ = args[3]
    _, values, _, _, columns, channels, chunks = operands
    tap, k = term // ROWS // chunks, (term // ROWS % chunks * ROWS + tl.arange(0, ROWS))[:, None]
    n = (column + tl.arange(0, COLUMNS))[None, :]
    place = ((batch * columns + n) * (taps[0] * taps[1] * taps[2]) + tap) * channels + k
    return tl.load(values + place, mask=(k < channels) & (n < columns), other=0)


def _derived(values: Tensor, name: str, compute: Callable[[], Tensor]) -> Tensor:
    """Return what is computed from a weight, cached where its changes can be seen."""
    is_known = values.is_cuda and not (values.is_inference() or torch.cuda.is_current_stream_capturing())
    return derive(values, name, _torch.state_of(values), compute) if is_known else compute()


def _launches(
    call: LinearCall | ConvCall,
    config: MatmulConfig,
    shape: tuple[int, ...],
    positions: int,
    operands: tuple[Any, ...],
    sizes: tuple[int, int, int, int],
    loads: tuple[Any, Any],
    precision: str,
) -> tuple[list[Launch], Tensor]:
    """Return the launches of a product, and the result of this shape that they write.

    `positions` are those of a sample, 1 of a linear map.
    """
    dtype = call.values.dtype if call.out_scale is not None else call.dtype or torch.float32
    out = call.x.new_empty(shape, dtype=dtype)
    scales: list[Any] = []
    for scale in (call.x_scale, call.scale):
        scales += [scale.reshape(-1).contiguous(), int(scale.numel() > 1)]
    values, sums = call.values.flatten(1), None
    if call.x_zero_point is not None:
        sums = _derived(call.values, "row sums", lambda: sum_rows(values, None, torch.int32))
    bias = None if call.bias is None else call.bias.contiguous()
    result = (out, sizes[2], call.values.shape[0], positions)
    args = (
        result,
        tuple(scales),
        (call.x_zero_point, sums, bias, call.out_scale, call.out_zero_point),
        operands,
    )
    settings = call.value, call.activation, precision == "ieee"
    # Products are rounded before they are added, as in the reference.
    options = {"enable_fp_fusion": False}
    return matmul_launches(args, out, sizes, config, *loads, _store_scaled, settings, precision, options), out


def linear_launches(
    call: LinearCall, config: MatmulConfig, *, float8: bool = False
) -> tuple[list[Launch], Tensor]:
    """Return the launches of `burnt.kernels.scaled_linear`, and the result that they write.

    On the meta device nothing is allocated. `float8`: tensor cores multiply float8 numbers.
    """
    rows_of_x = call.x.reshape(-1, call.x.shape[-1])
    x, values = (t if t.stride(1) == 1 else t.contiguous() for t in (rows_of_x, call.values))
    (rows, terms), columns = x.shape, values.shape[0]
    precision = "int8" if call.value == "int8" else "float8" if float8 else "ieee"
    if precision == "float8":  # their type lets them go from memory to tensor cores without a detour
        x, values = (t.view(FLOAT8[call.value]) for t in (x, values))
    operands = x, values, rows, columns, terms, x.stride(0), values.stride(0)
    sizes, loads = (1, rows, columns, terms), (_load_x, _load_weight)
    return _launches(call, config, (*call.x.shape[:-1], columns), 1, operands, sizes, loads, precision)


def conv_launches(call: ConvCall, config: MatmulConfig) -> tuple[list[Launch], Tensor]:
    """Return the launches of `burnt.kernels.scaled_conv`, and the tensor that they write.

    On the meta device nothing is allocated.
    """
    x, values, groups = call.x, call.values, call.groups
    lead = (1,) * (5 - x.dim())
    image, taps = lead + tuple(x.shape[2:]), lead + tuple(values.shape[2:])
    stride, padding, dilation = call.sizes
    steps, around, spread = (*lead, *stride), (*(0 for _ in lead), *padding), (*lead, *dilation)
    out_image = tuple(
        (size + 2 * pad - step_of_tap * (tap - 1) - 1) // step + 1
        for size, pad, step_of_tap, tap, step in zip(image, around, spread, taps, steps, strict=True)
    )
    strides = (*x.stride()[:2], *(0 for _ in lead), *x.stride()[2:])
    rows, columns, channels = x.shape[0] * math.prod(out_image), values.shape[0] // groups, values.shape[1]
    chunks = triton.cdiv(channels, config.block_k)
    by_tap = _derived(values, "channels last", lambda: values.flatten(2).mT.contiguous())
    tensors = x, by_tap, call.x_zero_point, rows, columns, channels, chunks
    operands = tensors, strides, image, out_image, taps, steps, around, spread
    sizes = groups, rows, columns, math.prod(taps) * chunks * config.block_k
    loads = _load_windows, _load_kernel
    shape = x.shape[0], values.shape[0], *out_image[len(lead) :]
    return _launches(call, config, shape, math.prod(out_image), operands, sizes, loads, "int8")
