"""Profiler: a callback that profiles a few steps into the run folder."""

from __future__ import annotations

from typing import Any

import torch

from burnt.errors import ConfigError, quantity
from burnt.train.events import Ended, Failed, Started, Stepped, Training

_ROWS = 30


class Profiler:
    """Profiles a few steps by torch's profiler, and writes what took the time.

    The trace is ``profile/step-00000011.json.gz`` in the run folder, for https://ui.perfetto.dev or
    chrome://tracing; the table ``profile`` in the run store, shown by the monitor, has the slowest ops.
    The steps that are profiled are slower.

    Args:
        skip: steps to let pass first, since the start or a resume; the first ones compile and tune.
        steps: the number of steps to profile.
        memory: whether to record allocations, too.
        stacks: record the lines of Python that called each op.

    Raises:
        ConfigError: an argument is invalid.

    >>> Profiler(skip=20, steps=3)
    Profiler(skip=20, steps=3)
    """

    def __init__(self, skip: int = 10, steps: int = 5, *, memory: bool = False, stacks: bool = False) -> None:
        for name, value, lowest in (("skip", skip, 0), ("steps", steps, 1)):
            if value < lowest:
                raise ConfigError(
                    "a Profiler cannot be built", where=name, expected=f"at least {lowest}", found=value
                )
        self.skip, self.steps = skip, steps
        self._memory, self._stacks = memory, stacks
        self._profile: Any = None
        self._left = skip

    def __repr__(self) -> str:
        return f"Profiler(skip={self.skip}, steps={self.steps})"

    def on_start(self, event: Started) -> None:
        """Begin to count, or to profile."""
        self._profile, self._left = None, self.skip
        if not self.skip:
            self._start()

    def on_step(self, event: Stepped) -> None:
        """Count the step, and begin or end the profile."""
        self._left -= 1
        if self._profile is None and self._left == 0:
            self._start()
        elif self._profile is not None and self._left == 0:
            self._stop(event.training)

    def on_end(self, event: Ended) -> None:
        """Write a profile of fewer steps."""
        if self._profile is not None:
            self._stop(event.training)
        elif self._left > 0:
            self._say_nothing(event.training)

    def on_error(self, event: Failed) -> None:
        """Write a profile of fewer steps."""
        if self._profile is not None:
            self._stop(event.training)

    def _start(self) -> None:
        self._left = self.steps
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(
            activities=activities, record_shapes=True, profile_memory=self._memory, with_stack=self._stacks
        )
        self._profile.__enter__()

    def _stop(self, training: Training) -> None:
        profile, self._profile = self._profile, None
        profile.__exit__(None, None, None)
        if self._left == self.steps:
            self._say_nothing(training)
            return
        step = training.position.step
        folder = training.writer.folder / "profile"
        path = folder / f"step-{step:08d}.json.gz"
        draft = folder / f".{training.writer.attempt}-{path.name}"
        with training.writer.lease.hold():
            folder.mkdir(exist_ok=True)
        profile.export_chrome_trace(str(draft))
        with training.writer.lease.hold():
            draft.replace(path)
        averages = profile.key_averages()
        total = sum(entry.self_cpu_time_total for entry in averages) or 1
        on_device = any(entry.self_device_time_total for entry in averages)
        key = "self_device_time_total" if on_device else "self_cpu_time_total"
        slowest = sorted(averages, key=lambda entry: getattr(entry, key), reverse=True)[:_ROWS]
        columns = ["op", "calls", "CPU ms", "share of CPU"] + (["GPU ms"] if on_device else [])
        rows = [
            [entry.key, entry.count, round(entry.self_cpu_time_total / 1e3, 3)]
            + [f"{entry.self_cpu_time_total / total:.1%}"]
            + ([round(entry.self_device_time_total / 1e3, 3)] if on_device else [])
            for entry in slowest
        ]
        training.writer.record_table("profile", columns, rows, step)
        training.message(f"Profiled {self.steps - self._left} steps up to step {step}: {path}")

    def _say_nothing(self, training: Training) -> None:
        training.message(f"Profiled nothing: fewer than {quantity(self.skip + 1, 'step')} were done.")
