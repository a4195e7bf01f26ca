"""Optimizers that use only momentum: SGD, Lion, Muon."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from burnt.errors import OptimError
from burnt.kernels import StepResult, muon_step, sgd_step
from burnt.kernels.optim.formula import LION
from burnt.kernels.optim.steps import COEFFICIENTS
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


class Muon(Optimizer):
    """Muon: orthogonalised momentum, for the weight matrices inside a network.

    Use another optimizer, such as AdamW, for biases, norms and embeddings.

    Args:
        weight_decay: this times the learning rate is the fraction subtracted from the parameter.
        momentum: decay of the running mean of gradients.
        nesterov: use Nesterov momentum.
        ns_coefficients: the coefficients of the Newton-Schulz iteration.
        eps: the smallest divisor when a matrix is normalised.
        ns_steps: the number of Newton-Schulz iterations.
        adjust_lr_fn: how the rate is scaled by a matrix's shape: ``"original"`` (also None), or
            ``"match_rms_adamw"`` for rates that suit AdamW.

    Raises:
        OptimError: an option is invalid or, at a step, a parameter of the model is not a matrix.

    Jordan et al., 2024; as :class:`torch.optim.Muon`.

    >>> Muon(momentum=0.9).into_record().options["ns_steps"]
    5
    """

    is_elementwise = False
    _torch = torch.optim.Muon
    _state_names = ("momentum_buffer",)
    _shape = (0, 0)

    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None

    def _check_params(self, params: Mapping[str, torch.nn.Parameter]) -> None:
        path = next((path for path, p in params.items() if p.dim() != 2), None)
        if path is not None:
            raise OptimError(
                "Muon cannot step this model",
                where=path,
                expected="matrices only",
                found=f"a parameter of shape {tuple(params[path].shape)}",
                hint='optim.Groups([(optim.matrices, optim.Muon(), 0.02), ("*", optim.AdamW())])',
            )

    def _advance(self, inputs: StepInputs) -> StepResult:
        (buffers,) = inputs.state("momentum_buffer")
        return muon_step(inputs.params, inputs.grads, buffers, **self._options, **inputs.settings)
