"""Lion."""

from __future__ import annotations

from burnt.kernels.optim.updates import LION
from burnt.optim.optimizer import Optimizer


class Lion(Optimizer):
    """Lion: the sign of the momentum; one state tensor per parameter.

    With g the gradient, m the momentum and b the betas::

        p = p (1 - lr weight_decay) - lr sign(b1 m + (1 - b1) g)
        m = b2 m + (1 - b2) g

    As all elements move by the learning rate, it is 3 to 10 times smaller than for AdamW, and the weight
    decay as much larger.

    Args:
        betas: the weight of the momentum in the update, and its decay.
        weight_decay: this times the learning rate is the fraction subtracted from the parameter.

    Chen et al., 2023. torch and Burn lack it.

    >>> Lion(weight_decay=0.1)
    Lion(betas=(0.9, 0.99), weight_decay=0.1)
    """

    _update = LION
    _state_names = ("exp_avg",)

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
