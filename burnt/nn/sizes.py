"""The check of the sizes that a layer is built with."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from burnt.errors import ShapeError


def check_sizes(where: str, smallest: int = 1, **sizes: Any) -> None:
    """Check that sizes are integers, and none is too small.

    Args:
        where: the layer.
        smallest: the smallest possible size.
        sizes: the arguments.

    Raises:
        ShapeError: one is not.
    """
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < smallest:
            raise ShapeError(
                f"a layer cannot have this {name}",
                where=where,
                expected=f"{name}, an integer of at least {smallest}",
                found=repr(size),
            )
