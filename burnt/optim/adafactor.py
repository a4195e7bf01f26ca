"""Adafactor."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.kernels import StepResult
from burnt.kernels.optim.adafactor import adafactor_step
from burnt.optim.optimizer import Optimizer, StepInputs, zero


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
