"""Workers of loaders: what they change (nothing), what they say when they fail, and how they end."""

import copy
import faulthandler
import gc
import multiprocessing
import os
import pickle
import random
import re
import signal
import socket
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt.data import Batch, Loader, Shards, StreamLoader, TensorDataset
from burnt.data.loading.workers import WorkerPool, pickled, receive, send, unpickled
from burnt.errors import DataError, UnsupportedError
from tests import forked
from tests.messages import raises


class Items:
    """Items of several kinds, some of which a test makes fail."""

    def __init__(self, length=30, act=None):
        self.length = length
        self.act = act or {}

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.act:
            self.act[index]()
        return {"x": torch.full((2, 3), float(index)), "index": index, "name": f"item {index}"}


def jitter(item, generator):
    return {**item, "x": item["x"] + torch.rand(2, 3, generator=generator)}


def scale(batch, generator):
    return batch.replace(scale=torch.rand(2, generator=generator))


def equal(first, second):
    return list(first) == list(second) and all(
        torch.equal(vars(first)[name], vars(second)[name])
        if isinstance(vars(first)[name], torch.Tensor)
        else vars(first)[name] == vars(second)[name]
        for name in first
    )


def children():
    """The processes that were forked from this one; `tests.forked` has another command line."""
    this = psutil.Process()
    return [child for child in this.children() if child.cmdline() == this.cmdline()]


def await_end(pids):
    """Wait until processes that nobody may reap have ended."""
    for _ in range(4000):
        if all(has_ended(pid) for pid in pids):
            return
        time.sleep(0.005)
    raise AssertionError("workers are left")


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    if multiprocessing.active_children():
        gc.collect()  # of a loader that an error's traceback holds
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [1, 2, 3, "1 process", "1 thread", "3 threads"])
@pytest.mark.sample(keep=("1 process", "3 threads"))
def test_workers_change_no_batch(workers):
    def loader(**settings):
        return Loader(Items(), 4, shuffle=True, seed=7, item_transform=jitter, transform=scale, **settings)

    plain = [list(loader().epoch(epoch)) for epoch in range(2)]
    working = loader(workers=workers, prefetch=1)
    for epoch, start in ((0, 0), (1, 5), (0, 8)):
        got = list(working.epoch(epoch, start))
        assert len(got) == 8 - start
        assert all(map(equal, got, plain[epoch][start:]))
    assert not equal(plain[0][0], plain[1][0])


@given(
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 9),
    st.booleans(),
)
@settings(max_examples=25)
def test_threads_change_no_batch(length, batch_size, count, prefetch, start, shuffle):
    settings = {
        "shuffle": shuffle,
        "item_transform": lambda item, generator: item + torch.rand(1, generator=generator),
    }
    plain = list(Loader(range(length), batch_size, **settings).epoch(1, start))
    loader = Loader(range(length), batch_size, workers=f"{count} threads", prefetch=prefetch, **settings)
    assert [batch.tolist() for batch in loader.epoch(1, start)] == [batch.tolist() for batch in plain]
    loader.close()


def test_item_transform_is_seeded_by_seed_epoch_and_index_alone():
    def draws(seed, epoch, **settings):
        loader = Loader(
            range(12), 5, seed=seed, item_transform=lambda i, g: (i, torch.rand(1, generator=g)), **settings
        )
        return {
            int(i): float(x)
            for indices, numbers in loader.epoch(epoch)
            for i, x in zip(indices, numbers, strict=True)
        }

    base = draws(0, 0)
    assert base == draws(0, 0, shuffle=True) == draws(0, 0, workers="2 threads")
    assert len({*base.values(), *draws(1, 0).values(), *draws(0, 1).values()}) == 36


def test_batches_ahead_are_bounded_and_skipped_items_are_never_read():
    read = []

    class Noting(Items):
        def __getitem__(self, index):
            read.append(index)
            return index

    loader = Loader(Noting(), 3, workers="1 thread", prefetch=2)
    batches = loader.epoch(0, start=4)
    assert read == []
    assert next(batches).tolist() == [12, 13, 14]
    batches.close()
    loader.close()
    time.sleep(0.01)
    assert set(read) <= set(range(12, 21))  # batches 4, 5 and 6


