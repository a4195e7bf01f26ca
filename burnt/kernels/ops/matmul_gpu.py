"""The candidate ``triton`` of an op that is written by hand on top of the matmul template."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.render.triton.tile_config import Limits
from burnt.kernels.interface.launch import Launch, compile_all, on_meta, run_all

DTYPES = torch.float16, torch.bfloat16, torch.float32
"""The floating-point dtypes that the kernels take."""


def run_launches(launches: Iterable[Launch], out: Tensor) -> Tensor:
    """Launch kernels, and return the result that they write."""
    run_all(launches, out)
    return out


def add_candidate(
    op: Any,
    launches: Callable[..., tuple[list[Launch], Tensor]],
    configs: Callable[..., list[dict[str, str]]],
    **settings: Any,
) -> Any:
    """Register the candidate; return it.

    `launches` takes the configuration, the device and the op's arguments, which may be on the meta device; it
    returns the launches and the result. `configs` takes the device's limits and the arguments; `settings` are
    those of `Op.candidate`.
    """

    def all_configs(*args: Any) -> list[dict[str, str]]:
        from burnt.codegen.runtime.triton_compile_pool import limits_of

        limits: Limits = limits_of(args[0].device)
        return configs(limits, *args)

    def start_compiling(config: dict[str, str], *args: Any) -> Future[None]:
        device = args[0].device
        return compile_all(launches(config, device, *on_meta(*args))[0], device)

    def compute(*args: Any, config: dict[str, str]) -> Tensor:
        return run_launches(*launches(config, args[0].device, *args))

    register = op.candidate(
        "triton", devices=["cuda"], dtypes=DTYPES, configs=all_configs, compiles=start_compiling, **settings
    )
    return register(compute)
