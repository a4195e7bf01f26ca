"""Adafactor steps, by torch's operations: most of the work is sums over rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.kernels.optim.foreach import check_lists, check_steps, run_step, tensor_norms
from burnt.kernels.optim.formula import wide_dtype
from burnt.kernels.optim.request import Request, StepResult


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
    **limits: Any,
) -> StepResult:
    """Take a step of Adafactor on lists of tensors in place; arguments are as in `adamw_step` unless stated.

    `row_vars` ``[..., rows, 1]`` and `col_vars` ``[..., 1, columns]`` are running means of the squared
    gradients over the other axis, None for parameters with fewer than two axes, which have `variances`
    instead. `lr` is relative to the parameter's root mean square; the decay rate of the running means is 1
    minus the step to the power of `beta2_decay`. `eps` are lower bounds of these means (None: the dtype's
    machine epsilon) and of the parameter's root mean square; updates are scaled down to the root mean square
    `d`. `limits` are `grad_scale`, `max_norm`, `ema` and `ema_decay`.
    """
    request = Request("Adafactor", **limits)
    request.check_numbers(lr=lr, weight_decay=weight_decay)
    check_lists(request, params, grads=grads, variances=variances)
    check_steps(request, params, steps)

    def torch_step(grads: list[Tensor]) -> None:
        torch._foreach_add_(list(steps), torch.ones((), device=steps[0].device))  # faster than a number
        # For all tensors at once, without synchronizing with the device.
        counts = torch.stack(list(steps)).to(wide_dtype(steps[0].device))
        norms = tensor_norms(params)
        sizes = torch.tensor(
            [max(p.numel(), 1) for p in params], dtype=norms.dtype, device=norms.device
        ).sqrt()
        rates = (norms / sizes).clamp(min=eps[1]) * counts.rsqrt().clamp(max=lr)
        weights = counts**beta2_decay
        if weight_decay:
            torch._foreach_mul_(list(params), 1 - lr * weight_decay)
        grads = [g.float() if g.dtype.itemsize == 2 else g for g in grads]
        squares = torch._foreach_mul(grads, grads)
        smallest = [torch.finfo(p.dtype).eps if eps[0] is None else eps[0] for p in params]
        by_dtype = {dtype: weights.to(dtype).unbind() for dtype in {g.dtype for g in grads}}
        means = []
        for i, square in enumerate(squares):
            row_var, col_var, variance = row_vars[i], col_vars[i], variances[i]
            weight = by_dtype[square.dtype][i]
            if variance is not None:
                means.append(_average(variance, square, weight))
            elif row_var is not None and col_var is not None:
                row = _average(row_var, square.mean(-1, keepdim=True), weight)
                column = _average(col_var, square.mean(-2, keepdim=True), weight)
                means.append(row @ column / row.mean(-2, keepdim=True).clamp(min=smallest[i]))
        updates = torch._foreach_clamp_min(means, [x * x for x in smallest])
        torch._foreach_rsqrt_(updates)
        torch._foreach_mul_(updates, grads)
        factors = rates / (tensor_norms(updates) / (sizes * d)).clamp(min=1.0)
        torch._foreach_mul_(updates, list(factors.unbind()))
        torch._foreach_sub_(list(params), updates)

    return run_step(request, params, grads, [], None, torch_step, steps=steps)


def _average(state: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Move a running mean towards a value, and return it before it is rounded to 16 bits."""
    if state.dtype == value.dtype:
        return state.lerp_(value, weight)
    mean = state.to(value.dtype).lerp(value, weight)
    state.copy_(mean)
    return mean
