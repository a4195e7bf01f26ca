"""Functions of quantized values and casts, with ONNX's roundings and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.onnx.functions.windows import conv

# Bits and whether signed; the values are kept in int8 and uint8.
_SMALL_INTEGERS = {"int4": (4, True), "uint4": (4, False), "int2": (2, True), "uint2": (2, False)}
_FLOAT4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


def cast(
    x: Any,
    dtype: torch.dtype | str,
    saturate: bool = True,
    round_mode: str = "up",
    device: torch.device | None = None,
) -> Any:
    """Convert a tensor, or an array of strings, to another type of elements.

    The types ``"string"``, ``"int4"``, ``"uint4"``, ``"int2"``, ``"uint2"`` and ``"float4"`` are not torch's;
    the last five are kept in int8, uint8 and float32. With `saturate` what is out of the range of an 8-bit
    float becomes its largest value, else NaN or infinity. The `round_mode` of ``torch.float8_e8m0fnu`` is
    ``up``, ``down`` or ``nearest``; `device` is the result's device where `x` is an array.

    >>> cast(torch.tensor([1e6, 3.3]), torch.float8_e4m3fn).float()
    tensor([448.0000,   3.2500])
    >>> cast(torch.tensor([17, -9]), "int4")
    tensor([1, 7], dtype=torch.int8)
    """
    if isinstance(x, np.ndarray):  # strings
        if dtype == "string":
            return x
        return cast(_parse(x, dtype).to(device), dtype, saturate, round_mode)
    if dtype == "string":
        return _format(x)
    if x.dtype.is_floating_point and x.dtype.itemsize == 1:
        if x.dtype == dtype:
            return x
        x = x.float()
    if isinstance(dtype, str):
        return _to_float4(x) if dtype == "float4" else _wrap(x, *_SMALL_INTEGERS[dtype])
    if dtype in _FLOAT8:
        return _to_float8(x.float(), dtype, saturate)
    if dtype == torch.float8_e8m0fnu:
        return _to_e8m0(x.float(), saturate, round_mode)
    if x.dtype.is_floating_point and dtype in (torch.uint16, torch.uint32, torch.uint64):
        return x.to(torch.int64).to(dtype)
    return x.to(dtype)


def cast_like(x: Any, other: Any, saturate: bool = True) -> Any:
    """Convert to the type of elements of another tensor, or of an array of strings."""
    return cast(x, other.dtype if isinstance(other, Tensor) else "string", saturate)


def bitcast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bits of a tensor as numbers of another dtype of the same size."""
    return x.contiguous().view(dtype)


def _parse(x: np.ndarray[Any, Any], dtype: torch.dtype | str) -> Tensor:
    if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
        if dtype == torch.bool:
            return torch.from_numpy(np.vectorize(bool, otypes=[np.bool_])(x))
        kind = np.uint64 if dtype == torch.uint64 else np.int64
        return torch.from_numpy(np.vectorize(int, otypes=[kind])(x))
    return torch.from_numpy(np.vectorize(float, otypes=[np.float64])(x))


def _format(x: Tensor) -> np.ndarray[Any, Any]:
    if x.dtype in (torch.bfloat16, *_FLOAT8):
        x = x.float()
    return x.numpy(force=True).astype(np.str_).astype(object)


def _wrap(x: Tensor, bits: int, signed: bool) -> Tensor:
    """Keep the lowest bits."""
    low: Tensor = x.to(torch.int64) & (2**bits - 1)
    if signed:
        return torch.where(low >= 2 ** (bits - 1), low - 2**bits, low).to(torch.int8)
    unsigned: Tensor = low.to(torch.uint8)
    return unsigned


def _to_float4(x: Tensor) -> Tensor:
    """Round to the nearest of the 4-bit numbers, ties to the even code; NaN becomes -0, as in ml_dtypes."""
    values = _FLOAT4.to(x.device)
    size = x.float().abs()
    above = torch.bucketize(size, (values[1:] + values[:-1]) / 2, right=False)  # ties go down ...
    is_tie = (size == (values[1:] + values[:-1])[above.clamp(max=6)] / 2) & (above < 7)
    nearest = above + (is_tie & (above % 2 == 1)).to(above.dtype)  # ... unless the code above is the even one
    result = torch.copysign(values[nearest], x.float())
    return torch.where(x.isnan(), torch.full_like(result, -0.0), result)


def _to_float8(x: Tensor, dtype: torch.dtype, saturate: bool) -> Tensor:
    most = torch.finfo(dtype).max
    if saturate:
        return x.clamp(-most, most).to(dtype)  # NaN stays
    converted: Tensor = x.to(dtype)
    if dtype == torch.float8_e5m2:
        return converted
    # torch saturates where it has no infinity to give; ONNX has NaN there.
    limit = most + torch.finfo(dtype).eps * 2.0 ** np.floor(np.log2(most)) / 2
    return torch.where(x.abs() > limit, torch.full_like(x, torch.nan), converted.float()).to(dtype)


