"""Quantized values by numpy and ml_dtypes, independent of `burnt.kernels`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {
    "int8": np.int8,
    "int4": ml_dtypes.int4,
    "int2": ml_dtypes.int2,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float4_e2m1": ml_dtypes.float4_e2m1fn,
}
BITS = {"int8": 8, "int4": 4, "int2": 2, "float8_e4m3": 8, "float8_e5m2": 8, "float4_e2m1": 4}
LARGEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0, "float4_e2m1": 6.0}


def quantize(
    x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None, value: str, narrow: bool = False
) -> np.ndarray:
    """Return the codes, one for each element, in ml_dtypes' dtype; scales are as large as x."""
    with np.errstate(all="ignore"):
        scaled = np.where(scale == 0, np.float32(0), x / np.where(scale == 0, np.float32(1), scale))
    if value in LARGEST:
        clipped = np.clip(scaled, -LARGEST[value], LARGEST[value])
        if value == "float4_e2m1":  # has no NaN; a negative zero becomes zero
            clipped = np.where(np.isnan(clipped) | (clipped == 0), np.float32(0), clipped)
        return clipped.astype(DTYPES[value])
    codes = np.rint(scaled) + (0 if zero_point is None else zero_point.astype(np.float32))
    most = 2 ** (BITS[value] - 1) - 1
    codes = np.clip(np.where(np.isnan(codes), np.float32(0), codes), -most - (not narrow), most)
    return codes.astype(np.int8).astype(DTYPES[value])


def dequantize(codes: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None) -> np.ndarray:
    """Return the numbers that codes stand for, in float32."""
    with np.errstate(all="ignore"):
        zero = 0 if zero_point is None else zero_point.astype(np.float32)
        return np.asarray((codes.astype(np.float32) - zero) * scale, np.float32)


def pack(codes: np.ndarray, value: str) -> np.ndarray:
    """Return the bytes of codes ``[rows, columns]``: the first one in the lowest bits."""
    count, bits = 8 // BITS[value], BITS[value]
    # ml_dtypes keeps a small value in the lowest bits of a byte.
    raw = np.ascontiguousarray(codes).view(np.uint8).astype(np.uint32) & (2**bits - 1)
    parts = raw.reshape(*raw.shape[:-1], raw.shape[-1] // count, count)
    return np.asarray((parts << (bits * np.arange(count))).sum(-1), np.uint8)