def test_the_global_states_of_a_worker_depend_on_the_batch_alone():
    class Drawing(Items):
        def __getitem__(self, index):
            return random.random(), np.random.rand(), torch.rand(2)

    torch.manual_seed(5)
    first = [[column.tolist() for column in batch] for batch in Loader(Drawing(), 4, workers=1).epoch(0)]
    before = torch.get_rng_state()
    again = [[column.tolist() for column in batch] for batch in Loader(Drawing(), 4, workers=2).epoch(0, 3)]
    assert again == first[3:]
    assert torch.equal(torch.get_rng_state(), before)
    assert len({number for batch in first for number in batch[0]}) == 30


@pytest.mark.sample(1)
@pytest.mark.parametrize("workers", [0, "2 threads", 2])
def test_an_item_that_fails_is_named_with_its_traceback(workers):
    def fail():
        raise KeyError("no such file")

    loader = Loader(Items(act={13: fail}), 4, workers=workers)
    batches = loader.epoch(0)
    for _ in range(3):
        next(batches)
    with pytest.raises(DataError) as caught:
        next(batches)
    assert re.fullmatch(
        r"an item could not be loaded\n  in        item 13 of Items\n  found     KeyError: 'no such file'\n"
        r'  from      test_workers\.py:\d+   raise KeyError\("no such file"\)',
        str(caught.value),
    )
    text = "".join(traceback_of(caught.value))
    assert 'raise KeyError("no such file")' in text
    with pytest.raises(StopIteration):  # as of any generator
        next(batches)
    assert next(loader.epoch(0, 4)).index.tolist() == [16, 17, 18, 19]  # the workers go on


def traceback_of(error):
    import traceback

    return traceback.format_exception(error)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full)])
def test_errors_of_other_parts_name_the_batch(workers):
    def fail(*_):
        raise RuntimeError("boom")

    for part, what, where in (
        ("batcher", "batch", "batch 1 of epoch 2, counted from 0: items 2, 3 of range"),
        ("transform", "batch", "batch 1 of epoch 2"),
        ("item_transform", "item", "item 2 of range"),
    ):
        with pytest.raises(DataError, match=f"an? {what} could not be loaded") as caught:
            next(Loader(range(9), 2, workers=workers, **{part: fail}).epoch(2, 1))
        assert caught.value.found == "RuntimeError: boom"
        assert caught.value.where.startswith(where)
    ragged = Loader([[1], [1, 2], [3]], 3, workers=workers)
    with pytest.raises(DataError, match="do not fit together") as caught:
        next(iter(ragged))
    assert caught.value.origin == ("batch 0 of epoch 0, counted from 0: items 0, 1, 2 of list",)


class Unpicklable(Exception):
    def __init__(self, a, b):
        self.lock = threading.Lock()


def test_what_cannot_be_sent_from_a_worker_is_an_error():
    with pytest.raises(DataError, match="could not return a batch") as caught:
        next(iter(Loader(range(3), 1, batcher=lambda items: threading.Lock(), workers=1)))
    assert "cannot pickle" in caught.value.found

    def fail():
        raise Unpicklable(1, 2)

    with pytest.raises(DataError, match="item 0 of Items"):
        next(iter(Loader(Items(act={0: fail}), 1, workers=1)))


class WithArguments(DataError):
    """An error of a user, which a pickle of it calls with its message alone."""

    def __init__(self, code, path):
        super().__init__(f"code {code} of {path}")


class NotAgain:
    def __reduce__(self):
        return int, ("x",)


