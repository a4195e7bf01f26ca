"""RMSProp."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.kernels.optim.updates import RMS_PROP
from burnt.optim.optimizer import Optimizer


class RmsProp(Optimizer):
    """RMSProp: gradients divided by the root of a running mean of their squares.

    Args:
        alpha: decay of the running mean.
        eps: added to the denominator.
        weight_decay: this times the parameter is added to the gradient.
        momentum: decay of the running sum of updates; 0 for none. Burn's default is 0.9.
        centered: subtract the square of the gradients' mean, which makes it a variance.

    Tieleman and Hinton, 2012; same as :class:`torch.optim.RMSprop`. Burn's `eps` is 1e-5.

    >>> RmsProp(momentum=0.9)
    RmsProp(alpha=0.99, eps=1e-08, weight_decay=0.0, momentum=0.9, centered=False)
    """

    _torch = torch.optim.RMSprop
    _state_names = ("step", "square_avg")
    _update = RMS_PROP

    def __init__(
        self,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered
        )

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        names = ["grad_avg"] * self._options["centered"] + ["momentum_buffer"] * (
            self._options["momentum"] > 0
        )
        return super()._initial_state(parameter) | {name: torch.zeros_like(parameter) for name in names}
