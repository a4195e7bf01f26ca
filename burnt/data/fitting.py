"""Whether numbers fit the dtype that they become: a conversion itself rounds or wraps round silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnt.errors import DataError

_EXACT = 2.0**53  # from here on, float64 does not hold every integer either


def fill_values(values: Any, dtype: torch.dtype, name: str) -> Tensor:
    """Return the values of an option as a dtype that holds them: integers exactly, others within its range.

    >>> fill_values((0, 255), torch.uint8, "fill")
    tensor([  0, 255], dtype=torch.uint8)
    """
    if type(values) is int and 0 <= values < 128 and not dtype.is_floating_point and dtype != torch.bool:
        return torch.tensor(values, dtype=dtype)  # the common case, which every integer dtype holds
    try:
        given = torch.as_tensor(values)
        if given.is_floating_point() and not isinstance(values, Tensor):
            given = torch.as_tensor(values, dtype=torch.float64)
    except (RuntimeError, OverflowError, ValueError):  # integers of more than 64 bits
        given = torch.as_tensor(values, dtype=torch.float64)
    converted = given.to(dtype)
    wrong = converted.isinf() & ~given.isinf()
    if not (given.is_floating_point() and dtype.is_floating_point):
        wrong |= converted.to(given.dtype) != given
    if wrong.any():
        raise DataError(
            f"{name}= does not fit the dtype of what it fills",
            expected=f"{_range(dtype)}, for {dtype}",
            found=given[wrong][0].item() if given.dim() else values,
            hint="convert images and masks before, to floating point or int64"
            if not dtype.is_floating_point
            else "convert images before, to float32 or float64",
        )
    return converted


def misfits(values: NDArray[Any], dtype: np.dtype[Any], *, is_measured: bool = False) -> NDArray[np.bool_]:
    """Return which numbers a dtype does not hold: integers that it changes, others beyond its range.

    Numbers in floating point count as integers if all of them are, and `is_measured` does not say that others
    of the column have fractions: identifiers next to missing values are often stored so.

    >>> misfits(np.array([16777216, 16777217]), np.dtype(np.float32))
    array([False,  True])
    >>> misfits(np.array([16777217.0, 0.5]), np.dtype(np.float32))
    array([False, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        cells = values.astype(dtype)
    if dtype.kind != "f":
        return np.asarray(cells != values)
    wrong: NDArray[np.bool_] = np.isinf(cells)
    bits = np.finfo(dtype).nmant + 1
    if values.dtype.kind == "f":
        wrong &= ~np.isinf(values)
        size = np.abs(values)
        with np.errstate(over="ignore"):  # float16 has no 2**53
            is_changed = (size > 2.0**bits) & (size <= _EXACT) & (cells != values)
        if is_changed.any() and not is_measured:
            finite = values[np.isfinite(values)]
            if (np.floor(finite) == finite).all():
                wrong |= is_changed
    elif values.dtype.kind in "iu":
        magnitude = np.abs(values).astype(np.uint64)
        if (magnitude >> np.uint64(bits)).any():
            # An integer is exact if its bits from the highest to the lowest one that is set fit the mantissa.
            lowest = np.maximum(magnitude & (~magnitude + np.uint64(1)), np.uint64(1))
            wrong |= (magnitude // lowest) >> np.uint64(bits) > 0
    return wrong


def _range(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "0 or 1"
    if dtype.is_floating_point:
        return f"up to {torch.finfo(dtype).max:g} in size, integers that it holds exactly"
    bounds = torch.iinfo(dtype)
    return f"an integer from {bounds.min} to {bounds.max}"
