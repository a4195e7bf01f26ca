"""Lowerings of random numbers: counter-based, so that an element is a function of a seed and its place.

Every op of a plan draws from a stream of its own under the plan's seed, an element as many numbers as it
needs, at its place in the result's order. So the same numbers come out on every target, and in a derived
backward, which draws them again instead of reading a mask. They are not those of eager torch.

The generator is Philox4x32-10: all four words of a counter are used, one for each of four neighbours, and ten
rounds leave a margin over the seven that pass the known tests. Uniform numbers have 24 bits in float32 and 53
in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value
from burnt.codegen.ir import index_value as place_of
from burnt.codegen.lower.registry import Unlowered, cast, compute_dtype, const, lowered, operand, overloads

aten = torch.ops.aten

# Bits of a uniform number that its dtype holds, so that rounding makes none of them 1.
_BITS = {torch.bfloat16: 8, torch.float16: 11}


class Source(NamedTuple):
    """Where an op's random numbers come from: the seed as an element, and which op of the plan it is."""

    seed: Expr
    stream: int

    def uniform(self, counter: IndexExpr) -> Expr:
        """A float32 in [0, 1)."""
        return Expr.make("uniform", (self.seed, place_of(counter)), torch.float32, self.stream)

    def integer(self, counter: IndexExpr, bound: int) -> Expr:
        """An int64 in [0, bound), for bounds up to 2^32."""
        return Expr.make("random", (self.seed, place_of(counter)), torch.int64, self.stream, bound)

    def uniform64(self, counter: IndexExpr) -> Expr:
        """A float64 in [0, 1), of the two numbers from the counter on."""
        high = cast(self.integer(counter, 1 << 32), torch.float64)
        low = cast(self.integer(counter + 1, 1 << 21), torch.float64)
        return _sum(_times(high, 2.0**-32), _times(low, 2.0**-53))


def _times(a: Expr, by: float) -> Expr:
    return Expr.make("mul", (a, const(by, a.dtype)), a.dtype)


def _sum(a: Expr, b: Expr) -> Expr:
    return Expr.make("add", (a, b), a.dtype)


def _flat(index: Index, meta: torch.Tensor) -> IndexExpr:
    place = IndexExpr()
    for ix, size in zip(index, meta.shape, strict=True):
        place = place * size + ix
    return place


