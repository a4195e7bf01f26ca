"""Batches and datasets: what fits together becomes one, what does not is told."""

import contextlib
import copy
import datetime
import pickle
from collections import namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from burnt.data import Batch, Dataset, InMemoryDataset, Mover, TensorDataset, collate, move, pin
from burnt.data.batch import digest
from burnt.errors import DataError

Pair = namedtuple("Pair", "x y")
META = torch.device("meta")


@dataclass
class Item:
    x: torch.Tensor
    y: int
    total: int = field(init=False, default=0)


def rows(n=3):
    return [torch.full((2,), float(i)) for i in range(n)]


def test_collate_stacks_and_keeps_the_form():
    x = torch.stack(rows())
    assert torch.equal(collate(rows()), x)
    assert collate([1, 2]).tolist() == [1, 2]
    assert collate([1.5, 2.5]).dtype == torch.float64
    assert collate([np.float32(1), np.float32(2)]).tolist() == [1, 2]
    assert torch.equal(
        collate([np.zeros(2), np.ones(2)]), torch.tensor([[0.0, 0], [1, 1]], dtype=torch.float64)
    )
    assert collate([True, False]).dtype == torch.bool
    assert collate(["a", "b"]) == ["a", "b"]
    as_tuple = collate([(row, i) for i, row in enumerate(rows())])
    assert type(as_tuple) is tuple
    assert torch.equal(as_tuple[0], x)
    assert as_tuple[1].tolist() == [0, 1, 2]
    assert type(collate([[row, 1] for row in rows()])) is list
    named = collate([Pair(row, i) for i, row in enumerate(rows())])
    assert type(named) is Pair
    assert torch.equal(named.x, x)
    for items in (
        [{"x": row, "y": i} for i, row in enumerate(rows())],
        [Item(row, i) for i, row in enumerate(rows())],
        [Batch(x=row, y=i) for i, row in enumerate(rows())],
    ):
        batch = collate(items)
        assert type(batch) is Batch
        assert torch.equal(batch.x, x)
        assert batch.y.tolist() == [0, 1, 2]
        assert len(batch) == 3


def test_collate_goes_down_into_containers():
    items = [{"pair": Pair(torch.ones(2), {"deep": i})} for i in range(4)]
    batch = collate(items)
    assert batch.pair.x.shape == (4, 2)
    assert batch.pair.y.deep.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("items", "found"),
    [
        ([torch.zeros(2), torch.zeros(3)], "[2] at entry 0 and [3] at entry 1"),
        ([{"x": torch.zeros(2)}, {"x": torch.zeros(3)}], "[3]"),
        ([(1, 2), (1,)], "shorter"),
        ([{"x": 1}, {"y": 1}], "x"),
        ([{"x": 1}, {"x": 1, "y": 1}], "y"),
        ([{"x": 1, "y": 1}, {"x": 1}], "y"),
        ([{"x": 1}, (1,)], "tuple"),
        ([Item(torch.zeros(1), 1), {"x": 1}], "dict"),
        ([Batch(x=1), Batch(y=1)], "x"),
        ([None, None], "NoneType"),
        ([object(), object()], "object"),
    ],
)
def test_items_that_do_not_fit_are_reported(items, found):
    with pytest.raises(DataError) as caught:
        collate(items)
    message = str(caught.value)
    assert message.startswith("the items of a batch do not fit together\n  found")
    assert found in message
    assert "or pass your own batcher= to the loader" in message


def test_move_goes_through_every_container():
    x = torch.zeros(2)
    moved = move(
        {"a": x, "b": (x, [x, 1]), "c": Pair(x, "text"), "d": Batch(x=x, n=None), "e": Item(x, 3)}, META
    )
    assert moved["a"].device == META
    assert type(moved["b"]) is tuple
    assert (moved["b"][0].device, moved["b"][1][0].device, moved["b"][1][1]) == (META, META, 1)
    assert type(moved["c"]) is Pair
    assert (moved["c"].x.device, moved["c"].y) == (META, "text")
    assert type(moved["d"]) is Batch
    assert (moved["d"].x.device, moved["d"].n) == (META, None)
    assert type(moved["e"]) is Item
    assert (moved["e"].x.device, moved["e"].y) == (META, 3)


def test_move_asks_what_knows_how_and_leaves_the_rest():
    class Packed:
        def to(self, device):
            return ("went to", device)

    assert move(Packed(), META) == ("went to", META)
    for value in (7, "text", None, Item):
        assert move(value, META) is value
    x = torch.zeros(2)
    assert move(x, torch.device("cpu")) is x


