"""Loops, sequences and optionals: sequences are lists, an empty optional is None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.errors import ShapeError


def item(values: Sequence[Any], index: Tensor | int) -> Any:
    """Return an element of a sequence."""
    return values[int(index)]


def sequence(*values: Any) -> list[Any]:
    """Return a sequence."""
    return list(values)


def sequence_length(values: Sequence[Any], device: torch.device | None = None) -> Tensor:
    """Return the number of elements as a tensor."""
    return torch.tensor(len(values), dtype=torch.int64, device=device)


def insert(values: Sequence[Any], value: Any, position: Tensor | int | None = None) -> list[Any]:
    """Return a sequence with another element before a position, by default at the end."""
    index = len(values) if position is None else int(position)
    result = list(values)
    result.insert(index, value)
    return result


def erase(values: Sequence[Any], position: Tensor | int = -1) -> list[Any]:
    """Return a sequence without an element, by default the last one."""
    result = list(values)
    del result[int(position)]
    return result


def concat_sequence(values: Sequence[Any], axis: int, new_axis: bool = False) -> Any:
    """Concatenate the elements of a sequence along an axis, or along a new one."""
    is_text = isinstance(values[0], np.ndarray)
    if new_axis:
        return np.stack(values, axis) if is_text else torch.stack(tuple(values), axis)
    return np.concatenate(values, axis) if is_text else torch.cat(tuple(values), axis)


def split_sequence(
    x: Tensor, split: Tensor | None = None, axis: int = 0, keepdim: bool = True
) -> list[Tensor]:
    """Split a tensor into parts of the sizes `split`: one for all, or one per part.

    None are parts of one element, whose axis stays with `keepdim`.
    """
    if split is None:
        parts = torch.split(x, 1, axis)
        return list(parts) if keepdim else [part.squeeze(axis) for part in parts]
    return list(torch.split(x, int(split) if split.dim() == 0 else split.tolist(), axis))


def has_element(value: Any = None, device: torch.device | None = None) -> Tensor:
    """Whether an optional holds something."""
    return torch.tensor(value is not None, device=device)


def get_element(value: Any) -> Any:
    """Return what an optional holds."""
    if value is None:
        raise ShapeError("an optional is empty", expected="a tensor or a sequence", found="None")
    return value


def loop(
    trip_count: Tensor | int | None,
    condition: Tensor | bool | None,
    body: Callable[..., Any],
    carried: Sequence[Any],
    empty: Sequence[tuple[Sequence[int], torch.dtype]] = (),
    device: torch.device | None = None,
) -> tuple[Any, ...]:
    """Run a loop; return the last carried values, and the collected values stacked along a new first axis.

    `trip_count` None is no limit, `condition` None begins. `body` takes the iteration, the condition and the
    carried values, and returns the next condition, the carried values, and what is collected of each
    iteration; `empty` has shape and dtype of each element that is collected, for a loop without iterations.

    >>> one = torch.tensor(1)
    >>> loop(3, None, lambda i, go, x: (go, x + x, x), [one], [((), torch.int64)])
    (tensor(8), tensor([1, 2, 4]))
    """
    limit = None if trip_count is None else int(trip_count)
    go = torch.tensor(True, device=device) if condition is None else torch.as_tensor(condition)
    values, collected = list(carried), [list[Any]() for _ in empty]
    iteration = 0
    while (limit is None or iteration < limit) and bool(go):
        go, *results = body(torch.tensor(iteration, device=device), go, *values)
        values = results[: len(values)]
        for elements, element in zip(collected, results[len(values) :], strict=True):
            elements.append(element)
        iteration += 1
    stacked = [
        concat_sequence(elements, 0, True)
        if elements
        else torch.zeros((0, *shape), dtype=dtype, device=device)
        for elements, (shape, dtype) in zip(collected, empty, strict=True)
    ]
    return (*values, *stacked)


def scan(
    body: Callable[..., Any],
    states: Sequence[Tensor],
    inputs: Sequence[Tensor],
    input_axes: Sequence[int],
    reverse_inputs: Sequence[bool],
    output_axes: Sequence[int],
    reverse_outputs: Sequence[bool],
) -> tuple[Any, ...]:
    """Run a body over slices of the inputs; return the last states, and the outputs.

    `body` takes the states and a slice of each input, and returns the next states and a slice of each output.
    The steps are along `input_axes`, of one size, from the end where `reverse_inputs` says so; outputs have
    them along `output_axes`, the first step's slice last with `reverse_outputs`.
    """
    count = inputs[0].shape[input_axes[0]]
    values: list[Any] = list(states)
    collected = [list[Any]() for _ in output_axes]
    for step in range(count):
        slices = [
            x.select(axis, count - 1 - step if backwards else step)
            for x, axis, backwards in zip(inputs, input_axes, reverse_inputs, strict=True)
        ]
        results = body(*values, *slices)
        values = list(results[: len(values)])
        for elements, element in zip(collected, results[len(values) :], strict=True):
            elements.append(element)
    outputs = [
        concat_sequence(elements[::-1] if backwards else elements, axis, True)
        for elements, axis, backwards in zip(collected, output_axes, reverse_outputs, strict=True)
    ]
    return (*values, *outputs)


def batched_scan(
    body: Callable[..., Any],
    states: Sequence[Tensor],
    inputs: Sequence[Tensor],
    reverse_inputs: Sequence[bool],
    num_outputs: int,
) -> tuple[Any, ...]:
    """Run `scan` for each item of a batch, as version 8 does: axis 0 is the batch, axis 1 the steps."""
    axes = [0] * len(inputs), reverse_inputs, [0] * num_outputs, [False] * num_outputs
    rows = [
        scan(body, [s[i] for s in states], [x[i] for x in inputs], *axes) for i in range(inputs[0].shape[0])
    ]
    return tuple(concat_sequence(column, 0, True) for column in zip(*rows, strict=True))
