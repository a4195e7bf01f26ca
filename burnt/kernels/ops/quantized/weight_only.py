"""`quantized_linear` and `quantized_embedding`: quantized weights, floating-point inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import cast
from burnt.kernels.interface.checks import check_floating, check_one_device, check_shape
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.activation import apply_activation, check_activation
from burnt.kernels.ops.matmul import linear
from burnt.kernels.ops.quantized import weight_only_c
from burnt.kernels.ops.quantized.quantize import (
    check_scale,
    check_values,
    dequantize,
    is_floating,
    quantized_example,
    value_type,
)


class LinearArguments(NamedTuple):
    """The arguments of `quantized_linear`."""

    x: Tensor
    values: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    bias: Tensor | None = None
    activation: str | None = None
    value: str = "int8"
    block: int = 0

    @property
    def num_rows(self) -> int:
        """How many rows x has."""
        return self.x.numel() // max(self.x.shape[-1], 1)

    @property
    def is_empty(self) -> bool:
        """Whether a factor has no elements."""
        return 0 in (self.x.numel(), self.values.numel())

    def weight(self, dtype: torch.dtype, dequantize: Callable[..., Tensor]) -> Tensor:
        """Return the weight by `burnt.kernels.dequantize`, or by its reference."""
        settings = (self.value, self.block, self.x.shape[-1], dtype)
        return dequantize(self.values, self.scale, self.zero_point, *settings)


def _check_linear(*args: Any) -> None:
    x, values, scale, zero_point, bias, activation, value, block = args
    name = "quantized_linear"
    check_activation(name, activation)
    check_one_device(name, x=x, values=values, scale=scale, zero_point=zero_point, bias=bias)
    check_floating(name, x=x, scale=scale, bias=bias)
    check_values(name, values, value)
    per_byte = value_type(name, value).per_byte
    multiple = max(block, per_byte)
    if (
        values.dim() != 2
        or x.dim() < 1
        or not x.shape[-1] <= values.shape[1] * per_byte < x.shape[-1] + max(multiple, 1)
    ):
        raise InputRuntimeError(
            f"the shapes of x and values of {name} do not match",
            where=f"burnt.kernels.{name}",
            expected="x [*, in_features] for values [out_features, in_features]"
            + (f", {per_byte} to a byte" if per_byte > 1 else ""),
            found=f"x {list(x.shape)}, values {list(values.shape)}",
        )
    check_scale(name, values.shape[0], x.shape[-1], scale, zero_point, block)
    check_shape(name, "bias", bias, values.shape[:1])


def _linear_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for m, k, n, value, block, zero in [
        (1, 4096, 4096, "int8", 0, False),
        (1, 4096, 4096, "int4", 32, False),
        (64, 1024, 1024, "int8", 0, False),
        (256, 768, 1024, "int4", 32, True),
        (16, 256, 256, "float8_e4m3", 0, False),
        (5, 7, 3, "int4", 0, False),
        (3, 64, 5, "int2", 32, False),
        (3, 64, 5, "float4_e2m1", 32, False),
    ]:
        x, bias = torch.randn(m, k, device=device), torch.randn(n, device=device)
        examples.append((x, *quantized_example(device, n, k, value, block, zero), bias, None, value, block))
    return examples


def _autocast_linear(
    dtype: torch.dtype, x: Tensor, values: Tensor, scale: Tensor, zero_point: Tensor | None, *rest: Any
) -> tuple[Any, ...]:
    """Cast the input and the bias; scales keep their dtype."""
    return (cast(x, dtype), values, scale, zero_point, cast(rest[0], dtype), *rest[1:])


@op(check=_check_linear, examples=_linear_examples, autocast=_autocast_linear)
def quantized_linear(
    x: Tensor,
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    value: str = "int8",
    block: int = 0,
) -> Tensor:
    r"""Compute a linear map with a quantized weight: :math:`f(x \hat W^\top + b)`.

    Args:
        x: ``[*, in_features]``, floating-point.
        values: ``[out_features, in_features]``, packed, as `burnt.kernels.quantize` returns it; rows may be
            padded to a multiple of the block.
        scale: ``[out_features, 1]``, ``[1, 1]`` or with blocks ``[out_features, blocks]``, floating-point.
        zero_point: int8, in the shape of `scale`.
        bias: ``[out_features]``, floating-point.
        activation: the activation applied last, a key of `burnt.kernels.ACTIVATIONS`.
        value: the type of the values, a key of `burnt.scheme.VALUES`.
        block: columns that share a scale; 0 for whole rows.

    Returns:
        ``[*, out_features]``, in the dtype of `x`.

    Raises:
        InputUnsupportedError: `x`, `scale` or `bias` is not floating-point.
        InputValueError: `value` or `activation` is unknown.

    Equal to `burnt.kernels.dequantize`, then `torch.nn.functional.linear`. Gradients flow to `x`, `scale` and
    `bias`.

    >>> weight = torch.tensor([[2, -3]], dtype=torch.int8)
    >>> quantized_linear(torch.tensor([[1.0, 2.0]]), weight, torch.tensor([[0.5]]))
    tensor([[-2.]])
    """
    weight = dequantize.reference(values, scale, zero_point, value, block, x.shape[-1], x.dtype)
    return apply_activation(F.linear(x, weight, None if bias is None else bias.to(x.dtype)), activation)


def _c_unsupported_reason(*args: Any) -> str | None:
    call = LinearArguments(*args)
    if find_compiler() is None:
        return "no C compiler works here"
    if wants_gradient(call.x, call.scale, call.bias):
        return "a gradient is required"
    if call.bias is not None and call.bias.dtype == torch.float64:
        return "a bias of float64"
    return weight_only_c.unsupported_reason(
        call.x, call.values, call.scale, call.zero_point, call.value, call.block
    )


def _is_c_best(x: Tensor, values: Tensor, *rest: Any) -> bool:
    """Whether the weight's bytes take longer than the arithmetic: for a few rows.

    4096 x 4096 on one thread of a Zen 4, times of float32's `F.linear`: for one row int8 0.25 to 0.35 and
    int4 in blocks of 32 0.17 to 0.27; for four rows 0.5, for 16 0.8, for 64 1.1. There an int8 weight takes
    0.9 if it is dequantized first; dequantizing int4 takes six times as long.
    """
    is_packed = values.shape[1] < x.shape[-1]
    return x.numel() <= (weight_only_c.MAX_ROWS if is_packed else _FEW_ROWS) * x.shape[-1]


_FEW_ROWS = 32


@quantized_linear.candidate("c", devices=["cpu"], when=_c_unsupported_reason, best=_is_c_best)
def _linear_c(*args: Any) -> Tensor:
    x, values, scale, zero_point, bias, activation, value, block = args
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(-1) == 1 or rows.shape[1] == 1 else rows.contiguous()
    bias = None if bias is None else bias.to(x.dtype).float().contiguous()
    out = weight_only_c.multiply(rows, values, scale, zero_point, bias, value, block)
    return apply_activation(out, activation).to(x.dtype).view(*x.shape[:-1], values.shape[0])


@quantized_linear.candidate(
    "dequantized",
    devices=["cpu"],
    when=lambda x, *_: None if x.numel() else "an empty tensor",
    differentiable=True,
    best=lambda *args: _c_unsupported_reason(*args) is not None or not _is_c_best(*args),
)
def _linear_dequantized(*args: Any) -> Tensor:
    call = LinearArguments(*args)
    bias = None if call.bias is None else call.bias.to(call.x.dtype)
    return linear(call.x, call.weight(call.x.dtype, dequantize), bias, None, call.activation)


def _check_embedding(*args: Any) -> None:
    indices, values, scale, zero_point, value, block, columns, dtype = args
    name = "quantized_embedding"
    check_one_device(name, indices=indices, values=values, scale=scale, zero_point=zero_point)
    check_floating(name, scale=scale)
    check_values(name, values, value)
    if indices.dtype not in (torch.int64, torch.int32) or values.dim() != 2 or not is_floating(dtype):
        raise InputRuntimeError(
            f"the arguments of {name} do not match",
            where=f"burnt.kernels.{name}",
            expected="indices int64 or int32, values [rows, bytes], a floating-point dtype",
            found=f"indices {indices.dtype}, values {list(values.shape)}, {dtype}",
        )
    stored = values.shape[1] * value_type(name, value).per_byte
    check_scale(name, values.shape[0], stored if columns is None else columns, scale, zero_point, block)


def _embedding_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for count, rows, columns, value, block in [
        ((8, 512), 32000, 256, "int8", 0),
        ((4, 64), 1000, 64, "int4", 32),
        ((3, 5), 11, 7, "int4", 0),
    ]:
        indices = torch.randint(rows, count, device=device)
        parts = quantized_example(device, rows, columns, value, block)
        examples.append((indices, *parts, value, block, columns, torch.float32))
    return examples


@op(check=_check_embedding, examples=_embedding_examples)
def quantized_embedding(
    indices: Tensor,
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    value: str = "int8",
    block: int = 0,
    columns: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the rows of a quantized table at the given indices, dequantized.

    Args:
        indices: ``[*]``, int64 or int32.
        values, scale, zero_point, value, block, columns, dtype: the table, as `dequantize` takes it.

    Returns:
        ``[*, columns]``.

    Raises:
        IndexError: an index is outside of the table (on the CPU).
        InputValueError: `value` is unknown.

    >>> table = torch.tensor([[2, -3], [4, 5]], dtype=torch.int8)
    >>> quantized_embedding(torch.tensor([1]), table, torch.tensor([[0.5]]))
    tensor([[2.0000, 2.5000]])
    """
    flat = indices.reshape(-1)
    is_shared = scale.shape[0] == 1 and values.shape[0] != 1
    rows = F.embedding(flat, values)
    row_scale = scale if is_shared else F.embedding(flat, scale)
    row_zero = zero_point if zero_point is None or is_shared else F.embedding(flat, zero_point)
    out = dequantize.reference(rows, row_scale, row_zero, value, block, columns, dtype)
    return out.reshape(*indices.shape, out.shape[-1])
