"""Optimizer steps over lists of tensors, in place: scale, norm, clipping, step and average in two passes.

The first pass reads the gradients for their global norm, and is left out where nobody asks for it. The second
one takes the scale and the clipping into the step itself, and averages the parameters that it has at hand.
With torch's calls, clipping reads and writes the gradients once more, and the average reads the parameters.

Two candidates: ``burnt`` (`burnt.kernels.optim.foreach_c` on a CPU, `burnt.kernels.optim.foreach_triton` on a
GPU) and ``torch``, the functions behind `torch.optim`, fused where torch has that. These are no ops of
``torch.ops.burnt``: they change what they are given, and are not part of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnt.errors import InputValueError
from burnt.kernels.optim.foreach import Passes, check, check_steps, fused, stepped
from burnt.kernels.optim.foreach_c import ADAM, SGD
from burnt.kernels.optim.request import Request, StepResult

__all__ = ["StepResult", "adam_step", "adamw_step", "sgd_step"]


def adamw_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor] | None = None,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    grad_scale: float | Tensor | None = None,
    max_norm: float | None = None,
    ema: Sequence[Tensor] | None = None,
    ema_decay: float = 0.999,
    candidate: str | None = None,
) -> StepResult:
    """A step of AdamW on lists of tensors, in place, with what goes around it.

    Args:
        params: of any shapes and floating-point dtypes; each list below has a tensor per parameter, of its
            shape, dtype and device.
        grads: they are left as they are.
        exp_avgs: running means of the gradients, zeros at first.
        exp_avg_sqs: running means of their squares, zeros at first.
        steps: ``[]`` each, float32: how many steps the parameter has done.
        max_exp_avg_sqs: the largest of the running means of squares, for amsgrad.
        lr: the learning rate.
        betas: decay of the two running means.
        eps: added to the denominator.
        weight_decay: share of the parameter that is taken off, times the learning rate.
        grad_scale: what the loss was multiplied by, a number or ``[]``: gradients are divided by it, and a
            gradient that is NaN or infinite makes the step change nothing.
        max_norm: gradients are scaled down to this global norm, as `torch.nn.utils.clip_grad_norm_` does;
            infinity to have the norm alone.
        ema: averages of the parameters, which move towards the new ones.
        ema_decay: the share that an average keeps.
        candidate: ``"burnt"`` or ``"torch"``; None for burnt's where it can serve.

    Returns:
        The norm, whether the step was skipped, and by what it was done.

    Raises:
        InputRuntimeError: lists, shapes, dtypes or devices do not fit each other.
        InputUnsupportedError: a parameter is not of a floating-point dtype, or a gradient is sparse, or
            ``candidate="burnt"`` cannot serve.
        InputValueError: a rate, limit, scale or decay that cannot be.

    Loshchilov and Hutter, 2019, as `torch.optim.AdamW`. Elements of 16 bits are computed in float32 and
    rounded once, also where they are clipped.

    >>> p, g = torch.ones(2), torch.tensor([3.0, 4.0])
    >>> zeros = lambda: [torch.zeros(2)]
    >>> result = adamw_step([p], [g], zeros(), zeros(), [torch.tensor(0.0)], lr=0.1, max_norm=1.0)
    >>> p, result.norm
    (tensor([0.8990, 0.8990]), tensor(5.))
    """
    request = Request("adamw_step", grad_scale, max_norm, ema, ema_decay, candidate)
    lists = params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps
    return _adam(request, 2 if weight_decay else 0, *lists, lr, betas, eps, weight_decay)


def adam_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor] | None = None,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    grad_scale: float | Tensor | None = None,
    max_norm: float | None = None,
    ema: Sequence[Tensor] | None = None,
    ema_decay: float = 0.999,
    candidate: str | None = None,
) -> StepResult:
    """A step of Adam: as `adamw_step`, with weight decay as a penalty on the loss.

    Args:
        params: as there, and so are the others.
        grads: left as they are.
        exp_avgs: running means of the gradients.
        exp_avg_sqs: running means of their squares.
        steps: counters.
        max_exp_avg_sqs: for amsgrad.
        lr: the learning rate.
        betas: decay of the running means.
        eps: added to the denominator.
        weight_decay: times the parameter, added to the clipped gradient.
        grad_scale: what the loss was multiplied by.
        max_norm: limit of the global norm.
        ema: averages of the parameters.
        ema_decay: the share that an average keeps.
        candidate: the one that must be taken.

    Returns:
        As `adamw_step`, and so are the errors raised.

    Kingma and Ba, 2015, as `torch.optim.Adam`.

    >>> p, state = torch.ones(1), [[torch.zeros(1)], [torch.zeros(1)], [torch.tensor(0.0)]]
    >>> adam_step([p], [torch.tensor([2.0])], *state, lr=0.1).by, p
    ('burnt', tensor([0.9000]))
    """
    request = Request("adam_step", grad_scale, max_norm, ema, ema_decay, candidate)
    lists = params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps
    return _adam(request, 1 if weight_decay else 0, *lists, lr, betas, eps, weight_decay)


def sgd_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: list[Tensor | None] | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    grad_scale: float | Tensor | None = None,
    max_norm: float | None = None,
    ema: Sequence[Tensor] | None = None,
    ema_decay: float = 0.999,
    candidate: str | None = None,
) -> StepResult:
    """A step of stochastic gradient descent on lists of tensors, in place, with what goes around it.

    Args:
        params: as `adamw_step`, and so are the arguments that are not named here.
        grads: left as they are.
        momentum_buffers: running sums of gradients, wanted where there is momentum. None stands for a
            parameter's first step, and is replaced in the list.
        lr: the learning rate.
        momentum: decay of the running sum.
        dampening: share of a new gradient that is held back from it, but for the first.
        weight_decay: times the parameter, added to the clipped gradient.
        nesterov: look ahead along the momentum.
        grad_scale: what the loss was multiplied by.
        max_norm: limit of the global norm.
        ema: averages of the parameters.
        ema_decay: the share that an average keeps.
        candidate: the one that must be taken.

    Returns:
        As `adamw_step`, and so are the errors raised.

    As `torch.optim.SGD`.

    >>> p, buffers = torch.ones(1), [None]
    >>> for _ in range(2):
    ...     result = sgd_step([p], [torch.tensor([1.0])], buffers, lr=0.1, momentum=0.5)
    >>> p, buffers
    (tensor([0.7500]), [tensor([1.5000])])
    """
    request = Request("sgd_step", grad_scale, max_norm, ema, ema_decay, candidate)
    if momentum and momentum_buffers is None:
        raise InputValueError(
            "momentum needs buffers",
            where="burnt.kernels.sgd_step",
            expected="momentum_buffers, a list",
            found=f"momentum={momentum} without any",
            hint="[None] * len(params) at first",
        )
    request.check_numbers(lr=lr, momentum=momentum, weight_decay=weight_decay)
    buffers = momentum_buffers if momentum else None
    check(request, params, grads=grads, momentum_buffers=buffers)

    def ours(passes: Passes, grads: Sequence[Tensor]) -> None:
        fresh: list[int | float] | None = None
        columns: list[Sequence[Tensor] | None] = [params, grads, None, ema]
        if buffers is not None:
            fresh = [int(b is None) for b in buffers]
            # A first gradient is not dampened; the next one would be, if this step came to nothing.
            if passes.skips(wait=dampening != 0 and any(fresh)):
                return
            buffers[:] = [
                torch.zeros_like(p) if b is None else b for p, b in zip(params, buffers, strict=True)
            ]
            columns[2] = buffers  # type: ignore[assignment]
        numbers = [lr, momentum, dampening, weight_decay, 1 - ema_decay]
        options = [("DECAY", int(weight_decay != 0)), ("NESTEROV", int(nesterov))]
        passes.advance(SGD, columns, numbers, options, extras=fresh)

    def torchs(grads: list[Tensor]) -> None:
        from torch.optim.sgd import sgd

        given: list[Tensor | None] = [None] * len(params) if buffers is None else buffers
        # torch's fused kernel takes the momentum of all parameters to be there, or of none, and of 16 bits it
        # stores a wrong one on a CPU.
        alike = len({b is None for b in given}) <= 1
        right = not momentum or all(p.is_cuda or p.dtype.itemsize > 2 for p in params)
        sgd(
            list(params), grads, given, fused=alike and right and fused(params, grads, given),
            weight_decay=weight_decay, momentum=momentum, lr=lr, dampening=dampening, nesterov=nesterov,
            maximize=False,
        )  # fmt: skip

    states = (
        [] if buffers is None else [[p if b is None else b for p, b in zip(params, buffers, strict=True)]]
    )
    return stepped(request, params, grads, states, ours, torchs)


def _adam(
    request: Request,
    decay: int,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor] | None,
    steps: Sequence[Tensor],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> StepResult:
    """Adam, with weight decay of no kind (0), as a penalty (1), or decoupled (2)."""
    request.check_numbers(*betas, lr=lr, eps=eps, weight_decay=weight_decay)
    states = {"exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs, "max_exp_avg_sqs": max_exp_avg_sqs}
    check(request, params, grads=grads, **states)
    check_steps(request, params, steps)
    present = [column for column in states.values() if column is not None]

    def ours(passes: Passes, grads: Sequence[Tensor]) -> None:
        columns = [params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, request.ema]
        numbers = [lr, *betas, eps, weight_decay, 1 - request.ema_decay]
        passes.advance(ADAM, columns, numbers, [("DECAY", decay)], steps=steps)

    def torchs(grads: list[Tensor]) -> None:
        from torch.optim.adam import adam

        adam(
            list(params), grads, list(exp_avgs), list(exp_avg_sqs), list(max_exp_avg_sqs or []), list(steps),
            fused=fused(params, grads, *present), decoupled_weight_decay=decay == 2,
            amsgrad=max_exp_avg_sqs is not None,
            beta1=betas[0], beta2=betas[1], lr=lr, weight_decay=weight_decay, eps=eps, maximize=False,
        )  # fmt: skip

    return stepped(request, params, grads, present, ours, torchs, steps=steps)
