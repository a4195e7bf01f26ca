"""The mean loss."""

from __future__ import annotations

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