@pytest.mark.full
def test_what_cannot_be_received_from_a_worker_is_an_error_of_its_batch_alone():
    def fail():
        raise WithArguments(7, "a.png")

    loader = Loader(Items(act={5: fail}), 4, workers=1)
    with pytest.raises(DataError, match="a worker process could not return a batch") as caught:
        list(loader)
    assert caught.value.where == "batch 1 of epoch 0, counted from 0: items 4, 5, 6, 7 of Items"
    assert caught.value.found.startswith("WithArguments: code 7 of a.png")
    loader = Loader(range(4), 2, workers=1, batcher=lambda items: NotAgain() if items[0] else items)
    batches = loader.epoch(0)
    assert next(batches) == [0, 1]
    pids = [child.pid for child in children()]
    with pytest.raises(DataError, match="a batch of a worker process cannot be unpickled") as caught:
        next(batches)
    assert caught.value.where == "batch 1 of epoch 0, counted from 0: items 2, 3 of range"
    assert caught.value.found == "ValueError: invalid literal for int() with base 10: 'x'"
    assert next(loader.epoch(0)) == [0, 1]
    assert [child.pid for child in children()] == pids


def segfault():
    faulthandler.disable()  # pytest's would print where this worker is
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), ["killed by SIGKILL", "memory runs out"]),
        (segfault, ["killed by SIGSEGV", "workers=0 reads"]),
        (lambda: os._exit(3), ["ended with exit code 3"]),
    ],
)
@pytest.mark.sample(1)
def test_a_worker_that_dies_says_what_it_was_reading(act, words):
    loader = Loader(Items(act={14: act}), 4, workers=2)
    with pytest.raises(DataError) as caught:
        list(loader.epoch(5))
    message = str(caught.value)
    for word in ["a worker process of the loader died", "item 14 of Items, in batch 3 of epoch 5", *words]:
        assert word in message
    assert children() == []
    assert next(loader.epoch(0)).index.tolist() == [0, 1, 2, 3]  # with new workers


def test_a_worker_killed_in_a_whole_batch_names_its_items():
    class Taking(Items):
        def take(self, indices):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(DataError) as caught:
        next(Loader(Taking(), 2, workers=1).epoch(0, 3))
    assert caught.value.where == "batch 3 of epoch 0, counted from 0: items 6, 7 of Taking"


def test_iterators_of_one_loader_share_its_workers_and_may_be_dropped():
    loader = Loader(Items(), 4, workers=2)
    first, second = loader.epoch(0), loader.epoch(1)
    assert [next(it).index[0].item() for it in (first, second, first, second, second)] == [0, 0, 4, 4, 8]
    ids = {child.pid for child in children()}
    first.close()
    del second
    assert [batch.index[0].item() for batch in loader.epoch(0)] == list(range(0, 30, 4))
    assert {child.pid for child in children()} == ids
    assert len(ids) == 2


def test_workers_ignore_signals_of_the_training_and_end_with_the_loader():
    loader = Loader(Items(), 4, workers=1)
    batches = loader.epoch(0)
    next(batches)
    for child in children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child.send_signal(number)
    assert len(list(batches)) == 7
    assert len(children()) == 1
    del batches, loader
    gc.collect()
    assert children() == []


def test_close_interrupts_a_long_item_and_what_waits_for_it(monkeypatch):
    monkeypatch.setattr("burnt.data.loading.workers._SECONDS_TO_END", 0.05)
    loader = Loader(Items(act={4: lambda: time.sleep(60)}), 4, workers=1)
    batches = loader.epoch(0)
    next(batches)
    start = time.monotonic()
    loader.close()
    assert time.monotonic() - start < 5
    with pytest.raises(DataError, match="closed while a batch was awaited"):
        next(batches)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["send", "receive"])
