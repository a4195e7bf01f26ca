"""Updates: how a window of micro-batches becomes one step of the optimizer."""

from __future__ import annotations

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor

from burnt.gradients import Gradients
from burnt.kernels import StepResult
from burnt.train.learner import Learner, Steps
from burnt.train.manual import Optimizers, StepOptimizers
from burnt.train.optimizer_step import GradientRules, OptimizerStep
from burnt.train.step import StepOutput

__all__ = ["GradientUpdate", "ManualUpdate", "NonFinite", "Update", "WindowGradients", "update_of"]

Observe = Callable[[StepOutput], None]


class WindowGradients:
    """The gradients of the mean loss over all items of a window, added up from those of its micro-batches.

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
            value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
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

    def mean(self) -> Gradients:
        """Return the gradients of the mean loss, of a window with at least one item."""
        if self._first is not None:
            return self._first
        return Gradients({path: (s / self.count).to(self._dtypes[path]) for path, s in self._sums.items()})


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """Why a step changed nothing.

    Args:
        what: ``"the loss"`` or ``"a gradient"``.
        value: of the loss; NaN for a gradient.
        batches: the micro-batches that it may come from, by their place in the window.
    """

    what: str
    value: float
    batches: tuple[int, ...]


class Update:
    """One step of a training, from its window of micro-batches.

    Args:
        learner: the model, its optimizer and its steps.
        steps: runs the training step.
        rules: what happens to gradients before the optimizer gets them.
        autocast: returns the context of a forward pass.

    Attributes:
        non_finite: why the last step changed nothing; None unless the rules skip such steps.
        skipped: the number of such steps since the start of the run.
    """

    def __init__(
        self,
        learner: Learner,
        steps: Steps,
        rules: GradientRules,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.non_finite: NonFinite | None = None
        self.skipped = 0
        self._steps = steps
        self._rules = rules
        self._autocast = autocast
        self._buffers = dict(learner.model.named_buffers()) if rules.skip_non_finite else {}
        self._measures_norm = rules.log_norm or rules.clip_norm is not None
        self._norms: dict[str, list[Tensor]] = {}

    @abstractmethod
    def __call__(self, window: Iterable[Any], learning_rate: float, observe: Observe) -> None:
        """Update the parameters once.

        Args:
            window: the micro-batches, at least one.
            learning_rate: of this step.
            observe: is given the output of each micro-batch, computed with the parameters before the step;
                if the rules skip steps that are not finite, only those with a finite loss.
        """

    def readings(self) -> dict[str, float]:
        """Return what is logged of the steps since the last call; waits for the device.

        ``gradient_norm`` is the mean of the norms before clipping, over the steps in which it was finite.
        """
        scale = self._rules.loss_scale
        of_scale = [] if scale is None else [scale.value, scale.skipped]
        tensors = [norm for norms in self._norms.values() for norm in norms] + of_scale
        numbers = iter(torch.stack([t.float() for t in tensors]).tolist() if tensors else [])
        values = {}
        for name, norms in self._norms.items():
            finite = [norm for norm in itertools.islice(numbers, len(norms)) if math.isfinite(norm)]
            if finite:
                values["gradient_norm" + (f"/{name}" if name else "")] = math.fsum(finite) / len(finite)
        self._norms = {}
        if scale is not None:
            values |= {"loss_scale": next(numbers), "skipped_steps": next(numbers)}
        elif self._rules.skip_non_finite:
            values["skipped_steps"] = float(self.skipped)
        return values

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        scale = self._rules.loss_scale
        return {
            "skipped": self.skipped,
            "norms": {name: torch.stack(norms).tolist() for name, norms in self._norms.items()},
            **({} if scale is None else {"loss_scale": scale.state()}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint, which may have been saved with another precision."""
        self.skipped = state["skipped"]
        self._norms = {name: list(torch.tensor(norms)) for name, norms in state["norms"].items()}
        if self._rules.loss_scale is not None and "loss_scale" in state:
            self._rules.loss_scale.load_state(state["loss_scale"])

    def _forward(self, batch: Any, *extra: Any) -> StepOutput:
        with self._autocast():
            output: StepOutput = self._steps(batch, False, *extra)
        return output

    def _record(self, *results: tuple[str, StepResult | None]) -> None:
        """Keep what the optimizers returned, by name, for `readings`, and adapt the loss scale."""
        if self._measures_norm:
            for name, result in results:
                if result is not None and result.norm is not None:
                    self._norms.setdefault(name, []).append(result.norm)
        scale, skipped = self._rules.loss_scale, [r.skipped for _, r in results if r is not None]
        if scale is not None and skipped:
            scale.update(skipped[0] if len(skipped) == 1 else _any(skipped, scale.value.device))

    def _note_non_finite(self, buffers: Mapping[str, Tensor]) -> None:
        """Count the step if it was not finite, and restore what its forward passes have changed."""
        if self.non_finite is not None:
            self.skipped += 1
            for path, copy in buffers.items():
                self._buffers[path].copy_(copy)

    def _copy_buffers(self) -> dict[str, Tensor]:
        """Return copies of the buffers, such as running statistics, which forward passes change."""
        return {path: buffer.clone() for path, buffer in self._buffers.items()}


