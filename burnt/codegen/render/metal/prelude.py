"""The functions that generated Metal calls: C functions converted to Metal, and Metal's own.

`math.h` and `float8.h` of `c/headers` compute one float at a time with compiler builtins, so their text is
valid Metal once types and builtins are renamed. Functions that use double in C have a Metal version of the
same name in `metal/headers/math.metal`. A kernel's source includes only the functions that it calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

import torch

from burnt.codegen.ir.expr import extreme

_C_TO_METAL = (
    (r"static inline ", "inline "),
    # With fast math, plain sqrt is an approximation.
    (r"__builtin_sqrtf\b", "precise::sqrt"),
    (r"__builtin_fabsf\b", "fabs"),
    (r"__builtin_rintf\b", "rint"),
    (r"__builtin_(floor|ceil|trunc|copysign|fma)f\b", r"\1"),
    (r"\bBURNT_NAN\b", "NAN"),
    (r"\bBURNT_INF\b", "INFINITY"),
    (r"\bBURNT_ROUND_F32\b", "0x1.8p23f"),
    (r"\b(float|int32_t|uint32_t) \*(?=\w)", r"thread \1 *"),
)
# Metal's C++ version has no hexadecimal float literals.
_HEX_FLOAT = re.compile(r"0x[0-9a-f]+(?:\.[0-9a-f]*)?p[+-]?\d+(?=f)")
_DEFINITION = re.compile(r"^(?:static |template .*> )*(?:inline|constant) [^\n]*?(\w+)[(\[]")


def decimal(value: float) -> str:
    """Return the shortest decimal text that is exactly this float32 and has a point or an exponent.

    >>> decimal(0.1), decimal(3.0), decimal(2.0**-149)
    ('0.1', '3.0', '1e-45')
    """
    exact = torch.tensor(value, dtype=torch.float32)
    for digits in range(1, 10):
        text = f"{exact.item():.{digits}g}"
        if torch.tensor(float(text), dtype=torch.float32) == exact:
            break
    return text if "." in text or "e" in text else f"{text}.0"


@cache
def functions() -> dict[str, str]:
    """Return the Metal text of every function by name; overloads are joined.

    >>> print(functions()["rsqrt_f32"])
    inline float rsqrt_f32(float x) { return 1.0f / precise::sqrt(x); }
    """
    render = resources.files("burnt.codegen.render")
    from_c: dict[str, str] = {}
    for file in ("math.h", "float8.h"):
        for name, text in _definitions((render / "c" / "headers" / file).read_text(encoding="utf-8")):
            if re.search(r"\b(double|__builtin_memcpy)\b", text):
                continue  # math.metal has its own version of those that are needed
            for pattern, replacement in _C_TO_METAL:
                text = re.sub(pattern, replacement, text)
            from_c[name] = _HEX_FLOAT.sub(lambda m: decimal(float.fromhex(m[0])), text)
    metal_texts: dict[str, list[str]] = {}
    for file in ("math.metal", "random.metal"):
        for name, text in _definitions((render / "metal" / "headers" / file).read_text(encoding="utf-8")):
            metal_texts.setdefault(name, []).append(text)
    return from_c | {name: "\n".join(texts) for name, texts in metal_texts.items()}


@cache
def _called_functions(name: str) -> tuple[str, ...]:
    words = re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", functions()[name], flags=re.S))
    return tuple(dict.fromkeys(word for word in words if word in functions() and word != name))


def source(text: str) -> str:
    """Return the functions that a text calls, directly or indirectly, each before its first use.

    >>> source("y0[i0] = sigmoid_f32(v0);").count("inline ")
    7
    """
    ordered: dict[str, None] = {}

    def add_with_callees(name: str) -> None:
        if name not in ordered:
            for callee in _called_functions(name):
                add_with_callees(callee)
            ordered[name] = None

    for word in re.findall(r"\w+", text):
        if word in functions():
            add_with_callees(word)
    return "".join(f"{functions()[name]}\n\n" for name in ordered)


def _definitions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each function and table of a file, with the comment right above it."""
    lines = iter(text.splitlines())
    comment: list[str] = []
    for line in lines:
        match = _DEFINITION.match(line)
        if line.startswith("/*"):
            comment = [line]
            while not comment[-1].endswith("*/"):
                comment.append(next(lines))
        elif match is not None:
            block = [line]
            while sum(part.count("{") - part.count("}") for part in block):
                block.append(next(lines))
            yield match[1], "\n".join([*comment, *block])
            comment = []
        else:
            comment = []


METAL_TYPES = {
    torch.float32: "float", torch.bfloat16: "float", torch.float16: "float", torch.int8: "char",
    torch.int16: "short", torch.int32: "int", torch.int64: "long", torch.uint8: "uchar",
    torch.uint16: "ushort", torch.uint32: "uint", torch.uint64: "ulong", torch.bool: "bool",
}  # fmt: skip
MEMORY_TYPES = {**METAL_TYPES, torch.bfloat16: "bfloat", torch.float16: "half"}
SIXTEEN_BIT_FLOATS = (torch.bfloat16, torch.float16)


def constant(value: float, dtype: torch.dtype) -> str:
    """Return a number of a dtype as a Metal constant.

    >>> constant(1, torch.float32), constant(2, torch.int64), constant(-1.5, torch.bfloat16)
    ('1.0f', '2L', '(-1.5f)')
    """
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        if value == -(2**63):
            return "(-9223372036854775807L - 1)"
        if dtype == torch.uint64:
            return f"{int(value)}UL"
        return f"{int(value)}L" if dtype == torch.int64 else f"{METAL_TYPES[dtype]}({int(value)})"
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = f"{decimal(value)}f"
    return f"({text})" if text.startswith("-") else text


def lowest(dtype: torch.dtype) -> str:
    """Return the lowest value of a dtype as a constant, minus infinity for floats."""
    return constant(extreme(dtype, lowest=True), dtype)


def highest(dtype: torch.dtype) -> str:
    """Return the highest value of a dtype as a constant, infinity for floats."""
    return constant(extreme(dtype, lowest=False), dtype)
