"""The C prelude of every generated kernel (math, conversions, random numbers), types and constants.

The code is in `headers/`, one header per subject. It is pasted into each kernel's source, so that the source
is all that is compiled and its hash can be the cache key.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from importlib import resources

import torch

from burnt.codegen.ir import Expr, IndexExpr, Var, walk
from burnt.codegen.ir.expr import extreme, rounded

_HEADERS = ("math.h", "convert.h", "float8.h", "random.h")


@cache
def source() -> str:
    """Return the headers as one C text with GNU builtins; nothing but ``<stdint.h>`` is included.

    Functions are named ``<torch's name>_f32`` and ``_f64``, conversions ``<to>_of_<from>``.

    >>> "static inline float exp_f32(float x)" in source()
    True
    """
    folder = resources.files("burnt.codegen.render.c") / "headers"
    texts = [(folder / name).read_text(encoding="utf-8") for name in _HEADERS]
    return "\n".join(texts).replace('#include "math.h"\n', "")


RANDOM_BLOCK = 512
"""Iterations of a loop whose words are generated together."""
_MAX_STEP = 8


@dataclasses.dataclass(frozen=True)
class RandomWords:
    """A group of random numbers whose positions in a stream advance by the same step in each iteration."""

    seed: Expr  # the load of the seed
    stream: int  # the number of the stream
    first: IndexExpr  # position of the group's first word, in terms of the loops
    step: int  # distance between the positions of one iteration and the next
    reach: int  # distance from the first position to the last within an iteration
    offsets: dict[Expr, int]  # distance of each random number from the first


def find_random_words(loop: Var, exprs: Sequence[Expr]) -> list[RandomWords]:
    """Return the random numbers in a loop that can be generated in blocks."""
    groups: dict[tuple[Expr, int, IndexExpr], dict[Expr, int]] = {}
    for e in walk(exprs):
        if e.op not in ("uniform", "random") or e.args[1].op != "index":
            continue
        seed, index = e.args[0], e.args[1].extra[0]
        step = index.stride(loop)
        if step is not None and 0 < step <= _MAX_STEP and not index.computed_exprs() and seed.op == "load":
            groups.setdefault((seed, e.extra[0], index - index.const), {})[e] = index.const
    result = []
    for (seed, stream, index), counters in groups.items():
        low, high = min(counters.values()), max(counters.values())
        step = index.stride(loop)
        assert step is not None
        offsets = {e: counter - low for e, counter in counters.items()}
        result.append(RandomWords(seed, stream, index + low, step, high - low, offsets))
    return result


C_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.bfloat16: "float", torch.float16: "float",
    torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
    torch.uint8: "uint8_t", torch.uint16: "uint16_t", torch.uint32: "uint32_t", torch.uint64: "uint64_t",
    torch.bool: "int",
}  # fmt: skip
MEMORY_TYPES = {**C_TYPES, torch.bfloat16: "uint16_t", torch.float16: "uint16_t", torch.bool: "uint8_t"}
SIXTEEN_BIT_FLOATS = {torch.bfloat16: "bf16", torch.float16: "f16"}


def constant(value: float, dtype: torch.dtype) -> str:
    """Return a number of a dtype as a C constant."""
    if not dtype.is_floating_point:
        if dtype == torch.bool:
            return str(int(bool(value)))
        suffix = "LL" if dtype.is_signed else "ULL"
        return "INT64_MIN" if value == -(2**63) else f"(({C_TYPES[dtype]}){int(value)}{suffix})"
    if math.isnan(value):
        return '__builtin_nanf("")'
    if math.isinf(value):
        return "__builtin_inff()" if value > 0 else "(-__builtin_inff())"
    if dtype == torch.float64:
        return f"({float(value).hex()})"
    # Rounded to float here: with a double constant, the compiler would compute in double.
    return f"({rounded(value, torch.float32).hex()}f)"


def lowest(dtype: torch.dtype) -> str:
    """Return the lowest value of a dtype as a constant, minus infinity for floats."""
    return constant(extreme(dtype, lowest=True), dtype)


def highest(dtype: torch.dtype) -> str:
    """Return the highest value of a dtype as a constant, infinity for floats."""
    return constant(extreme(dtype, lowest=False), dtype)
