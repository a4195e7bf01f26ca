"""The candidate ``sum`` of `quantized_linear`: a few rows of x as one generated reduction, on Metal.

Metal has no generated matmul: the dequantized weight would be written, and read again by torch's. As a sum of
products, codegen fuses the dequantization into what reads the weight, and bias and activation into the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnt.codegen import fuse
from burnt.kernels.ops.activation import apply_activation
from burnt.kernels.ops.quantized.quantize import dequantize
from burnt.kernels.ops.quantized.weight_only import LinearArguments, quantized_linear

_MAX_ROWS = 4
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


def _unsupported_reason(*args: Any) -> str | None:
    call = LinearArguments(*args)
    if call.is_empty:
        return "an empty tensor"
    return None if call.num_rows <= _MAX_ROWS else f"{call.num_rows} rows, which would each decode the weight"


@quantized_linear.candidate(
    "sum", devices=["mps"], when=_unsupported_reason, best=lambda x, *_: x.numel() == x.shape[-1]
)
def _(*args: Any) -> Tensor:
    result: Tensor = _fused_sum(*args)
    return result
