"""A search for a learning rate: a few steps at growing rates, on copies of what they change."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from burnt._torch import restored_modes
from burnt.data import as_loader
from burnt.data.loading.loader import EpochLoader
from burnt.errors import ConfigError, DataError
from burnt.plot import Line, Plot
from burnt.train.checkpoints.buffers import BufferCopies
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.learner import Learner, Steps
from burnt.train.metrics import Loss
from burnt.train.placement import Devices, Placement
from burnt.train.settings import check_update
from burnt.train.train_step import TrainStep
from burnt.train.updates.activation_checkpointing import checkpointed
from burnt.train.updates.optimizer_step import GradientRules
from burnt.train.updates.precision import LossScale, cast_parameters, check_precision, float32_matmuls

_DIVERGED = 4.0  # times the lowest mean of the last losses
_LAST = 5


@dataclasses.dataclass(frozen=True, repr=False)
class RateSearch:
    """The losses of steps at growing learning rates.

    Its `repr` is a drawing; a notebook shows it as SVG.
    """

    rates: Sequence[float]  # of each step, ascending
    losses: Sequence[float]  # before each step

    @property
    def _reach(self) -> int:
        """How many losses before and after one are averaged with it."""
        return max(len(self.losses) // 20, 1)

    @property
    def smoothed(self) -> list[float]:
        """The means over the losses around each step, a tenth of them; losses that are NaN are gaps."""
        smoothed, reach = [], self._reach
        for i, loss in enumerate(self.losses):
            # As many before as after, so that the curve is not shifted to higher rates.
            reach_here = min(reach, i, len(self.losses) - 1 - i)
            around = [x for x in self.losses[i - reach_here : i + reach_here + 1] if math.isfinite(x)]
            smoothed.append(sum(around) / len(around) if math.isfinite(loss) else math.nan)
        return smoothed

    @property
    def suggestion(self) -> float | None:
        """The rate at which the smoothed loss falls fastest; None if it never falls.

        It is looked for before the lowest loss. A schedule that decays may start a few times higher.
        """
        smoothed = self.smoothed
        finite = [i for i, loss in enumerate(smoothed) if math.isfinite(loss)]
        lowest = min(finite, key=lambda i: smoothed[i], default=0)
        # Rates grow by a constant factor, so differences are slopes over the logarithm of the rate. They are
        # those between whole windows: fewer losses are smoothed at the first rates, whose noise falls faster
        # than any training.
        reach = self._reach
        ends = range(2 * reach, min(lowest, len(smoothed) - reach))
        slopes = {i: smoothed[i + reach] - smoothed[i - reach] for i in ends}
        slopes = {i: slope for i, slope in slopes.items() if math.isfinite(slope)}
        steepest = min(slopes, key=lambda i: slopes[i], default=None)
        return self.rates[steepest] if steepest is not None and slopes[steepest] < 0 else None

    def plot(self) -> Plot:
        """Draw the smoothed loss over the rates, which are on a logarithmic axis."""
        smoothed = self.smoothed
        # The last losses come from a training that diverges; drawn in full, they would hide the rest.
        limit = 2 * max(smoothed[0], 0.0) - min(smoothed[0], 0.0) or math.inf
        shown = [loss if loss <= limit else math.nan for loss in smoothed]
        return Plot([Line(f"loss, {self._text()}", self.rates, shown)], x="learning rate", log_x=True)

    def _text(self) -> str:
        suggestion = self.suggestion
        return "which never falls" if suggestion is None else f"falls fastest at {suggestion:.2g}"

    def __repr__(self) -> str:
        return self.plot().text()

    def _repr_svg_(self) -> str:
        return self.plot().svg()


def find_learning_rate(
    learner: Learner,
    batches: Any,
    *,
    low: float = 1e-7,
    high: float = 1.0,
    steps: int = 100,
    accumulate: int = 1,
    clip_norm: float | None = None,
    precision: str = "float32",
    device: Devices = None,
) -> RateSearch:
    """Train a few steps, each at a higher rate, until the loss diverges.

    The learner and the random states are as before afterwards.

    Args:
        learner: the model with its optimizer; its schedule is not used. Of several optimizers, the rate of
            the first is searched, and the others keep their schedules.
        batches: a loader, or any iterable of batches that can be iterated more than once.
        low: the first rate to try.
        high: the last rate to try.
        steps: the number of steps between them, at least 10.
        accumulate: the number of batches of a step, as in `SupervisedTraining`.
        clip_norm: maximum global norm of the gradients.
        precision: the precision of the steps, as in `SupervisedTraining`.
        device: where to train, as for `SupervisedTraining`.

    Raises:
        ConfigError: the rates are not ``0 < low < high``, or there are too few steps or
            batches of a step.
        UnsupportedError: there is no such precision, or the optimizer does not support it.
        DataError: the loader gives no batches.

    Smith, 2017 (arXiv:1506.01186).

    >>> from burnt import nn, optim
    >>> from burnt.train import Learner, StepOutput, find_learning_rate
    >>> def step(model, x):
    ...     return StepOutput((model(x) - 3 * x).square().mean())
    >>> learner = Learner(nn.Linear(4, 4), optim.Sgd(), 0.1, step=step)
    >>> search = find_learning_rate(learner, [torch.ones(8, 4)], low=1e-4, high=10.0)
    >>> 0.01 < search.suggestion < 1.0
    True
    """
    if not 0 < low < high < math.inf:
        raise ConfigError("these rates give no search", expected="0 < low < high", found=f"{low} and {high}")
    if steps < 10:
        raise ConfigError("the search is too short", where="steps", expected="at least 10", found=steps)
    check_update(learner, accumulate=accumulate)
    loader = as_loader(batches, "batches")
    rates: list[float] = []
    losses: list[float] = []
    lowest, total = math.inf, Loss()
    with trial_step(learner, Placement(device).for_model(learner.model), precision, clip_norm) as train_step:
        stream = endless(loader)
        for number in range(steps):
            window = list(itertools.islice(stream, accumulate))
            rate = low * (high / low) ** (number / (steps - 1))
            total.reset()
            train_step(window, rate, lambda batch, output, counts: total.update(output))
            if not total.count:  # batches without items change nothing
                continue
            rates.append(rate)
            losses.append(total.compute())
            recent = sum(losses[-_LAST:]) / len(losses[-_LAST:])
            lowest = min(lowest, recent)
            if not math.isfinite(losses[-1]) or recent > _DIVERGED * abs(lowest):
                break
    return RateSearch(rates, losses)


def endless(loader: EpochLoader[Any]) -> Iterator[Any]:
    """Yield batches without end, one epoch after the other."""
    for epoch in itertools.count():
        empty = True
        for batch in loader.epoch(epoch):
            empty = False
            yield batch
        if empty:
            raise DataError("batches= gave no batches", hint="can it be iterated more than once?")


@contextmanager
def trial_step(
    learner: Learner,
    placement: Placement,
    precision: str,
    clip_norm: float | None,
    checkpoint_activations: str | None = None,
    *,
    rate_factor: float = 1.0,
) -> Iterator[TrainStep]:
    """Give the step of a learner outside of a training; afterwards model and random states are restored.

    The model is the learner's, placed and in `precision` meanwhile; the optimizer is a copy.
    `rate_factor` multiplies the learning rates that the optimizer schedules itself.
    """
    precision = check_precision(precision)
    check_update(learner, precision=precision)
    model, rng = learner.model, RandomStates.capture()
    before = Placement.of(model)
    placement.apply(model)
    parameters = dict(model.named_parameters())
    # A precision may replace the data of a tensor by others.
    values = [(t, t.data, t.detach().clone()) for t in (*parameters.values(), *model.buffers())]
    buffers = BufferCopies(model)
    buffers.take()
    copied = copy.copy(learner)
    # The optimizer refers to the parameters and the model, which are not copied.
    shared = {id(shared): shared for shared in (model, *parameters.values())}
    copied.optimizer = copy.deepcopy(learner.optimizer, shared)
    copied.optimizer.rate_factor = rate_factor
    steps = Steps(model, learner.step, learner.validation_step)
    scale = LossScale(placement.main) if precision == "float16" else None
    rules = GradientRules(clip_norm=clip_norm, loss_scale=scale)
    try:
        with restored_modes(model), float32_matmuls(precision), checkpointed(model, checkpoint_activations):
            model.train()
            copied.optimizer.train(parameters)  # an earlier run left those to evaluate
            cast_parameters(precision, model)
            yield TrainStep(copied, steps, rules, precision, placement.main)
    finally:
        with torch.no_grad():
            for tensor, data, value in values:
                tensor.data = data
                tensor.copy_(value)
            buffers.restore()
        before.apply(model)
        rng.restore()
