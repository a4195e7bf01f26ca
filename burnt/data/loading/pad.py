"""Pad: a batcher for items of different lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.data.batch import Batch, collate
from burnt.data.fitting import fill_values
from burnt.errors import DataError


class Pad:
    """A batcher that pads sequences to the longest in the batch, and collates what else there is.

    The batch gets two more fields: ``lengths``, ``[B]`` of int64, and ``padding_mask``, ``[B, T]``, which is
    True where there is padding, as `key_padding_mask` of the attention layers. Both are of the first padded
    field; those of an item must have the same length.

    Args:
        value: the padding; or one for each field that is padded. With a number, items that are sequences
            themselves become the field ``items``, and of items with fields all are padded that are sequences
            of numbers or tensors with an axis.
        multiple: lengths are rounded up to a multiple of it.
        length: pad to this length, and cut what is longer.
        side: where the padding is, ``"right"`` or ``"left"``.

    Raises:
        DataError: a setting is invalid; a batch has sequences that do not fit together.

    >>> Pad(0)([[1, 2, 3], [4]])
    Batch(items: (2, 3), lengths: (2,), padding_mask: (2, 3))
    >>> batch = Pad({"tokens": 0, "labels": -100})([
    ...     {"tokens": [5, 6], "labels": [6, 7], "id": 1},
    ...     {"tokens": [5], "labels": [6], "id": 2},
    ... ])
    >>> batch.labels, batch.id, batch.padding_mask
    (tensor([[   6,    7],
            [   6, -100]]), tensor([1, 2]), tensor([[False, False],
            [False,  True]]))
    """

    def __init__(
        self,
        value: float | Mapping[str, float] = 0,
        *,
        multiple: int = 1,
        length: int | None = None,
        side: str = "right",
    ) -> None:
        if side not in ("right", "left"):
            raise DataError("side= of Pad is invalid", expected='"right" or "left"', found=repr(side))
        if multiple < 1 or (length is not None and length < 1):
            raise DataError(
                "lengths of Pad are invalid",
                expected="multiple= and length= of at least 1",
                found=f"multiple={multiple}, length={length}",
            )
        self.value = value
        self.multiple = multiple
        self.length = length
        self.side = side

    def __call__(self, items: Sequence[Any]) -> Batch:
        """Return the batch of some items."""
        fields = [fields_of(item) for item in items]
        names = list(fields[0])
        other = next((field for field in fields if field.keys() != fields[0].keys()), None)
        if other is not None:
            raise DataError(
                "the items of a batch do not fit together",
                found=f"{', '.join(names)} in one item, {', '.join(other)} in another",
            )
        values = self.value
        if not isinstance(values, Mapping):
            values = dict.fromkeys(_sequences(fields[0]), values)
        if missing := [name for name in values if name not in names]:
            raise DataError(
                "Pad has a value for a field that the items lack",
                expected=f"some of: {', '.join(names)}",
                found=", ".join(missing),
            )
        if not values:
            raise DataError("the items have no field to pad", found=", ".join(names))
        padded: dict[str, Any] = {}
        lengths: list[int] | None = None
        for name in names:
            column = [field[name] for field in fields]
            if name not in values:
                padded[name] = collate(column)
                continue
            sequences = [torch.as_tensor(value)[: self.length] for value in column]
            of_field = [len(sequence) for sequence in sequences]
            if lengths is not None and of_field != lengths:
                raise DataError(
                    "the padded fields of an item differ in length",
                    where=name,
                    expected=f"lengths {lengths}",
                    found=str(of_field),
                    hint="pad fields of other lengths by a batcher of your own",
                )
            lengths = of_field
            padded[name] = self._pad(sequences, values[name], name)
        assert lengths is not None
        steps = torch.arange(self._size(max(lengths)))
        counts = torch.tensor(lengths)
        mask = steps >= counts[:, None] if self.side == "right" else steps < len(steps) - counts[:, None]
        return Batch(**padded, lengths=counts, padding_mask=mask)

    def _size(self, longest: int) -> int:
        return -(-(self.length or longest) // self.multiple) * self.multiple

    def _pad(self, sequences: Sequence[Tensor], value: float, name: str) -> Tensor:
        # Of an empty list, neither the dtype nor other axes are known.
        first = next((sequence for sequence in sequences if len(sequence)), sequences[0])
        size = self._size(max(len(sequence) for sequence in sequences))
        shape = len(sequences), size, *first.shape[1:]
        out = fill_values(value, first.dtype, f"Pad({name!r})").to(first.device).expand(shape).clone()
        for row, sequence in zip(out, sequences, strict=True):
            if len(sequence) and (sequence.shape[1:] != first.shape[1:] or sequence.dtype != first.dtype):
                raise DataError(
                    "the items of a batch do not fit together",
                    where=name,
                    expected=f"[length{''.join(f', {n}' for n in first.shape[1:])}] of {first.dtype}",
                    found=f"{tuple(sequence.shape)} of {sequence.dtype}",
                )
            start = 0 if self.side == "right" else size - len(sequence)
            if len(sequence):
                row[start:][: len(sequence)] = sequence
        return out


def fields_of(item: Any, name: str = "items") -> Mapping[str, Any]:
    """Return the fields of an item; what has none is the field `name` itself."""
    if isinstance(item, Mapping):
        return item
    if isinstance(item, Batch):
        return vars(item)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return {name: item}


def _sequences(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that are sequences of numbers."""
    return [
        name
        for name, value in fields.items()
        if (isinstance(value, list | tuple) and all(isinstance(part, int | float) for part in value))
        or (hasattr(value, "ndim") and value.ndim > 0)
    ]


def is_changed(item_transform: Any, batcher: Any) -> bool:
    """Whether a function of the user gets an item, which it may change in place, and its dataset with it."""
    return item_transform is not None or not isinstance(batcher, Pad | None)
