"""Find out on a few items whether a model's outputs for an item depend on the other items of its batch."""

from __future__ import annotations

import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt._independence import TOLERANCE, difference
from burnt.inspect.meta import batch_size_of, preserved_random_states, uncompiled
from burnt.inspect.specs import map_tensors, tensors_in
from burnt.nn.quantized import Quantized
from burnt.train.checkpoints.buffers import BufferCopies

_QUANTIZED = 0.02  # where a quantization takes one scale from the whole batch, as its users chose
_SIZE_TOLERANCE = 0.05  # more than rounding, which differs between batches of different sizes
_MAX_COPIED = 2**20  # elements of a container, tensor or array that is copied to undo changes

_MODULE_FIELDS = vars(torch.nn.Module()).keys()
_CONTAINERS = (list, deque, set, dict, OrderedDict, defaultdict, Counter)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

Run = Callable[..., list[Tensor]]
"""From rows to the tensors in their outputs; ``is_varied=True`` changes rounding and random numbers."""


def measure_item_dependence(
    model: torch.nn.Module, function: Callable[[Any], Any], arguments: Any
) -> float | None:
    """Return how far the outputs of an item differ between batches, relative to the largest; or 0.

    Items of a batch are run in pairs, or if the model does not take two, in batches of the same size of which
    one half is replaced. It is 0 if rounding, random numbers or calls before may be the reason, and if the
    model takes no such batches. It is None if the items of the batch are equal, which shows nothing.

    What this changes is undone in buffers, and in attributes of modules that are numbers, containers, tensors
    or random generators; not in other objects, nor in variables that a function encloses. Forward hooks,
    which may collect what they are called with, are not called, except those of `burnt.place` and
    `torch.nn.utils`, such as ``weight_norm``. Of the arguments, a tensor with as many rows as the first one
    has a row for each item.
    """
    count = batch_size_of(list(tensors_in(arguments))) or 0

    def run(*rows: int, is_varied: bool = False) -> list[Tensor]:
        def choose(tensor: Tensor) -> Tensor:
            tensor = tensor[list(rows)] if _has_rows(tensor, count) else tensor.clone()
            is_float = is_varied and tensor.is_floating_point()
            return tensor * (1 - torch.finfo(tensor.dtype).eps) if is_float else tensor

        # Of equal shapes, sums are rounded in the same way and random numbers are the same.
        chosen, seed = map_tensors(arguments, choose), int(is_varied)
        with _undone(model, seed), preserved_random_states(), uncompiled():
            torch.manual_seed(seed)
            return list(tensors_in(function(chosen)))

    limit = _QUANTIZED if has_one_scale(model) else TOLERANCE
    try:
        rows = _different_rows([t for t in tensors_in(arguments) if _has_rows(t, count)], count)
        if rows is None:
            return None
        try:
            return _compare_pairs(run, rows, limit)
        except Exception:  # a model may take only batches of some sizes

            def outputs(*rows: int) -> list[Tensor]:
                return [tensor for tensor in run(*rows) if _has_rows(tensor, count)]

            return _compare_halves(outputs, range(count), rows[:2], limit) or 0.0
    except Exception:  # is raised for the batch itself, too
        return 0.0


