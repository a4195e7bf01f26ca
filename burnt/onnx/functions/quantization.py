"""Functions of quantized values, with ONNX's roundings and types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnt.onnx.functions.casts import cast
from burnt.onnx.functions.windows import conv


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
    `dtype`, None for that of `scale`. With `saturate` values are clamped to the largest one of float8.
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
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    weight_zero: Tensor | None = None,
    *window: Any,
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
