"""Taking the time of a call: by the host's clock, by a GPU's events, or by replaying a CUDA graph of calls.

A clock makes a sampler of a call and several sets of inputs for it. Successive calls take the sets in turns,
so that none finds its own in a cache. Host time, which is longer than that of many kernels, is in what
`EventClock` measures and not in what `GraphClock` does: candidates are only compared by one clock.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

__all__ = ["Clock", "EventClock", "GraphClock", "HostClock", "NotCapturedError", "captured", "clock_of"]

Call = Callable[[Sequence[Any]], object]
Sampler = Callable[[int], float]

_SHORTEST = 2e-4
"""Seconds between two looks at a host's clock."""
_SHORTEST_ON_DEVICE = 1e-3
"""Seconds between two events, which tell half microseconds apart."""
_MOST_CALLS = 1000


class NotCapturedError(RuntimeError):
    """Calls cannot be captured in a CUDA graph: they wait for the device, say."""


class Clock(Protocol):
    """What takes the time of calls."""

    def now(self) -> float:
        """Seconds since some moment, for budgets."""

    def sampler(self, call: Call, inputs: Sequence[Sequence[Any]]) -> Sampler:
        """A function that makes some calls and returns the seconds of one.

        Args:
            call: of a set of inputs; what it returns is let go of.
            inputs: the sets, which calls take in turns. The sampler's argument is a number, different from
                sample to sample, that decides which is the first.

        Raises:
            NotCapturedError: this clock captures calls, and these cannot be.
        """


def clock_of(device: torch.device) -> Clock:
    """The clock that tells the most of calls on a device."""
    return GraphClock() if device.type == "cuda" else HostClock(device)


class HostClock:
    """The host's clock, which a device is waited for by.

    >>> sample = HostClock(torch.device("cpu")).sampler(lambda inputs: inputs[0] + 1, [[torch.ones(8)]])
    >>> 0 < sample(0) < 1
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> float:
        """The host's clock."""
        return time.perf_counter()

    def sampler(self, call: Call, inputs: Sequence[Sequence[Any]]) -> Sampler:
        """A sampler of as many calls as make the clock's own cost small."""

        def take(turn: int, count: int) -> float:
            self._wait()
            began = time.perf_counter()
            for i in range(count):
                call(inputs[(turn + i) % len(inputs)])
            self._wait()
            return (time.perf_counter() - began) / count

        count = _calls(take(0, 1), _SHORTEST)
        return lambda turn: take(turn, count)

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


class EventClock:
    """A GPU's clock, around calls that are launched one by one."""

    def now(self) -> float:
        """The host's clock."""
        return time.perf_counter()

    def sampler(self, call: Call, inputs: Sequence[Sequence[Any]]) -> Sampler:
        """A sampler of enough calls for the launch of the first to be a small part."""

        def take(turn: int, count: int) -> float:
            def work() -> None:
                for i in range(count):
                    call(inputs[(turn + i) % len(inputs)])

            return _between_events(work) / count

        for given in inputs:
            call(given)
        count = max(_calls(take(0, 1), _SHORTEST_ON_DEVICE), len(inputs))
        return lambda turn: take(turn, count)


class GraphClock:
    """A GPU's clock, around replays of a CUDA graph that holds a call for each set of inputs.

    Results of one graph lie side by side, as its inputs do; all graphs of a clock lie in the same memory,
    which is why they are replayed one at a time.
    """

    def __init__(self) -> None:
        self.pool: Any = None
        self.stream: torch.cuda.Stream | None = None

    def now(self) -> float:
        """The host's clock."""
        return time.perf_counter()

    def sampler(self, call: Call, inputs: Sequence[Sequence[Any]]) -> Sampler:
        """A sampler of replays."""
        if self.stream is None:
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        runs = [functools.partial(call, given) for given in inputs]
        graph = captured(runs, self.pool, self.stream)

        def take(replays: int) -> float:
            def work() -> None:
                for _ in range(replays):
                    graph.replay()

            return _between_events(work) / replays / len(inputs)

        take(1)  # uploads the graph
        replays = _calls(take(1) * len(inputs), _SHORTEST_ON_DEVICE)
        return lambda turn: take(replays)


def captured(
    runs: Sequence[Callable[[], object]], pool: Any = None, stream: torch.cuda.Stream | None = None
) -> torch.cuda.CUDAGraph:
    """A CUDA graph of calls, run before on a stream of their own as a capture wants it.

    Args:
        runs: the calls; what they return is held until the last was captured, so that each has memory of its
            own for it.
        pool: of `torch.cuda.graph_pool_handle`; graphs that share one must not be replayed at once.
        stream: what is captured; graphs that share a pool share it, too.

    Raises:
        NotCapturedError: a call waits for the device, or does something else that a graph cannot hold.
    """
    before = torch.cuda.current_stream()
    stream = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(before)
    graph = torch.cuda.CUDAGraph()
    # The outer block restores the stream also where an error ends the inner one too early to do so.
    with torch.cuda.stream(stream):
        _refuse_waiting(runs)
        held: list[object] = []
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                held += [run() for run in runs]
        except RuntimeError as error:
            del held
            torch.cuda.synchronize()
            # Random generators take themselves to be captured until another capture ends well.
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
                torch.ones(1, device="cuda")
            raise NotCapturedError(str(error).partition("\n")[0]) from error
    before.wait_stream(stream)
    return graph


def _refuse_waiting(runs: Sequence[Callable[[], object]]) -> None:
    """Run calls, and raise where one waits for the device: a capture that fails leaves torch in disorder."""
    for run in runs:
        run()  # what is only done at the first call, compiling above all, may wait
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        runs[0]()
    except RuntimeError as error:
        raise NotCapturedError(str(error).partition("\n")[0]) from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _between_events(work: Callable[[], None]) -> float:
    """Seconds that a device takes for what is launched."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _calls(seconds: float, shortest: float) -> int:
    """How many calls a sample has."""
    return min(max(1, int(shortest / max(seconds, 1e-7))), _MOST_CALLS)
