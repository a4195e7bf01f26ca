"""Elementwise math, reductions and matrix products that torch has no single call for.

Torch has hardly any kernels for uint16, uint32 and uint64; `unsigned` computes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def align(x: Tensor, other: Tensor, axis: int) -> Tensor:
    """Append axes of size 1 to `x`, so that its first axis meets `axis` of `other` in broadcasting."""
    return x.reshape(*x.shape, *[1] * (other.dim() - axis - x.dim()))


def power(x: Tensor, exponent: Tensor) -> Tensor:
    """Raise to a power, in the dtype of `x` whatever the exponent's."""
    return torch.pow(x, exponent).to(x.dtype)


def power_unsigned(x: Tensor, exponent: Tensor) -> Tensor:
    """Raise to a power, in the dtype of `x` and wrapping around, where an operand is uint16, 32 or 64."""
    base, power_ = x.numpy(force=True), exponent.numpy(force=True)
    return torch.from_numpy(np.asarray(np.power(base, power_)).astype(base.dtype)).to(x.device)


def divide(x: Tensor, y: Tensor | float) -> Tensor:
    """Divide; integers are rounded towards zero, as ONNX does.

    >>> divide(torch.tensor([7, -7]), torch.tensor(2)), divide(torch.tensor(7.0), 2)
    (tensor([ 3, -3]), tensor(3.5000))
    """
    return torch.div(x, y) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def equal(x: Any, y: Any, device: torch.device | None = None) -> Tensor:
    """Compare arrays of strings."""
    return torch.from_numpy(np.asarray(np.equal(x, y), dtype=np.bool_)).to(device)


def where(condition: Tensor, x: Any, y: Any) -> Any:
    """Choose from arrays of strings."""
    return np.asarray(np.where(condition.numpy(force=True), x, y), dtype=object)


