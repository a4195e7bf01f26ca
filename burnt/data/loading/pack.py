"""Pack: documents of any length in rows of a fixed length, without padding between them; Pad."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.data.batch import Batch, collate
from burnt.data.fitting import fill_values
from burnt.data.loading.samplers import digest_of, item_lengths
from burnt.errors import DataError


class Pad:
    """A batcher that pads sequences to the longest in the batch, and collates what else there is.

    The batch gets two more fields: ``lengths``, ``[B]`` of int64, and ``padding_mask``, ``[B, T]``, which is
    True where there is padding, as `key_padding_mask` of the attention layers. Both are of the first padded
    field; an item's must have the same length.

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


Integers = np.ndarray[Any, np.dtype[np.int64]]


class Pack:
    """Rows of `length` tokens from documents, each token exactly once in an epoch.

    A document is a sequence of token ids, ``[n]``, or a mapping of several such fields of equal length. A
    batch has these fields, ``[B, length]`` each, and

    - ``labels``: the next token of the same document, `ignore_index` at a document's end and in padding.
      Where a row ends inside a document, the label is the first token of its next row. Documents that have a
      field of this name keep it, and it is padded with `ignore_index`.
    - ``positions``: counted from 0 in each piece of a document.
    - ``segments``: 1, 2, ... for the pieces in a row, 0 in padding. `segment_mask` makes of it a mask for
      the attention layers, `segment_starts` the offsets that `burnt.kernels.attention` takes.

    Args:
        length: the number of tokens in a row.
        lengths: ``[n]``, integers: the length of each document; if None, the `Loader` reads every document
            once when it is built.
        field: the field that holds the tokens, and its name in the batch.
        split: documents follow each other and are cut where a row ends, so that only the last row has
            padding. With False, a document that fits a row stays whole, and rows are filled by best fit,
            longest documents first.
        pad: the token in padding; other fields get 0.
        ignore_index: the value of ``labels`` that the loss leaves out, as in `nn.CrossEntropy`.

    Raises:
        DataError: an invalid length, or documents of other lengths than `lengths` says.

    >>> from burnt.data import Loader
    >>> loader = Loader([[1, 2, 3], [4, 5], [6, 7, 8, 9]], batch_size=2, pack=Pack(5))
    >>> batch = next(iter(loader))
    >>> batch.tokens
    tensor([[1, 2, 3, 4, 5],
            [6, 7, 8, 9, 0]])
    >>> batch.labels[0], batch.segments[0]
    (tensor([   2,    3, -100,    5, -100]), tensor([1, 1, 1, 2, 2]))
    """

    def __init__(
        self,
        length: int,
        *,
        lengths: Sequence[int] | Tensor | None = None,
        field: str = "tokens",
        split: bool = True,
        pad: int = 0,
        ignore_index: int = -100,
    ) -> None:
        if length < 1:
            raise DataError("the length of packed rows is invalid", expected="at least 1", found=length)
        self.length = length
        self.field = field
        self.split = split
        self.pad = pad
        self.ignore_index = ignore_index
        self._lengths: Any = lengths

    def prepare(self, dataset: Any) -> None:
        """Take the lengths of the documents; called by the `Loader`."""
        given = self._document_length if self._lengths is None else self._lengths
        self._lengths = item_lengths(dataset, given, "documents")
        if not self._lengths.any():
            raise DataError("the documents are empty", expected="a document with a token among them")
        self._digest = digest_of(self._lengths)
        if self.split:
            self.num_rows = -(-int(self._lengths.sum()) // self.length)
            return
        # Which lengths share a row is the same in every epoch: only the documents that have them change.
        _, _, sizes = self._pieces(np.arange(len(self._lengths)), by_document=True)
        self._row_of_rank = _best_fit(np.sort(sizes)[::-1], self.length)
        self.num_rows = int(self._row_of_rank.max()) + 1

    def arrange(self, order: Integers, generator: np.random.Generator | None) -> tuple[Tensor, Integers]:
        """Arrange the documents of an epoch, ``[n]`` in its order, in rows; a generator shuffles whole ones.

        Returns the pieces, ``[p, 5]`` of int64: row, column, document, start in it, size; sorted by row; and
        the first piece of each row, ``[rows]``.
        """
        document, start, size = self._pieces(order, by_document=not self.split)
        if self.split:
            end = np.cumsum(size)
            row = (end - 1) // self.length
        else:
            ranked = np.argsort(-size, kind="stable")
            document, start, size = document[ranked], start[ranked], size[ranked]
            rows = self._row_of_rank
            if generator is not None:
                rows = generator.permutation(self.num_rows)[rows]
            by_row = np.argsort(rows, kind="stable")
            document, start, size, row = document[by_row], start[by_row], size[by_row], rows[by_row]
            end = np.cumsum(size)
        first = np.searchsorted(row, np.arange(self.num_rows))
        column = end - size - (end - size)[first][row]
        return torch.from_numpy(np.stack([row, column, document, start, size], axis=1)), first

    def _pieces(self, order: Integers, *, by_document: bool) -> tuple[Integers, Integers, Integers]:
        """Cut documents every `length` tokens, of each document or of all one after the other.

        Returns the document, the start in it and the size of each piece.
        """
        order = order[self._lengths[order] > 0]
        lengths = self._lengths[order]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        if by_document:
            counts = -(-lengths // self.length)
            of = np.repeat(np.arange(len(order)), counts)
            start = (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * self.length
        else:
            cuts = np.sort(np.concatenate([starts, np.arange(0, ends[-1], self.length)]), kind="stable")
            cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])]
            of = np.searchsorted(starts, cuts, side="right") - 1
            start = cuts - starts[of]
        stop = np.append(np.where(of[1:] == of[:-1], start[1:], lengths[of[:-1]]), lengths[-1])
        return order[of], start, stop - start

    def batch(self, documents: Mapping[int, Any], pieces: Tensor, rows: int) -> Batch:
        """Put documents, by their index in the dataset, together to a batch of so many rows.

        `pieces` are those of `arrange` in these rows, the first of which counts as 0.
        """
        fields = {
            index: {name: torch.as_tensor(value) for name, value in self._document(item).items()}
            for index, item in documents.items()
        }
        for index, columns in fields.items():
            for name, column in columns.items():
                if tuple(column.shape) != (int(self._lengths[index]),):
                    raise DataError(
                        "a document has another length than was said when it was packed",
                        where=f"item {index}, {name}",
                        expected=f"[{self._lengths[index]}]",
                        found=tuple(column.shape),
                        hint="drop other fields by item_transform=, which must keep the lengths",
                    )
        first = next(iter(fields.values()))
        derived = "labels" not in first
        fills: dict[str, tuple[Any, str]] = dict.fromkeys(first, (0, "Pack"))
        fills |= {self.field: (self.pad, "pad"), "labels": (self.ignore_index, "ignore_index")}
        dtypes = {name: column.dtype for name, column in first.items()}
        dtypes.setdefault("labels", torch.int64)
        out = {
            name: fill_values(fills[name][0], dtype, fills[name][1]).repeat(rows, self.length)
            for name, dtype in dtypes.items()
        }
        out |= {name: torch.zeros(rows, self.length, dtype=torch.int64) for name in ("positions", "segments")}
        last_row, segment = -1, 0
        for row, column, index, start, size in pieces.tolist():
            segment = segment + 1 if row == last_row else 1
            last_row = row
            for name, values in fields[index].items():
                out[name][row, column : column + size] = values[start : start + size]
            if derived:
                following = fields[index][self.field][start + 1 : start + 1 + size]
                out["labels"][row, column : column + len(following)] = following
            out["positions"][row, column : column + size] = torch.arange(size)
            out["segments"][row, column : column + size] = segment
        return Batch(**out)

    def state(self) -> dict[str, Any]:
        """Return what decides the rows."""
        return {"length": self.length, "lengths": self._digest, "split": self.split}

    def _document(self, item: Any) -> Mapping[str, Any]:
        fields = fields_of(item, self.field)
        if self.field not in fields:
            raise DataError(
                "a document has no field with tokens",
                expected=self.field,
                found=", ".join(fields),
                hint="name it: Pack(..., field=...)",
            )
        return fields

    def _document_length(self, item: Any) -> int:
        return len(self._document(item)[self.field])


