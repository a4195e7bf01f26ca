"""Schedule-free AdamW."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.errors import OptimError
from burnt.kernels import StepResult
from burnt.kernels.optim.formula import wide_dtype
from burnt.kernels.optim.updates import SCHEDULE_FREE_ADAMW
from burnt.optim.optimizer import Model, Optimizer, StepInputs, zero


class ScheduleFreeAdamW(Optimizer):
    """AdamW that averages its parameters instead of lowering the learning rate, which stays constant.

    Gradients are taken at y, between the parameters z that are stepped and their average x. With g the
    gradient at y and r = lr sqrt(1 - b2^step) min(1, step / warmup_steps)::

        v = b2 v + (1 - b2) g^2
        z = z - r (g / (sqrt(v) + eps) + weight_decay y)
        x = (1 - c) x + c z         with c = r^2 / (sum of r^2 so far)
        y = (1 - b1) z + b1 x

    The model has the parameters y for training, and x for evaluation: `eval` exchanges them in place, and
    `train` exchanges them back, without rounding. A `Learner` calls both.

    Args:
        betas: the weight of the average in y, and the decay of the running mean of the squared gradient.
        eps: added to the denominator.
        weight_decay: this times the learning rate times y is subtracted from z.
        warmup_steps: the number of steps over which the learning rate rises linearly from 0.

    Raises:
        OptimError: an option is invalid or, at a step, a gradient is sparse, a parameter complex, or the
            model in evaluation.

    Defazio et al., 2024, "The Road Less Scheduled", algorithm 1. The authors' code computes x from y and z,
    which saves a tensor, and weighs by the largest rate so far. torch and Burn lack it.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = ScheduleFreeAdamW(warmup_steps=100)
    >>> result = optimizer.step(2.5e-3, model, {"weight": torch.ones(1, 2)})
    >>> optimizer.eval(model)  # validate, save
    >>> optimizer.train(model)
    """

    _update = SCHEDULE_FREE_ADAMW

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0

    def train(self, model: Model) -> None:
        """Put the parameters y in place, where gradients are computed."""
        self._exchange(model, "y", "x")

    def eval(self, model: Model) -> None:
        """Put the averages x in place; the state holds y until `train`."""
        self._exchange(model, "x", "y")

    @torch.no_grad()
    def _exchange(self, model: Model, stored: str, replaced: str) -> None:
        self._bind_model(model)
        for path, state in self._state.items():
            if stored in state:
                parameter, value = self._params[path], state.pop(stored)
                state[replaced] = parameter.detach().clone()
                parameter.copy_(value)

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {
            "step": zero(parameter),
            "weight_sum": zero(parameter).to(wide_dtype(parameter.device)),
            "exp_avg_sq": torch.zeros_like(parameter),
            "z": parameter.clone(),
            "x": parameter.clone(),
        }

    def _needed_state(self, saved: set[str]) -> set[str]:
        # Saved in evaluation, the model has x, and the state y.
        return super()._needed_state(saved) ^ ({"x", "y"} if "y" in saved else set())

    def _advance(self, inputs: StepInputs) -> StepResult:
        if any("y" in state for state in self._state.values()):
            raise OptimError(
                "ScheduleFreeAdamW cannot step a model in evaluation",
                expected="the parameters at which gradients are computed",
                found="their averages",
                hint="call optimizer.train(model) after optimizer.eval(model)",
            )
        return super()._advance(inputs)
