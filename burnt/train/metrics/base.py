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
from collections.abc import Mapping, Sequence
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
    """Whether the value is a number that can be plotted and monitored, or several by name."""
    whole_epoch: bool = False
    """Whether the value needs all batches of an epoch: then there is none for the steps in between."""
    per_second: ClassVar[bool] = False
    """Whether the value is divided by the seconds of training; then only a training's readings have it."""
    classes: Sequence[str] | None = None
    """The names of the classes, where they are given; else `data_classes`, which a training sets, hold."""
    data_classes: Sequence[str] | None = None

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

    def class_names(self, size: int) -> list[str]:
        """Return the names of so many classes: those given, those of the data set, or the numbers from 0."""
        names = self.data_classes if self.classes is None else self.classes
        if self.classes is not None and len(self.classes) != size:
            raise MetricError(
                "each class needs one name", expected=f"{size} names", found=f"{len(self.classes)}"
            )
        return list(names) if names and len(names) == size else [str(i) for i in range(size)]

    def reset(self) -> None:
        """Forget all batches."""
        self.total = None
        self.count = 0

    def fresh(self) -> Self:
        """Return a copy without any batches."""
        clone = copy.copy(self)
        clone.reset()
        return clone

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides the sums: tensors, and values that JSON can hold."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, after the sums."""

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


class EpochMetric(Metric):
    """Base class of metrics whose value needs all batches of an epoch, such as a rank correlation.

    A custom one calls `keep` in `update` and computes the value from `kept` in `compute`. A training logs the
    value at the end of each epoch and for each validation, and not in between. What is kept takes memory on
    the device until then, and is saved in checkpoints, so that a resumed epoch is complete. A metric with
    another state defines `reset`, `state` and `load_state`, for several processes also `merge`, and counts
    its items in ``self.count``.

    Args:
        name: the name in logs and in the run store; by default the class attribute `name`.

    >>> import torch
    >>> from burnt.train import StepOutput
    >>> class MedianError(EpochMetric):
    ...     name = "median_error"
    ...     higher_is_better = False
    ...
    ...     def update(self, output):
    ...         self.keep((output.outputs - output.targets).abs())
    ...
    ...     def compute(self):
    ...         return self.kept()[0].median().item()
    >>> metric = MedianError()
    >>> for targets in ([1.0, 2.0], [30.0]):
    ...     metric.update(StepOutput(torch.tensor(0.0), torch.zeros(len(targets)), torch.tensor(targets)))
    >>> metric.compute()
    2.0
    """

    whole_epoch = True

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._batches: list[tuple[Tensor, ...]] = []

    def keep(self, *tensors: Tensor) -> None:
        """Keep copies of a batch's tensors, ``[n, ...]``, always as many, until the end of the epoch.

        Raises:
            MetricError: one of them is not a tensor with a first axis, or they differ in its size.
        """
        sizes = {len(t) if isinstance(t, Tensor) and t.dim() else None for t in tensors}
        if len(sizes) != 1 or None in sizes:
            raise MetricError(
                f"{self.name} cannot keep this",
                where=f"{type(self).__name__}.update",
                expected="tensors with the same number of items, [n, ...]",
                found=", ".join(str(tuple(getattr(t, "shape", (type(t).__name__,)))) for t in tensors),
            )
        self._batches.append(tuple(t.detach().clone() for t in tensors))
        self.count += len(tensors[0])

    def kept(self) -> tuple[Tensor, ...]:
        """Return what was kept of all batches, each joined along the first axis."""
        if len(self._batches) > 1:
            self._batches = [tuple(torch.cat(one) for one in zip(*self._batches, strict=True))]
        return self._batches[0] if self._batches else ()

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._batches = []

    def compute(self) -> Any:
        """Return the value over the batches so far, or several by name; waits for the device."""
        raise NotImplementedError(f"{type(self).__name__}.compute")

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: tensors, and values that JSON can hold."""
        return {"count": self.count} | {str(i): tensor for i, tensor in enumerate(self.kept())}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the batches of another process, of whose metric `state` returned this.

        Raises:
            MetricError: the metric has a state of its own, and no `merge`.
        """
        if type(self).state is not EpochMetric.state:
            raise MetricError(
                f"{self.name} cannot be merged over several processes",
                where=type(self).__name__,
                expected="a method merge(state), as the metric has a state of its own",
                found="the methods state and load_state",
            )
        other = self.fresh()
        other.load_state(state)
        self._batches += other._batches
        self.count += other.count

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        kept = [value for key, value in sorted(state.items(), key=lambda i: i[0].zfill(9)) if key != "count"]
        self._batches, self.count = [tuple(kept)] if kept else [], state["count"]


