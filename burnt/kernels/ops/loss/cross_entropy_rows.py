"""Fused functions for the cross-entropy of each row of logits, with or without its gradient.

`partial_statistics` and `partial_gradient` do the same with a subset of the classes at a time, for callers
that never hold all logits of a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt.codegen import fuse


class Terms(NamedTuple):
    """What the loss of a row consists of; the flags are constants of the kernels, unlike the numbers."""

    ignore_index: int
    has_smoothing: bool
    label_smoothing: float
    has_z_loss: bool
    z_loss: float

    @classmethod
    def of(cls, ignore_index: int, label_smoothing: float, z_loss: float) -> Terms:
        """Build them from the arguments of a loss."""
        return cls(ignore_index, bool(label_smoothing), float(label_smoothing), bool(z_loss), float(z_loss))


def loss_divisor(target: Tensor, ignore_index: int, reduction: str, dtype: torch.dtype) -> Tensor:
    """Return the divisor of a sum of losses, in the dtype that losses are computed in."""
    compute_dtype = torch.promote_types(dtype, torch.float32)
    one = torch.ones((), dtype=compute_dtype, device=target.device)
    return (target != ignore_index).sum().to(compute_dtype) if reduction == "mean" else one


def _losses(logits: Tensor, target: Tensor, terms: Terms) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss, logsumexp and softmax of each row, and whether its label is not ignored."""
    wide_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    row_max = wide_logits.amax(1, keepdim=True)
    exp_logits = torch.exp(wide_logits - row_max)
    exp_sums = exp_logits.sum(1, keepdim=True)
    lse = (row_max + torch.log(exp_sums)).squeeze(1)
    is_counted = target != terms.ignore_index
    label = torch.where(is_counted, target, 0)
    loss = lse - wide_logits.gather(1, label.unsqueeze(1)).squeeze(1)
    if terms.has_smoothing:
        smooth = terms.label_smoothing
        loss = (1 - smooth) * loss + smooth * (lse - wide_logits.mean(1))
    if terms.has_z_loss:
        loss = loss + terms.z_loss * lse * lse
    return torch.where(is_counted, loss, 0.0), lse, exp_logits / exp_sums, is_counted


@fuse
def row_losses(logits: Tensor, target: Tensor, *terms: Any) -> Tensor:
    """Return the loss of each row of logits ``[rows, classes]``; 0 where the label is `ignore_index`."""
    return _losses(logits, target, Terms(*terms))[0]


@fuse
def losses_and_gradient(logits: Tensor, target: Tensor, scale: Tensor, *terms: Any) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and the logits' gradient of the losses' sum weighted by `scale`."""
    parts = Terms(*terms)
    loss, lse, softmax, is_counted = _losses(logits, target, parts)
    if parts.has_z_loss:
        softmax = softmax * (1 + 2 * parts.z_loss * lse).unsqueeze(1)
    # Class indices of 32 bits are as wide as a float32 logit.
    dtype = torch.int32 if logits.shape[1] < 1 << 31 else torch.int64
    classes = torch.arange(logits.shape[1], dtype=dtype, device=logits.device)
    target_probabilities = (classes == target.to(dtype).unsqueeze(1)).to(lse.dtype)
    if parts.has_smoothing:
        smooth = parts.label_smoothing
        target_probabilities = target_probabilities * (1 - smooth) + smooth / logits.shape[1]
    gradient = (softmax - target_probabilities) * scale.unsqueeze(1)
    return loss, torch.where(is_counted.unsqueeze(1), gradient, 0.0).to(logits.dtype)


# --- a subset of the classes at a time --------------------------------------------------------------------


@fuse
def partial_statistics(
    logits: Tensor, label: Tensor, has_smoothing: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what the rows' losses need to know about a subset of the classes, which `label` is relative to.

    These are the largest logit of each row; the sum of exponentials relative to it, NaN where it is infinite;
    the label's logit, 0 where the label is in another subset; the sum of the logits, if `has_smoothing`.
    """
    wide_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    row_max = wide_logits.amax(1, keepdim=True)
    is_in_part = (label >= 0) & (label < logits.shape[1])
    label_logit = wide_logits.gather(1, torch.where(is_in_part, label, 0).unsqueeze(1)).squeeze(1)
    label_logit = torch.where(is_in_part, label_logit, 0.0)
    logit_sum = wide_logits.sum(1) if has_smoothing else label_logit
    return row_max.squeeze(1), torch.exp(wide_logits - row_max).sum(1), label_logit, logit_sum


@fuse
def partial_gradient(
    logits: Tensor,
    label: Tensor,
    row_max: Tensor,
    softmax_scale: Tensor,
    scale: Tensor,
    is_counted: Tensor,
    label_probability: float,
    base_probability: float,
) -> Tensor:
    """Return the gradient of the losses' weighted sum for the logits of a subset of the classes.

    `logits` and `label` are as in `partial_statistics`. Of each row: `row_max` is the largest logit over all
    classes, `softmax_scale` turns ``exp(logits - row_max)`` into the softmax (times the z-loss term), `scale`
    is its weight, and `is_counted` whether the label is not `ignore_index`. Every class has the target
    probability `base_probability`, the label `label_probability` on top.
    """
    wide_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    softmax = torch.exp(wide_logits - row_max.unsqueeze(1)) * softmax_scale.unsqueeze(1)
    classes = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    probabilities = (classes == label.to(torch.int32).unsqueeze(1)).to(
        wide_logits.dtype
    ) * label_probability + base_probability
    gradient = (softmax - probabilities) * scale.unsqueeze(1)
    return torch.where(is_counted.unsqueeze(1), gradient, 0.0).to(logits.dtype)
