"""Ops and dtypes that eager torch rejects although their lowering would compute them.

torch rejects some integer and bool inputs only in its kernels, so tracing, which runs none, succeeds. Such a
call stays a torch call, which raises torch's error, or computes the result on devices that support it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["decompose_unless_unsupported", "is_dtype_unsupported"]

# fmt: off
# Ops that torch computes for floating-point dtypes only.
_FLOAT_ONLY = frozenset((
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
# Ops that torch does not compute with a bool result.
_NO_BOOL_RESULT = frozenset((
    "abs", "addcdiv", "ceil", "clamp", "floor", "relu", "round", "trunc", "threshold", "trace",
    "cumsum", "cumprod", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
))
# fmt: on
_WIDE_UNSIGNED = frozenset((torch.uint16, torch.uint32, torch.uint64))
# Ops that torch does not compute for bool inputs.
_NO_BOOL_INPUT = frozenset(
    ("argmax", "argmin", "sub", "rsub", "max_pool2d_with_indices", "max_pool3d_with_indices")
)


def is_dtype_unsupported(op: Any, args: Iterable[Any], result: Any) -> bool:
    """Whether torch would reject a call because of its dtypes.

    Args:
        op: the op overload.
        args: its arguments; those that are not tensors are ignored.
        result: its result, or a tensor of the same dtype.
    """
    name = getattr(op, "_opname", "")
    dtypes = [arg.dtype for arg in args if isinstance(arg, torch.Tensor)]
    if name in _FLOAT_ONLY or (name == "round" and op._overloadname == "decimals"):
        return not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    if name == "where":
        return not all(map(_where_supports, dtypes))
    if name == "pow" and op._overloadname == "Tensor_Tensor":
        return all(dtype == torch.bool for dtype in dtypes)
    if name in _NO_BOOL_INPUT:
        return torch.bool in dtypes
    return name in _NO_BOOL_RESULT and isinstance(result, torch.Tensor) and result.dtype == torch.bool


@functools.cache
def _where_supports(dtype: torch.dtype) -> bool:
    """Whether `torch.where` supports a dtype: torch 2.11 lacks unsigned integers of more than 8 bits."""
    if dtype not in _WIDE_UNSIGNED:
        return True
    one = torch.zeros(1, dtype=dtype)
    try:
        torch.where(torch.ones(1, dtype=torch.bool), one, one)
    except NotImplementedError:
        return False
    return True


def decompose_unless_unsupported(op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a decomposition of a composite op so that calls which torch would reject are not decomposed."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        if is_dtype_unsupported(op, values, next((v for v in values if isinstance(v, torch.Tensor)), None)):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose
