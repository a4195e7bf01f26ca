"""TorchMetric: a metric of torchmetrics in a training. What is a sum becomes sums of burnt's own."""

from __future__ import annotations

import copy
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from burnt._modules import class_in
from burnt.errors import BurntError, MetricError, UnsupportedError
from burnt.train.metrics.base import EpochMetric, Metric
from burnt.train.step import StepOutput

Inputs = Callable[[StepOutput], Sequence[Any]]
"""Returns from a step's output what `update` of a torchmetrics metric takes."""


def torchmetrics_for(name: str) -> Any:
    """Return the package torchmetrics; raise an UnsupportedError if it is not installed."""
    if importlib.util.find_spec("torchmetrics") is None:
        raise UnsupportedError(
            f"{name} needs torchmetrics",
            expected="the package",
            found="it is not installed",
            hint='pip install "burnt[metrics]"',
        )
    import torchmetrics

    return torchmetrics


class TorchMetric(EpochMetric):
    """A metric of torchmetrics. Needs the package: ``pip install "burnt[metrics]"``.

    If all of its states are sums, it is like a `Metric`, logged between the ends of epochs too. Otherwise it
    has a value for each epoch and each validation, like an `EpochMetric`. Checkpoints have its state.
    `metrics=` also takes the torchmetrics object itself, for `outputs` and `targets` as they are.

    Args:
        metric: the object, such as ``torchmetrics.regression.SpearmanCorrCoef()``. It is copied.
        inputs: ``inputs(output) -> (preds, target)``: from a `StepOutput`, what its `update` takes; by
            default `outputs` and `targets`.
        name: the name in logs and in the run store; by default ``"spearman_corr_coef"``, from the class.
        higher_is_better: which values are better, where torchmetrics does not say.

    A value with one number for each class is logged as ``name/class``, with the names of the data set, and a
    dict by its keys.

    Raises:
        UnsupportedError: torchmetrics is not installed.
        MetricError: `metric` is not a single metric with states of its own: a MetricCollection, a wrapper.

    >>> import torch, torchmetrics
    >>> from burnt.train import StepOutput
    >>> metric = TorchMetric(torchmetrics.MeanMetric(), inputs=lambda output: (output.outputs,), name="size")
    >>> metric.update(StepOutput(torch.tensor(0.0), torch.tensor([1.0, 3.0])))
    >>> metric.compute()
    2.0
    """

    metric: Any = None

    def __init__(
        self,
        metric: Any,
        inputs: Inputs | None = None,
        name: str | None = None,
        higher_is_better: bool | None = None,
    ) -> None:
        package = torchmetrics_for(type(self).__name__)
        if isinstance(metric, Mapping):  # of `metric_to_dict`
            found = class_in(sys.modules.get(metric["module"]), metric["class"], package.Metric)
            if found is None or metric["arguments"] is None:
                raise ValueError(f"{metric['class']} is not imported, or does not hold its arguments")
            metric = found(**metric["arguments"])
        if not isinstance(metric, package.Metric):
            raise MetricError(
                "TorchMetric takes a metric of torchmetrics",
                expected="an object such as torchmetrics.regression.SpearmanCorrCoef()",
                found=f"the class {metric.__name__}" if isinstance(metric, type) else type(metric).__name__,
                hint="of a MetricCollection, each metric by its own TorchMetric"
                if isinstance(metric, package.MetricCollection)
                else None,
            )
        super().__init__(name or snake_case(type(metric).__name__))
        self.inputs, self.higher_is_better = inputs, higher_is_better
        self._adopt(copy.deepcopy(metric))

    def _adopt(self, metric: Any) -> None:
        """Take the torchmetrics object, and find out whether its states are sums."""
        from torchmetrics.utilities import dim_zero_sum

        metric.reset()
        metric.sync_on_compute = metric._to_sync = False  # the training adds up those of several processes
        others = [*metric.modules()][1:]
        if any(isinstance(one, torchmetrics_for(self.name).Metric) for one in others) or not metric._defaults:
            raise MetricError(
                f"{type(metric).__name__} keeps no state of its own, so that no checkpoint could have it",
                expected="a metric that adds states, not a wrapper of others",
                found=type(metric).__name__,
            )
        self.metric = metric
        if self.higher_is_better is None:
            self.higher_is_better = metric.higher_is_better
        self._shapes = {name: list(getattr(state, "shape", ())) for name, state in metric._defaults.items()}
        self.whole_epoch = any(
            isinstance(state, list) or metric._reductions[name] is not dim_zero_sum
            for name, state in metric._defaults.items()
        )

    def inputs_of(self, output: StepOutput) -> Sequence[Any]:
        """Return what the `update` of the torchmetrics object takes."""
        given = (output.outputs, output.targets) if self.inputs is None else self.inputs(output)
        return [_detached(one) for one in (given if isinstance(given, tuple | list) else (given,))]

    def update(self, output: StepOutput) -> None:
        """Add a batch; one without items is left out."""
        if not output.count:
            return
        # Contiguous, as MeanAbsoluteError and others call view(-1).
        inputs = [i.contiguous() if isinstance(i, Tensor) else i for i in self.inputs_of(output)]
        tensors = [one for one in inputs if isinstance(one, Tensor)]
        metric = self.metric
        if tensors and metric.device != tensors[0].device:
            metric.to(tensors[0].device)
        if not self.whole_epoch:
            metric.reset()
        try:
            metric.update(*inputs)
        except BurntError:
            raise
        except Exception as error:
            if any(tensor.is_meta for tensor in tensors):
                raise  # a check without values, which repeats it with some
            raise MetricError(
                f"{self.name} cannot take a batch",
                where=f"{type(metric).__name__}.update",
                found=f"{type(error).__name__}: {error}, from {output!r}",
                hint="inputs=lambda output: (...) returns what its update takes",
            ) from error
        if self.whole_epoch:
            self.count += output.count
            return
        states = metric.metric_state
        self._shapes = {name: list(state.shape) for name, state in states.items()}  # R2's grow at first
        dtype = torch.float32 if metric.device.type == "mps" else torch.float64
        self.add(torch.cat([state.reshape(-1).to(dtype) for state in states.values()]), output.count)

    def value(self, total: list[float], count: int) -> Any:
        """Return the value from sums of all states."""
        metric, start = self.metric.to("cpu"), 0
        for name, shape in self._shapes.items():
            default = metric._defaults[name]
            size = torch.Size(shape).numel()
            state = torch.tensor(total[start : start + size], dtype=torch.float64).reshape(shape)
            setattr(metric, name, state if default.is_floating_point() else state.to(default.dtype))
            start += size
        metric._update_count, metric._computed = 1, None
        value = self._numbers(metric.compute())
        metric.reset()
        return value

    def compute(self) -> Any:
        """Return the value over the batches so far, or the values by name; waits for the device.

        Raises:
            MetricError: there was no batch, or the value is not a number.
        """
        if not self.whole_epoch or not self.count:
            return Metric.compute(self)
        return self._numbers(self.metric.compute())

    def _numbers(self, value: Any) -> Any:
        """Return a value of torchmetrics as a number, or several by name."""
        if isinstance(value, Mapping):
            return {str(key): float(one) for key, one in value.items()}
        if isinstance(value, Tensor) and value.dim() == 1 and value.numel() > 1:
            numbers = value.tolist()
            return dict(zip(self.class_names(len(numbers)), numbers, strict=True))
        if isinstance(value, Tensor | float | int) and torch.as_tensor(value).numel() == 1:
            return float(value)
        raise MetricError(
            f"{self.name} is not a number",
            where=f"{type(self.metric).__name__}.compute",
            expected="a number, one for each class, or a dict of numbers",
            found=f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else type(value).__name__,
        )

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        if self.metric is not None:
            self.metric.reset()

    def fresh(self) -> Self:
        """Return a copy without any batches."""
        clone = copy.copy(self)
        clone.metric = copy.deepcopy(self.metric)
        clone.reset()
        return clone

    def state(self) -> dict[str, Any]:
        """Return the states of the torchmetrics object, if they are not sums."""
        if not self.whole_epoch:
            return {"shapes": self._shapes}
        state: dict[str, Any] = {"count": self.count}
        for name, value in self.metric.metric_state.items():
            state[name] = value
            if isinstance(value, list) and value and all(isinstance(one, Tensor) for one in value):
                state[name] = torch.cat([one.reshape(-1) for one in value])
                state[f"{name}.shapes"] = [list(one.shape) for one in value]
        return state

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the batches of another process, of whose metric `state` returned this."""
        if not self.count:
            self.load_state(state)
            return
        other = self.fresh()
        other.load_state(state)
        try:
            self.metric.merge_state(other.metric)
        except RuntimeError as error:
            raise MetricError(
                f"{self.name} cannot be merged over several processes",
                where=f"{type(self.metric).__name__}.merge_state",
                found=str(error),
            ) from error
        self.count += other.count

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        if not self.whole_epoch:
            self._shapes = dict(state["shapes"])
            return
        self.count = state["count"]
        for name in self.metric._defaults:
            value, shapes = state[name], state.get(f"{name}.shapes")
            if shapes is not None:
                parts = value.split([torch.Size(shape).numel() for shape in shapes])
                value = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
            if isinstance(value, Tensor):
                self.metric.to(value.device)
            setattr(self.metric, name, value)
        self.metric._update_count, self.metric._computed = int(self.count > 0), None


def wrapped(metric: Any) -> Any:
    """Return a metric of torchmetrics as a TorchMetric; anything else as it is."""
    package = sys.modules.get("torchmetrics")
    is_foreign = package is not None and isinstance(metric, package.Metric | package.MetricCollection)
    return TorchMetric(metric) if is_foreign else metric


def snake_case(name: str) -> str:
    """Return the name of a metric from its class's, without the task."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub("^(Binary|Multiclass|Multilabel)", "", name)).lower()


def _detached(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
