import itertools

import pytest
import torch

from burnt.swapping import measure
from burnt.swapping.kind import is_swapped


@pytest.fixture(autouse=True)
def settings():
    torch.manual_seed(0)


@pytest.fixture
def always(monkeypatch):
    """Whatever is right is swapped, however slow, and little time is taken to measure it."""
    monkeypatch.setattr(measure, "_GAIN", 0.0)
    monkeypatch.setattr(measure, "_EVEN", 0.0)
    monkeypatch.setattr(measure, "_ROUNDS", range(1, 2))
    monkeypatch.setattr(measure, "_SECONDS", 0.0)
    monkeypatch.setattr(measure, "_SHORTEST", 0.0)


class Clock:
    """Stands in for the module `time`: time passes when a call is sampled."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def give_times(monkeypatch):
    """A function that sets the seconds of samples, of the original and swapped; it returns the clock.

    Layers have the times `original` and `swapped`, models that consist of layers those of `whole`.
    """

    def give(original, swapped, whole=((1.0,), (1.0,))):
        clock = Clock()
        times = [[itertools.cycle(seconds) for seconds in pair] for pair in ((original, swapped), whole)]

        def sample(call, count):
            is_whole = any(True for _ in call.module.children())
            seconds = next(times[is_whole][any(map(is_swapped, call.module.modules()))])
            clock.now += seconds * count
            return seconds, seconds

        monkeypatch.setattr(measure, "time", clock)
        monkeypatch.setattr(measure.Call, "sample", sample)
        monkeypatch.setattr(measure.Call, "once", lambda call: 1e-3)
        return clock

    return give
