"""Where eager torch differs from its fake tensors: calls that it refuses although tracing succeeds; strides.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
_MAX_ELEMENTS = 4096  # of a result made only of numbers, as arange's

# What torch's conversions take: each number up to the dtype's largest, infinity and NaN.
_LARGEST = [torch.finfo(d).max for d in (torch.float64, torch.float32, torch.bfloat16, torch.float16)]


class RefusalWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds ops that torch refuses, by calling each with small tensors of the same dtypes and devices.

    Attributes:
        refusal: the first op that torch refuses, and why; None if it takes all.
        limits: stand-in -> the largest absolute value, apart from infinity, that all ops take. Only of float
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
        return False  # cholesky takes only positive definite matrices
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
    "_softmax", "_log_softmax", "max_pool2d_with_indices", "max_pool3d_with_indices", "reflection_pad1d",
    "reflection_pad2d", "reflection_pad3d",
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
        if is_dtype_unsupported(op, [*args, *kwargs.values()]) or _is_short_gelu(op, args, kwargs):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose


def _is_short_gelu(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `burnt.codegen.lower.gelu` lowers a call, by a formula whose error 16 bits do not show."""
    return (
        op in (aten.gelu.default, aten.gelu_backward.default)
        and kwargs.get("approximate", "none") == "none"
        and all(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in args)
    )


# Let tracing see the strides that torch's ops really return on a CPU, where its fake tensors differ. A
# function is traced with fake tensors. For some ops, torch computes their strides from a decomposition in
# Python, while the op's own kernel returns others. Strides are visible in a function's results and in
# what it does with them (`stride()`, `view`, `as_strided`), and decide whether `reshape` copies.
# `STRIDES` is the table of these ops: `tests/codegen/frontend/test_real_results.py` compares ops and
# fakes.

aten = torch.ops.aten

Rule = Callable[[Sequence[Any], Tensor], Tensor]
"""Maps an op's arguments and fake result to a meta tensor that has the strides of the real result."""


