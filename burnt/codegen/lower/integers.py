"""Lowerings that differ for integers: division with a check of the divisor, powers, shifts.

Integers wrap around as in torch. No division is made by 0 or -1, on which processors trap.
"""

from __future__ import annotations

from typing import Any

import torch

from burnt.codegen.ir import Check, Expr, Index, Value, checked_value
from burnt.codegen.lower.registry import (
    Scalar,
    Unlowered,
    const,
    operand,
    overloads,
    pointwise,
    register_lowering,
)

aten = torch.ops.aten


def divide(meta: torch.Tensor, kind: str, op: str, a: Any, b: Any) -> Value:
    """Divide integers of `meta`'s dtype.

    Args:
        meta: a meta tensor of the result's shape and dtype.
        kind: ``trunc_div``, ``floor_div``, ``fmod`` (sign of `a`) or ``remainder`` (sign of `b`).
        op: the aten op's name, for the error about a zero divisor.
        a: a Value or a number.
        b: a Value or a number.
    """
    dtype, shape = meta.dtype, tuple(meta.shape)
    if dtype == torch.bool:
        raise Unlowered
    numerator, denominator = operand(a, shape, dtype), operand(b, shape, dtype)
    zero, one, check = const(0, dtype), const(1, dtype), Check(op)

    def binary(name: str, x: Expr, y: Expr) -> Expr:
        return Expr.make(name, (x, y), torch.bool if name in ("eq", "ne", "lt") else x.dtype)

    def where(condition: Expr, yes: Expr, no: Expr) -> Expr:
        return Expr.make("where", (condition, yes, no), yes.dtype)

    def at(index: Index) -> Expr:
        x, y = numerator(index), denominator(index)
        if y.op == "const" and y.extra[0] not in (0, -1):
            divisor, is_minus_one = y, None
        else:
            reported = const(0, torch.int64)
            divisor = checked_value(check, binary("ne", y, zero), y, one, reported)
            is_minus_one = binary("eq", divisor, const(-1, dtype)) if dtype.is_signed else None
            if is_minus_one is not None:
                divisor = where(is_minus_one, one, divisor)
        quotient = binary("trunc_div", x, divisor)
        remainder = binary("sub", x, binary("mul", quotient, divisor))
        if kind in ("floor_div", "remainder") and dtype.is_signed:
            is_negative = binary("lt", divisor, zero)
            needs_floor = binary(
                "and", binary("ne", remainder, zero), binary("ne", binary("lt", remainder, zero), is_negative)
            )
            quotient = where(needs_floor, binary("sub", quotient, one), quotient)
            remainder = where(needs_floor, binary("add", remainder, divisor), remainder)
        if kind in ("fmod", "remainder"):
            return remainder  # a divisor of -1 was replaced by 1: the remainder is 0 for both
        return (
            quotient if is_minus_one is None else where(is_minus_one, binary("sub", zero, quotient), quotient)
        )

    return Value(shape, dtype, at)


