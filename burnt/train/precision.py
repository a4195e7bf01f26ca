"""Precision and strategy settings of a training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from burnt.errors import UnsupportedError

__all__ = ["autocast", "check_precision", "check_strategy"]

_NAMES = {"float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}


def check_precision(name: str) -> str:
    """Return ``"float32"`` or ``"bfloat16"`` for a precision setting.

    Raises:
        UnsupportedError: any other precision.
    """
    if name not in _NAMES:
        raise UnsupportedError(
            f"precision={name!r} does not exist", expected="float32 (fp32) or bfloat16 (bf16)",
            hint="bfloat16 needs no loss scaling and is as fast as float16 on hardware that has both",
        )  # fmt: skip
    return _NAMES[name]


def check_strategy(name: str) -> str:
    """Return ``"single"`` (one device) for a strategy setting.

    Raises:
        UnsupportedError: any other strategy.
    """
    if name not in ("auto", "single"):
        raise UnsupportedError(
            f"strategy={name!r} does not exist",
            expected="auto or single: one device",
            hint="for several devices, use torch's DDP or fully_shard in a custom loop",
        )
    return "single"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of a step; for float32 it does nothing. Parameters stay float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
