"""Find out on a few items whether a model's outputs for an item depend on the other items of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from burnt._independence import TOLERANCE, difference
from burnt.inspect.meta import batch_size_of, preserved_random_states, uncompiled
from burnt.inspect.specs import map_tensors, tensors_in
from burnt.nn.quantized import Quantized
from burnt.train.buffers import BufferCopies

__all__ = ["has_one_scale", "item_dependence"]

_QUANTIZED = 0.02  # where a quantization takes one scale from the whole batch, as its users chose
_BY_SIZE = 0.05  # more than rounding, which differs between batches of different sizes


def item_dependence(model: torch.nn.Module, function: Callable[[Any], Any], arguments: Any) -> float:
    """Return how far the outputs of an item differ between batches, relative to the largest; or 0.

    Items of a batch are run in pairs, and what this changes in buffers, in the values of attributes and in
    random generators is undone. It is 0 if rounding or random numbers may be the reason, if the model does
    not take two items, and if it has forward hooks, which may collect what they are called with.

    Args:
        model: the model.
        function: gets the arguments of a call, and returns the outputs.
        arguments: of a batch; a tensor with as many rows as the first one has a row for each item.
    """
    count = batch_size_of(list(tensors_in(arguments))) or 0
    if count < 2 or any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        return 0.0

    def run(*rows: int, seed: int = 0) -> list[Tensor]:
        chosen = map_tensors(arguments, lambda t: t[list(rows)] if _has_rows(t, count) else t.clone())
        with _undone(model), preserved_random_states(), uncompiled():
            torch.manual_seed(seed)
            return [tensor for tensor in tensors_in(function(chosen)) if _has_rows(tensor, len(rows))]

    last, middle, first = count - 1, (count - 1) // 2, 0
    try:
        pair = run(last, middle)
        # Of equal shapes, sums are rounded alike and random numbers are the same.
        others = run(last, first if count > 2 else last), run(first, middle)
        found = max(_difference(pair, other, [row], [row]) for row, other in enumerate(others))
        if found > (_QUANTIZED if has_one_scale(model) else TOLERANCE):
            return found
        found = _difference(pair, run(middle, *[last] * 4), [0, 1], [1, 0])
        is_random = found > _BY_SIZE and _difference(pair, run(last, middle, seed=1), [0, 1], [0, 1]) > 0
    except Exception:
        # A model may take only batches of some sizes; other errors are raised for the batch itself.
        return 0.0
    return found if found > _BY_SIZE and not is_random else 0.0


def _difference(
    outputs: Sequence[Tensor], others: Sequence[Tensor], rows: list[int], other_rows: list[int]
) -> float:
    """Compare rows of outputs, as far as they have one shape: some are padded to the longest of a batch."""
    pairs = [(a[rows], b[other_rows]) for a, b in zip(outputs, others, strict=False)]
    return max((difference(_to_array(a), _to_array(b)) for a, b in pairs if a.shape == b.shape), default=0.0)


def has_one_scale(model: torch.nn.Module) -> bool:
    """Whether a layer quantizes its input with one scale for the whole batch."""
    return any(isinstance(m, Quantized) and m.scheme.activations == "dynamic_tensor" for m in model.modules())


@contextmanager
def _undone(model: torch.nn.Module) -> Iterator[None]:
    buffers = BufferCopies(model)
    buffers.take()
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for changed, before in attributes:
            changed.clear()
            changed.update(before)
        buffers.restore()


def _has_rows(tensor: Tensor, count: int) -> bool:
    is_plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized
    return is_plain and tensor.dim() > 0 and tensor.shape[0] == count


def _to_array(tensor: Tensor) -> Any:
    tensor = tensor.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