class RealResults(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives results the strides, and `nansum` over no axes the shape, that torch's kernels return."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an op, and store its result again if the real one has other strides."""
        if func is aten.nansum.default and len(args) > 1 and not args[1]:
            args = (args[0], None, *args[2:])  # all axes, as in the kernel; its fake reduces none
        result = func(*args, **(kwargs or {}))
        rule = STRIDES.get(func)
        if rule is None:
            return result
        if isinstance(result, tuple):
            return tuple(_restrided(r, args, rule) for r in result)
        return _restrided(result, args, rule)


def _restrided(result: Tensor | None, args: Sequence[Any], rule: Rule) -> Tensor | None:
    """Return a result in its real strides, by ops that a trace can record. None: a gradient not asked for."""
    if result is None or result.device.type != "cpu" or result.numel() < 2:  # as the mean of losses
        return result
    expected = rule(args, result).stride()
    if all(size == 1 or a == b for size, a, b in zip(result.shape, result.stride(), expected, strict=True)):
        return result
    order = sorted(range(result.dim()), key=lambda axis: -expected[axis])
    inverse = sorted(range(result.dim()), key=order.__getitem__)
    stored = aten.clone.default(aten.permute.default(result, order), memory_format=torch.contiguous_format)
    restrided: Tensor = aten.permute.default(stored, inverse)
    return restrided


def _meta(value: Tensor | float) -> Tensor:
    """Return a meta tensor with an argument's strides; a number has no axes."""
    if not isinstance(value, Tensor):
        return torch.empty((), device="meta")
    return torch.empty_strided(value.shape, value.stride(), device="meta")


def _contiguous(args: Sequence[Any], result: Tensor) -> Tensor:
    return torch.empty(result.shape, device="meta")


def _like(position: int) -> Rule:
    """Return the rule of ops that keep the order of an argument's axes in memory."""
    return lambda args, result: torch.empty_like(_meta(args[position]))


def _elementwise(first: int, second: int) -> Rule:
    """Return the rule of elementwise ops: a new tensor is laid out as in torch's add of two arguments."""
    return lambda args, result: torch.add(_meta(args[first]), _meta(args[second]))


def _format_of(position: int) -> Rule:
    """Return the rule of ops on images: channels-last if the argument is, else contiguous."""

    def rule(args: Sequence[Any], result: Tensor) -> Tensor:
        if args[position].dim() != result.dim():
            return _contiguous(args, result)  # another result, such as the gradient of a bias
        memory_format = _torch.suggest_memory_format(args[position])
        return torch.empty(result.shape, device="meta", memory_format=memory_format)

    return rule


def _ldexp(args: Sequence[Any], result: Tensor) -> Tensor:
    return torch.add(_meta(args[0]), _contiguous(args, args[1]))  # the product with 2**args[1]


def _max_pool3d(args: Sequence[Any], result: Tensor) -> Tensor:
    if result.dim() == 5:
        return _format_of(0)(args, result)
    batch_of_one = args[0][None]
    is_channels_last = batch_of_one.is_contiguous(memory_format=torch.channels_last_3d)
    memory_format = torch.channels_last_3d if is_channels_last else torch.contiguous_format
    return torch.empty(result[None].shape, device="meta", memory_format=memory_format)[0]


def _roll(args: Sequence[Any], result: Tensor) -> Tensor:
    if len(args) < 3 or not args[2]:
        return _contiguous(args, result)
    x = _meta(args[0])
    for shift, axis in zip(*args[1:], strict=True):
        first = -shift % x.shape[axis]
        x = torch.cat([x.narrow(axis, first, x.shape[axis] - first), x.narrow(axis, 0, first)], axis)
    return x


def _table(rules: dict[Rule, str]) -> dict[Any, Rule]:
    """Return the rules by op overload, given the names of the ops of each rule."""
    ops = {name: rule for rule, names in rules.items() for name in names.split()}
    return {functools.reduce(getattr, name.split("."), aten): rule for name, rule in ops.items()}


STRIDES: dict[Any, Rule] = _table(
    {
        _contiguous: """
            _log_softmax_backward_data.default glu_backward.default huber_loss_backward.default
            log_sigmoid_forward.default mse_loss_backward.default native_layer_norm_backward.default
            nll_loss2d_forward.default normal.Tensor_Tensor pow.Scalar smooth_l1_loss_backward.default
        """,
        _like(0): "binary_cross_entropy.default huber_loss.default",
        _like(1): "binary_cross_entropy_backward.default",
        _elementwise(0, 1): """
            copysign.Tensor div.Tensor_mode floor_divide.default hardsigmoid_backward.default
            hardswish_backward.default hardtanh_backward.default heaviside.default logaddexp.default
            logaddexp2.default logical_and.default logical_or.default logical_xor.default
            logit_backward.default native_dropout_backward.default softplus_backward.default
            special_xlog1py.default xlogy.Tensor
        """,
        _elementwise(0, 5): "elu_backward.default",
        _elementwise(1, 0): "leaky_relu_backward.default threshold_backward.default",
        _format_of(0): """
            _batch_norm_with_update_functional.default _native_batch_norm_legit.no_stats
            _native_batch_norm_legit_functional.default _native_batch_norm_legit_no_training.default
            channel_shuffle.default max_unpool2d.default native_batch_norm.default
            reflection_pad3d.default replication_pad3d.default
        """,
        _format_of(1): """
            batch_norm_backward.default native_batch_norm_backward.default native_group_norm_backward.default
            reflection_pad2d_backward.default reflection_pad3d_backward.default
            replication_pad2d_backward.default replication_pad3d_backward.default
        """,
        _ldexp: "ldexp.Tensor",
        _max_pool3d: "max_pool3d_with_indices.default",
        _roll: "roll.default",
    }
)
"""The ops whose fakes have other strides, and what the kernels on a CPU return."""
