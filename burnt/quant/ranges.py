"""Scales and zero points of weights: how the range of each group of values is found.

A group is what shares a scale: the whole matrix, a row or a block. Weights are seen as ``[groups, size]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.codegen import fuse
from burnt.errors import ConfigError, did_you_mean
from burnt.scheme import QuantScheme

RangeMethod = Literal["minmax", "mse", "percentile", "absmean"]

METHODS: tuple[str, ...] = get_args(RangeMethod)

_PERCENTILE = 0.999
# Tried as parts of the largest absolute value; more of them lower the error by less than 0.5 %.
_FACTORS = [0.55 + 0.025 * i for i in range(23)]
_CHUNK = 1 << 22  # elements whose errors are computed at once


def default_method(scheme: QuantScheme) -> RangeMethod:
    """Return the method for a scheme's weights: with 8 bits clipping gains nothing, with fewer it does.

    For normally distributed weights, int4 in blocks of 32, ``"mse"`` has 0.91 times the error of
    ``"minmax"``.
    """
    return "minmax" if scheme.type.bits == 8 else "mse"


def check_method(what: str, method: str, known: Sequence[str]) -> None:
    """Check the name of a method to find the range of weights or activations."""
    if method not in known:
        raise ConfigError(
            f"there is no such method to find the range of {what}",
            expected=", ".join(map(repr, known)),
            found=repr(method),
            hint=did_you_mean(method, known),
        )


def weight_range(
    matrix: Tensor, scheme: QuantScheme, method: RangeMethod | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return scale and zero point of a weight ``[rows, columns]``, floating-point and finite.

    The scale is ``[rows or 1, blocks]`` in the scheme's dtype; the zero point int8 in the same shape, or None
    for symmetric schemes. Methods: ``"minmax"``: all values are in range; ``"mse"``: the range with the
    smallest squared error; ``"percentile"``: 99.9 % of the absolute values are in range; ``"absmean"``: the
    mean absolute value becomes the value 1, as in BitNet b1.58. None selects `default_method`.

    >>> scale, _ = weight_range(torch.tensor([[1.0, -2.0], [0.5, 0.0]]), QuantScheme("int8", narrow=True))
    >>> (scale * 127).flatten()
    tensor([2.0000, 0.5000])
    """
    method = default_method(scheme) if method is None else method
    check_method("weights", method, METHODS)
    groups = _groups(matrix.float(), scheme)
    shape = scheme.scale_shape(*matrix.shape)
    if not scheme.symmetric:
        scale, zero_point = _asymmetric(groups, scheme, method)
        return scale.view(shape), zero_point.view(shape)
    if method == "absmean":
        scale = groups.abs().mean(1)
    elif method == "percentile":
        scale = _quantile(groups.abs(), _PERCENTILE) / _half_range(scheme)
    else:
        scale = groups.abs().amax(1) / _half_range(scheme) if groups.numel() else groups.new_ones(len(groups))
    scale = _rounded(scale, scheme)
    if method == "mse":
        scale = _search(groups, scale, scheme)
    return scale.to(getattr(torch, scheme.scale)).view(shape), None


def _groups(matrix: Tensor, scheme: QuantScheme) -> Tensor:
    """Return the matrix as ``[groups, size]``; incomplete blocks are padded with zeros."""
    columns = matrix.shape[1]
    if scheme.level == "tensor":
        return matrix.reshape(1, -1)
    if scheme.block is None:
        return matrix
    padded = scheme.blocks(columns) * scheme.block
    return F.pad(matrix, (0, padded - columns)).reshape(-1, scheme.block)


def _half_range(scheme: QuantScheme) -> float:
    """Return what the largest absolute value becomes: 127.5 for -128 to 127, which is clipped to 127."""
    return (scheme.largest - scheme.smallest) / 2


def _rounded(scale: Tensor, scheme: QuantScheme) -> Tensor:
    """Round to the scales' dtype, in float32."""
    if scheme.scale == "float16" and scheme.type.bits == 8 and scheme.type.is_float:
        # float8 is as exact in a part of its range, float16 is not below its smallest normal number.
        scale = torch.where(scale > 0, scale.clamp(min=2.0**-14), scale)
    return scale.to(getattr(torch, scheme.scale)).float()


def _quantile(values: Tensor, part: float) -> Tensor:
    """Return a quantile of each row, of any length, unlike torch.quantile."""
    count = values.shape[1]
    return values.kthvalue(max(1, min(count, round(part * count))), dim=1).values


def _asymmetric(groups: Tensor, scheme: QuantScheme, method: str) -> tuple[Tensor, Tensor]:
    low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    if method == "percentile":
        high = torch.minimum(high, _quantile(groups, _PERCENTILE).clamp(min=0))
        low = torch.maximum(low, -_quantile(-groups, _PERCENTILE).clamp(min=0))
    best: tuple[Tensor, Tensor] | None = None
    least = torch.zeros(())
    for factor in _FACTORS if method == "mse" else [1.0]:
        scale = _rounded((high - low) * factor / (scheme.largest - scheme.smallest), scheme)
        safe = torch.where(scale == 0, 1.0, scale)
        zero_point = (scheme.smallest - low * factor / safe).round().clamp(scheme.smallest, scheme.largest)
        errors = _errors(groups, scale, zero_point, scheme) if method == "mse" else least
        if best is None:
            best, least = (scale, zero_point), errors
        is_less = errors < least
        least = torch.where(is_less, errors, least)
        best = torch.where(is_less, scale, best[0]), torch.where(is_less, zero_point, best[1])
    assert best is not None
    return best[0].to(getattr(torch, scheme.scale)), best[1].to(torch.int8)


def _search(groups: Tensor, scale: Tensor, scheme: QuantScheme) -> Tensor:
    """Return for each group the scale with the least squared error, among parts of the given one."""
    best, least = scale, _errors(groups, scale, None, scheme)
    for factor in _FACTORS:
        candidate = _rounded(scale * factor, scheme)
        errors = _errors(groups, candidate, None, scheme)
        best = torch.where(errors < least, candidate, best)
        least = torch.minimum(errors, least)
    return best


@fuse
def _integer_errors(groups: Tensor, scale: Tensor, zero_point: Tensor, low: float, high: float) -> Tensor:
    safe = torch.where(scale == 0, 1.0, scale)
    codes = torch.clamp(torch.round(groups / safe) + zero_point, low, high)
    return ((codes - zero_point) * scale - groups).square().sum(1)


def _errors(groups: Tensor, scale: Tensor, zero_point: Tensor | None, scheme: QuantScheme) -> Tensor:
    """Return the squared error of each group."""
    scale = scale[:, None]
    zero = torch.zeros_like(scale) if zero_point is None else zero_point[:, None]
    if not scheme.type.is_float:
        squares: Tensor = _integer_errors(groups, scale, zero, float(scheme.smallest), float(scheme.largest))
        return squares
    if groups.shape[1] % scheme.type.per_byte:
        groups = F.pad(groups, (0, 1))  # a zero has no error
    errors = []
    chunk = max(1, _CHUNK // groups.shape[1])
    for part, part_scale in zip(torch.split(groups, chunk), torch.split(scale, chunk), strict=True):
        values = kernels.quantize(part, part_scale, None, scheme.value)
        errors.append((kernels.dequantize(values, part_scale, None, scheme.value) - part).square().sum(1))
    return torch.cat(errors)
