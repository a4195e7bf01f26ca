"""The candidates ``triton`` of `scaled_linear` and `scaled_conv`: when they run, and with which block sizes.

int8 results are the reference's to the bit, except where an activation that is not piecewise linear differs
in the last place close to a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.precision import precision
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.runtime.targets import target_of
from burnt.device import device_info
from burnt.kernels.ops.conv.onednn import expand_sizes
from burnt.kernels.ops.quantized.scaled import scaled_conv, scaled_linear
from burnt.kernels.ops.quantized.scaled_config import configs, multiplies_float8
from burnt.kernels.ops.quantized.weight_only_gpu import DTYPES, compile_all, meta_tensors

_MAX_TERMS = 1 << 17
"""Products of two int8 values whose sum might not fit into int32: each is at most 2^14. With a zero point,
half as many, with one of the weight too an eighth."""


def sum_unsupported_reason(
    terms: int, x_zero_point: Tensor | None, zero_point: Tensor | None = None
) -> str | None:
    """Return why int32 cannot hold a sum of so many products of int8 values, or None."""
    limit = _MAX_TERMS if x_zero_point is None else _MAX_TERMS // 2
    limit = limit if zero_point is None else _MAX_TERMS // 8
    return None if terms < limit else f"sums of {terms} products, which may exceed int32"


def result_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of results that are not quantized."""
    return torch.float32 if dtype is None else dtype


def uses_float8_units(
    architecture: str, value: str, out_scale: Tensor | None, dtype: torch.dtype | None
) -> bool:
    """Whether tensor cores multiply float8 values: where their sums are as precise as the result.

    Hopper's add 128 products with 14 bits. That is enough for 8 or 16-bit results, not for float32.
    """
    is_narrow = out_scale is not None or result_dtype(dtype).itemsize == 2 or precision() != "ieee"
    return value != "int8" and is_narrow and multiplies_float8(architecture)


# --- scaled_linear ------------------------------------------------------------------------------------------


def _linear_float8(x: Tensor, out_scale: Tensor | None, value: str, dtype: torch.dtype | None) -> bool:
    return uses_float8_units(device_info(x.device).architecture, value, out_scale, dtype)


def _linear_unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    _, _, x_zero_point, _, _, _, _, value, _, zero_point = rest
    target = target_of(x.device)
    if isinstance(target, str):
        return target
    if zero_point is not None:
        return "zero points of the weight"
    if 0 in (x.numel(), values.numel()):
        return "an empty tensor"
    return sum_unsupported_reason(x.shape[-1], x_zero_point) if value == "int8" else None


def _linear_configs(x: Tensor, values: Tensor, *rest: Any) -> list[dict[str, str]]:
    from burnt.codegen.runtime.triton_compile_pool import limits_of

    out_scale, _, value, dtype, _ = rest[5:]
    use = "int8" if value == "int8" else "float8" if _linear_float8(x, out_scale, value, dtype) else "float16"
    rows = x.numel() // x.shape[-1]
    found = configs(rows, values.shape[0], x.shape[-1], limits_of(x.device), use)  # type: ignore[arg-type]
    return [{"tiles": str(blocks)} for blocks in found]


def _compile_linear(config: Mapping[str, str], x: Tensor, *rest: Any) -> Future[None]:
    from burnt.kernels.ops.quantized.scaled_triton import linear_launches

    *tensors, value, dtype, _ = rest
    arguments = meta_tensors(x.reshape(-1, x.shape[-1]), *tensors, value, result_dtype(dtype))
    arguments.append(MatmulConfig.of(config["tiles"]))
    launches, _ = linear_launches(*arguments, float8=_linear_float8(x, tensors[6], value, dtype))
    return compile_all(launches, x.device)


@scaled_linear.candidate(
    "triton",
    devices=["cuda"],
    dtypes=DTYPES,
    when=_linear_unsupported_reason,
    configs=_linear_configs,
    compiles=_compile_linear,
)
def _(x: Tensor, *rest: Any, config: Mapping[str, str]) -> Tensor:
    from burnt.kernels.ops.quantized.scaled_triton import scaled_linear_triton

    *tensors, value, dtype, _ = rest
    float8 = _linear_float8(x, tensors[6], value, dtype)
    blocks = MatmulConfig.of(config["tiles"])
    return scaled_linear_triton(x, *tensors, value, result_dtype(dtype), blocks, float8=float8)


# --- scaled_conv --------------------------------------------------------------------------------------------


def _conv_unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    target = target_of(x.device)
    if isinstance(target, str):
        return target
    if 0 in (x.numel(), values.numel()):
        return "an empty tensor"
    _, _, x_zero_point, _, _, _, padding, dilation, *_, zero_point = rest
    if zero_point is not None:
        return "zero points of the weight"
    axes = values.dim() - 2
    for axis in range(axes):
        spread = (values.shape[2 + axis] - 1) * expand_sizes(dilation, axes)[axis] + 1
        if x.shape[2 + axis] + 2 * expand_sizes(padding, axes)[axis] < spread:
            return "a kernel larger than the padded input"
    return sum_unsupported_reason(values[0].numel(), x_zero_point)


def _conv_configs(x: Tensor, values: Tensor, *rest: Any) -> list[dict[str, str]]:
    from burnt.codegen.runtime.triton_compile_pool import limits_of

    stride, groups = rest[5], rest[8]
    rows = x.numel() // x.shape[1] // math.prod(expand_sizes(stride, values.dim() - 2))
    columns, terms = values.shape[0] // groups, values.shape[1]
    found = configs(max(rows, 1), columns, terms, limits_of(x.device), "windows")
    return [{"tiles": str(blocks)} for blocks in found]


def _conv_arguments(rest: tuple[Any, ...], axes: int) -> list[Any]:
    """Return the arguments after `x` with one number for each axis, and the result's dtype."""
    *arguments, dtype, _ = rest
    for position in (6, 7, 8):  # stride, padding, dilation
        arguments[position] = expand_sizes(arguments[position], axes)
    return [*arguments, result_dtype(dtype)]


def _compile_conv(config: Mapping[str, str], x: Tensor, *rest: Any) -> Future[None]:
    from burnt.kernels.ops.quantized.scaled_triton import conv_launches

    arguments = meta_tensors(x, *_conv_arguments(rest, x.dim() - 2))
    arguments.append(MatmulConfig.of(config["tiles"]))
    return compile_all(conv_launches(*arguments)[0], x.device)


@scaled_conv.candidate(
    "triton",
    devices=["cuda"],
    dtypes=DTYPES,
    when=_conv_unsupported_reason,
    configs=_conv_configs,
    compiles=_compile_conv,
)
def _(x: Tensor, *rest: Any, config: Mapping[str, str]) -> Tensor:
    from burnt.kernels.ops.quantized.scaled_triton import scaled_conv_triton

    return scaled_conv_triton(x, *_conv_arguments(rest, x.dim() - 2), MatmulConfig.of(config["tiles"]))
