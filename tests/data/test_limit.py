"""LimitedLoader and RepeatedLoader."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch

from burnt.data import IterableLoader, LimitedLoader, Loader, RepeatedLoader
from burnt.data.loading.loader import read_parts
from burnt.errors import DataError


def loader(n: int = 20) -> Loader:
    return Loader(range(n), 2, shuffle=True, seed=3)


def lists(batches) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


class Stream:
    """A loader without a length, whose iterators have a position of their own."""

    def num_batches(self):
        return None

    def state(self):
        return {"stream": 1}

    def epoch(self, epoch, start=0):
        return Positions(100 * epoch, start)

    def resume(self, epoch, start, state):
        return Positions(100 * epoch, state["at"])


class Positions:
    def __init__(self, base, at):
        self.base, self.at = base, at

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return self.base + self.at

    def state(self):
        return {"at": self.at}


@pytest.mark.parametrize(("limit", "batches"), [(3, 3), (0.35, 3), (0.01, 1), (1.0, 10), (1, 1), (99, 10)])
def test_the_first_batches_of_each_epoch(limit, batches):
    limited = LimitedLoader(loader(), limit)
    assert limited.num_batches() == batches
    for epoch in (0, 5):
        whole = lists(loader().epoch(epoch))[:batches]
        for start in range(batches + 1):
            assert lists(limited.epoch(epoch, start)) == whole[start:]
    assert limited.state() == {**loader().state(), "limit": 99 if limit == 99 else batches}


def test_a_stream_is_limited_and_resumed():
    limited = LimitedLoader(Stream(), 5)
    assert limited.num_batches() is None
    batches = limited.epoch(1)
    assert [next(batches), next(batches)] == [101, 102]
    assert batches.state() == {"at": 2}
    assert list(limited.resume(1, 2, batches.state())) == [103, 104, 105]
    # The iterator of a loader that can skip has no state.
    assert not hasattr(LimitedLoader(loader(), 5).epoch(0), "state")


def test_other_attributes_are_those_of_the_loader_also_of_a_copy():
    original = LimitedLoader(loader(), 2)
    for limited in (copy.copy(original), pickle.loads(pickle.dumps(original))):
        assert (limited.seed, len(limited.dataset)) == (3, 20)
        with pytest.raises(AttributeError, match="no_such_name"):
            limited.no_such_name


def test_the_same_batches_in_every_epoch():
    read: list[int] = []

    class Counted:
        def __len__(self):
            return 20

        def __getitem__(self, index):
            read.append(index)
            return index

    repeated = RepeatedLoader(Loader(Counted(), 2, shuffle=True, seed=3), 3)
    first = lists(loader().epoch(0))[:3]
    assert repeated.num_batches() == 3
    for epoch in (0, 1, 7):
        assert lists(repeated.epoch(epoch)) == first
        assert lists(repeated.epoch(epoch, 2)) == first[2:]
    assert len(read) == 6
    assert repeated.state() == {**loader().state(), "repeated": 3}


def test_batches_that_draw_from_the_global_random_states_are_the_same_in_another_process():
    class Noise:
        def __iter__(self):
            while True:
                yield draw()

    def draw():
        return torch.rand(2).tolist(), random.random(), np.random.rand()

    def seed(number):
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)

    states, seen = [], []
    for number in (1, 2):
        seed(number)
        seen.append(list(RepeatedLoader(IterableLoader(Noise()), 2).epoch(0)))
        states.append(draw())
    assert seen[0] == seen[1]
    seed(1)
    assert states[0] == draw()


def test_a_step_may_change_a_repeated_batch_in_place():
    repeated = RepeatedLoader(Loader([{"x": 1.0}] * 4, 2), 2)
    for epoch in range(2):
        for batch in repeated.epoch(epoch):
            assert batch.x.add_(1).tolist() == [2, 2]


def test_an_iterable_that_ends_earlier():
    repeated = RepeatedLoader(IterableLoader(iterable := [1, 2]), 5)
    assert (repeated.num_batches(), list(repeated.epoch(3))) == (2, iterable)
    assert list(LimitedLoader(IterableLoader(iterable), 5).epoch(0)) == iterable


@pytest.mark.parametrize("kind", [LimitedLoader, RepeatedLoader])
@pytest.mark.parametrize("nested", [False, True])
def test_a_process_of_several_reads_its_own_items(kind, nested):
    read: list[int] = []

    class Counted:
        def __len__(self):
            return 14

        def __getitem__(self, index):
            read.append(index)
            return index

    def limited():
        inner = Loader(Counted(), 5, shuffle=True, seed=3)
        return kind(LimitedLoader(inner, 2) if nested else inner, 2)

    for start in (0, 1):
        whole = lists(limited().epoch(4, start))
        together = [set() for _ in whole]
        for rank in range(3):
            read.clear()
            own = limited()
            parts = list(read_parts(own, 4, start, rank, 3))
            again = list(read_parts(own, 4, start, rank, 3))
            assert [part.batch.tolist() for part in again] == [part.batch.tolist() for part in parts]
            assert [(part.count, part.total) for part in parts] == [(2 - (rank == 2), 5)] * len(whole)
            once = 1 if kind is RepeatedLoader else 2
            before = start if kind is RepeatedLoader else 0  # it reads all of its batches at first
            assert len(read) == once * (len(whole) + before) * (2 - (rank == 2))
            for items, part in zip(together, parts, strict=True):
                items |= set(part.batch.tolist())
        assert together == list(map(set, whole))


def test_what_has_no_parts():
    class Doubled(Loader):
        def epoch(self, epoch, start=0):
            return (2 * batch for batch in super().epoch(epoch, start))

    class Delegating:
        def __init__(self):
            self.loader = loader()

        def __getattr__(self, name):
            return getattr(self.loader, name)

    for other in (Doubled(range(4), 2), Delegating(), Stream(), IterableLoader([1, 2])):
        assert read_parts(other, 0, 0, 0, 2) is None
        for kind in (LimitedLoader, RepeatedLoader):
            if hasattr(type(other), "epoch"):
                assert read_parts(kind(other, 2), 0, 0, 0, 2) is None


@pytest.mark.parametrize("kind", [LimitedLoader, RepeatedLoader])
@pytest.mark.parametrize("limit", [0, -1, 0.0, 1.5, True, "3", None, float("nan")])
def test_what_is_no_limit(kind, limit):
    with pytest.raises(DataError) as caught:
        kind(loader(), limit, "limit_train")
    assert str(caught.value) == (
        "a limit is neither a number of batches nor a fraction of an epoch\n"
        "  in        limit_train\n"
        "  expected  an int from 1 on, or a float above 0 and up to 1.0\n"
        f"  found     {limit!r}"
    )


def test_a_fraction_of_what_has_no_length():
    with pytest.raises(DataError) as caught:
        LimitedLoader(Stream(), 0.5)
    assert str(caught.value) == (
        "a fraction of an epoch of unknown length\n"
        "  in        limit\n"
        "  expected  a number of batches, for a loader without a length\n"
        "  found     0.5"
    )
