"""How quantized values lie in memory: packing integers and small floats into bytes, and decoding them.

A matrix of values has the shape ``[rows, columns]``. int8 values are an int8 tensor of that shape; all others
are uint8 tensors, so that ``module.half()`` and ``module.to(dtype)`` leave them alone: float8 values by their
bits, smaller values two or four to a byte, the first one in the lowest bits (as in ONNX and in
compressed-tensors). Small integers are in two's complement.
"""

from __future__ import annotations

import types

import torch
from torch import Tensor

from burnt.errors import InputRuntimeError, InputValueError
from burnt.scheme import VALUES, ValueType

FLOAT8 = types.MappingProxyType({"float8_e4m3": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2})
"""torch's dtypes of the float8 values."""


def value_type(op: str, value: str) -> ValueType:
    """Return the type of values by its name; raise an `InputValueError` if there is none."""
    if value not in VALUES:
        raise InputValueError(
            f"{op} does not know this type of quantized values",
            where=f"burnt.kernels.{op}",
            expected=", ".join(VALUES),
            found=repr(value),
        )
    return VALUES[value]


def check_values(op: str, values: Tensor, value: str) -> None:
    """Check that packed values have the dtype of their kind."""
    expected = torch.int8 if value_type(op, value).name == "int8" else torch.uint8
    if values.dtype != expected:
        raise InputRuntimeError(
            f"the values of {op} have the wrong dtype",
            where=f"burnt.kernels.{op}",
            expected=f"{expected} for {value}",
            found=values.dtype,
        )


def pack(codes: Tensor, value: str) -> Tensor:
    """Pack codes ``[rows, columns]``, int8, into bytes: int8 stays, others become uint8 ``[rows, bytes]``.

    Columns must be a multiple of the values per byte.
    """
    kind = VALUES[value]
    if value == "int8":
        return codes
    unsigned = codes.to(torch.uint8) if kind.bits == 8 else (codes & ((1 << kind.bits) - 1)).to(torch.uint8)
    if kind.per_byte == 1:
        return unsigned
    columns = codes.shape[-1] // kind.per_byte
    parts = unsigned.reshape(*codes.shape[:-1], columns, kind.per_byte).unbind(-1)
    packed: Tensor = parts[0]
    for i, part in enumerate(parts[1:], 1):
        packed = packed | (part << (i * kind.bits))
    return packed


def unpack(values: Tensor, value: str) -> Tensor:
    """Return the codes in packed values: int8, or uint8 for floats, ``[rows, columns]``."""
    kind = VALUES[value]
    if kind.per_byte == 1:
        return values
    mask, sign = (1 << kind.bits) - 1, 1 << (kind.bits - 1)
    shifts = torch.arange(0, 8, kind.bits, dtype=torch.uint8, device=values.device)
    codes = ((values.unsqueeze(-1) >> shifts) & mask).flatten(-2)
    return codes if kind.is_float else (codes.to(torch.int8) ^ sign) - sign


def decode(values: Tensor, value: str, dtype: torch.dtype) -> Tensor:
    """Return what packed values stand for, without scale and zero point, in a floating-point dtype."""
    if value in FLOAT8:
        return values.view(FLOAT8[value]).to(dtype)
    codes = unpack(values, value)
    if value != "float4_e2m1":
        return codes.to(dtype)
    code = (codes & 7).to(dtype)  # 0, 0.5, 1, 1.5, 2, 3, 4, 6
    size = torch.where(code < 4, code * 0.5, torch.where(code < 6, code - 2, code * 2 - 8))
    return torch.where(codes >= 8, -size, size)


def encode(x: Tensor, value: str, zero_point: Tensor | None, smallest: float) -> Tensor:
    """Round numbers ``[rows, columns]``, which were divided by their scale, to values, and pack them.

    Ties are rounded to even, numbers out of range become the largest or `smallest` value. NaN becomes NaN in
    float8 and 0 elsewhere.
    """
    kind = VALUES[value]
    if kind.bits == 8 and kind.is_float:
        clipped = torch.clamp(x, kind.smallest, kind.largest)
        return clipped.to(FLOAT8[value]).view(torch.uint8)
    if not kind.is_float:
        codes = torch.round(x) if zero_point is None else torch.round(x) + zero_point.to(x.dtype)
        codes = torch.clamp(codes, smallest, kind.largest)
        return pack(torch.where(codes.isnan(), 0, codes).to(torch.int8), value)
    size = x.abs()
    # A tie goes to the even code: up at 0.75, 1.75 and 3.5, down at the others.
    codes = (size > 0.25).to(torch.int8) + (size >= 0.75).to(torch.int8) + (size > 1.25).to(torch.int8)
    codes = codes + (size >= 1.75).to(torch.int8) + (size > 2.5).to(torch.int8)
    codes = codes + (size >= 3.5).to(torch.int8) + (size > 5).to(torch.int8)
    return pack(codes + (x < 0).to(torch.int8) * 8, value)


def expand_scale(scale: Tensor, block: int, columns: int) -> Tensor:
    """Return scales (or zero points) ``[rows or 1, blocks or 1]`` as they multiply ``[rows, columns]``."""
    if not block or scale.shape[-1] == 1:
        return scale
    return scale.repeat_interleave(block, -1)[..., :columns]
