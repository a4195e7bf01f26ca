"""Operations on datasets: each returns a dataset that reads from the one it is given when an item is used.

They keep the names of the classes and categories; `column`, which returns a field of all items; and `take`,
which reads a whole batch at once, where it is right. The random ones depend only on their seed. The names are
those of Python's built-in functions where these do the same: use them as ``data.map``.
"""

from __future__ import annotations

import builtins
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.batch import copy_item
from burnt.data.dataset import Dataset
from burnt.data.files.dataframe import DataframeDataset
from burnt.data.files.hugging_face import HuggingFaceDataset
from burnt.data.views import (
    ArrayWindows,
    Cached,
    Concatenation,
    DatasetWindows,
    ItemStore,
    Mapped,
    Selection,
    column_of_items,
    note_place,
)
from burnt.errors import DataError, quantity


def as_dataset(source: Any) -> Any:
    """Return a dataset with items by index, and `take` only if that means a batch of the items at indices.

    `datasets.Dataset`, dataframes, tensors and arrays have a `take`, or an index, that means something else,
    so they are wrapped; a series becomes a list. Everything else with a length and items by index is returned
    as it is.

    >>> as_dataset(torch.arange(6).view(3, 2)).take(torch.tensor([2, 0]))
    tensor([[4, 5],
            [0, 1]])
    """
    if isinstance(source, np.ndarray) and source.dtype.kind not in "biufc":
        return list(source)  # of texts or objects, which no tensor holds
    if isinstance(source, Tensor | np.ndarray):
        return Rows(source)
    if hasattr(source, "to_frame") and hasattr(source, "to_list"):  # a series of pandas or polars
        return source.to_list()
    if hasattr(source, "select_columns") and hasattr(source, "with_format"):
        return HuggingFaceDataset(source)
    if hasattr(source, "__arrow_c_stream__") and not hasattr(source, "__getitems__"):
        return DataframeDataset(source)
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise DataError(
            "this is not a dataset",
            expected="a length and items by index",
            found=type(source).__name__,
            hint="list(...) makes one of an iterable" if hasattr(source, "__iter__") else None,
        )
    return source


