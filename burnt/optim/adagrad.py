"""Adagrad and what followed it: Adadelta, RMSProp, Adafactor."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.kernels import StepResult
from burnt.kernels.optim.formula import ADADELTA, ADAGRAD, RMS_PROP
from burnt.kernels.optim.steps import adafactor_step
from burnt.optim.optimizer import Optimizer, StepInputs, zero


class Adagrad(Optimizer):
    """Adagrad: gradients divided by the root of the sum of their squares. It takes sparse gradients.

    Args:
        lr_decay: the learning rate is divided by 1 plus this times the number of steps.
        weight_decay: this times the parameter is added to the gradient.
        initial_accumulator_value: where the sums of squares begin.
        eps: added to the denominator. Burn's default is 1e-5.

    Duchi, Hazan and Singer, 2011; same as :class:`torch.optim.Adagrad`; Burn's AdaGrad.

    >>> Adagrad(lr_decay=0.01)
    Adagrad(lr_decay=0.01, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10)
    """

    _torch = torch.optim.Adagrad
    _update = ADAGRAD

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        start = self._options["initial_accumulator_value"]
        value = complex(start, start) if parameter.is_complex() else start
        return {"step": zero(parameter), "sum": torch.full_like(parameter, value)}


class Adadelta(Optimizer):
    """Adadelta: gradients scaled by the ratio of running means of squared updates and of squared gradients.

    Args:
        rho: decay of the running means.
        eps: added to both running means.
        weight_decay: this times the parameter is added to the gradient.

    Zeiler, 2012; same as :class:`torch.optim.Adadelta`. The learning rate is usually 1.

    >>> Adadelta(rho=0.95)
    Adadelta(rho=0.95, eps=1e-06, weight_decay=0.0)
    """

    _torch = torch.optim.Adadelta
    _state_names = ("step", "square_avg", "acc_delta")
    _update = ADADELTA

    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0


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

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        names = ["grad_avg"] * self._options["centered"] + ["momentum_buffer"] * (
            self._options["momentum"] > 0
        )
        return super()._initial_state(parameter) | {name: torch.zeros_like(parameter) for name in names}


class Adafactor(Optimizer):
    """Adafactor: the second moments of a matrix are stored as one row and one column, without a first moment.

    The learning rate is relative to the root mean square of each parameter.

    Args:
        beta2_decay: the decay of the second moments is 1 minus the step to this power.
        eps: lower bounds of the second moments (None: the dtype's machine epsilon) and of the parameter's
            root mean square.
        d: updates are scaled down to this root mean square.
        weight_decay: this times the learning rate is the fraction subtracted from the parameter.

    Shazeer and Stern, 2018; same as :class:`torch.optim.Adafactor`. Burn lacks it.

    >>> Adafactor()
    Adafactor(beta2_decay=-0.8, eps=(None, 0.001), d=1.0, weight_decay=0.0)
    """

    is_elementwise = False
    _torch = torch.optim.Adafactor
    _shape = (0, 0)

    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0

    def _needed_state(self, saved: set[str]) -> set[str]:
        return saved | {"step"}  # the rest depends on the shapes

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        if parameter.dim() < 2:
            return {"step": zero(parameter), "variance": torch.zeros_like(parameter)}
        row, column = parameter[..., :1], parameter[..., :1, :]
        return {
            "step": zero(parameter),
            "row_var": torch.zeros_like(row, memory_format=torch.contiguous_format),
            "col_var": torch.zeros_like(column, memory_format=torch.contiguous_format),
        }

    def _advance(self, inputs: StepInputs) -> StepResult:
        rows, columns, variances, steps = inputs.state("row_var", "col_var", "variance", "step")
        return adafactor_step(
            inputs.params, inputs.grads, rows, columns, variances, steps, **self._options, **inputs.settings
        )
