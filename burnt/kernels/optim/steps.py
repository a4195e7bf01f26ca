"""In-place optimizer steps over lists of tensors: SGD, Adam, AdamW, Lamb, Muon; a step by any formula.

A step includes unscaling, clipping by the global norm and an exponential moving average of the parameters,
in two passes over memory. The first reads the gradients to compute their norm; it is omitted if the norm is
not needed. The second unscales and clips as part of the update, and updates the average. With torch's
functions, clipping reads and writes the gradients once more, and the average reads the parameters again.

Muon's two passes have matmuls in between: the first updates the momentum and returns the matrices to
orthogonalize, the second updates the parameters and their averages.

There are two candidates: ``burnt`` (`burnt.kernels.optim.foreach_c` on a CPU,
`burnt.kernels.optim.foreach_triton` on a GPU) and ``torch``, the functions behind `torch.optim`, fused if
torch has a fused version. These functions are not ops in ``torch.ops.burnt``: they change their arguments,
and cannot be part of a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.device import processor
from burnt.errors import InputRuntimeError, InputValueError
from burnt.kernels.interface.checks import describe
from burnt.kernels.ops.matmul import matmul
from burnt.kernels.optim.foreach import Passes, can_fuse, run_step, tensor_norms
from burnt.kernels.optim.formula import (
    ADAM,
    LAMB,
    LAMB_DIRECTION,
    MOMENTUM,
    MUON,
    SGD,
    Lists,
    Update,
    apply_eagerly,
    wide_dtype,
)
from burnt.kernels.optim.request import LIMITS, Request, StepResult


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
    """Take a step of AdamW on lists of tensors in place, with optional unscaling, clipping and averaging.

    Args:
        params: parameters of any shapes and floating-point dtypes. Each list below has one tensor per
            parameter, of its shape, dtype and device.
        grads: the parameters' gradients; not changed.
        exp_avgs: running means of the gradients, initially zeros.
        exp_avg_sqs: running means of the squared gradients, initially zeros.
        steps: ``[]`` each, float32: number of steps taken, incremented.
        max_exp_avg_sqs: running maxima of `exp_avg_sqs`, for AMSGrad; None for plain AdamW.
        lr: learning rate.
        betas: decay rates of the two running means.
        eps: added to the denominator.
        weight_decay: decoupled: the parameter is multiplied by ``1 - lr * weight_decay``.
        grad_scale: factor that the loss was multiplied by, a number or ``[]``. The gradients are divided by
            it; if one is NaN or infinite, the step is skipped: nothing is changed.
        max_norm: clip the gradients to this global norm, like `torch.nn.utils.clip_grad_norm_`; infinity
            computes the norm without clipping.
        ema: exponential moving averages of the parameters, updated after the step.
        ema_decay: decay rate of these averages.
        candidate: ``"burnt"`` or ``"torch"``; None uses burnt's kernels if they support the arguments.

    Returns:
        The norm, whether the step was skipped, and the candidate that ran.

    Raises:
        InputRuntimeError: lengths, shapes, dtypes or devices of the lists do not match.
        InputUnsupportedError: a parameter is not floating-point, a gradient is sparse, or
            ``candidate="burnt"`` does not support the arguments.
        InputValueError: a hyperparameter is out of range.

    Like `torch.optim.AdamW`; Loshchilov and Hutter, 2019. 16-bit elements are computed in float32 and rounded
    once, also if they are clipped.

    >>> p, g = torch.ones(2), torch.tensor([3.0, 4.0])
    >>> zeros = lambda: [torch.zeros(2)]
    >>> result = adamw_step([p], [g], zeros(), zeros(), [torch.tensor(0.0)], lr=0.1, max_norm=1.0)
    >>> p, result.norm
    (tensor([0.8990, 0.8990]), tensor(5.))
    """
    request = Request("adamw_step", grad_scale, max_norm, ema, ema_decay, candidate)
    lists = params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps
    return _adam_step(request, True, *lists, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


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
    """Take a step of Adam: like `adamw_step`, but with weight decay as an L2 penalty on the loss.

    `weight_decay`, times the parameter, is added to the clipped gradient. All other arguments, the result and
    errors are as in `adamw_step`. Like `torch.optim.Adam`; Kingma and Ba, 2015.

    >>> p, state = torch.ones(1), [[torch.zeros(1)], [torch.zeros(1)], [torch.tensor(0.0)]]
    >>> adam_step([p], [torch.tensor([2.0])], *state, lr=0.1).by, p
    ('burnt', tensor([0.9000]))
    """
    request = Request("adam_step", grad_scale, max_norm, ema, ema_decay, candidate)
    lists = params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps
    return _adam_step(request, False, *lists, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


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
    """Take a step of stochastic gradient descent on lists of tensors in place.

    Args:
        momentum_buffers: running sums of the gradients; required with momentum. None marks a parameter's
            first step, and is replaced in the list by a new buffer.
        lr: learning rate.
        momentum: decay rate of the running sums.
        dampening: gradients are multiplied by ``1 - dampening`` before they are added to the running sum,
            except in the first step.
        weight_decay: times the parameter, added to the clipped gradient.
        nesterov: use Nesterov momentum.

    All other arguments, the result and errors are as in `adamw_step`. Like `torch.optim.SGD`.

    >>> p, buffers = torch.ones(1), [None]
    >>> for _ in range(2):
    ...     result = sgd_step([p], [torch.tensor([1.0])], buffers, lr=0.1, momentum=0.5)
    >>> p, buffers
    (tensor([0.7500]), [tensor([1.5000])])
    """
    request = Request("sgd_step", grad_scale, max_norm, ema, ema_decay, candidate)
    if momentum and momentum_buffers is None:
        raise InputValueError(
            "sgd_step with momentum needs momentum_buffers",
            where="burnt.kernels.sgd_step",
            expected="momentum_buffers, a list with one entry per parameter",
            found=f"momentum={momentum} without momentum_buffers",
            hint="pass [None] * len(params) in the first step, and the same list in the next ones",
        )
    request.check_numbers(lr=lr, momentum=momentum, weight_decay=weight_decay)
    buffers = momentum_buffers if momentum else None

    def burnt_step(passes: Passes, grads: Sequence[Tensor]) -> None:
        elements: dict[str, Sequence[Tensor]] = {"param": params, "grad": grads}
        scalars: dict[str, Sequence[float]] = {}
        if buffers is not None:
            is_first = [float(b is None) for b in buffers]
            # If this first step is skipped, the buffers must stay None, so that the next is not dampened.
            if passes.is_skipped(wait=dampening != 0 and any(is_first)):
                return
            buffers[:] = [
                torch.zeros_like(p) if b is None else b for p, b in zip(params, buffers, strict=True)
            ]
            elements["momentum_buffer"], scalars = buffers, {"is_first": is_first}  # type: ignore[assignment]
        options = number_options(
            lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
            ema_weight=1 - ema_decay,
        )  # fmt: skip
        passes.apply_update(SGD, request.with_ema(elements), options, scalars)

    def torch_step(grads: list[Tensor]) -> None:
        from torch.optim.sgd import sgd

        torch_buffers: list[Tensor | None] = [None] * len(params) if buffers is None else buffers
        # torch's fused kernel needs the momentum buffers of all parameters or of none, and on a CPU it stores
        # wrong 16-bit momentum.
        all_or_none = len({b is None for b in torch_buffers}) <= 1
        stores_momentum_correctly = not momentum or all(p.is_cuda or p.dtype.itemsize > 2 for p in params)
        sgd(
            list(params), grads, torch_buffers,
            fused=all_or_none and stores_momentum_correctly and can_fuse(params, grads, torch_buffers),
            weight_decay=weight_decay, momentum=momentum, lr=lr, dampening=dampening, nesterov=nesterov,
            maximize=False,
        )  # fmt: skip

    states = {} if buffers is None else {"momentum_buffer": buffers}
    return run_step(request, params, grads, states, burnt_step, torch_step)


def update_step(
    name: str,
    update: Update,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Lists,
    scalars: Lists,
    **options: Any,
) -> StepResult:
    """Take a step by the formula of an update, or eagerly by `apply_eagerly`.

    `states` and `scalars` are the formula's tensors by name. Options are the formula's, with `betas` instead
    of ``beta1`` and ``beta2``, and the limits that all steps have.
    """
    request = Request(name, **{limit: options.pop(limit) for limit in LIMITS if limit in options})
    return _run_update(request, update, params, grads, states, scalars, options)


def _run_update(
    request: Request,
    update: Update,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Lists,
    scalars: Lists,
    options: Mapping[str, Any],
    torch_step: Callable[[list[Tensor]], None] | None = None,
) -> StepResult:
    numbers = number_options(**options, ema_weight=1 - request.ema_decay)

    def burnt_step(passes: Passes, grads: Sequence[Tensor]) -> None:
        elements = {"param": params, "grad": grads, **states}
        passes.apply_update(update, request.with_ema(elements), numbers, scalars)

    def eager_step(grads: list[Tensor]) -> None:
        apply_eagerly(update, {"param": params, "grad": grads, **states}, numbers, scalars)

    wide = [column for name, column in scalars.items() if name in update.wide]
    narrow = [column for name, column in scalars.items() if name not in update.wide]
    return run_step(request, params, grads, states, burnt_step, torch_step or eager_step, narrow, wide)


def lamb_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    **limits: Any,
) -> StepResult:
    """Take a step of Lamb on lists of tensors in place, with optional unscaling, clipping and averaging.

    Arguments are as in `adamw_step`; the weight decay, times the parameter, is added to the direction before
    its norm is taken.
    """
    request = Request("Lamb", **limits)
    request.check_numbers(*betas, lr=lr, eps=eps, weight_decay=weight_decay)
    options = number_options(
        lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, ema_weight=1 - request.ema_decay
    )
    states = {"exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs}

    def take(apply: Callable[..., None], grads: Sequence[Tensor], **ema: Sequence[Tensor]) -> None:
        updates = [torch.zeros_like(p) for p in params]
        elements = {"param": params, "grad": grads, "update": updates, **states}
        apply(LAMB_DIRECTION, elements, options, {"step": steps})
        ratios = {"trust_ratio": _trust_ratios(params, updates)}
        apply(LAMB, {"param": params, "update": updates, **ema}, options, ratios)

    def burnt_step(passes: Passes, grads: Sequence[Tensor]) -> None:
        if not passes.is_skipped(wait=False) and params:
            take(passes.apply_update, grads, **request.with_ema({}))

    def torch_step(grads: list[Tensor]) -> None:
        take(apply_eagerly, grads)

    return run_step(request, params, grads, states, burnt_step, torch_step, [steps])


def _trust_ratios(params: Sequence[Tensor], updates: Sequence[Tensor]) -> list[Tensor]:
    """Return each parameter's norm divided by its update's norm; 1 if one of them is 0."""
    of_params, of_updates = tensor_norms([*params, *updates]).view(2, -1)
    ratios = torch.where(of_params * of_updates > 0, of_params / of_updates, 1.0)
    return list(ratios.to(wide_dtype(ratios.device)).unbind())


def number_options(**options: Any) -> dict[str, Any]:
    """Return options as formulas take them: numbers as floats, the parts of `betas` by names of their own."""
    numbers: dict[str, Any] = {}
    for name, value in options.items():
        if name == "betas":
            numbers |= {f"beta{i + 1}": float(beta) for i, beta in enumerate(value)}
        else:
            numbers[name] = value if value is None or isinstance(value, bool) else float(value)
    return numbers


def _adam_step(
    request: Request,
    is_decoupled: bool,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor] | None,
    steps: Sequence[Tensor],
    *,
    betas: tuple[float, float],
    **numbers: Any,
) -> StepResult:
    """Take a step of Adam, with weight decay decoupled or as an L2 penalty."""
    request.check_numbers(*betas, **numbers)
    states = {"exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs}
    if max_exp_avg_sqs is not None:
        states["max_exp_avg_sq"] = max_exp_avg_sqs
    amsgrad = max_exp_avg_sqs is not None

    def torch_step(grads: list[Tensor]) -> None:
        from torch.optim.adam import adam

        adam(
            list(params), grads, list(exp_avgs), list(exp_avg_sqs), list(max_exp_avg_sqs or []), list(steps),
            fused=can_fuse(params, grads, *states.values()), decoupled_weight_decay=is_decoupled,
            amsgrad=amsgrad, beta1=betas[0], beta2=betas[1], maximize=False, **numbers,
        )  # fmt: skip

    options = {**numbers, "betas": betas, "decoupled": is_decoupled, "amsgrad": amsgrad}
    return _run_update(request, ADAM, params, grads, states, {"step": steps}, options, torch_step)


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

    return run_step(request, params, grads, {"variance": variances}, None, torch_step, [steps])


def _average(state: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Move a running mean towards a value, and return it before it is rounded to 16 bits."""
    if state.dtype == value.dtype:
        return state.lerp_(value, weight)
    mean = state.to(value.dtype).lerp(value, weight)
    state.copy_(mean)
    return mean


COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""K. Jordan's: steepest at zero, at the price of singular values between 0.7 and 1.2 instead of 1."""
LR_ADJUSTMENTS = ("original", "match_rms_adamw")
"""How the learning rate depends on a matrix's shape: Jordan's rule, and that of Liu et al., 2025, which makes
AdamW's learning rates usable."""


def orthogonalized(
    matrix: Tensor, coefficients: tuple[float, float, float] = COEFFICIENTS, steps: int = 5, eps: float = 1e-7
) -> Tensor:
    """Approximate the nearest matrix with orthonormal rows or columns, by a quintic Newton-Schulz iteration.

    Args:
        matrix: ``[rows, columns]``, floating-point.
        coefficients: coefficients of the first, third and fifth power.
        steps: number of iterations.
        eps: lower bound of the norm that the matrix is first divided by, to make all singular values at most
            1.

    Returns:
        ``[rows, columns]``, bfloat16; float32 on a CPU without bfloat16 instructions.

    >>> orthogonalized(torch.diag(torch.tensor([3.0, 0.5])), steps=6).float().diag() > 0.6
    tensor([True, True])
    """
    a, b, c = coefficients
    use_float32 = matrix.is_cpu and torch.bfloat16 not in processor().onednn
    x = matrix.to(torch.float32 if use_float32 else torch.bfloat16)
    is_tall = x.shape[0] > x.shape[1]
    x = x.t() if is_tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        square = matmul(x, x.t())
        # addmm adds before it rounds to bfloat16, a separate sum would round twice.
        polynomial = torch.addmm(square, square, square, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    return x.t() if is_tall else x


def muon_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor],
    *,
    lr: float,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str | None = None,
    grad_scale: float | Tensor | None = None,
    max_norm: float | None = None,
    ema: Sequence[Tensor] | None = None,
    ema_decay: float = 0.999,
    candidate: str | None = None,
) -> StepResult:
    """Take a step of Muon on lists of matrices in place, with optional unscaling, clipping and averaging.

    Args:
        params: ``[rows, columns]`` each.
        momentum_buffers: running means of the gradients, initially zeros.
        lr: learning rate, which is adjusted to each matrix's shape.
        weight_decay: decoupled: the parameter is multiplied by ``1 - lr * weight_decay``.
        momentum: decay rate of the running mean.
        nesterov: use Nesterov momentum.
        ns_coefficients: coefficients of the Newton-Schulz iteration (`orthogonalized`).
        eps: lower bound of the norm in `orthogonalized`.
        ns_steps: number of iterations, fewer than 100.
        adjust_lr_fn: ``"original"`` (also None) or ``"match_rms_adamw"``.

    All other arguments, the result and errors are as in `adamw_step`. Like `torch.optim.Muon`; Jordan et
    al., 2024.

    >>> p, g = torch.zeros(2, 2), torch.tensor([[0.0, 3.0], [-3.0, 0.0]])
    >>> result = muon_step([p], [g], [torch.zeros(2, 2)], lr=1.0)
    >>> p.sign()
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    request = Request("muon_step", grad_scale, max_norm, ema, ema_decay, candidate)
    request.check_numbers(lr=lr, momentum=momentum, weight_decay=weight_decay)
    if adjust_lr_fn is not None and adjust_lr_fn not in LR_ADJUSTMENTS:
        request.reject("adjust_lr_fn", ", ".join(map(repr, LR_ADJUSTMENTS)), repr(adjust_lr_fn))
    if not 0 <= ns_steps < 100:
        request.reject("ns_steps", "a number from 0 to 99", str(ns_steps))
    for i, p in enumerate(params):
        if p.dim() != 2:
            raise InputRuntimeError(
                "muon_step supports only matrices",
                where=request.where,
                expected=f"params[{i}]: [rows, columns]",
                found=describe(p),
                hint="use AdamW for other parameters, and for embeddings",
            )
    rates = [lr * _lr_factor(p, adjust_lr_fn) for p in params]

    def orthogonalize_update(update: Tensor) -> Tensor:
        return orthogonalized(update, ns_coefficients, ns_steps, eps) if update.numel() else update

    def burnt_step(passes: Passes, grads: Sequence[Tensor]) -> None:
        if passes.is_skipped(wait=False):
            return
        updates = [torch.zeros_like(p) for p in params]
        passes.apply_update(
            MOMENTUM,
            {"update": updates, "grad": grads, "momentum_buffer": momentum_buffers},
            {"momentum": float(momentum), "nesterov": nesterov},
            {},
        )
        for i, (update, p) in enumerate(zip(updates, params, strict=True)):
            updates[i] = torch.empty_like(p).copy_(orthogonalize_update(update))
        elements = request.with_ema({"param": params, "update": updates})
        options = {"lr": float(lr), "weight_decay": float(weight_decay), "ema_weight": 1.0 - ema_decay}
        passes.apply_update(MUON, elements, options, {"rate": rates})

    def torch_step(grads: list[Tensor]) -> None:
        for p, gradient, buffer, rate in zip(params, grads, momentum_buffers, rates, strict=True):
            buffer.lerp_(gradient, 1 - momentum)
            update = orthogonalize_update(gradient.lerp(buffer, momentum) if nesterov else buffer)
            p.mul_(1 - lr * weight_decay).add_(update.to(p.dtype), alpha=-rate)

    return run_step(request, params, grads, {"momentum_buffer": momentum_buffers}, burnt_step, torch_step)


def _lr_factor(matrix: Tensor, kind: str | None) -> float:
    rows, columns = matrix.shape
    if kind == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / max(columns, 1)))
