"""Streams: the same batches with any workers, and positions that are continued exactly, without replay."""

import json
import os
import signal
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt.data import IterableLoader, LimitedLoader, Loader, Shards, StreamLoader, as_loader
from burnt.data.loading.iterable_loader import decode_state, encode_state
from burnt.errors import DataError
from tests.messages import raises

SIZES = [7, 1, 12, 0, 5, 9]


class Numbers:
    """Shard `s` has the numbers from 100 s on; remembers what was read and transformed."""

    def __init__(self, sizes=tuple(SIZES)):
        self.sizes = sizes
        self.read_items = []
        self.transformed = []

    def read(self, shard):
        for item in range(shard * 100, shard * 100 + self.sizes[shard]):
            self.read_items.append(item)
            yield item

    def transform(self, item, generator):
        self.transformed.append(item)
        return item + torch.rand(1, dtype=torch.float64, generator=generator)

    def shards(self):
        return Shards(range(len(self.sizes)), self.read)


def loader(numbers=None, **settings):
    numbers = numbers or Numbers()
    settings = {"seed": 3, "item_transform": numbers.transform, "lanes": 3} | settings
    return StreamLoader(numbers.shards(), 4, **settings)


def lists(batches):
    return [batch.flatten().tolist() for batch in batches]


def with_states(batches):
    """Return all batches as lists, and the position after each, as a checkpoint gives it back."""
    whole, states = [], []
    for batch in batches:
        whole.append(batch.flatten().tolist())
        states.append(json.loads(json.dumps(batches.state())))
    return whole, states


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 15), min_size=1, max_size=6),
    batch_size=st.integers(1, 6),
    shuffle=st.integers(0, 9),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_an_epoch_has_every_item_once_and_can_be_resumed_after_any_batch(
    sizes, batch_size, shuffle, drop_last, data
):
    lanes = data.draw(st.integers(1, len(sizes)))
    numbers = Numbers(sizes)
    settings = {"shuffle": shuffle, "drop_last": drop_last, "lanes": lanes}
    settings["item_transform"] = numbers.transform
    stream = StreamLoader(numbers.shards(), batch_size, **settings)
    batches = stream.epoch(1)
    start = batches.state()
    whole, states = with_states(batches)
    given_items = [int(item) for batch in whole for item in batch]
    expected = [100 * shard + item for shard, size in enumerate(sizes) for item in range(size)]
    if drop_last:
        assert len(set(given_items)) == len(given_items)
        assert set(given_items) <= set(expected)
        assert all(len(batch) == batch_size for batch in whole)
    else:
        assert sorted(given_items) == expected
        if not shuffle and lanes == 1:
            assert given_items == expected
    again = StreamLoader(Numbers(sizes).shards(), batch_size, **settings)
    assert lists(again.epoch(1)) == whole
    stop = data.draw(st.integers(0, len(whole)))
    numbers.transformed.clear()
    rest = stream.resume(1, stop, [start, *states][stop])
    assert lists(rest) == whole[stop:]
    if not drop_last:
        assert sorted(numbers.transformed) == sorted(int(item) for batch in whole[stop:] for item in batch)
    assert lists(stream.epoch(1, stop)) == whole[stop:]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("workers", [0, "2 threads"])
def test_processes_share_the_items_of_each_batch(size, workers):
    settings = {"shuffle": 5, "workers": workers}
    whole, states = with_states(loader(**settings).epoch(1))
    for stop in (0, 4):
        together = [{} for _ in whole[stop:]]
        for rank in range(size):
            numbers = Numbers()
            stream = loader(numbers, **settings)
            state = states[stop - 1] if stop else None
            parts = stream.parts(1, stop, rank, size, state)
            own_items = 0
            for place, (batch, expected) in enumerate(zip(parts, states[stop:], strict=True)):
                assert (
                    json.loads(json.dumps(parts.state())) == expected
                )  # also of another number of processes
                values = batch.batch.flatten().tolist()
                assert len(values) == max(batch.count, 1)
                own_items += len(values)
                if batch.count:
                    together[place] |= dict(zip(range(rank, batch.total, size), values, strict=True))
                else:
                    assert values == whole[stop + place][:1]
            assert len(numbers.transformed) == own_items
            if not stop:
                assert len(numbers.read_items) == sum(SIZES)
        assert [[items[i] for i in range(len(items))] for items in together] == whole[stop:]


def test_the_digest_is_that_of_the_items_as_they_were_read():
    def first(sizes=tuple(SIZES), rank=0, size=2):
        return next(loader(Numbers(sizes)).parts(0, 0, rank, size)).digest

    assert first(rank=0) == first(rank=1) is not None
    assert first() == first(sizes=(4, 9, 12, 0, 5, 9)) != first(sizes=(3, 9, 12))
    assert first(size=1, rank=0) is None


