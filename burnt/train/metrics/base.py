"""Metric: sums that grow with every batch, on the device, and the number that they amount to.

The sums are additive, so the value over any stretch of batches is the value of a difference of sums. They are
read only when a value is wanted: updating a metric never waits for the device.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from burnt.errors import MetricError
from burnt.train.step import StepOutput

__all__ = ["Metric", "Recorder", "Sums", "intervals", "read"]

Sums = tuple[list[float], int]
"""The sums of a metric on the host, and the number of items they are over."""


class Recorder(Protocol):
    """The part of the run store that metrics write to."""

    def record_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int | None = None
    ) -> None:
        """Keep a table under a name."""
        ...


class Metric:
    """Base of the metrics.

    A metric of one's own sets `name` and `higher_is_better` and defines `update` and `value`.

    Args:
        name: what it is called in logs and in the run store, instead of the class's own name for it.

    >>> import torch
    >>> from burnt.train import StepOutput
    >>> class MeanAbsoluteError(Metric):
    ...     name = "mae"
    ...     higher_is_better = False
    ...
    ...     def update(self, output):
    ...         self.add((output.outputs - output.targets).abs().sum(), output.targets.numel())
    >>> metric = MeanAbsoluteError()
    >>> metric.update(StepOutput(torch.tensor(0.0), torch.tensor([1.0, 5.0]), torch.tensor([2.0, 2.0])))
    >>> metric.compute()
    2.0
    """

    name: str
    higher_is_better: bool | None = None
    scalar: ClassVar[bool] = True
    """Whether the value is one number that can be plotted and monitored."""

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            self.name = name
        self.total: Tensor | None = None
        self.count = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def update(self, output: StepOutput) -> None:
        """Take a batch in. Must not wait for the device: no `.item()`, no branch on a tensor."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def value(self, total: list[float], count: int) -> float:
        """The number that sums over `count` items amount to; their mean unless a metric says otherwise."""
        return total[0] / count

    def add(self, total: Tensor, count: int, *, weight: int = 1) -> None:
        """Add a batch's sums, of any fixed shape, and how many items they are over.

        Args:
            total: the sums, on any device.
            count: the number of items.
            weight: times `total`, for a total that is a mean.
        """
        if self.total is None:
            wide = torch.float32 if total.device.type == "mps" else torch.float64
            self.total = torch.zeros(total.shape, dtype=wide, device=total.device)
        self.total.add_(total.detach(), alpha=weight)
        self.count += count

    def reset(self) -> None:
        """Forget every batch."""
        self.total = None
        self.count = 0

    def fresh(self) -> Self:
        """A copy that has seen no batch."""
        twin = copy.copy(self)
        twin.reset()
        return twin

    def compute(self) -> float:
        """The value over the batches so far; waits for the device.

        Raises:
            MetricError: there was no batch, or the metric is no single number.
        """
        if not self.scalar:
            raise MetricError(f"{self.name} is no single number", hint="see the methods of the metric")
        (sums,) = read([self])
        if not sums[1]:
            raise MetricError(f"{self.name} has seen no batch")
        return self.value(*sums)

    def record(self, recorder: Recorder, split: str, step: int) -> None:
        """Write what is more than a number to the run store, at the end of an epoch."""


def read(metrics: Sequence[Metric]) -> list[Sums]:
    """The sums of several metrics on the host, with one wait for the device."""
    totals = [metric.total.reshape(-1) for metric in metrics if metric.total is not None]
    flat = torch.cat(totals).tolist() if totals else []
    sums: list[Sums] = []
    start = 0
    for metric in metrics:
        size = 0 if metric.total is None else metric.total.numel()
        sums.append((flat[start : start + size], metric.count))
        start += size
    return sums


def intervals(
    metrics: Sequence[Metric], now: Sequence[Sums], before: Sequence[Sums] | None
) -> dict[str, float]:
    """The values over the batches between two readings, by name.

    Metrics that are no single number, or have had no new batch, are left out.
    """
    values: dict[str, float] = {}
    for i, metric in enumerate(metrics):
        if not metric.scalar:
            continue
        total, count = now[i]
        if before is not None and before[i][1]:
            total = [a - b for a, b in zip(total, before[i][0], strict=True)]
            count -= before[i][1]
        if count:
            values[metric.name] = metric.value(total, count)
    return values
