"""Where torch's own kernels on a CPU are known to be fast: rules that several ops share."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.device import processor


def is_double(x: Tensor, *rest: object) -> bool:
    """Whether `x` is of float64, whose exponentials torch computes in vectors: 2 to 10 times as fast."""
    return x.dtype == torch.float64


def is_slow_to_widen(x: Tensor) -> bool:
    """Whether `x` is of 16 bits, and becomes float32 and comes back by vectors of 256 bits at most."""
    return x.element_size() == 2 and not processor().has_wide_vectors
