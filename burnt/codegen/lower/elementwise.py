"""Lowerings of elementwise ops: arithmetic, comparisons, ``where``, dtype conversions, constants."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from burnt import _torch
from burnt.codegen.ir import DTYPES, Expr, Index, IndexExpr, Value, cast, const, index_value
from burnt.codegen.lower.registry import (
    LOWERINGS,
    UNARY,
    Scalar,
    Unlowered,
    aten,
    common_dtype,
    compute_dtype,
    elementwise,
    meta_tensor,
    operand,
    overloads,
    pointwise,
    register_lowering,
    rounded,
    to_result_dtype,
)

# Ops with the same name in `pointwise`; those that round leave integers unchanged.
_ROUNDING = ("ceil", "floor", "round", "trunc")
_SAME_NAME = ("add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "copysign")
_BINARY = {name: name for name in _SAME_NAME} | {f"bitwise_{op}": op for op in ("and", "or", "xor")}


def _lower_unary(op: str, meta: torch.Tensor, x: Value) -> Value:
    return x if op in _ROUNDING and not x.dtype.is_floating_point else pointwise(op, meta, [x], meta.dtype)


def _lower_binary(op: str, meta: torch.Tensor, a: Any, b: Any, alpha: Any = 1) -> Value:
    if not (type(alpha) is int and alpha == 1):
        b = pointwise("mul", meta, [b, alpha], meta.dtype)
    return pointwise(op, meta, [a, b], meta.dtype)


def _lower_comparison(op: str, meta: torch.Tensor, a: Any, b: Any) -> Value:
    return pointwise(op, meta, [a, b], common_dtype(a, b))


def _lower_logical(op: str, meta: torch.Tensor, a: Value, b: Value) -> Value:
    return pointwise(op, meta, [a, b], torch.bool)


for _name in set(UNARY.split()) - {"identity", "not", "fast_exp2"}:
    register_lowering(*overloads(_name, "default"))(partial(_lower_unary, _name))
for _name, _op in _BINARY.items():
    _overloads = overloads(_name, "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "default")
    register_lowering(*_overloads)(partial(_lower_binary, _op))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    register_lowering(*overloads(_name, "Tensor", "Scalar"))(partial(_lower_comparison, _name))
for _name in ("and", "or", "xor"):
    register_lowering(*overloads(f"logical_{_name}", "default"))(partial(_lower_logical, _name))


@register_lowering(aten.logical_not.default)
def _lower_logical_not(meta: torch.Tensor, x: Value) -> Value:
    return pointwise("eq", meta, [x, 0], x.dtype)


@register_lowering(aten.bitwise_not.default)
def _lower_bitwise_not(meta: torch.Tensor, x: Value) -> Value:
    return _lower_logical_not(meta, x) if x.dtype == torch.bool else pointwise("not", meta, [x], x.dtype)


@register_lowering(aten.isnan.default)
def _lower_isnan(meta: torch.Tensor, x: Value) -> Value:
    return pointwise("ne", meta, [x, x], x.dtype)


@register_lowering(aten.where.self)
def _lower_where(meta: torch.Tensor, condition: Value, a: Any, b: Any) -> Value:
    if meta.dtype.is_complex:
        raise Unlowered
    test = operand(condition, meta.shape, torch.bool)
    yes, no = (operand(value, meta.shape, compute_dtype(meta.dtype)) for value in (a, b))

    def at(index: Index) -> Expr:
        return rounded(test(index).where(yes(index), no(index)), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


def clamp(meta: torch.Tensor, x: Value, low: Any = None, high: Any = None) -> Value:
    """Clamp to two bounds: NaN stays NaN, and where ``low > high`` the result is `high`."""
    if low is not None:
        x = pointwise("maximum", meta, [x, low], meta.dtype)
    if high is not None:
        x = pointwise("minimum", meta, [x, high], meta.dtype)
    return x


register_lowering(aten.clamp.default, aten.clamp.Tensor)(clamp)


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


@register_lowering(aten.signbit.default)
def _lower_signbit(meta: torch.Tensor, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return pointwise("lt", meta, [x, 0], x.dtype)
    signs = pointwise("copysign", meta_tensor(x.shape, x.dtype), [1.0, x], x.dtype)
    return pointwise("lt", meta, [signs, 0], x.dtype)


@register_lowering(aten.angle.default)
def _lower_angle(meta: torch.Tensor, x: Value) -> Value:
    def element(v: Expr) -> Expr:
        phase = v.lt(0).where(const(math.pi, v.dtype), 0)
        return v.eq(v).where(phase, v)

    return elementwise(meta, [x], element)


@register_lowering(aten.hypot.default)
def _lower_hypot(meta: torch.Tensor, a: Value, b: Value) -> Value:
    """Compute ``large * sqrt(1 + (small / large)**2)``, which cannot overflow on the way."""

    def element(x: Expr, y: Expr) -> Expr:
        x, y = x.apply("abs"), y.apply("abs")
        large, small = x.apply("maximum", y), x.apply("minimum", y)
        ratio = small / large
        length = large * (const(1, x.dtype) + ratio * ratio).apply("sqrt")
        length = large.eq(0).where(0, length)
        # If either is infinite, so is the result, even next to NaN.
        return (x.eq(math.inf) | y.eq(math.inf)).where(math.inf, length)

    return elementwise(meta, [a, b], element)


@register_lowering(aten.round.decimals)
def _lower_round_decimals(meta: torch.Tensor, x: Value, *, decimals: int) -> Value:
    if not decimals:
        return pointwise("round", meta, [x], meta.dtype) if meta.dtype.is_floating_point else x
    if not meta.dtype.is_floating_point:
        raise Unlowered
    power_of_ten = 10.0 ** abs(decimals)
    scale_op, unscale_op = ("mul", "div") if decimals > 0 else ("div", "mul")

    def element(v: Expr) -> Expr:
        return v.apply(scale_op, power_of_ten).apply("round").apply(unscale_op, power_of_ten)

    return elementwise(meta, [x], element)


@register_lowering(aten.full.default, aten.full_like.default, *overloads("fill", "Scalar", "Tensor"))
def _lower_full(meta: torch.Tensor, like: Any, value: Any, **_: Any) -> Value:
    if meta.dtype.is_complex:
        raise Unlowered
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
    if isinstance(start, Scalar) or isinstance(step, Scalar):
        raise Unlowered
    if not meta.dtype.is_floating_point:
        start, step = int(start), int(step)  # truncate them before computing, as torch does

    def at(index: Index) -> Expr:
        if isinstance(start, int) and isinstance(step, int):
            return cast(index_value(index[0] * step + start), meta.dtype)
        return cast(cast(index_value(index[0]), torch.float64) * step + start, meta.dtype)

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
    step = (last - first) / intervals

    def at(index: Index) -> Expr:
        from_start, from_end = (
            cast(index_value(ix), math_dtype) for ix in (index[0], index[0] * -1 + (steps - 1))
        )
        is_first_half = index_value(index[0]).lt(index_value(IndexExpr(const=steps // 2)))
        return is_first_half.where(first + step * from_start, last - step * from_end)

    return to_result_dtype(Value(tuple(meta.shape), math_dtype, at), meta)


# --- gradients of piecewise functions ---------------------------------------------------------------------

# NaN takes the branch that it takes in torch's vectorized CPU kernels, which differ from its decompositions.


@register_lowering(aten.hardtanh_backward.default)
def _lower_hardtanh_backward(meta: torch.Tensor, grad_out: Value, x: Value, low: Any, high: Any) -> Value:
    def element(g: Expr, v: Expr, lower: Expr, upper: Expr) -> Expr:
        return (v.gt(lower) & v.lt(upper)).where(g, 0)

    return elementwise(meta, [grad_out, x, low, high], element)


@register_lowering(aten.hardswish_backward.default)
def _lower_hardswish_backward(meta: torch.Tensor, grad_out: Value, x: Value) -> Value:
    def element(g: Expr, v: Expr) -> Expr:
        between = g * (v / 3 + 0.5)
        return v.le(-3).where(0, v.ge(3).where(g, between))

    return elementwise(meta, [grad_out, x], element)


@register_lowering(aten.elu_backward.default)
def _lower_elu_backward(
    meta: torch.Tensor, grad_out: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Value
) -> Value:
    def element(g: Expr, v: Expr, a: Expr, s: Expr, t: Expr) -> Expr:
        coefficient = a * s
        if is_result:
            negative_part = g * t * (v + coefficient)
        else:
            negative_part = g * t * coefficient * (v * t).apply("exp")
        return v.gt(0).where(g * s, negative_part)

    return elementwise(meta, [grad_out, x, alpha, scale, input_scale], element)


# Lowerings of float8: bytes seen as float8 and converted to a wider float, and the way back. Quantized
# values are stored as bytes. `values.view(torch.float8_e4m3fn).to(dtype)` and
# `x.to(torch.float8_e4m3fn).view(torch.uint8)` are elementwise functions of bytes, so they fuse like any
# other. Between the two ops, a `Value` of a float8 dtype has bytes as its elements. It has no place in
# memory: a float8 tensor that is an argument, a result or an input of torch's own call is converted by
# torch.

FLOAT8_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
"""The float8 dtypes, with their names in expressions."""
_BYTES = (torch.uint8, torch.int8)
_CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
_VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.t.default, aten.transpose.int, aten.permute.default,
    aten.select.int, aten.slice.Tensor, aten.expand.default, aten.detach.default, aten.alias.default,
)  # fmt: skip


def find_float8_nodes(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes with float8 results or arguments that need no float8 tensor in memory.

    Such results are made by conversions or views of such, and only these read them.
    """
    touching = [n for n in nodes if _is_float8(n) or any(map(_is_float8, n.all_input_nodes))]
    found = {n for n in touching if _is_conversion(n)}
    while True:
        needs_memory = {
            n
            for n in found
            if any(_is_float8(source) and source not in found for source in n.all_input_nodes)
            or (_is_float8(n) and any(user not in found for user in n.users))
        }
        if not needs_memory:
            return found
        found -= needs_memory


