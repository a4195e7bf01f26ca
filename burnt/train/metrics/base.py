"""Metric: sums that are accumulated on the device over batches, and the value computed; `Loss`; as JSON.

Because the sums are additive, the value over any interval of batches is computed from the difference of two
sums.
Sums are copied to the host only when a value is needed: updating a metric never waits for the device.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from burnt._modules import class_in
from burnt.errors import MetricError
from burnt.train.step import StepOutput

Sums = tuple[list[float], int]
"""The sums of a metric on the host, and the number of items that they cover."""


class Recorder(Protocol):
    """The part of the run store that metrics write to."""

    def record_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int | None = None
    ) -> None:
        """Record a table under a name."""
        ...


class Metric:
    """Base class of metrics.

    A custom metric sets `name` and `higher_is_better` and defines `update` and `value`.

    Args:
        name: the name in logs and in the run store; by default the class attribute `name`.

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
        """Add a batch. Must not wait for the device: no `.item()`, no branch on a tensor's value."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def value(self, total: list[float], count: int) -> float:
        """Compute the value from sums over `count` items; by default their mean."""
        return total[0] / count

    def add(self, total: Tensor, count: int, *, weight: int = 1) -> None:
        """Add a batch's sums and its number of items.

        Args:
            total: the sums, of any fixed shape and on any device.
            count: the number of items.
            weight: a factor for `total`, if that is a mean.

        Raises:
            MetricError: `total` is not a tensor, or `count` or `weight` no int.
        """
        if not (isinstance(total, Tensor) and isinstance(count, int) and isinstance(weight, int)):
            raise self._argument_error(total=total, count=count, weight=weight)
        if self.total is None:
            sum_dtype = torch.float32 if total.device.type == "mps" else torch.float64
            self.total = torch.zeros(total.shape, dtype=sum_dtype, device=total.device)
        self.total.add_(total.detach(), alpha=weight)
        self.count += count

    def _argument_error(self, total: object, **numbers: object) -> MetricError:
        found = total
        expected, hint = "a tensor as total", "torch.tensor(total)"
        if isinstance(total, Tensor):
            name, found = next((k, v) for k, v in numbers.items() if not isinstance(v, int))
            expected, hint = f"an int as {name}", f"int({name})"
            if isinstance(found, Tensor):  # reading it would wait for the device at every batch
                hint = (
                    "numerator and denominator are both sums: self.add(torch.stack([a, b]), len(outputs)), "
                    "and value() returns total[0] / total[1]"
                )
        return MetricError(
            f"{self.name} cannot add this",
            where=f"{type(self).__name__}.update",
            expected=expected,
            found=type(found).__name__,
            hint=hint,
        )

    def reset(self) -> None:
        """Forget all batches."""
        self.total = None
        self.count = 0

    def fresh(self) -> Self:
        """Return a copy without any batches."""
        clone = copy.copy(self)
        clone.reset()
        return clone

    def compute(self) -> float:
        """Return the value over the batches so far; waits for the device.

        Raises:
            MetricError: there was no batch, or the metric is not a single number.
        """
        if not self.scalar:
            raise MetricError(
                f"{self.name} is not a single number", hint="use the other methods of the metric"
            )
        (sums,) = read([self])
        if not sums[1]:
            raise MetricError(f"{self.name} has no batches yet")
        return self.value(*sums)

    def record(self, recorder: Recorder, split: str, step: int) -> None:
        """Write results other than the value, such as tables, to the run store at the end of an epoch."""


def read(metrics: Sequence[Metric]) -> list[Sums]:
    """Copy the sums of several metrics to the host, with a single device synchronization."""
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
    """Return name -> value over the batches between two readings of the sums.

    Metrics that are not a single number, or had no new batch, are left out.
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


def metric_to_dict(metric: Metric) -> dict[str, Any]:
    """Return a metric's name, class and arguments for JSON.

    The arguments are the attributes of the same names; of a metric that lacks one, or holds one that JSON
    cannot give back, they are None.

    >>> from burnt.train.metrics import Accuracy
    >>> metric_to_dict(Accuracy(ignore_index=-100))["arguments"]
    {'ignore_index': -100, 'name': 'accuracy'}
    """
    kind = type(metric)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    # A script's module has another name when the script is imported.
    module = Path(file).stem if kind.__module__ == "__main__" and file else kind.__module__
    names = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    arguments: dict[str, Any] | None = None
    if all(hasattr(metric, name) for name in names):
        arguments = {name: getattr(metric, name) for name in names}
        try:
            arguments = arguments if json.loads(json.dumps(arguments)) == arguments else None
        except (TypeError, ValueError):
            arguments = None
    return {"name": metric.name, "module": module, "class": kind.__qualname__, "arguments": arguments}


def metric_from_dict(document: Mapping[str, Any]) -> Metric:
    """Build the metric that `metric_to_dict` has described; its module must be imported already."""
    home, name = str(document.get("module")), str(document.get("class"))
    found = class_in(sys.modules.get(home), name, Metric)
    if found is None and home.startswith("burnt.train.metrics."):  # an older burnt had more modules
        own = (kind for kind in Metric.__subclasses__() if kind.__module__.startswith("burnt.train.metrics."))
        found = next((kind for kind in own if kind.__qualname__ == name), None)
    arguments = document.get("arguments")
    if found is not None and isinstance(arguments, dict):
        try:
            return found(**arguments)
        except (TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
    elif isinstance(arguments, dict):
        reason = f"no class {document.get('class')} in {document.get('module')}"
    else:
        reason = f"the attributes of {document.get('class')} do not hold its arguments"
    raise MetricError(
        f"the metric {document.get('name')!r} of the run cannot be built",
        found=reason,
        hint="name the metrics to compute: --metrics module:name",
    )


class Loss(Metric):
    """The mean loss over items (not over batches, because the last batch may be smaller).

    >>> import torch
    >>> from burnt.train import StepOutput
    >>> loss = Loss()
    >>> loss.update(StepOutput(torch.tensor(1.0), count=3))
    >>> loss.update(StepOutput(torch.tensor(5.0), count=1))
    >>> loss.compute()
    2.0
    """

    name = "loss"
    higher_is_better = False

    def update(self, output: StepOutput) -> None:
        """Add the batch's loss, weighted by its count; without items it is NaN, and not added."""
        assert output.count is not None
        if output.count:
            self.add(output.loss, output.count, weight=output.count)


def loss_first(metrics: object) -> list[Metric]:
    """Return the metrics with the loss first; add the loss if it is missing."""
    if isinstance(metrics, Iterable):
        metric_list = list(metrics)
        wrong = [metric for metric in metric_list if not isinstance(metric, Metric)]
    else:
        wrong = [metrics]
    if wrong:
        raise MetricError(
            "metrics= takes metric objects",
            expected="a list such as [Accuracy(), Loss()] of burnt.train.metrics",
            found=repr(wrong[0]),
        )
    loss = next((metric for metric in metric_list if metric.name == "loss"), None)
    ordered = [loss or Loss(), *(metric for metric in metric_list if metric is not loss)]
    names = [metric.name for metric in ordered]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise MetricError(
            "two metrics have the same name",
            found=repr(duplicate),
            hint=f"rename one of them: Metric(name={duplicate + '2'!r})",
        )
    return ordered
