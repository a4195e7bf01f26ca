"""Updates: how a window of micro-batches becomes one step of the optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from burnt.gradients import Gradients
from burnt.train.learner import Learner, Steps
from burnt.train.step import StepOutput

__all__ = ["GradientUpdate", "WindowGradients"]


class WindowGradients:
    """The gradients of the mean loss over all items of a window, added up from those of its micro-batches.

    Each micro-batch's loss is the mean over its `count` items, so its gradients are weighted by that count.
    Sums of 16-bit gradients are kept in float32.

    >>> import torch
    >>> window = WindowGradients()
    >>> window.add(Gradients({"w": torch.tensor([1.0])}), count=3)
    >>> window.add(Gradients({"w": torch.tensor([5.0])}), count=1)
    >>> window.mean()
    Gradients(w: (1,))
    >>> window.mean()["w"]
    tensor([2.])
    """

    def __init__(self) -> None:
        self._sums: Mapping[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._count = 0
        self._batches = 0

    def add(self, gradients: Gradients, count: int) -> None:
        """Add the gradients of a micro-batch's mean loss over `count` items."""
        self._batches += 1
        if self._batches == 1:
            self._sums, self._count = dict(gradients.items()), count
            return
        if self._batches == 2:
            # Only now: the gradients of a single micro-batch are used as they are.
            first, self._sums = self._sums, {}
            self._weigh_in(first, self._count)
        self._weigh_in(gradients, count)
        self._count += count

    def _weigh_in(self, gradients: Mapping[str, Tensor], count: int) -> None:
        if not count:  # the mean of no items is NaN, which a weight of 0 does not remove
            return
        sums = dict(self._sums)
        for path, value in gradients.items():
            self._dtypes[path] = value.dtype
            exact = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
            # Not in place: torch may return one tensor as the gradient of two parameters.
            sums[path] = torch.add(sums[path], exact, alpha=count) if path in sums else exact * count
        self._sums = sums

    def mean(self) -> Gradients:
        """Return the gradients of the mean loss."""
        if self._batches == 1:
            return Gradients(self._sums)
        return Gradients({path: (s / self._count).to(self._dtypes[path]) for path, s in self._sums.items()})


class GradientUpdate:
    """Steps the optimizer by the gradients of a window of micro-batches.

    Args:
        learner: the model, its optimizer and its steps.
        steps: runs the training step.
        clip_norm: maximum global norm of the gradients, or None.
        autocast: returns the context of a forward pass.
        on_gradients: may look at the gradients of a window, before they are clipped, and replace them.
    """

    def __init__(
        self,
        learner: Learner,
        steps: Steps,
        *,
        clip_norm: float | None,
        autocast: Callable[[], AbstractContextManager[object]],
        on_gradients: Callable[[Gradients], Gradients] | None = None,
    ) -> None:
        self._optimizer = learner.optimizer
        self._params = dict(learner.model.named_parameters())
        self._steps = steps
        self._clip_norm = clip_norm
        self._autocast = autocast
        self._on_gradients = on_gradients
        # A user's optimizer may not accept the optional argument clip_norm.
        self._step_clips_norm = "clip_norm" in inspect.signature(self._optimizer.step).parameters

    def __call__(
        self, window: Sequence[Any], learning_rate: float, observe: Callable[[StepOutput], None]
    ) -> None:
        """Update the parameters once.

        Args:
            window: the micro-batches, at least one.
            learning_rate: of this step.
            observe: is given the output of each micro-batch, computed with the parameters before the step.
        """
        if self._optimizer.needs_closure:
            self._step_with_closure(window, learning_rate, observe)
            return
        gradients = self._gradients(window, observe)
        if self._clip_norm is None:
            self._optimizer.step(learning_rate, self._params, gradients)
        elif self._step_clips_norm:
            self._optimizer.step(learning_rate, self._params, gradients, clip_norm=self._clip_norm)
        else:
            self._optimizer.step(learning_rate, self._params, gradients.clip_norm(self._clip_norm))

    def _gradients(self, window: Sequence[Any], observe: Callable[[StepOutput], None]) -> Gradients:
        total = WindowGradients()
        for batch in window:
            with self._autocast():
                output: StepOutput = self._steps(batch)
            total.add(Gradients.of(output.loss, self._params), output.count or 0)
            observe(output)
            del output  # free this batch's outputs before the next one allocates its own
        gradients = total.mean()
        return gradients if self._on_gradients is None else self._on_gradients(gradients)

    def _step_with_closure(
        self, window: Sequence[Any], learning_rate: float, observe: Callable[[StepOutput], None]
    ) -> None:
        is_first = True

        def closure() -> tuple[Tensor, Gradients]:
            nonlocal is_first
            losses: list[tuple[Tensor, int]] = []

            def look(output: StepOutput) -> None:
                losses.append((output.loss.detach(), output.count or 0))
                if is_first:  # the metrics are of the parameters before the step
                    observe(output)

            with torch.enable_grad():
                gradients = self._gradients(window, look)
            is_first = False
            if len(losses) == 1:
                return losses[0][0], gradients
            counted = [(loss, count) for loss, count in losses if count]
            return sum(loss * count for loss, count in counted) / sum(n for _, n in counted), gradients  # type: ignore[return-value]

        self._optimizer.step_with(learning_rate, self._params, closure, clip_norm=self._clip_norm)
