"""The C types of dtypes, in variables and in memory, and C constants."""

from __future__ import annotations

import math

import torch

from burnt.codegen.ir.expr import extreme

C_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.bfloat16: "float", torch.float16: "float",
    torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
    torch.uint8: "uint8_t", torch.uint16: "uint16_t", torch.uint32: "uint32_t", torch.uint64: "uint64_t",
    torch.bool: "int",
}  # fmt: skip
MEMORY_TYPES = {**C_TYPES, torch.bfloat16: "uint16_t", torch.float16: "uint16_t", torch.bool: "uint8_t"}
SIXTEEN_BIT_FLOATS = {torch.bfloat16: "bf16", torch.float16: "f16"}


def constant(value: float, dtype: torch.dtype) -> str:
    """Return a number of a dtype as a C constant."""
    if not dtype.is_floating_point:
        if dtype == torch.bool:
            return str(int(bool(value)))
        suffix = "LL" if dtype.is_signed else "ULL"
        return "INT64_MIN" if value == -(2**63) else f"(({C_TYPES[dtype]}){int(value)}{suffix})"
    if math.isnan(value):
        return '__builtin_nanf("")'
    if math.isinf(value):
        return "__builtin_inff()" if value > 0 else "(-__builtin_inff())"
    if dtype == torch.float64:
        return f"({float(value).hex()})"
    # Rounded to float here: with a double constant, the compiler would compute in double.
    return f"({float(torch.tensor(value, dtype=torch.float32)).hex()}f)"


def lowest(dtype: torch.dtype) -> str:
    """Return the lowest value of a dtype as a constant, minus infinity for floats."""
    return constant(extreme(dtype, lowest=True), dtype)


def highest(dtype: torch.dtype) -> str:
    """Return the highest value of a dtype as a constant, infinity for floats."""
    return constant(extreme(dtype, lowest=False), dtype)
