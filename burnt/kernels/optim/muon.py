"""Muon steps over lists of matrices (`muon_step`), and the Newton-Schulz iteration (`orthogonalized`).

A step is two passes over memory with the iteration's matmuls in between: the first updates the momentum and
returns the matrices to orthogonalize, the second updates the parameters and their averages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from burnt.device import processor
from burnt.errors import InputRuntimeError, InputValueError
from burnt.kernels.interface.checks import describe
from burnt.kernels.ops.matmul import matmul
from burnt.kernels.optim.foreach import Passes, check_lists, run_step
from burnt.kernels.optim.request import Request, StepResult
from burnt.kernels.optim.updates import MOMENTUM, MUON

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

    All other arguments, the result and errors are those of `adamw_step`. Like `torch.optim.Muon`; Jordan et
    al., 2024.

    >>> p, g = torch.zeros(2, 2), torch.tensor([[0.0, 3.0], [-3.0, 0.0]])
    >>> result = muon_step([p], [g], [torch.zeros(2, 2)], lr=1.0)
    >>> p.sign()
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    request = Request("muon_step", grad_scale, max_norm, ema, ema_decay, candidate)
    request.check_numbers(lr=lr, momentum=momentum, weight_decay=weight_decay)
    where = "burnt.kernels.muon_step"
    if adjust_lr_fn is not None and adjust_lr_fn not in LR_ADJUSTMENTS:
        raise InputValueError(
            "muon_step does not support this adjust_lr_fn",
            where=where,
            expected=", ".join(map(repr, LR_ADJUSTMENTS)),
            found=repr(adjust_lr_fn),
        )
    if not 0 <= ns_steps < 100:
        raise InputValueError(
            "ns_steps of muon_step is out of range",
            where=where,
            expected="a number from 0 to 99",
            found=str(ns_steps),
        )
    check_lists(request, params, grads=grads, momentum_buffers=momentum_buffers)
    for i, p in enumerate(params):
        if p.dim() != 2:
            raise InputRuntimeError(
                "muon_step supports only matrices",
                where=where,
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

    return run_step(request, params, grads, [momentum_buffers], burnt_step, torch_step)


def _lr_factor(matrix: Tensor, kind: str | None) -> float:
    rows, columns = matrix.shape
    if kind == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / max(columns, 1)))
