"""Losses of elements that have one class of several, and of distributions over classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from burnt import kernels
from burnt.module import Module
from burnt.nn.loss import checks


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
        InputRuntimeError: `ignore_index` is a label, and the target is probabilities.
        ShapeError: the labels are not one for each element.

    As :class:`torch.nn.CrossEntropyLoss` without its deprecated arguments. The mean is NaN, as torch's, where
    all labels are ignored.

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
        reduction: checks.Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            checks.as_class_weight(self, weight),
            ignore_index=checks.label_to_ignore(self, ignore_index),
            reduction=checks.known_reduction(self, reduction),
            label_smoothing=checks.in_range(self, "label_smoothing", label_smoothing, 0.0, 1.0),
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of logits ``[batch, num_classes, *]``; see the class for the target."""
        if not target.is_floating_point():
            checks.label_shape(self, input, target)
        elif target.shape == input.shape:
            checks.no_ignored_probabilities(self, self.ignore_index)
        if input.dim():
            checks.class_weight(self, self.weight, input.shape[min(1, input.dim() - 1)])
        try:
            return kernels.cross_entropy.in_layer(
                input,
                target,
                self.weight,
                ignore_index=self.ignore_index,
                reduction=self.reduction,
                label_smoothing=self.label_smoothing,
            )
        except IndexError:
            checks.labels(self, input, target, self.ignore_index)
            raise


