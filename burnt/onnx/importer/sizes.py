"""Sizes of axes: what they are called in written Python, and in which input they are read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from burnt.onnx.importer.names import unique_name
from burnt.onnx.importer.program import Expr, Leaf, Size

if TYPE_CHECKING:
    import onnx_ir as ir

    from burnt.onnx.importer.build import Build


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


def sizes_of_inputs(build: Build) -> dict[Size, Size]:
    """Return for sizes of results those of the inputs whose axes have their names in the file."""
    found: dict[Size, Size] = {}

    def leaf(one: Leaf) -> Expr:
        if isinstance(one, Size) and one.axis is not None:
            sizes = build.shapes.get(one.tensor, [])
            size = build.size_of(sizes[one.axis]) if one.axis < len(sizes) else None
            if isinstance(size, Size) and size != one:
                found[one] = size
        return one

    build.program.replaced(leaf)
    return found
