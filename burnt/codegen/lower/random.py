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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value, cast, const, index_value, ravel
from burnt.codegen.lower.registry import (
    Unlowered,
    compute_dtype,
    elementwise,
    full,
    meta_tensor,
    operand,
    overloads,
    register_lowering,
    rounded,
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
        return high * 2.0**-32 + low * 2.0**-53


def _draw(meta: torch.Tensor, element: Callable[[IndexExpr], Expr]) -> Value:
    """Return a value whose element is a function of its index in the flattened result."""

    def at(index: Index) -> Expr:
        return rounded(cast(element(ravel(index, meta.shape)), compute_dtype(meta.dtype)), meta.dtype)

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
    return _draw(meta, lambda counter: cast(source.integer(counter, 1 << bits), torch.float32) * 2.0**-bits)


@register_lowering(*overloads("rand", "default"), *overloads("rand_like", "default"))
def _lower_rand(meta: torch.Tensor, shape: Any, *, source: RandomSource, **options: Any) -> Value:
    _require_supported(meta, options)
    return _draw_uniform(meta, source)


@register_lowering(*overloads("uniform", "default"))
def _lower_uniform(
    meta: torch.Tensor, x: Value, low: Any = 0.0, high: Any = 1.0, *, source: RandomSource, **options: Any
) -> Value:
    _require_supported(meta, options)

    def element(uniform: Expr, low: Expr, high: Expr) -> Expr:
        result = uniform * (high - low) + low
        return result.lt(high).where(result, low)  # rounding may give `high`, which is excluded

    return elementwise(meta, [_draw_uniform(meta, source), low, high], element)


def _draw_normal(meta: torch.Tensor, source: RandomSource) -> Value:
    """Draw standard normal numbers, each from two uniform numbers (Box and Muller, 1958)."""

    def single(counter: IndexExpr) -> Expr:
        # In (0, 1], with 32 bits: the smallest radius input bounds how large a normal number can be.
        bits = cast(source.integer(counter * 2, 1 << 32), torch.float32)
        return _box_muller(bits * 2.0**-32 + 2.0**-33, source.uniform(counter * 2 + 1))

    def double(counter: IndexExpr) -> Expr:
        return _box_muller(source.uniform64(counter * 4) + 2.0**-54, source.uniform64(counter * 4 + 2))

    return _draw(meta, double if meta.dtype == torch.float64 else single)


def _box_muller(radius: Expr, angle: Expr) -> Expr:
    """Return ``sqrt(-2 log radius) cos(2 pi angle)``."""
    return (radius.apply("log") * -2.0).apply("sqrt") * (angle * (2 * math.pi)).apply("cos")


@register_lowering(*overloads("randn", "default"), *overloads("randn_like", "default"))
def _lower_randn(meta: torch.Tensor, shape: Any, *, source: RandomSource, **options: Any) -> Value:
    _require_supported(meta, options)
    return _draw_normal(meta, source)


def _draw_scaled_normal(meta: torch.Tensor, mean: Any, std: Any, source: RandomSource) -> Value:
    normal = _draw_normal(meta_tensor(meta.shape, compute_dtype(meta.dtype)), source)
    return elementwise(meta, [normal, mean, std], lambda normal, mean, std: normal * std + mean)


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
    positions: Sequence[int], meta: torch.Tensor, *args: Any, source: RandomSource, **options: Any
) -> Value:
    """Draw integers in [low, high), whose bounds are at these positions of the arguments; or [0, high)."""
    _require_supported(meta, options, floating=False)
    low, high = ([0] + [args[i] for i in positions])[-2:]
    if type(low) is not int or type(high) is not int or not 0 < high - low <= 1 << 32:
        raise Unlowered
    return _draw(meta, lambda counter: source.integer(counter, high - low) + low)


register_lowering(aten.randint.default)(partial(_draw_integers, (0,)))  # high, size
register_lowering(aten.randint.low)(partial(_draw_integers, (0, 1)))  # low, high, size
register_lowering(aten.randint_like.default)(partial(_draw_integers, (1,)))  # x, high
register_lowering(aten.randint_like.low_dtype)(partial(_draw_integers, (1, 2)))  # x, low, high


def _bernoulli_condition(meta: torch.Tensor, p: Any, source: RandomSource) -> Callable[[Index], Expr]:
    """Return, as a function of an index, a bool that is true with probability `p`."""
    is_float64 = isinstance(p, Value) and p.dtype == torch.float64
    math_dtype = torch.float64 if is_float64 else torch.float32
    probability = operand(p, tuple(meta.shape), math_dtype)

    def at(index: Index) -> Expr:
        counter = ravel(index, meta.shape)
        uniform = source.uniform64(counter * 2) if is_float64 else source.uniform(counter)
        return uniform.lt(probability(index))

    return at


@register_lowering(aten.bernoulli.p, aten.bernoulli.Tensor)
def _lower_bernoulli_p(
    meta: torch.Tensor, x: Value, p: Any, *, source: RandomSource, **options: Any
) -> Value:
    """Draw 0 or 1, which has probability `p`."""
    _require_supported(meta, options, floating=False)
    is_one = _bernoulli_condition(meta, p, source)
    return Value(tuple(meta.shape), meta.dtype, lambda index: cast(is_one(index), meta.dtype))


@register_lowering(aten.bernoulli.default)
def _lower_bernoulli(meta: torch.Tensor, p: Value, *, source: RandomSource, **options: Any) -> Value:
    _require_supported(meta, options)
    return _lower_bernoulli_p(meta, p, p, source=source)


@register_lowering(*overloads("exponential", "default"))
def _lower_exponential(
    meta: torch.Tensor, x: Value, rate: Any = 1.0, *, source: RandomSource, **options: Any
) -> Value:
    _require_supported(meta, options)
    uniform = _draw_uniform(meta_tensor(meta.shape, compute_dtype(meta.dtype)), source)
    # For u in [0, 1), log1p(-u) is finite, and 0 at u = 0.
    return elementwise(meta, [uniform, rate], lambda u, rate: -(-u).apply("log1p") / rate)


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
        return x, full(shape, True, torch.bool)
    is_kept = _bernoulli_condition(meta, 1 - p, source)
    scale = const(0.0 if p == 1 else 1 / (1 - p), math_dtype)

    def at(index: Index) -> Expr:
        # Multiplied, as in torch: NaN and infinity give NaN where they are dropped.
        return rounded(cast(x.at(index), math_dtype) * is_kept(index).where(scale, 0), meta.dtype)

    return Value(shape, meta.dtype, at), Value(shape, torch.bool, is_kept)