def test_an_interrupt_between_two_messages_shifts_no_batch(name, monkeypatch):
    loader = Loader(Items(), 4, workers=1)
    batches = loader.epoch(0)
    next(batches)
    exchange = {"send": send, "receive": receive}[name]

    def interrupted(*args):
        exchange(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"burnt.data.loading.workers.{name}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    assert [batch.index[0].item() for batch in loader.epoch(0)] == list(range(0, 30, 4))


@pytest.mark.full
def test_copies_and_forks_of_a_loader_have_workers_of_their_own():
    loader = Loader(range(8), 2, workers=1)
    list(loader)
    copied = copy.deepcopy(loader)
    assert [batch.tolist() for batch in copied.epoch(0)] == [batch.tolist() for batch in loader.epoch(0)]
    assert len(children()) == 2
    assert next(pickle.loads(pickle.dumps(loader)).epoch(0)).tolist() == [0, 1]
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if next(loader.epoch(0, 2)).tolist() == [4, 5] else 2
            loader.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(loader.epoch(0, 1)).tolist() == [2, 3]
    ours.close()
    theirs.close()


PROGRAM = """
import os, sys, signal, time
import psutil, torch
from burnt.data import Loader

class Items:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        time.sleep(0.002)
        return index

loader = Loader(Items(), 2, workers=2)
batches = iter(loader)
next(batches)
print(*(child.pid for child in psutil.Process().children()), flush=True)
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("sys.exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("[os.kill(c.pid, 2) for c in psutil.Process().children()]; signal.raise_signal(2)", -2),
    ],
)
@pytest.mark.full
def test_workers_end_with_the_process_however_it_ends_and_in_silence(end, code):
    done = forked.run(PROGRAM, end)
    assert done.returncode == code
    assert done.stderr.count("Traceback") == (code == -2)  # of the KeyboardInterrupt, in the main process
    assert len(done.stderr.splitlines()) == 0 or code == -2
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    await_end(pids)


def test_workers_end_before_multiprocessing_waits_for_them():
    def use(connection):
        loader = Loader(Items(), 4, workers=1)
        next(loader.epoch(0))
        connection.send([worker.pid for worker in multiprocessing.active_children()])
        globals()["kept"] = loader  # not collected, as a module's would not be

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=use, args=(theirs,))
    process.start()
    pids = ours.recv()
    assert len(pids) == 1
    process.join(20)
    assert process.exitcode == 0
    await_end(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_workers_end_with_a_process_that_is_killed(number):
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        loader = Loader(Items(), 4, workers=2)
        batches = loader.epoch(0)
        next(batches)
        theirs.send(" ".join(str(worker.pid) for worker in multiprocessing.active_children()).encode())
        signal.pause()
    with ours, theirs:
        workers = [int(pid) for pid in ours.recv(100).split()]
    assert len(workers) == 2
    os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
    await_end(workers)


@pytest.mark.full
def test_spawned_workers_give_the_same(monkeypatch):
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "spawn")
    data = TensorDataset(x=torch.arange(10.0))
    assert torch.equal(torch.cat([b.x for b in Loader(data, 3, workers=1)]), torch.arange(10.0))
    with pytest.raises(DataError, match="cannot be sent to a worker process") as caught:
        next(iter(Loader(data, 3, workers=1, transform=lambda batch, generator: batch)))
    assert "workers='4 threads'" in caught.value.hint


# messages between processes


def there_and_back(value):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, pickled(value))
        return unpickled(receive(theirs))


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "value",
    [
        torch.arange(12.0).view(3, 4),
        torch.arange(12.0).view(3, 4).T,
        torch.arange(24).view(2, 3, 4)[:, ::2, 1:],
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(3, dtype=torch.int16),
        torch.zeros(0, 3),
        torch.zeros(2).expand(3, 2),
        torch.tensor([True, False]),
        torch.randn(3).to(torch.bfloat16),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.ones(3, requires_grad=True),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_tensors_arrive_as_they_were(value):
    got = there_and_back({"value": [value]})["value"][0]
    assert type(got) is type(value)
    assert (got.dtype, got.shape, got.requires_grad) == (value.dtype, value.shape, value.requires_grad)
    assert torch.equal(got.to_dense(), value.to_dense())
    if got.layout == torch.strided:
        assert got.stride() == value.detach().clone().stride()


def test_batches_arrive_in_memory_of_their_own():
    x = torch.arange(6)
    batch = there_and_back(
        Batch(x=x, twice=[x, x], names=["a"], array=np.arange(4.0)[::2], large=np.ones(1000))
    )
    assert batch.twice[0] is batch.twice[1]
    batch.x += 1  # writable
    batch.large[0] = 5
    assert x.tolist() == list(range(6))
    assert batch.x.untyped_storage().nbytes() == 48  # saving it saves no more
    assert batch.array.tolist() == [0, 2]
    x = batch.x
    del batch
    gc.collect()
    assert x.tolist() == list(range(1, 7))


def test_messages_wait_for_no_receiver_and_keep_no_file_open():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(100):
            send(ours, pickled(torch.full((10_000,), number)))
        before = len(os.listdir("/proc/self/fd"))
        kept = [unpickled(receive(theirs)) for _ in range(100)]
        assert [int(value[-1]) for value in kept] == list(range(100))
        assert len(os.listdir("/proc/self/fd")) <= before
        ours.close()
        with pytest.raises(EOFError):
            receive(theirs)


# settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": -1}, ["workers= is a number of processes or threads", "4 threads", "-1"]),
        ({"workers": "many"}, ["workers= is a number of processes or threads", "'many'"]),
        ({"workers": True}, ["True"]),
        ({"prefetch": 2}, ["prefetch= is the number of batches", "workers=0", '"1 thread"']),
        ({"workers": 2, "prefetch": 0}, ["at least 1", "prefetch=0"]),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with raises(DataError, *words):
        Loader(range(3), 1, **settings)


def test_processes_need_unix_sockets(monkeypatch):
    monkeypatch.delattr(socket, "send_fds")
    with pytest.raises(UnsupportedError, match="POSIX") as caught:
        WorkerPool(None, 2, None)
    assert caught.value.hint == 'use threads: workers="2 threads"'
    WorkerPool(None, "2 threads", None)


def global_draws(name):
    def draw(batch, generator):
        if name == "random":
            return batch + random.random()
        return batch + (np.random.randn() if name == "numpy" else float(torch.rand(())))

    return draw


def seeded_batches(loader, between=lambda: None):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    np.random.randn()  # draws two, and keeps one
    batches = []
    for batch in loader.epoch(0):
        batches.append(batch.tolist())
        between()
    loader.close()
    return batches


@pytest.mark.parametrize("name", ["torch", "numpy", "random"])
@pytest.mark.parametrize("kind", ["Loader", "StreamLoader"])
def test_threads_that_draw_from_global_states_are_repeatable(name, kind):
    """As without workers: the training's own draws come between, in the same order."""

    def loader(workers):
        if kind == "Loader":
            return Loader(torch.zeros(40, 2), 4, transform=global_draws(name), workers=workers)
        shards = Shards(range(2), lambda shard: [torch.zeros(2)] * 8)
        return StreamLoader(shards, 2, transform=global_draws(name), workers=workers)

    def train():
        torch.rand(1), np.random.randn(2), random.random()

    expected = seeded_batches(loader(0), train)
    for _ in range(2):
        with pytest.warns(UserWarning, match="draw from the global random states") as warned:
            assert seeded_batches(loader("3 threads"), train) == expected
        assert len(warned) == 1


def test_threads_that_draw_later_are_noticed():
    def late(batch, generator):
        return batch + (random.random() if float(batch[0]) >= 12 else 0)

    loader = Loader(torch.arange(400.0), 4, transform=late, workers="2 threads")
    with pytest.warns(UserWarning, match="those that were loaded before this warning may not be"):
        seeded_batches(loader)


@pytest.mark.parametrize("who", ["the training", "another thread"])
def test_what_others_draw_is_not_mistaken(who):
    """The training between batches; another loader's threads during the first batch of this one."""

    def disturbed(batch, generator):
        if who == "another thread" and float(batch[0]) == 0:
            random.random()
        return batch

    loader = Loader(torch.arange(200.0), 2, transform=disturbed, workers="2 threads")
    batches = seeded_batches(loader, lambda: torch.rand(1) if who == "the training" else None)
    assert [item for batch in batches for item in batch] == list(range(200))
    assert not loader._pool._draws  # and nothing was warned of, which would be an error
