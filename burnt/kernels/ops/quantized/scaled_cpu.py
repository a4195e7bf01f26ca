"""Candidates of `scaled_linear` and `scaled_conv` on a CPU: a matmul or convolution, then one fused epilogue.

- ``onednn``: if its integer instructions do not saturate (VNNI, AMX);
- ``float32``: in float32, of so few terms at once that it holds their sum exactly.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from burnt import _torch
from burnt.codegen import fuse
from burnt.kernels.ops.conv.conv import conv
from burnt.kernels.ops.conv.onednn import expand_sizes
from burnt.kernels.ops.matmul import linear
from burnt.kernels.ops.quantized.scaled import (
    finish_conv,
    finish_linear,
    less_zero_point,
    scaled_conv,
    scaled_linear,
    sum_rows,
)
from burnt.kernels.ops.quantized.values import decode

# Products of 8-bit integers whose sum float32 holds exactly: 2^24 / 2^14. Each zero point adds one bit.
_EXACT_TERMS = 1 << 10
# Terms whose sum int32 holds, also times a zero point; and with two of them.
_MAX_TERMS, _MAX_ASYMMETRIC_TERMS = 1 << 16, 1 << 14

_finish_linear = fuse(finish_linear)


@fuse
def _finish_conv(
    sums: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    activation: str | None,
    out_scale: Tensor | None,
    out_zero_point: Tensor | None,
    dtype: torch.dtype | None,
    zero_point: Tensor | None,
    groups: int,
) -> Tensor:
    if zero_point is not None:  # the last channel of each group has the sums of the input
        axes = sums.dim() - 2
        parts = sums.view(sums.shape[0], groups, sums.shape[1] // groups, *sums.shape[2:])
        zeros = zero_point.float().expand((parts.shape[2] - 1) * groups, 1)
        zeros = zeros.reshape(groups, -1, *[1] * axes)
        sums = (parts[:, :, :-1] - zeros * parts[:, :, -1:]).flatten(1, 2)
    out = finish_conv(sums, x_scale, scale, bias, activation, out_scale, out_zero_point, dtype)
    return out.contiguous()


def _exact_terms(*zero_points: Tensor | None) -> int:
    return _EXACT_TERMS >> sum(zero_point is not None for zero_point in zero_points)


_derived: MutableMapping[Tensor, dict[str, tuple[object, Tensor]]] = WeakIdKeyDictionary()


def _derive(weight: Tensor, name: str, uses: int, key: object, compute: Callable[[], Tensor]) -> Tensor:
    """Return a tensor computed from a weight, cached until the weight changes or is freed."""
    if weight.is_inference():
        return compute()  # its changes cannot be detected
    state = (_torch.state_of(weight, uses), key)
    entries = _derived.setdefault(weight, {})
    entry = entries.get(name)
    if entry is None or entry[0] != state:
        entry = entries[name] = state, compute()
    return entry[1]


def _onednn_unsupported_reason(
    x: Tensor, values: Tensor, terms: int, most: int, is_exact: Callable[[], bool]
) -> str | None:
    if not (x.numel() and values.numel()):
        return "an empty tensor"
    if terms > most:
        return f"{terms} terms: int32 does not hold their sum"
    if not is_exact():
        return "oneDNN's sums of int8 products saturate on this processor"
    return None


def _linear_onednn_unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    *_, value, _, zero_point = rest
    if value != "int8":
        return "it is for int8 values"
    if x.shape[-1] == 1:
        return "one column: torch's matmul of integers returns wrong results"
    most = _MAX_TERMS if zero_point is None else _MAX_ASYMMETRIC_TERMS
    return _onednn_unsupported_reason(x, values, x.shape[-1], most, _torch.onednn_adds_int8_exactly)


@scaled_linear.candidate(
    "onednn", devices=["cpu"], when=_linear_onednn_unsupported_reason, differentiable=True
)
def _linear_onednn(x: Tensor, values: Tensor, *rest: Any) -> Tensor:
    x_scale, scale, x_zero_point, *epilogue, zero_point = rest
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    sums = _torch.int8_mm(rows, values.contiguous())
    column_sums = row_sums = None
    if x_zero_point is not None:
        x_zero_point = x_zero_point.reshape(())
        state = None if zero_point is None else _torch.state_of(zero_point, 0)
        column_sums = _derive(
            values, "sums", rows.shape[0], state, lambda: sum_rows(values, zero_point, torch.int32)
        )
    if zero_point is not None:
        row_sums = rows.sum(1, keepdim=True, dtype=torch.int32)
    out: Tensor = _finish_linear(
        sums, x_scale, scale, x_zero_point, column_sums, *epilogue, zero_point, row_sums
    )
    return out.view(*x.shape[:-1], values.shape[0])


def _linear_float32_unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    x_scale, scale, *_, value, _, _ = rest
    if value != "int8" and torch.float64 in (x_scale.dtype, scale.dtype):
        return "a scale of float64"
    return None if x.numel() and values.numel() else "an empty tensor"


@scaled_linear.candidate(
    "float32",
    devices=["cpu"],
    when=_linear_float32_unsupported_reason,
    best=lambda *args: _linear_onednn_unsupported_reason(*args) is not None,
    differentiable=True,
)
def _linear_float32(x: Tensor, values: Tensor, *rest: Any) -> Tensor:
    x_scale, scale, x_zero_point, *epilogue, zero_point = rest
    rows, value = x.reshape(-1, x.shape[-1]), epilogue[-2]
    if value == "int8":
        sums = _exact_sums(rows, values, x_zero_point, zero_point)
    else:
        sums = linear(_decode_float32(rows, value), _decode_float32(values, value))
    out: Tensor = _finish_linear(sums, x_scale, scale, None, None, *epilogue)
    return out.view(*x.shape[:-1], values.shape[0])


@fuse
def _decode_float32(values: Tensor, value: str) -> Tensor:
    return decode(values, value, torch.float32)


def _exact_sums(x: Tensor, values: Tensor, x_zero_point: Tensor | None, zero_point: Tensor | None) -> Tensor:
    """Multiply ``x [m, k]`` and ``values [n, k]`` less their zero points: float32 or int64 ``[m, n]``."""
    terms = _exact_terms(x_zero_point, zero_point)
    numbers = x.float() if x_zero_point is None else x.float() - x_zero_point.float()
    weight = values if zero_point is None else less_zero_point(values, zero_point)
    parts = zip(torch.split(numbers, terms, 1), torch.split(weight, terms, 1), strict=True)
    sums = [linear(a, b.float()) for a, b in parts]
    if len(sums) == 1:
        return sums[0]
    total = sums[0].to(torch.int64)
    for part in sums[1:]:
        total += part.to(torch.int64)
    return total


def _terms(values: Tensor) -> int:
    """Return how many products an output of a convolution sums."""
    return values[0].numel() if values.shape[0] else 0


def _conv_onednn_unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    most = _MAX_TERMS if rest[-1] is None else _MAX_ASYMMETRIC_TERMS
    return _onednn_unsupported_reason(x, values, _terms(values), most, _torch.onednn_convolves_int8_exactly)


@scaled_conv.candidate("onednn", devices=["cpu"], when=_conv_onednn_unsupported_reason, differentiable=True)
def _conv_onednn(x: Tensor, values: Tensor, *rest: Any) -> Tensor:
    """Zero points of the weight multiply the sums of the input, which further channels of ones compute."""
    x_scale, scale, x_zero_point, bias, activation, *axes, groups, _, _, _, _ = rest
    *requantize, zero_point = rest[9:]
    sizes = [expand_sizes(size, values.dim() - 2) for size in axes]
    sums = _conv_onednn_sums(x, values, x_zero_point, sizes, groups, with_ones=zero_point is not None)
    out: Tensor = _finish_conv(sums, x_scale, scale, bias, activation, *requantize, zero_point, groups)
    return out


def _conv_float32_unsupported_reason(x: Tensor, values: Tensor, *rest: Any) -> str | None:
    most = _exact_terms(rest[2], rest[-1])
    if _terms(values) > most:
        return f"{_terms(values)} terms: float32 holds sums of {most} products exactly"
    return None if x.numel() and values.numel() else "an empty tensor"


@scaled_conv.candidate(
    "float32",
    devices=["cpu"],
    when=_conv_float32_unsupported_reason,
    best=lambda *args: _conv_onednn_unsupported_reason(*args) is not None,
    differentiable=True,
)
def _conv_float32(x: Tensor, values: Tensor, *rest: Any) -> Tensor:
    x_scale, scale, x_zero_point, bias, activation, *axes, groups, _, _, _, _ = rest
    *requantize, zero_point = rest[9:]
    stride, padding, dilation = (expand_sizes(size, values.dim() - 2) for size in axes)
    numbers = x.float() if x_zero_point is None else x.float() - x_zero_point.float()
    weight = values if zero_point is None else less_zero_point(values, zero_point)
    sums = conv(numbers, weight.float(), None, None, None, None, stride, padding, dilation, groups)
    out: Tensor = _finish_conv(sums, x_scale, scale, bias, activation, *requantize, None, groups)
    return out


@fuse
def _unsigned(x: Tensor) -> Tensor:
    return (x.to(torch.int16) + 128).to(torch.uint8)


def _conv_onednn_sums(
    x: Tensor,
    values: Tensor,
    x_zero_point: Tensor | None,
    sizes: Sequence[list[int]],
    groups: int,
    with_ones: bool,
) -> Tensor:
    """Convolve ``x`` minus its zero point with `values`: float32, rounded from the exact sums.

    oneDNN's kernels are for uint8 inputs: for int8 it uses its reference loop. `with_ones` adds to each group
    a channel whose weights are ones.
    """
    zero = 128 + (0 if x_zero_point is None else int(x_zero_point))
    has_zero = int(zero != 0)  # all that a packed weight depends on
    stride, padding, dilation = sizes

    def pack() -> Tensor:
        weight = _add_ones(values, groups) if with_ones else values.contiguous()
        return _torch.onednn_int8_packed_conv(weight, x.shape, has_zero, stride, padding, dilation, groups)

    key = (tuple(x.shape), has_zero, str(sizes), groups, with_ones)
    packed = _derive(values, f"conv {has_zero}", x.numel() // x.shape[1], key, pack)
    channels = values.shape[0] + groups * with_ones
    return _torch.onednn_int8_conv(_unsigned(x), packed, channels, zero, stride, padding, dilation, groups)


def _add_ones(values: Tensor, groups: int) -> Tensor:
    parts = values.reshape(groups, -1, *values.shape[1:])
    return torch.cat([parts, torch.ones_like(parts[:, :1])], 1).flatten(0, 1)
