"""The table of targets, by name and by device.

The device of the tensors selects the target; `Target.build` compiles kernels into callables. The backends
import printers and Triton only when they are called: a Mac has no Triton.
"""

from __future__ import annotations

import torch

from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.metal_backend import METAL
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.errors import ConfigError

TARGETS = {target.name: target for target in (C, TRITON, METAL)}
BY_DEVICE = {"cpu": C, "cuda": TRITON, "mps": METAL}


def find_target(name: str) -> Target:
    """Return the target of that name.

    Raises:
        ConfigError: there is no such target.
    """
    target = TARGETS.get(name)
    if target is None:
        raise ConfigError(f"there is no target {name!r}", expected=", ".join(TARGETS), found=name)
    return target


def target_of(device: torch.device) -> Target | str:
    """Return the target for tensors on a device, or a message why there is none."""
    target = BY_DEVICE.get(device.type)
    if target is None:
        return f"a tensor on {device}: kernels are generated for {', '.join(BY_DEVICE)} only"
    return target.why_unavailable() or target
