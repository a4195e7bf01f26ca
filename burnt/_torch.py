"""The only place that touches torch's private interfaces.

Each has a canary in `tests/test_torch_private.py`, which says what broke when torch changes.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["BatchNormBase", "compiled_in_place", "compiler_is_loaded"]

BatchNormBase = _BatchNorm
"""The base of torch's BatchNorm1d, 2d and 3d. torch's own tools (`SyncBatchNorm.convert_sync_batchnorm`,
`update_bn`, `replace_all_batch_norm_modules_`) know a batch norm by it."""


def compiled_in_place(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside `torch.compile`'s wrapper, compiled as by `module.compile()`; others as they are.

    The wrapper compiles its own call alone: methods that are found through it call the plain module.
    """
    if not compiler_is_loaded():
        return module
    from torch._dynamo.eval_frame import OptimizedModule
    from torch._dynamo.external_utils import wrap_inline

    if not isinstance(module, OptimizedModule):
        return module
    inner: torch.nn.Module = module._orig_mod
    # Frames of torch's own are skipped: without one around it, torch's Sequential would not be compiled.
    inner._compiled_call_impl = module.dynamo_ctx(wrap_inline(inner._call_impl))
    return inner


def compiler_is_loaded() -> bool:
    """Whether torch.compile's machinery (seconds to import) is there; else nothing is compiled."""
    return "torch._dynamo" in sys.modules
