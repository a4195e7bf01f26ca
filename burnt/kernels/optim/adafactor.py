"""Adafactor steps, by torch's operations: most of the work is sums over rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnt.kernels.optim.foreach import check_lists, check_steps, run_step, tensor_norms
from burnt.kernels.optim.formula import wide_dtype
from burnt.kernels.optim.request import Request, StepResult

__all__ = ["adafactor_step"]


def adafactor_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    row_vars: Sequence[Tensor | None],
    col_vars: Sequence[Tensor | None],
    variances: Sequence[Tensor | None],
    steps: Sequence[Tensor],
    *,
    lr: float,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
    grad_scale: float | Tensor | None = None,
    max_norm: float | None = None,
    ema: Sequence[Tensor] | None = None,
    ema_decay: float = 0.999,
) -> StepResult:
    """Take a step of Adafactor on lists of tensors in place.

    Args:
        params: as in `adamw_step`, like all other arguments unless stated.
        grads: gradients; not changed.
        row_vars: ``[..., rows, 1]``, running means of the squared gradients over columns; None for
            parameters with fewer than two axes.
        col_vars: ``[..., 1, columns]``, the same over rows.
        variances: running means of the squared gradients, for parameters with fewer than two axes.
        steps: number of steps taken.
        lr: largest learning rate, relative to the parameter's root mean square.
        beta2_decay: the decay rate of the running means is 1 minus the step to this power.
        eps: lower bounds of the running means (None: the dtype's machine epsilon) and of the parameter's root
            mean square.
        d: updates are scaled down to this root mean square.
        weight_decay: decoupled: the parameter is multiplied by ``1 - lr * weight_decay``.
        grad_scale: factor that the loss was multiplied by.
        max_norm: maximum global norm of the gradients.
        ema: exponential moving averages of the parameters.
        ema_decay: decay rate of these averages.

    Returns:
        As in `adamw_step`, which also lists the errors raised.
    """
    request = Request("adafactor_step", grad_scale, max_norm, ema, ema_decay, None)
    request.check_numbers(lr=lr, weight_decay=weight_decay)
    check_lists(request, params, grads=grads, variances=variances)
    check_steps(request, params, steps)

    def torch_step(grads: list[Tensor]) -> None:
        torch._foreach_add_(list(steps), 1.0)
        # For all tensors at once, without synchronizing with the device.
        counts = torch.stack([step.to(wide_dtype(step.device)) for step in steps])
        norms = tensor_norms(params)
        sizes = torch.tensor(
            [max(p.numel(), 1) for p in params], dtype=norms.dtype, device=norms.device
        ).sqrt()
        rates = (norms / sizes).clamp(min=eps[1]) * counts.rsqrt().clamp(max=lr)
        weights = counts**beta2_decay
        if weight_decay:
            torch._foreach_mul_(list(params), 1 - lr * weight_decay)
        updates = []
        for grad, row_var, col_var, variance, weight in zip(
            grads, row_vars, col_vars, variances, weights.unbind(), strict=True
        ):
            smallest = torch.finfo(grad.dtype).eps if eps[0] is None else eps[0]
            g = grad if grad.dtype == torch.float64 else grad.float()
            if row_var is None or col_var is None:
                assert variance is not None
                mean = variance.to(g.dtype).lerp(g * g, weight.to(g.dtype))
                variance.copy_(mean)
            else:
                squares = g * g
                row = row_var.to(g.dtype).lerp(squares.mean(-1, keepdim=True), weight.to(g.dtype))
                col = col_var.to(g.dtype).lerp(squares.mean(-2, keepdim=True), weight.to(g.dtype))
                row_var.copy_(row)
                col_var.copy_(col)
                mean = row @ col / row.mean(-2, keepdim=True).clamp(min=smallest)
            updates.append(mean.clamp(min=smallest * smallest).rsqrt() * g)
        update_norms = tensor_norms(updates)
        factors = rates / (update_norms / (sizes * d)).clamp(min=1.0)
        for p, update, factor in zip(params, updates, factors.unbind(), strict=True):
            p.sub_(update.mul_(factor))

    return run_step(request, params, grads, [], None, torch_step, steps=steps)