def test_epochs_and_seeds_differ():
    orders = {
        tuple(map(tuple, lists(loader(shuffle=8, seed=seed).epoch(epoch))))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4
    stream = loader(shuffle=8)
    assert lists(stream) == lists(stream.epoch(0))
    assert lists(stream) == lists(stream.epoch(1))


def test_the_order_stays_what_it_was():
    # A checkpoint of last year must be resumed in the order in which it was begun.
    stream = StreamLoader(Numbers((4, 5)).shards(), 3, shuffle=3, seed=1, lanes=2)
    assert lists(stream) == [[100, 101, 102], [1, 2, 0], [103, 104], [3]]


def test_lanes_take_turns_and_end_by_themselves():
    batches = [batch.tolist() for batch in StreamLoader(Numbers((1, 4, 2, 3)).shards(), 2, lanes=2)]
    # lane 0 has shards 0 and 2, lane 1 shards 1 and 3
    assert batches == [[0, 200], [100, 101], [201], [102, 103], [300, 301], [302]]


@pytest.mark.parametrize("workers", [1, 2, 3, "2 threads", "3 threads"])
@pytest.mark.sample(3)
def test_workers_change_no_batch_and_no_position(workers):
    def transform(batch, generator):
        return torch.cat([batch, torch.rand(1, 1, dtype=torch.float64, generator=generator)])

    whole, states = with_states(loader(shuffle=5, transform=transform).epoch(2))
    working = loader(shuffle=5, transform=transform, workers=workers, prefetch=2)
    first = working.epoch(2)
    begun = [(next(first).flatten().tolist(), first.state()) for _ in range(4)]
    assert begun == list(zip(whole[:4], states[:4], strict=True))
    rest = whole[4:], states[4:]
    assert with_states(working.resume(2, 4, states[3])) == rest
    assert with_states(working.epoch(2)) == (whole, states)
    assert with_states(first) == rest  # two iterators at a time
    working.close()


def test_a_resumed_stream_opens_no_finished_shard_and_transforms_nothing_again():
    numbers = Numbers((50, 50, 50))
    stream = StreamLoader(numbers.shards(), 10, shuffle=20, lanes=1, item_transform=numbers.transform)
    batches = stream.epoch(0)
    for _ in range(7):
        next(batches)
    state = batches.state()
    served = set(numbers.transformed)
    numbers.read_items.clear()
    numbers.transformed.clear()
    next(stream.resume(0, 7, state))
    assert len(numbers.transformed) == 10
    assert not served & set(numbers.transformed)
    assert (
        len(numbers.read_items) <= 30
    )  # the shard up to the block, and the block: items 60 to 79 of the lane


class Stateful:
    """A dataset that knows its position, as those of Hugging Face."""

    def __init__(self, length=20):
        self.length, self.at, self.epoch, self.read = length, 0, 0, []

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for item in range(self.at, self.length):
            self.at = item + 1
            self.read.append(item)
            yield item + 1000 * self.epoch
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "generator": torch.arange(3), "nested": [(1, np.int64(2)), b"x"]}

    def load_state_dict(self, state):
        assert torch.equal(state["generator"], torch.arange(3))
        assert state["nested"] == [[1, 2], b"x"]
        self.at = state["at"]


