"""Lowerings that differ for integers: division with a check of the divisor, powers, shifts.

Integers wrap around as in torch. No division is made by 0 or -1, on which processors trap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from burnt.codegen.ir import Check, Expr, Value, checked_value, const
from burnt.codegen.lower.registry import (
    Scalar,
    Unlowered,
    elementwise,
    overloads,
    pointwise,
    register_lowering,
)

aten = torch.ops.aten


def divide(meta: torch.Tensor, kind: str, op: str, a: Any, b: Any) -> Value:
    """Divide integers of `meta`'s dtype; `op` is the aten op's name, for the error about a zero divisor.

    `kind` is ``trunc_div``, ``floor_div``, ``fmod`` (sign of `a`) or ``remainder`` (sign of `b`).
    """
    dtype = meta.dtype
    if dtype == torch.bool:
        raise Unlowered
    check = Check(op)

    def element(x: Expr, y: Expr) -> Expr:
        divisor, is_minus_one = y, None
        if y.op != "const" or y.extra[0] in (0, -1):
            divisor = checked_value(check, y.ne(0), y, const(1, dtype), const(0, torch.int64))
            if dtype.is_signed:
                is_minus_one = divisor.eq(-1)
                divisor = is_minus_one.where(1, divisor)
        quotient = x.apply("trunc_div", divisor)
        remainder = x - quotient * divisor
        if kind in ("floor_div", "remainder") and dtype.is_signed:
            needs_floor = remainder.ne(0) & remainder.lt(0).ne(divisor.lt(0))
            quotient = needs_floor.where(quotient - 1, quotient)
            remainder = needs_floor.where(remainder + divisor, remainder)
        if kind in ("fmod", "remainder"):
            return remainder  # a divisor of -1 was replaced by 1: the remainder is 0 for both
        return quotient if is_minus_one is None else is_minus_one.where(const(0, dtype) - quotient, quotient)

    return elementwise(meta, [a, b], element)


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


def _lower_remainder(kind: str, meta: torch.Tensor, a: Any, b: Any) -> Value:
    if meta.dtype.is_floating_point:
        return pointwise(kind, meta, [a, b], meta.dtype)
    return divide(meta, kind, kind, a, b)


for _kind in ("remainder", "fmod"):
    register_lowering(*overloads(_kind, "Tensor", "Scalar", "Scalar_Tensor"))(
        partial(_lower_remainder, _kind)
    )


# --- powers ------------------------------------------------------------------------------------------------


@register_lowering(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _lower_pow(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if not meta.dtype.is_floating_point:
        return _lower_integer_pow(meta, a, b)
    # The exponents that torch's CPU kernels special-case; exact where multiplication is.
    known: dict[Any, Callable[[Expr], Expr]] = {
        1: lambda x: x.apply("identity"), 2: lambda x: x * x, 3: lambda x: x * x * x,
        0.5: lambda x: x.apply("sqrt"), -0.5: lambda x: x.apply("rsqrt"), -1: lambda x: x.apply("reciprocal"),
    }  # fmt: skip
    if isinstance(a, Value) and isinstance(b, int | float) and b in known:
        return elementwise(meta, [a], known[b])
    return pointwise("pow", meta, [a, b], meta.dtype)


def _lower_integer_pow(meta: torch.Tensor, a: Any, b: Any) -> Value:
    """Lower powers of integers, except with a negative constant exponent."""
    dtype = meta.dtype
    if dtype == torch.bool or isinstance(b, Scalar) or (isinstance(b, int) and b < 0):
        raise Unlowered

    def element(x: Expr, n: Expr) -> Expr:
        if n.op == "const":
            return _power_by_squaring(x, int(n.extra[0]), dtype)
        if not dtype.is_signed:
            return x.apply("power", n)
        # A negative power is an integer only for bases 1 and -1; torch gives 0 for others, 0 ** -1 included.
        is_negative = n.lt(0)
        power = x.apply("power", is_negative.where(0, n))
        sign = (n & const(1, dtype)).ne(0).where(x, 1)
        negative_power = (x.eq(1) | x.eq(-1)).where(sign, 0)
        return is_negative.where(negative_power, power)

    return elementwise(meta, [a, b], element)


def _power_by_squaring(x: Expr, exponent: int, dtype: torch.dtype) -> Expr:
    result = const(1, dtype)
    while exponent:
        if exponent & 1:
            result = x if result.op == "const" else result * x
        exponent >>= 1
        x = x * x
    return result


# --- shifts ------------------------------------------------------------------------------------------------


def _lower_shift(op: str, meta: torch.Tensor, a: Any, b: Any) -> Value:
    dtype = meta.dtype
    if dtype.is_floating_point or dtype == torch.bool:
        raise Unlowered
    bits = torch.iinfo(dtype).bits
    max_shift = bits - dtype.is_signed if op == "shr" else bits

    def element(x: Expr, shift: Expr) -> Expr:
        if _is_between(shift, 0, max_shift):
            return x.apply(op, shift)
        is_in_range = shift.lt(max_shift)
        if dtype.is_signed:
            is_in_range = is_in_range & shift.ge(0)
        # Shifts by a negative amount or by too much give 0, or the sign bit everywhere.
        has_sign = op == "shr" and dtype.is_signed
        out_of_range = x.apply("shr", max_shift) if has_sign else const(0, dtype)
        return is_in_range.where(x.apply(op, is_in_range.where(shift, 0)), out_of_range)

    return elementwise(meta, [a, b], element)


def _is_between(amount: Expr, low: int, high: int) -> bool:
    """Whether an amount that is a constant or an index is certainly in ``range(low, high)``."""
    amount = amount.args[0] if amount.op == "cast" else amount
    if amount.op == "const":
        return low <= int(amount.extra[0]) < high
    if amount.op != "index":
        return False
    first, last = amount.extra[0].bounds()
    return bool(low <= first and last < high)


for _op, _direction, _alias in (("shl", "left", "__lshift__"), ("shr", "right", "__rshift__")):
    register_lowering(
        *overloads(f"bitwise_{_direction}_shift", "Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor"),
        *overloads(_alias, "Tensor", "Scalar"),
    )(partial(_lower_shift, _op))
