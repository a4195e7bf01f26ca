"""The mean loss."""

from __future__ import annotations

from collections.abc import Iterable

from burnt.errors import MetricError
from burnt.train.metrics.base import Metric
from burnt.train.step import StepOutput


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