def _is_float8(node: Node) -> bool:
    meta = node.meta.get("val")
    return isinstance(meta, torch.Tensor) and meta.dtype in FLOAT8_FORMATS


def _is_conversion(node: Node) -> bool:
    """Whether a node with a float8 tensor converts it or views it."""
    if node.op != "call_function" or len(node.all_input_nodes) != 1:
        return False
    (x,) = node.all_input_nodes
    meta, made = x.meta.get("val"), node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or not isinstance(made, torch.Tensor):
        return False
    source, result = meta.dtype, made.dtype
    if node.target is aten.view.dtype:
        return {source, result} <= {*FLOAT8_FORMATS, *_BYTES}
    if node.target in _CASTS:
        device = node.kwargs.get("device")
        is_here = device is None or device == made.device
        are_floats = source.is_floating_point and result.is_floating_point
        return is_here and are_floats and {source, result} <= {*DTYPES, *FLOAT8_FORMATS}
    return node.target in _VIEWS


@register_lowering(aten.view.dtype)
def _lower_view_dtype(meta: torch.Tensor, x: Value, dtype: torch.dtype) -> Value:
    """See bytes as float8, or float8 as bytes. Other views of a dtype are torch's: they share memory."""
    is_float8 = bool({x.dtype, dtype} & {*FLOAT8_FORMATS})
    if not is_float8 or not {x.dtype, dtype} <= {*FLOAT8_FORMATS, *_BYTES}:
        raise Unlowered
    stored = dtype if dtype in _BYTES else torch.uint8
    return Value(x.shape, dtype, lambda index: cast(x.at(index), stored))