def hard_sigmoid(x: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """Return ``clamp(alpha * x + beta, 0, 1)``."""
    return torch.clamp(alpha * x + beta, 0, 1)


def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1; NaN stays NaN, which `torch.sign` makes 0.

    >>> sign(torch.tensor([-2.0, torch.nan]))
    tensor([-1., nan])
    """
    return torch.where(x.isnan(), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    """Return `gamma` times the ELU with `alpha`."""
    return gamma * F.elu(x, alpha)


def swish(x: Tensor, alpha: float) -> Tensor:
    """Return ``x * sigmoid(alpha * x)``."""
    return x * torch.sigmoid(alpha * x)


def shrink(x: Tensor, lambd: float = 0.5, bias: float = 0.0) -> Tensor:
    """Move what is further than `lambd` from zero towards zero by `bias`; the rest becomes zero."""
    moved = torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x)))
    return moved.to(x.dtype)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Multiply what is negative by a slope, which is broadcast."""
    return torch.where(x < 0, slope * x, x)


def _flat(x: Tensor, axis: int) -> Tensor:
    axis = axis + x.dim() if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    return x.reshape(rows, x.numel() // rows if rows else int(np.prod(x.shape[axis:], dtype=np.int64)))


def softmax_2d(x: Tensor, axis: int) -> Tensor:
    """Softmax over all axes from `axis` on, as in versions below 13."""
    return torch.softmax(_flat(x, axis), -1).reshape(x.shape)


def log_softmax_2d(x: Tensor, axis: int) -> Tensor:
    """Log-softmax over all axes from `axis` on, as in versions below 13."""
    return torch.log_softmax(_flat(x, axis), -1).reshape(x.shape)


def hardmax(x: Tensor, axis: int, flat: bool = False) -> Tensor:
    """Return 1 for the first maximum of an axis and 0 for the rest; `flat`: of all axes from `axis` on."""
    rows, axis = (_flat(x, axis), -1) if flat else (x, axis)
    ones = torch.zeros_like(rows).scatter(axis, rows.argmax(axis, keepdim=True), 1)
    return ones.reshape(x.shape)


def reduce(
    x: Tensor, kind: str, axes: Tensor | Sequence[int] | None, keepdim: bool = True, noop: bool = False
) -> Tensor:
    """Reduce over axes, in the dtype of `x`; the maximum of nothing is the dtype's lowest value or -infinity.

    `kind` is sum, mean, max, min, prod, l1, l2, log_sum, log_sum_exp or sum_square. No axes mean all axes, or
    with `noop` none: functions of the elements are computed all the same.
    """
    dims = axes.tolist() if isinstance(axes, Tensor) else list(axes or [])
    if not dims and not noop:
        dims = list(range(x.dim()))
    if kind in ("l1", "l2", "sum_square", "log_sum_exp", "log_sum") and not x.is_floating_point():
        return reduce(x.double(), kind, dims, keepdim, True).to(x.dtype)
    if kind == "l1":
        x, kind = x.abs(), "sum"
    elif kind == "sum_square":
        x, kind = x * x, "sum"
    elif kind == "l2":
        return reduce(x * x, "sum", dims, keepdim, True).sqrt()
    elif kind == "log_sum":
        return reduce(x, "sum", dims, keepdim, True).log()
    if not dims:
        return x
    if kind == "log_sum_exp":
        return torch.logsumexp(x, dims, keepdim)
    if kind == "mean":
        if not x.is_floating_point():
            return torch.mean(x.double(), dims, keepdim).trunc().to(x.dtype)
        return torch.mean(x, dims, keepdim)
    if kind == "sum":
        return torch.sum(x, dims, keepdim, dtype=x.dtype)
    if kind == "prod":
        for dim in sorted((d % x.dim() for d in dims), reverse=True):
            x = torch.prod(x, dim, keepdim, dtype=x.dtype)
        return x
    if any(x.shape[d] == 0 for d in dims):
        return _extreme_of_nothing(x, kind, dims, keepdim)
    return torch.amax(x, dims, keepdim) if kind == "max" else torch.amin(x, dims, keepdim)


def _extreme_of_nothing(x: Tensor, kind: str, dims: Sequence[int], keepdim: bool) -> Tensor:
    if x.dtype == torch.bool:
        value: float | bool = kind == "min"
    elif x.is_floating_point():
        value = -torch.inf if kind == "max" else torch.inf
    else:
        value = torch.iinfo(x.dtype).min if kind == "max" else torch.iinfo(x.dtype).max
    gone = {d % x.dim() for d in dims}
    sizes = [1 if d in gone else size for d, size in enumerate(x.shape) if keepdim or d not in gone]
    return torch.full(sizes, value, dtype=x.dtype, device=x.device)


def argmax(x: Tensor, axis: int = 0, keepdim: bool = True, last: bool = False) -> Tensor:
    """Return the index of the largest element of an axis: the first one, or the last one."""
    if not last:
        return torch.argmax(x, axis, keepdim)
    return x.shape[axis] - 1 - torch.argmax(x.flip(axis), axis, keepdim)


def argmin(x: Tensor, axis: int = 0, keepdim: bool = True, last: bool = False) -> Tensor:
    """Return the index of the smallest element of an axis: the first one, or the last one."""
    if not last:
        return torch.argmin(x, axis, keepdim)
    return x.shape[axis] - 1 - torch.argmin(x.flip(axis), axis, keepdim)


def _scan(x: Tensor, axis: Tensor | int, exclusive: bool, reverse: bool, product: bool) -> Tensor:
    axis = int(axis)
    if reverse:
        x = x.flip(axis)
    if exclusive:
        first = torch.full_like(x.narrow(axis, 0, min(1, x.shape[axis])), float(product))
        x = torch.cat([first, x.narrow(axis, 0, max(x.shape[axis] - 1, 0))], axis)
    result = (torch.cumprod if product else torch.cumsum)(x, axis, dtype=x.dtype)
    return result.flip(axis) if reverse else result


def cumsum(x: Tensor, axis: Tensor | int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Return cumulative sums along an axis, without an element's own with `exclusive`, from the end with
    `reverse`.

    >>> cumsum(torch.tensor([1, 2, 3]), 0, exclusive=True)
    tensor([0, 1, 3])
    """
    return _scan(x, axis, exclusive, reverse, False)


def cumprod(x: Tensor, axis: Tensor | int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Return cumulative products along an axis; see `cumsum`."""
    return _scan(x, axis, exclusive, reverse, True)


def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """Multiply matrices of 8-bit integers less their zero points, in int32.

    Zero points are one number, one per row of `a`, or one per column of `b`.
    """
    left, right = a.to(torch.int32), b.to(torch.int32)
    if a_zero is not None:
        left = left - (a_zero.unsqueeze(-1) if a_zero.dim() == 1 and a_zero.numel() > 1 else a_zero)
    if b_zero is not None:
        right = right - b_zero
    return torch.matmul(left, right)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.floor_divide,
    "mod": np.remainder,
    "fmod": np.fmod,
    "pow": np.power,
    "abs": np.abs,
    "sign": np.sign,
    "min": np.minimum,
    "max": np.maximum,
    "clip": np.clip,
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "matmul": np.matmul,
    "where": np.where,
}


def unsigned(name: str, *tensors: Tensor | int | None) -> Tensor:
    """Compute a function of unsigned integers with numpy; the result wraps around as numpy's does.

    >>> unsigned("sub", torch.tensor([1], dtype=torch.uint32), torch.tensor([2], dtype=torch.uint32))
    tensor([4294967295], dtype=torch.uint32)
    """
    arrays = [value.numpy(force=True) if isinstance(value, Tensor) else value for value in tensors]
    with np.errstate(all="ignore"):
        result = np.asarray(_FUNCTIONS[name](*arrays))
    first = next(value for value in tensors if isinstance(value, Tensor))
    return torch.from_numpy(result).to(first.device)
