"""Clocks: how calls take turns with inputs, what is captured, and what happens where nothing can be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from burnt.kernels.autotune import timers
from burnt.kernels.autotune.timers import EventClock, GraphClock, HostClock, NotCapturedError


class Device:
    """Stands for a CUDA device: a clock that calls move on, streams, graphs that replay what they held."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.stream = "default"
        self.capturing: list[Callable[[], None]] | None = None
        self.captures: list[int] = []
        self.sync_mode = 0
        self.refuses = False
        self.log: list[str] = []
        self.modes: list[str] = []

    def launch(self, seconds: float, name: str) -> None:
        """What a call does: work of so many seconds."""
        if self.capturing is not None:
            if self.refuses:
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
            self.capturing.append(lambda: self.launch(seconds, name))
            return
        self.seconds += seconds
        self.log.append(name)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = device.seconds

        def synchronize(self) -> None:
            self.waited = True

        def elapsed_time(self, end: Any) -> float:
            assert end.waited
            return float((end.at - self.at) * 1e3)

    class Stream:
        def wait_stream(self, other: Any) -> None:
            pass

    class Graph:
        work: list[Callable[[], None]]

        def replay(self) -> None:
            for work in self.work:
                work()

    @contextlib.contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        before, device.stream = device.stream, chosen
        try:
            yield
        finally:
            device.stream = before

    @contextlib.contextmanager
    def graph(into: Graph, **options: Any) -> Iterator[None]:
        device.modes.append(options.get("capture_error_mode", "global"))
        into.work = device.capturing = []
        # As torch's: an error leaves the capture's stream the current one.
        device.stream = options["stream"]
        try:
            yield
        finally:
            device.capturing = None
        device.captures.append(len(into.work))

    cuda = torch.cuda
    monkeypatch.setattr(cuda, "Event", Event)
    monkeypatch.setattr(cuda, "Stream", Stream)
    monkeypatch.setattr(cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(cuda, "stream", stream)
    monkeypatch.setattr(cuda, "graph", graph)
    monkeypatch.setattr(cuda, "current_stream", lambda: Stream())
    monkeypatch.setattr(cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda, "get_sync_debug_mode", lambda: device.sync_mode)
    monkeypatch.setattr(cuda, "set_sync_debug_mode", lambda mode: setattr(device, "sync_mode", mode))
    monkeypatch.setattr(timers.torch, "ones", lambda *_, **__: None)
    return device


INPUTS = [["a"], ["b"], ["c"]]


def test_a_graph_holds_a_call_for_each_set_of_inputs(device: Device) -> None:
    taken = GraphClock()
    sample = taken.sampler(lambda given: device.launch(1e-4, given[0]), INPUTS)
    assert device.captures == [3]
    device.log.clear()
    assert sample(0) == pytest.approx(1e-4)
    # As many replays as make a millisecond, each of which walks all inputs.
    assert device.log == ["a", "b", "c"] * 3
    assert device.modes == ["thread_local"]  # another thread's work, a loader's, is not an error
    taken.sampler(lambda given: device.launch(1e-2, given[0]), INPUTS)
    device.log.clear()
    assert sample(5) == pytest.approx(1e-4)
    assert device.log == ["a", "b", "c"] * 3


def test_a_call_that_waits_is_not_captured(device: Device) -> None:
    def waits(given: Any) -> None:
        if device.sync_mode == "error":  # type: ignore[comparison-overlap]
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(NotCapturedError, match="synchronizing"):
        GraphClock().sampler(waits, INPUTS)
    assert device.captures == []
    assert (device.sync_mode, device.stream) == (0, "default")


def test_a_capture_that_fails_leaves_the_device_in_order(device: Device) -> None:
    device.refuses = True
    with pytest.raises(NotCapturedError, match=r"not permitted when stream is capturing$"):
        GraphClock().sampler(lambda given: device.launch(1e-4, given[0]), INPUTS)
    assert device.stream == "default"
    assert device.captures == [0]  # the one that tells random generators that none is under way


def test_events_are_around_calls_that_take_turns(device: Device) -> None:
    sample = EventClock().sampler(lambda given: device.launch(4e-4, given[0]), INPUTS)
    device.log.clear()
    assert sample(1) == pytest.approx(4e-4)
    assert device.log == ["b", "c", "a"]
    device.log.clear()
    sample = EventClock().sampler(lambda given: device.launch(1e-4, given[0]), INPUTS)
    device.log.clear()
    sample(2)
    assert "".join(device.log) == "cabcabcabc"


def test_the_hosts_clock_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done, waits = [0.0], [0.0], []

    def call(given: Any) -> None:
        done[0] += 1e-4

    def synchronise(device: torch.device) -> None:
        waits.append(device.type)
        now[0] += done[0]
        done[0] = 0.0

    monkeypatch.setattr(timers.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronise)
    assert HostClock(torch.device("mps")).sampler(call, INPUTS)(0) == pytest.approx(1e-4)
    assert set(waits) == {"mps"}
    waits.clear()
    HostClock(torch.device("cpu")).sampler(call, INPUTS)(0)
    assert waits == []


def test_each_device_has_its_clock() -> None:
    assert isinstance(timers.default_clock(torch.device("cuda")), GraphClock)
    assert isinstance(timers.default_clock(torch.device("cpu")), HostClock)
