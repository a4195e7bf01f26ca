"""Functions of ONNX ops that torch has no single call for. Files that `burnt import` writes import them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.onnx.functions.attention import *  # noqa: F403
from burnt.onnx.functions.casts import *  # noqa: F403
from burnt.onnx.functions.control import (
    batched_scan,
    concat_sequence,
    erase,
    get_element,
    has_element,
    insert,
    item,
    loop,
    scan,
    sequence,
    sequence_length,
    sequence_map,
    split_sequence,
)
from burnt.onnx.functions.fused import rotate as rotate
from burnt.onnx.functions.images import decode_image
from burnt.onnx.functions.math import *  # noqa: F403
from burnt.onnx.functions.normalization import *  # noqa: F403
from burnt.onnx.functions.quantization import *  # noqa: F403
from burnt.onnx.functions.recurrent import *  # noqa: F403
from burnt.onnx.functions.resizing import *  # noqa: F403
from burnt.onnx.functions.selection import (
    arange,
    bernoulli,
    compress,
    eye_like,
    full,
    multinomial,
    nonzero,
    one_hot,
    random_normal,
    random_uniform,
    topk,
    unique,
)
from burnt.onnx.functions.signal import dft, mel_weights, stft, window
from burnt.onnx.functions.tensors import *  # noqa: F403
from burnt.onnx.functions.text import normalize_strings, regex_full_match, string_concat, string_split, tfidf
from burnt.onnx.functions.unsigned import unsigned as unsigned
from burnt.onnx.functions.windows import *  # noqa: F403

__all__ = ["if_", "integers", "reshape", "strings"]


def integers(values: int | Sequence[int]) -> Tensor:
    """Return integers, such as sizes, as an int64 tensor."""
    return torch.tensor(values, dtype=torch.int64)


def strings(values: Any, shape: Sequence[int]) -> Any:
    """Return nested lists of strings as a numpy array, since torch has no strings."""
    return np.array(values, dtype=object).reshape(shape)


def if_(condition: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return the results of one of two branches."""
    return then() if bool(condition) else otherwise()


def reshape(x: Tensor, shape: Tensor | Sequence[int], allow_zero: bool = False) -> Tensor:
    """Reshape; a size of 0 is that of the input's axis, unless `allow_zero`."""
    sizes = shape.tolist() if isinstance(shape, Tensor) else list(shape)
    if not allow_zero:
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


def shape(x: Tensor | np.ndarray[Any, Any], start: int = 0, end: int | None = None) -> Tensor:
    """Return the sizes of the axes from `start` up to `end`."""
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64)