class GradientUpdate(Update):
    """Steps the optimizer by the gradients of the mean loss over a window of micro-batches.

    The arguments are those of `Update`.
    """

    def __init__(
        self,
        learner: Learner,
        steps: Steps,
        rules: GradientRules,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__(learner, steps, rules, autocast)
        self._params = dict(learner.model.named_parameters())
        self._optimizer = learner.optimizer
        self._step = OptimizerStep(learner.optimizer, self._params, rules)
        self._is_plain = rules == GradientRules()

    def __call__(self, window: Iterable[Any], learning_rate: float, observe: Observe) -> None:
        """Update the parameters once; see `Update`. A window without items changes nothing."""
        if self._optimizer.needs_closure:
            self._step_with_closure(list(window), learning_rate, observe)
            return
        if self._rules.skip_non_finite:
            self._step_if_finite(window, learning_rate, observe)
            return
        gradients = self._gradients(self._outputs(window), observe)
        if gradients is not None:
            result = self._step(learning_rate, gradients)
            if not self._is_plain:
                self._record(("", result))

    def _step_if_finite(self, window: Iterable[Any], learning_rate: float, observe: Observe) -> None:
        """Take the step unless a loss or gradient is not finite. Waits for the device."""
        buffers, scale = self._copy_buffers(), self._rules.loss_scale
        size, bad = 0, dict[int, float]()

        def finite_outputs() -> Iterator[StepOutput]:
            nonlocal size
            for output in self._outputs(window):
                if output.count and not math.isfinite(loss := float(output.loss.detach())):
                    bad[size] = loss
                else:
                    yield output
                del output  # see `_gradients`
                size += 1

        gradients = self._gradients(finite_outputs(), observe)
        self.non_finite = None
        if bad:
            self.non_finite = NonFinite("the loss", next(iter(bad.values())), tuple(bad))
            if scale is not None:
                scale.update(torch.ones_like(scale.value, dtype=torch.bool))
        elif gradients is not None:
            result = self._step(learning_rate, gradients)
            self._record(("", result))
            # With a loss scale, gradients that overflow are nothing unusual: the scale adapts.
            if result is not None and bool(result.skipped) and scale is None:
                self.non_finite = NonFinite("a gradient", math.nan, tuple(range(size)))
        self._note_non_finite(buffers)

    def _outputs(self, window: Iterable[Any]) -> Iterator[StepOutput]:
        return map(self._forward, window)

    def _gradients(self, outputs: Iterable[StepOutput], observe: Observe) -> Gradients | None:
        """Return the gradients of the mean loss over all items; None if there are no items."""
        total = WindowGradients()
        for output in outputs:
            if output.count:  # the mean over no items is NaN, and adds nothing to a sum
                total.add(Gradients.of(self._rules.scaled(output.loss), self._params), output.count)
            observe(output)
            del output  # free this batch's outputs before the next one allocates its own
        return total.mean() if total.count else None

    def _step_with_closure(self, window: list[Any], learning_rate: float, observe: Observe) -> None:
        is_first = True

        def closure() -> tuple[Tensor, Gradients]:
            nonlocal is_first
            losses: list[tuple[Tensor, int]] = []

            def look(output: StepOutput) -> None:
                if output.count:
                    losses.append((output.loss.detach(), output.count))
                if is_first:  # the metrics are of the parameters before the step
                    observe(output)

            with torch.enable_grad():
                gradients = self._gradients(self._outputs(window), look)
            is_first = False
            if gradients is None:
                return torch.zeros(()), Gradients({})
            if self._rules.on_gradients is not None:
                gradients = self._rules.on_gradients(gradients)
            if self._rules.clip_value is not None:
                gradients = gradients.clip_value(self._rules.clip_value)
            if len(losses) == 1:
                return losses[0][0], gradients
            total = torch.stack([loss * count for loss, count in losses]).sum()
            return total / sum(count for _, count in losses), gradients

        limit = self._rules.clip_norm
        if limit is None and self._rules.log_norm:
            limit = math.inf
        result = self._optimizer.step_with(learning_rate, self._params, closure, clip_norm=limit)
        self._record(("", result))


class ManualUpdate(Update):
    """Runs a training step that steps several optimizers itself; see `burnt.train.manual`.

    The arguments are those of `Update`.
    """

    def __init__(
        self,
        learner: Learner,
        steps: Steps,
        rules: GradientRules,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__(learner, steps, rules, autocast)
        self._optimizers = cast(Optimizers, learner.optimizer)
        self._handles = StepOptimizers(self._optimizers, learner.model, rules)

    def __call__(self, window: Iterable[Any], learning_rate: float, observe: Observe) -> None:
        """Run the training step on the only batch of the window; see `Update`."""
        skips = self._rules.skip_non_finite
        buffers = self._copy_buffers()
        self.non_finite = None
        (batch,) = window
        self._optimizers.begin_step(learning_rate)
        output = self._forward(batch, self._handles)
        results = self._handles.end_step()
        self._record(*results)
        if skips and output.count and not math.isfinite(loss := float(output.loss.detach())):
            self.non_finite = NonFinite("the loss", loss, (0,))
        else:
            observe(output)
            if skips and self._rules.loss_scale is None and any(bool(r.skipped) for _, r in results if r):
                self.non_finite = NonFinite("a gradient", math.nan, (0,))
        self._note_non_finite(buffers)


def update_of(
    learner: Learner,
    steps: Steps,
    rules: GradientRules,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Update:
    """Return the update of a Learner: manual, if it has several optimizers by name."""
    kind = ManualUpdate if isinstance(learner.optimizer, Optimizers) else GradientUpdate
    return kind(learner, steps, rules, autocast)


def _any(flags: Iterable[Tensor], device: torch.device) -> Tensor:
    """Whether any is true; each may be on another device."""
    return torch.stack([flag.to(device) for flag in flags]).any()
