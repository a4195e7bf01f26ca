"""Compile flash attention kernels with the arguments of their launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.jit import MockTensor

from burnt.kernels.ops.attention import flash_triton as kernels
from burnt.kernels.ops.attention.flash_config import KERNELS, FlashConfig
from tests.codegen.render.triton.ahead import TARGETS, Compiled, driven, measured

# Options of attention for each variant.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"high": 1},
    "window": {"low": -100, "high": 1},
    "mask": {"mask": torch.bool},
    "mask, added": {"mask": torch.float32},
    "tables": {"tables": True},
    "dropout": {"dropout": 0.1},
    "softcap": {
        "high": 1,
        "score": kernels.softcap_score,
        "score_grad": kernels.softcap_score_grad,
        "args": (30.0, 1, 0),
    },
    "slopes": {
        "score": kernels.alibi_score,
        "score_grad": kernels.unit_score_grad,
        "args": (1.0, torch.empty(32, device="meta"), 0),
    },
}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def compiled(
    kernel: str, blocks: FlashConfig, dtype: torch.dtype, size: int, variant: str, target: str, folder: Path
) -> Compiled:
    """A kernel for (4, 32, 4096, size), as its launch would have it."""
    options = dict(VARIANTS[variant])
    x = torch.empty(4, 4096, 32, size, dtype=dtype, device="meta").transpose(1, 2)
    table = torch.empty(4, 4096, dtype=torch.int32, device="meta")
    if "mask" in options:
        mask = torch.empty(4, 1, 4096, 4096, dtype=options["mask"], device="meta")
        options["mask"] = mask.expand(4, 32, -1, -1)
    options["tables"] = (table,) * 4 if options.get("tables") else None
    options["seed"] = torch.empty((), dtype=torch.int64, device="meta") if "dropout" in options else None
    problem = kernels.Problem(size**-0.5, **options)
    configs = {name: blocks for name in KERNELS if name == kernel or name != "both"}
    launch = kernels.launches(x, x, x, problem, configs, gradients=True)[kernel]
    with driven(TARGETS[target]):
        compiled_kernel = triton.JITFunction(launch.kernel.fn).warmup(
            *map(_mocked, launch.arguments), grid=(1,), **launch.constants, **launch.options
        )
        return measured(compiled_kernel, f"{kernel}_{variant}", target, folder)


def _mocked(argument: Any) -> Any:
    if isinstance(argument, tuple):
        parts = list(map(_mocked, argument))
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    return MockTensor(argument.dtype) if isinstance(argument, torch.Tensor) else argument
