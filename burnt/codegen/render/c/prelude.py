"""The C that every generated kernel begins with: math, conversions and random numbers for loops of SIMD.

The text lives in `headers/`, one header per subject; a kernel gets it pasted in, so that its source is the
whole of what is compiled and its hash a key for the cache.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

__all__ = ["source"]

_HEADERS = ("math.h", "convert.h", "random.h")


@cache
def source() -> str:
    """The headers as one text, in an order that needs no include path.

    Returns:
        C11 with GNU builtins, for gcc and clang: functions named ``<torch's name>_f32`` and ``_f64``,
        conversions ``<to>_of_<from>`` and ``philox``. Nothing but ``<stdint.h>`` is included.

    >>> "static inline float exp_f32(float x)" in source()
    True
    """
    folder = resources.files("burnt.codegen.render.c") / "headers"
    texts = [(folder / name).read_text(encoding="utf-8") for name in _HEADERS]
    return "\n".join(texts).replace('#include "math.h"\n', "")
