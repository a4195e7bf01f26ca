"""Losses of labels that are yes or no, one or several for each element."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputRuntimeError
from burnt.module import Module
from burnt.nn.loss import checks
from burnt.nn.loss.classification import focus


def _smoothed(target: Tensor, label_smoothing: float) -> Tensor:
    """Return targets, moved towards a half."""
    return target * (1 - label_smoothing) + label_smoothing / 2 if label_smoothing else target


class BinaryCrossEntropy(Module, torch.nn.BCELoss):
    r"""Cross entropy of probabilities and targets from 0 to 1.

    .. math:: \ell = -w \left( t \log x + (1 - t) \log (1 - x) \right)

    Args:
        weight: weights that broadcast with the input, such as one for each of several labels.
        reduction: ``"mean"`` over all elements, whatever their weights; ``"sum"``; or ``"none"``.
        label_smoothing: share by which targets move towards a half, 0 to 1.

    Shapes:
        input probabilities and target ``[*]``, of one shape and dtype; output ``[]``, with ``"none"`` the
        input's shape. The weight is the buffer ``weight``.

    Raises:
        InputRuntimeError: the input has numbers outside of 0 to 1, on the CPU.

    As :class:`torch.nn.BCELoss`, which has no smoothing. For logits, `BinaryCrossEntropyWithLogits` is more
    accurate, and the one to use under autocast. (Burn's class does both, by ``logits``, and smooths towards
    one over the number of labels.)

    >>> BinaryCrossEntropy()(torch.tensor([0.5, 0.9]), torch.tensor([0.0, 1.0]))
    tensor(0.3993)
    """

    reduction: str
    label_smoothing: float

    def __init__(
        self,
        weight: Sequence[float] | Tensor | None = None,
        *,
        reduction: checks.Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(checks.as_weight(weight), reduction=checks.known_reduction(self, reduction))
        self.label_smoothing = checks.in_range(self, "label_smoothing", label_smoothing, 0.0, 1.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of probabilities ``[*]`` and targets ``[*]``."""
        checks.same_shape(self, input, target=target)
        checks.floating(self, input=input, target=target)
        try:
            return super().forward(input, _smoothed(target, self.label_smoothing))
        except RuntimeError as error:
            if "between 0 and 1" not in str(error):
                raise
            raise InputRuntimeError(
                "the input or the target are not probabilities",
                where="BinaryCrossEntropy",
                expected="numbers from 0 to 1",
                found=f"input from {float(input.min()):g} to {float(input.max()):g}, "
                f"target from {float(target.min()):g} to {float(target.max()):g}",
                hint="for logits: burnt.nn.BinaryCrossEntropyWithLogits",
            ) from None


class BinaryCrossEntropyWithLogits(Module, torch.nn.BCEWithLogitsLoss):
    r"""Cross entropy of logits and targets from 0 to 1.

    .. math:: \ell = -w \left( p\, t \log \sigma(x) + (1 - t) \log (1 - \sigma(x)) \right)

    Args:
        pos_weight: weights ``p`` of the positive targets, which broadcast with the input; more than 1 where
            positives are rare.

    Other arguments are as in `BinaryCrossEntropy`.

    Shapes:
        input logits and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape. The
        weights are the buffers ``weight`` and ``pos_weight``.

    As :class:`torch.nn.BCEWithLogitsLoss`, which has no smoothing.

    >>> BinaryCrossEntropyWithLogits()(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0]))
    tensor(0.4100)
    """

    reduction: str
    label_smoothing: float

    def __init__(
        self,
        weight: Sequence[float] | Tensor | None = None,
        *,
        reduction: checks.Reduction = "mean",
        pos_weight: Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            checks.as_weight(weight),
            reduction=checks.known_reduction(self, reduction),
            pos_weight=checks.as_weight(pos_weight),
        )
        self.label_smoothing = checks.in_range(self, "label_smoothing", label_smoothing, 0.0, 1.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits ``[*]`` and targets ``[*]``."""
        checks.same_shape(self, input, target=target)
        checks.floating(self, input=input, target=target)
        checks.probabilities(self, target)
        return super().forward(input, _smoothed(target, self.label_smoothing))


class BinaryFocal(Module):
    r"""Binary cross entropy with less weight for elements that are classified well already.

    .. math:: \ell = -\alpha_t (1 - p_t)^\gamma \log p_t, \quad p_t = \sigma(x) \text{ or } 1 - \sigma(x),
              \quad \alpha_t = \alpha \text{ or } 1 - \alpha

    Args:
        gamma: how much less; 0 is `BinaryCrossEntropyWithLogits`, weighted by alpha.
        alpha: weight of positive targets, 0 to 1; negative ones get the rest. None: all have 1.
        reduction: ``"mean"`` over all elements, ``"sum"`` or ``"none"``. (The paper divides the sum by the
            number of positives.)

    Shapes:
        input logits and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    Raises:
        InputValueError: `gamma` is negative, or `alpha` not from 0 to 1.

    Lin et al., 2017, with the paper's defaults. Targets may lie between 0 and 1; factors and logarithms are
    interpolated, as in torchvision's sigmoid_focal_loss.

    >>> BinaryFocal()(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0]))
    tensor(0.0652)
    """

    gamma: float
    alpha: float | None
    reduction: str

    def __init__(
        self, gamma: float = 2.0, alpha: float | None = 0.25, reduction: checks.Reduction = "mean"
    ) -> None:
        super().__init__()
        self.gamma = checks.in_range(self, "gamma", gamma, 0.0)
        self.alpha = None if alpha is None else checks.in_range(self, "alpha", alpha, 0.0, 1.0)
        self.reduction = checks.known_reduction(self, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits ``[*]`` and targets ``[*]``."""
        checks.same_shape(self, input, target=target)
        checks.floating(self, input=input)
        checks.probabilities(self, target)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        target = target.to(x.dtype)
        losses = F.binary_cross_entropy_with_logits(x, target, reduction="none")
        # 1 - p of the target, without the rounding of a difference.
        doubt = torch.sigmoid(x) * (1 - target) + torch.sigmoid(-x) * target
        losses = focus(doubt, self.gamma) * losses
        if self.alpha is not None:
            losses = losses * (self.alpha * target + (1 - self.alpha) * (1 - target))
        return checks.reduce_losses(losses, self.reduction).to(input.dtype)


