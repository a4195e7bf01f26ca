"""Lowering: from aten ops to values of the intermediate form.

A table from op to function. What is not in it runs as torch's own call, and is reported as such.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from burnt.codegen.ir import Expr, Index, Ix, Reduction, Value, reduced
from burnt.codegen.ir import index as place_of

__all__ = ["LOWERINGS", "Lowering", "Unlowered", "const"]

aten = torch.ops.aten
Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)
LOWERINGS: dict[Any, Lowering] = {}

_SHORT = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


class Unlowered(Exception):
    """An op, or this use of it, is not lowered; torch's own call serves."""


class Number:
    """A Python number that is known at run time only."""

    def __init__(self, position: int) -> None:
        self.position = position


def const(value: Any, dtype: torch.dtype) -> Expr:
    """A constant of a dtype, which holds it as the dtype does: rounded, or wrapped around."""
    if isinstance(value, complex):
        raise Unlowered
    if dtype.is_floating_point:
        value = float(torch.tensor(value, dtype=torch.float64).to(dtype))
    elif dtype == torch.bool:
        value = bool(value)
    else:
        bits = torch.iinfo(dtype).bits
        value = int(value) % (1 << bits)
        value -= (value >> (bits - 1)) << bits if dtype.is_signed else 0
    return Expr.make("const", (), dtype, value)


def cast(expr: Expr, dtype: torch.dtype) -> Expr:
    """An expression in another dtype, as torch converts."""
    if expr.dtype == dtype:
        return expr
    if expr.op == "const":
        value = expr.extra[0]
        assert isinstance(value, int | float)
        if dtype == torch.bool:
            return const(bool(value), dtype)
        if dtype.is_floating_point or not isinstance(value, float):
            return const(value, dtype)
    return Expr.make("cast", (expr,), dtype)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that an op on `dtype` computes in: float32 for the 16-bit floats."""
    return _SHORT.get(dtype, dtype)


def lowered(*ops: Any) -> Callable[[F], F]:
    """Register a lowering: called with the FX node's meta and its arguments, tensors as Values."""

    def register(fn: F) -> F:
        for op in ops:
            LOWERINGS[op] = fn
        return fn

    return register


# --- elementwise ------------------------------------------------------------------------------------------


def broadcast(value: Value, shape: Sequence[int]) -> Callable[[Index], Expr]:
    """The value as a function of an index of a larger shape."""
    skip = len(shape) - len(value.shape)
    ones = [size == 1 for size in value.shape]

    def at(index: Index) -> Expr:
        return value.at(
            tuple(Ix() if one else ix for one, ix in zip(ones, index[skip:], strict=True))
        )  # fmt: skip

    return at


def operand(value: Any, shape: Sequence[int], dtype: torch.dtype) -> Callable[[Index], Expr]:
    """A tensor or number as a function of an index, computed in a dtype."""
    if isinstance(value, Value):
        at = broadcast(value, shape)
        return lambda index: cast(at(index), dtype)
    if isinstance(value, Number):
        number = Expr.make("number", (), torch.float64, value.position)
        return lambda index: cast(number, dtype)
    fixed = const(value, dtype)
    return lambda index: fixed


def pointwise(name: str, meta: torch.Tensor, inputs: Sequence[Any], dtype: torch.dtype) -> Value:
    """An operation on inputs in one dtype, element by element."""
    if meta.dtype.is_complex or dtype.is_complex:
        raise Unlowered
    shape = tuple(meta.shape)
    inside = compute_dtype(dtype)
    functions = [operand(value, shape, inside) for value in inputs]
    outside = meta.dtype if meta.dtype not in _SHORT else torch.float32

    def at(index: Index) -> Expr:
        made = Expr.make(name, [fn(index) for fn in functions], outside)
        return made if meta.dtype == outside else Expr.make("as", (made,), meta.dtype)

    return Value(shape, meta.dtype, at)


