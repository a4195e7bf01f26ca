"""The loaders: an order that is a function of (seed, epoch), batches that are reached without the others."""

import copy
import dataclasses
import io
import json
import random
from collections import UserDict
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from burnt import data
from burnt.data import Batch, InMemoryDataset, IterableLoader, Loader, TensorDataset, as_loader
from burnt.errors import DataError
from tests.data.pictures import png
from tests.messages import raises


class Counting:
    """Items 0, 1, ... that remember who was asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.touched: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.touched.append(index)
        return index


def flat(batches) -> list[int]:
    return [item for batch in batches for item in batch.tolist()]


@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    seed=st.integers(-(2**63), 2**64),
    epoch=st.integers(0, 1000),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_every_epoch_is_a_permutation_in_full_batches_but_the_last(
    length, batch_size, seed, epoch, shuffle, drop_last
):
    drop_last = drop_last and length >= batch_size
    loader = Loader(range(length), batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
    batches = list(loader.epoch(epoch))
    sizes = [len(batch) for batch in batches]
    full, rest = divmod(length, batch_size)
    assert sizes == [batch_size] * full + ([rest] if rest and not drop_last else [])
    assert len(batches) == len(loader) == loader.num_batches()
    items = flat(batches)
    assert len(set(items)) == len(items) == (full * batch_size if drop_last else length)
    assert items == loader.order(epoch)[: len(items)].tolist()
    if not shuffle:
        assert items == list(range(len(items)))
    again = Loader(range(length), batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
    assert flat(again.epoch(epoch)) == items


def test_epochs_and_seeds_differ_and_the_past_and_the_global_state_do_not_matter():
    orders = {
        (s, e): tuple(Loader(range(50), 7, shuffle=True, seed=s).order(e).tolist())
        for s in (0, 1)
        for e in (0, 1)
    }
    assert len(set(orders.values())) == 4
    loader = Loader(range(50), 7, shuffle=True, seed=1)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    for seed in range(3):
        torch.manual_seed(seed)
        np.random.seed(seed)
        assert tuple(flat(loader.epoch(1))) == orders[1, 1]
    torch.set_rng_state(states[0])
    list(loader.epoch(5))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_the_order_stays_what_it_was():
    # A checkpoint of last year must be resumed in the order in which it was begun.
    assert Loader(range(10), 10, shuffle=True, seed=3).order(2).tolist() == [0, 8, 5, 1, 7, 3, 4, 6, 2, 9]


@given(st.integers(1, 30), st.integers(1, 7), st.integers(0, 40), st.booleans())
def test_skipping_touches_no_item_that_is_skipped(length, batch_size, start, shuffle):
    dataset = Counting(length)
    loader = Loader(dataset, batch_size, shuffle=shuffle, seed=2)
    whole = flat(loader.epoch(3))
    dataset.touched.clear()
    rest = flat(loader.epoch(3, start))
    assert rest == dataset.touched == whole[start * batch_size :]


def test_transform_has_a_generator_of_the_batch():
    def jitter(batch, generator):
        return batch + torch.rand(batch.shape, generator=generator)

    def loader(seed=0):
        return Loader(torch.arange(12.0), 5, transform=jitter, seed=seed)

    first = list(loader().epoch(1))
    state = torch.get_rng_state()
    for batch, again in zip(first, loader().epoch(1), strict=True):
        assert torch.equal(batch, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(next(loader().epoch(1, start=2)), first[2])
    noise = [batch - batch.floor() for batch in first[:2]]
    assert not torch.equal(*noise)
    assert not torch.equal(next(loader().epoch(2)), first[0])
    assert not torch.equal(next(loader(seed=1).epoch(1)), first[0])


def test_a_dataset_with_take_gives_whole_batches_to_the_batcher():
    x = torch.arange(14.0).view(7, 2)
    loader = Loader(TensorDataset(x=x), 3, shuffle=True, seed=1, batcher=lambda batch: (batch.x, len(batch)))
    order = loader.order(0)
    batches = list(loader.epoch(0))
    assert [size for _, size in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([rows for rows, _ in batches]), x[order])


class Several(Counting):
    """Has items by lists of indices, and a `take` of another meaning, as datasets of Hugging Face."""

    bad = None

    def __getitems__(self, indices):
        if self.bad in indices:
            raise OSError("disk")
        return [super(Several, self).__getitem__(index) for index in indices]

    def __getitem__(self, index):
        if index == self.bad:
            raise OSError("disk")
        return super().__getitem__(index)

    def take(self, count):
        raise AssertionError("the first items were asked for")


def test_a_dataset_with_getitems_gives_lists_of_items_and_a_bad_one_is_named():
    dataset = Several(7)
    loader = Loader(dataset, 3, shuffle=True, item_transform=lambda item, generator: item * 10)
    assert flat(loader.epoch(0)) == [item * 10 for item in loader.order(0).tolist()]
    assert dataset.touched == loader.order(0).tolist()
    dataset.bad = 4
    with pytest.raises(DataError) as caught:
        list(Loader(dataset, 3))
    assert (caught.value.where, caught.value.found) == ("item 4 of Several", "OSError: disk")
    subset = torch.utils.data.Subset(dataset, [5, 4, 3])
    with pytest.raises(DataError, match="item 1 of Subset"):
        list(Loader(subset, 3))


def test_a_batcher_gets_the_list_of_items():
    assert list(Loader("abcde", 2, batcher="".join)) == ["ab", "cd", "e"]


def test_iterating_goes_from_epoch_to_epoch():
    loader = Loader(range(9), 4, shuffle=True)
    assert flat(loader) == loader.order(0).tolist()
    assert flat(loader) == loader.order(1).tolist()


def test_state_is_json_and_tells_orders_apart():
    def state(items=9, batch_size=4, shuffle=True, seed=5, **settings):
        return Loader(range(items), batch_size, shuffle=shuffle, seed=seed, **settings).state()

    assert json.loads(json.dumps(state())) == state()
    for other in ({"seed": 6}, {"shuffle": False}, {"batch_size": 3}, {"items": 8}, {"drop_last": True}):
        assert state(**other) != state()


# iterables of other makes


def test_a_torch_dataloader_is_a_loader():
    data = torch.utils.data.TensorDataset(torch.arange(10), torch.arange(10) * 2)
    loader = as_loader(torch.utils.data.DataLoader(data, batch_size=4), "train")
    assert loader.num_batches() == 3
    assert [x.tolist() for x, _ in loader.epoch(0)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [x.tolist() for x, _ in loader.epoch(0, start=2)] == [[8, 9]]
    assert list(loader.epoch(0, start=7)) == []
    assert loader.state() == {"batches": 3}


def test_skipping_in_an_iterable_is_done_before_the_iterator_is_returned():
    served = []

    class Source:
        def __iter__(self):
            for i in range(5):
                served.append(i)
                yield i

    batches = as_loader(Source(), "train").epoch(0, start=3)
    assert served == [0, 1, 2]
    assert list(batches) == [3, 4]


def test_set_epoch_is_called_wherever_it_is():
    reported = []

    class Sampler(list):
        def set_epoch(self, epoch):
            reported.append(epoch)

    class Distributed(list):
        sampler = Sampler()

    class Bucketed(list):
        sampler = [0]
        batch_sampler = Sampler()

    for source in (Sampler([1]), Distributed([1]), Bucketed([1])):
        list(as_loader(source, "train").epoch(4))
    assert reported == [4, 4, 4]
    distributed = torch.utils.data.DistributedSampler(range(6), num_replicas=1, rank=0, shuffle=True)
    loader = as_loader(torch.utils.data.DataLoader(range(6), sampler=distributed), "train")
    assert flat(loader.epoch(0)) != flat(loader.epoch(1))
    assert flat(loader.epoch(1)) == flat(loader.epoch(1))


def test_as_loader_leaves_a_loader_alone_and_knows_no_length_of_a_stream():
    loader = Loader(range(3), 1)
    assert as_loader(loader, "train") is loader

    class Stream:
        def __iter__(self):
            return iter([Batch(x=torch.zeros(1))])

    stream = as_loader(Stream(), "train")
    assert isinstance(stream, IterableLoader)
    assert stream.num_batches() is None


def test_tensors_arrays_and_frames_have_rows_as_items():
    values = torch.arange(12.0).view(6, 2)
    frame = pandas.DataFrame(values.numpy(), columns=["a", "b"], index=list("uvwxyz"))
    for source in (values, values.numpy()):
        for settings in ({}, {"item_transform": lambda item, generator: item}):
            batches = Loader(source, 4, shuffle=True, **settings).epoch(3)
            assert torch.equal(torch.cat(list(batches)), values[Loader(range(6), 4, shuffle=True).order(3)])
    for made in (frame, polars.from_pandas(frame), pyarrow.Table.from_pandas(frame)):
        (batch,) = Loader(made, 9)
        assert torch.equal(torch.stack([batch.a, batch.b], 1), values)
    for series in (frame["b"], polars.from_pandas(frame)["b"]):
        (batch,) = Loader(series, 9)
        assert batch.tolist() == [1, 3, 5, 7, 9, 11]
    assert list(Loader(np.array(["u", "v"]), 2)) == [["u", "v"]]


# messages

DATASET = "valid= is a dataset, whose items are not batches"


@pytest.mark.parametrize(
    ("data", "batch_size", "words"),
    [
        ([], 2, ["the dataset is empty", "a list of length 0", "filter"]),
        (TensorDataset(x=torch.zeros(0, 3)), 2, ["the dataset is empty", "a TensorDataset of length 0"]),
        (range(3), 0, ["batch_size is not a number of items", "batch_size of at least 1", "0"]),
        (range(3), -1, ["batch_size is not a number of items", "-1"]),
        (range(3), None, ["batch_size is not a number of items", "None"]),
        (range(3), 4, ["an epoch would have no batch", "at least 4 items, with drop_last", "3 items"]),
    ],
)
def test_what_a_loader_refuses(data, batch_size, words):
    with raises(DataError, *words):
        Loader(data, batch_size, drop_last=batch_size == 4)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (iter([1]), ["valid= is an iterator", "once", "a list of batches", "list_iterator"]),
        ((i for i in [1]), ["valid= is an iterator", "generator"]),
        (7, ["valid= gives no batches", "int"]),
        ("abc", ["valid= gives no batches", "str"]),
        (torch.zeros(4, 2), ["valid= gives no batches", "Tensor"]),
        ({"a": [1]}, ["valid= gives no batches", "dict"]),
        (TensorDataset(x=torch.zeros(3)), [DATASET, "TensorDataset", "Loader(dataset, batch_size"]),
        (datasets.Dataset.from_dict({"x": [1, 2]}), [DATASET]),
        (pandas.DataFrame({"x": [1, 2]}), [DATASET]),
        ([], ["valid= has no batches", "is its dataset empty?"]),
    ],
)
def test_what_gives_no_batches(source, words):
    with raises(DataError, *words):
        as_loader(source, "valid")


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    rest: Any = ()


class Made:
    """Items that are new at every access: what every dataset must look like to its transforms."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self.items[index])


