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
    low, high = _limits(groups, scheme, method)
    best, best_zero = _parameters(low, high, scheme)
    if method == "mse":
        least = _errors(groups, best, best_zero, scheme)
        for factor in _FACTORS:
            scale, zero_point = _parameters(low * factor, high * factor, scheme)
            errors = _errors(groups, scale, zero_point, scheme)
            best = torch.where(errors < least, scale, best)
            if best_zero is not None and zero_point is not None:
                best_zero = torch.where(errors < least, zero_point, best_zero)
            least = torch.minimum(errors, least)
    shape = scheme.scale_shape(*matrix.shape)
    zeros = None if best_zero is None else best_zero.to(torch.int8).view(shape)
    return best.to(getattr(torch, scheme.scale)).view(shape), zeros


def _groups(matrix: Tensor, scheme: QuantScheme) -> Tensor:
    """Return the matrix as ``[groups, size]``; incomplete blocks are padded with zeros."""
    columns = matrix.shape[1]
    if scheme.level == "tensor":
        return matrix.reshape(1, -1)
    if scheme.block is None:
        return matrix
    padded = scheme.blocks(columns) * scheme.block
    return F.pad(matrix, (0, padded - columns)).reshape(-1, scheme.block)


def _limits(groups: Tensor, scheme: QuantScheme, method: str) -> tuple[Tensor, Tensor]:
    """Return the range of each group, which holds zero; a symmetric scheme's is symmetric."""
    if not scheme.symmetric:
        low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
        if method == "percentile":
            high = torch.minimum(high, _quantile(groups, _PERCENTILE).clamp(min=0))
            low = torch.maximum(low, -_quantile(-groups, _PERCENTILE).clamp(min=0))
        return low, high
    if method == "absmean":
        limit = groups.abs().mean(1) * ((scheme.largest - scheme.smallest) / 2)
    elif method == "percentile":
        limit = _quantile(groups.abs(), _PERCENTILE)
    else:
        limit = groups.abs().amax(1)
    return -limit, limit


def _parameters(low: Tensor, high: Tensor, scheme: QuantScheme) -> tuple[Tensor, Tensor | None]:
    """Return scales in float32, rounded to their dtype, and zero points for ranges."""
    scale = (high - low) / (scheme.largest - scheme.smallest)
    if scheme.scale == "float16" and scheme.type.bits == 8 and scheme.type.is_float:
        # float8 is as exact in a part of its range, float16 is not below its smallest normal number.
        scale = torch.where(scale > 0, scale.clamp(min=2.0**-14), scale)
    scale = scale.to(getattr(torch, scheme.scale)).float()
    if scheme.symmetric:
        return scale, None
    safe = torch.where(scale == 0, 1.0, scale)
    return scale, (scheme.smallest - low / safe).round().clamp(scheme.smallest, scheme.largest)


def _quantile(values: Tensor, part: float) -> Tensor:
    """Return a quantile of each row, of any length, unlike torch.quantile."""
    count = values.shape[1]
    return values.kthvalue(max(1, min(count, round(part * count))), dim=1).values


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
