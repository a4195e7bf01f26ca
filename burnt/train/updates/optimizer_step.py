"""From gradients to a step of an optimizer: accumulation, clipping and scaling."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from burnt.gradients import Gradients, summed_dtype
from burnt.kernels import StepResult
from burnt.optim import Optimizer
from burnt.train.updates.precision import LossScale


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
        return loss if self.loss_scale is None else loss * self.loss_scale.value.to(loss.device)

    @property
    def norm_limit(self) -> float | None:
        """The norm to clip to; infinite if it is only measured, None if neither."""
        return math.inf if self.clip_norm is None and self.log_norm else self.clip_norm


class OptimizerStep:
    """Clips gradients, checks them and steps the optimizer, which does itself what its `step` accepts."""

    def __init__(
        self,
        optimizer: Optimizer,
        params: Mapping[str, torch.nn.Parameter],
        rules: GradientRules,
        total_norm: Callable[[Gradients], Tensor] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.params = params
        self._rules = rules
        self._total_norm = total_norm  # where the gradients are parts of whole ones
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
        is_part = self._total_norm is not None
        if (
            is_part
            or not options.keys() <= self._accepts
            or (rules.clip_value is not None and scale is not None)
        ):
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
        norm_of = Gradients.norm if self._total_norm is None else self._total_norm
        if scale is not None:
            gradients = gradients.scale(1 / scale)
            is_finite = (
                gradients.finite() if self._total_norm is None else bool(norm_of(gradients).isfinite())
            )
            if not is_finite:
                return StepResult(norm_of(gradients), torch.tensor(True), by)
        if self._rules.clip_value is not None:
            gradients = gradients.clip_value(self._rules.clip_value)
        if limit is not None:
            norm = norm_of(gradients)
            if limit != math.inf:
                gradients = gradients.clip_norm(limit, norm)
        result = self.optimizer.step(learning_rate, self.params, gradients)
        return StepResult(norm, torch.tensor(False), by if result is None else result.by)


class WindowGradients:
    """The gradients of the mean loss over all items of a window, added up over its micro-batches.

    Each micro-batch's loss is the mean over its `count` items, so its gradients are weighted by that count.
    Sums of 16-bit gradients are in float32.

    >>> import torch
    >>> window = WindowGradients()
    >>> window.add(Gradients({"w": torch.tensor([1.0])}), count=3)
    >>> window.add(Gradients({"w": torch.tensor([5.0])}), count=1)
    >>> window.mean()["w"]
    tensor([2.])
    """

    def __init__(self) -> None:
        self._first: Gradients | None = None
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.count = 0

    def add(self, gradients: Gradients, count: int) -> None:
        """Add the gradients of a micro-batch's mean loss over `count` items, at least one."""
        if not self.count:
            self._first = gradients
        else:
            if self._first is not None:
                # Only now: the gradients of a single micro-batch are used as they are.
                self._add_weighted(self._first, self.count)
                self._first = None
            self._add_weighted(gradients, count)
        self.count += count

    def _add_weighted(self, gradients: Gradients, weight: int) -> None:
        sums, dense_sums, dense = self._sums, [], []
        for path, value in gradients.items():
            self._dtypes[path] = value.dtype
            value = value.to(summed_dtype(value.dtype))
            total = sums.get(path)
            if total is None:
                sums[path] = value * weight  # a copy: torch may return one tensor for two parameters
            elif value.is_sparse and total.is_sparse:
                sums[path] = torch.add(total, value, alpha=weight).coalesce()
            elif total.is_sparse:
                sums[path] = value * weight + total
            elif value.is_sparse:
                total.add_(value, alpha=weight)
            else:
                dense_sums.append(total)
                dense.append(value)
        if dense:
            torch._foreach_add_(dense_sums, dense, alpha=weight)

    def mean(self) -> Gradients | None:
        """Return the gradients of the mean loss; None of a window without items."""
        if self._first is not None or not self.count:
            return self._first
        return Gradients({path: (s / self.count).to(self._dtypes[path]) for path, s in self._sums.items()})
