"""Dtypes that torch refuses: where an op is lowered for them all the same, eager torch raises.

Torch tells what it does not compute of whole numbers only when it is about to: tracing, which has no
elements, goes through. A call of these ops stays torch's own, with its error, or with its answer where a
device has one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["call_unless_unsupported", "is_dtype_unsupported"]

# fmt: off
# Of which torch computes nothing but floats.
_FLOATS = frozenset((
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "logaddexp",
    "logaddexp2", "var", "std", "native_batch_norm", "native_batch_norm_backward",
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
    "_batch_norm_with_update_functional", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "hardswish", "hardsigmoid",
    "hardshrink", "glu", "_prelu_kernel", "elu", "celu", "silu", "mish", "gelu", "softplus",
    "log_sigmoid_forward", "lerp", "hypot", "frac", "soft_margin_loss", "multi_margin_loss",
    "binary_cross_entropy", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss",
    "huber_loss",
))
# Of which it makes no truth values.
_NO_BOOL_RESULT = frozenset((
    "abs", "addcdiv", "ceil", "clamp", "floor", "relu", "round", "trunc", "threshold", "trace",
    "cumsum", "cumprod", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
))
# fmt: on
_WIDE_UNSIGNED = frozenset((torch.uint16, torch.uint32, torch.uint64))
# Which take no truth values.
_NO_BOOL_INPUT = frozenset(
    ("argmax", "argmin", "sub", "rsub", "max_pool2d_with_indices", "max_pool3d_with_indices")
)


def is_dtype_unsupported(op: Any, args: Iterable[Any], result: Any) -> bool:
    """Whether torch would refuse a call, by its dtypes.

    Args:
        op: the overload.
        args: its tensors, among other things.
        result: what it makes, or a tensor of the same dtype.
    """
    name = getattr(op, "_opname", "")
    dtypes = [arg.dtype for arg in args if isinstance(arg, torch.Tensor)]
    if name in _FLOATS or (name == "round" and op._overloadname == "decimals"):
        return not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    if name == "where":
        return not all(map(_where_takes, dtypes))
    if name == "pow" and op._overloadname == "Tensor_Tensor":
        return all(dtype == torch.bool for dtype in dtypes)
    if name in _NO_BOOL_INPUT:
        return torch.bool in dtypes
    return name in _NO_BOOL_RESULT and isinstance(result, torch.Tensor) and result.dtype == torch.bool


@functools.cache
def _where_takes(dtype: torch.dtype) -> bool:
    """Whether this version's `torch.where` has a dtype: 2.11 lacks unsigned ones of more than 8 bits."""
    if dtype not in _WIDE_UNSIGNED:
        return True
    one = torch.zeros(1, dtype=dtype)
    try:
        torch.where(torch.ones(1, dtype=torch.bool), one, one)
    except NotImplementedError:
        return False
    return True


def call_unless_unsupported(op: Any, definition: Callable[..., Any]) -> Callable[..., Any]:
    """torch's definition of a composite op in simpler ones, for what torch does not refuse."""

    def made(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if is_dtype_unsupported(op, given, next((a for a in given if isinstance(a, torch.Tensor)), None)):
            return NotImplemented
        return definition(*args, **kwargs)

    return made
