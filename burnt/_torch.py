"""The only place that touches torch's private interfaces.

Each has a canary in `tests/test_torch_private.py`, which says what broke when torch changes.
"""

from __future__ import annotations

import sys

import torch._C
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["EXTENSION", "BatchNormBase", "compiler_is_loaded"]

BatchNormBase = _BatchNorm
"""The base of torch's BatchNorm1d, 2d and 3d. torch's own tools (`SyncBatchNorm.convert_sync_batchnorm`,
`update_bn`, `replace_all_batch_norm_modules_`) know a batch norm by it."""

EXTENSION: str = torch._C.__file__
"""The file of torch's extension module. It depends on all libraries that torch runs on: a symbol looked up in
it, such as `omp_get_max_threads`, is the one that torch calls."""


def compiler_is_loaded() -> bool:
    """Whether torch.compile's machinery (seconds to import) is there; else nothing is compiled."""
    return "torch._dynamo" in sys.modules
