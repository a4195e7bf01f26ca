"""What losses share: checks of arguments, shapes and labels, and reductions."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnt import _torch
from burnt.errors import (
    InputIndexError,
    InputRuntimeError,
    InputUnsupportedError,
    InputValueError,
    ShapeError,
    range_hint,
)
from burnt.module import Module

Reduction = Literal["mean", "sum", "none"]


class ReducedLoss(Module):
    """Base of the losses of torch whose only argument is the reduction."""

    reduction: str

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=known_reduction(self, reduction))


def known_reduction(loss: nn.Module, reduction: str, allowed: Sequence[str] = ("mean", "sum", "none")) -> str:
    """Return a reduction that exists."""
    if reduction not in allowed:
        raise InputValueError(
            f"there is no reduction {reduction!r}",
            where=type(loss).__name__,
            expected=", ".join(map(repr, allowed)),
            found=repr(reduction),
        )
    return reduction


def in_range(loss: nn.Module, name: str, value: Any, smallest: float, largest: float = float("inf")) -> float:
    """Return a number that is in a range, both ends included."""
    is_number = isinstance(value, numbers.Real)
    if not is_number or not smallest <= value <= largest:
        raise InputValueError(
            f"{name} is out of range",
            where=type(loss).__name__,
            expected=f"{smallest:g} to {largest:g}" if largest != float("inf") else f"at least {smallest:g}",
            found=value if is_number else repr(value),
        )
    number: float = value
    return number


def label_to_ignore(loss: nn.Module, ignore_index: Any) -> int:
    """Return the label to leave out, an integer."""
    is_integer = isinstance(ignore_index, numbers.Integral)
    if not is_integer:
        raise InputValueError(
            "ignore_index is a label",
            where=type(loss).__name__,
            expected="an integer",
            found=repr(ignore_index),
            hint="to ignore no label, leave it out" if ignore_index is None else None,
        )
    label: int = ignore_index
    return label


def no_ignored_probabilities(loss: nn.Module, ignore_index: int) -> None:
    """Check that no label is ignored where the targets are probabilities."""
    if ignore_index >= 0:
        raise InputRuntimeError(
            "ignore_index is a label, and the target is probabilities",
            where=type(loss).__name__,
            expected="labels, or no ignore_index",
            found=f"ignore_index={ignore_index}",
            hint='leave out elements by reduction="none": losses[is_counted].mean()',
        )


def same_shape(loss: nn.Module, input: Tensor, **others: Tensor) -> None:
    """Check that tensors have the input's shape, which torch would broadcast."""
    for name, other in others.items():
        if other.shape != input.shape:
            raise ShapeError(
                f"input and {name} differ in shape",
                where=type(loss).__name__,
                expected=f"a {name} of shape {tuple(input.shape)}",
                found=tuple(other.shape),
                hint=_axis_hint(input, name, other),
            )


def floating(loss: nn.Module, **tensors: Tensor) -> None:
    """Check that inputs are floating-point: the loss of integers would be rounded, without gradient."""
    for name, x in tensors.items():
        if not x.is_floating_point():
            raise InputUnsupportedError(
                f"the loss of {str(x.dtype).removeprefix('torch.')} numbers is not defined",
                where=type(loss).__name__,
                expected=f"{name} of a floating-point dtype",
                found=f"{x.dtype} {tuple(x.shape)}",
                hint=f"{name}.float()",
            )


def label_dtype(
    loss: nn.Module,
    target: Tensor,
    dtypes: Sequence[torch.dtype] = (torch.int64, torch.uint8, torch.int32, torch.bool),
    hint: str = "target.long()",
) -> None:
    """Check that labels have one of these dtypes; converting numbers would truncate them."""
    if target.dtype not in dtypes:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes[:2])
        raise InputRuntimeError(
            "the labels have the wrong dtype",
            where=type(loss).__name__,
            expected=f"labels of dtype {names}",
            found=f"{target.dtype} {tuple(target.shape)}",
            hint=hint,
        )


