"""A step of Muon over lists of matrices, and the Newton-Schulz iteration that it goes by.

Two updates of burnt's passes, with matrix products between them: the momentum and what is to be made
orthogonal, and the parameters, their decay and their averages.
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
from burnt.kernels.optim.foreach import Passes, check, stepped
from burnt.kernels.optim.foreach_c import MOMENTUM, MUON
from burnt.kernels.optim.request import Request, StepResult

__all__ = ["COEFFICIENTS", "RATES", "muon_step", "orthogonalized"]

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of K. Jordan: as steep at zero as can be, at the price of singular values between 0.7 and 1.2, not 1."""
RATES = ("original", "match_rms_adamw")
"""How a rate follows from a matrix's sides: Jordan's, and that of Liu et al., 2025, for AdamW's rates."""


def orthogonalized(
    matrix: Tensor,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    steps: int = 5,
    eps: float = 1e-7,
) -> Tensor:
    """About the nearest matrix with orthonormal rows or columns, by a Newton-Schulz iteration of degree 5.

    Args:
        matrix: ``[rows, columns]``, of a floating-point dtype.
        coefficients: of the first, third and fifth power.
        steps: of the iteration.
        eps: the least that the matrix is divided by, to have singular values of at most 1.

    Returns:
        ``[rows, columns]``, bfloat16; float32 on a CPU that has no instructions for bfloat16.

    >>> orthogonalized(torch.diag(torch.tensor([3.0, 0.5])), steps=6).float().diag() > 0.6
    tensor([True, True])
    """
    a, b, c = coefficients
    wide = matrix.is_cpu and torch.bfloat16 not in processor().onednn
    x = matrix.to(torch.float32 if wide else torch.bfloat16)
    tall = x.shape[0] > x.shape[1]
    x = x.t() if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        square = matmul(x, x.t())
        # Sums within the products: in bfloat16 they are rounded once.
        polynomial = torch.addmm(square, square, square, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    return x.t() if tall else x


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
    """A step of Muon on lists of matrices, in place, with what goes around it.

    Args:
        params: ``[rows, columns]`` each; as `adamw_step`, and so are the arguments that are not named here.
        grads: left as they are.
        momentum_buffers: running means of the gradients, zeros at first.
        lr: the learning rate, which is adjusted to a matrix's sides.
        weight_decay: share of the parameter that is taken off, times `lr`.
        momentum: decay of the running mean.
        nesterov: look ahead along the momentum.
        ns_coefficients: of the iteration (`orthogonalized`).
        eps: the least that a matrix is divided by.
        ns_steps: of the iteration, fewer than 100.
        adjust_lr_fn: ``"original"`` (also None) or ``"match_rms_adamw"``.
        grad_scale: what the loss was multiplied by.
        max_norm: limit of the global norm.
        ema: averages of the parameters.
        ema_decay: the share that an average keeps.
        candidate: the one that must be taken.

    Returns:
        As `adamw_step`, and so are the errors raised.

    Jordan et al., 2024, as `torch.optim.Muon`.

    >>> p, g = torch.zeros(2, 2), torch.tensor([[0.0, 3.0], [-3.0, 0.0]])
    >>> result = muon_step([p], [g], [torch.zeros(2, 2)], lr=1.0)
    >>> p.sign()
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    request = Request("muon_step", grad_scale, max_norm, ema, ema_decay, candidate)
    request.check_numbers(lr=lr, momentum=momentum, weight_decay=weight_decay)
    where = "burnt.kernels.muon_step"
    if adjust_lr_fn is not None and adjust_lr_fn not in RATES:
        raise InputValueError(
            "muon_step knows no such adjustment of rates",
            where=where,
            expected=", ".join(map(repr, RATES)),
            found=repr(adjust_lr_fn),
        )
    if not 0 <= ns_steps < 100:
        raise InputValueError(
            "muon_step takes no such number of steps of the iteration",
            where=where,
            expected="fewer than 100",
            found=str(ns_steps),
        )
    check(request, params, grads=grads, momentum_buffers=momentum_buffers)
    for i, p in enumerate(params):
        if p.dim() != 2:
            raise InputRuntimeError(
                "Muon is for matrices",
                where=where,
                expected=f"params[{i}]: [rows, columns]",
                found=describe(p),
                hint="step what is no matrix, and embeddings, by AdamW",
            )
    rates = [lr * _adjustment(p, adjust_lr_fn) for p in params]

    def direction(update: Tensor) -> Tensor:
        return orthogonalized(update, ns_coefficients, ns_steps, eps) if update.numel() else update

    def ours(passes: Passes, grads: Sequence[Tensor]) -> None:
        if passes.skips(wait=False):
            return
        updates = [torch.zeros_like(p) for p in params]
        options = [("NESTEROV", int(nesterov))]
        passes.advance(MOMENTUM, [updates, grads, momentum_buffers], [momentum], options)
        for i, (update, p) in enumerate(zip(updates, params, strict=True)):
            updates[i] = torch.empty_like(p).copy_(direction(update))
        numbers = [1 - lr * weight_decay, 1 - ema_decay]
        passes.advance(MUON, [params, updates, ema], numbers, extras=rates)

    def torchs(grads: list[Tensor]) -> None:
        for p, gradient, buffer, rate in zip(params, grads, momentum_buffers, rates, strict=True):
            buffer.lerp_(gradient, 1 - momentum)
            update = direction(gradient.lerp(buffer, momentum) if nesterov else buffer)
            p.mul_(1 - lr * weight_decay).add_(update.to(p.dtype), alpha=-rate)

    return stepped(request, params, grads, [momentum_buffers], ours, torchs)


def _adjustment(matrix: Tensor, kind: str | None) -> float:
    rows, columns = matrix.shape
    if kind == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / max(columns, 1)))
