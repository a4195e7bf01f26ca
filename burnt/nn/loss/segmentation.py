"""Losses of regions, such as the masks of objects in images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from burnt.errors import InputValueError, ShapeError
from burnt.module import Module
from burnt.nn.checks import require
from burnt.nn.loss import checks


class Dice(Module):
    r"""One minus the overlap of predicted and true regions, of each class.

    .. math:: \ell_{n,c} = w_c \left( 1 - \frac{2 \sum_i p_{n,c,i} t_{n,c,i} + s}
              {\sum_i p_{n,c,i} + \sum_i t_{n,c,i} + s} \right)

    Args:
        activation: what makes probabilities p of logits: ``"softmax"`` over classes, of which a pixel has
            one, or ``"sigmoid"`` where masks are independent, or there is one.
        smooth: s, so that a class that is neither there nor predicted has no loss, and a gradient.
        weight: a weight for each class, numbers or a tensor ``[num_classes]``; 0 leaves out a background.
        ignore_index: label of pixels that do not count.
        reduction: ``"mean"`` over the batch, and over classes by their weights; ``"sum"``; or ``"none"``.

    Shapes:
        input logits ``[batch, num_classes, *]``; target labels, int64 or uint8, ``[batch, *]``, or
        probabilities or masks of the input's shape; output ``[]``, with ``"none"`` ``[batch,
        num_classes]``. The weight is the buffer ``weight``. The second axis is always the classes: for one
        mask ``[batch, height, width]``, pass input and target with ``unsqueeze(1)``, or rows are classes.

    Raises:
        InputIndexError: a label that is not a class, on the CPU.
        InputRuntimeError: labels that are not integers.
        InputUnsupportedError: the input is not of a floating-point dtype.
        InputValueError: `smooth` is negative, softmax of a single class, or masks with numbers outside of 0
            to 1, on the CPU.
        ShapeError: the target is neither labels nor of the input's shape.

    Milletari et al., 2016, without squares in the denominator, as Sudre et al., 2017. Often added to
    `CrossEntropy`. Neither torch nor Burn has it.

    >>> logits = torch.tensor([[[20.0, 20.0, -20.0, -20.0]]])
    >>> mask = torch.tensor([[[1.0, 0.0, 0.0, 1.0]]])
    >>> Dice("sigmoid", smooth=0.0)(logits, mask)
    tensor(0.5000)
    """

    activation: str
    smooth: float
    ignore_index: int
    reduction: str
    weight: Tensor | None

    def __init__(
        self,
        activation: Literal["softmax", "sigmoid"] = "softmax",
        *,
        smooth: float = 1.0,
        weight: Sequence[float] | Tensor | None = None,
        ignore_index: int = -100,
        reduction: checks.Reduction = "mean",
    ) -> None:
        super().__init__()
        known = activation in ("softmax", "sigmoid")
        require(known, "Dice", "activation", "'softmax', 'sigmoid'", repr(activation))
        self.activation = activation
        self.ignore_index = checks.label_to_ignore(self, ignore_index)
        self.smooth = checks.in_range(self, "smooth", smooth, 0.0)
        self.reduction = checks.known_reduction(self, reduction)
        self.weight = checks.as_class_weight(self, weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits ``[batch, num_classes, *]``; see the class for the target."""
        if input.dim() < 2:
            raise ShapeError(
                "a Dice loss takes a batch", where="Dice", expected="[batch, num_classes, *]",
                found=tuple(input.shape),
            )  # fmt: skip
        if self.activation == "softmax" and input.shape[1] == 1:
            raise InputValueError(
                "the softmax of a single class is 1 everywhere",
                where="Dice",
                expected="at least 2 classes",
                found=tuple(input.shape),
                hint='Dice("sigmoid") for one mask',
            )
        checks.floating(self, input=input)
        self._check_target(input, target)
        checks.class_weight(self, self.weight, input.shape[1])
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        probabilities = x.softmax(1) if self.activation == "softmax" else x.sigmoid()
        if target.shape != input.shape:
            is_counted = (target.long() != self.ignore_index).unsqueeze(1)
            truth = self._masks(input, target, is_counted).to(x.dtype)
            probabilities = probabilities * is_counted
        else:
            truth = target.to(x.dtype)
        # The last axis is for an input without axes of pixels.
        overlap = (probabilities * truth).unsqueeze(-1).flatten(2).sum(2)
        total = (probabilities + truth).unsqueeze(-1).flatten(2).sum(2)
        losses = 1 - (2 * overlap + self.smooth) / (total + self.smooth)
        return self._reduced(losses).to(input.dtype)

    def _check_target(self, input: Tensor, target: Tensor) -> None:
        if target.shape == input.shape:
            checks.probabilities(self, target)
            return
        labels = input.shape[:1] + input.shape[2:]
        is_one_mask = self.activation == "sigmoid" and input.shape[1] == 1
        if target.shape == labels and not is_one_mask:
            checks.label_dtype(self, target, hint="target.long(), or masks of the input's shape")
            return
        hint = None
        if is_one_mask and target.shape == labels:
            hint = "target.unsqueeze(1)"
        elif target.shape == input.shape[:-1]:
            hint = "classes are the second axis: input.movedim(-1, 1)?"
        elif target.shape == input.shape[:1] + input.shape[-1:] + input.shape[1:-1]:
            hint = "classes are the second axis, of the input and of masks: input.movedim(-1, 1)?"
        expected = f"masks of shape {tuple(input.shape)}"
        raise ShapeError(
            "the target does not fit the input",
            where="Dice",
            expected=expected if is_one_mask else f"labels of shape {tuple(labels)}, or {expected}",
            found=f"{target.dtype} {tuple(target.shape)}",
            hint=hint,
        )

    def _masks(self, input: Tensor, target: Tensor, is_counted: Tensor) -> Tensor:
        """Return the classes' masks of labels, of the input's shape; nothing where labels do not count."""
        labels = torch.where(is_counted, target.long().unsqueeze(1), 0)
        try:
            return torch.zeros_like(input).scatter(1, labels, is_counted.to(input.dtype))
        except RuntimeError:
            checks.labels(self, input, target, self.ignore_index)
            raise

    def _reduced(self, losses: Tensor) -> Tensor:
        if self.weight is not None:
            weight = self.weight.to(losses.dtype)
            losses = losses * weight
            if self.reduction == "mean":
                return losses.sum(1).mean() / weight.sum()
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()
