"""What losses share: checks of arguments, shapes and labels, and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from burnt import _torch
from burnt.errors import InputIndexError, InputValueError, ShapeError, range_hint

__all__ = [
    "Reduction",
    "as_weight",
    "check_label_shape",
    "check_labels",
    "check_range",
    "check_reduction",
    "check_same_shape",
    "has_values",
    "reduce_losses",
]

Reduction = Literal["mean", "sum", "none"]


def check_reduction(loss: nn.Module, reduction: str, allowed: Sequence[str] = ("mean", "sum", "none")) -> str:
    """Return a reduction that exists.

    Raises:
        InputValueError: there is no such reduction.
    """
    if reduction not in allowed:
        raise InputValueError(
            f"there is no reduction {reduction!r}",
            where=type(loss).__name__,
            expected=", ".join(map(repr, allowed)),
            found=repr(reduction),
        )
    return reduction


def check_range(
    loss: nn.Module, name: str, value: float, smallest: float, largest: float = float("inf")
) -> float:
    """Return a number that is in a range, both ends included.

    Raises:
        InputValueError: it is outside.
    """
    if not smallest <= value <= largest:
        raise InputValueError(
            f"{name} is out of range",
            where=type(loss).__name__,
            expected=f"{smallest:g} to {largest:g}" if largest != float("inf") else f"at least {smallest:g}",
            found=value,
        )
    return value


def check_same_shape(loss: nn.Module, input: Tensor, **others: Tensor) -> None:
    """Check that tensors have the input's shape, which torch would broadcast.

    Raises:
        ShapeError: they differ.
    """
    for name, other in others.items():
        if other.shape != input.shape:
            is_column = abs(input.dim() - other.dim()) == 1
            raise ShapeError(
                f"input and {name} differ in shape",
                where=type(loss).__name__,
                expected=f"a {name} of shape {tuple(input.shape)}",
                found=tuple(other.shape),
                hint=f"input.squeeze(-1), or {name}.unsqueeze(-1)?" if is_column else None,
            )


def check_label_shape(loss: nn.Module, input: Tensor, target: Tensor) -> None:
    """Check that there is a label for each element: the input's shape without its classes, the second axis.

    Raises:
        ShapeError: there are more or fewer.
    """
    shape = input.shape[:1] + input.shape[2:] if input.dim() > 1 else input.shape[1:]
    if target.shape != shape or not input.dim():
        is_last = input.dim() > 2 and target.shape == input.shape[:-1]
        raise ShapeError(
            "the labels do not fit the input",
            where=type(loss).__name__,
            expected=f"labels of shape {tuple(shape)}, for an input of {tuple(input.shape)}",
            found=f"{target.dtype} {tuple(target.shape)}",
            hint="classes are the second axis: input.movedim(-1, 1)?" if is_last else None,
        )


def check_labels(loss: nn.Module, input: Tensor, target: Tensor, ignore_index: int | None = None) -> None:
    """Check that labels are classes, the second axis of the input, or `ignore_index`.

    Raises:
        InputIndexError: a label is none of these.
    """
    labels = target if ignore_index is None else target[target.long() != ignore_index]
    classes = input.shape[min(1, input.dim() - 1)]
    if not labels.numel():
        return
    smallest, largest = int(labels.min()), int(labels.max())
    if smallest >= 0 and largest < classes:
        return
    if smallest < 0 and ignore_index is not None:
        hint = f"labels to leave out are marked by ignore_index, which is {ignore_index} here"
    elif largest >= classes and not (smallest > 0 and largest == classes):
        hint = f"the last layer needs at least {largest + 1} outputs, or the labels are wrong"
    elif smallest > 0:
        hint = "do the labels start at 1? Then subtract 1"
    else:
        hint = range_hint(smallest, largest, classes)
    raise InputIndexError(
        "a label is no class",
        where=type(loss).__name__,
        expected=f"labels from 0 to {classes - 1}, for logits of {classes} classes",
        found=f"labels from {smallest} to {largest}",
        hint=hint,
    )


def as_weight(weight: Sequence[float] | Tensor | None) -> Tensor | None:
    """Return weights as a tensor, of the default dtype where they are numbers."""
    if weight is None or isinstance(weight, Tensor):
        return weight
    return torch.as_tensor(weight, dtype=torch.get_default_dtype())


def has_values(x: Tensor) -> bool:
    """Whether code may depend on values: no compiler or tracer records it, and the tensor has memory."""
    return not torch.compiler.is_compiling() and not x.is_meta and _torch.is_plain_call()


def reduce_losses(losses: Tensor, reduction: str) -> Tensor:
    """Return the mean, the sum, or the losses themselves."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
