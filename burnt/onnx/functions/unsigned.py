"""Arithmetic on uint16, uint32 and uint64, for which torch has hardly any kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.floor_divide,
    "mod": np.remainder,
    "fmod": np.fmod,
    "pow": np.power,
    "abs": np.abs,
    "sign": np.sign,
    "min": np.minimum,
    "max": np.maximum,
    "clip": np.clip,
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "matmul": np.matmul,
    "where": np.where,
}


def unsigned(name: str, *tensors: Tensor | int | None) -> Tensor:
    """Compute a function of unsigned integers with numpy; the result wraps around as numpy's does.

    >>> unsigned("sub", torch.tensor([1], dtype=torch.uint32), torch.tensor([2], dtype=torch.uint32))
    tensor([4294967295], dtype=torch.uint32)
    """
    arrays = [value.numpy(force=True) if isinstance(value, Tensor) else value for value in tensors]
    with np.errstate(all="ignore"):
        result = np.asarray(_FUNCTIONS[name](*arrays))
    first = next(value for value in tensors if isinstance(value, Tensor))
    return torch.from_numpy(result).to(first.device)
