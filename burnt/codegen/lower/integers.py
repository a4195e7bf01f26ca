"""Lowerings of what integers have for themselves: divisions with a check of the divisor, powers, shifts.

Integers wrap around as torch's do. Their divisions never see a divisor of 0 or -1, on which processors trap.
"""

from __future__ import annotations

from typing import Any

import torch

from burnt.codegen.ir import Check, Expr, Index, Value, bounds_checked
from burnt.codegen.lower.registry import Scalar, Unlowered, const, lowered, operand, overloads, pointwise

aten = torch.ops.aten


def divided(meta: torch.Tensor, kind: str, op: str, a: Any, b: Any) -> Value:
    """A division of integers of `meta`'s dtype.

    Args:
        meta: the result's shape and dtype.
        kind: ``trunc_div``, ``floor_div``, ``fmod`` (sign of `a`) or ``remainder`` (sign of `b`).
        op: as torch spells it, for the error.
        a: a Value or a number.
        b: a Value or a number.
    """
    dtype, shape = meta.dtype, tuple(meta.shape)
    if dtype == torch.bool:
        raise Unlowered
    upper, lower = operand(a, shape, dtype), operand(b, shape, dtype)
    zero, one, check = const(0, dtype), const(1, dtype), Check(op)

    def binary(name: str, x: Expr, y: Expr) -> Expr:
        return Expr.make(name, (x, y), torch.bool if name in ("eq", "ne", "lt") else x.dtype)

    def where(test: Expr, yes: Expr, no: Expr) -> Expr:
        return Expr.make("where", (test, yes, no), yes.dtype)

    def at(index: Index) -> Expr:
        x, y = upper(index), lower(index)
        if y.op == "const" and y.extra[0] not in (0, -1):
            divisor, minus = y, None
        else:
            shown = const(0, torch.int64)
            divisor = bounds_checked(check, binary("ne", y, zero), y, one, shown)
            minus = binary("eq", divisor, const(-1, dtype)) if dtype.is_signed else None
            if minus is not None:
                divisor = where(minus, one, divisor)
        quotient = binary("trunc_div", x, divisor)
        rest = binary("sub", x, binary("mul", quotient, divisor))
        if kind in ("floor_div", "remainder") and dtype.is_signed:
            below = binary("lt", divisor, zero)
            off = binary("and", binary("ne", rest, zero), binary("ne", binary("lt", rest, zero), below))
            quotient = where(off, binary("sub", quotient, one), quotient)
            rest = where(off, binary("add", rest, divisor), rest)
        if kind in ("fmod", "remainder"):
            return rest  # by 1 there is none, as by -1
        return quotient if minus is None else where(minus, binary("sub", zero, quotient), quotient)

    return Value(shape, dtype, at)


