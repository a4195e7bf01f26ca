"""The candidate ``triton`` of `quantized_linear`: when it can run, and with which block sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.runtime.targets import target_of
from burnt.kernels.ops.quantized.weight_only import quantized_linear
from burnt.kernels.ops.quantized.weight_only_config import LinearSizes, configs
from burnt.scheme import VALUES

DTYPES = torch.float16, torch.bfloat16, torch.float32
"""The floating-point dtypes that the quantized Triton kernels take."""
_MAX_ROWS = 64
"""Rows of x up to which the kernel is selected without measuring: the bytes of the weight limit it then. With
more, the weight is dequantized once, and the library multiplies."""


def unsupported_reason(x: Tensor, values: Tensor, value: str, block: int) -> str | None:
    """Return why the kernels do not support a call, whatever the device; None if they do."""
    if 0 in (x.numel(), values.numel()):
        return "an empty tensor"
    if block and (block & (block - 1) or block % VALUES[value].per_byte):
        return f"blocks of {block} columns, which are no power of two, or share bytes"
    return None


def linear_sizes(x: Tensor, values: Tensor, value: str, block: int) -> LinearSizes:
    """Return what the choice of block sizes depends on."""
    rows = x.numel() // x.shape[-1]
    return LinearSizes(rows, values.shape[0], x.shape[-1], VALUES[value].per_byte, block, x.element_size())


def meta_tensors(*args: Any) -> list[Any]:
    """Return the arguments with tensors on the meta device, where nothing is allocated."""
    return [
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta") if isinstance(a, Tensor) else a
        for a in args
    ]


def compile_all(launches: Sequence[Any], device: torch.device) -> Future[None]:
    """Start compiling the kernels of `Launch`es in other processes."""
    from burnt.codegen.runtime.triton_compile_pool import job_of, pool_of

    jobs = [job_of(step.kernel, step.arguments, step.constants, step.options) for step in launches]
    return pool_of(torch.cuda.current_device() if device.index is None else device.index).submit_once(jobs)


def _unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    target = target_of(x.device)
    return target if isinstance(target, str) else unsupported_reason(x, values, *rest[4:])


def _configs(x: Tensor, values: Tensor, *rest: Any) -> list[dict[str, str]]:
    from burnt.codegen.runtime.triton_compile_pool import limits_of

    return configs(linear_sizes(x, values, *rest[4:]), limits_of(x.device))


def _start_compiling(config: Mapping[str, str], x: Tensor, *rest: Any) -> Future[None]:
    from burnt.kernels.ops.quantized.weight_only_triton import launches

    rows = x.detach().reshape(-1, x.shape[-1])
    arguments = [*meta_tensors(rows, *rest), config]
    return compile_all(launches(*arguments)[0], x.device)


def _is_best(x: Tensor, values: Tensor, *rest: Any) -> bool:
    return x.numel() // x.shape[-1] <= _MAX_ROWS


@quantized_linear.candidate(
    "triton",
    devices=["cuda"],
    dtypes=DTYPES,
    when=_unsupported_reason,
    best=_is_best,
    configs=_configs,
    compiles=_start_compiling,
)
def _(*args: Any, config: Mapping[str, str]) -> Tensor:
    from burnt.kernels.ops.quantized.weight_only_triton import quantized_linear_triton

    arguments = [*args, config]
    return quantized_linear_triton(*arguments)
