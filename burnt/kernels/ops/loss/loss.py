"""Losses.

On a CPU the gradient of a mean or a sum of cross entropies is made with the loss, while a row's exponentials
are at hand: the backward, as long as nothing but the loss itself is differentiated, has nothing to compute.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.errors import InputIndexError, InputRuntimeError, InputValueError, range_hint
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype
from burnt.kernels.interface.eager_rules import is_double
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.loss.cross_entropy_rows import losses_and_gradient, number_of

__all__ = ["check_labels", "check_reduction", "cross_entropy", "look_at_labels"]

_REDUCTIONS = ("mean", "sum", "none")
# Logits below which torch's calls are as fast.
_LARGE = 1 << 18


def check_reduction(name: str, reduction: str, label_smoothing: float) -> None:
    """What a loss is reduced by, and how its targets are smoothed, is known."""
    if reduction not in _REDUCTIONS:
        raise InputValueError(
            f"{name} knows no reduction {reduction!r}",
            where=f"burnt.kernels.{name}",
            expected=", ".join(map(repr, _REDUCTIONS)),
            found=repr(reduction),
        )
    if not 0 <= label_smoothing <= 1:
        raise InputRuntimeError(
            "the label smoothing is no share",
            where=f"burnt.kernels.{name}",
            expected="a number from 0 to 1",
            found=label_smoothing,
        )


def check_labels(name: str, target: Tensor, shape: tuple[int, ...], *, flat: bool = False) -> None:
    """Labels are of a shape, and can be looked up; `flat`: torch would look at their number alone."""
    if tuple(target.shape) != shape:
        sized = bool(shape) and target.dim() > 0
        other = target.numel() != math.prod(shape) if flat else target.shape[:1] != shape[:1]
        kind = InputValueError if sized and other else InputRuntimeError
        raise kind(
            "the labels do not fit what they are of",
            where=f"burnt.kernels.{name}",
            expected=f"labels of shape {shape}",
            found=f"{target.dtype} of shape {tuple(target.shape)}",
        )
    if target.dtype not in (torch.int64, torch.uint8):
        raise InputRuntimeError(
            "labels of this dtype are not looked up",
            where=f"burnt.kernels.{name}",
            expected="int64 (or uint8)",
            found=target.dtype,
            hint="target.long()",
        )


def _check(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
) -> None:
    where = "burnt.kernels.cross_entropy"
    check_reduction("cross_entropy", reduction, label_smoothing)
    check_floating("cross_entropy", logits=logits, weight=weight)
    check_one_device("cross_entropy", logits=logits, target=target, weight=weight)
    shape, axis = tuple(logits.shape), min(1, logits.dim() - 1)
    probabilities = target.is_floating_point()
    labels = shape[:axis] + shape[axis + 1 :]
    wanted = shape if probabilities else labels
    if not probabilities and logits.dim() and tuple(target.shape) == wanted:
        check_labels("cross_entropy", target, wanted)
    elif logits.dim() == 0 or tuple(target.shape) != wanted:
        # torch's class differs: a batch of another size is a ValueError.
        sized = logits.dim() > 0 and target.dim() > 0
        kind = InputValueError if sized and target.shape[:1] != shape[:1] else InputRuntimeError
        raise kind(
            "the target does not fit the logits",
            where=where,
            expected=f"labels of shape {labels}, or probabilities of shape {shape}",
            found=f"{target.dtype} of shape {tuple(target.shape)}",
            hint="classes are the second axis of the logits: logits.movedim(-1, 1)?"
            if logits.dim() > 2
            else None,
        )
    if not _torch.is_autocast():
        check_one_dtype("cross_entropy", logits=logits, weight=weight)
    if weight is not None and tuple(weight.shape) != (shape[axis],):
        raise InputRuntimeError(
            "the weight does not fit the classes",
            where=where,
            expected=f"[{shape[axis]}]",
            found=tuple(weight.shape),
        )


def _look(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
) -> None:
    if not target.is_floating_point():
        look_at_labels("cross_entropy", target, logits.shape[min(1, logits.dim() - 1)], ignore_index)


def look_at_labels(name: str, target: Tensor, classes: int, ignore_index: int) -> None:
    """Every label that counts is a class."""
    if not target.numel():
        return
    smallest, largest = (int(t) for t in torch.aminmax(target))
    if smallest >= 0 and largest < classes:
        return
    kept = target[target != ignore_index]
    if not kept.numel():
        return
    smallest, largest = (int(t) for t in torch.aminmax(kept))
    if smallest < 0 or largest >= classes:
        raise InputIndexError(
            "a label is no class",
            where=f"burnt.kernels.{name}",
            expected=f"labels from 0 to {classes - 1}, or ignore_index, which is {ignore_index}",
            found=f"labels from {smallest} to {largest}",
            hint=range_hint(smallest, largest, classes),
        )


def _library(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    loss = F.cross_entropy(
        logits,
        target,
        None if weight is None else weight.detach(),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return loss + _z_part(logits, target, ignore_index, reduction, z_loss) if z_loss else loss


def _z_part(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, z_loss: float) -> Tensor:
    axis = min(1, logits.dim() - 1)
    part = torch.logsumexp(logits, axis).square() * z_loss
    count: Tensor | int = part.numel()
    if not target.is_floating_point():
        counted = target != ignore_index
        part = torch.where(counted, part, 0.0)
        count = counted.sum()
    if reduction == "none":
        return part
    return part.sum() if reduction == "sum" else part.sum() / count


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for rows, classes in [(512, 32000), (4096, 4096), (64, 10), (7, 53)]:
        logits = torch.randn(rows, classes, device=device)
        target = torch.randint(classes, (rows,), device=device)
        made.append((logits, target, None, -100, "mean", 0.0, 0.0))
    smoothed = torch.randn(3, 11, 5, device=device), torch.randint(11, (3, 5), device=device)
    made.append((*smoothed, torch.rand(11, device=device), 3, "sum", 0.1, 1e-2))
    return made


# Probabilities take torch's.
@op(
    check=_check,
    look=_look,
    library=_library,
    examples=_examples,
    library_best=lambda logits, target, *_: (
        target.is_floating_point() or (is_double(logits) and wants_gradient(logits))
    ),
)
def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    r"""Cross entropy of logits and classes, or class probabilities.

    .. math:: \ell_n = -w_{t_n} \log \mathrm{softmax}(x_n)_{t_n} + z \, (\log \sum_c e^{x_{n c}})^2

    Args:
        logits: ``[batch, classes, *]`` or ``[classes]``, of a floating-point dtype.
        target: labels ``[batch, *]`` or ``[]``, int64, or probabilities, as the logits.
        weight: ``[classes]``, of each class.
        ignore_index: label whose elements count neither in the sum nor in the mean.
        reduction: ``"mean"`` divides the sum by the weights of the labels; ``"sum"``; or ``"none"``.
        label_smoothing: share of the target that is spread over all classes, 0 to 1.
        z_loss: weight of the squared logarithm of the partition function, which keeps logits from drifting;
            its mean is over the elements that count, unweighted.

    Returns:
        ``[]``, or with ``"none"`` the labels' shape, in the logits' dtype.

    Raises:
        InputIndexError: a label that is no class, on the CPU; a GPU reports it later, as a failed assertion,
            or not at all.
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputValueError: another reduction, or as many labels as there are no logits for.

    As `torch.nn.functional.cross_entropy`; the z-loss is that of Chowdhery et al., 2022.

    >>> cross_entropy(torch.zeros(2, 10), torch.tensor([3, 7]))
    tensor(2.3026)
    """
    weight = None if weight is None else weight.detach()  # it has no gradient in torch either
    if target.is_floating_point():
        loss = F.cross_entropy(logits, target, weight, reduction=reduction, label_smoothing=label_smoothing)
        return loss + _z_part(logits, target, ignore_index, reduction, z_loss) if z_loss else loss
    # In float32: a mean of 16-bit losses would be rounded at every step.
    inside = torch.promote_types(logits.dtype, torch.float32)
    single = logits.dim() == 1  # where torch's definition looks at the label's value
    loss = F.cross_entropy(
        logits.to(inside).unsqueeze(0) if single else logits.to(inside),
        target.unsqueeze(0) if single else target,
        None if weight is None else weight.to(inside),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    loss = (loss.squeeze(0) if single and reduction == "none" else loss).to(logits.dtype)
    return loss + _z_part(logits, target, ignore_index, reduction, z_loss) if z_loss else loss


# --- the gradient with the loss ---------------------------------------------------------------------------


class _WithGradient(torch.autograd.Function):
    """The mean or the sum of losses, whose gradient is made with it; another one, when it is asked for."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, ignored: int, reduction: str, smoothing: float, z: float
    ) -> Tensor:
        ctx.save_for_backward(logits, target)
        ctx.settings = ignored, reduction, smoothing, z
        count = number_of(target, ignored, reduction, logits.dtype)
        rest = ignored, bool(smoothing), float(smoothing), bool(z), float(z)
        scale = (1 / count).expand(target.shape).contiguous()
        losses, ctx.made = losses_and_gradient(logits.detach(), target, scale, *rest)
        made: Tensor = (losses.sum() / count).to(logits.dtype)
        return made

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        logits, target = ctx.saved_tensors
        ignored, reduction, smoothing, z = ctx.settings
        # It is given away: another backward through the same graph makes it again.
        made, ctx.made = ctx.made, None
        if torch.is_grad_enabled() or made is None:
            given = logits if torch.is_grad_enabled() else logits.detach().requires_grad_()
            with torch.enable_grad():
                loss = cross_entropy.reference(given, target, None, ignored, reduction, smoothing, z)
            (made,) = torch.autograd.grad(loss, [given], cotangent, create_graph=torch.is_grad_enabled())
        elif cotangent != 1:
            made.mul_(cotangent)
        return made, *[None] * 5


def _why_without(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, *_: Any
) -> str | None:
    if target.is_floating_point() or weight is not None:
        return "probabilities, or weights of classes"
    if logits.dim() != 2 or not logits.numel():
        return "logits are not [batch, classes], or there are none"
    if reduction == "none":
        return "each loss has a gradient of its own"
    if logits.dtype == torch.float16:
        return "float16, in which a mean's gradient is too small before a loss is scaled"
    return None if wants_gradient(logits) else "no gradient is wanted"


# Two threads of a Zen 3: 2.2 to 2.3 times as fast as torch's with backward, where two passes with
# exponentials each were 1.8 (512 x 32000, 4096 x 4096: `benchmarks/kernels.py --rows cross_entropy`).
@cross_entropy.candidate(
    "with gradient",
    devices=["cpu"],
    when=_why_without,
    best=lambda logits, *_: logits.numel() >= _LARGE and not is_double(logits),
    differentiable=True,
)
def _with_gradient(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    settings = ignore_index, reduction, label_smoothing, z_loss
    return _WithGradient.apply(logits, target, *settings)  # type: ignore[no-any-return, no-untyped-call]
