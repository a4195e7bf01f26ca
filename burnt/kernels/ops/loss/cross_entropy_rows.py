"""The cross entropy of each row of logits, alone or with its gradient, as fused functions.

Also by some of the classes after others, where not all logits of a row are there at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.codegen import fuse

__all__ = ["figures_of_part", "gradient_of_part", "losses_and_gradient", "losses_of", "number_of"]


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


# --- of some of the classes -------------------------------------------------------------------------------


@fuse
def figures_of_part(logits: Tensor, label: Tensor, smoothed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the losses of rows need of some of their logits.

    Args:
        logits: ``[rows, classes of the part]``.
        label: ``[rows]``, int64, counted from the part's first class; of other parts any number.
        smoothed: whether the sum of the logits is wanted.

    Returns:
        the largest logit of each row; the sum of exponentials beside it, NaN where it is infinite; the logit
        of the label, 0 where that is in another part; the sum of the logits, or what stands for it.
    """
    inside = logits.to(torch.promote_types(logits.dtype, torch.float32))
    top = inside.amax(1, keepdim=True)
    here = (label >= 0) & (label < logits.shape[1])
    at_label = inside.gather(1, torch.where(here, label, 0).unsqueeze(1)).squeeze(1)
    at_label = torch.where(here, at_label, 0.0)
    total = inside.sum(1) if smoothed else at_label
    return top.squeeze(1), torch.exp(inside - top).sum(1), at_label, total


@fuse
def gradient_of_part(
    logits: Tensor,
    label: Tensor,
    top: Tensor,
    factor: Tensor,
    scale: Tensor,
    counts: Tensor,
    at_label: float,
    elsewhere: float,
) -> Tensor:
    """The gradient of the rows' weighted sum for some of their logits.

    Args:
        logits, label: as those of `figures_of_part`.
        top: the largest logit of each row, of all parts.
        factor: what an exponential beside it is multiplied by to be a share of the sum.
        scale: the weight of each row.
        counts: the rows whose label is not the ignored one.
        at_label: what the target is at the label beyond what it is elsewhere.
        elsewhere: what it is there.
    """
    inside = logits.to(torch.promote_types(logits.dtype, torch.float32))
    share = torch.exp(inside - top.unsqueeze(1)) * factor.unsqueeze(1)
    classes = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    target = (classes == label.to(torch.int32).unsqueeze(1)).to(inside.dtype) * at_label + elsewhere
    gradient = (share - target) * scale.unsqueeze(1)
    return torch.where(counts.unsqueeze(1), gradient, 0.0).to(logits.dtype)