def _drawn(meta: torch.Tensor, element: Callable[[IndexExpr], Expr]) -> Value:
    """A tensor of numbers, each a function of its place."""
    inside = compute_dtype(meta.dtype)

    def at(index: Index) -> Expr:
        made = cast(element(_flat(index, meta)), inside)
        return made if inside == meta.dtype else Expr.make("as", (made,), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


def _checked(meta: torch.Tensor, options: dict[str, Any], *, floating: bool = True) -> None:
    """Refuse what the seed does not determine, and dtypes that are not drawn."""
    if options.get("generator") is not None or meta.dtype.is_complex:
        raise Unlowered
    if floating and not meta.dtype.is_floating_point:
        raise Unlowered


def _uniform(meta: torch.Tensor, source: Source) -> Value:
    if meta.dtype == torch.float64:
        return _drawn(meta, lambda place: source.uniform64(place * 2))
    bits = _BITS.get(meta.dtype)
    if bits is None:
        return _drawn(meta, source.uniform)

    def few(place: IndexExpr) -> Expr:
        return _times(cast(source.integer(place, 1 << bits), torch.float32), 2.0**-bits)

    return _drawn(meta, few)


@lowered(*overloads("rand", "default"), *overloads("rand_like", "default"))
def _rand(meta: torch.Tensor, shape: Any, *, source: Source, **options: Any) -> Value:
    _checked(meta, options)
    return _uniform(meta, source)


@lowered(*overloads("uniform", "default"))
def _uniform_between(
    meta: torch.Tensor, x: Value, low: Any = 0.0, high: Any = 1.0, *, source: Source, **options: Any
) -> Value:
    _checked(meta, options)
    inside = compute_dtype(meta.dtype)
    drawn, start, end = _uniform(meta, source), operand(low, (), inside), operand(high, (), inside)

    def at(index: Index) -> Expr:
        width = Expr.make("sub", (end(()), start(())), inside)
        made = _sum(Expr.make("mul", (cast(drawn.at(index), inside), width), inside), start(()))
        # Rounding may reach the upper bound.
        short = Expr.make("lt", (made, end(())), torch.bool)
        made = Expr.make("where", (short, made, start(())), inside)
        return made if inside == meta.dtype else Expr.make("as", (made,), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


def _normal(meta: torch.Tensor, source: Source) -> Value:
    """Standard normal numbers, by Box and Muller (1958) of two uniform ones each."""

    def single(place: IndexExpr) -> Expr:
        # In (0, 1], with 32 bits: the smallest sets how far out the largest numbers are.
        bits = cast(source.integer(place * 2, 1 << 32), torch.float32)
        return _polar(
            _sum(_times(bits, 2.0**-32), const(2.0**-33, torch.float32)), source.uniform(place * 2 + 1)
        )

    def double(place: IndexExpr) -> Expr:
        first = _sum(source.uniform64(place * 4), const(2.0**-54, torch.float64))
        return _polar(first, source.uniform64(place * 4 + 2))

    return _drawn(meta, double if meta.dtype == torch.float64 else single)


def _polar(radius: Expr, angle: Expr) -> Expr:
    dtype = radius.dtype
    length = Expr.make("sqrt", (_times(Expr.make("log", (radius,), dtype), -2.0),), dtype)
    return Expr.make("mul", (length, Expr.make("cos", (_times(angle, 2 * math.pi),), dtype)), dtype)


@lowered(*overloads("randn", "default"), *overloads("randn_like", "default"))
def _randn(meta: torch.Tensor, shape: Any, *, source: Source, **options: Any) -> Value:
    _checked(meta, options)
    return _normal(meta, source)


def _scaled(meta: torch.Tensor, mean: Any, std: Any, source: Source) -> Value:
    inside = compute_dtype(meta.dtype)
    shape = tuple(meta.shape)
    wide = _normal(torch.empty(shape, dtype=inside, device="meta"), source)
    centre, spread = operand(mean, shape, inside), operand(std, shape, inside)

    def at(index: Index) -> Expr:
        made = _sum(Expr.make("mul", (wide.at(index), spread(index)), inside), centre(index))
        return made if inside == meta.dtype else Expr.make("as", (made,), meta.dtype)

    return Value(shape, meta.dtype, at)


@lowered(*overloads("normal_functional", "default"))
def _normal_functional(
    meta: torch.Tensor, x: Value, mean: Any = 0.0, std: Any = 1.0, *, source: Source, **options: Any
) -> Value:
    _checked(meta, options)
    return _scaled(meta, mean, std, source)


@lowered(*overloads("normal", "float_float"))
def _normal_of_numbers(
    meta: torch.Tensor, mean: Any, std: Any, size: Any, *, source: Source, **options: Any
) -> Value:
    _checked(meta, options)
    return _scaled(meta, mean, std, source)


def _integers(meta: torch.Tensor, low: Any, high: Any, source: Source, options: dict[str, Any]) -> Value:
    _checked(meta, options, floating=False)
    if type(low) is not int or type(high) is not int or not 0 < high - low <= 1 << 32:
        raise Unlowered

    def element(place: IndexExpr) -> Expr:
        return _sum(source.integer(place, high - low), const(low, torch.int64))

    return _drawn(meta, element)


@lowered(aten.randint.default)
def _randint(meta: torch.Tensor, high: Any, size: Any, *, source: Source, **options: Any) -> Value:
    return _integers(meta, 0, high, source, options)


@lowered(aten.randint.low)
def _randint_from(
    meta: torch.Tensor, low: Any, high: Any, size: Any, *, source: Source, **options: Any
) -> Value:
    return _integers(meta, low, high, source, options)


@lowered(aten.randint_like.default)
def _randint_like(meta: torch.Tensor, x: Value, high: Any, *, source: Source, **options: Any) -> Value:
    return _integers(meta, 0, high, source, options)


@lowered(aten.randint_like.low_dtype)
def _randint_like_from(
    meta: torch.Tensor, x: Value, low: Any, high: Any, *, source: Source, **options: Any
) -> Value:
    return _integers(meta, low, high, source, options)


def _chance(meta: torch.Tensor, p: Any, source: Source) -> Callable[[Index], Expr]:
    """Whether each element is one of a share `p`."""
    wide = isinstance(p, Value) and p.dtype == torch.float64
    inside = torch.float64 if wide else torch.float32
    share = operand(p, tuple(meta.shape), inside)

    def at(index: Index) -> Expr:
        place = _flat(index, meta)
        drawn = source.uniform64(place * 2) if wide else source.uniform(place)
        return Expr.make("lt", (drawn, share(index)), torch.bool)

    return at


def _bernoulli_of(meta: torch.Tensor, p: Any, source: Source) -> Value:
    happens = _chance(meta, p, source)
    return Value(tuple(meta.shape), meta.dtype, lambda index: cast(happens(index), meta.dtype))


@lowered(aten.bernoulli.default)
def _bernoulli(meta: torch.Tensor, p: Value, *, source: Source, **options: Any) -> Value:
    _checked(meta, options)
    return _bernoulli_of(meta, p, source)


@lowered(aten.bernoulli.p)
def _bernoulli_p(meta: torch.Tensor, x: Value, p: Any, *, source: Source, **options: Any) -> Value:
    _checked(meta, options, floating=False)
    return _bernoulli_of(meta, p, source)


@lowered(aten.bernoulli.Tensor)
def _bernoulli_tensor(meta: torch.Tensor, x: Value, p: Value, *, source: Source, **options: Any) -> Value:
    _checked(meta, options, floating=False)
    return _bernoulli_of(meta, p, source)


@lowered(*overloads("exponential", "default"))
def _exponential(meta: torch.Tensor, x: Value, rate: Any = 1.0, *, source: Source, **options: Any) -> Value:
    _checked(meta, options)
    inside = compute_dtype(meta.dtype)
    drawn = _uniform(torch.empty(meta.shape, dtype=inside, device="meta"), source)
    by = operand(rate, (), inside)

    def at(index: Index) -> Expr:
        # log1p(-u) of u in [0, 1) is finite, and 0 at 0.
        minus = Expr.make("neg", (drawn.at(index),), inside)
        made = Expr.make("neg", (Expr.make("log1p", (minus,), inside),), inside)
        made = Expr.make("div", (made, by(())), inside)
        return made if inside == meta.dtype else Expr.make("as", (made,), meta.dtype)

    return Value(tuple(meta.shape), meta.dtype, at)


@lowered(aten.native_dropout.default)
def _native_dropout(
    metas: Any, x: Value, p: Any, train: bool | None, *, source: Source
) -> tuple[Value, Value]:
    meta = metas[0]
    _checked(meta, {})
    if not isinstance(p, int | float):
        raise Unlowered
    shape, inside = tuple(meta.shape), compute_dtype(meta.dtype)
    if train is False or p == 0:
        one = const(True, torch.bool)
        return x, Value(shape, torch.bool, lambda index: one)
    keeps = _chance(meta, 1 - p, source)
    scale = const(0.0 if p == 1 else 1 / (1 - p), inside)

    def at(index: Index) -> Expr:
        # A product, as torch's: what is not finite shows although it is dropped.
        factor = Expr.make("where", (keeps(index), scale, const(0, inside)), inside)
        made = Expr.make("mul", (cast(x.at(index), inside), factor), inside)
        return made if inside == meta.dtype else Expr.make("as", (made,), meta.dtype)

    return Value(shape, meta.dtype, at), Value(shape, torch.bool, keeps)
