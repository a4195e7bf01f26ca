"""Stochastic gradient descent."""

from __future__ import annotations

import torch

from burnt.optim.optimizer import Optimizer

__all__ = ["Sgd"]


class Sgd(Optimizer):
    """Stochastic gradient descent, with momentum if wanted.

    Args:
        momentum: decay of the running mean of gradients; 0 for none.
        dampening: share of a new gradient that is held back from the momentum.
        weight_decay: times the parameter, added to the gradient.
        nesterov: look ahead along the momentum.

    As :class:`torch.optim.SGD`.

    >>> Sgd(momentum=0.9, nesterov=True)
    Sgd(momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=True)
    """

    _torch = torch.optim.SGD

    def __init__(
        self,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)

    def _advance(self, inner: torch.optim.Optimizer) -> None:
        # torch's fused kernel wants the momentum of all parameters or of none, and a parameter whose first
        # gradient comes late has none yet; that one step is taken the plain way, as are sparse gradients.
        (group,) = inner.param_groups
        fused = group["fused"]
        moved = [p for p in group["params"] if p.grad is not None]
        if self._options["momentum"]:
            moving = [bool(inner.state.get(p)) for p in moved]
            group["fused"] = fused and (all(moving) or not any(moving))
        if any(p.grad.is_sparse for p in moved):
            group["fused"] = False
        inner.step()
        group["fused"] = fused