class Rows:
    """The entries of a tensor or array along its first axis."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        return self._values[index]

    def take(self, indices: Tensor) -> Tensor:
        """The values at these places, in one step."""
        if isinstance(self._values, Tensor):
            return self._values[indices.to(self._values.device)]
        return torch.from_numpy(self._values[indices.numpy()])


T = TypeVar("T")
R = TypeVar("R")


def map(dataset: Dataset[T], function: Callable[[T], R]) -> Dataset[R]:
    """Return the dataset of ``function(item)``, called each time that an item is used.

    For random changes of items, use a loader's `item_transform`, whose generator repeats after a resume.

    Args:
        dataset: any dataset, or a sequence.
        function: applied to each item; for loaders with spawned workers it must be defined in a module.

    >>> squares = map(range(10), lambda number: number**2)
    >>> len(squares), squares[3]
    (10, 9)
    """
    _check_callable(function, "map")
    return Mapped(as_dataset(dataset), function)


def filter(dataset: Dataset[T], predicate: Callable[[T], Any]) -> Dataset[T]:
    """Return the items for which ``predicate(item)`` is true; it is called for every item at once.

    `select` with a mask is faster where a column decides: ``select(rows, rows.column("age") >= 18)``.

    >>> even = filter(range(10), lambda number: number % 2 == 0)
    >>> list(even)
    [0, 2, 4, 6, 8]
    """
    _check_callable(predicate, "filter")
    dataset = as_dataset(dataset)
    kept = []
    for index in range(len(dataset)):
        item = copy_item(dataset[index])
        try:
            if predicate(item):
                kept.append(index)
        except Exception as error:
            note_place(error, "while filtering", dataset, index)
            raise
    return Selection(dataset, np.array(kept, np.int64))


def select(
    dataset: Dataset[T], indices: slice | range | Sequence[int] | Sequence[bool] | Tensor
) -> Dataset[T]:
    """Return the items at indices, or those where a mask is true.

    Args:
        dataset: any dataset, or a sequence.
        indices: a slice, or integers ``[k]`` in any order, repeated or not, negative ones from the end; or a
            mask ``[n]`` of bool.

    Raises:
        DataError: an index is out of range, or a mask has another length than the dataset.

    >>> import torch
    >>> list(select("abcdef", [5, 0, 0])), list(select("abcdef", slice(2)))
    (['f', 'a', 'a'], ['a', 'b'])
    >>> list(select("abc", torch.tensor([True, False, True])))
    ['a', 'c']
    """
    dataset = as_dataset(dataset)
    length = len(dataset)
    if isinstance(indices, slice):
        return Selection(dataset, np.arange(length, dtype=np.int64)[indices])
    chosen = np.asarray(indices)
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iub"):
        raise DataError(
            "invalid indices",
            expected="a slice, integers [k] or a mask [n] of bool",
            found=f"{chosen.dtype} of shape {list(chosen.shape)}",
        )
    if chosen.dtype.kind == "b":
        if len(chosen) != length:
            raise DataError("a mask needs the length of its dataset", expected=length, found=len(chosen))
        return Selection(dataset, np.flatnonzero(chosen))
    chosen = chosen.astype(np.int64)
    outside = chosen[(chosen < -length) | (chosen >= length)]
    if len(outside):
        raise DataError(
            "an index is out of range", expected=f"below {length}, the number of items", found=int(outside[0])
        )
    return Selection(dataset, np.where(chosen < 0, chosen + length, chosen))


@explain_arguments(
    train_size="sizes come by position: split(dataset, 0.8)",
    test_size="sizes come by position: split(dataset, 0.8)",
    lengths="sizes come by position: split(dataset, 0.8)",
    random_state="did you mean 'seed'?",
    generator="did you mean 'seed'?",
)
def split(
    dataset: Dataset[T],
    *sizes: float,
    seed: int = 0,
    shuffle: bool = True,
    stratify: str | ArrayLike | None = None,
) -> list[Dataset[T]]:
    """Return disjoint parts of a dataset that together have all its items.

    Args:
        dataset: any dataset, or a sequence.
        sizes: fractions of the dataset, or numbers of items. One: that part and the rest. Several: all
            parts, whose sizes add up to 1, or to the number of items.
        seed: seed of the order that the items are drawn in.
        shuffle: False cuts the dataset in its own order, for example by time.
        stratify: labels ``[n]``, or the name of their column: each part has every label in the same
            proportion, to one item.

    Raises:
        DataError: sizes that do not fit, a part without items, or labels that are not one for each item.

    >>> train, valid = split(range(100), 0.9, seed=0)
    >>> len(train), len(valid)
    (90, 10)
    >>> [len(part) for part in split(range(100), 0.8, 0.1, 0.1)]
    [80, 10, 10]
    """
    dataset = as_dataset(dataset)
    length = len(dataset)
    counts = _counts(sizes, length)
    if stratify is not None:
        if not shuffle:
            raise DataError("a split by labels is shuffled", found="shuffle=False and stratify=")
        parts = _stratified(_labels(dataset, stratify), counts, _random(seed))
    else:
        order = _random(seed).permutation(length) if shuffle else np.arange(length)
        parts = np.split(order, np.cumsum(counts)[:-1])
    return [Selection(dataset, part) for part in parts]


def chunks(dataset: Dataset[T], count: int) -> list[Dataset[T]]:
    """Return a dataset in `count` parts, each of consecutive items, whose lengths differ by at most one.

    >>> [list(part) for part in chunks(range(7), 3)]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    dataset = as_dataset(dataset)
    if not 1 <= count <= len(dataset):
        raise DataError(
            "a dataset cannot be cut into so many parts",
            expected=f"1 to {len(dataset)}, the number of items",
            found=count,
        )
    return [Selection(dataset, part) for part in np.array_split(np.arange(len(dataset)), count)]


def shuffle(dataset: Dataset[T], seed: int = 0) -> Dataset[T]:
    """Return all items in one random order. A loader with ``shuffle=True`` has a new order in every epoch.

    >>> sorted(shuffle("abcd", seed=1))
    ['a', 'b', 'c', 'd']
    """
    dataset = as_dataset(dataset)
    return Selection(dataset, _random(seed).permutation(len(dataset)))


