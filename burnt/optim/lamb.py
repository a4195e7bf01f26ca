"""Lamb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.kernels import StepResult
from burnt.kernels.optim.lamb import lamb_step
from burnt.optim.optimizer import Optimizer, zero


class Lamb(Optimizer):
    """Lamb: AdamW whose update of each parameter tensor is scaled to the tensor's norm, for large batches.

    With u Adam's update plus weight_decay p, the step is p = p - lr u |p| / |u|; the ratio is 1 where a norm
    is 0.

    Args:
        betas: decay of the running means of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: this times the parameter is added to the update.

    Raises:
        OptimError: an option is invalid or, at a step, a gradient is sparse or a parameter complex.

    You et al., 2020, with the norms as they are (their phi is the identity). torch and Burn lack it.

    >>> Lamb(weight_decay=0.01)
    Lamb(betas=(0.9, 0.999), eps=1e-06, weight_decay=0.01)
    """

    def __init__(
        self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.0
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay)

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        means = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": zero(parameter)} | means

    def _advance(
        self,
        lr: float,
        params: Sequence[torch.nn.Parameter],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        limits: Mapping[str, Any],
    ) -> StepResult:
        first, second, steps = ([s[name] for s in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        return lamb_step(params, grads, first, second, steps, lr=lr, **self._options, **limits)
