"""The C prelude of every generated kernel: vectorisable math, conversions and random numbers.

The code is in `headers/`, one header per subject. It is pasted into each kernel's source, so that the source
is all that is compiled and its hash can be the cache key.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

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