class Nll(Module, torch.nn.NLLLoss):
    r"""Negative log-likelihood of classes: cross entropy of log-probabilities instead of logits.

    .. math:: \ell_n = -w_{t_n} x_{n, t_n}

    Arguments are those of `CrossEntropy` without `label_smoothing`.

    Shapes:
        input log-probabilities ``[batch, num_classes, *]`` or ``[num_classes]``; target labels, int64 or
        uint8, ``[batch, *]`` or ``[]``; output ``[]``, with ``"none"`` the labels' shape. The weight is the
        buffer ``weight``.

    Raises:
        InputIndexError: a label that is no class, on the CPU; a GPU reports it later, as a failed assertion.
        ShapeError: the labels are not one for each element.

    `CrossEntropy` of logits is the same as this of their log-softmax, and faster.

    >>> Nll()(torch.zeros(2, 10).log_softmax(1), torch.tensor([3, 7]))
    tensor(2.3026)
    """

    ignore_index: int
    reduction: str

    def __init__(
        self,
        weight: Sequence[float] | Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: checks.Reduction = "mean",
    ) -> None:
        super().__init__(
            checks.as_class_weight(self, weight),
            ignore_index=checks.label_to_ignore(self, ignore_index),
            reduction=checks.known_reduction(self, reduction),
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of log-probabilities ``[batch, num_classes, *]`` and labels ``[batch, *]``."""
        checks.floating(self, input=input)
        checks.label_shape(self, input, target)
        checks.label_dtype(self, target, (torch.int64, torch.uint8))
        checks.class_weight(self, self.weight, input.shape[min(1, input.dim() - 1)])
        try:
            return super().forward(input, target)
        except (IndexError, RuntimeError):
            checks.labels(self, input, target, self.ignore_index)
            raise


class Focal(Module):
    r"""Cross entropy with less weight for elements that are classified well already.

    .. math:: \ell_n = -w_{t_n} (1 - p_n)^\gamma \log p_n, \quad p_n = \mathrm{softmax}(x_n)_{t_n}

    Args:
        gamma: how much less; 0 is `CrossEntropy`.
        weight: a weight for each class, numbers or a tensor ``[num_classes]``. (The paper: alpha)
        ignore_index: label whose elements count neither in the sum nor in the mean.
        reduction: ``"mean"`` divides the sum by the weights of the labels; ``"sum"``; or ``"none"``.

    Shapes:
        input logits ``[batch, num_classes, *]`` or ``[num_classes]``; target labels, int64 or uint8,
        ``[batch, *]`` or ``[]``; output ``[]``, with ``"none"`` the labels' shape. The weight is the buffer
        ``weight``.

    Raises:
        InputIndexError: a label that is no class, on the CPU; a GPU reports it later, as a failed assertion.
        InputValueError: `gamma` is negative.
        ShapeError: the labels are not one for each element.

    Lin et al., 2017, for several classes; `BinaryFocal` is the paper's own. Neither torch nor Burn has it.

    >>> Focal()(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    tensor(0.8259)
    """

    gamma: float
    ignore_index: int
    reduction: str
    weight: Tensor | None

    def __init__(
        self,
        gamma: float = 2.0,
        weight: Sequence[float] | Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: checks.Reduction = "mean",
    ) -> None:
        super().__init__()
        self.gamma = checks.in_range(self, "gamma", gamma, 0.0)
        self.ignore_index = checks.label_to_ignore(self, ignore_index)
        self.reduction = checks.known_reduction(self, reduction)
        self.weight = checks.as_class_weight(self, weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of logits ``[batch, num_classes, *]`` and labels ``[batch, *]``."""
        checks.floating(self, input=input)
        hint = "probabilities.argmax(1), or BinaryFocal for targets from 0 to 1 of independent outputs"
        checks.label_dtype(self, target, hint=hint)
        checks.label_shape(self, input, target)
        checks.class_weight(self, self.weight, input.shape[min(1, input.dim() - 1)])
        target = target.long()
        try:
            # In 16 bits, 1 - p would round to 0 or to a few values.
            losses = kernels.cross_entropy.in_layer(
                input.to(torch.promote_types(input.dtype, torch.float32)),
                target,
                ignore_index=self.ignore_index,
                reduction="none",
            )
        except IndexError:
            checks.labels(self, input, target, self.ignore_index)
            raise
        is_counted = target != self.ignore_index
        weight = is_counted.to(losses.dtype)
        if self.weight is not None:
            weight = weight * self.weight.to(losses.dtype)[torch.where(is_counted, target, 0)]
        losses = weight * focus(-torch.expm1(-losses), self.gamma) * losses
        if self.reduction == "mean":
            return (losses.sum() / weight.sum()).to(input.dtype)
        return checks.reduce_losses(losses, self.reduction).to(input.dtype)


def focus(doubt: Tensor, gamma: float) -> Tensor:
    """Return the factor of a focal loss, ``doubt ** gamma``, for the probability of the wrong classes."""
    # The slope of a power below 1 is infinite at 0, and infinity times the loss, 0 there, would be NaN.
    return doubt.clamp_min(torch.finfo(doubt.dtype).tiny).pow(gamma) if gamma else torch.ones_like(doubt)


class KlDiv(Module, torch.nn.KLDivLoss):
    r"""Kullback-Leibler divergence of target probabilities from predicted log-probabilities.

    .. math:: \ell = t (\log t - x)

    Args:
        reduction: ``"batchmean"`` divides the sum by the size of the first axis, which is the divergence's
            definition; ``"mean"`` divides it by the number of elements; ``"sum"``; or ``"none"``.
        log_target: whether the target is log-probabilities, too.

    Shapes:
        input log-probabilities and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's
        shape.

    Kullback and Leibler, 1951. The default is torch's; burnt does not warn about it.

    >>> prediction, target = torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]])
    >>> KlDiv("batchmean")(prediction.log(), target)
    tensor(0.6931)
    """

    reduction: str
    log_target: bool

    def __init__(
        self, reduction: Literal["mean", "sum", "none", "batchmean"] = "mean", log_target: bool = False
    ) -> None:
        allowed = ("mean", "sum", "none", "batchmean")
        super().__init__(reduction=checks.known_reduction(self, reduction, allowed), log_target=log_target)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the divergence of `target` ``[*]`` from log-probabilities `input` ``[*]``."""
        checks.same_shape(self, input, target=target)
        checks.floating(self, input=input, target=target)
        if not self.log_target:
            checks.probabilities(self, target)
        if self.reduction == "mean":  # torch warns that this is not the divergence's definition
            return torch.kl_div(input, target, 1, log_target=self.log_target)
        return super().forward(input, target)


class MultiMargin(Module, torch.nn.MultiMarginLoss):
    r"""Hinge loss of classes: the label's score must exceed all others by a margin.

    .. math:: \ell_n = \frac{w_{t_n}}{C} \sum_{c \neq t_n} \max(0, \mathrm{margin} - x_{n, t_n} + x_{n, c})^p

    Args:
        p: the power, 1 or 2.
        margin: by how much.
        weight: a weight for each class, numbers or a tensor ``[num_classes]``.
        reduction: ``"mean"`` over the batch, ``"sum"`` or ``"none"``.

    Shapes:
        input scores ``[batch, num_classes]`` or ``[num_classes]``; target labels, int64, ``[batch]`` or
        ``[]``; output ``[]``, with ``"none"`` the labels' shape. The weight is the buffer ``weight``.

    Raises:
        InputIndexError: a label that is no class, on the CPU.
        ShapeError: the labels are not one for each element.

    Crammer and Singer, 2001.

    >>> MultiMargin()(torch.tensor([[0.1, 0.2, 0.4, 0.8]]), torch.tensor([3]))
    tensor(0.3250)
    """

    p: int
    margin: float
    reduction: str

    def __init__(
        self,
        p: Literal[1, 2] = 1,
        margin: float = 1.0,
        weight: Sequence[float] | Tensor | None = None,
        reduction: checks.Reduction = "mean",
    ) -> None:
        checks.in_range(self, "p", p, 1, 2)
        super().__init__(
            p, margin, checks.as_class_weight(self, weight), reduction=checks.known_reduction(self, reduction)
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores ``[batch, num_classes]`` and labels ``[batch]``."""
        checks.floating(self, input=input)
        checks.label_shape(self, input, target)
        checks.label_dtype(self, target, (torch.int64,))
        checks.class_weight(self, self.weight, input.shape[-1])
        if not input.shape[0]:  # torch returns what is in memory
            return checks.reduce_losses(input.sum(1), self.reduction)
        try:
            return super().forward(input, target)
        except RuntimeError:
            checks.labels(self, input, target)
            raise