def sample(
    dataset: Dataset[T],
    size: float,
    *,
    weights: ArrayLike | None = None,
    replacement: bool = False,
    seed: int = 0,
) -> Dataset[T]:
    """Return items drawn at random, once: the same in every epoch.

    Args:
        dataset: any dataset, or a sequence.
        size: the number of items to draw, an int, or a float that is multiplied with the length.
        weights: ``[n]``, not negative: an item is drawn with a probability proportional to its weight. To
            draw all classes equally often: ``weights = (1 / torch.bincount(labels))[labels]``.
        replacement: whether an item can be drawn several times.
        seed: seed of the random draws.

    Raises:
        DataError: more items than there are, without replacement; or weights that do not fit.

    >>> len(sample(range(100), 0.25)), len(sample(range(100), 300, replacement=True))
    (25, 300)
    >>> set(sample("ab", 50, weights=[0, 1], replacement=True))
    {'b'}
    """
    dataset = as_dataset(dataset)
    length = len(dataset)
    is_fraction = isinstance(size, float | np.floating) and math.isfinite(size)
    count = round(size * length) if is_fraction else size
    if not isinstance(count, int | np.integer) or count < 1:
        raise DataError(
            "no items would be drawn", expected="a positive number, or fraction", found=f"size={size}"
        )
    shares = None if weights is None else _weights(weights, length)
    available = length if shares is None else int(np.count_nonzero(shares))
    if (count > available and not replacement) or available == 0:
        raise DataError(
            "there are not enough items to draw from",
            expected=f"at most {quantity(available, 'item')}"
            + ("" if shares is None else " of positive weight"),
            found=count,
            hint="replacement=True draws items several times" if available else None,
        )
    random = _random(seed)
    if replacement:
        chosen = (
            random.integers(length, size=count) if shares is None else random.choice(length, count, p=shares)
        )
    elif shares is None:
        chosen = random.permutation(length)[:count]
    else:
        # The smallest of exponential variables with these rates is a draw by weight, the next the next draw.
        with np.errstate(divide="ignore"):
            arrivals = random.exponential(size=length) / shares
        chosen = np.argsort(arrivals, kind="stable")[:count]
    return Selection(dataset, chosen.astype(np.int64))


def windows(source: Any, size: int, *, stride: int = 1, drop_last: bool = True) -> Dataset[Any]:
    """Return the windows of consecutive items, or of consecutive entries of a tensor.

    A window of a dataset is a batch: the items as `take` or `collate` joins them, ``[size, ...]`` each.
    Windows of text for a language model, with inputs and targets: ``windows(tokens, 129, stride=128)``, of
    which ``window[:-1]`` are inputs and ``window[1:]`` targets.

    Args:
        source: a dataset; a tensor ``[n, ...]``; or a NumPy array, such as a file of tokens that is mapped
            into memory, ``np.memmap``: integers become int64.
        size: the length of a window.
        stride: how far the start of a window is from the start of the one before it.
        drop_last: False adds a shorter window for the items at the end that no full one has.

    Raises:
        DataError: a size or stride below 1, or no window at all.

    >>> import torch
    >>> list(windows(torch.arange(7), 3, stride=2))
    [tensor([0, 1, 2]), tensor([2, 3, 4]), tensor([4, 5, 6])]
    >>> list(windows(range(5), 3, stride=3, drop_last=False))
    [tensor([0, 1, 2]), tensor([3, 4])]
    """
    if size < 1 or stride < 1:
        raise DataError(
            "a window needs a size and a stride", expected="at least 1", found=f"{size}, {stride}"
        )
    is_array = isinstance(source, Tensor | np.ndarray)
    if not is_array:
        source = as_dataset(source)
    length = len(source)
    rest = length - size
    count = rest // stride + 1 if rest >= 0 else 0
    end = (count - 1) * stride + size if count else 0
    if not drop_last and end < length and count * stride < length:
        count += 1
    if count == 0:
        raise DataError(
            "there is no full window", expected=f"at least {size} items", found=length, hint="drop_last=False"
        )
    kind = ArrayWindows if is_array else DatasetWindows
    return kind(source, size, stride, count)


def concat(*datasets: Dataset[T]) -> Dataset[T]:
    """Return the items of all datasets, one dataset after the other.

    Raises:
        DataError: no datasets, or they have different classes.

    >>> list(concat("ab", "c"))
    ['a', 'b', 'c']
    """
    if not datasets:
        raise DataError("there is nothing to concatenate", expected="one dataset or more", found="none")
    sources = [as_dataset(dataset) for dataset in datasets]
    for name in ("classes", "categories"):
        named = [getattr(source, name) for source in sources if hasattr(source, name)]
        for other in named[1:]:
            if other != named[0]:
                raise DataError(
                    f"the datasets have different {name}, so that a number means different things",
                    expected=named[0],
                    found=other,
                    hint="categories= of a dataset sets the order of its classes and categories",
                )
    return Concatenation(sources)