def common_dtype(*inputs: Any) -> torch.dtype:
    """What torch promotes tensors and numbers to."""
    state = [
        torch.empty((1,) * len(v.shape), dtype=v.dtype, device="meta")
        if isinstance(v, Value)
        else 1.0
        if isinstance(v, Number)
        else v
        for v in inputs
    ]
    result = torch.result_type(state[0], state[-1])
    for other in state[1:-1]:
        result = torch.promote_types(result, torch.result_type(state[0], other))
    return result


_FLOATING = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh",
    "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "reciprocal",
)  # fmt: skip
_SAME = ("neg", "abs", "sign", "ceil", "floor", "round", "trunc", "relu")
_TESTS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def _overloads(name: str, *which: str) -> list[Any]:
    packet = getattr(aten, name)
    return [getattr(packet, o) for o in which if o in packet.overloads()]


def _unary(name: str) -> None:
    @lowered(*_overloads(name, "default"))
    def lower(meta: torch.Tensor, x: Value) -> Value:
        if name in _SAME and not x.dtype.is_floating_point and name in ("ceil", "floor", "round", "trunc"):
            return x
        return pointwise(name, meta, [x], meta.dtype)


for _name in (*_FLOATING, *_SAME):
    _unary(_name)


def _binary(name: str, op: str) -> None:
    @lowered(*_overloads(name, "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "default"))
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


@lowered(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(meta: torch.Tensor, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return pointwise("div", meta, [a, b], meta.dtype)
    if not meta.dtype.is_floating_point:
        raise Unlowered  # integer division by zero is an error in torch
    return pointwise(f"{rounding_mode}_div", meta, [a, b], meta.dtype)


@lowered(aten.remainder.Tensor, aten.remainder.Scalar)
def _remainder(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if not meta.dtype.is_floating_point:
        raise Unlowered
    return pointwise("remainder", meta, [a, b], meta.dtype)


@lowered(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if not meta.dtype.is_floating_point:
        raise Unlowered
    return pointwise("fmod", meta, [a, b], meta.dtype)


@lowered(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(meta: torch.Tensor, a: Any, b: Any) -> Value:
    if not meta.dtype.is_floating_point:
        raise Unlowered
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


for _name, _op in _TESTS.items():

    def _test(meta: torch.Tensor, a: Any, b: Any, op: str = _op) -> Value:
        return pointwise(op, meta, [a, b], common_dtype(a, b))

    for _overload in _overloads(_name, "Tensor", "Scalar"):
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
    aten.alias.default, aten.detach.default, aten.clone.default, aten.lift_fresh_copy.default,
    aten.contiguous.default, aten.positive.default,
)  # fmt: skip
def _alias(meta: torch.Tensor, x: Value, **_: Any) -> Value:
    return x


@lowered(aten.full.default, aten.full_like.default)
def _full(meta: torch.Tensor, like: Any, value: Any, **_: Any) -> Value:
    if meta.dtype.is_complex:
        raise Unlowered
    at = operand(value, (), meta.dtype)
    return Value(tuple(meta.shape), meta.dtype, lambda index: at(()))


@lowered(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def _zeros(meta: torch.Tensor, *_: Any, **__: Any) -> Value:
    return _full(meta, None, 0)


@lowered(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(meta: torch.Tensor, *_: Any, **__: Any) -> Value:
    return _full(meta, None, 1)


@lowered(aten.scalar_tensor.default)
def _scalar_tensor(meta: torch.Tensor, value: Any, **_: Any) -> Value:
    return _full(meta, None, value)


@lowered(aten.arange.start_step)
def _arange(meta: torch.Tensor, start: Any, end: Any, step: Any = 1, **_: Any) -> Value:
    if not all(isinstance(v, int) for v in (start, step)):
        raise Unlowered
    return Value(
        tuple(meta.shape),
        meta.dtype,
        lambda index: cast(place_of(index[0] * step + start), meta.dtype),
    )


# --- views ------------------------------------------------------------------------------------------------


def reshaped(x: Value, shape: Sequence[int]) -> Value:
    """The same elements in the same order under another shape."""
    shape = tuple(shape)

    def at(index: Index) -> Expr:
        flat = Ix()
        for ix, size in zip(index, shape, strict=True):
            flat = flat * size + ix
        inner: list[Ix] = []
        for size in reversed(x.shape):
            inner.append(flat % size if size else Ix())
            flat = flat // size if size else Ix()
        return x.at(tuple(reversed(inner)))

    return x if shape == x.shape else Value(shape, x.dtype, at)


@lowered(
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
)  # fmt: skip
def _reshape(meta: torch.Tensor, x: Value, *_: Any) -> Value:
    return reshaped(x, meta.shape)


@lowered(aten.expand.default)
def _expand(meta: torch.Tensor, x: Value, *_: Any, **__: Any) -> Value:
    return Value(tuple(meta.shape), x.dtype, broadcast(x, meta.shape))


def permuted(x: Value, order: Sequence[int]) -> Value:
    """The axes in another order."""
    order = [axis % len(x.shape) for axis in order]
    shape = tuple(x.shape[axis] for axis in order)

    def at(index: Index) -> Expr:
        inner = [Ix()] * len(order)
        for ix, axis in zip(index, order, strict=True):
            inner[axis] = ix
        return x.at(tuple(inner))

    return Value(shape, x.dtype, at)


@lowered(aten.permute.default)
def _permute(meta: torch.Tensor, x: Value, order: Sequence[int]) -> Value:
    return permuted(x, order)


@lowered(aten.transpose.int)
def _transpose(meta: torch.Tensor, x: Value, a: int, b: int) -> Value:
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    order[a], order[b] = order[b], order[a]
    return permuted(x, order)


@lowered(aten.t.default)
def _t(meta: torch.Tensor, x: Value) -> Value:
    return permuted(x, list(range(len(x.shape)))[::-1])


def moved(x: Value, shape: Sequence[int], axis: int, start: int, step: int) -> Value:
    """A stretch of an axis: element i is element ``start + i * step``."""
    return Value(
        tuple(shape),
        x.dtype,
        lambda index: x.at((*index[:axis], index[axis] * step + start, *index[axis + 1 :])),
    )


@lowered(aten.slice.Tensor)
def _slice(
    meta: torch.Tensor,
    x: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    axis %= len(x.shape)
    size = x.shape[axis]
    start = 0 if start is None else max(start + size, 0) if start < 0 else min(start, size)
    return moved(x, meta.shape, axis, start, step)


@lowered(aten.select.int)
def _select(meta: torch.Tensor, x: Value, axis: int, at: int) -> Value:
    axis %= len(x.shape)
    place = Ix.of(at % x.shape[axis])
    return Value(tuple(meta.shape), x.dtype, lambda index: x.at((*index[:axis], place, *index[axis:])))


@lowered(aten.flip.default)
def _flip(meta: torch.Tensor, x: Value, axes: Sequence[int]) -> Value:
    for axis in axes if x.shape else ():
        axis %= len(x.shape)
        x = moved(x, x.shape, axis, x.shape[axis] - 1, -1)
    return x


@lowered(aten.repeat.default)
def _repeat(meta: torch.Tensor, x: Value, times: Sequence[int]) -> Value:
    skip = len(times) - len(x.shape)
    return Value(
        tuple(meta.shape),
        x.dtype,
        lambda index: x.at(
            tuple(ix % size if size else Ix() for ix, size in zip(index[skip:], x.shape, strict=True))
        ),
    )


def within(ix: Ix, low: int, high: int) -> Expr | None:
    """Whether ``low <= ix < high``; None where it always is."""
    first, last = ix.bounds()
    place = place_of(ix)
    tests = []
    if first < low:
        tests.append(Expr.make("ge", (place, const(low, torch.int64)), torch.bool))
    if last >= high:
        tests.append(Expr.make("lt", (place, const(high, torch.int64)), torch.bool))
    if len(tests) == 2:
        return Expr.make("and", tests, torch.bool)
    return tests[0] if tests else None


def chosen(test: Expr | None, yes: Expr, no: Expr) -> Expr:
    """`yes` where the test holds, and only there evaluated."""
    return yes if test is None else Expr.make("masked", (test, yes, no), yes.dtype)


@lowered(aten.constant_pad_nd.default)
def _pad(meta: torch.Tensor, x: Value, pads: Sequence[int], value: Any = 0) -> Value:
    if isinstance(value, Number):
        raise Unlowered
    before = [0] * len(x.shape)
    for i in range(len(pads) // 2):
        before[-1 - i] = pads[2 * i]
    fill = const(value, meta.dtype)

    def at(index: Index) -> Expr:
        inner = tuple(ix - b for ix, b in zip(index, before, strict=True))
        result = x.at(inner)
        for ix, size in zip(inner, x.shape, strict=True):
            result = chosen(within(ix, 0, size), result, fill)
        return result

    return Value(tuple(meta.shape), meta.dtype, at)


@lowered(aten.cat.default)
def _cat(meta: torch.Tensor, parts: Sequence[Value], axis: int = 0) -> Value:
    axis %= len(meta.shape)
    starts, start = [], 0
    parts = [p for p in parts if p.shape != (0,) or len(meta.shape) == 1]
    for part in parts:
        starts.append(start)
        start += part.shape[axis]
    functions = [operand(part, part.shape, meta.dtype) for part in parts]

    def at(index: Index) -> Expr:
        result: Expr | None = None
        for part, fn, begin in reversed(list(zip(parts, functions, starts, strict=True))):
            if not part.shape[axis]:
                continue
            here = fn((*index[:axis], index[axis] - begin, *index[axis + 1 :]))
            test = within(index[axis], 0, begin + part.shape[axis])
            result = here if result is None else chosen(test, here, result)
        return result if result is not None else const(0, meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


# --- reductions -------------------------------------------------------------------------------------------


def reduction(
    kind: str, x: Value, axes: Sequence[int] | None, keepdim: bool, dtype: torch.dtype, inside: torch.dtype
) -> Value:
    """A fold over axes (all of them for None or an empty list), computed in `inside`, given in `dtype`."""
    rank = len(x.shape)
    over = sorted({axis % rank for axis in axes}) if axes and rank else list(range(rank))
    kept = [axis for axis in range(rank) if axis not in over]

    def body(outer: Index, inner: Index) -> Expr:
        index: list[Ix] = [Ix()] * rank
        for ix, axis in zip(outer, kept, strict=True):
            index[axis] = ix
        for ix, axis in zip(inner, over, strict=True):
            index[axis] = ix
        return cast(x.at(tuple(index)), inside)

    result_inside = torch.int64 if kind in ("argmax", "argmin") else inside
    node = Reduction(
        kind, tuple(x.shape[a] for a in kept), tuple(x.shape[a] for a in over), result_inside, body
    )
    shape = tuple(1 if a in over else s for a, s in enumerate(x.shape)) if keepdim else node.shape

    def at(index: Index) -> Expr:
        outer = tuple(index[a] for a in kept) if keepdim else index
        made = reduced(node, outer)
        if dtype == result_inside:
            return made
        return Expr.make("as" if dtype in _SHORT else "cast", (made,), dtype)

    return Value(shape, dtype, at)


@lowered(aten.sum.dim_IntList, aten.sum.default)
def _sum(
    meta: torch.Tensor, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    return reduction("sum", x, axes, keepdim, meta.dtype, compute_dtype(meta.dtype))


@lowered(aten.mean.dim, aten.mean.default)
def _mean(
    meta: torch.Tensor, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    total = reduction("sum", x, axes, keepdim, meta.dtype, compute_dtype(meta.dtype))
    count = x.numel // max(total.numel, 1) if x.numel else 0
    return pointwise("div", meta, [total, count], meta.dtype)


@lowered(aten.amax.default)
def _amax(meta: torch.Tensor, x: Value, axes: Any = (), keepdim: bool = False) -> Value:
    return reduction("max", x, axes, keepdim, meta.dtype, compute_dtype(meta.dtype))


@lowered(aten.amin.default)
def _amin(meta: torch.Tensor, x: Value, axes: Any = (), keepdim: bool = False) -> Value:
    return reduction("min", x, axes, keepdim, meta.dtype, compute_dtype(meta.dtype))


@lowered(aten.max.default)
def _max(meta: torch.Tensor, x: Value) -> Value:
    return _amax(meta, x)


@lowered(aten.min.default)
def _min(meta: torch.Tensor, x: Value) -> Value:
    return _amin(meta, x)


@lowered(aten.prod.default, aten.prod.dim_int)
def _prod(
    meta: torch.Tensor, x: Value, axis: int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    return reduction(
        "prod", x, None if axis is None else [axis], keepdim, meta.dtype, compute_dtype(meta.dtype)
    )


def _axes(axis: Any) -> list[int] | None:
    return None if axis is None else [axis] if isinstance(axis, int) else list(axis)


@lowered(aten.any.default, aten.any.dim, aten.any.dims)
def _any(meta: torch.Tensor, x: Value, axis: Any = None, keepdim: bool = False) -> Value:
    if meta.dtype != torch.bool:
        raise Unlowered
    return reduction("any", x, _axes(axis), keepdim, torch.bool, torch.bool)


@lowered(aten.all.default, aten.all.dim, aten.all.dims)
def _all(meta: torch.Tensor, x: Value, axis: Any = None, keepdim: bool = False) -> Value:
    if meta.dtype != torch.bool:
        raise Unlowered
    return reduction("all", x, _axes(axis), keepdim, torch.bool, torch.bool)


def _arg(kind: str) -> Lowering:
    def lower(meta: torch.Tensor, x: Value, axis: int | None = None, keepdim: bool = False) -> Value:
        return reduction(
            kind, x, None if axis is None else [axis], keepdim, torch.int64, compute_dtype(x.dtype)
        )

    return lower


LOWERINGS[aten.argmax.default] = _arg("argmax")
LOWERINGS[aten.argmin.default] = _arg("argmin")


@lowered(aten.var_mean.correction)
def _var_mean(
    metas: Sequence[torch.Tensor], x: Value, axes: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    meta = metas[0]
    inside = compute_dtype(meta.dtype)
    total = reduction("sum", x, axes, True, inside, inside)
    count = x.numel // max(total.numel, 1) if x.numel else 0
    wide = torch.empty(x.shape, dtype=inside, device="meta")
    narrow = torch.empty(total.shape, dtype=inside, device="meta")
    mean = pointwise("div", narrow, [total, count], inside)
    centred = pointwise("sub", wide, [x, mean], inside)
    squares = reduction("sum", pointwise("mul", wide, [centred, centred], inside), axes, True, inside, inside)
    divisor = max(count - (1 if correction is None else correction), 0)
    variance = pointwise("div", narrow, [squares, float(divisor)], inside)

    def given(value: Value) -> Value:
        shaped = reshaped(value, meta.shape)
        if meta.dtype == inside:
            return shaped
        return Value(shaped.shape, meta.dtype, lambda index: Expr.make("as", (shaped.at(index),), meta.dtype))

    return given(variance), given(mean)


@lowered(aten.var.correction)
def _var(
    meta: torch.Tensor, x: Value, axes: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> Value:
    return _var_mean([meta], x, axes, correction=correction, keepdim=keepdim)[0]


@lowered(operator.getitem)
def _getitem(meta: Any, parts: Sequence[Any], at: int) -> Any:
    return parts[at]


@lowered(aten.split.Tensor, aten.split_with_sizes.default)
def _split(metas: Sequence[torch.Tensor], x: Value, sizes: Any, axis: int = 0) -> list[Value]:
    axis %= len(x.shape)
    parts, start = [], 0
    for meta in metas:
        parts.append(moved(x, meta.shape, axis, start, 1))
        start += meta.shape[axis]
    return parts


@lowered(aten.unbind.int)
def _unbind(metas: Sequence[torch.Tensor], x: Value, axis: int = 0) -> list[Value]:
    return [_select(meta, x, axis, i) for i, meta in enumerate(metas)]