def probabilities(loss: nn.Module, target: Tensor) -> None:
    """Check that targets are numbers from 0 to 1, on the CPU: on a GPU, reading them would wait for it."""
    if not target.is_cpu or not target.numel() or target.dtype == torch.bool or not has_values(target):
        return
    smallest, largest = (float(number) for number in target.detach().aminmax())
    if smallest < 0 or largest > 1:  # NaN is not hidden: the loss is NaN too
        raise InputValueError(
            "the target is not a mask or a probability",
            where=type(loss).__name__,
            expected="numbers from 0 to 1",
            found=f"target from {smallest:g} to {largest:g}",
            hint="for a mask of 0 and 255: target / 255" if largest == 255 else None,
        )


def signs(loss: nn.Module, target: Tensor) -> None:
    """Check that targets are 1 or -1, on the CPU."""
    if not target.is_cpu or not has_values(target):
        return
    signs = target.detach().float()  # abs() takes no booleans
    if (signs.abs() == 1).all():
        return
    smallest, largest = (float(number) for number in signs.aminmax())
    raise InputValueError(
        "the target is not 1 or -1",
        where=type(loss).__name__,
        expected="1 or -1",
        found=f"target from {smallest:g} to {largest:g}",
        hint="for 1 and 0: 2 * target - 1" if smallest == 0 and largest == 1 else None,
    )


def class_weight(loss: nn.Module, weight: Tensor | None, classes: int) -> None:
    """Check that there is a weight for each class."""
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(
            "the weight has not one number for each class",
            where=type(loss).__name__,
            expected=f"weight of shape ({classes},)",
            found=tuple(weight.shape),
        )


def _axis_hint(input: Tensor, name: str, other: Tensor) -> str | None:
    """Say which axis of size 1 one of two tensors lacks, as ``[n, h, w]`` next to ``[n, 1, h, w]``."""
    longer, shorter, names = input.shape, other.shape, ("input", name)
    if len(longer) < len(shorter):
        longer, shorter, names = shorter, longer, (name, "input")
    axes = [i for i, size in enumerate(longer) if size == 1 and longer[:i] + longer[i + 1 :] == shorter]
    if not axes:
        return None
    axis = -1 if axes[-1] == len(longer) - 1 else axes[-1]
    return f"{names[0]}.squeeze({axis}), or {names[1]}.unsqueeze({axis})?"


def label_shape(loss: nn.Module, input: Tensor, target: Tensor) -> None:
    """Check that there is a label for each element: the input's shape without its classes, axis 1."""
    shape = input.shape[:1] + input.shape[2:] if input.dim() > 1 else input.shape[1:]
    if target.shape != shape or not input.dim():
        hint = None
        if input.dim() > 2 and target.shape == input.shape[:-1]:
            hint = "classes are the second axis: input.movedim(-1, 1)?"
        elif input.dim() > 1 and target.shape == input.shape:
            hint = "of one-hot labels or probabilities: target.argmax(1)?"
        raise ShapeError(
            "the labels do not fit the input",
            where=type(loss).__name__,
            expected=f"labels of shape {tuple(shape)}, for an input of {tuple(input.shape)}",
            found=f"{target.dtype} {tuple(target.shape)}",
            hint=hint,
        )


def labels(loss: nn.Module, input: Tensor, target: Tensor, ignore_index: int | None = None) -> None:
    """Check that labels are classes, the second axis of the input, or `ignore_index`."""
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
        "a label is not a class",
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


def as_class_weight(loss: nn.Module, weight: Sequence[float] | Tensor | None) -> Tensor | None:
    """Return the weights of classes as a tensor, as `as_weight`."""
    try:
        tensor = as_weight(weight)
    except (TypeError, ValueError):
        is_valid = False
    else:
        is_valid = tensor is None or tensor.dim() == 1
    if not is_valid:
        is_alpha = type(loss).__name__ == "Focal" and isinstance(weight, numbers.Real)
        raise InputValueError(
            "the weight is not a number for each class",
            where=type(loss).__name__,
            expected="numbers such as [1.0, 2.0], or a tensor [num_classes]",
            found=tuple(weight.shape) if isinstance(weight, Tensor) else repr(weight),
            hint="BinaryFocal has the alpha of the paper" if is_alpha else None,
        )
    return tensor


def has_values(x: Tensor) -> bool:
    """Whether code may depend on values: no compiler or tracer records it, and the tensor has memory."""
    return not torch.compiler.is_compiling() and not x.is_meta and _torch.is_plain_call()


def reduce_losses(losses: Tensor, reduction: str) -> Tensor:
    """Return the mean, the sum, or the losses themselves."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
