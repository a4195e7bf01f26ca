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
from burnt.kernels.ops.quantized.weight_only import quantized_linear

_MAX_ROWS = 4
"""Rows of x up to which a sum is worth measuring: the weight is decoded for each of them."""


def linear_as_sum(
    x: Tensor,
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    value: str,
    block: int,
) -> Tensor:
    """Compute `burnt.kernels.quantized_linear` as a sum over the last axis; the arguments are the op's."""
    wide = torch.promote_types(x.dtype, torch.float32)
    weight = dequantize.reference(values, scale, zero_point, value, block, x.shape[-1], wide)
    out = (x.to(wide).unsqueeze(-2) * weight).sum(-1)
    if bias is not None:
        out = out + bias.to(wide)
    return apply_activation(out, activation).to(x.dtype)


_fused_sum = fuse(linear_as_sum)


def _unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    if 0 in (x.numel(), values.numel()):
        return "an empty tensor"
    rows = x.numel() // x.shape[-1]
    return None if rows <= _MAX_ROWS else f"{rows} rows, which would each decode the weight"


@quantized_linear.candidate(
    "sum", devices=["mps"], when=_unsupported_reason, best=lambda x, *_: x.numel() == x.shape[-1]
)
def _(*args: Any) -> Tensor:
    result: Tensor = _fused_sum(*args)
    return result
