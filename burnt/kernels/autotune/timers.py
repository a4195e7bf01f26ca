"""Timing a call with the host's clock, with CUDA events, or by replaying a CUDA graph of calls.

A clock builds a sampler from a call and several sets of inputs. Successive calls cycle through the sets, so
that a call does not find its inputs in a cache. The launch overhead on the host exceeds the time of many
kernels: it is included in the times of `EventClock`, but not of `GraphClock`. Candidates are
therefore only compared by the same clock.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[Sequence[Any]], object]
Sampler = Callable[[int], float]

_MIN_SAMPLE_SECONDS = 2e-4
"""Minimum time between two readings of the host's clock."""
_MIN_EVENT_SAMPLE_SECONDS = 1e-3
"""Minimum time between two CUDA events, whose resolution is half a microsecond."""
_MAX_CALLS = 1000


class NotCapturedError(RuntimeError):
    """Calls cannot be captured in a CUDA graph, for example because they synchronize."""


class Clock:
    """Measures the time of calls."""

    def now(self) -> float:
        """Return the seconds of the host's clock, for time budgets."""
        return time.perf_counter()

    def sampler(self, call: Call, inputs: Sequence[Sequence[Any]]) -> Sampler:
        """Build a sampler: a function that makes several calls and returns the seconds per call.

        Calls cycle through the sets of inputs; the sampler takes the index of the first one, which should
        differ from sample to sample. NotCapturedError: this clock captures calls in a CUDA graph, and cannot
        capture these.
        """
        raise NotImplementedError


def default_clock(device: torch.device) -> Clock:
    """Return the most precise clock for calls on a device."""
    return GraphClock() if device.type == "cuda" else HostClock(device)


class HostClock(Clock):
    """The host's clock; synchronizes with the device before and after the calls.

    >>> sample = HostClock(torch.device("cpu")).sampler(lambda inputs: inputs[0] + 1, [[torch.ones(8)]])
    >>> 0 < sample(0) < 1
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def sampler(self, call: Call, inputs: Sequence[Sequence[Any]]) -> Sampler:
        """Build a sampler of enough calls to make the cost of reading the clock negligible."""

        def take_sample(first: int, count: int) -> float:
            self._synchronize()
            began = time.perf_counter()
            for i in range(count):
                call(inputs[(first + i) % len(inputs)])
            self._synchronize()
            return (time.perf_counter() - began) / count

        count = _num_calls(take_sample(0, 1), _MIN_SAMPLE_SECONDS)
        return lambda first: take_sample(first, count)

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


class EventClock(Clock):
    """CUDA events around calls that are launched one by one."""

    def sampler(self, call: Call, inputs: Sequence[Sequence[Any]]) -> Sampler:
        """Build a sampler of enough calls to make the launch latency of the first negligible."""

        def take_sample(first: int, count: int) -> float:
            sets = [inputs[(first + i) % len(inputs)] for i in range(count)]
            return _seconds_of([functools.partial(call, each) for each in sets]) / count

        for input_set in inputs:
            call(input_set)
        count = max(_num_calls(take_sample(0, 1), _MIN_EVENT_SAMPLE_SECONDS), len(inputs))
        return lambda first: take_sample(first, count)


class GraphClock(Clock):
    """CUDA events around replays of a CUDA graph that contains one call for each set of inputs.

    The results of the calls in a graph have separate memory, as their inputs do. All graphs of a clock share
    one memory pool, so they must be replayed one at a time.
    """

    def __init__(self) -> None:
        self.pool: Any = None
        self.stream: torch.cuda.Stream | None = None

    def sampler(self, call: Call, inputs: Sequence[Sequence[Any]]) -> Sampler:
        """Build a sampler that replays the graph."""
        if self.stream is None:
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        calls = [functools.partial(call, input_set) for input_set in inputs]
        graph = capture_graph(calls, self.pool, self.stream)

        def take_sample(replays: int) -> float:
            return _seconds_of([graph.replay] * replays) / replays / len(inputs)

        take_sample(1)  # uploads the graph
        replays = _num_calls(take_sample(1) * len(inputs), _MIN_EVENT_SAMPLE_SECONDS)
        return lambda first: take_sample(replays)


def capture_graph(
    calls: Sequence[Callable[[], object]], pool: Any = None, stream: torch.cuda.Stream | None = None
) -> torch.cuda.CUDAGraph:
    """Capture calls in a CUDA graph, after a warm-up on the stream; NotCapturedError if one synchronizes.

    What the calls return is kept alive until all are captured, so that their results do not share memory.
    Graphs that share a `pool` (`torch.cuda.graph_pool_handle`) share the stream, and are replayed one at a
    time.
    """
    before = torch.cuda.current_stream()
    stream = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(before)
    graph = torch.cuda.CUDAGraph()
    # The outer block restores the stream if an error ends the inner one before it can.
    with torch.cuda.stream(stream):
        _raise_if_synchronizing(calls)
        results: list[object] = []
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                results += [call() for call in calls]
        except RuntimeError as error:
            del results
            torch.cuda.synchronize()
            # Random generators stay in capture mode until another capture succeeds.
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
                torch.ones(1, device="cuda")
            raise NotCapturedError(str(error).partition("\n")[0]) from error
    before.wait_stream(stream)
    return graph


def _raise_if_synchronizing(calls: Sequence[Callable[[], object]]) -> None:
    """Run calls, and raise if one synchronizes: a failed capture leaves torch in an inconsistent state."""
    for call in calls:
        call()  # the first call may synchronize, for example to compile
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        calls[0]()
    except RuntimeError as error:
        raise NotCapturedError(str(error).partition("\n")[0]) from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _seconds_of(calls: Sequence[Callable[[], object]]) -> float:
    """Return the seconds that the device takes for calls, between two CUDA events."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _num_calls(seconds_per_call: float, min_seconds: float) -> int:
    """Return how many calls a sample needs to take a minimum time."""
    return min(max(1, int(min_seconds / max(seconds_per_call, 1e-7))), _MAX_CALLS)
