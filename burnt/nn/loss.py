"""Loss functions as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from burnt import kernels
from burnt.errors import InputIndexError, ShapeError
from burnt.module import Module

__all__ = ["CrossEntropy", "Mse"]


class CrossEntropy(Module, torch.nn.CrossEntropyLoss):
    r"""Cross entropy of logits and classes, or class probabilities.

    .. math:: \ell_n = -w_{t_n} \log \mathrm{softmax}(x_n)_{t_n}

    Args:
        weight: a weight for each class, numbers or a tensor ``[num_classes]``.
        ignore_index: label whose elements count neither in the sum nor in the mean. (Burn: ``pad_tokens``)
        reduction: ``"mean"`` divides the sum by the weights of the labels; ``"sum"``; or ``"none"``.
        label_smoothing: share of the target that is spread over all classes, 0 to 1.

    Shapes:
        input logits ``[batch, num_classes, *]`` or ``[num_classes]``; target labels, int64 or uint8,
        ``[batch, *]`` or ``[]``, or probabilities of the input's shape and dtype; output ``[]``, with
        ``"none"`` the labels' shape. The weight is the buffer ``weight``.

    Raises:
        InputIndexError: a label that is no class, on the CPU; a GPU reports it later, as a failed assertion.

    As :class:`torch.nn.CrossEntropyLoss` without its deprecated arguments.

    >>> import torch
    >>> CrossEntropy()(torch.zeros(2, 10), torch.tensor([3, 7]))
    tensor(2.3026)
    """

    ignore_index: int
    reduction: str
    label_smoothing: float

    def __init__(
        self,
        weight: Sequence[float] | Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: Literal["mean", "sum", "none"] = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            None if weight is None else torch.as_tensor(weight, dtype=_float_dtype(weight)),
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of logits ``[batch, num_classes, *]``; see the class for the target."""
        try:
            if torch.compiler.is_compiling():
                # In uint8, torch's label smoothing ignores the class that equals ignore_index modulo 256.
                return super().forward(input, target if target.is_floating_point() else target.long())
            return kernels.cross_entropy(
                input,
                target,
                self.weight,
                ignore_index=self.ignore_index,
                reduction=self.reduction,
                label_smoothing=self.label_smoothing,
            )
        except IndexError:
            _check_labels(input, target, self.ignore_index)
            raise


def _float_dtype(weight: Sequence[float] | Tensor) -> torch.dtype:
    return weight.dtype if isinstance(weight, Tensor) else torch.get_default_dtype()


def _check_labels(input: Tensor, target: Tensor, ignore_index: int) -> None:
    labels = target[target.long() != ignore_index]
    classes = input.shape[min(1, input.dim() - 1)]
    if not labels.numel():
        return
    smallest, largest = int(labels.min()), int(labels.max())
    if smallest >= 0 and largest < classes:
        return
    if smallest < 0:
        hint = f"labels to leave out are marked by ignore_index, which is {ignore_index} here"
    elif smallest > 0 and largest == classes:
        hint = "do the labels start at 1? Then subtract 1"
    else:
        hint = f"the last layer needs at least {largest + 1} outputs, or the labels are wrong"
    raise InputIndexError(
        "a label is no class",
        where="CrossEntropy",
        expected=f"labels from 0 to {classes - 1}, for logits of {classes} classes",
        found=f"labels from {smallest} to {largest}",
        hint=hint,
    )


class Mse(Module, torch.nn.MSELoss):
    r"""Mean squared error: :math:`\frac{1}{n} \sum_i (x_i - t_i)^2`.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Shapes:
        input and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    Raises:
        ShapeError: input and target differ in shape. (torch broadcasts, with a warning: ``[n]`` against
            ``[n, 1]`` would give the mean over ``n * n`` pairs.)

    >>> import torch
    >>> Mse()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(2.)
    """

    reduction: str

    def __init__(self, reduction: Literal["mean", "sum", "none"] = "mean") -> None:
        super().__init__(reduction=reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the error of `input` ``[*]`` against `target` ``[*]``."""
        if input.shape != target.shape:
            raise ShapeError(
                "input and target of a squared error differ in shape",
                where="Mse",
                expected=f"a target of shape {tuple(input.shape)}",
                found=tuple(target.shape),
                hint="input.squeeze(-1), or target.unsqueeze(-1)?"
                if abs(input.dim() - target.dim()) == 1
                else None,
            )
        return super().forward(input, target)
