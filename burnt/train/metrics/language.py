"""Language models: perplexity, and how many tokens a second are trained on."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from burnt.errors import MetricError
from burnt.train.metrics.base import Metric
from burnt.train.metrics.tasks import class_axis, tensors_of
from burnt.train.step import StepOutput


class Perplexity(Metric):
    """The exponential of the mean cross-entropy of a token, over all tokens that count.

    Reads `outputs`, logits ``[n, length, vocabulary]`` or ``[n, vocabulary, length]``, and `targets`,
    ``[n, length]`` of an integer dtype. The cross-entropy is computed in float32 or wider.

    Args:
        ignore_index: a target value to ignore, such as padding.
        name: the name in logs and in the run store, as in `Metric`.

    >>> from burnt.train import StepOutput
    >>> perplexity = Perplexity()
    >>> logits, tokens = torch.zeros(2, 3, 50), torch.tensor([[4, 7, -100], [1, 2, 3]])
    >>> perplexity.update(StepOutput(torch.tensor(0.0), logits, tokens))
    >>> round(perplexity.compute(), 4)
    50.0
    """

    name = "perplexity"
    higher_is_better = False

    def __init__(self, ignore_index: int = -100, name: str | None = None) -> None:
        super().__init__(name)
        self.ignore_index = ignore_index

    def update(self, output: StepOutput) -> None:
        """Add the batch's cross-entropy and its number of tokens."""
        logits, targets = tensors_of(output, self.name)
        axis = class_axis(logits, targets)
        if axis is None or targets.is_floating_point():
            raise MetricError(
                f"{self.name} needs logits of tokens and their numbers",
                expected="outputs [n, length, vocabulary] and integer targets [n, length]",
                found=f"outputs {tuple(logits.shape)}, targets {tuple(targets.shape)}, {targets.dtype}",
            )
        rows = logits.movedim(axis, -1).flatten(0, -2)
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        tokens = targets.flatten().long()
        total = F.cross_entropy(rows, tokens, ignore_index=self.ignore_index, reduction="sum").double()
        self.add(torch.stack([total, (tokens != self.ignore_index).sum()]), targets.numel())

    def value(self, total: list[float], count: int) -> float:
        """Return the perplexity; NaN if no token counts, infinity if it is beyond float64."""
        if not total[1]:
            return math.nan
        mean = total[0] / total[1]
        return math.exp(mean) if mean < 709 else math.inf if mean == mean else math.nan


class TokensPerSecond(Metric):
    """The number of target tokens that a second of training takes, with its waits for data.

    A reading has it for the steps since the one before, as ``steps_per_second``; a validation has none.

    Args:
        ignore_index: a target value that does not count, such as padding.
        name: the name in logs and in the run store, as in `Metric`.
    """

    name = "tokens_per_second"
    higher_is_better = True
    per_second = True

    def __init__(self, ignore_index: int | None = -100, name: str | None = None) -> None:
        super().__init__(name)
        self.ignore_index = ignore_index

    def update(self, output: StepOutput) -> None:
        """Add the batch's number of tokens."""
        if not isinstance(output.targets, torch.Tensor):
            raise MetricError(
                f"{self.name} counts targets", expected="a tensor", found=type(output.targets).__name__
            )
        tokens, ignored = output.targets.detach(), self.ignore_index
        counted = torch.ones_like(tokens) if ignored is None else tokens != ignored
        self.add(counted.sum(), tokens.numel())

    def value(self, total: list[float], count: int) -> float:
        """Return the number of tokens, which the training divides by its seconds."""
        return total[0]
