"""Rules shared by several ops: where torch's own CPU kernels are known to be as fast as generated ones."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.device import processor


def is_double(x: Tensor, *rest: object) -> bool:
    """Whether `x` is float64: torch vectorizes its exponentials, which is 2 to 10 times as fast."""
    return x.dtype == torch.float64


def is_slow_to_widen(x: Tensor) -> bool:
    """Whether `x` has 16 bits, and the CPU converts it to and from float32 in vectors of at most 256 bits."""
    return x.element_size() == 2 and not processor().has_wide_vectors
