"""Lowerings of what is done element by element: arithmetic, comparisons, choices, conversions, constants."""

from __future__ import annotations

import math
from typing import Any

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value
from burnt.codegen.ir import index_value as place_of
from burnt.codegen.lower.registry import (
    LOWERINGS,
    Scalar,
    Unlowered,
    as_result,
    cast,
    common_dtype,
    compute_dtype,
    const,
    filled,
    lowered,
    operand,
    overloads,
    pointwise,
)

aten = torch.ops.aten

_FLOATING = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh",
    "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "reciprocal",
)  # fmt: skip
_SAME = ("neg", "abs", "sign", "ceil", "floor", "round", "trunc", "relu")
_TESTS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def _unary(name: str) -> None:
    @lowered(*overloads(name, "default"))
    def lower(meta: torch.Tensor, x: Value) -> Value:
        if name in _SAME and not x.dtype.is_floating_point and name in ("ceil", "floor", "round", "trunc"):
            return x
        return pointwise(name, meta, [x], meta.dtype)


for _name in (*_FLOATING, *_SAME):
    _unary(_name)


def _binary(name: str, op: str) -> None:
    @lowered(*overloads(name, "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "default"))
    def lower(meta: torch.Tensor, a: Any, b: Any, alpha: Any = 1) -> Value:
        if not (type(alpha) is int and alpha == 1):
            scaled = pointwise("mul", meta, [b, alpha], meta.dtype)
            return pointwise(op, meta, [a, scaled], meta.dtype)
        return pointwise(op, meta, [a, b], meta.dtype)


for _name in ("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin", "atan2", "copysign"):
    _binary(_name, _name)
_binary("bitwise_and", "and")
_binary("bitwise_or", "or")
_binary("bitwise_xor", "xor")


@lowered(aten.div.Tensor, aten.div.Scalar)
def _div(meta: torch.Tensor, a: Any, b: Any) -> Value:
    return pointwise("div", meta, [a, b], meta.dtype)


for _name, _op in _TESTS.items():

    def _test(meta: torch.Tensor, a: Any, b: Any, op: str = _op) -> Value:
        return pointwise(op, meta, [a, b], common_dtype(a, b))

    for _overload in overloads(_name, "Tensor", "Scalar"):
        LOWERINGS[_overload] = _test


@lowered(aten.logical_not.default)
def _logical_not(meta: torch.Tensor, x: Value) -> Value:
    return pointwise("eq", meta, [x, 0], x.dtype)


@lowered(aten.bitwise_not.default)
def _bitwise_not(meta: torch.Tensor, x: Value) -> Value:
    return (
        pointwise("eq", meta, [x, 0], x.dtype)
        if x.dtype == torch.bool
        else pointwise("not", meta, [x], x.dtype)
    )


for _name, _op in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "xor")):

    def _logical(meta: torch.Tensor, a: Value, b: Value, op: str = _op) -> Value:
        return pointwise(op, meta, [a, b], torch.bool)

    LOWERINGS[getattr(aten, _name).default] = _logical


@lowered(aten.isnan.default)
def _isnan(meta: torch.Tensor, x: Value) -> Value:
    return pointwise("ne", meta, [x, x], x.dtype)


