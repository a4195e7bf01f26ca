"""Lowerings of elementwise ops: arithmetic, comparisons, ``where``, dtype conversions, constants."""

from __future__ import annotations

import math
from typing import Any

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value, index_value
from burnt.codegen.lower.registry import (
    LOWERINGS,
    Scalar,
    Unlowered,
    cast,
    common_dtype,
    compute_dtype,
    const,
    full,
    operand,
    overloads,
    pointwise,
    register_lowering,
    to_result_dtype,
)

aten = torch.ops.aten

_FLOAT_OPS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh",
    "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "reciprocal",
)  # fmt: skip
_SAME_DTYPE_OPS = ("neg", "abs", "sign", "ceil", "floor", "round", "trunc", "relu")
_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def _register_unary(name: str) -> None:
    """Register the lowering of a unary op whose name is the same in `pointwise`."""

    @register_lowering(*overloads(name, "default"))
    def lower(meta: torch.Tensor, x: Value) -> Value:
        if (
            name in _SAME_DTYPE_OPS
            and not x.dtype.is_floating_point
            and name in ("ceil", "floor", "round", "trunc")
        ):
            return x
        return pointwise(name, meta, [x], meta.dtype)


for _name in (*_FLOAT_OPS, *_SAME_DTYPE_OPS):
    _register_unary(_name)


def _register_binary(name: str, op: str) -> None:
    """Register aten op `name`, with an optional ``alpha``, as the operation `op` of `pointwise`."""

    @register_lowering(*overloads(name, "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "default"))
    def lower(meta: torch.Tensor, a: Any, b: Any, alpha: Any = 1) -> Value:
        if not (type(alpha) is int and alpha == 1):
            scaled = pointwise("mul", meta, [b, alpha], meta.dtype)
            return pointwise(op, meta, [a, scaled], meta.dtype)
        return pointwise(op, meta, [a, b], meta.dtype)


for _name in ("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin", "atan2", "copysign"):
    _register_binary(_name, _name)
_register_binary("bitwise_and", "and")
_register_binary("bitwise_or", "or")
_register_binary("bitwise_xor", "xor")


@register_lowering(aten.div.Tensor, aten.div.Scalar)
def _lower_div(meta: torch.Tensor, a: Any, b: Any) -> Value:
    return pointwise("div", meta, [a, b], meta.dtype)


for _name, _op in _COMPARISONS.items():

    def _lower_comparison(meta: torch.Tensor, a: Any, b: Any, op: str = _op) -> Value:
        return pointwise(op, meta, [a, b], common_dtype(a, b))

    for _overload in overloads(_name, "Tensor", "Scalar"):
        LOWERINGS[_overload] = _lower_comparison


@register_lowering(aten.logical_not.default)
def _lower_logical_not(meta: torch.Tensor, x: Value) -> Value:
    return pointwise("eq", meta, [x, 0], x.dtype)


@register_lowering(aten.bitwise_not.default)
def _lower_bitwise_not(meta: torch.Tensor, x: Value) -> Value:
    return (
        pointwise("eq", meta, [x, 0], x.dtype)
        if x.dtype == torch.bool
        else pointwise("not", meta, [x], x.dtype)
    )


for _name, _op in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "xor")):

    def _lower_logical(meta: torch.Tensor, a: Value, b: Value, op: str = _op) -> Value:
        return pointwise(op, meta, [a, b], torch.bool)

    LOWERINGS[getattr(aten, _name).default] = _lower_logical


@register_lowering(aten.isnan.default)
def _lower_isnan(meta: torch.Tensor, x: Value) -> Value:
    return pointwise("ne", meta, [x, x], x.dtype)


