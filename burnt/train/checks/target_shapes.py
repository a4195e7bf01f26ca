"""Find a step that compares predictions ``[n, 1]`` with targets ``[n]``.

Broadcasting pairs every prediction with every target, and the model learns their mean, without an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from burnt.errors import ShapeError
from burnt.train.step import StepOutput

_LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"})
"""Losses of torch that broadcast, some with a warning."""


class TargetShapes:
    """Records where steps broadcast a column and a row of as many elements, and checks their outputs.

    A call of one of torch's elementwise losses is always a mistake. Other ops count only with the outputs or
    the targets that the step returns, since a model may compare all pairs of a batch on purpose.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[str, Tensor, Tensor]] = []

    def recorded(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs a step and records its calls."""

        @functools.wraps(step)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._calls.clear()
            with _Recording(self._calls):
                return step(*args, **kwargs)

        return run

    def check(self, output: StepOutput, where: str) -> None:
        """Raise a ShapeError if the step that returned `output` broadcast predictions and targets."""
        for name, left, right in self._calls:
            if name in _LOSSES or _is_comparison(left, right, output):
                _raise(name, left, right, where)


class _Recording(TorchFunctionMode):
    def __init__(self, calls: list[tuple[str, Tensor, Tensor]]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if len(tensors) >= 2 and _are_column_and_row(*tensors[:2]):
            name = getattr(func, "__name__", "an op")
            if name in _LOSSES or getattr(result, "shape", None) == _broadcast_shape(*tensors[:2]):
                self._calls.append((name, tensors[0], tensors[1]))
        return result


def _are_column_and_row(left: Tensor, right: Tensor) -> bool:
    """Whether the shapes are ``[*, n, 1]`` and ``[*, n]``, in either order, with more than one element."""
    if left.numel() != right.numel() or left.numel() < 2:
        return False
    longer, shorter = (left, right) if left.dim() > right.dim() else (right, left)
    return longer.shape[-1:] == (1,) and longer.shape[:-1] == shorter.shape and shorter.dim() == 1


def _broadcast_shape(left: Tensor, right: Tensor) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(left.shape, right.shape))  # type: ignore[no-untyped-call]


def _is_comparison(left: Tensor, right: Tensor, output: StepOutput) -> bool:
    outputs, targets = output.outputs, output.targets
    if not isinstance(targets, Tensor):
        return False
    if outputs is None:  # what depends on the parameters is compared with the targets themselves
        return any(
            predicted.requires_grad and true is targets for predicted, true in ((left, right), (right, left))
        )
    if not isinstance(outputs, Tensor):
        return False
    return any(
        predicted.shape == outputs.shape
        and true.shape == targets.shape
        and (predicted is outputs or true is targets)
        for predicted, true in ((left, right), (right, left))
    )


def _raise(name: str, left: Tensor, right: Tensor, where: str) -> None:
    column = left if left.dim() > right.dim() else right
    raise ShapeError(
        "the loss compares each prediction with every target",
        where=where,
        expected=f"predictions and targets of one shape in {name}",
        found=f"{tuple(left.shape)} and {tuple(right.shape)}, which broadcast to "
        f"{_broadcast_shape(left, right)}",
        hint=f"squeeze(-1) the tensor of shape {tuple(column.shape)}",
    )
