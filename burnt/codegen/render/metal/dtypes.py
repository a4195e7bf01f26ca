"""The Metal types of dtypes, in registers and in memory, and Metal constants."""

from __future__ import annotations

import math

import torch

from burnt.codegen.ir.expr import extreme
from burnt.codegen.render.metal import prelude

METAL_TYPES = {
    torch.float32: "float", torch.bfloat16: "float", torch.float16: "float", torch.int8: "char",
    torch.int16: "short", torch.int32: "int", torch.int64: "long", torch.uint8: "uchar",
    torch.uint16: "ushort", torch.uint32: "uint", torch.uint64: "ulong", torch.bool: "bool",
}  # fmt: skip
MEMORY_TYPES = {**METAL_TYPES, torch.bfloat16: "bfloat", torch.float16: "half"}
SIXTEEN_BIT_FLOATS = (torch.bfloat16, torch.float16)


def constant(value: float, dtype: torch.dtype) -> str:
    """Return a number of a dtype as a Metal constant.

    >>> constant(1, torch.float32), constant(2, torch.int64), constant(-1.5, torch.bfloat16)
    ('1.0f', '2L', '(-1.5f)')
    """
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        if value == -(2**63):
            return "(-9223372036854775807L - 1)"
        if dtype == torch.uint64:
            return f"{int(value)}UL"
        return f"{int(value)}L" if dtype == torch.int64 else f"{METAL_TYPES[dtype]}({int(value)})"
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = f"{prelude.decimal(value)}f"
    return f"({text})" if text.startswith("-") else text


def lowest(dtype: torch.dtype) -> str:
    """Return the lowest value of a dtype as a constant, minus infinity for floats."""
    return constant(extreme(dtype, lowest=True), dtype)


def highest(dtype: torch.dtype) -> str:
    """Return the highest value of a dtype as a constant, infinity for floats."""
    return constant(extreme(dtype, lowest=False), dtype)
