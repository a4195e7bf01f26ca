"""The cross entropy of each row of logits, alone or with its gradient, as fused functions."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.codegen import fuse

__all__ = ["losses_and_gradient", "losses_of", "number_of"]


def number_of(target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> Tensor:
    """What a sum of losses is divided by, in the dtype that losses of logits are computed in."""
    inside = torch.promote_types(dtype, torch.float32)
    one = torch.ones((), dtype=inside, device=target.device)
    return (target != ignored).sum().to(inside) if reduction == "mean" else one


def _losses(
    logits: Tensor, target: Tensor, ignored: int, smoothed: bool, smoothing: float, squared: bool, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss of each row, its logarithm of the sum of exponentials, the softmax, and which rows count."""
    inside = logits.to(torch.promote_types(logits.dtype, torch.float32))
    top = inside.amax(1, keepdim=True)
    raised = torch.exp(inside - top)
    sums = raised.sum(1, keepdim=True)
    total = (top + torch.log(sums)).squeeze(1)
    counts = target != ignored
    label = torch.where(counts, target, 0)
    loss = total - inside.gather(1, label.unsqueeze(1)).squeeze(1)
    if smoothed:
        loss = (1 - smoothing) * loss + smoothing * (total - inside.mean(1))
    if squared:
        loss = loss + z * total * total
    return torch.where(counts, loss, 0.0), total, raised / sums, counts


@fuse
def losses_of(
    logits: Tensor, target: Tensor, ignored: int, smoothed: bool, smoothing: float, squared: bool, z: float
) -> Tensor:
    """The loss of each row of logits ``[rows, classes]``; 0 where the label is the ignored one."""
    return _losses(logits, target, ignored, smoothed, smoothing, squared, z)[0]


@fuse
def losses_and_gradient(
    logits: Tensor,
    target: Tensor,
    scale: Tensor,
    ignored: int,
    smoothed: bool,
    smoothing: float,
    squared: bool,
    z: float,
) -> tuple[Tensor, Tensor]:
    """The loss of each row, and the gradient of the rows' sum, weighted by `scale`, for the logits."""
    loss, total, share, counts = _losses(logits, target, ignored, smoothed, smoothing, squared, z)
    if squared:
        share = share * (1 + 2 * z * total).unsqueeze(1)
    # In 32 bits, as wide as a logit, where classes are that few.
    dtype = torch.int32 if logits.shape[1] < 1 << 31 else torch.int64
    classes = torch.arange(logits.shape[1], dtype=dtype, device=logits.device)
    at_label = (classes == target.to(dtype).unsqueeze(1)).to(total.dtype)
    if smoothed:
        at_label = at_label * (1 - smoothing) + smoothing / logits.shape[1]
    gradient = (share - at_label) * scale.unsqueeze(1)
    return loss, torch.where(counts.unsqueeze(1), gradient, 0.0).to(logits.dtype)
