"""The functions that generated Metal calls: those of the C prelude in Metal's words, and Metal's own.

`c/math.h` is written with the compiler's builtins, one float at a time, so its text says the same in Metal
once types and builtins have their names there. What it computes in double has another text in
`metal/math.metal`, by the same name. A kernel's source holds only the functions that it calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

import torch

__all__ = ["decimal", "functions", "source"]

_WORDS = (
    (r"static inline ", "inline "),
    # sqrt alone is an approximation where fast math is on.
    (r"__builtin_sqrtf\b", "precise::sqrt"),
    (r"__builtin_fabsf\b", "fabs"),
    (r"__builtin_rintf\b", "rint"),
    (r"__builtin_(floor|ceil|trunc|copysign|fma)f\b", r"\1"),
    (r"\bBURNT_NAN\b", "NAN"),
    (r"\bBURNT_INF\b", "INFINITY"),
    (r"\bBURNT_ROUND_F32\b", "0x1.8p23f"),
    (r"\b(float|int32_t|uint32_t) \*(?=\w)", r"thread \1 *"),
)
# Metal's C++ is older than floats in hexadecimal.
_HEXADECIMAL = re.compile(r"0x[0-9a-f]+(?:\.[0-9a-f]*)?p[+-]?\d+(?=f)")
_NAME = re.compile(r"^(?:static |template .*> )*(?:inline|constant) [^\n]*?(\w+)[(\[]")


def decimal(value: float) -> str:
    """The shortest text that is this float32 and reads as a float.

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
    """The text of every function in Metal, by name; overloads together.

    >>> print(functions()["rsqrt_f32"])
    inline float rsqrt_f32(float x) { return 1.0f / precise::sqrt(x); }
    """
    render = resources.files("burnt.codegen.render")
    found: dict[str, str] = {}
    for name, text in _parts((render / "c" / "headers" / "math.h").read_text(encoding="utf-8")):
        if re.search(r"\b(double|__builtin_memcpy)\b", text):
            continue  # of those that others need, metal/math.metal has its own
        for pattern, word in _WORDS:
            text = re.sub(pattern, word, text)
        found[name] = _HEXADECIMAL.sub(lambda m: decimal(float.fromhex(m[0])), text)
    own: dict[str, list[str]] = {}
    for file in ("math.metal", "random.metal"):
        for name, text in _parts((render / "metal" / "headers" / file).read_text(encoding="utf-8")):
            own.setdefault(name, []).append(text)
    return found | {name: "\n".join(texts) for name, texts in own.items()}


@cache
def _calls(name: str) -> tuple[str, ...]:
    words = re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", functions()[name], flags=re.S))
    return tuple(dict.fromkeys(word for word in words if word in functions() and word != name))


def source(text: str) -> str:
    """The functions that a text calls, and those that they call, each before it is needed.

    >>> source("y0[i0] = sigmoid_f32(v0);").count("inline ")
    7
    """
    order: dict[str, None] = {}

    def need(name: str) -> None:
        if name not in order:
            for other in _calls(name):
                need(other)
            order[name] = None

    for word in re.findall(r"\w+", text):
        if word in functions():
            need(word)
    return "".join(f"{functions()[name]}\n\n" for name in order)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The functions and tables of a file, with the comment right above each."""
    lines = iter(text.splitlines())
    comment: list[str] = []
    for line in lines:
        found = _NAME.match(line)
        if line.startswith("/*"):
            comment = [line]
            while not comment[-1].endswith("*/"):
                comment.append(next(lines))
        elif found is not None:
            block = [line]
            while sum(part.count("{") - part.count("}") for part in block):
                block.append(next(lines))
            yield found[1], "\n".join([*comment, *block])
            comment = []
        else:
            comment = []
