"""The precisions that a training may have."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from burnt.errors import UnsupportedError

__all__ = ["autocast", "check_precision", "check_strategy"]

_NAMES = {"float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}


def check_precision(name: str) -> str:
    """`"float32"` or `"bfloat16"`.

    Raises:
        UnsupportedError: another precision.
    """
    if name not in _NAMES:
        raise UnsupportedError(
            f"precision={name!r} does not exist", expected="float32 (fp32) or bfloat16 (bf16)",
            hint="bfloat16 needs no loss scaling and is as fast as float16 on hardware that has both",
        )  # fmt: skip
    return _NAMES[name]


def check_strategy(name: str) -> str:
    """`"single"`, one device.

    Raises:
        UnsupportedError: another strategy.
    """
    if name not in ("auto", "single"):
        raise UnsupportedError(
            f"strategy={name!r} does not exist",
            expected="auto or single: one device",
            hint="the module works under torch's DDP and fully_shard in a loop of your own",
        )
    return "single"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of a step: parameters stay float32, bfloat16 arithmetic where torch's autocast has it."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
