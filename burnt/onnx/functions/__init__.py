"""Functions of ONNX ops that torch has no single call for. Files that `burnt import` writes import them.

All functions of the files in this folder are found here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.onnx.functions.attention import *  # noqa: F403
from burnt.onnx.functions.control import *  # noqa: F403
from burnt.onnx.functions.fused import *  # noqa: F403
from burnt.onnx.functions.math import *  # noqa: F403
from burnt.onnx.functions.ml import *  # noqa: F403
from burnt.onnx.functions.normalization import *  # noqa: F403
from burnt.onnx.functions.quantization import *  # noqa: F403
from burnt.onnx.functions.recurrent import *  # noqa: F403
from burnt.onnx.functions.resizing import *  # noqa: F403
from burnt.onnx.functions.selection import *  # noqa: F403
from burnt.onnx.functions.signal import *  # noqa: F403
from burnt.onnx.functions.tensors import *  # noqa: F403
from burnt.onnx.functions.training import *  # noqa: F403
from burnt.onnx.functions.windows import *  # noqa: F403


def integers(values: int | Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return integers, such as sizes, as an int64 tensor."""
    return torch.tensor(values, dtype=torch.int64, device=device)


def truncated_div(a: int, b: int) -> int:
    """Return a quotient of integers, rounded towards zero.

    >>> truncated_div(-7, 2), -7 // 2
    (-3, -4)
    """
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def strings(values: Any, shape: Sequence[int]) -> Any:
    """Return nested lists of strings as a numpy array, since torch has no strings."""
    return np.array(values, dtype=object).reshape(shape)


def if_(condition: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return the results of one of two branches."""
    return then() if bool(condition) else otherwise()


def reshape(x: Any, shape: Tensor | Sequence[int], allow_zero: bool = False) -> Any:
    """Reshape a tensor or strings; a size of 0 is the size of the input's axis, unless `allow_zero`."""
    sizes = shape.tolist() if isinstance(shape, Tensor) else list(shape)
    if not allow_zero:
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)