def test_pinning_and_moving_without_cuda_change_nothing(monkeypatch):
    batch = Batch(x=torch.zeros(2), names=["a"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pin(batch) is batch
    moved = Mover(META)(batch)
    assert (moved.x.device, moved.names) == (META, ["a"])


def test_pinning_goes_through_every_container(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    x, y, z = torch.zeros(1), torch.ones(2), torch.ones(3)
    got = pin({"x": x, "rest": [Pair(y, "text"), Batch(z=z)]})
    assert list(map(id, pinned)) == [id(x), id(y), id(z)]
    assert got["rest"][0].y == "text"


def test_the_mover_takes_a_stream_only_for_what_it_copies(monkeypatch):
    """With tensors that have no memory, as the streams are none either."""
    done = []
    device = torch.device("cuda", 0)

    class Stream:
        def __init__(self, name="copying"):
            self.device, self.name = device, name

        def wait_stream(self, other):
            done.append(f"{self.name} waits for {other.name}")

    @contextlib.contextmanager
    def on(stream):
        done.append(f"on {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("current"))
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda part, stream: done.append((id(part), stream.name))
    )
    mover = Mover(torch.device("cuda"))
    with FakeTensorMode():
        there, here = torch.empty(2, device=device), torch.empty(2)
        assert mover(Batch(x=there, rest=[there])).rest[0] is there
        assert not done
        moved = mover(Batch(x=here, rest=[there, "text"]))
    assert (moved.x.device, moved.rest) == (device, [there, "text"])
    assert done == ["on copying", "current waits for copying", (id(moved.x), "current")]


@pytest.mark.gpu
def test_the_mover_copies_beside_the_computation(device):
    host = [pin(Batch(x=torch.full((1 << 20,), float(i)))) for i in range(8)]
    mover = Mover(device)
    sums = [(mover(batch).x * 2).sum() for batch in host]
    assert [float(value) for value in sums] == [2.0 * i * (1 << 20) for i in range(8)]


def test_batch_is_attributes():
    batch = Batch(x=torch.zeros(4, 2), names=["a"])
    assert list(batch) == ["x", "names"]
    assert repr(batch) == "Batch(x: (4, 2), names: list)"
    changed = batch.replace(x=1, y=2)
    assert (changed.x, changed.y, list(batch)) == (1, 2, ["x", "names"])
    assert len(Batch()) == 0
    with pytest.raises(AttributeError, match="no 'labels', it has: x, names"):
        batch.labels
    for copied in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert type(copied) is Batch
        assert torch.equal(copied.x, batch.x)


@given(st.lists(st.integers(0, 6), max_size=10))
def test_taking_is_indexing(indices):
    columns = {"x": torch.randn(7, 2, 3), "y": torch.arange(7)}
    batch = TensorDataset(**columns).take(torch.tensor(indices, dtype=torch.int64))
    for name, column in columns.items():
        assert torch.equal(getattr(batch, name), column[indices] if indices else column[:0])


def test_take_follows_the_columns_to_their_device():
    batch = TensorDataset(x=torch.zeros(5, 2, device=META)).take(torch.tensor([1, 2]))
    assert (batch.x.device, batch.x.shape) == (META, (2, 2))


def test_datasets():
    tensors = TensorDataset(x=torch.arange(3.0), y=torch.arange(3))
    assert (len(tensors), float(tensors[1].x), list(tensors[1])) == (3, 1.0, ["x", "y"])
    memory = InMemoryDataset(iter("abc"))
    assert (len(memory), memory[2], list(memory)) == (3, "c", ["a", "b", "c"])
    for dataset in (tensors, memory, [1], torch.utils.data.TensorDataset(torch.zeros(1))):
        assert isinstance(dataset, Dataset)
    assert not isinstance(iter([1]), Dataset)


LENGTHS = "the columns of a TensorDataset differ in length\n  expected  equal lengths\n  found     {}"
TENSORS = """the columns of a TensorDataset must be tensors
  in        x
  expected  a tensor of at least one axis
  found     {}
  hint      torch.as_tensor turns arrays and lists into tensors"""


@pytest.mark.parametrize(
    ("columns", "message", "found"),
    [
        ({"x": torch.zeros(3), "y": torch.zeros(4, 2)}, LENGTHS, "x: 3, y: 4"),
        ({}, LENGTHS, "no columns"),
        ({"x": np.zeros(3)}, TENSORS, "ndarray"),
        ({"x": torch.tensor(1.0)}, TENSORS, "a scalar"),
    ],
)
def test_columns_that_cannot_be(columns, message, found):
    with pytest.raises(DataError) as caught:
        TensorDataset(**columns)
    assert str(caught.value) == message.format(found)


def test_what_no_batch_can_hold_is_not_to_be_padded():
    with pytest.raises(DataError, match="do not fit together") as caught:
        collate([{"when": datetime.date(2024, 1, 1)}])
    assert "leave the entry out, convert it in item_transform=" in caught.value.hint


def test_a_batch_gives_its_fields_by_name():
    batch = collate([{"x": 1.0, "items": 0}, {"x": 2.0, "items": 1}])
    assert batch["x"] is batch.x
    assert batch["items"].tolist() == [0, 1]
    assert ("x" in batch, "y" in batch, 0 in batch) == (True, False, False)
    with pytest.raises(DataError) as caught:
        batch["itmes"]
    assert str(caught.value).splitlines() == [
        "this batch has no 'itmes'",
        "  expected  x, items",
        "  found     'itmes'",
        "  hint      did you mean 'items'?",
    ]


@pytest.mark.parametrize("index", [0, slice(2), torch.tensor([0]), None, ("x",)])
def test_a_batch_has_no_items_by_index(index):
    with pytest.raises(TypeError, match="a batch is indexed by the name of a field") as caught:
        Batch(x=torch.zeros(2))[index]
    assert caught.value.hint == "items by index: batch.x[...]"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(1, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(2), -torch.zeros(2)),
        (np.zeros(2), np.ones(2)),
        (np.float32(1), np.float32(2)),
        (b"a", b"b"),
        ("a", b"a"),
        (1, True),
        ([[1], [2]], [[1, 2], []]),
        ({"x": 1}, {"y": 1}),
        (Batch(x=1), Batch(x=2)),
        (Item(torch.zeros(2), 1), Item(torch.zeros(2), 2)),
        (object(), datetime.date(2020, 1, 1)),
    ],
)
def test_a_digest_tells_values_apart(one, other):
    assert digest([one]) == digest([copy.deepcopy(one)]) != digest([other])


def test_other_objects_count_by_their_type():
    assert digest({"a", "b"}) == digest({"c"})
    assert digest(torch.tensor(1.0)) == digest(torch.ones(2).as_strided((), ()))
