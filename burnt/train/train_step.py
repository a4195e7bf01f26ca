"""TrainStep: one step of a training, from a window of micro-batches to one update of the parameters."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnt.data import Mover
from burnt.gradients import Gradients
from burnt.train.learner import Learner, Steps
from burnt.train.placement import device_types
from burnt.train.step import StepOutput
from burnt.train.updates.manual import Optimizers, StepOptimizers
from burnt.train.updates.optimizer_step import GradientRules, OptimizerStep, WindowGradients
from burnt.train.updates.outcome import NonFinite, StepOutcomes
from burnt.train.updates.precision import autocast

if TYPE_CHECKING:
    from burnt.train.ranks.ranks import Ranks

Observe = Callable[[Any, StepOutput, bool], None]
"""Is given a micro-batch on the device, its output, and whether it counts: not if its loss is not finite."""


class TrainStep:
    """One step of a training: a window of micro-batches becomes one update of the parameters.

    `rules` say what happens to gradients before the optimizer gets them.
    """

    def __init__(
        self,
        learner: Learner,
        steps: Steps,
        rules: GradientRules,
        precision: str,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> None:
        self.steps, self.rules, self.ranks = steps, rules, ranks
        self.params = dict(learner.model.named_parameters()) if ranks is None else ranks.params(learner.model)
        self.to_device: Callable[[Any], Any] = _unchanged if device.type == "cpu" else Mover(device)
        if ranks is not None:
            self.to_device = ranks.taking(self.to_device)
        self.autocast = functools.partial(autocast, precision, *device_types(learner.model))
        agreed = None if ranks is None else ranks.first_non_finite
        self.outcomes = StepOutcomes(learner.model, rules, agreed)
        total_norm = None if ranks is None else ranks.total_norm
        self.clip_and_step = OptimizerStep(learner.optimizer, self.params, rules, total_norm)
        self.is_search = learner.optimizer.needs_closure
        self.optimizers: StepOptimizers | None = None
        if isinstance(learner.optimizer, Optimizers):
            self.optimizers = StepOptimizers(learner.optimizer, learner.model, rules, ranks=ranks)

    def __call__(self, window: Sequence[Any], learning_rate: float, observe: Observe) -> NonFinite | None:
        """Update the parameters once, by the gradients of the mean loss over a window of micro-batches.

        A window without items changes nothing, and neither does one whose loss or gradients are not finite if
        the rules skip such steps: then the reason is returned. `observe` is given the output of each
        micro-batch, computed with the parameters before the step.
        """
        self.outcomes.begin_step()
        if self.optimizers is not None:  # several: the training step takes gradients and steps them itself
            self.optimizers.begin_step(learning_rate)
            self.forward_backward(window, observe)
            results = self.optimizers.end_step()
        elif self.is_search:  # such as Lbfgs, which repeats both passes
            if self.ranks is None:  # once, for all evaluations
                window = [self.to_device(batch) for batch in window]
            evaluate = self.mean_loss(window, observe)
            results = [("", self.clip_and_step.search(learning_rate, evaluate))]
        else:
            gradients = self.forward_backward(window, observe)
            results = []
            if gradients is not None and self.outcomes.non_finite is None:
                results = [("", self.clip_and_step(learning_rate, gradients))]
        return self.outcomes.end_step(results)

    def forward_backward(self, window: Sequence[Any], observe: Observe) -> Gradients | None:
        """Return the gradients of the mean loss over all items of the window; None if there are no items."""
        gradients = WindowGradients()
        if self.ranks is not None:
            self.ranks.begin_step(len(window), self.params)
        extra = () if self.optimizers is None else (self.optimizers,)
        for number, batch in enumerate(window):
            batch = self.to_device(batch)  # only now, so that the device holds one of them
            with self.autocast():
                output: StepOutput = self.steps(batch, False, *extra)
            if self.ranks is not None and self.ranks.is_stand_in:
                output.count = 0
            is_finite = self.outcomes.accepts(output, number)
            # The mean over no items is NaN, and adds nothing to a sum; a step that is skipped needs no sum.
            if self.ranks is not None and self.ranks.is_joint and self.optimizers is None:
                self.ranks.add_joint(gradients, self.rules.scaled(output.loss), output, self.params)
            elif output.count and self.outcomes.non_finite is None and self.optimizers is None:
                if self.ranks is not None:
                    self.ranks.begin_backward(output.count)
                gradients.add(Gradients.of(self.rules.scaled(output.loss), self.params), output.count)
            observe(batch, output, is_finite)
            del batch, output  # free this batch's outputs before the next one allocates its own
        if self.ranks is not None:
            return self.ranks.mean(gradients, self.params, self.outcomes)
        return gradients.mean()

    def mean_loss(self, window: Sequence[Any], observe: Observe) -> Callable[[], tuple[Tensor, Gradients]]:
        """Return a function that computes the mean loss over the window and its gradients, any time again."""
        observers = itertools.chain([observe], itertools.repeat(_ignore))

        def evaluate() -> tuple[Tensor, Gradients]:
            losses: list[tuple[Tensor, int]] = []
            first = next(observers)  # the metrics are of the parameters before the step

            def look(batch: Any, output: StepOutput, counts: bool) -> None:
                if output.count:
                    losses.append((output.loss.detach(), output.count))
                first(batch, output, counts)

            with torch.enable_grad():
                gradients = self.forward_backward(window, look)
            if gradients is None:
                return torch.zeros(()), Gradients({})
            if self.ranks is not None:
                return self.ranks.mean_loss(losses), gradients
            if len(losses) == 1:
                return losses[0][0], gradients
            total = torch.stack([loss * count for loss, count in losses]).sum()
            return total / sum(count for _, count in losses), gradients

        return evaluate


def _ignore(batch: Any, output: StepOutput, counts: bool) -> None:
    """Observe nothing."""


def _unchanged(batch: Any) -> Any:
    return batch