def check_mergeable(metrics: Sequence[Metric]) -> None:
    """Raise if the metric of each process cannot become one of all: its state is not what `keep` keeps."""
    for metric in metrics:
        kind = type(metric)
        own = isinstance(metric, EpochMetric) and kind.load_state is not EpochMetric.load_state
        if own and kind.merge is EpochMetric.merge:  # type: ignore[attr-defined]  # of an EpochMetric
            raise MetricError(
                f"{metric.name} cannot be merged over several processes",
                where=kind.__qualname__,
                expected="a method merge(state), which adds the batches of another process's state()",
                found="a state of its own: it defines load_state(state)",
            )


def update(metric: Metric, output: StepOutput, *, is_first: bool) -> None:
    """Update a metric; raise if it added nothing for the first batch of a training or an evaluation."""
    before = metric.count
    metric.update(output)
    if not is_first:
        return
    if output.count and metric.count == before and metric.total is None:
        raise MetricError(
            f"{metric.name} has added nothing for its first batch",
            where=f"{type(metric).__name__}.update",
            expected="a call of "
            + ("self.keep(tensor)" if isinstance(metric, EpochMetric) else "self.add(sums, number of items)"),
            found=f"none, of {output!r}",
            hint="a metric with a state of its own is an EpochMetric, which counts its items in self.count; "
            "a batch without items for a Metric is self.add(torch.zeros(...), 0)",
        )
    for key, value in metric.state().items():
        if not isinstance(value, Tensor) and not _is_json(value):
            raise MetricError(
                f"the state of {metric.name} cannot be saved",
                where=f"{type(metric).__name__}.state",
                expected="tensors, and values that JSON can hold",
                found=f"{key}: {type(value).__name__}",
            )


def _is_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def read(metrics: Sequence[Metric]) -> list[Sums]:
    """Copy the sums of several metrics to the host, with a single device synchronization."""
    totals = [metric.total.reshape(-1) for metric in metrics if metric.total is not None]
    if len({total.device for total in totals}) > 1:
        totals = [total.cpu() for total in totals]
    flat = torch.cat(totals).tolist() if totals else []
    sums: list[Sums] = []
    start = 0
    for metric in metrics:
        size = 0 if metric.total is None else metric.total.numel()
        sums.append((flat[start : start + size], metric.count))
        start += size
    return sums


def intervals(
    metrics: Sequence[Metric],
    now: Sequence[Sums],
    before: Sequence[Sums] | None,
    seconds: float | None = None,
) -> dict[str, float]:
    """Return name -> value over the batches between two readings of the sums, `seconds` apart.

    Left out are metrics that are not numbers, or had no new batch; those of a whole epoch, unless `before` is
    None; and those per second, unless `seconds` are given. The values of a metric that has several by name
    are called ``name/of the value``.
    """
    values: dict[str, float] = {}
    for i, metric in enumerate(metrics):
        if not metric.scalar or (metric.per_second and seconds is None):
            continue
        total, count = now[i]
        if metric.whole_epoch:
            if before is None and count:
                values |= _by_name(metric, metric.compute())
            continue
        if before is not None and before[i][1]:
            total = [a - b for a, b in zip(total, before[i][0], strict=True)]
            count -= before[i][1]
        if count:
            value = metric.value(total, count)
            values |= _by_name(metric, value / seconds if metric.per_second and seconds else value)
    return values


def _by_name(metric: Metric, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {f"{metric.name}/{key}": float(one) for key, one in value.items()}
    return {metric.name: value}


def metric_to_dict(metric: Any) -> dict[str, Any]:
    """Return a metric's name, class and arguments for JSON.

    The arguments are the attributes of the same names, and those of ``**options`` the attribute `options`; of
    a metric that lacks one, or holds one that JSON cannot give back, they are None.

    >>> from burnt.train.metrics import Accuracy
    >>> metric_to_dict(Accuracy(ignore_index=-100))["arguments"]
    {'ignore_index': -100, 'name': 'accuracy'}
    """
    kind = type(metric)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    # A script's module has another name when the script is imported.
    module = Path(file).stem if kind.__module__ == "__main__" and file else kind.__module__
    kinds = {one.name: one.kind for one in inspect.signature(kind).parameters.values()}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [name for name, one in kinds.items() if one not in variable]
    arguments: dict[str, Any] | None = None
    if all(hasattr(metric, name) for name in names):
        arguments = {name: getattr(metric, name) for name in names}
        arguments |= getattr(metric, "options", {}) if "options" in kinds.keys() - names else {}
        if isinstance(inner := arguments.get("metric"), torch.nn.Module):  # of torchmetrics
            arguments["metric"] = metric_to_dict(inner)
    arguments = arguments if _is_json(arguments) else None
    name = getattr(metric, "name", None)
    return {"name": name, "module": module, "class": kind.__qualname__, "arguments": arguments}


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