@register_lowering(*overloads("floor_divide", "default", "Scalar"))
def _lower_floor_divide(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if meta.dtype.is_floating_point:
        return pointwise("floor_div", meta, [a, b], meta.dtype)
    return divide(meta, "floor_div", "floor_divide", a, b)


@register_lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _lower_div_mode(meta: torch.Tensor, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return pointwise("div", meta, [a, b], meta.dtype)
    if meta.dtype.is_floating_point:
        return pointwise(f"{rounding_mode}_div", meta, [a, b], meta.dtype)
    return divide(meta, f"{rounding_mode}_div", "div", a, b)


@register_lowering(*overloads("remainder", "Tensor", "Scalar", "Scalar_Tensor"))
def _lower_remainder(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if meta.dtype.is_floating_point:
        return pointwise("remainder", meta, [a, b], meta.dtype)
    return divide(meta, "remainder", "remainder", a, b)


@register_lowering(aten.fmod.Tensor, aten.fmod.Scalar)
def _lower_fmod(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if meta.dtype.is_floating_point:
        return pointwise("fmod", meta, [a, b], meta.dtype)
    return divide(meta, "fmod", "fmod", a, b)


# --- powers ------------------------------------------------------------------------------------------------


@register_lowering(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _lower_pow(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if not meta.dtype.is_floating_point:
        return _lower_integer_pow(meta, a, b)
    if isinstance(b, int | float) and isinstance(a, Value):
        # The exponents that torch's CPU kernels special-case; exact where multiplication is.
        if b == 2:
            return pointwise("mul", meta, [a, a], meta.dtype)
        if b == 1:
            return pointwise("identity", meta, [a], meta.dtype)
        if b == 3:
            return pointwise("mul", meta, [pointwise("mul", meta, [a, a], meta.dtype), a], meta.dtype)
        if b == 0.5:
            return pointwise("sqrt", meta, [a], meta.dtype)
        if b == -0.5:
            return pointwise("rsqrt", meta, [a], meta.dtype)
        if b == -1:
            return pointwise("reciprocal", meta, [a], meta.dtype)
    return pointwise("pow", meta, [a, b], meta.dtype)


def _lower_integer_pow(meta: torch.Tensor, a: Any, b: Any) -> Value:
    """Lower powers of integers, except with a negative constant exponent."""
    dtype, shape = meta.dtype, tuple(meta.shape)
    if dtype == torch.bool or isinstance(b, Scalar) or (isinstance(b, int) and b < 0):
        raise Unlowered
    base, exponent = operand(a, shape, dtype), operand(b, shape, dtype)

    def at(index: Index) -> Expr:
        x, n = base(index), exponent(index)
        if n.op == "const":
            return _power_by_squaring(x, int(n.extra[0]), dtype)  # type: ignore[call-overload]
        if not dtype.is_signed:
            return Expr.make("power", (x, n), dtype)
        # A negative power is an integer only for bases 1 and -1; torch gives 0 for others, 0 ** -1 included.
        is_negative = Expr.make("lt", (n, const(0, dtype)), torch.bool)
        power = Expr.make("power", (x, Expr.make("where", (is_negative, const(0, dtype), n), dtype)), dtype)
        is_odd = Expr.make("ne", (Expr.make("and", (n, const(1, dtype)), dtype), const(0, dtype)), torch.bool)
        sign = Expr.make("where", (is_odd, x, const(1, dtype)), dtype)
        is_one = Expr.make("eq", (x, const(1, dtype)), torch.bool)
        is_minus_one = Expr.make("eq", (x, const(-1, dtype)), torch.bool)
        negative_power = Expr.make(
            "where", (Expr.make("or", (is_one, is_minus_one), torch.bool), sign, const(0, dtype)), dtype
        )
        return Expr.make("where", (is_negative, negative_power, power), dtype)

    return Value(shape, dtype, at)


def _power_by_squaring(x: Expr, exponent: int, dtype: torch.dtype) -> Expr:
    """Return ``x ** exponent`` for a constant exponent, by repeated squaring."""
    result = const(1, dtype)
    while exponent:
        if exponent & 1:
            result = x if result.op == "const" else Expr.make("mul", (result, x), dtype)
        exponent >>= 1
        x = Expr.make("mul", (x, x), dtype)
    return result


# --- shifts ------------------------------------------------------------------------------------------------


def _lower_shift(meta: torch.Tensor, a: Any, b: Any, name: str) -> Value:
    """Shift integers; `name` is ``shl`` or ``shr``."""
    dtype, shape = meta.dtype, tuple(meta.shape)
    if dtype.is_floating_point or dtype == torch.bool:
        raise Unlowered
    value, amount = operand(a, shape, dtype), operand(b, shape, dtype)
    bits = torch.iinfo(dtype).bits
    max_shift = bits - dtype.is_signed if name == "shr" else bits

    def at(index: Index) -> Expr:
        x, shift = value(index), amount(index)
        if _is_between(shift, 0, max_shift):
            return Expr.make(name, (x, shift), dtype)
        conditions = [Expr.make("lt", (shift, const(max_shift, dtype)), torch.bool)]
        if dtype.is_signed:
            conditions.append(Expr.make("ge", (shift, const(0, dtype)), torch.bool))
        is_in_range = conditions[0] if len(conditions) == 1 else Expr.make("and", conditions, torch.bool)
        # Shifts by a negative amount or by too much give 0, or the sign bit everywhere.
        out_of_range = const(0, dtype)
        if name == "shr" and dtype.is_signed:
            out_of_range = Expr.make("shr", (x, const(max_shift, dtype)), dtype)
        safe = Expr.make("where", (is_in_range, shift, const(0, dtype)), dtype)
        return Expr.make("where", (is_in_range, Expr.make(name, (x, safe), dtype), out_of_range), dtype)

    return Value(shape, dtype, at)


def _is_between(amount: Expr, low: int, high: int) -> bool:
    """Whether an amount that is a constant or an index is certainly in ``range(low, high)``."""
    amount = amount.args[0] if amount.op == "cast" else amount
    if amount.op == "const":
        return low <= int(amount.extra[0]) < high  # type: ignore[call-overload, no-any-return]
    if amount.op != "index":
        return False
    first, last = amount.extra[0].bounds()  # type: ignore[attr-defined]
    return bool(low <= first and last < high)


_SHIFT_OVERLOADS = ("Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor")


@register_lowering(
    *overloads("bitwise_left_shift", *_SHIFT_OVERLOADS), *overloads("__lshift__", "Tensor", "Scalar")
)
def _lower_left_shift(meta: torch.Tensor, a: Any, b: Any) -> Value:
    return _lower_shift(meta, a, b, "shl")


@register_lowering(
    *overloads("bitwise_right_shift", *_SHIFT_OVERLOADS), *overloads("__rshift__", "Tensor", "Scalar")
)
def _lower_right_shift(meta: torch.Tensor, a: Any, b: Any) -> Value:
    return _lower_shift(meta, a, b, "shr")