def _different_rows(tensors: Sequence[Tensor], count: int) -> list[int] | None:
    """Return two or three rows that differ from each other, the last one first; None if all are equal."""

    def differ_from(row: int) -> Tensor:
        return torch.stack([(t != t[row]).reshape(count, t[0].numel()).any(1).cpu() for t in tensors]).any(0)

    if count < 2:
        return None
    are_different = differ_from(count - 1)
    others = are_different.nonzero().flatten().tolist()
    if not others:
        return None
    middle = others[(len(others) - 1) // 2]
    third = (are_different & differ_from(middle)).nonzero().flatten().tolist()
    return [count - 1, middle, *third[:1]]


def _compare_pairs(run: Run, rows: Sequence[int], limit: float) -> float:
    first, second = rows[:2]
    pair, five = run(first, second), run(second, *[first] * 4)
    # Others have no row for each item, such as the states of two recurrent layers.
    indices = [
        i for i, (a, b) in enumerate(zip(pair, five, strict=False)) if _has_rows(a, 2) and _has_rows(b, 5)
    ]

    def outputs(*rows: int, is_varied: bool = False) -> list[Tensor]:
        found = run(*rows, is_varied=is_varied)
        return [found[i] for i in indices]

    explained = _compare_halves(outputs, rows[:2], rows[2:] or rows[:2], limit)
    if explained is not None:
        return explained
    pair = [pair[i] for i in indices]
    found = _difference(pair, [five[i] for i in indices], [0, 1], [1, 0])
    if found > _SIZE_TOLERANCE:
        noise = _difference(pair, outputs(first, second, is_varied=True), [0, 1], [0, 1])
        return _unless_explained(found, noise)
    return 0.0


def _compare_halves(run: Run, batch: Sequence[int], others: Sequence[int], limit: float) -> float | None:
    """Replace the items of each half of a batch by each of some others, and compare the other half.

    Returned is None if they differ by no more than the limit.
    """
    whole, places = run(*batch), list(range(len(batch)))
    found = 0.0
    for row in others:
        for kept in (places[: len(batch) // 2], places[len(batch) // 2 :]):
            replaced = [item if place in kept else row for place, item in enumerate(batch)]
            found = max(found, _difference(whole, run(*replaced), kept, kept))
    if found > limit:
        return _unless_explained(found, _difference(whole, run(*batch), places, places))
    return None


def _unless_explained(found: float, noise: float) -> float:
    """Return a difference, or 0 if there is a similar one between two runs of the same items."""
    return 0.0 if noise >= found / 10 else found


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
def _undone(model: torch.nn.Module, seed: int) -> Iterator[None]:
    """Context without forward hooks of users, which undoes changes of buffers and attributes."""
    buffers = BufferCopies(model)
    buffers.take()
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    copies: dict[int, Any] = {}
    for changed, before in attributes:
        for name, value in before.items():
            if name in _HOOKS:
                changed[name] = OrderedDict(
                    (key, hook)
                    for key, hook in value.items()
                    if type(hook).__module__.startswith(("torch.nn.utils.", "burnt.train.placement"))
                )
            elif name not in _MODULE_FIELDS:
                changed[name] = _copy(value, seed, copies)
    try:
        yield
    finally:
        for changed, before in attributes:
            changed.clear()
            changed.update(before)
        buffers.restore()


def _copy(value: Any, seed: int, copies: dict[int, Any]) -> Any:
    """Copy containers, and the tensors and arrays in them, if they are small; generators get a seed."""
    if id(value) in copies:
        return copies[id(value)]
    copied = value
    if type(value) is Tensor and value.layout == torch.strided and value.numel() <= _MAX_COPIED:
        copied = value.detach().clone()
    elif type(value) is np.ndarray and value.size <= _MAX_COPIED:
        copied = value.copy()
    elif type(value) is torch.Generator:
        copied = torch.Generator(value.device).manual_seed(seed)
    elif type(value) is np.random.Generator:
        copied = np.random.default_rng(seed)
    elif type(value) in (np.random.RandomState, random.Random):
        copied = type(value)(seed)
    elif type(value) in _CONTAINERS and len(value) <= _MAX_COPIED:
        copied = copy.copy(value)
        copies[id(value)] = copied  # it may contain itself
        if not isinstance(value, set):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                copied[key] = _copy(part, seed, copies)
    elif type(value) is tuple:
        copied = tuple(_copy(part, seed, copies) for part in value)
    copies[id(value)] = copied
    return copied


def _has_rows(tensor: Tensor, count: int) -> bool:
    is_plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized
    return is_plain and tensor.dim() > 0 and tensor.shape[0] == count


def _to_array(tensor: Tensor) -> Any:
    tensor = tensor.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