@pytest.mark.parametrize("shuffle", [0, 6])
def test_a_dataset_with_a_state_continues_by_it(shuffle):
    stream = StreamLoader(Stateful(), 3, shuffle=shuffle)
    assert not stream.replays
    whole, states = with_states(stream.epoch(1))
    assert sorted(item for batch in whole for item in batch) == list(range(1000, 1020))
    for stop in (1, 3, 5):
        fresh = Stateful()
        rest = StreamLoader(fresh, 3, shuffle=shuffle).resume(1, stop, states[stop - 1])
        assert lists(rest) == whole[stop:]
        assert fresh.read == list(range(stop * 3 // 6 * 6 if shuffle else stop * 3, 20))
    assert list(StreamLoader(Stateful(), 3, shuffle=shuffle).resume(1, 7, states[6])) == []


@pytest.mark.parametrize("shuffle", [0, 6])
def test_an_epoch_of_a_dataset_with_a_state_does_not_depend_on_the_one_that_was_left(shuffle):
    def begin(epoch, dataset):
        batches = StreamLoader(dataset, 3, shuffle=shuffle).epoch(epoch)
        return [next(batches).tolist() for _ in range(2)]

    stream = StreamLoader(Stateful(), 3, shuffle=shuffle)
    for epoch in range(3):
        batches = LimitedLoader(stream, 2).epoch(epoch)
        assert [batch.tolist() for batch in batches] == begin(epoch, Stateful())
    assert sorted(item for batch in stream.epoch(3) for item in batch.tolist()) == list(range(3000, 3020))


def test_a_thread_that_is_behind_ends_no_lane_of_the_next_epoch():
    gate = threading.Event()

    def read(shard):
        if shard == 1:
            gate.wait(10)
        yield from range(10 * shard, 10 * shard + 8)

    stream = StreamLoader(Shards(range(4), read), 2, lanes=4, workers="2 threads", prefetch=2)
    left = stream.epoch(0)
    next(left)  # lanes 1 and 3 are still to be opened, by the same thread
    batches = stream.epoch(1)
    first = next(batches)
    gate.set()
    assert lists([first, *batches]) == lists(StreamLoader(Shards(range(4), read), 2, lanes=4).epoch(1))
    stream.close()


def test_other_iterables_are_replayed_and_say_so():
    class Plain:
        def __iter__(self):
            return iter(range(10))

    stream = StreamLoader(Plain(), 3, shuffle=4)
    assert stream.replays
    assert not StreamLoader(Shards([0], range), 3).replays
    batches = stream.epoch(0)
    whole = [next(batches).tolist() for _ in range(2)]
    state = batches.state()
    whole += [batch.tolist() for batch in batches]
    assert [batch.tolist() for batch in stream.resume(0, 2, state)] == whole[2:]


# batches of others with a state


class StatefulBatches(Stateful):
    def __iter__(self):
        return ([item] for item in super().__iter__())


def test_iterables_of_batches_continue_by_their_state():
    source = StatefulBatches()
    batches_loader = as_loader(source, "train")
    assert isinstance(batches_loader, IterableLoader)
    assert not batches_loader.replays
    batches = batches_loader.epoch(2)
    assert [next(batches) for _ in range(3)] == [[2000], [2001], [2002]]
    state = json.loads(json.dumps(batches.state()))
    fresh = StatefulBatches()
    rest = as_loader(fresh, "train").resume(2, 3, state)
    assert next(rest) == [2003]
    assert fresh.read == [3]
    assert rest.state()["at"] == 4
    assert list(as_loader(StatefulBatches(), "train").epoch(0, start=18)) == [[18], [19]]


def test_a_dataloader_and_a_list_have_no_state():
    data_loader = as_loader(torch.utils.data.DataLoader(range(9), 2), "train")
    assert data_loader.replays
    assert not hasattr(data_loader.epoch(0), "state")
    assert not as_loader([1, 2], "train").replays
    with pytest.raises(DataError, match="DataLoader cannot continue from a stored position"):
        data_loader.resume(0, 1, {})


@pytest.mark.full
def test_the_iterable_datasets_of_hugging_face_continue():
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"x": list(range(20))}).to_iterable_dataset(num_shards=3)
    stream = StreamLoader(dataset, 3, shuffle=4)
    batches = stream.epoch(1)
    whole, states = [], []
    for batch in batches:
        whole.append(batch.x.tolist())
        states.append(json.loads(json.dumps(batches.state())))
    assert sorted(item for batch in whole for item in batch) == list(range(20))
    for stop in range(1, 7):
        assert [batch.x.tolist() for batch in stream.resume(1, stop, states[stop - 1])] == whole[stop:]
    assert [batch.x.tolist() for batch in stream.epoch(1)] == whole
    items = Loader(datasets.Dataset.from_dict({"x": list(range(20))}), 4, shuffle=True)
    assert [batch.x.tolist() for batch in items.epoch(0)] == [
        part.tolist() for part in items.order(0).split(4)
    ]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_torchdata_continues_too():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        torch.manual_seed(0)
        return as_loader(stateful.StatefulDataLoader(range(20), 3, shuffle=True), "train")

    batches = make().epoch(0)
    first = [next(batches).tolist() for _ in range(3)]
    state = json.loads(json.dumps(batches.state()))
    whole = first + [batch.tolist() for batch in batches]
    assert [batch.tolist() for batch in make().resume(0, 3, state)] == whole[3:]


@settings(max_examples=30)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_states_survive_json(state):
    assert decode_state(json.loads(json.dumps(encode_state(state, "x")))) == state


def test_tensors_and_arrays_survive_json():
    state = {"t": torch.get_rng_state(), "f": torch.randn(2, 3), "s": torch.tensor(7)}
    state |= {"a": np.arange(4.0), "n": np.float32(0.5)}
    got = decode_state(json.loads(json.dumps(encode_state(state, "x"))))
    assert torch.equal(got["t"], state["t"])
    assert torch.equal(got["f"], state["f"])
    assert got["a"].tolist() == [0, 1, 2, 3]
    assert (got["n"], got["s"].shape) == (0.5, ())