def _to_e8m0(x: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """Powers of two from 2^-127 to 2^127; of a negative number or zero the smallest."""
    mantissa, exponent = torch.frexp(x.abs())  # x = mantissa * 2^exponent, mantissa in [0.5, 1)
    power = exponent - 1
    if round_mode == "up":
        power = power + (mantissa > 0.5).to(power.dtype)
    elif round_mode == "nearest":
        power = power + (mantissa >= 0.75).to(power.dtype)
    code = torch.where(x == 0, torch.zeros_like(power), power + 127)
    code = torch.where(x.isinf(), torch.full_like(code, 255), code)
    if saturate:
        code = code.clamp(0, 254)
    code = torch.where(x.isnan() | (code < 0) | (code > 254), torch.full_like(code, 255), code)
    return code.to(torch.uint8).view(torch.float8_e8m0fnu)


def _range(kind: str) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type, such as uint4."""
    bits = int(kind.lstrip("uint"))
    return (0, 2**bits - 1) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _spread(scale: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Return scales in a shape that broadcasts to `x`: one, one per index of an axis, or one per block."""
    if scale.numel() == 1 and scale.dim() <= 1 and not block:
        return scale.reshape(())
    axis %= x.dim()
    if block:
        return scale.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return scale.reshape([-1 if i == axis else 1 for i in range(x.dim())])


def quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    kind: str = "uint8",
    axis: int = 1,
    block: int = 0,
    dtype: torch.dtype | None = None,
    saturate: bool = True,
) -> Tensor:
    """Divide by scales, round to the nearest even integer, add zero points, and clamp.

    There is one scale, one per index of `axis`, or one per `block` of it; zero points have its shape. `kind`
    is the type of the result: int8, uint4, float8_e4m3fn ...; 4 and 2 bits are not packed. The division is in
    `dtype`, None for the dtype of `scale`. With `saturate` values are clamped to the largest one of float8.
    """
    dtype = dtype or (scale.dtype if scale.dtype in (torch.float32, torch.float64) else torch.float32)
    if dtype == torch.float8_e8m0fnu:
        dtype = torch.float32
    ratio = x.to(dtype) / _spread(scale.to(dtype), x, axis, block)
    if kind.startswith("float"):
        wanted = "float4" if kind == "float4_e2m1fn" else getattr(torch, kind)
        return cast(ratio, wanted, saturate)  # type: ignore[no-any-return]
    low, high = _range(kind)
    rounded = torch.round(ratio)
    if zero_point is not None:
        rounded = rounded + _spread(zero_point.to(dtype), x, axis, block)
    stored = {"int2": "int8", "uint2": "uint8", "int4": "int8", "uint4": "uint8"}.get(kind, kind)
    return torch.clamp(rounded, low, high).to(getattr(torch, stored))


def dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    axis: int = 1,
    block: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Subtract zero points and multiply by scales, see `quantize_linear`; in float32 or float64 inside."""
    wide = torch.float64 if x.dtype == torch.int32 or scale.dtype == torch.float64 else torch.float32
    values = x.to(wide)
    if zero_point is not None:
        values = values - _spread(zero_point.to(wide), x, axis, block)
    return (values * _spread(scale.to(wide), x, axis, block)).to(dtype or scale.dtype)


def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize to uint8 with the scale and zero point of the tensor's own range."""
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero_point = torch.round(-low / scale).clamp(0, 255)
    values = (torch.round(x / scale) + zero_point).clamp(0, 255).to(torch.uint8)
    return values, scale, zero_point.to(torch.uint8)


def _minus(x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    """Return ``x - zero_point`` in float64, exact for integers."""
    if zero_point is None:
        return x.double()
    if zero_point.dim() <= 1 and x.dim() >= 2:
        zero_point = _spread(zero_point, x, axis, 0)
    return x.double() - zero_point.double()


def conv_integer(
    x: Tensor, weight: Tensor, x_zero: Tensor | None = None, weight_zero: Tensor | None = None, *window: Any
) -> Tensor:
    """Convolve 8-bit values less their zero points, into int32; `window` is as for `conv`, after the bias."""
    values, kernel = _minus(x, x_zero, 1), _minus(weight, weight_zero, 0)
    return conv(values, kernel, None, *window).to(torch.int32)


def _requantize(total: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    if zero_point.dtype.is_floating_point:
        return cast((total * scale).float(), zero_point.dtype)  # type: ignore[no-any-return]
    low, high = _range(str(zero_point.dtype).removeprefix("torch."))
    return (torch.round(total * scale) + zero_point.double()).clamp(low, high).to(zero_point.dtype)


def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    """Multiply quantized matrices into a quantized matrix."""
    total = torch.matmul(_minus(a, a_zero, -2), _minus(b, b_zero, -1))
    a_factor, b_factor = a_scale.double(), b_scale.double()
    if a_factor.dim() == 1 and a_factor.numel() > 1:
        a_factor = a_factor[:, None]
    return _requantize(total, a_factor * b_factor / y_scale.double(), y_zero)


def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
    *window: Any,
) -> Tensor:
    """Convolve quantized values into quantized values; `bias` is int32 in units of both scales."""
    values, kernel = _minus(x, x_zero, 1), _minus(weight, weight_zero, 0)
    total = conv(values, kernel, None if bias is None else bias.double(), *window)
    factor = (x_scale.double() * weight_scale.double() / y_scale.double()).reshape(-1, *[1] * (x.dim() - 2))
    return _requantize(total, factor, y_zero)
