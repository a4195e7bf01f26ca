"""Check on two items that a model's outputs for an item do not depend on the other items of its batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from burnt._independence import TOLERANCE, difference
from burnt.data.batch import clone
from burnt.inspect.meta import batch_size_of, preserved_random_states, uncompiled
from burnt.inspect.rounding import rounding_tolerance
from burnt.inspect.specs import map_tensors, tensors_in
from burnt.train.buffers import BufferCopies

__all__ = ["IndependentItems"]

_SIZE_MATTERS = 0.5  # a difference that is more than rounding at a very small result


class IndependentItems:
    """Runs the last and the first item of a batch without the others, to compare with the batch's outputs.

    What these runs change in the model's buffers and attributes and in random generators is undone. Nothing
    is run where the model has forward hooks, which may collect what they are called with.

    Args:
        model: the model.
        function: gets the arguments of a call, and returns the outputs.
        arguments: of the batch; a tensor with as many rows as the first one has a row for each item.
    """

    def __init__(self, model: torch.nn.Module, function: Callable[[Any], Any], arguments: Any) -> None:
        self._model, self._function = model, function
        self._count = count = batch_size_of(list(tensors_in(arguments))) or 0
        self._outputs: Any = None
        if count < 2 or any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
            return
        # The last item and one in the middle; and each with another one, to see what a difference comes from.
        middle = (count - 1) // 2
        self._rows = [-1, middle]
        pairs = (self._rows, [-1, 0 if count > 2 else -1], [0, middle])
        select = functools.partial(_select, count)
        try:
            self._pairs = [map_tensors(arguments, functools.partial(select, rows)) for rows in pairs]
            self._outputs = self._run(self._pairs[0])
        except Exception:
            # A model may take only batches of some sizes; other errors are raised for the batch itself.
            self._outputs = None

    def dependence(self, output: Any) -> float | None:
        """Return how far the outputs of an item differ between batches, relative to the largest; or None.

        None stands for what rounding and random numbers may explain, and where nothing can be compared.
        """
        if self._outputs is None:
            return None
        whole, pair = _rows(output, self._count, self._rows), _rows(self._outputs, 2, [0, 1])
        found = self._difference(whole, pair)
        # Of other shapes are outputs that are padded to the longest one of a batch, and products of all items.
        is_ragged = any(
            a is not None and b is not None and a.shape != b.shape for a, b in zip(whole, pair, strict=False)
        )
        if found <= self._tolerance() and not is_ragged:
            return None
        outputs, *others = (self._run(pair) for pair in self._pairs)
        # Of equal shapes, sums are rounded alike and random numbers are the same.
        for row, other in enumerate(others):
            changed = self._difference(_rows(outputs, 2, [row]), _rows(other, 2, [row]))
            if changed > self._tolerance():
                return max(found, changed)
        again = self._run(self._pairs[0], seed=1)
        is_random = self._difference(_rows(outputs, 2, [0, 1]), _rows(again, 2, [0, 1])) > 0
        return found if found > _SIZE_MATTERS and not is_random else None

    def _run(self, arguments: Any, seed: int | None = None) -> Any:
        with self._undone(), preserved_random_states(), uncompiled():
            if seed is not None:
                torch.manual_seed(seed)
            return self._function(clone(arguments))

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Context that undoes what a call changes in buffers, and which values attributes have."""
        buffers = BufferCopies(self._model)
        buffers.take()
        attributes = [(vars(module), dict(vars(module))) for module in self._model.modules()]
        try:
            yield
        finally:
            for changed, before in attributes:
                changed.clear()
                changed.update(before)
            buffers.restore()

    def _difference(self, rows: list[Tensor | None], others: list[Tensor | None]) -> float:
        """Compare rows of outputs, as far as both are there and have one shape."""
        if len(rows) != len(others):
            return 0.0  # such as lists of items
        tolerance = self._tolerance()
        return max(
            (
                difference(_to_array(a), _to_array(b))
                for a, b in zip(rows, others, strict=True)
                if a is not None and b is not None and a.shape == b.shape
                # Rounding may change integers, such as the class with the largest of two equal scores.
                if tolerance == TOLERANCE or a.is_floating_point()
            ),
            default=0.0,
        )

    def _tolerance(self) -> float:
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        return rounding_tolerance(self._model, *map(torch.get_autocast_dtype, kinds))


def _rows(output: Any, count: int, rows: list[int]) -> list[Tensor | None]:
    """Return rows of the tensors in an output; None for one that does not have `count` of them."""
    return [tensor[rows] if _has_rows(tensor, count) else None for tensor in tensors_in(output)]


def _select(count: int, rows: list[int], tensor: Tensor) -> Tensor:
    return tensor[rows] if _has_rows(tensor, count) else tensor


def _has_rows(tensor: Tensor, count: int) -> bool:
    is_plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized
    return is_plain and tensor.dim() > 0 and tensor.shape[0] == count


def _to_array(tensor: Tensor) -> Any:
    tensor = tensor.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