class SoftMargin(checks.ReducedLoss, torch.nn.SoftMarginLoss, init=False):
    r"""Logistic loss of scores and targets that are 1 or -1: :math:`\log(1 + e^{-t x})`.

    Shapes:
        input and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    `BinaryCrossEntropyWithLogits` is the same for targets that are 1 or 0, and does not overflow.

    >>> SoftMargin()(torch.tensor([0.0, 2.0]), torch.tensor([-1.0, 1.0]))
    tensor(0.4100)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores ``[*]`` and targets ``[*]``, 1 or -1."""
        checks.same_shape(self, input, target=target)
        checks.floating(self, input=input)
        checks.signs(self, target)
        return super().forward(input, target)


class MultiLabelSoftMargin(Module, torch.nn.MultiLabelSoftMarginLoss):
    r"""Mean binary cross entropy of several labels for each element.

    .. math:: \ell_n = -\frac{1}{C} \sum_c w_c
              \left( t_{n,c} \log \sigma(x_{n,c}) + (1 - t_{n,c}) \log \sigma(-x_{n,c}) \right)

    Args:
        weight: a weight for each label, numbers or a tensor ``[num_labels]``.
        reduction: ``"mean"`` over the batch, ``"sum"`` or ``"none"``.

    Shapes:
        input logits and target ``[batch, num_labels]``, of one shape, targets 1 or 0; output ``[]``, with
        ``"none"`` ``[batch]``. The weight is the buffer ``weight``.

    >>> MultiLabelSoftMargin()(torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 1.0]]))
    tensor(0.4100)
    """

    reduction: str

    def __init__(
        self, weight: Sequence[float] | Tensor | None = None, reduction: checks.Reduction = "mean"
    ) -> None:
        super().__init__(
            checks.as_class_weight(self, weight), reduction=checks.known_reduction(self, reduction)
        )

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits and targets ``[batch, num_labels]``."""
        checks.same_shape(self, input, target=target)
        if input.dim():
            checks.class_weight(self, self.weight, input.shape[-1])
        checks.floating(self, input=input)
        checks.probabilities(self, target)
        return super().forward(input, target)


class MultiLabelMargin(checks.ReducedLoss, torch.nn.MultiLabelMarginLoss, init=False):
    r"""Hinge loss of several labels: the scores of an element's labels must exceed all others by 1.

    .. math:: \ell_n = \frac{1}{C} \sum_{t \in T_n} \sum_{c \notin T_n} \max(0, 1 - x_{n,t} + x_{n,c})

    Args:
        reduction: ``"mean"`` over the batch, ``"sum"`` or ``"none"``.

    Shapes:
        input scores ``[batch, num_classes]`` or ``[num_classes]``; target of the same shape, int64: an
        element's labels, then -1 (what follows it is not read); output ``[]``, with ``"none"`` ``[batch]``.

    Raises:
        InputIndexError: a label that is not a class, on the CPU.

    >>> MultiLabelMargin()(torch.tensor([[0.1, 0.2, 0.4, 0.8]]), torch.tensor([[3, 0, -1, 1]]))
    tensor(0.8500)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores ``[batch, num_classes]`` and labels, -1 at their end."""
        checks.same_shape(self, input, target=target)
        checks.floating(self, input=input)
        checks.label_dtype(self, target, (torch.int64,))
        if input.dim() == 2 and not input.shape[0]:  # torch returns what is in memory
            return checks.reduce_losses(input.sum(1), self.reduction)
        try:
            return super().forward(input, target)
        except RuntimeError:
            checks.labels(self, input, target, ignore_index=-1)
            raise