def _lower_cast(meta: torch.Tensor, x: Value, *args: Any, **options: Any) -> Value:
    if meta.dtype == x.dtype or not {meta.dtype, x.dtype} & {*FLOAT8_FORMATS}:
        return lower_to_copy(meta, x, *args, **options)

    def at(index: Index) -> Expr:
        element = x.at(index)
        if x.dtype in FLOAT8_FORMATS:
            element = Expr.make("decode_float8", (element,), torch.float32, FLOAT8_FORMATS[x.dtype])
        if meta.dtype in FLOAT8_FORMATS:
            element = cast(element, torch.float32)
            if meta.dtype == torch.float8_e4m3fn and not _saturates():
                element = element.apply("abs").le(464.0).where(element, math.nan)
            return Expr.make("encode_float8", (element,), torch.uint8, FLOAT8_FORMATS[meta.dtype])
        return cast(element, meta.dtype)

    return Value(x.shape, meta.dtype, at)


@functools.cache
def _saturates() -> bool:
    """Whether torch converts what is too large for e4m3 to the largest number; before 2.13 to NaN."""
    with _torch.real_tensors():
        return not torch.tensor(1e3).to(torch.float8_e4m3fn).float().isnan().item()


LOWERINGS.update(dict.fromkeys(_CASTS, _lower_cast))
