"""Targets: what a plan is printed for, and how its kernels are built and launched.

A target is chosen by the device of the tensors; `Target.build` turns kernels into source and callables.
Nothing is imported here before it is needed: a Mac has no Triton.
"""

from __future__ import annotations

import torch

from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.metal_backend import METAL
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.triton_backend import TRITON

__all__ = ["BY_DEVICE", "TARGETS", "target_of"]


TARGETS = {target.name: target for target in (C, TRITON, METAL)}
BY_DEVICE = {"cpu": C, "cuda": TRITON, "mps": METAL}


def target_of(device: torch.device) -> Target | str:
    """The target for tensors of a device, or why there is none."""
    target = BY_DEVICE.get(device.type)
    if target is None:
        return f"a tensor on {device}: kernels are printed for {', '.join(BY_DEVICE)} only"
    return target.missing() or target