# failures


@pytest.mark.parametrize(
    ("bad", "where", "found"),
    [
        ({"a": [object()]}, "state_dict()['a'][0]", "object"),
        ({1: 2}, "state_dict()", "a mapping with the keys [1]"),
        ({"x": {1, 2}}, "state_dict()['x']", "set"),
    ],
)
def test_a_state_that_json_cannot_hold_is_an_error_before_the_first_batch(bad, where, found):
    source = StatefulBatches()
    source.state_dict = lambda: bad
    with pytest.raises(DataError, match="the position of StatefulBatches cannot be stored in a") as caught:
        as_loader(source, "train").epoch(0)
    assert (caught.value.where, caught.value.found) == (where, found)


@pytest.mark.parametrize("workers", [0, 1])
def test_failures_name_the_shard_and_the_item(workers):
    def read(shard):
        yield from range(3)
        if shard == "b":
            raise OSError("truncated")
        yield from range(9)

    def fail(item, generator):
        raise ValueError("no image")

    for parts, where in (({}, "item 3 of shard 'b'"), ({"item_transform": fail}, "item 0 of shard 'a'")):
        with pytest.raises(DataError) as caught:
            list(StreamLoader(Shards(["a", "b"], read), 2, workers=workers, lanes=2, **parts).epoch(1))
        assert caught.value.what == "an item could not be loaded"
        assert caught.value.where == where
        line, batch = caught.value.origin
        assert "   raise " in line
        assert batch.startswith("batch ")
    with pytest.raises(DataError, match="a batch of a stream could not be loaded") as caught:
        list(StreamLoader(Shards(["a"], read), 2, workers=workers, batcher=lambda items: 1 / 0))
    assert caught.value.found == "ZeroDivisionError: division by zero"
    assert caught.value.where == "batch 0 of lane 0 in epoch 0, counted from 0"


def test_a_worker_that_dies_says_where():
    def read(shard):
        yield from range(5)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(DataError) as caught:
        list(StreamLoader(Shards([0], read), 2, workers=1).epoch(4))
    assert caught.value.what == "a worker process of the loader died"
    assert caught.value.where == "item 5 of the lane, batch 2 of lane 0 in epoch 4, counted from 0"


def test_a_stream_that_became_shorter_is_not_resumed():
    stream = StreamLoader(Shards([9], range), 2, shuffle=6)
    batches = stream.epoch(0)
    for _ in range(2):
        next(batches)
    with pytest.raises(DataError, match="the stream is shorter than when its position was stored"):
        next(StreamLoader(Shards([2], range), 2, shuffle=6).resume(0, 2, batches.state()))


def test_what_decides_the_order_is_in_the_state():
    base = loader(shuffle=5).state()
    assert json.loads(json.dumps(base)) == base
    shards = base.pop("shards")
    assert base == {"seed": 3, "shuffle": 5, "batch_size": 4, "drop_last": False, "lanes": 3}
    base["shards"] = shards
    assert shards["count"] == 6
    names = [
        Shards(parts, range).state()
        for parts in (["x/a", "x/b"], [Path("y/a"), Path("y/b")], ["x/b", "x/a"], ["x/a", "x/c"], [{}, {}])
    ]
    assert names[0] == names[1]
    assert len({str(name) for name in names}) == 4
    assert names[4] == {"count": 2}
    assert loader(shuffle=5, workers=2, prefetch=1, pin=True).state() == base
    assert loader().num_batches() is None
    assert as_loader(loader(), "train").state()["shards"] == shards


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StreamLoader(iter([1]), 2), ["iterated once per epoch", "list_iterator", "Shards([0]"]),
        (lambda: StreamLoader(7, 2), ["iterated once per epoch", "int"]),
        (lambda: StreamLoader([1], 0), ["batch_size", "at least 1"]),
        (lambda: StreamLoader([1], 1, shuffle=True), ["shuffle", "a number of items, such as 1000", "True"]),
        (lambda: StreamLoader([1], 1, lanes=2), ["lanes", "1 to 1, the number of shards"]),
        (lambda: Shards([], range), ["there are no shards"]),
        (lambda: loader().resume(0, 1, {"lanes": [None], "turn": 0}), ["other lanes", "lanes=1", "lanes=3"]),
        (lambda: StreamLoader([1], 1, num_workers=2), ["workers= is the number of worker processes"]),
    ],
)
def test_messages(make, words):
    with raises((DataError, TypeError), *words):
        make()
