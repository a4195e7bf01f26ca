"""Names of variables, made from text of any kind, and of axes."""

from __future__ import annotations

import builtins
import keyword
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

_RESERVED = {"self", "ops", "torch", "F", "nn", "burnt", "forward", "training", "f"} | set(dir(builtins))


def is_reserved(name: str) -> bool:
    """Whether a variable cannot have a name."""
    return keyword.iskeyword(name) or name in _RESERVED


def unique_name(hint: str, used: dict[str, int]) -> str:
    """Return an identifier that is not used yet, and add it to those that are.

    `used` has the last number that was put after each, so that thousands of equal hints are not all counted
    again.

    >>> used = {}
    >>> unique_name("encoder/Layer.0", used), unique_name("encoder/Layer.0", used), unique_name("0", used)
    ('encoder_layer_0', 'encoder_layer_0_2', 'x_0')
    """
    words = re.sub(r"[\W_]+", "_", hint.encode("ascii", "ignore").decode())
    base = words.strip("_").lower()[:64].rstrip("_") or "x"
    if base[0].isdigit():
        base = f"x_{base}"
    if is_reserved(base):
        base += "_"
    name, number, stem = base, used.get(base, 1), base.rstrip("_")
    while name in used:
        number += 1
        name = f"{stem}_{number}"
    used[base] = number
    used.setdefault(name, 1)
    return name


_USELESS = re.compile(
    r"none|unnamed|unknown|(s|u|d|dim|axis|sym|symbol|unk|var)_*\d+|.*(_dim_\d+|dynamic_axes_\d+|_d\d+|unk_.*)|\d.*"
)


def axis_names(value: ir.Value) -> tuple[str, ...]:
    """Return what the axes of an input are called, "" for those without a name."""
    sizes = [size if isinstance(size, int) else size.value for size in value.shape or ()]
    dtype = "" if value.dtype is None else value.dtype.name
    return tuple(_axis_name(sizes, axis, dtype) for axis in range(len(sizes)))


def _axis_name(sizes: list[int | str | None], axis: int, dtype: str) -> str:
    """Return the name of an open axis; where the file's says nothing, what it certainly is."""
    symbol = sizes[axis]
    if isinstance(symbol, int):
        return ""
    if symbol and re.fullmatch(r"[\w.\- ]+", symbol, re.ASCII) and not _USELESS.fullmatch(symbol.lower()):
        return unique_name(symbol, {})
    if axis == 0:
        return "batch"
    if len(sizes) == 2 and "INT" in dtype:
        return "length"
    is_image = len(sizes) == 4 and "FLOAT" in dtype and isinstance(sizes[1], int)
    if is_image and not isinstance(sizes[2], int) and not isinstance(sizes[3], int):
        return ("height", "width")[axis - 2]
    return ""
