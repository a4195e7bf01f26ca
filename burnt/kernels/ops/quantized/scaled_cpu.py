"""Candidates of `scaled_linear` and `scaled_conv` on a CPU: a matmul or convolution, then one fused epilogue.

- ``onednn``: if its integer instructions do not saturate (VNNI, AMX);
- ``float32``: in float32, of so few terms at once that it holds their sum exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import fuse
from burnt.kernels.interface.derived import derive
from burnt.kernels.ops.conv.conv import conv
from burnt.kernels.ops.matmul import linear
from burnt.kernels.ops.quantized.quantize import decode
from burnt.kernels.ops.quantized.scaled import (
    EXACT_TERMS,
    ConvCall,
    LinearCall,
    epilogue_of,
    finish,
    finish_linear,
    less_zero_point,
    scaled_conv,
    scaled_linear,
    sum_rows,
)

# Terms whose sum int32 holds, also times a zero point; and with two of them.
_MAX_TERMS, _MAX_ASYMMETRIC_TERMS = 1 << 16, 1 << 14

_finish_linear = fuse(finish_linear)


@fuse
def _finish_conv(sums: Tensor, zero_point: Tensor | None, groups: int, *epilogue: Any) -> Tensor:
    if zero_point is not None:  # the last channel of each group has the sums of the input
        axes = sums.dim() - 2
        parts = sums.view(sums.shape[0], groups, sums.shape[1] // groups, *sums.shape[2:])
        zeros = zero_point.float().expand((parts.shape[2] - 1) * groups, 1)
        zeros = zeros.reshape(groups, -1, *[1] * axes)
        sums = (parts[:, :, :-1] - zeros * parts[:, :, -1:]).flatten(1, 2)
    return finish(sums, *epilogue).contiguous()


def _exact_terms(call: LinearCall | ConvCall) -> int:
    return EXACT_TERMS >> sum(zero is not None for zero in (call.x_zero_point, call.zero_point))


def _less_zero_points(call: LinearCall | ConvCall) -> tuple[Tensor, Tensor]:
    """Return ``x``, float32, and the weight, both less their zero points."""
    x, weight = call.x.float(), call.values
    x = x if call.x_zero_point is None else x - call.x_zero_point.float()
    return x, weight if call.zero_point is None else less_zero_point(weight, call.zero_point)


def _derive(weight: Tensor, name: str, uses: int, key: object, compute: Callable[[], Tensor]) -> Tensor:
    """Return a tensor computed from a weight, cached unless changes of the weight cannot be detected."""
    if weight.is_inference():
        return compute()
    return derive(weight, name, (_torch.state_of(weight, uses), key), compute)


def _onednn_unsupported_reason(
    call: LinearCall | ConvCall, terms: int, is_exact: Callable[[], bool]
) -> str | None:
    if not (call.x.numel() and call.values.numel()):
        return "an empty tensor"
    if terms > (_MAX_TERMS if call.zero_point is None else _MAX_ASYMMETRIC_TERMS):
        return f"{terms} terms: int32 does not hold their sum"
    return None if is_exact() else "oneDNN's sums of int8 products saturate on this processor"


def _linear_onednn_unsupported_reason(*args: Any) -> str | None:
    call = LinearCall(*args)
    if call.value != "int8":
        return "it is for int8 values"
    if call.x.shape[-1] == 1:
        return "one column: torch's matmul of integers returns wrong results"
    return _onednn_unsupported_reason(call, call.x.shape[-1], _torch.onednn_adds_int8_exactly)


@scaled_linear.candidate(
    "onednn", devices=["cpu"], when=_linear_onednn_unsupported_reason, differentiable=True
)
def _linear_onednn(*args: Any) -> Tensor:
    call = LinearCall(*args)
    x, values, zero_point = call.x, call.values, call.zero_point
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    sums = _torch.int8_mm(rows, values.contiguous())
    x_zero_point = column_sums = row_sums = None
    if call.x_zero_point is not None:
        x_zero_point = call.x_zero_point.reshape(())
        state = None if zero_point is None else _torch.state_of(zero_point, 0)
        column_sums = _derive(
            values, "sums", rows.shape[0], state, lambda: sum_rows(values, zero_point, torch.int32)
        )
    if zero_point is not None:
        row_sums = rows.sum(1, keepdim=True, dtype=torch.int32)
    out: Tensor = _finish_linear(sums, x_zero_point, column_sums, zero_point, row_sums, *epilogue_of(call))
    return out.view(*x.shape[:-1], values.shape[0])


def _linear_float32_unsupported_reason(*args: Any) -> str | None:
    call = LinearCall(*args)
    if call.value != "int8" and torch.float64 in (call.x_scale.dtype, call.scale.dtype):
        return "a scale of float64"
    return None if call.x.numel() and call.values.numel() else "an empty tensor"


@scaled_linear.candidate(
    "float32",
    devices=["cpu"],
    when=_linear_float32_unsupported_reason,
    best=lambda *args: _linear_onednn_unsupported_reason(*args) is not None,
    differentiable=True,
)
def _linear_float32(*args: Any) -> Tensor:
    call = LinearCall(*args)
    rows = call.x.reshape(-1, call.x.shape[-1])
    if call.value == "int8":
        sums = _exact_sums(call._replace(x=rows))
    else:
        sums = linear(_decode_float32(rows, call.value), _decode_float32(call.values, call.value))
    out: Tensor = _finish_linear(sums, None, None, None, None, *epilogue_of(call))
    return out.view(*call.x.shape[:-1], call.values.shape[0])


@fuse
def _decode_float32(values: Tensor, value: str) -> Tensor:
    return decode(values, value, torch.float32)


def _exact_sums(call: LinearCall) -> Tensor:
    """Multiply ``x [m, k]`` and ``values [n, k]`` less their zero points: float32 or int64 ``[m, n]``."""
    parts = zip(*(torch.split(t, _exact_terms(call), 1) for t in _less_zero_points(call)), strict=True)
    sums = [linear(a, b.float()) for a, b in parts]
    if len(sums) == 1:
        return sums[0]
    total = sums[0].to(torch.int64)
    for part in sums[1:]:
        total += part.to(torch.int64)
    return total


def _conv_onednn_unsupported_reason(*args: Any) -> str | None:
    call = ConvCall(*args)
    return _onednn_unsupported_reason(call, call.terms, _torch.onednn_convolves_int8_exactly)


@scaled_conv.candidate("onednn", devices=["cpu"], when=_conv_onednn_unsupported_reason, differentiable=True)
def _conv_onednn(*args: Any) -> Tensor:
    """Zero points of the weight multiply the sums of the input, which further channels of ones compute."""
    call = ConvCall(*args)
    out: Tensor = _finish_conv(_conv_onednn_sums(call), call.zero_point, call.groups, *epilogue_of(call))
    return out


def _conv_float32_unsupported_reason(*args: Any) -> str | None:
    call = ConvCall(*args)
    most = _exact_terms(call)
    if call.terms > most:
        return f"{call.terms} terms: float32 holds sums of {most} products exactly"
    return None if call.x.numel() and call.values.numel() else "an empty tensor"


@scaled_conv.candidate(
    "float32",
    devices=["cpu"],
    when=_conv_float32_unsupported_reason,
    best=lambda *args: _conv_onednn_unsupported_reason(*args) is not None,
    differentiable=True,
)
def _conv_float32(*args: Any) -> Tensor:
    call = ConvCall(*args)
    numbers, weight = _less_zero_points(call)
    sums = conv(numbers, weight.float(), None, None, None, None, *call.sizes, call.groups)
    out: Tensor = _finish_conv(sums, None, call.groups, *epilogue_of(call))
    return out


@fuse
def _unsigned(x: Tensor) -> Tensor:
    return (x.to(torch.int16) + 128).to(torch.uint8)


def _conv_onednn_sums(call: ConvCall) -> Tensor:
    """Convolve ``x`` minus its zero point with `values`: float32, rounded from the exact sums.

    oneDNN's kernels are for uint8 inputs: for int8 it uses its reference loop. With zero points of the
    weight, each group has a further channel whose weights are ones.
    """
    x, values, groups, with_ones = call.x, call.values, call.groups, call.zero_point is not None
    zero = 128 + (0 if call.x_zero_point is None else int(call.x_zero_point))
    has_zero = int(zero != 0)  # all that a packed weight depends on
    stride, padding, dilation = call.sizes

    def pack() -> Tensor:
        weight = _add_ones(values, groups) if with_ones else values.contiguous()
        return _torch.onednn_int8_packed_conv(weight, x.shape, has_zero, stride, padding, dilation, groups)

    key = (tuple(x.shape), has_zero, str(call.sizes), groups, with_ones)
    packed = _derive(values, f"conv {has_zero}", x.numel() // x.shape[1], key, pack)
    channels = values.shape[0] + groups * with_ones
    return _torch.onednn_int8_conv(_unsigned(x), packed, channels, zero, stride, padding, dilation, groups)


def _add_ones(values: Tensor, groups: int) -> Tensor:
    parts = values.reshape(groups, -1, *values.shape[1:])
    return torch.cat([parts, torch.ones_like(parts[:, :1])], 1).flatten(0, 1)
