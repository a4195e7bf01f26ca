"""Calls that eager torch refuses although tracing succeeds.

Tracing applies torch's rules for shapes and dtypes, but runs no kernels, and these check more: that the dtype
can hold a number (``x.masked_fill(mask, -1e9)`` of float16 raises), that a parameter is within its range,
that there is a kernel for the dtype. So each op that a function calls is run once with small tensors. That
takes a few per cent of the time of tracing it. A few ops do not take small tensors: `is_dtype_unsupported`
lists the dtypes that they lack. Such a call stays a torch call.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from burnt import _torch

# Axes are shortened to this size. Not to 1: ``fill_`` of a single element takes numbers that are too large.
_SIZE = 2
# Integer parameters that fit the shortened axes. Others, such as the size of a pooling window or the number
# of groups, do not, and some kernels do not check them.
_FITTING_INTEGERS = frozenset((
    "correction", "decimals", "diagonal", "dim", "dims", "dtype", "ignore_index", "input_dtype", "layout",
    "memory_format", "pad", "reduction", "size",
))  # fmt: skip
_MAX_ELEMENTS = 4096  # of a result made of numbers alone, as arange's

# What torch's conversions take: each number up to the dtype's largest, infinity and NaN.
_LARGEST = [torch.finfo(d).max for d in (torch.float64, torch.float32, torch.bfloat16, torch.float16)]


class RefusalWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds ops that torch refuses, by calling each with small tensors of the same dtypes and devices.

    Attributes:
        refusal: the first op that torch refuses, and why; None if it takes all.
        limits: stand-in -> the largest absolute value, beside infinity, that all ops take. Only of float
            arguments that are converted to a dtype smaller than float64.
        depends_on_number: whether torch refuses values of a float argument for another reason, such as 0.
    """

    supports_higher_order_operators = True

    def __init__(self, stand_ins: Iterable[float] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stand_ins = frozenset(map(float, stand_ins))
        self.refusal: str | None = None
        self.limits: dict[float, float] = {}
        self.depends_on_number = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an op, and find out whether torch refuses it."""
        result = func(*args, **(kwargs or {}))
        if self.refusal is None and isinstance(func, torch._ops.OpOverload) and _fits_small_tensors(func):
            names = [parameter.name for parameter in func._schema.arguments]
            arguments = dict(zip(names, args, strict=False)) | (kwargs or {})
            if _is_cheap(arguments, result):
                if torch.Tag.nondeterministic_seeded in func.tags:
                    arguments["generator"] = torch.Generator(result.device)  # not to use the global one
                self._check(func, arguments)
        return result

    def _check(self, func: Any, arguments: dict[str, Any]) -> None:
        numbers = {v for v in pytree.tree_leaves(arguments) if isinstance(v, float)} & self.stand_ins
        if not numbers:
            error = _refusal(func, arguments)
            if error is not None:
                self.refusal = f"{func}: {str(error).partition(chr(10))[0]}"
            return

        def takes(number: float) -> bool:
            replaced = pytree.tree_map_only(float, lambda v: number if v in numbers else v, arguments)
            return _refusal(func, replaced) is None

        limit = next((largest for largest in _LARGEST if takes(largest) and takes(-largest)), None)
        if limit is None or not all(map(takes, (0.0, math.inf, math.nan))):
            self.depends_on_number = True
        elif limit < _LARGEST[0]:
            self.limits |= {number: min(limit, self.limits.get(number, limit)) for number in numbers}


@functools.cache
def _fits_small_tensors(func: Any) -> bool:
    """Whether an op of torch's takes tensors of another size with the same other arguments."""
    if func.namespace != "aten" or func.is_view or func is torch.ops.aten.cholesky.default:
        return False  # cholesky takes positive definite matrices alone
    parameters = {p.name: str(p.type) for p in func._schema.arguments}
    if torch.Tag.nondeterministic_seeded in func.tags and "generator" not in parameters:
        return False  # it would draw from the global generator
    return all("int" not in kind or name in _FITTING_INTEGERS for name, kind in parameters.items())


def _is_cheap(arguments: dict[str, Any], result: Any) -> bool:
    """Whether a call with small tensors takes little time and memory; the tensors must have plain memory."""
    tensors = [t for t in pytree.tree_leaves((arguments, result)) if isinstance(t, Tensor)]
    if any(t.layout != torch.strided for t in tensors):
        return False
    is_small = any(isinstance(t, Tensor) for t in pytree.tree_leaves(arguments)) or "size" in arguments
    return is_small or sum(t.numel() for t in tensors) <= _MAX_ELEMENTS


def _refusal(func: Any, arguments: dict[str, Any]) -> Exception | None:
    """Call an op with small tensors and return the exception that is not about their size, if it raises.

    Indices must be 0, divisors must not be: a call that raises with zeros may pass with ones.
    """
    error: Exception | None = None
    with _torch.real_tensors(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as var's: it has one element
        for fill in (0, 1):
            try:
                func(**{name: _small(name, value, fill) for name, value in arguments.items()})
            except Exception as raised:  # of any kind, such as NotImplementedError, IndexError
                error = raised
            else:
                return None
    try:
        func(**{name: _small(name, value, 0) for name, value in arguments.items()})
    except Exception:  # of any kind: without memory, only a wrong shape raises
        return None
    return error


def _small(name: str, value: Any, fill: int) -> Any:
    if name == "size":
        return [min(size, _SIZE) for size in value]
    return pytree.tree_map_only(Tensor, lambda tensor: _small_tensor(name, tensor, fill), value)


def _small_tensor(name: str, tensor: Tensor, fill: float) -> Tensor:
    if name == "value" and not tensor.dim() and tensor.dtype != torch.bool:
        # masked_fill and index_fill convert it as they convert a number.
        constant: Tensor | None = getattr(tensor, "constant", None)
        if constant is not None:  # ``torch.tensor(300)`` in the function
            return constant.clone()
        # Its value is not known: does torch take all of its dtype?
        fill = (torch.finfo if tensor.is_floating_point() else torch.iinfo)(tensor.dtype).max
    shape = [min(size, _SIZE) for size in tensor.shape]
    return torch.full(shape, fill, dtype=tensor.dtype, device=tensor.device)


# --- dtypes ---------------------------------------------------------------------------------------------

# Ops that torch computes for floating-point dtypes only.
_FLOAT_ONLY = frozenset((
    "adaptive_max_pool2d", "adaptive_max_pool3d", "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
))  # fmt: skip
# Ops that torch does not compute for bool.
_NO_BOOL = frozenset((
    "max_pool2d_with_indices", "max_pool3d_with_indices", "reflection_pad1d", "reflection_pad2d",
    "reflection_pad3d",
))  # fmt: skip


def is_dtype_unsupported(op: Any, args: Iterable[Any]) -> bool:
    """Whether torch would reject a call because of its dtypes."""
    name = getattr(op, "_opname", "")
    dtypes = [arg.dtype for arg in args if isinstance(arg, Tensor)]
    if name in _FLOAT_ONLY:
        return not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    return name in _NO_BOOL and torch.bool in dtypes


def decompose_unless_unsupported(op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a decomposition of a composite op so that calls which torch would reject are not decomposed."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if is_dtype_unsupported(op, [*args, *kwargs.values()]):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose
