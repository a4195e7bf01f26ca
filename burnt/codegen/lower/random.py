"""Lowerings of random numbers and dropout, with a counter-based generator.

A random number is a function of the plan's seed, the op's stream and a counter: the element's index in the
flattened result. Each op has its own stream, and an element may use several counters. So every target draws
the same numbers, and a backward draws them again instead of reading a saved mask. They are not eager torch's.

The generator is Philox4x32-10. All four words of a counter are used, one for each of four adjacent elements.
Ten rounds leave a margin over the seven that pass the known statistical tests. Uniform numbers have 24 random
bits in float32 and 53 in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value, index_value
from burnt.codegen.lower.registry import (
    Unlowered,
    cast,
    compute_dtype,
    const,
    operand,
    overloads,
    register_lowering,
)

aten = torch.ops.aten

# Random bits of a uniform number: as many as the dtype represents exactly, so that none is rounded up to 1.
_SIGNIFICAND_BITS = {torch.bfloat16: 8, torch.float16: 11}


class RandomSource(NamedTuple):
    """The source of an op's random numbers: the seed, as an expression, and the op's stream in the plan."""

    seed: Expr
    stream: int

    def uniform(self, counter: IndexExpr) -> Expr:
        """Return a float32 in [0, 1)."""
        return Expr.make("uniform", (self.seed, index_value(counter)), torch.float32, self.stream)

    def integer(self, counter: IndexExpr, bound: int) -> Expr:
        """Return an int64 in [0, bound), for bounds up to 2^32."""
        return Expr.make("random", (self.seed, index_value(counter)), torch.int64, self.stream, bound)

    def uniform64(self, counter: IndexExpr) -> Expr:
        """Return a float64 in [0, 1), from the numbers at `counter` and ``counter + 1``."""
        high = cast(self.integer(counter, 1 << 32), torch.float64)
        low = cast(self.integer(counter + 1, 1 << 21), torch.float64)
        return _add(_scale(high, 2.0**-32), _scale(low, 2.0**-53))


def _scale(a: Expr, factor: float) -> Expr:
    return Expr.make("mul", (a, const(factor, a.dtype)), a.dtype)


def _add(a: Expr, b: Expr) -> Expr:
    return Expr.make("add", (a, b), a.dtype)


def _flat_index(index: Index, meta: torch.Tensor) -> IndexExpr:
    """Return an index into the flattened result."""
    flat = IndexExpr()
    for ix, size in zip(index, meta.shape, strict=True):
        flat = flat * size + ix
    return flat


def _draw(meta: torch.Tensor, element: Callable[[IndexExpr], Expr]) -> Value:
    """Return a value whose element is a function of its index in the flattened result."""
    math_dtype = compute_dtype(meta.dtype)

    def at(index: Index) -> Expr:
        result = cast(element(_flat_index(index, meta)), math_dtype)
        return result if math_dtype == meta.dtype else Expr.make("as", (result,), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


def _require_supported(meta: torch.Tensor, options: dict[str, Any], *, floating: bool = True) -> None:
    """Raise `Unlowered` for a user's generator, complex dtypes and, if `floating`, integer dtypes."""
    if options.get("generator") is not None or meta.dtype.is_complex:
        raise Unlowered
    if floating and not meta.dtype.is_floating_point:
        raise Unlowered


def _draw_uniform(meta: torch.Tensor, source: RandomSource) -> Value:
    """Draw uniform numbers in [0, 1) of `meta`'s dtype."""
    if meta.dtype == torch.float64:
        return _draw(meta, lambda counter: source.uniform64(counter * 2))
    bits = _SIGNIFICAND_BITS.get(meta.dtype)
    if bits is None:
        return _draw(meta, source.uniform)

    def element(counter: IndexExpr) -> Expr:
        return _scale(cast(source.integer(counter, 1 << bits), torch.float32), 2.0**-bits)

    return _draw(meta, element)


@register_lowering(*overloads("rand", "default"), *overloads("rand_like", "default"))
def _lower_rand(meta: torch.Tensor, shape: Any, *, source: RandomSource, **options: Any) -> Value:
    _require_supported(meta, options)
    return _draw_uniform(meta, source)


@register_lowering(*overloads("uniform", "default"))
def _lower_uniform(
    meta: torch.Tensor, x: Value, low: Any = 0.0, high: Any = 1.0, *, source: RandomSource, **options: Any
) -> Value:
    _require_supported(meta, options)
    math_dtype = compute_dtype(meta.dtype)
    uniform, low_at, high_at = (
        _draw_uniform(meta, source),
        operand(low, (), math_dtype),
        operand(high, (), math_dtype),
    )

    def at(index: Index) -> Expr:
        width = Expr.make("sub", (high_at(()), low_at(())), math_dtype)
        result = _add(Expr.make("mul", (cast(uniform.at(index), math_dtype), width), math_dtype), low_at(()))
        # Rounding may give `high`, which is excluded.
        is_below_high = Expr.make("lt", (result, high_at(())), torch.bool)
        result = Expr.make("where", (is_below_high, result, low_at(())), math_dtype)
        return result if math_dtype == meta.dtype else Expr.make("as", (result,), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


def _draw_normal(meta: torch.Tensor, source: RandomSource) -> Value:
    """Draw standard normal numbers, each from two uniform numbers (Box and Muller, 1958)."""

    def single(counter: IndexExpr) -> Expr:
        # In (0, 1], with 32 bits: the smallest radius input bounds how large a normal number can be.
        bits = cast(source.integer(counter * 2, 1 << 32), torch.float32)
        return _box_muller(
            _add(_scale(bits, 2.0**-32), const(2.0**-33, torch.float32)), source.uniform(counter * 2 + 1)
        )

    def double(counter: IndexExpr) -> Expr:
        first = _add(source.uniform64(counter * 4), const(2.0**-54, torch.float64))
        return _box_muller(first, source.uniform64(counter * 4 + 2))

    return _draw(meta, double if meta.dtype == torch.float64 else single)


def _box_muller(radius: Expr, angle: Expr) -> Expr:
    """Return ``sqrt(-2 log radius) cos(2 pi angle)``."""
    dtype = radius.dtype
    length = Expr.make("sqrt", (_scale(Expr.make("log", (radius,), dtype), -2.0),), dtype)
    return Expr.make("mul", (length, Expr.make("cos", (_scale(angle, 2 * math.pi),), dtype)), dtype)


@register_lowering(*overloads("randn", "default"), *overloads("randn_like", "default"))
def _lower_randn(meta: torch.Tensor, shape: Any, *, source: RandomSource, **options: Any) -> Value:
    _require_supported(meta, options)
    return _draw_normal(meta, source)


def _draw_scaled_normal(meta: torch.Tensor, mean: Any, std: Any, source: RandomSource) -> Value:
    """Draw normal numbers with a mean and a standard deviation."""
    math_dtype = compute_dtype(meta.dtype)
    shape = tuple(meta.shape)
    normal = _draw_normal(torch.empty(shape, dtype=math_dtype, device="meta"), source)
    mean_at, std_at = operand(mean, shape, math_dtype), operand(std, shape, math_dtype)

    def at(index: Index) -> Expr:
        result = _add(Expr.make("mul", (normal.at(index), std_at(index)), math_dtype), mean_at(index))
        return result if math_dtype == meta.dtype else Expr.make("as", (result,), meta.dtype)

    return Value(shape, meta.dtype, at)


@register_lowering(*overloads("normal_functional", "default"))
def _lower_normal_functional(
    meta: torch.Tensor, x: Value, mean: Any = 0.0, std: Any = 1.0, *, source: RandomSource, **options: Any
) -> Value:
    _require_supported(meta, options)
    return _draw_scaled_normal(meta, mean, std, source)


@register_lowering(*overloads("normal", "float_float"))
def _lower_normal(
    meta: torch.Tensor, mean: Any, std: Any, size: Any, *, source: RandomSource, **options: Any
) -> Value:
    _require_supported(meta, options)
    return _draw_scaled_normal(meta, mean, std, source)


def _draw_integers(
    meta: torch.Tensor, low: Any, high: Any, source: RandomSource, options: dict[str, Any]
) -> Value:
    """Draw integers in [low, high)."""
    _require_supported(meta, options, floating=False)
    if type(low) is not int or type(high) is not int or not 0 < high - low <= 1 << 32:
        raise Unlowered

    def element(counter: IndexExpr) -> Expr:
        return _add(source.integer(counter, high - low), const(low, torch.int64))

    return _draw(meta, element)


@register_lowering(aten.randint.default)
def _lower_randint(
    meta: torch.Tensor, high: Any, size: Any, *, source: RandomSource, **options: Any
) -> Value:
    return _draw_integers(meta, 0, high, source, options)


@register_lowering(aten.randint.low)
def _lower_randint_low(
    meta: torch.Tensor, low: Any, high: Any, size: Any, *, source: RandomSource, **options: Any
) -> Value:
    return _draw_integers(meta, low, high, source, options)


@register_lowering(aten.randint_like.default)
def _lower_randint_like(
    meta: torch.Tensor, x: Value, high: Any, *, source: RandomSource, **options: Any
) -> Value:
    return _draw_integers(meta, 0, high, source, options)


@register_lowering(aten.randint_like.low_dtype)
def _lower_randint_like_low(
    meta: torch.Tensor, x: Value, low: Any, high: Any, *, source: RandomSource, **options: Any
) -> Value:
    return _draw_integers(meta, low, high, source, options)


def _bernoulli_condition(meta: torch.Tensor, p: Any, source: RandomSource) -> Callable[[Index], Expr]:
    """Return, as a function of an index, a bool that is true with probability `p`."""
    is_float64 = isinstance(p, Value) and p.dtype == torch.float64
    math_dtype = torch.float64 if is_float64 else torch.float32
    probability = operand(p, tuple(meta.shape), math_dtype)

    def at(index: Index) -> Expr:
        counter = _flat_index(index, meta)
        uniform = source.uniform64(counter * 2) if is_float64 else source.uniform(counter)
        return Expr.make("lt", (uniform, probability(index)), torch.bool)

    return at


def _draw_bernoulli(meta: torch.Tensor, p: Any, source: RandomSource) -> Value:
    """Draw 0 or 1, which has probability `p`."""
    is_one = _bernoulli_condition(meta, p, source)
    return Value(tuple(meta.shape), meta.dtype, lambda index: cast(is_one(index), meta.dtype))


@register_lowering(aten.bernoulli.default)
def _lower_bernoulli(meta: torch.Tensor, p: Value, *, source: RandomSource, **options: Any) -> Value:
    _require_supported(meta, options)
    return _draw_bernoulli(meta, p, source)


@register_lowering(aten.bernoulli.p)
def _lower_bernoulli_p(
    meta: torch.Tensor, x: Value, p: Any, *, source: RandomSource, **options: Any
) -> Value:
    _require_supported(meta, options, floating=False)
    return _draw_bernoulli(meta, p, source)


@register_lowering(aten.bernoulli.Tensor)
def _lower_bernoulli_tensor(
    meta: torch.Tensor, x: Value, p: Value, *, source: RandomSource, **options: Any
) -> Value:
    _require_supported(meta, options, floating=False)
    return _draw_bernoulli(meta, p, source)


@register_lowering(*overloads("exponential", "default"))
def _lower_exponential(
    meta: torch.Tensor, x: Value, rate: Any = 1.0, *, source: RandomSource, **options: Any
) -> Value:
    _require_supported(meta, options)
    math_dtype = compute_dtype(meta.dtype)
    uniform = _draw_uniform(torch.empty(meta.shape, dtype=math_dtype, device="meta"), source)
    rate_at = operand(rate, (), math_dtype)

    def at(index: Index) -> Expr:
        # For u in [0, 1), log1p(-u) is finite, and 0 at u = 0.
        negated = Expr.make("neg", (uniform.at(index),), math_dtype)
        result = Expr.make("neg", (Expr.make("log1p", (negated,), math_dtype),), math_dtype)
        result = Expr.make("div", (result, rate_at(())), math_dtype)
        return result if math_dtype == meta.dtype else Expr.make("as", (result,), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


@register_lowering(aten.native_dropout.default)
def _lower_native_dropout(
    metas: Any, x: Value, p: Any, train: bool | None, *, source: RandomSource
) -> tuple[Value, Value]:
    meta = metas[0]
    _require_supported(meta, {})
    if not isinstance(p, int | float):
        raise Unlowered
    shape, math_dtype = tuple(meta.shape), compute_dtype(meta.dtype)
    if train is False or p == 0:
        one = const(True, torch.bool)
        return x, Value(shape, torch.bool, lambda index: one)
    is_kept = _bernoulli_condition(meta, 1 - p, source)
    scale = const(0.0 if p == 1 else 1 / (1 - p), math_dtype)

    def at(index: Index) -> Expr:
        # Multiplied, as in torch: NaN and infinity give NaN where they are dropped.
        scale_or_zero = Expr.make("where", (is_kept(index), scale, const(0, math_dtype)), math_dtype)
        result = Expr.make("mul", (cast(x.at(index), math_dtype), scale_or_zero), math_dtype)
        return result if math_dtype == meta.dtype else Expr.make("as", (result,), meta.dtype)

    return Value(shape, meta.dtype, at), Value(shape, torch.bool, is_kept)