def cache(dataset: Dataset[T], path: str | os.PathLike[str] | None = None, *, key: str = "") -> Dataset[T]:
    """Return a dataset that keeps each item after its first use, for slow reading or mapping.

    In memory, each worker process of a loader keeps those that it has read, and an item is handed out again
    as it is: loaders and `map` copy it for functions that change it in place. On disk, all processes and
    later runs share what one has computed.

    Args:
        dataset: any dataset, or a sequence.
        path: a file for the items, on a local disk; None keeps them in memory. It holds numbers, text, bytes,
            tensors, arrays, and lists, tuples, dicts and batches of these.
        key: describes what the items depend on, ``"resized to 224"``. A file that was written with another
            key, or for another number of items, is refused: items that changed otherwise are not noticed.

    Raises:
        DataError: the file is of another dataset, cannot be used, or does not take such an item.

    >>> numbers = cache(map(range(3), lambda number: print("computing") or number))
    >>> numbers[2], numbers[2]
    computing
    (2, 2)
    """
    dataset = as_dataset(dataset)
    return Cached(dataset, {} if path is None else ItemStore(path, len(dataset), key))


def _check_callable(function: Any, name: str) -> None:
    if not callable(function):
        raise DataError(
            f"data.{name} needs a function of an item", found=type(function).__name__,
            hint=f"the dataset comes first: data.{name}(dataset, function)",
        )  # fmt: skip


def _random(seed: int) -> np.random.Generator:
    # The key keeps these orders apart from a loader's with the same seed.
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence(seed & 0xFFFF_FFFF_FFFF_FFFF, spawn_key=(1,)))
    )


def _counts(sizes: Sequence[float], length: int) -> list[int]:
    whole = [isinstance(size, int | np.integer) for size in sizes]
    expected = "fractions that add up to 1, or numbers of items that add up to all"
    given = ", ".join(builtins.map(str, sizes))
    fits = all(isinstance(size, int | float | np.number) and size > 0 for size in sizes)
    if not sizes or not fits or (any(whole) and not all(whole)):
        hint = "split(dataset, 0.8, 0.2)"
        raise DataError("a split needs sizes", expected=expected, found=given or "none", hint=hint)
    everything = length if all(whole) else 1.0
    total = sum(sizes)
    if len(sizes) == 1:
        sizes = [sizes[0], everything - sizes[0]]
    elif not math.isclose(total, everything):
        raise DataError("the sizes of a split do not add up", expected=everything, found=f"{given}: {total}")
    counts = _apportion(length, np.array(sizes) * (length / everything), np.arange(len(sizes)))
    if min(counts) < 1:
        raise DataError(
            "a part of the split would be empty",
            expected="an item or more in each part",
            found=f"{given} of {quantity(length, 'item')}",
        )
    return [int(count) for count in counts]


def _apportion(total: int, exact: NDArray[np.float64], ties: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return whole numbers that add up to a total, each less than 1 from the exact one.

    The largest remainders are rounded up; among equal ones, those whose `ties` are smaller.
    """
    counts = np.floor(exact + 1e-9).astype(np.int64)
    ranks = np.lexsort((ties, counts - exact))
    counts[ranks[: total - counts.sum()]] += 1
    return counts


def _labels(dataset: Any, stratify: Any) -> NDArray[np.int64]:
    """Return the number of each item's label, ``[n]``."""
    labels = stratify
    if isinstance(stratify, str):
        labels = (
            dataset.column(stratify) if hasattr(dataset, "column") else column_of_items(dataset, stratify)
        )
    values = np.asarray(labels)
    if values.shape != (len(dataset),):
        raise DataError(
            "a split by labels needs one label for each item",
            expected=[len(dataset)],
            found=list(values.shape),
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _stratified(
    labels: NDArray[np.int64], counts: Sequence[int], random: np.random.Generator
) -> list[NDArray[np.int64]]:
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    by_label = np.split(order, np.cumsum(np.bincount(labels))[:-1])
    parts = []
    for count in counts:
        left = np.array([len(group) for group in by_label])
        share = _apportion(count, left * (count / left.sum()), random.permutation(len(left)))
        part = [group[:taken] for group, taken in zip(by_label, share, strict=True)]
        by_label = [group[taken:] for group, taken in zip(by_label, share, strict=True)]
        parts.append(random.permutation(np.concatenate(part)))
    return parts


def _weights(weights: ArrayLike, length: int) -> NDArray[np.float64]:
    """Return weights as probabilities."""
    values = np.asarray(weights, np.float64)
    if values.shape != (length,) or not np.isfinite(values).all() or (values < 0).any():
        raise DataError(
            "invalid weights of the items",
            expected=f"{length} finite numbers that are not negative",
            found=f"shape {list(values.shape)}, from {values.min()} to {values.max()}"
            if values.size
            else "none",
        )
    return values / (values.sum() or 1)
