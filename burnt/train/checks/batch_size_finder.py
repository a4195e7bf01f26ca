"""A search for a batch size: steps at growing sizes, with their memory and speed."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import psutil
import torch

from burnt.data import Loader, as_loader
from burnt.errors import BurntError, ConfigError
from burnt.train.checks.rate_finder import endless, trial_step
from burnt.train.control.end_reason import cause_of
from burnt.train.learner import Learner
from burnt.train.placement import Devices, Placement
from burnt.train.train_step import TrainStep

_SHARE = 0.9  # of the memory that is free at the start


@dataclasses.dataclass(frozen=True)
class Trial:
    """Steps at one batch size."""

    batch_size: int
    seconds: float | None  # the median duration of a step; None if the size did not fit
    peak_bytes: int  # the memory that the step needed in addition to what was in use before
    problem: str | None = None  # why the size did not fit

    @property
    def samples_per_second(self) -> float:
        """The throughput; 0 if the size did not fit."""
        return 0.0 if self.seconds is None else self.batch_size / self.seconds


@dataclasses.dataclass(frozen=True, repr=False)
class BatchSizeSearch:
    """The trials of a search, by ascending batch size. Its `repr` is a table."""

    trials: Sequence[Trial]

    @property
    def largest(self) -> int:
        """The largest size that fits."""
        return max(trial.batch_size for trial in self.trials if trial.problem is None)

    @property
    def fastest(self) -> int:
        """The smallest size whose throughput is within 5 % of the best."""
        best = max(trial.samples_per_second for trial in self.trials)
        return min(trial.batch_size for trial in self.trials if trial.samples_per_second >= 0.95 * best)

    def __repr__(self) -> str:
        lines = [f"{'batch size':>10}  {'ms/step':>9}  {'samples/s':>10}  {'memory':>9}"]
        for trial in self.trials:
            memory = f"{trial.peak_bytes / 2**20:,.0f} MiB"
            if trial.seconds is None:
                lines.append(f"{trial.batch_size:>10}  {trial.problem}")
                continue
            notes = [name for name in ("largest", "fastest") if getattr(self, name) == trial.batch_size]
            lines.append(
                f"{trial.batch_size:>10}  {trial.seconds * 1e3:>9.2f}  {trial.samples_per_second:>10,.0f}  "
                f"{memory:>9}  {', '.join(notes)}".rstrip()
            )
        return "\n".join(lines)


def find_batch_size(
    learner: Learner,
    data: Loader[Any] | Callable[[int], Any],
    *,
    low: int = 1,
    high: int | None = None,
    steps: int = 4,
    memory_bytes: int | None = None,
    clip_norm: float | None = None,
    precision: str = "float32",
    checkpoint_activations: str | None = None,
    device: Devices = None,
) -> BatchSizeSearch:
    """Train a few steps at each of the batch sizes 1, 2, 4, ... until one does not fit into memory.

    The learner and the random states are as before afterwards.

    Args:
        learner: the model with its optimizer.
        data: a `burnt.data.Loader`, whose batch size is varied, or a function of the batch size that returns
            a loader.
        low: the first batch size to try.
        high: the last one; by default the number of items in the loader's dataset.
        steps: the steps at each size, at least 2; the first one warms up and is not timed.
        memory_bytes: how much memory the steps may take; by default 90 % of what is free. On a CPU a size
            that would need more by the trend of the last two is not tried, since a process that is out of
            memory is killed; on an accelerator the error of its allocator ends the search, too. Of a model in
            parts only the memory of its own device is measured, on which its outputs are.
        clip_norm: maximum global norm of the gradients.
        precision: the precision of the steps, as in `SupervisedTraining`.
        checkpoint_activations: modules whose activations are recomputed, as in `SupervisedTraining`.
        device: where to train, as for `SupervisedTraining`.

    Raises:
        ConfigError: an argument is invalid.
        UnsupportedError: there is no such precision, or the optimizer does not support it.
        BurntError: not even the first size fits.

    >>> from burnt import nn, optim
    >>> from burnt.train import Learner, StepOutput, find_batch_size
    >>> def step(model, x):
    ...     return StepOutput(model(x).square().mean())
    >>> learner = Learner(nn.Linear(4, 4), optim.Sgd(), 0.1, step=step)
    >>> search = find_batch_size(learner, lambda size: [torch.ones(size, 4)] * 4, high=8)
    >>> [trial.batch_size for trial in search.trials], search.largest
    ([1, 2, 4, 8], 8)
    """
    if isinstance(data, Loader):
        high = len(data.dataset) if high is None else high
        make: Callable[[int], Any] = functools.partial(_resized, data)
    elif callable(data):
        make = data
    else:
        raise ConfigError(
            "the batch size of this cannot be varied",
            where="data",
            expected="a burnt.data.Loader, or a function: batch size -> loader",
            found=type(data).__name__,
        )
    for name, value, lowest in (("low", low, 1), ("steps", steps, 2), ("high", high or low, low)):
        if value < lowest:
            raise ConfigError(
                "a setting of the search is invalid", where=name, expected=f"at least {lowest}", found=value
            )
    placement = Placement(device).for_model(learner.model)
    memory = _Memory(placement.main)
    limit = memory.free() * _SHARE if memory_bytes is None else memory_bytes
    trials: list[Trial] = []
    # Rates of 0: the memory and the time of a step, without a training that may diverge.
    with trial_step(
        learner, placement, precision, clip_norm, checkpoint_activations, rate_factor=0.0
    ) as train_step:
        for size in _sizes(low, high):
            expected = _expected_bytes(trials, size)
            if expected > limit:
                problem = f"not tried: would need some {expected / 2**20:,.0f} MiB"
                trials.append(Trial(size, None, int(expected), problem))
                break
            try:
                trials.append(_try(train_step, make(size), size, steps, memory))
            except Exception as error:
                if cause_of(error) != "out of memory":
                    raise
                trials.append(Trial(size, None, memory.peak(), "out of memory"))
            if trials[-1].problem is not None or trials[-1].peak_bytes > limit:
                break
    if not any(trial.problem is None for trial in trials):
        raise BurntError(
            "not even the smallest batch fits into memory",
            where=str(placement),
            expected=f"a batch of {low} within {limit / 2**20:,.0f} MiB",
            found=trials[0].problem,
            hint="use a smaller model or precision='bfloat16', or checkpoint activations",
        )
    return BatchSizeSearch(trials)


def _resized(loader: Loader[Any], batch_size: int) -> Loader[Any]:
    resized = copy.copy(loader)
    resized.batch_size = batch_size
    return resized


def _sizes(low: int, high: int | None) -> Iterator[int]:
    """Yield low, 2 low, 4 low, ..., and last `high`."""
    for size in (low * 2**i for i in itertools.count()):
        if high is not None and size >= high:
            yield high
            return
        yield size


def _expected_bytes(trials: Sequence[Trial], size: int) -> float:
    """Return the memory that a size will need, on the line through the last two."""
    if len(trials) < 2:
        return 0.0
    a, b = trials[-2], trials[-1]
    slope = (b.peak_bytes - a.peak_bytes) / (b.batch_size - a.batch_size)
    return b.peak_bytes + max(slope, 0.0) * (size - b.batch_size)


def _try(train_step: TrainStep, data: Any, size: int, steps: int, memory: _Memory) -> Trial:
    batches = itertools.islice(endless(as_loader(data, "data")), steps)
    seconds = []
    memory.reset()
    for batch in batches:
        start = perf_counter()
        train_step([batch], 0.0, lambda batch, output, counts: None)
        memory.wait()
        seconds.append(perf_counter() - start)
    return Trial(size, statistics.median(seconds[1:] or seconds), memory.peak())


class _Memory:
    """The memory of a device in use by this process; on other devices than CUDA, the most of it so far."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device.type == "cuda"
        self._base = 0 if self._cuda else psutil.Process().memory_info().rss

    def free(self) -> int:
        if not self._cuda:
            return int(psutil.virtual_memory().available)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0]) + unused

    def reset(self) -> None:
        if self._cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            self._base = torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        """Return the most bytes in use since `reset`."""
        if self._cuda:
            return torch.cuda.max_memory_allocated(self.device) - self._base
        return max(_peak_of_process() - self._base, 0)

    def wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self.device)


def _peak_of_process() -> int:
    """Return the most bytes that this process has ever used."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # Windows lacks it

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