def segment_mask(segments: Tensor, *, causal: bool = True) -> Tensor:
    """Return a mask that hides other documents: an `attn_mask` of the attention layers.

    Args:
        segments: ``[B, L]``, integers, as in batches of `Pack`.
        causal: whether to hide later positions, too.

    Returns:
        ``[B, L, L]``, boolean: True where a query must not see a key. `burnt.kernels.attention` takes its
        negation, ``~mask[:, None]``.

    >>> segment_mask(torch.tensor([[1, 1, 2]]))
    tensor([[[False,  True,  True],
             [False, False,  True],
             [ True,  True, False]]])
    """
    hidden = segments[:, :, None] != segments[:, None, :]
    if causal:
        length = segments.shape[1]
        hidden |= torch.ones(length, length, dtype=torch.bool, device=segments.device).triu(1)
    return hidden


def segment_starts(segments: Tensor) -> Tensor:
    """Return where documents start in a batch that is laid out as one sequence, and its end.

    Args:
        segments: ``[B, L]``, integers, as in batches of `Pack`.

    Returns:
        ``[N + 1]`` of int32: `q_starts` of `burnt.kernels.attention` and ``cu_seqlens`` of others, for
        queries ``[1, H, B * L, D]``. Padding is a sequence of its own.

    >>> segment_starts(torch.tensor([[1, 1, 2], [1, 0, 0]]))
    tensor([0, 2, 3, 4, 6], dtype=torch.int32)
    """
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    at = starts.flatten().nonzero().squeeze(1)
    return torch.cat([at, at.new_tensor([segments.numel()])]).to(torch.int32)


def _best_fit(sizes: Integers, length: int) -> Integers:
    """Return the row of each size, ``[n]`` in descending order: the fullest row that has room (best fit)."""
    rows_with: list[list[int]] = [[] for _ in range(length + 1)]
    spaces = 0  # bit s is set if there is a row with space s left
    rows, count = [], 0
    for size in sizes.tolist():
        fitting = spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            row = rows_with[space].pop()
            if not rows_with[space]:
                spaces ^= 1 << space
        else:
            row, space, count = count, length, count + 1
        rows.append(row)
        if space > size:
            rows_with[space - size].append(row)
            spaces |= 1 << (space - size)
    return np.array(rows, np.int64)
