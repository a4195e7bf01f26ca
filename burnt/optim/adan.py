"""Adan."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.kernels.optim.updates import ADAN
from burnt.optim.optimizer import Optimizer, zero


class Adan(Optimizer):
    """Adan: Adam with Nesterov momentum by differences of gradients.

    With g the gradient, d its difference to the one of the step before (0 at the first), and b the betas::

        m = b1 m + (1 - b1) g
        v = b2 v + (1 - b2) d
        n = b3 n + (1 - b3) (g + b2 d)^2
        p = (p - lr (m + b2 v) / (sqrt(n) + eps)) / (1 + lr weight_decay)

    where the means are divided by 1 - b^step. Takes learning rates 5 to 10 times those of Adam.

    Args:
        betas: decay of the running means of the gradient, of its difference and of its square: 1 minus those
            of the paper.
        eps: added to the denominator.
        weight_decay: decoupled.
        no_prox: multiply the parameter by ``1 - lr * weight_decay`` before the update, instead of dividing it
            by ``1 + lr * weight_decay`` after it.

    Raises:
        OptimError: an option is invalid or, at a step, a gradient is sparse or a parameter complex.

    Xie et al., 2022; Burn's Adan.

    >>> Adan()
    Adan(betas=(0.98, 0.92, 0.99), eps=1e-08, weight_decay=0.0, no_prox=False)
    """

    _update = ADAN

    def __init__(
        self,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        no_prox: bool = False,
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay, no_prox=no_prox)

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        names = ("exp_avg", "exp_avg_sq", "exp_avg_diff", "previous_grad")
        return {"step": zero(parameter)} | {name: torch.zeros_like(parameter) for name in names}