@register_lowering(aten.isinf.default)
def _lower_isinf(meta: torch.Tensor, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return _lower_full(meta, [], False)
    return pointwise("eq", meta, [pointwise("abs", meta_like(x), [x], x.dtype), math.inf], x.dtype)


def meta_like(x: Value) -> torch.Tensor:
    """Return a meta tensor of a value's shape and dtype."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


@register_lowering(aten.where.self)
def _lower_where(meta: torch.Tensor, condition: Value, a: Any, b: Any) -> Value:
    shape, math_dtype = tuple(meta.shape), compute_dtype(meta.dtype)
    if meta.dtype.is_complex:
        raise Unlowered
    condition_at = operand(condition, shape, torch.bool)
    yes, no = operand(a, shape, math_dtype), operand(b, shape, math_dtype)

    def at(index: Index) -> Expr:
        result = Expr.make("where", (condition_at(index), yes(index), no(index)), math_dtype)
        return result if meta.dtype == math_dtype else Expr.make("as", (result,), meta.dtype)

    return Value(shape, meta.dtype, at)


def clamp(meta: torch.Tensor, x: Value, low: Any = None, high: Any = None) -> Value:
    """Clamp to two bounds: NaN stays NaN, and where ``low > high`` the result is `high`."""
    if low is not None:
        x = pointwise("maximum", meta, [x, low], meta.dtype)
    if high is not None:
        x = pointwise("minimum", meta, [x, high], meta.dtype)
    return x


LOWERINGS[aten.clamp.default] = LOWERINGS[aten.clamp.Tensor] = clamp


@register_lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def _lower_clamp_min(meta: torch.Tensor, x: Value, low: Any) -> Value:
    return clamp(meta, x, low)


@register_lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def _lower_clamp_max(meta: torch.Tensor, x: Value, high: Any) -> Value:
    return clamp(meta, x, None, high)


@register_lowering(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def lower_to_copy(meta: torch.Tensor, x: Value, *_: Any, **options: Any) -> Value:
    """Convert to another dtype of `DTYPES`."""
    if options.get("device") not in (None, meta.device) or meta.dtype.is_complex:
        raise Unlowered
    if meta.dtype == x.dtype:
        return x
    # An explicit conversion rounds; intermediate results of 16-bit floats stay in float32.
    return Value(x.shape, meta.dtype, lambda index: Expr.make("cast", (x.at(index),), meta.dtype))


@register_lowering(
    aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default,
    aten.contiguous.default, aten.positive.default, aten.alias_copy.default, aten.lift_fresh.default,
)  # fmt: skip
def _lower_alias(meta: torch.Tensor, x: Value, **_: Any) -> Value:
    return x


@register_lowering(aten.clone.default)
def _lower_clone(meta: torch.Tensor, x: Value, **_: Any) -> Value:
    return Value(x.shape, x.dtype, x.at)  # a new Value, so that a returned copy gets memory of its own


@register_lowering(aten.isposinf.default)
def _lower_isposinf(meta: torch.Tensor, x: Value, sign: float = math.inf) -> Value:
    if not x.dtype.is_floating_point:
        return full(x.shape, False, torch.bool)
    return pointwise("eq", meta, [x, sign], x.dtype)


@register_lowering(aten.isneginf.default)
def _lower_isneginf(meta: torch.Tensor, x: Value) -> Value:
    return _lower_isposinf(meta, x, -math.inf)


@register_lowering(aten.signbit.default)
def _lower_signbit(meta: torch.Tensor, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return pointwise("lt", meta, [x, 0], x.dtype)
    return pointwise("lt", meta, [pointwise("copysign", meta_like(x), [1.0, x], x.dtype), 0], x.dtype)


@register_lowering(aten.angle.default)
def _lower_angle(meta: torch.Tensor, x: Value) -> Value:
    math_dtype = compute_dtype(meta.dtype)

    def at(index: Index) -> Expr:
        element = cast(x.at(index), math_dtype)
        is_negative = Expr.make("lt", (element, const(0, math_dtype)), torch.bool)
        phase = Expr.make(
            "where", (is_negative, const(math.pi, math_dtype), const(0, math_dtype)), math_dtype
        )
        is_not_nan = Expr.make("eq", (element, element), torch.bool)
        return Expr.make("where", (is_not_nan, phase, element), math_dtype)

    return to_result_dtype(Value(x.shape, math_dtype, at), meta)


@register_lowering(aten.hypot.default)
def _lower_hypot(meta: torch.Tensor, a: Value, b: Value) -> Value:
    """Compute ``large * sqrt(1 + (small / large)**2)``, which cannot overflow on the way."""
    math_dtype = compute_dtype(meta.dtype)
    first, second = operand(a, meta.shape, math_dtype), operand(b, meta.shape, math_dtype)

    def at(index: Index) -> Expr:
        x, y = (Expr.make("abs", (f(index),), math_dtype) for f in (first, second))
        large, small = (Expr.make(op, (x, y), math_dtype) for op in ("maximum", "minimum"))
        zero, infinity = const(0, math_dtype), const(math.inf, math_dtype)
        ratio = Expr.make("div", (small, large), math_dtype)
        one_plus_square = Expr.make(
            "add", (const(1, math_dtype), Expr.make("mul", (ratio, ratio), math_dtype)), math_dtype
        )
        length = Expr.make("mul", (large, Expr.make("sqrt", (one_plus_square,), math_dtype)), math_dtype)
        length = Expr.make("where", (Expr.make("eq", (large, zero), torch.bool), zero, length), math_dtype)
        # If either is infinite, so is the result, even beside NaN.
        are_infinite = [Expr.make("eq", (v, infinity), torch.bool) for v in (x, y)]
        return Expr.make("where", (Expr.make("or", are_infinite, torch.bool), infinity, length), math_dtype)

    return to_result_dtype(Value(tuple(meta.shape), math_dtype, at), meta)


@register_lowering(aten.round.decimals)
def _lower_round_decimals(meta: torch.Tensor, x: Value, *, decimals: int) -> Value:
    if not decimals:
        return pointwise("round", meta, [x], meta.dtype) if meta.dtype.is_floating_point else x
    if not meta.dtype.is_floating_point:
        raise Unlowered
    power_of_ten = 10.0 ** abs(decimals)
    scale_op, unscale_op = ("mul", "div") if decimals > 0 else ("div", "mul")
    math_meta = meta_like(Value(x.shape, compute_dtype(meta.dtype), x.at))
    scaled = pointwise(
        "round",
        math_meta,
        [pointwise(scale_op, math_meta, [x, power_of_ten], math_meta.dtype)],
        math_meta.dtype,
    )
    return pointwise(unscale_op, meta, [scaled, power_of_ten], meta.dtype)


@register_lowering(aten.full.default, aten.full_like.default)
def _lower_full(meta: torch.Tensor, like: Any, value: Any, **_: Any) -> Value:
    if meta.dtype.is_complex:
        raise Unlowered
    at = operand(value, (), meta.dtype)
    return Value(tuple(meta.shape), meta.dtype, lambda index: at(()))


@register_lowering(aten.new_full.default)
def _lower_new_full(meta: torch.Tensor, like: Value, shape: Any, value: Any, **_: Any) -> Value:
    return _lower_full(meta, None, value)


@register_lowering(*overloads("fill", "Scalar", "Tensor"))
def _lower_fill(meta: torch.Tensor, x: Value, value: Any) -> Value:
    at = operand(value, (), meta.dtype)
    return Value(tuple(meta.shape), meta.dtype, lambda index: at(()))


@register_lowering(aten.copy.default)
def _lower_copy(meta: torch.Tensor, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return Value(x.shape, x.dtype, operand(source, x.shape, x.dtype))


# Uninitialized tensors (`empty`) are zeros, too.
@register_lowering(
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default,
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default,
    aten.new_empty_strided.default, aten.empty_permuted.default, aten._efficientzerotensor.default,
)  # fmt: skip
def _lower_zeros(meta: torch.Tensor, *_: Any, **__: Any) -> Value:
    return _lower_full(meta, None, 0)


@register_lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _lower_ones(meta: torch.Tensor, *_: Any, **__: Any) -> Value:
    return _lower_full(meta, None, 1)


@register_lowering(aten.scalar_tensor.default)
def _lower_scalar_tensor(meta: torch.Tensor, value: Any, **_: Any) -> Value:
    return _lower_full(meta, None, value)


@register_lowering(aten.arange.start_step, aten.arange.start, aten.arange.default)
def _lower_arange(meta: torch.Tensor, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Value:
    if end is None:
        start = 0
    if not meta.dtype.is_floating_point and not any(isinstance(v, Scalar) for v in (start, step)):
        start, step = int(start), int(step)  # truncate them before computing, as torch does
    if all(isinstance(v, int) for v in (start, step)):
        return Value(
            tuple(meta.shape),
            meta.dtype,
            lambda index: cast(index_value(index[0] * step + start), meta.dtype),
        )
    if any(isinstance(v, Scalar) for v in (start, step)):
        raise Unlowered
    math_dtype = torch.float64

    def at(index: Index) -> Expr:
        offset = Expr.make(
            "mul", (cast(index_value(index[0]), math_dtype), const(step, math_dtype)), math_dtype
        )
        return cast(Expr.make("add", (offset, const(start, math_dtype)), math_dtype), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


@register_lowering(*overloads("linspace", "default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"))
def _lower_linspace(meta: torch.Tensor, start: Any, end: Any, steps: int, **_: Any) -> Value:
    """Compute from both ends, rounded to the result's dtype, to the middle; integers in float64."""
    if meta.dtype.is_complex:
        raise Unlowered
    math_dtype = compute_dtype(meta.dtype) if meta.dtype.is_floating_point else torch.float64
    first, last = (cast(operand(v, (), meta.dtype)(()), math_dtype) for v in (start, end))
    if steps < 2:
        return to_result_dtype(Value(tuple(meta.shape), math_dtype, lambda index: first), meta)
    intervals = cast(index_value(IndexExpr(const=steps - 1)), math_dtype)
    step = Expr.make("div", (Expr.make("sub", (last, first), math_dtype), intervals), math_dtype)

    def at(index: Index) -> Expr:
        from_start, from_end = (
            cast(index_value(ix), math_dtype) for ix in (index[0], index[0] * -1 + (steps - 1))
        )
        ascending = Expr.make("add", (first, Expr.make("mul", (step, from_start), math_dtype)), math_dtype)
        descending = Expr.make("sub", (last, Expr.make("mul", (step, from_end), math_dtype)), math_dtype)
        is_first_half = Expr.make(
            "lt", (index_value(index[0]), index_value(IndexExpr(const=steps // 2))), torch.bool
        )
        return Expr.make("where", (is_first_half, ascending, descending), math_dtype)

    return to_result_dtype(Value(tuple(meta.shape), math_dtype, at), meta)


# --- gradients of piecewise functions ---------------------------------------------------------------------

# NaN takes the branch that it takes in torch's vectorized CPU kernels, which differ from its decompositions.


@register_lowering(aten.hardtanh_backward.default)
def _lower_hardtanh_backward(meta: torch.Tensor, grad_out: Value, x: Value, low: Any, high: Any) -> Value:
    math_dtype = compute_dtype(meta.dtype)
    g, v, lower, upper = (operand(a, tuple(meta.shape), math_dtype) for a in (grad_out, x, low, high))

    def at(index: Index) -> Expr:
        above_lower = Expr.make("gt", (v(index), lower(index)), torch.bool)
        below_upper = Expr.make("lt", (v(index), upper(index)), torch.bool)
        is_inside = Expr.make("and", (above_lower, below_upper), torch.bool)
        return Expr.make("where", (is_inside, g(index), const(0, math_dtype)), math_dtype)

    return to_result_dtype(Value(tuple(meta.shape), math_dtype, at), meta)


@register_lowering(aten.hardswish_backward.default)
def _lower_hardswish_backward(meta: torch.Tensor, grad_out: Value, x: Value) -> Value:
    math_dtype = compute_dtype(meta.dtype)
    g, v = (operand(a, tuple(meta.shape), math_dtype) for a in (grad_out, x))

    def at(index: Index) -> Expr:
        slope = Expr.make("div", (v(index), const(3, math_dtype)), math_dtype)
        slope = Expr.make("add", (slope, const(0.5, math_dtype)), math_dtype)
        result = Expr.make("mul", (g(index), slope), math_dtype)
        is_above = Expr.make("ge", (v(index), const(3, math_dtype)), torch.bool)
        result = Expr.make("where", (is_above, g(index), result), math_dtype)
        is_below = Expr.make("le", (v(index), const(-3, math_dtype)), torch.bool)
        return Expr.make("where", (is_below, const(0, math_dtype), result), math_dtype)

    return to_result_dtype(Value(tuple(meta.shape), math_dtype, at), meta)


@register_lowering(aten.elu_backward.default)
def _lower_elu_backward(
    meta: torch.Tensor, grad_out: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Value
) -> Value:
    math_dtype = compute_dtype(meta.dtype)
    inputs = (grad_out, x, alpha, scale, input_scale)
    g, v, a, s, t = (operand(value, tuple(meta.shape), math_dtype) for value in inputs)

    def multiply(*factors: Expr) -> Expr:
        product, *rest = factors
        for factor in rest:
            product = Expr.make("mul", (product, factor), math_dtype)
        return product

    def at(index: Index) -> Expr:
        grad, element, coefficient = g(index), v(index), multiply(a(index), s(index))
        if is_result:
            slope = Expr.make("add", (element, coefficient), math_dtype)
            negative_part = multiply(grad, t(index), slope)
        else:
            exponential = Expr.make("exp", (multiply(element, t(index)),), math_dtype)
            negative_part = multiply(grad, t(index), coefficient, exponential)
        is_positive = Expr.make("gt", (element, const(0, math_dtype)), torch.bool)
        return Expr.make("where", (is_positive, multiply(grad, s(index)), negative_part), math_dtype)

    return to_result_dtype(Value(tuple(meta.shape), math_dtype, at), meta)