@lowered(*overloads("floor_divide", "default", "Scalar"))
def _floor_divide(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if meta.dtype.is_floating_point:
        return pointwise("floor_div", meta, [a, b], meta.dtype)
    return divided(meta, "floor_div", "floor_divide", a, b)


@lowered(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(meta: torch.Tensor, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return pointwise("div", meta, [a, b], meta.dtype)
    if meta.dtype.is_floating_point:
        return pointwise(f"{rounding_mode}_div", meta, [a, b], meta.dtype)
    return divided(meta, f"{rounding_mode}_div", "div", a, b)


@lowered(*overloads("remainder", "Tensor", "Scalar", "Scalar_Tensor"))
def _remainder(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if meta.dtype.is_floating_point:
        return pointwise("remainder", meta, [a, b], meta.dtype)
    return divided(meta, "remainder", "remainder", a, b)


@lowered(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if meta.dtype.is_floating_point:
        return pointwise("fmod", meta, [a, b], meta.dtype)
    return divided(meta, "fmod", "fmod", a, b)


# --- powers ------------------------------------------------------------------------------------------------


@lowered(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if not meta.dtype.is_floating_point:
        return _integer_pow(meta, a, b)
    if isinstance(b, int | float) and isinstance(a, Value):
        # The powers that torch's CPU kernels treat apart, exact where multiplication is.
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


def _integer_pow(meta: torch.Tensor, a: Any, b: Any) -> Value:
    dtype, shape = meta.dtype, tuple(meta.shape)
    if dtype == torch.bool or isinstance(b, Scalar) or (isinstance(b, int) and b < 0):
        raise Unlowered
    base, exponent = operand(a, shape, dtype), operand(b, shape, dtype)

    def at(index: Index) -> Expr:
        x, e = base(index), exponent(index)
        if e.op == "const":
            return _unrolled(x, int(e.extra[0]), dtype)  # type: ignore[call-overload]
        if not dtype.is_signed:
            return Expr.make("power", (x, e), dtype)
        # Below 0 there is no whole power but of 1 and -1; torch has 0 for the others, and 0 ** -1 = 0.
        negative = Expr.make("lt", (e, const(0, dtype)), torch.bool)
        made = Expr.make("power", (x, Expr.make("where", (negative, const(0, dtype), e), dtype)), dtype)
        odd = Expr.make("ne", (Expr.make("and", (e, const(1, dtype)), dtype), const(0, dtype)), torch.bool)
        sign = Expr.make("where", (odd, x, const(1, dtype)), dtype)
        is_one = Expr.make("eq", (x, const(1, dtype)), torch.bool)
        is_minus = Expr.make("eq", (x, const(-1, dtype)), torch.bool)
        below = Expr.make(
            "where", (Expr.make("or", (is_one, is_minus), torch.bool), sign, const(0, dtype)), dtype
        )
        return Expr.make("where", (negative, below, made), dtype)

    return Value(shape, dtype, at)


def _unrolled(x: Expr, exponent: int, dtype: torch.dtype) -> Expr:
    result = const(1, dtype)
    while exponent:
        if exponent & 1:
            result = x if result.op == "const" else Expr.make("mul", (result, x), dtype)
        exponent >>= 1
        x = Expr.make("mul", (x, x), dtype)
    return result


# --- shifts ------------------------------------------------------------------------------------------------


def _shift(meta: torch.Tensor, a: Any, b: Any, name: str) -> Value:
    dtype, shape = meta.dtype, tuple(meta.shape)
    if dtype.is_floating_point or dtype == torch.bool:
        raise Unlowered
    value, by = operand(a, shape, dtype), operand(b, shape, dtype)
    bits = torch.iinfo(dtype).bits
    most = bits - dtype.is_signed if name == "shr" else bits

    def at(index: Index) -> Expr:
        x, k = value(index), by(index)
        tests = [Expr.make("lt", (k, const(most, dtype)), torch.bool)]
        if dtype.is_signed:
            tests.append(Expr.make("ge", (k, const(0, dtype)), torch.bool))
        inside = tests[0] if len(tests) == 1 else Expr.make("and", tests, torch.bool)
        # Shifted by too much, or by less than nothing: all zeros, or all signs.
        last = const(0, dtype)
        if name == "shr" and dtype.is_signed:
            last = Expr.make("shr", (x, const(most, dtype)), dtype)
        safe = Expr.make("where", (inside, k, const(0, dtype)), dtype)
        return Expr.make("where", (inside, Expr.make(name, (x, safe), dtype), last), dtype)

    return Value(shape, dtype, at)


_TENSORS_AND_SCALARS = ("Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor")


@lowered(
    *overloads("bitwise_left_shift", *_TENSORS_AND_SCALARS), *overloads("__lshift__", "Tensor", "Scalar")
)
def _left_shift(meta: torch.Tensor, a: Any, b: Any) -> Value:
    return _shift(meta, a, b, "shl")


@lowered(
    *overloads("bitwise_right_shift", *_TENSORS_AND_SCALARS), *overloads("__rshift__", "Tensor", "Scalar")
)
def _right_shift(meta: torch.Tensor, a: Any, b: Any) -> Value:
    return _shift(meta, a, b, "shr")
