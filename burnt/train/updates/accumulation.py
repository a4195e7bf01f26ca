"""WindowGradients: the gradients of several micro-batches as those of their mean loss."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.gradients import Gradients


class WindowGradients:
    """The gradients of the mean loss over all items of a window, added up from those of its micro-batches.

    Each micro-batch's loss is the mean over its `count` items, so its gradients are weighted by that count.
    Sums of 16-bit gradients are in float32.

    >>> import torch
    >>> window = WindowGradients()
    >>> window.add(Gradients({"w": torch.tensor([1.0])}), count=3)
    >>> window.add(Gradients({"w": torch.tensor([5.0])}), count=1)
    >>> window.mean()["w"]
    tensor([2.])
    """

    def __init__(self) -> None:
        self._first: Gradients | None = None
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.count = 0

    def add(self, gradients: Gradients, count: int) -> None:
        """Add the gradients of a micro-batch's mean loss over `count` items, at least one."""
        if not self.count:
            self._first = gradients
        else:
            if self._first is not None:
                # Only now: the gradients of a single micro-batch are used as they are.
                self._add_weighted(self._first, self.count)
                self._first = None
            self._add_weighted(gradients, count)
        self.count += count

    def _add_weighted(self, gradients: Gradients, weight: int) -> None:
        sums, dense_sums, dense = self._sums, [], []
        for path, value in gradients.items():
            self._dtypes[path] = value.dtype
            value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
            total = sums.get(path)
            if total is None:
                sums[path] = value * weight  # a copy: torch may return one tensor for two parameters
            elif value.is_sparse and total.is_sparse:
                sums[path] = torch.add(total, value, alpha=weight).coalesce()
            elif total.is_sparse:
                sums[path] = value * weight + total
            elif value.is_sparse:
                total.add_(value, alpha=weight)
            else:
                dense_sums.append(total)
                dense.append(value)
        if dense:
            torch._foreach_add_(dense_sums, dense, alpha=weight)

    def mean(self) -> Gradients | None:
        """Return the gradients of the mean loss; None of a window without items."""
        if self._first is not None or not self.count:
            return self._first
        return Gradients({path: (s / self.count).to(self._dtypes[path]) for path, s in self._sums.items()})
