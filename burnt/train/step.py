"""StepOutput: the result of one step on one batch, for the loop and the metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from burnt.errors import DefinitionError


@dataclasses.dataclass(slots=True)
class StepOutput:
    """The return value of a `training_step` or `validation_step`.

    Args:
        loss: a scalar, ``[]``: the mean over the batch.
        outputs: the model's outputs, for the metrics.
        targets: the expected outputs, for the metrics.
        count: the number of items that `loss` averages; by default the size of the targets' first axis, or of
            the outputs' if the targets are not a tensor. It weights the means over an epoch. For a loss that
            leaves out padding, a mean over tokens: ``int((labels != ignore_index).sum())``.
        log: values to log, by name, as `burnt.log` takes them.

    Raises:
        DefinitionError: `count` is not a number of items.

    >>> import torch
    >>> StepOutput(torch.tensor(0.5), outputs=torch.zeros(8, 10)).count
    8
    """

    loss: Tensor
    outputs: Any = None
    targets: Any = None
    count: int | None = None
    log: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        given: Any = self.count
        if given is None:
            tensors = [t for t in (self.targets, self.outputs) if isinstance(t, Tensor) and t.dim()]
            self.count = len(tensors[0]) if tensors else 1
        elif not isinstance(given, int) or given < 0:
            raise DefinitionError(
                "a StepOutput needs a number of items",
                where="count",
                expected="an int of at least 0",
                found=repr(given),
                hint="int(count)" if isinstance(given, Tensor) else None,
            )

    def __repr__(self) -> str:
        fields = (f"{name}: {_shape_text(getattr(self, name))}" for name in ("loss", "outputs", "targets"))
        return f"{type(self).__name__}({', '.join(fields)}, count={self.count})"


def _shape_text(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    return "None" if value is None else type(value).__name__


@dataclasses.dataclass(slots=True, repr=False)
class ClassificationOutput(StepOutput):
    """The output of a classifier's step.

    Args:
        loss: the mean over the batch, as in `StepOutput`.
        outputs: logits, ``[n, classes]``, or with more axes, ``[n, *, classes]`` or ``[n, classes, *]``.
        targets: labels, ``[n]`` or ``[n, *]``, of an integer dtype.
        count: the number of items that `loss` averages, as in `StepOutput`.
        log: values to log, by name, as in `StepOutput`.
    """
