"""Conversions between dtypes as ONNX defines them, those to strings and to 8, 4 and 2 bits included."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    ``up``, ``down`` or ``nearest``; `device` is that of the result where `x` is an array.

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
    """Return the bits of a tensor as those of another dtype of the same size."""
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
