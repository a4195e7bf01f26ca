"""Variants of Adam: Adamax, NAdam, RAdam."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.kernels.optim.updates import ADAMAX, NADAM, RADAM
from burnt.optim.optimizer import Optimizer, zero


class Adamax(Optimizer):
    """Adam with the largest of past gradients, decayed, in place of the root of their mean square.

    Args:
        betas: decay of the running mean of the gradient, and of the running maximum of its absolute value.
        eps: added to the absolute value.
        weight_decay: this times the parameter is added to the gradient.

    Kingma and Ba, 2015, section 7.1; same as :class:`torch.optim.Adamax`.

    >>> Adamax()
    Adamax(betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0)
    """

    _torch = torch.optim.Adamax
    _update = ADAMAX

    def __init__(
        self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay)

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"step": zero(parameter)} | {
            name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_inf")
        }


class NAdam(Optimizer):
    """Adam with Nesterov momentum.

    Args:
        betas: decay of the running means of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: this times the parameter is added to the gradient.
        momentum_decay: how slowly the momentum approaches its final value.
        decoupled_weight_decay: subtract the weight decay from the parameter as in AdamW.

    Dozat, 2016; same as :class:`torch.optim.NAdam`.

    >>> NAdam(weight_decay=0.01, decoupled_weight_decay=True).into_record().options["momentum_decay"]
    0.004
    """

    _torch = torch.optim.NAdam
    _update = NADAM

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            momentum_decay=momentum_decay,
            decoupled_weight_decay=decoupled_weight_decay,
        )

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        means = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": zero(parameter), "mu_product": zero(parameter) + 1} | means


class RAdam(Optimizer):
    """Adam whose adaptive rate is rectified, and not used in the first steps, where its variance is large.

    Args:
        betas: decay of the running means of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: this times the parameter is added to the gradient.
        decoupled_weight_decay: subtract the weight decay from the parameter as in AdamW.

    Liu et al., 2020; same as :class:`torch.optim.RAdam`.

    >>> RAdam()
    RAdam(betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0, decoupled_weight_decay=False)
    """

    _torch = torch.optim.RAdam
    _update = RADAM

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
        )

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        means = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": zero(parameter)} | means
