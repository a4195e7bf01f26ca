"""Candidates of `quantized_linear` on a GPU: ``triton``, and ``sum`` on Metal, a generated reduction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnt.codegen import fuse
from burnt.codegen.render.triton.tile_config import Limits
from burnt.kernels.ops.activation import apply_activation
from burnt.kernels.ops.matmul_gpu import add_candidate
from burnt.kernels.ops.quantized.quantize import dequantize
from burnt.kernels.ops.quantized.weight_only import LinearArguments, quantized_linear
from burnt.kernels.ops.quantized.weight_only_config import configs, structure_of
from burnt.scheme import VALUES

_MAX_ROWS = 64
"""Rows of x up to which the kernel is selected without measuring: the bytes of the weight limit it then. With
more, the weight is dequantized once, and the library multiplies."""


def unsupported_reason(call: LinearArguments) -> str | None:
    """Return why the kernels do not support a call, whatever the device; None if they do."""
    if call.is_empty:
        return "an empty tensor"
    block = call.block
    if block and (block & (block - 1) or block % VALUES[call.value].per_byte):
        return f"blocks of {block} columns, which are not a power of two, or share bytes"
    return None


def _launches(config: dict[str, str], device: torch.device, *args: Any) -> Any:
    from burnt.kernels.ops.quantized.weight_only_triton import launches

    return launches(LinearArguments(*args), config)


def _configs(limits: Limits, *args: Any) -> list[dict[str, str]]:
    call = LinearArguments(*args)
    per_byte, itemsize = VALUES[call.value].per_byte, call.x.element_size()
    structure = structure_of(call.num_rows, call.values.shape[0], call.x.shape[-1], per_byte, itemsize)
    return configs(structure, call.block, limits)


add_candidate(
    quantized_linear,
    _launches,
    _configs,
    when=lambda *args: unsupported_reason(LinearArguments(*args)),
    best=lambda *args: LinearArguments(*args).num_rows <= _MAX_ROWS,
)


# --- on Metal -----------------------------------------------------------------------------------------------

# Metal has no generated matmul: the dequantized weight would be written, and read again by torch's. As a sum
# of products, codegen fuses the dequantization into what reads the weight, bias and activation at the end.
_MAX_SUM_ROWS = 4
"""Rows of x up to which a sum is worth measuring: the weight is decoded for each of them."""


def linear_as_sum(*args: Any) -> Tensor:
    """Compute `burnt.kernels.quantized_linear` as a sum over the last axis; the arguments are the op's."""
    call = LinearArguments(*args)
    wide = torch.promote_types(call.x.dtype, torch.float32)
    out = (call.x.to(wide).unsqueeze(-2) * call.weight(wide, dequantize.reference)).sum(-1)
    if call.bias is not None:
        out = out + call.bias.to(wide)
    return apply_activation(out, call.activation).to(call.x.dtype)


_fused_sum = fuse(linear_as_sum)


def _sum_unsupported_reason(*args: Any) -> str | None:
    call = LinearArguments(*args)
    if call.is_empty:
        return "an empty tensor"
    return (
        None
        if call.num_rows <= _MAX_SUM_ROWS
        else f"{call.num_rows} rows, which would each decode the weight"
    )


@quantized_linear.candidate(
    "sum", devices=["mps"], when=_sum_unsupported_reason, best=lambda x, *_: x.numel() == x.shape[-1]
)
def _(*args: Any) -> Tensor:
    result: Tensor = _fused_sum(*args)
    return result
