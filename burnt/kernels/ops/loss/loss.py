"""`cross_entropy`, and the checks of labels that losses share.

On a CPU, the candidate ``with gradient`` computes the gradient of a mean or sum together with the loss, while
each row's exponentials are in cache; the backward then only scales it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.codegen.backward import grad_by_torch
from burnt.errors import InputIndexError, InputRuntimeError, InputValueError, range_hint
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype, check_shape
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.loss.cross_entropy_rows import Terms, loss_divisor, losses_and_gradient

_REDUCTIONS = ("mean", "sum", "none")
# Number of logits below which torch's calls are as fast.
_MIN_LOGITS = 1 << 18


def check_reduction(name: str, reduction: str, label_smoothing: float) -> None:
    """Check the reduction and the label smoothing of a loss."""
    if reduction not in _REDUCTIONS:
        raise InputValueError(
            f"{name} has no reduction {reduction!r}",
            where=f"burnt.kernels.{name}",
            expected=", ".join(map(repr, _REDUCTIONS)),
            found=repr(reduction),
        )
    if not 0 <= label_smoothing <= 1:
        raise InputRuntimeError(
            "the label smoothing is out of range",
            where=f"burnt.kernels.{name}",
            expected="a number from 0 to 1",
            found=label_smoothing,
        )


def check_labels(name: str, target: Tensor, shape: tuple[int, ...], *, flat: bool = False) -> None:
    """Check the shape and dtype of labels; `flat`: the error class depends on their number, as in torch."""
    if tuple(target.shape) != shape:
        has_batch = bool(shape) and target.dim() > 0
        differs = target.numel() != math.prod(shape) if flat else target.shape[:1] != shape[:1]
        error = InputValueError if has_batch and differs else InputRuntimeError
        raise error(
            "the labels have the wrong shape",
            where=f"burnt.kernels.{name}",
            expected=f"labels of shape {shape}",
            found=f"{target.dtype} of shape {tuple(target.shape)}",
        )
    if target.dtype not in (torch.int64, torch.uint8):
        raise InputRuntimeError(
            "the labels have the wrong dtype",
            where=f"burnt.kernels.{name}",
            expected="int64 (or uint8)",
            found=target.dtype,
            hint="target.long()",
        )


def int64_labels(target: Tensor) -> Tensor:
    """Return labels as int64: in uint8, ``target != -100`` compares with -100 modulo 256, the class 156."""
    return target if target.is_floating_point() else target.long()


def _check(*args: Any) -> None:
    logits, target, weight, _, reduction, label_smoothing, _ = args
    where = "burnt.kernels.cross_entropy"
    check_reduction("cross_entropy", reduction, label_smoothing)
    check_floating("cross_entropy", logits=logits, weight=weight)
    check_one_device("cross_entropy", logits=logits, target=target, weight=weight)
    shape, axis = tuple(logits.shape), min(1, logits.dim() - 1)
    probabilities = target.is_floating_point()
    label_shape = shape[:axis] + shape[axis + 1 :]
    expected_shape = shape if probabilities else label_shape
    if not probabilities and logits.dim() and tuple(target.shape) == expected_shape:
        check_labels("cross_entropy", target, expected_shape)
    elif logits.dim() == 0 or tuple(target.shape) != expected_shape:
        # As in torch, another batch size is a ValueError.
        has_batch = logits.dim() > 0 and target.dim() > 0
        error = InputValueError if has_batch and target.shape[:1] != shape[:1] else InputRuntimeError
        raise error(
            "the target does not match the logits",
            where=where,
            expected=f"labels of shape {label_shape}, or probabilities of shape {shape}",
            found=f"{target.dtype} of shape {tuple(target.shape)}",
            hint="classes must be the second axis of the logits: logits.movedim(-1, 1)?"
            if logits.dim() > 2
            else None,
        )
    if not _torch.is_autocast():
        check_one_dtype("cross_entropy", logits=logits, weight=weight)
    check_shape("cross_entropy", "weight", weight, [shape[axis]])


def _check_label_values(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, *_: Any
) -> None:
    if not target.is_floating_point():
        check_label_range("cross_entropy", target, logits.shape[min(1, logits.dim() - 1)], ignore_index)


def check_label_range(name: str, target: Tensor, classes: int, ignore_index: int) -> None:
    """Check that every label is a class or `ignore_index`."""
    if not target.numel():
        return
    smallest, largest = (int(t) for t in torch.aminmax(target))
    if smallest >= 0 and largest < classes:
        return
    counted = target[int64_labels(target) != ignore_index]
    if not counted.numel():
        return
    smallest, largest = (int(t) for t in torch.aminmax(counted))
    if smallest < 0 or largest >= classes:
        raise InputIndexError(
            "a label is not a class",
            where=f"burnt.kernels.{name}",
            expected=f"labels from 0 to {classes - 1}, or ignore_index, which is {ignore_index}",
            found=f"labels from {smallest} to {largest}",
            hint=range_hint(smallest, largest, classes),
        )


def _library(*args: Any) -> Tensor:
    logits, target, weight, ignore_index, reduction, label_smoothing, z_loss = args
    target, weight = int64_labels(target), None if weight is None else weight.detach()
    settings = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
    loss = F.cross_entropy(logits, target, weight, **settings)
    return loss + _z_loss_term(logits, target, ignore_index, reduction, z_loss) if z_loss else loss


def _z_loss_term(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, z_loss: float) -> Tensor:
    axis = min(1, logits.dim() - 1)
    term = torch.logsumexp(logits, axis).square() * z_loss
    count: Tensor | int = term.numel()
    if not target.is_floating_point():
        is_counted = target != ignore_index
        term = torch.where(is_counted, term, 0.0)
        count = is_counted.sum()
    if reduction == "none":
        return term
    return term.sum() if reduction == "sum" else term.sum() / count


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for rows, classes in [(512, 32000), (4096, 4096), (64, 10), (7, 53)]:
        logits = torch.randn(rows, classes, device=device)
        target = torch.randint(classes, (rows,), device=device)
        examples.append((logits, target, None, -100, "mean", 0.0, 0.0))
    smoothed = torch.randn(3, 11, 5, device=device), torch.randint(11, (3, 5), device=device)
    examples.append((*smoothed, torch.rand(11, device=device), 3, "sum", 0.1, 1e-2))
    return examples


@op(
    check=_check,
    look=_check_label_values,
    library=_library,
    examples=_examples,
    features=lambda logits, target, *_: {"probabilities": target.is_floating_point()},
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
    r"""Compute the cross-entropy of logits and labels, or class probabilities.

    .. math:: \ell_n = -w_{t_n} \log \mathrm{softmax}(x_n)_{t_n} + z \, (\log \sum_c e^{x_{n c}})^2

    Args:
        logits: ``[batch, classes, *]`` or ``[classes]``, of a floating-point dtype.
        target: labels ``[batch, *]`` or ``[]``, int64 or uint8, or probabilities of the logits' shape.
        weight: ``[classes]``, weight of each class.
        ignore_index: label of elements that are excluded from the sum and the mean.
        reduction: ``"mean"`` divides the sum by the weights of the labels; ``"sum"``; or ``"none"``.
        label_smoothing: share of the target that is spread over all classes, 0 to 1.
        z_loss: weight of the squared logarithm of the partition function, which keeps logits from drifting;
            its mean is unweighted, over the elements that are not ignored.

    Returns:
        ``[]``, or with ``"none"`` the labels' shape, in the logits' dtype.

    Raises:
        InputIndexError: a label is not a class (on the CPU); a GPU reports it later, as a failed assertion,
            or not at all.
        InputRuntimeError: the shapes, dtypes or devices do not match.
        InputValueError: the reduction is unknown, or logits and labels differ in batch size.

    As `torch.nn.functional.cross_entropy`, but uint8 labels are never ignored by an `ignore_index` outside of
    0 to 255; the z-loss is that of Chowdhery et al., 2022.

    >>> cross_entropy(torch.zeros(2, 10), torch.tensor([3, 7]))
    tensor(2.3026)
    """
    weight = None if weight is None else weight.detach()  # no gradient, as in torch
    target = int64_labels(target)
    if target.is_floating_point():
        loss = F.cross_entropy(logits, target, weight, reduction=reduction, label_smoothing=label_smoothing)
        return loss + _z_loss_term(logits, target, ignore_index, reduction, z_loss) if z_loss else loss
    # Compute in float32: a mean of 16-bit losses would be rounded at every step.
    compute_dtype = torch.promote_types(logits.dtype, torch.float32)
    is_single = logits.dim() == 1  # without a batch, torch would read the label's value
    loss = F.cross_entropy(
        logits.to(compute_dtype).unsqueeze(0) if is_single else logits.to(compute_dtype),
        target.unsqueeze(0) if is_single else target,
        None if weight is None else weight.to(compute_dtype),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    loss = (loss.squeeze(0) if is_single and reduction == "none" else loss).to(logits.dtype)
    return loss + _z_loss_term(logits, target, ignore_index, reduction, z_loss) if z_loss else loss


# --- loss and gradient in one pass ------------------------------------------------------------------------


class _LossWithGradient(torch.autograd.Function):
    """The autograd function of a mean or sum of losses, whose gradient is computed in the forward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, *settings: Any) -> Tensor:
        ctx.save_for_backward(logits, target)
        ctx.settings = settings
        ignore_index, reduction, label_smoothing, z_loss = settings
        count = loss_divisor(target, ignore_index, reduction, logits.dtype)
        terms = Terms.of(ignore_index, label_smoothing, z_loss)
        scale = (1 / count).expand(target.shape).contiguous()
        losses, ctx.gradient = losses_and_gradient(logits.detach(), target, scale, *terms)
        loss: Tensor = (losses.sum() / count).to(logits.dtype)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        logits, target = ctx.saved_tensors
        # The gradient is scaled in place: another backward through the same graph recomputes it.
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None or not _torch.is_plain_backward():
            args = (logits, target, None, *ctx.settings)
            needs_grad = (True, *[False] * 6)
            gradient, *_ = grad_by_torch(cross_entropy.reference, args, needs_grad, (grad_output,))
        elif grad_output != 1:
            gradient.mul_(grad_output)
        return gradient, *[None] * 5


def _unsupported_reason(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, *_: Any
) -> str | None:
    if target.is_floating_point() or weight is not None:
        return "class probabilities, or class weights"
    if logits.dim() != 2 or not logits.numel():
        return "logits are not [batch, classes], or are empty"
    if reduction == "none":
        return "no reduction: each loss has its own gradient"
    if logits.dtype == torch.float16:
        return "float16, where a mean's gradient underflows before it is scaled"
    return None if wants_gradient(logits) else "no gradient is needed"


# Two threads of a Zen 3: 2.2 to 2.3 times as fast as torch's with backward; two passes that each compute the
# exponentials are 1.8 times (512 x 32000, 4096 x 4096: `benchmarks/kernels.py --rows cross_entropy`).
@cross_entropy.candidate(
    "with gradient",
    devices=["cpu"],
    when=_unsupported_reason,
    best=lambda logits, *_: logits.numel() >= _MIN_LOGITS and logits.dtype != torch.float64,
    differentiable=True,
)
def _loss_with_gradient(logits: Tensor, target: Tensor, weight: Tensor | None, *settings: Any) -> Tensor:
    return _LossWithGradient.apply(  # type: ignore[no-any-return, no-untyped-call]
        logits, int64_labels(target), *settings
    )
