"""A check or summary leaves nothing behind, wherever user code keeps a tensor; its result comes back."""

import functools
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import burnt
from burnt.errors import ArgumentError, ShapeError
from burnt.inspect import check, meta, summary
from burnt.inspect.meta import run_isolated

N = 4
TABLES, TABLE, IS_READY, HISTORY, LOCAL = {}, None, False, [], threading.local()

needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")


def table(n):
    return torch.arange(n).float()


class Tables:
    """A cache on a class."""

    table = None


cached = functools.lru_cache(table)


def closure():
    result = None

    def function(n):
        nonlocal result
        result = table(n) if result is None else result
        return result

    return function


in_closure = closure()


def everywhere(n):
    global TABLE, IS_READY
    if not IS_READY:
        TABLE, IS_READY = table(n), True
    if Tables.table is None:
        Tables.table = LOCAL.table = table(n)
    HISTORY.append(table(n))
    in_variables = TABLE + Tables.table + LOCAL.table + HISTORY[-1]
    return cached(n) + in_variables + in_closure(n) + TABLES.setdefault(n, table(n))


class Net(nn.Module):
    def __init__(self, function, cannot_be_copied=False):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(N, N)
        self.lock = threading.Lock() if cannot_be_copied else None

    def forward(self, x):
        return self.layer(x + self.function(N))


@pytest.mark.full
@needs_fork
def test_nothing_is_left_in_caches():
    x, stored = torch.randn(3, N), []
    hooked = Net(everywhere)
    hooked.layer.register_forward_hook(lambda module, args, output: stored.append(output))
    for run in (check, summary, burnt.inspect.signature_of):
        for model in (hooked, Net(everywhere, cannot_be_copied=True)):
            run(model, x)
    assert check(hooked, x).unchecked == summary(hooked, x).unchecked == ()
    with pytest.raises(ShapeError):
        check(nn.Sequential(Net(everywhere), nn.Linear(N + 1, 2)), x)
    check(nn.Linear(N, N), x, call=lambda model, x: model(x) + everywhere(N))
    assert (TABLES, TABLE, IS_READY, HISTORY, stored, Tables.table) == ({}, None, False, [], [], None)
    assert torch.equal(everywhere(N), 7 * torch.arange(N).float())
    check(
        Net(everywhere), x
    )  # the real tables are there: the meta run fails with them, and must not lose them
    assert torch.equal(everywhere(N), 7 * torch.arange(N).float())


@pytest.mark.sample(2)
@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: (t, 1), lambda t: {"value": [t]}])
@pytest.mark.parametrize("size", [2, None])
def test_in_this_process_functools_caches_are_cleared(wrap, size, in_process):
    cache, kept = functools.lru_cache(size)(lambda n: wrap(table(n))), functools.cache(lambda n: n)
    kept(1)
    for run in (check, summary):
        run(Net(lambda n: 0 * len(cache(n))), torch.randn(3, N))
        assert cache.cache_info().currsize == 0
    assert kept.cache_info().currsize == 1


@needs_fork
def test_errors_come_back_whole():
    for forks in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(meta, "_can_fork", lambda forks=forks: forks)
            with pytest.raises(ShapeError, match=r"in model\.1   Linear\(3 -> 2\)") as caught:
                check(nn.Sequential(nn.Linear(N, 5), nn.Linear(3, 2)), torch.ones(2, N))
            texts = str(caught.value), caught.value.hint, caught.value.origin
            assert texts[1:] == ("0 makes 5 features: Linear(5, 2)?", ("model.0   Linear(4 -> 5) -> (2, 5)",))
            with pytest.raises(ArgumentError, match="unexpected keyword argument 'y'"):
                check(nn.Linear(N, 2), torch.ones(2, N), y=1)
    with pytest.raises(SystemExit, match="7") as ended:
        run_isolated(lambda: sys.exit(7))
    assert "test_isolated.py" in str(ended.value.__cause__)  # the trace of the other process
    with pytest.raises(RuntimeError, match=f"ended with signal {signal.SIGKILL}"):
        run_isolated(lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.full
@needs_fork
def test_a_fork_that_waits_for_ever_is_given_up(monkeypatch):
    """As one does that waits for a lock which another thread held when it was forked."""
    monkeypatch.setattr(meta, "_MOST_SECONDS", 0.2)
    here = os.getpid()
    assert run_isolated(lambda: signal.pause() if os.getpid() != here else os.getpid()) == here


@needs_fork
def test_a_process_with_many_open_files_forks(monkeypatch):
    fcntl, resource = pytest.importorskip("fcntl"), pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != limits[1] < 2000:
        pytest.skip("this machine allows fewer open files")
    pipe = os.pipe

    def high_pipe():
        ends = pipe()
        moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 1500) for end in ends)
        for end in ends:
            os.close(end)
        return moved

    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, limits[1]))
    try:
        monkeypatch.setattr(os, "pipe", high_pipe)
        assert run_isolated(os.getpid) != os.getpid()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_result_that_cannot_be_copied_is_computed_here():
    @dataclass
    class Output:
        loss: torch.Tensor

    report = check(nn.Linear(N, 2), torch.ones(2, N), call=lambda model, x: Output(model(x).sum()))
    assert type(report.outputs) is Output
    assert report.outputs.loss.is_meta

    class OwnError(Exception):
        pass

    with pytest.raises(OwnError):
        run_isolated(lambda: (_ for _ in ()).throw(OwnError()))


@needs_fork
def test_a_call_inside_another_belongs_to_it():
    seen = []

    def outer():
        check(Net(lambda n: seen.append(n) or 0), torch.ones(2, N))
        return len(seen), os.getpid()

    count, process = run_isolated(outer)
    assert count == 2
    assert process != os.getpid()
    assert seen == []


@needs_fork
def test_it_works_beside_threads_and_with_buffered_output():
    """OpenMP's threads are not forked: what the model computes on the CPU must not wait for them."""
    code = """
import threading, torch, burnt
print("once")
torch.set_num_threads(4)
big = torch.ones(600, 600)
(big @ big.requires_grad_()).sum().backward()
threading.Thread(target=threading.Event().wait, daemon=True).start()
def step(model, x):
    print("twice")
    return model(x) + (torch.ones(600, 600, device="cpu") @ torch.ones(600, 600, device="cpu"))[0, 0].item()
assert burnt.check(torch.nn.Linear(4, 2), torch.ones(3, 4), call=step).unchecked == ()
"""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["once", "twice", "twice"]
