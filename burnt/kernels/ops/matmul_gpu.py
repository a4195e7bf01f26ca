"""Ops that are written by hand on top of the matmul template: their candidate ``triton``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.precision import precision
from burnt.codegen.render.triton.matmul_config import TILES, MatmulStructure, configs_to_measure
from burnt.codegen.runtime.targets import target_of
from burnt.kernels.interface.launch import Launch, bind_launches, compile_all, on_meta, run_all

DTYPES = torch.float16, torch.bfloat16, torch.float32
"""The floating-point dtypes that the kernels take."""


def run_launches(launches: Iterable[Launch], out: Tensor) -> Tensor:
    """Launch kernels, and return the result that they write."""
    run_all(launches, out)
    return out


def add_candidate(
    op: Any,
    launches: Callable[..., tuple[list[Launch], Tensor]],
    configs: Callable[..., MatmulStructure | list[dict[str, str]]],
    when: Callable[..., str | None],
    best: Callable[..., bool] | None = None,
) -> Any:
    """Register the candidate; return it.

    `launches` takes the configuration, the device and the op's arguments, which may be on the meta device; it
    returns the launches and the result. `configs` takes the device's limits and the arguments; it returns the
    configurations, or what they depend on. `when` and `best` are those of `Op.candidate`.
    """

    def all_configs(*args: Any) -> list[dict[str, str]]:
        from burnt.codegen.runtime.triton_compile_pool import limits_of

        limits = limits_of(args[0].device)
        found = configs(limits, *args)
        if isinstance(found, list):
            return found
        return [{"tiles": str(c)} for c in configs_to_measure(found, limits)]

    def unsupported_reason(*args: Any) -> str | None:
        target = target_of(args[0].device)
        return target if isinstance(target, str) else when(*args)

    def start_compiling(config: dict[str, str], *args: Any) -> Future[None]:
        device = args[0].device
        return compile_all(launches(config, device, *on_meta(*args))[0], device)

    def compute(*args: Any, config: dict[str, str]) -> Tensor:
        return run_launches(*launches(config, args[0].device, *args))

    def bind(config: dict[str, str], *args: Any) -> Callable[..., Tensor] | None:
        device = args[0].device
        return bind_launches(functools.partial(launches, config, device), args, device)

    limits: dict[str, Any] = {"devices": ["cuda"], "dtypes": DTYPES, "when": unsupported_reason, "best": best}
    register = op.candidate("triton", configs=all_configs, compiles=start_compiling, binds=bind, **limits)
    return register(compute)


def rows_structure(a: Tensor, b: Tensor) -> MatmulStructure:
    """Return what the choice of block sizes for `grouped_matmul` depends on, of groups of equal sizes."""
    (groups, terms, columns), itemsize = b.shape, a.element_size()
    is_exact = itemsize == 4 and precision() == "ieee"
    num_tma_operands = (a.stride(1) == 1 and _can_describe(a)) + _can_describe(b)
    tiles = TILES if num_tma_operands == 2 else TILES[1:]  # a thread holds the addresses of all elements
    return MatmulStructure(
        groups, -(-a.shape[0] // groups), columns, terms, itemsize,
        num_tma_operands=num_tma_operands, is_exact=is_exact, tiles=tiles,
    )  # fmt: skip


def _can_describe(operand: Tensor) -> bool:
    """Whether a tensor descriptor can address an operand: all but one axis have strides of 16 bytes."""
    *others, first, last = operand.stride()
    are_aligned = all(s > 0 and s * operand.itemsize % 16 == 0 for s in (*others, max(first, last)))
    return min(first, last) == 1 and are_aligned and operand.data_ptr() % 16 == 0