@lowered(aten.isinf.default)
def _isinf(meta: torch.Tensor, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return _full(meta, [], False)
    return pointwise("eq", meta, [pointwise("abs", x_meta(x), [x], x.dtype), math.inf], x.dtype)


def x_meta(x: Value) -> torch.Tensor:
    """A meta tensor of a value's shape and dtype."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


@lowered(aten.where.self)
def _where(meta: torch.Tensor, condition: Value, a: Any, b: Any) -> Value:
    shape, inside = tuple(meta.shape), compute_dtype(meta.dtype)
    if meta.dtype.is_complex:
        raise Unlowered
    test = operand(condition, shape, torch.bool)
    yes, no = operand(a, shape, inside), operand(b, shape, inside)

    def at(index: Index) -> Expr:
        made = Expr.make("where", (test(index), yes(index), no(index)), inside)
        return made if meta.dtype == inside else Expr.make("as", (made,), meta.dtype)

    return Value(shape, meta.dtype, at)


def clamp(meta: torch.Tensor, x: Value, low: Any = None, high: Any = None) -> Value:
    """Between two bounds; NaN stays NaN, and the upper bound wins where they cross."""
    if low is not None:
        x = pointwise("maximum", meta, [x, low], meta.dtype)
    if high is not None:
        x = pointwise("minimum", meta, [x, high], meta.dtype)
    return x


LOWERINGS[aten.clamp.default] = LOWERINGS[aten.clamp.Tensor] = clamp


@lowered(aten.clamp_min.default, aten.clamp_min.Tensor)
def _clamp_min(meta: torch.Tensor, x: Value, low: Any) -> Value:
    return clamp(meta, x, low)


@lowered(aten.clamp_max.default, aten.clamp_max.Tensor)
def _clamp_max(meta: torch.Tensor, x: Value, high: Any) -> Value:
    return clamp(meta, x, None, high)


@lowered(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def _to_copy(meta: torch.Tensor, x: Value, *_: Any, **options: Any) -> Value:
    if options.get("device") not in (None, meta.device) or meta.dtype.is_complex:
        raise Unlowered
    if meta.dtype == x.dtype:
        return x
    # A conversion that the program asks for is rounded, unlike the steps of a chain.
    return Value(x.shape, meta.dtype, lambda index: Expr.make("cast", (x.at(index),), meta.dtype))


@lowered(
    aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default,
    aten.contiguous.default, aten.positive.default, aten.alias_copy.default, aten.lift_fresh.default,
)  # fmt: skip
def _alias(meta: torch.Tensor, x: Value, **_: Any) -> Value:
    return x


@lowered(aten.clone.default)
def _clone(meta: torch.Tensor, x: Value, **_: Any) -> Value:
    return Value(x.shape, x.dtype, x.at)  # another value: a result that is a copy has memory of its own


@lowered(aten.isposinf.default)
def _isposinf(meta: torch.Tensor, x: Value, sign: float = math.inf) -> Value:
    if not x.dtype.is_floating_point:
        return filled(x.shape, False, torch.bool)
    return pointwise("eq", meta, [x, sign], x.dtype)


@lowered(aten.isneginf.default)
def _isneginf(meta: torch.Tensor, x: Value) -> Value:
    return _isposinf(meta, x, -math.inf)


@lowered(aten.signbit.default)
def _signbit(meta: torch.Tensor, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return pointwise("lt", meta, [x, 0], x.dtype)
    return pointwise("lt", meta, [pointwise("copysign", x_meta(x), [1.0, x], x.dtype), 0], x.dtype)


@lowered(aten.angle.default)
def _angle(meta: torch.Tensor, x: Value) -> Value:
    inside = compute_dtype(meta.dtype)

    def at(index: Index) -> Expr:
        here = cast(x.at(index), inside)
        below = Expr.make("lt", (here, const(0, inside)), torch.bool)
        turned = Expr.make("where", (below, const(math.pi, inside), const(0, inside)), inside)
        known = Expr.make("eq", (here, here), torch.bool)
        return Expr.make("where", (known, turned, here), inside)

    return as_result(Value(x.shape, inside, at), meta)


@lowered(aten.hypot.default)
def _hypot(meta: torch.Tensor, a: Value, b: Value) -> Value:
    """The larger times the root of 1 plus a square that is at most 1: nothing overflows on the way."""
    inside = compute_dtype(meta.dtype)
    first, second = operand(a, meta.shape, inside), operand(b, meta.shape, inside)

    def at(index: Index) -> Expr:
        x, y = (Expr.make("abs", (f(index),), inside) for f in (first, second))
        large, small = (Expr.make(op, (x, y), inside) for op in ("maximum", "minimum"))
        zero, infinite = const(0, inside), const(math.inf, inside)
        ratio = Expr.make("div", (small, large), inside)
        square = Expr.make("add", (const(1, inside), Expr.make("mul", (ratio, ratio), inside)), inside)
        length = Expr.make("mul", (large, Expr.make("sqrt", (square,), inside)), inside)
        length = Expr.make("where", (Expr.make("eq", (large, zero), torch.bool), zero, length), inside)
        # Infinite beats NaN.
        either = [Expr.make("eq", (v, infinite), torch.bool) for v in (x, y)]
        return Expr.make("where", (Expr.make("or", either, torch.bool), infinite, length), inside)

    return as_result(Value(tuple(meta.shape), inside, at), meta)


@lowered(aten.round.decimals)
def _round_decimals(meta: torch.Tensor, x: Value, *, decimals: int) -> Value:
    if not decimals:
        return pointwise("round", meta, [x], meta.dtype) if meta.dtype.is_floating_point else x
    if not meta.dtype.is_floating_point:
        raise Unlowered
    ten = 10.0 ** abs(decimals)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    inside = x_meta(Value(x.shape, compute_dtype(meta.dtype), x.at))
    scaled = pointwise("round", inside, [pointwise(there, inside, [x, ten], inside.dtype)], inside.dtype)
    return pointwise(back, meta, [scaled, ten], meta.dtype)


@lowered(aten.full.default, aten.full_like.default)
def _full(meta: torch.Tensor, like: Any, value: Any, **_: Any) -> Value:
    if meta.dtype.is_complex:
        raise Unlowered
    at = operand(value, (), meta.dtype)
    return Value(tuple(meta.shape), meta.dtype, lambda index: at(()))


@lowered(aten.new_full.default)
def _new_full(meta: torch.Tensor, like: Value, shape: Any, value: Any, **_: Any) -> Value:
    return _full(meta, None, value)


@lowered(*overloads("fill", "Scalar", "Tensor"))
def _fill(meta: torch.Tensor, x: Value, value: Any) -> Value:
    at = operand(value, (), meta.dtype)
    return Value(tuple(meta.shape), meta.dtype, lambda index: at(()))


@lowered(aten.copy.default)
def _copy(meta: torch.Tensor, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return Value(x.shape, x.dtype, operand(source, x.shape, x.dtype))


# What is not filled is filled with 0: it is there to be written to.
@lowered(
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default,
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default,
    aten.new_empty_strided.default, aten.empty_permuted.default,
)  # fmt: skip
def _zeros(meta: torch.Tensor, *_: Any, **__: Any) -> Value:
    return _full(meta, None, 0)


@lowered(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(meta: torch.Tensor, *_: Any, **__: Any) -> Value:
    return _full(meta, None, 1)


@lowered(aten.scalar_tensor.default)
def _scalar_tensor(meta: torch.Tensor, value: Any, **_: Any) -> Value:
    return _full(meta, None, value)


@lowered(aten.arange.start_step, aten.arange.start, aten.arange.default)
def _arange(meta: torch.Tensor, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Value:
    if end is None:
        start = 0
    if not meta.dtype.is_floating_point and not any(isinstance(v, Scalar) for v in (start, step)):
        start, step = int(start), int(step)  # before they are added up, not after
    if all(isinstance(v, int) for v in (start, step)):
        return Value(
            tuple(meta.shape), meta.dtype, lambda index: cast(place_of(index[0] * step + start), meta.dtype)
        )
    if any(isinstance(v, Scalar) for v in (start, step)):
        raise Unlowered
    wide = torch.float64

    def at(index: Index) -> Expr:
        offset = Expr.make("mul", (cast(place_of(index[0]), wide), const(step, wide)), wide)
        return cast(Expr.make("add", (offset, const(start, wide)), wide), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


@lowered(*overloads("linspace", "default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"))
def _linspace(meta: torch.Tensor, start: Any, end: Any, steps: int, **_: Any) -> Value:
    """From both ends, as the result's dtype holds them, to the middle. Integers are computed in float64."""
    if meta.dtype.is_complex:
        raise Unlowered
    inside = compute_dtype(meta.dtype) if meta.dtype.is_floating_point else torch.float64
    first, last = (cast(operand(v, (), meta.dtype)(()), inside) for v in (start, end))
    if steps < 2:
        return as_result(Value(tuple(meta.shape), inside, lambda index: first), meta)
    intervals = cast(place_of(IndexExpr(const=steps - 1)), inside)
    step = Expr.make("div", (Expr.make("sub", (last, first), inside), intervals), inside)

    def at(index: Index) -> Expr:
        before, after = (cast(place_of(ix), inside) for ix in (index[0], index[0] * -1 + (steps - 1)))
        up = Expr.make("add", (first, Expr.make("mul", (step, before), inside)), inside)
        down = Expr.make("sub", (last, Expr.make("mul", (step, after), inside)), inside)
        half = Expr.make("lt", (place_of(index[0]), place_of(IndexExpr(const=steps // 2))), torch.bool)
        return Expr.make("where", (half, up, down), inside)

    return as_result(Value(tuple(meta.shape), inside, at), meta)


# --- derivatives by pieces --------------------------------------------------------------------------------

# To which piece NaN belongs is what torch's loops over vectors make it, unlike its decompositions.


@lowered(aten.hardtanh_backward.default)
def _hardtanh_backward(meta: torch.Tensor, gradient: Value, x: Value, low: Any, high: Any) -> Value:
    inside = compute_dtype(meta.dtype)
    g, v, first, last = (operand(a, tuple(meta.shape), inside) for a in (gradient, x, low, high))

    def at(index: Index) -> Expr:
        above = Expr.make("gt", (v(index), first(index)), torch.bool)
        below = Expr.make("lt", (v(index), last(index)), torch.bool)
        between = Expr.make("and", (above, below), torch.bool)
        return Expr.make("where", (between, g(index), const(0, inside)), inside)

    return as_result(Value(tuple(meta.shape), inside, at), meta)


@lowered(aten.hardswish_backward.default)
def _hardswish_backward(meta: torch.Tensor, gradient: Value, x: Value) -> Value:
    inside = compute_dtype(meta.dtype)
    g, v = (operand(a, tuple(meta.shape), inside) for a in (gradient, x))

    def at(index: Index) -> Expr:
        slope = Expr.make("div", (v(index), const(3, inside)), inside)
        slope = Expr.make("add", (slope, const(0.5, inside)), inside)
        made = Expr.make("mul", (g(index), slope), inside)
        high = Expr.make("ge", (v(index), const(3, inside)), torch.bool)
        made = Expr.make("where", (high, g(index), made), inside)
        low = Expr.make("le", (v(index), const(-3, inside)), torch.bool)
        return Expr.make("where", (low, const(0, inside), made), inside)

    return as_result(Value(tuple(meta.shape), inside, at), meta)


@lowered(aten.elu_backward.default)
def _elu_backward(
    meta: torch.Tensor, gradient: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Value
) -> Value:
    inside = compute_dtype(meta.dtype)
    given = (gradient, x, alpha, scale, input_scale)
    g, v, a, s, t = (operand(value, tuple(meta.shape), inside) for value in given)

    def times(*factors: Expr) -> Expr:
        made, *rest = factors
        for factor in rest:
            made = Expr.make("mul", (made, factor), inside)
        return made

    def at(index: Index) -> Expr:
        pull, here, coefficient = g(index), v(index), times(a(index), s(index))
        if is_result:
            slope = Expr.make("add", (here, coefficient), inside)
            below = times(pull, t(index), slope)
        else:
            rise = Expr.make("exp", (times(here, t(index)),), inside)
            below = times(pull, t(index), coefficient, rise)
        positive = Expr.make("gt", (here, const(0, inside)), torch.bool)
        return Expr.make("where", (positive, times(pull, s(index)), below), inside)

    return as_result(Value(tuple(meta.shape), inside, at), meta)
