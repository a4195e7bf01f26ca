"""Let tracing see the strides that torch's ops really return on a CPU, where its fake tensors differ.

A function is traced with fake tensors. For some ops, torch computes their strides from a decomposition in
Python, while the op's own kernel returns others. Strides are visible in a function's results and in what it
does with them (``stride()``, ``view``, ``as_strided``), and decide whether ``reshape`` copies.

`STRIDES` is the table of these ops: `tests/codegen/frontend/test_real_results.py` compares ops and fakes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from burnt import _torch

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
