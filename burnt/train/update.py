"""Updates: how a window of micro-batches becomes one step of the optimizer."""

from __future__ import annotations

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor

from burnt.errors import ConfigError, UnsupportedError
from burnt.gradients import Gradients
from burnt.kernels import StepResult
from burnt.train.checkpoints.buffers import BufferCopies
from burnt.train.learner import Learner, Steps
from burnt.train.step import StepOutput
from burnt.train.updates.manual import Optimizers, StepOptimizers
from burnt.train.updates.optimizer_step import GradientRules, OptimizerStep

Observe = Callable[[StepOutput, bool], None]
"""Is given the output of a micro-batch, and whether it counts: False if its loss is not finite."""


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
        value: of the first loss; NaN for a gradient.
        batches: the micro-batches with such a loss, by their place in the window; None for a gradient, which
            may come from any of them.
    """

    what: str
    value: float
    batches: tuple[int, ...] | None


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
        self._buffers = BufferCopies(learner.model) if rules.skip_non_finite else None
        self._measures_norm = rules.log_norm or rules.clip_norm is not None
        self._norms: dict[str, list[Tensor]] = {}

    def __call__(self, window: Iterable[Any], learning_rate: float, observe: Observe) -> None:
        """Update the parameters once, unless the rules skip the step. A window without items changes nothing.

        Rules that skip steps wait for the device.

        Args:
            window: the micro-batches, at least one.
            learning_rate: of this step.
            observe: is given the output of each micro-batch, computed with the parameters before the step.
        """
        if self._buffers is None:
            self._update(window, learning_rate, observe)
            return
        self._forget_non_finite()
        self._buffers.take()
        self._update(window, learning_rate, observe)
        if self.non_finite is not None:
            self.skipped += 1
            self._buffers.restore()

    def _forget_non_finite(self) -> None:
        self.non_finite = None

    @abstractmethod
    def _update(self, window: Iterable[Any], learning_rate: float, observe: Observe) -> None:
        """Update the parameters by a window; set `non_finite` for a step that is skipped."""

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

    def _is_finite(self, output: StepOutput, number: int) -> bool:
        """Whether the loss of a micro-batch is finite; unless the rules skip steps, it is not looked at."""
        if self._buffers is None or not output.count or math.isfinite(loss := float(output.loss.detach())):
            return True
        earlier = self.non_finite
        if earlier is None or earlier.batches is None:
            self.non_finite = NonFinite("the loss", loss, (number,))
        else:
            self.non_finite = dataclasses.replace(earlier, batches=(*earlier.batches, number))
        # At once: running statistics that are not finite would spoil the next micro-batch.
        self._buffers.restore()
        return False

    def _record(self, *results: tuple[str, StepResult | None]) -> None:
        """Keep what the optimizers returned, by name, for `readings`, and adapt the loss scale."""
        if self._measures_norm:
            for name, result in results:
                if result is not None and result.norm is not None:
                    self._norms.setdefault(name, []).append(result.norm)
        scale, skipped = self._rules.loss_scale, [r.skipped for _, r in results if r is not None]
        if scale is not None and skipped:
            scale.update(skipped[0] if len(skipped) == 1 else _any(skipped, scale.value.device))
        # With a loss scale, gradients that overflow are nothing unusual: the scale adapts.
        elif self._buffers is not None and self.non_finite is None and any(map(bool, skipped)):
            self.non_finite = NonFinite("a gradient", math.nan, None)


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

    def _update(self, window: Iterable[Any], learning_rate: float, observe: Observe) -> None:
        if self._optimizer.needs_closure:
            self._step_with_closure(list(window), learning_rate, observe)
            return
        gradients = self._gradients(window, observe)
        if self.non_finite is not None:
            if (scale := self._rules.loss_scale) is not None:
                scale.update(torch.ones_like(scale.value, dtype=torch.bool))
        elif gradients is not None:
            result = self._step(learning_rate, gradients)
            if not self._is_plain:
                self._record(("", result))

    def _gradients(self, window: Iterable[Any], observe: Observe) -> Gradients | None:
        """Return the gradients of the mean loss over all items; None if there are no items."""
        total = WindowGradients()
        number = 0
        for output in map(self._forward, window):
            is_finite = self._is_finite(output, number)
            # The mean over no items is NaN, and adds nothing to a sum; a step that is skipped needs no sum.
            if output.count and self.non_finite is None:
                total.add(Gradients.of(self._rules.scaled(output.loss), self._params), output.count)
            observe(output, is_finite)
            number += 1  # noqa: SIM113  # `enumerate` would hold the output
            del output  # free this batch's outputs before the next one allocates its own
        return total.mean() if total.count else None

    def _step_with_closure(self, window: list[Any], learning_rate: float, observe: Observe) -> None:
        is_first = True

        def closure() -> tuple[Tensor, Gradients]:
            nonlocal is_first
            losses: list[tuple[Tensor, int]] = []

            def look(output: StepOutput, is_finite: bool) -> None:
                if output.count:
                    losses.append((output.loss.detach(), output.count))
                if is_first:  # the metrics are of the parameters before the step
                    observe(output, is_finite)

            with torch.enable_grad():
                gradients = self._gradients(window, look)
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
    """Runs a training step that steps several optimizers itself; see `burnt.train.updates.manual`.

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

    def _update(self, window: Iterable[Any], learning_rate: float, observe: Observe) -> None:
        (batch,) = window  # the training step accumulates itself
        self._optimizers.begin_step(learning_rate)
        output = self._forward(batch, self._handles)
        is_finite = self._is_finite(output, 0)
        self._record(*self._handles.end_step())
        observe(output, is_finite)


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


def check_update(
    learner: Learner, *, accumulate: int = 1, precision: str = "float32", on_nan: str = "raise"
) -> None:
    """Raise if settings of updates do not fit a Learner.

    Raises:
        ConfigError: `accumulate` is no number of batches; or the training step steps its optimizers itself,
            and batches were to be accumulated.
        UnsupportedError: an optimizer that evaluates the loss several times cannot skip a step.
    """
    check_accumulate(accumulate)
    if isinstance(learner.optimizer, Optimizers) and accumulate > 1:
        raise ConfigError(
            "a training step with several optimizers accumulates gradients itself",
            where="accumulate",
            expected="1",
            found=accumulate,
            hint="optimizers[name].gradients(loss) returns gradients to add up, and step takes them",
        )
    if learner.optimizer.needs_closure and (precision == "float16" or on_nan != "raise"):
        raise UnsupportedError(
            f"{type(learner.optimizer).__name__} evaluates the loss several times in a step, "
            "and cannot skip one",
            expected='another optimizer, or precision="float32" and on_nan="raise"',
            found=f"precision={precision!r}, on_nan={on_nan!r}",
        )


def check_accumulate(accumulate: int) -> None:
    """Raise if this is no number of batches of a step.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ConfigError(
            "a training setting is invalid",
            where="accumulate",
            expected="the number of batches of a step, at least 1",
            found=accumulate,
        )
