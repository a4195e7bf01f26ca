"""OptimizerStep: applies gradients by an optimizer, whatever of clipping and scaling it supports itself."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from burnt.gradients import Gradients
from burnt.kernels import StepResult
from burnt.optim import Optimizer
from burnt.train.updates.loss_scale import LossScale


@dataclasses.dataclass(frozen=True)
class GradientRules:
    """What a training does with gradients between the backward pass and the optimizer.

    `on_gradients` may look at the unscaled gradients before they are clipped, and replace them.
    """

    clip_norm: float | None = None
    clip_value: float | None = None  # of each element, before the norm is clipped
    log_norm: bool = False  # measure the norm although it is not clipped
    loss_scale: LossScale | None = None
    skip_non_finite: bool = False  # change nothing in a step whose gradients are not finite
    on_gradients: Callable[[Gradients], Gradients] | None = None

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return loss if self.loss_scale is None else loss * self.loss_scale.value

    @property
    def norm_limit(self) -> float | None:
        """The norm to clip to; infinite if it is only measured, None if neither."""
        return math.inf if self.clip_norm is None and self.log_norm else self.clip_norm


class OptimizerStep:
    """Clips gradients, checks them and steps the optimizer, which does itself what its `step` accepts."""

    def __init__(
        self, optimizer: Optimizer, params: Mapping[str, torch.nn.Parameter], rules: GradientRules
    ) -> None:
        self.optimizer = optimizer
        self.params = params
        self._rules = rules
        # A user's optimizer may not accept the optional arguments.
        accepted = inspect.signature(optimizer.step).parameters
        self._accepts = {name for name in ("clip_norm", "grad_scale") if name in accepted}
        self._is_plain = rules == GradientRules()

    def __call__(
        self,
        learning_rate: float,
        gradients: Gradients,
        *,
        clip_norm: float | None = None,
        is_scaled: bool = True,
    ) -> StepResult | None:
        """Update the parameters once, unless a gradient is not finite and the training skips such steps.

        `clip_norm` replaces the training's. `is_scaled` says whether the gradients are those of the scaled
        loss. Returns what the optimizer returned: None for a user's optimizer that returns nothing.
        """
        if self._is_plain and clip_norm is None:
            return self.optimizer.step(learning_rate, self.params, gradients)
        rules = self._rules
        scale: float | Tensor | None = 1.0 if rules.skip_non_finite else None
        if rules.loss_scale is not None:
            scale = rules.loss_scale.value if is_scaled else 1.0
        if rules.on_gradients is not None:
            if isinstance(scale, Tensor):
                gradients, scale = gradients.scale(1 / scale), 1.0
            gradients = rules.on_gradients(gradients)
        limit = rules.norm_limit if clip_norm is None else clip_norm
        options: dict[str, Any] = {}
        if limit is not None:
            options["clip_norm"] = limit
        if scale is not None:
            options["grad_scale"] = scale
        # Infinite elements must be found before they are clipped to finite ones.
        if not options.keys() <= self._accepts or (rules.clip_value is not None and scale is not None):
            return self._step_by_hand(learning_rate, gradients, limit, scale)
        if rules.clip_value is not None:
            gradients = gradients.clip_value(rules.clip_value)
        return self.optimizer.step(learning_rate, self.params, gradients, **options)

    def search(self, learning_rate: float, evaluate: Callable[[], tuple[Tensor, Gradients]]) -> StepResult:
        """Step an optimizer that evaluates loss and gradients several times, such as `optim.Lbfgs`."""
        rules = self._rules

        def closure() -> tuple[Tensor, Gradients]:
            loss, gradients = evaluate()
            if gradients and rules.on_gradients is not None:
                gradients = rules.on_gradients(gradients)
            if gradients and rules.clip_value is not None:
                gradients = gradients.clip_value(rules.clip_value)
            return loss, gradients

        return self.optimizer.step_with(learning_rate, self.params, closure, clip_norm=rules.norm_limit)

    def _step_by_hand(
        self, learning_rate: float, gradients: Gradients, limit: float | None, scale: float | Tensor | None
    ) -> StepResult:
        """Unscale, clip and skip before the optimizer's own step. Waits for the device if it may skip."""
        norm, by = None, "torch"
        if scale is not None:
            gradients = gradients.scale(1 / scale)
            if not gradients.finite():
                return StepResult(gradients.norm(), torch.tensor(True), by)
        if self._rules.clip_value is not None:
            gradients = gradients.clip_value(self._rules.clip_value)
        if limit is not None:
            norm = gradients.norm()
            if limit != math.inf:
                gradients = gradients.clip_norm(limit)
        result = self.optimizer.step(learning_rate, self.params, gradients)
        return StepResult(norm, torch.tensor(False), by if result is None else result.by)
