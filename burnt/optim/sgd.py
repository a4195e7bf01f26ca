"""Stochastic gradient descent."""

from __future__ import annotations

import torch

from burnt.kernels import StepResult, sgd_step
from burnt.optim.optimizer import Optimizer, StepInputs


class Sgd(Optimizer):
    """Stochastic gradient descent, optionally with momentum.

    Args:
        momentum: decay of the running mean of gradients; 0 for none.
        dampening: the fraction of a new gradient that is not added to the momentum.
        weight_decay: this times the parameter is added to the gradient.
        nesterov: use Nesterov momentum.

    Same as :class:`torch.optim.SGD`.

    >>> Sgd(momentum=0.9, nesterov=True)
    Sgd(momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=True)
    """

    _torch = torch.optim.SGD

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def _advance(self, inputs: StepInputs) -> StepResult:
        (buffers,) = inputs.state("momentum_buffer")
        result = sgd_step(inputs.params, inputs.grads, buffers, **self._options, **inputs.settings)
        if self._options["momentum"]:
            for state, buffer in zip(inputs.states, buffers, strict=True):
                if buffer is not None:
                    state["momentum_buffer"] = buffer
        return result
