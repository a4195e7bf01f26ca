"""Lamb steps over lists of tensors: two passes over memory, with the norms of each tensor in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.kernels.optim.foreach import Passes, check_lists, check_steps, run_step, tensor_norms
from burnt.kernels.optim.formula import apply_eagerly, wide_dtype
from burnt.kernels.optim.request import Request, StepResult
from burnt.kernels.optim.steps import number_options
from burnt.kernels.optim.updates import LAMB, LAMB_DIRECTION


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
    check_lists(request, params, grads=grads, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs)
    check_steps(request, params, steps)
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

    return run_step(request, params, grads, list(states.values()), burnt_step, torch_step, steps=steps)


def _trust_ratios(params: Sequence[Tensor], updates: Sequence[Tensor]) -> list[Tensor]:
    """Return each parameter's norm divided by that of its update; 1 if one of them is 0."""
    of_params, of_updates = tensor_norms([*params, *updates]).view(2, -1)
    ratios = torch.where(of_params * of_updates > 0, of_params / of_updates, 1.0)
    return list(ratios.to(wide_dtype(ratios.device)).unbind())