def double(value: Any) -> Any:
    """Double all numbers of an item in place."""
    if isinstance(value, torch.Tensor):
        value.mul_(2)
    elif isinstance(value, np.ndarray):
        value *= 2
    elif isinstance(value, list):
        value[:] = [double(part) if not isinstance(part, int | str) else part * 2 for part in value]
    elif isinstance(value, dict | UserDict):
        for name in list(value):
            value[name] = double(value[name])
        value["seen"] = 1
    elif isinstance(value, tuple):
        for part in value:
            double(part)
    elif isinstance(value, Image.Image):
        value.paste(value.getpixel((0, 0)) + 1, (0, 0, 1, 1))
    else:
        double(value.x)
        double(getattr(value, "rest", ()))
    return value


def flatten(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, Image.Image):
        return value.getpixel((0, 0))
    if isinstance(value, dict | UserDict):
        return {name: flatten(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [flatten(part) for part in value]
    return value if isinstance(value, int | str) else flatten(vars(value))


SHARED = {
    "tensor": lambda: torch.ones(4, 2),
    "array": lambda: np.ones((4, 2)),
    "TensorDataset": lambda: TensorDataset(x=torch.ones(4, 2)),
    "torch's": lambda: torch.utils.data.TensorDataset(torch.ones(4, 2), torch.arange(4)),
    "dicts": lambda: [{"x": torch.ones(2), "y": [1, 2]} for _ in range(4)],
    "nested": lambda: [{"a": ({"x": [torch.ones(2), [np.ones(2)]]},)} for _ in range(4)],
    "tuples": lambda: [(np.ones(2), torch.ones(2)) for _ in range(4)],
    "other mappings": lambda: [UserDict(x=torch.ones(2)) for _ in range(4)],
    "dataclasses": lambda: [Sample(torch.ones(2), [1, torch.ones(1)]) for _ in range(4)],
    "batches": lambda: InMemoryDataset([Batch(x=torch.ones(2)) for _ in range(4)]),
    "pictures": lambda: [Image.new("L", (2, 2), 5) for _ in range(4)],
    "expanded": lambda: torch.ones(1, 2).expand(4, 2),
    "windows": lambda: data.windows(torch.ones(12), 3, stride=3),
    "windows of arrays": lambda: data.windows(np.ones(12), 3, stride=3),
    "select": lambda: data.select(TensorDataset(x=torch.ones(8, 2)), [0, 2, 2, 3]),
    "concat": lambda: data.concat([torch.ones(2)] * 2, [torch.ones(2)] * 2),
    "cache": lambda: data.cache([{"x": torch.ones(2)}] * 4),
    "the same item": lambda: [torch.ones(2)] * 4,
}


@pytest.mark.parametrize("kind", SHARED)
def test_an_item_is_the_transforms_own(kind: str) -> None:
    """What a transform does in place is gone at the next access, as with datasets that make their items."""
    dataset = SHARED[kind]()
    made = Made([copy.deepcopy(dataset[index]) for index in range(4)])
    expected = [flatten(double(made[index])) for index in range(4)]
    options = {
        "item_transform": lambda item, generator: double(item),
        "batcher": lambda items: list(map(flatten, items)),
    }
    items = dataset if hasattr(dataset, "__iter__") else list(map(dataset.__getitem__, range(4)))
    loaders = [Loader(source, 4, **options) for source in (dataset, data.map(dataset, lambda item: item))]
    for loader in (*loaders, data.StreamLoader(data.Shards([0], lambda _: items), 4, **options)):
        for epoch in range(3):
            assert next(loader.epoch(epoch)) == expected
    mapped = data.map(dataset, double)
    for _ in range(3):
        assert [flatten(mapped[index]) for index in range(4)] == expected
    batched = Loader(dataset, 4, batcher=lambda items: [flatten(double(item)) for item in items])
    data.filter(dataset, lambda item: double(item) is not None)
    for epoch in range(0 if hasattr(batched.dataset, "take") else 3):
        assert next(batched.epoch(epoch)) == expected


def test_workers_hand_out_items_as_they_were() -> None:
    dataset = TensorDataset(x=torch.ones(8, 2))
    for workers in ("2 threads", 1):
        loader = Loader(dataset, 2, item_transform=lambda item, generator: double(item), workers=workers)
        for epoch in range(3):
            assert all(bool((batch.x == 2).all()) for batch in loader.epoch(epoch))
        loader.close()
    assert bool((dataset.columns["x"] == 1).all())


def test_a_value_that_is_filled_in_is_not_shared(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"tags": ["a"]}\n{}\n')
    lines = data.JsonLinesDataset(path, types={"more": str}, columns=["tags"], missing={"tags": []})
    frame = data.DataframeDataset(polars.DataFrame({"tags": [["a"], None]}), missing={"tags": []})
    for rows in (lines, frame):
        for _ in range(2):
            item = rows[1]
            assert item["tags"] == []
            item["tags"].append("b")


def test_items_without_a_function_are_not_copied(monkeypatch) -> None:
    copied = []
    monkeypatch.setattr("burnt.data.loading.loader.copy_item", lambda item: copied.append(item) or item)
    items = [{"x": torch.ones(2)}] * 4
    list(Loader(items, 2))
    list(Loader(items, 2, transform=lambda batch, generator: batch))
    list(Loader([[1], [2, 3]], 2, batcher=data.Pad(0)))
    assert copied == []
    list(Loader(items, 2, item_transform=lambda item, generator: item))
    assert len(copied) == 4


class Doubled(tuple):
    def __new__(cls, first: int) -> "Doubled":
        return super().__new__(cls, (first, 2 * first))


class Uncopied:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(2)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot be copied")


@dataclasses.dataclass
class Held:
    file: Any
    x: torch.Tensor


ODD = {
    "pyarrow": (lambda: pyarrow.array([1, 2]), lambda item: item.to_pylist(), [1, 2]),
    "polars": (lambda: polars.Series([1, 2]), list, [1, 2]),
    "no copy": (Uncopied, lambda item: np.asarray(item).tolist(), [1, 1]),
    "tuple": (lambda: Doubled(3), list, [3, 6]),
    "proxy": (lambda: MappingProxyType({"a": 1}), dict, {"a": 1}),
    "file": (lambda: Held(io.BytesIO(b"ab"), torch.ones(1)), lambda item: item.file.getvalue(), b"ab"),
    "gradient": (lambda: Batch(x=torch.ones(1, requires_grad=True) * 2), lambda item: item.x.tolist(), [2]),
}


@pytest.mark.parametrize("kind", ODD)
def test_items_of_any_class_reach_the_transform_as_they_are(kind: str) -> None:
    make, read, expected = ODD[kind]
    loader = Loader(
        [make()], 1, item_transform=lambda item, generator: (type(item), read(item)), batcher=list
    )
    assert list(loader.epoch(0)) == [[(type(make()), expected)]]


@pytest.mark.parametrize("classes", [[0, 1, 2, 15], [0, 17, 34, 255]])
def test_a_picture_that_is_only_opened_keeps_its_classes(classes: list[int], tmp_path: Path) -> None:
    """The values of the file, in all epochs, of 4 bits and of 8."""
    path = tmp_path / "mask.png"
    picture = Image.new("L", (4, 1))
    picture.putdata([value if 255 in classes else 17 * value for value in classes])
    if 255 in classes:
        picture.save(path)
    else:
        path.write_bytes(png(4, 0, 4, bytes([0x01, 0x2F])))
    for item in (Image.open(path), Image.open(io.BytesIO(path.read_bytes()))):
        loader = Loader([item], 1, item_transform=lambda item, generator: data.read_mask(item))
        for epoch in range(3):
            assert next(loader.epoch(epoch)).flatten().tolist() == classes
    item.putpixel((0, 0), 9)  # decoded by now, so that the transform gets a copy
    loader = Loader([item], 1, item_transform=lambda item, generator: item.putpixel((1, 0), 7) or 0)
    list(loader.epoch(0))
    assert item.getpixel((1, 0)) != 7
