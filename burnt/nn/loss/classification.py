"""Losses of elements that have one class of several, and of distributions over classes.

Those that hold the last layer are for many classes: all logits at once would need much memory or time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import InputValueError, ShapeError
from burnt.module import Module
from burnt.nn.linear import Linear
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
        InputIndexError: a label that is not a class, on the CPU; a GPU reports it later, as a failed
            assertion.
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

    Arguments are as in `CrossEntropy` without `label_smoothing`.

    Shapes:
        input log-probabilities ``[batch, num_classes, *]`` or ``[num_classes]``; target labels, int64 or
        uint8, ``[batch, *]`` or ``[]``; output ``[]``, with ``"none"`` the labels' shape. The weight is the
        buffer ``weight``.

    Raises:
        InputIndexError: a label that is not a class, on the CPU; a GPU reports it later, as a failed
            assertion.
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
        InputIndexError: a label that is not a class, on the CPU; a GPU reports it later, as a failed
            assertion.
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
        margin: how much larger the label's score must be.
        weight: a weight for each class, numbers or a tensor ``[num_classes]``.
        reduction: ``"mean"`` over the batch, ``"sum"`` or ``"none"``.

    Shapes:
        input scores ``[batch, num_classes]`` or ``[num_classes]``; target labels, int64, ``[batch]`` or
        ``[]``; output ``[]``, with ``"none"`` the labels' shape. The weight is the buffer ``weight``.

    Raises:
        InputIndexError: a label that is not a class, on the CPU.
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


class LinearCrossEntropy(Module):
    r"""Linear layer and cross entropy in one, without all logits in memory.

    .. math:: \ell_n = -w_{t_n} \log \mathrm{softmax}(W x_n + b)_{t_n}

    Args:
        in_features: size of the input's last axis.
        num_classes: number of classes C.
        out_features: axes of several labels for each input, each over the same classes.
        bias: whether to add ``b``.
        weight: a weight for each class, numbers or a tensor ``[num_classes]``.
        ignore_index: label whose elements count neither in the sum nor in the mean.
        reduction: ``"mean"`` divides the sum by the weights of the labels; ``"sum"``; or ``"none"``.
        label_smoothing: share of the target that is spread over all classes, 0 to 1.

    Shapes:
        input ``[*, in_features]``; target labels, int64 or uint8, ``[*, *out_features]``, or probabilities
        ``[*, num_classes, *out_features]``; output ``[]``, with ``"none"`` the labels' shape;
        ``linear.weight`` is ``[num_classes * prod(out_features), in_features]``. The classes' weight is the
        buffer ``weight``.

    Raises:
        InputIndexError: a label that is not a class, on the CPU; a GPU reports it later, as a failed
            assertion.
        ShapeError: input and target do not fit.

    As torch.nn.LinearCrossEntropyLoss (torch 2.13), whose input has one axis of rows. The loss is
    `burnt.kernels.linear_cross_entropy`; class weights, probabilities and `out_features` need all logits. For
    tied weights set ``loss.linear.weight = embedding.weight``.

    >>> LinearCrossEntropy(8, 100)(torch.zeros(2, 5, 8), torch.zeros(2, 5, dtype=torch.int64)).detach()
    tensor(4.6052)
    """

    linear: Linear
    num_classes: int
    out_features: tuple[int, ...]
    ignore_index: int
    reduction: str
    label_smoothing: float
    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weight: Sequence[float] | Tensor | None = None,
        ignore_index: int = -100,
        reduction: checks.Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        rows = num_classes * math.prod(out_features)
        self.linear = Linear(in_features, rows, bias, device=device, dtype=dtype)
        self.num_classes, self.out_features = num_classes, tuple(out_features)
        self.ignore_index = checks.label_to_ignore(self, ignore_index)
        self.reduction = checks.known_reduction(self, reduction)
        self.label_smoothing = checks.in_range(self, "label_smoothing", label_smoothing, 0.0, 1.0)
        weight = checks.as_class_weight(self, weight)
        checks.class_weight(self, weight, num_classes)
        self.weight = None if weight is None else weight.to(device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of inputs ``[*, in_features]``; see the class for the target."""
        self._check_shapes(input, target)
        if target.is_floating_point():
            checks.no_ignored_probabilities(self, self.ignore_index)
        linear = self.linear
        is_plain = self.weight is None and not self.out_features and not target.is_floating_point()
        try:
            if is_plain:
                loss: Tensor = kernels.linear_cross_entropy.in_layer(
                    input,
                    linear.weight,
                    target,
                    linear.bias,
                    ignore_index=self.ignore_index,
                    reduction=self.reduction,
                    label_smoothing=self.label_smoothing,
                )
                return loss
            return self._of_logits(input, target)
        except IndexError:
            checks.labels(self, linear.weight.new_empty(1, self.num_classes), target, self.ignore_index)
            raise

    def _of_logits(self, input: Tensor, target: Tensor) -> Tensor:
        batch = input.shape[:-1]
        logits = self.linear(input).reshape(math.prod(batch), self.num_classes, *self.out_features)
        target = target if target.is_floating_point() else target.long()
        loss = F.cross_entropy(
            logits,
            target.reshape(logits.shape[0], *target.shape[len(batch) :]),
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
        return loss.reshape((*batch, *self.out_features)) if self.reduction == "none" else loss

    def _check_shapes(self, input: Tensor, target: Tensor) -> None:
        features, batch = self.linear.in_features, tuple(input.shape[:-1])
        labels = (*batch, *self.out_features)
        probabilities = (*batch, self.num_classes, *self.out_features)
        if input.shape[-1:] != (features,):
            expected, found = f"an input (..., {features})", f"{tuple(input.shape)}"
        elif target.shape != (probabilities if target.is_floating_point() else labels):
            expected = f"labels of shape {labels}, or probabilities {probabilities}"
            found = f"{target.dtype} {tuple(target.shape)}"
        else:
            return
        raise ShapeError(
            "input and target do not fit", where=type(self).__name__, expected=expected, found=found
        )


class _Output(NamedTuple):
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmax(Module, torch.nn.AdaptiveLogSoftmaxWithLoss):
    r"""Softmax over classes in clusters, smaller layers for the rarer ones, with its loss.

    Args:
        in_features: size of the input.
        n_classes: number of classes, which are numbered from the most frequent to the rarest.
        cutoffs: the first class of each cluster after the head, ascending.
        div_value: cluster i, from 1, has ``in_features / div_value ** i`` features.
        head_bias: whether the head has a bias.

    Shapes:
        input ``[batch, in_features]`` or ``[in_features]``, target labels, int64, ``[batch]`` or ``[]``;
        returns the pair ``output``, the log-probabilities of the labels, of the target's shape, and ``loss``,
        the mean of their negatives, ``[]``.

    Raises:
        InputIndexError: a label that is not a class.
        InputValueError: cutoffs that are not ascending, from 1 to ``n_classes - 1``.
        ShapeError: input and target do not fit.

    As :class:`torch.nn.AdaptiveLogSoftmaxWithLoss`, whose methods `log_prob` and `predict` it has; clusters
    without a label are not computed, but where a compiler records it. Grave et al., 2017.

    >>> loss = AdaptiveLogSoftmax(16, 1000, cutoffs=[10, 100])
    >>> loss(torch.randn(4, 16), torch.tensor([0, 5, 50, 500])).output.shape
    torch.Size([4])
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        cutoffs = list(cutoffs)
        if not cutoffs or cutoffs != sorted({*cutoffs}) or cutoffs[0] < 1 or cutoffs[-1] >= n_classes:
            raise InputValueError(
                "the cutoffs do not split the classes",
                where="AdaptiveLogSoftmax",
                expected=f"ascending numbers from 1 to {n_classes - 1}",
                found=cutoffs,
            )
        super().__init__(in_features, n_classes, cutoffs, div_value, head_bias, device, dtype)

    def forward(self, input_: Tensor, target_: Tensor) -> _Output:  # type: ignore[override]
        """Return the log-probabilities of the labels, and the loss."""
        if (
            input_.shape[-1:] != (self.in_features,)
            or target_.dim() > 1
            or target_.shape != input_.shape[:-1]
        ):
            raise ShapeError(
                "input and target do not fit",
                where="AdaptiveLogSoftmax",
                expected=f"input [batch, {self.in_features}] and labels [batch], "
                f"or [{self.in_features}] and []",
                found=f"{tuple(input_.shape)} and {tuple(target_.shape)}",
            )
        checks.floating(self, input_=input_)
        checks.label_dtype(self, target_, (torch.int64,), "target_.long()")
        rows, labels = input_.reshape(-1, self.in_features), target_.reshape(-1)
        head = self.head(rows).log_softmax(1)
        columns, output = labels, head.new_zeros(rows.shape[0])
        for i, (start, stop) in enumerate(pairwise(self.cutoffs)):
            is_inside = (labels >= start) & (labels < stop)
            columns = torch.where(is_inside, self.shortlist_size + i, columns)
            if checks.has_values(rows):
                index = is_inside.nonzero().squeeze(1)
                if len(index):
                    logs = self.tail[i](rows[index]).log_softmax(1)
                    within = logs.gather(1, (labels[index] - start).unsqueeze(1)).squeeze(1)
                    output = output.index_add(0, index, within)
            else:
                # No code that depends on values: the cluster's layer takes all rows.
                within = (labels - start).clamp(0, stop - start - 1).unsqueeze(1)
                logs = self.tail[i](rows).log_softmax(1).gather(1, within).squeeze(1)
                output = torch.where(is_inside, logs, output)
        try:
            output = output + head.gather(1, columns.unsqueeze(1)).squeeze(1)
        except RuntimeError:
            checks.labels(self, rows.new_empty(1, self.n_classes), labels)
            raise
        return _Output(output.reshape(target_.shape), -output.mean())
