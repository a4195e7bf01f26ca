"""Gather the outputs of many batches into one value on the CPU, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.data import Batch
from burnt.inspect.specs import map_tensors


def to_cpu(output: Any) -> Any:
    """Return a batch's output with its tensors on the CPU, detached."""
    # Not `burnt.data.move`: its copies may still be under way when the next line reads them.
    return map_tensors(output, lambda tensor: tensor.detach().cpu())


def gather(outputs: Sequence[Any], counts: Sequence[int | None]) -> Any:
    """Combine the outputs of batches, part by part.

    Returns:
        - tensors with a row for each item: one tensor; a list with a tensor for each item if rows of
          different batches differ in shape.
        - scalar tensors: one tensor with an element for each batch.
        - dicts, tuples, dataclasses and batches: the same with its parts combined.
        - lists with an entry for each item: one list; other lists: a list with its parts combined.
        - None: None.
        - anything else, and outputs of different structures: a list with an entry for each batch.

    >>> gather([{"y": torch.zeros(4, 2)}, {"y": torch.zeros(3, 2)}], [4, 3])["y"].shape
    torch.Size([7, 2])
    >>> [row.tolist() for row in gather([torch.zeros(1, 2), torch.ones(1, 3)], [1, 1])]
    [[0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    first = outputs[0]
    if any(type(output) is not type(first) for output in outputs):
        return list(outputs)
    if first is None:
        return None
    if isinstance(first, Tensor):
        return _gather_tensors(outputs, counts)
    if isinstance(first, list):
        return _gather_lists(outputs, counts)
    parts = [_parts(output) for output in outputs]
    if parts[0] is None or any(part is None or part.keys() != parts[0].keys() for part in parts):
        return list(outputs)
    columns = {name: [part[name] for part in parts if part is not None] for name in parts[0]}
    return _rebuild(first, {name: gather(column, counts) for name, column in columns.items()})


def _gather_tensors(tensors: Sequence[Tensor], counts: Sequence[int | None]) -> Any:
    if any(tensor.is_nested for tensor in tensors):
        return [row for tensor in tensors for row in tensor.unbind()]
    if all(tensor.dim() == 0 for tensor in tensors):
        return torch.stack(list(tensors))
    if not _have_an_entry_per_item(tensors, counts):
        return list(tensors)
    if len({(tensor.shape[1:], tensor.dtype) for tensor in tensors}) == 1:
        return torch.cat(list(tensors))
    return [row for tensor in tensors for row in tensor.unbind()]


def _gather_lists(lists: Sequence[list[Any]], counts: Sequence[int | None]) -> list[Any]:
    columns = list(zip(*lists, strict=False))
    are_fields = len({len(entries) for entries in lists}) == 1 and all(
        isinstance(column[0], Tensor) and _have_an_entry_per_item(column, counts) for column in columns
    )
    if are_fields and columns:  # such as the features of several levels
        return [gather(column, counts) for column in columns]
    if _have_an_entry_per_item(lists, counts):
        return [entry for entries in lists for entry in entries]
    if len({len(entries) for entries in lists}) == 1:
        return [gather(column, counts) for column in columns]
    return list(lists)


def _have_an_entry_per_item(values: Sequence[Any], counts: Sequence[int | None]) -> bool:
    """Whether each batch's value has an entry for each of its items; assumed where the number is unknown."""
    pairs = zip(values, counts, strict=True)
    return all(
        not (isinstance(value, Tensor) and value.dim() == 0) and count in (None, len(value))
        for value, count in pairs
    )


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a container; None if it is none."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Batch):
        return vars(value)
    if isinstance(value, tuple):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return None


def _rebuild(first: Any, parts: dict[Any, Any]) -> Any:
    if type(first) is dict:
        return parts
    if isinstance(first, tuple) and not hasattr(first, "_fields"):
        return type(first)(parts.values())
    if isinstance(first, tuple):
        return type(first)(*parts.values())
    if isinstance(first, Mapping | Batch):  # the outputs of transformers are both mapping and dataclass
        return type(first)(**parts)
    return dataclasses.replace(first, **parts)
