"""Taking time on a machine that others may disturb; imports no burnt."""

from __future__ import annotations

import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Name = TypeVar("Name")
SHORTEST = 2e-3  # seconds of a sample: quicker calls are repeated within one
_SWITCHES = 50  # involuntary ones a second that are the kernel's own housekeeping


class Sample(NamedTuple):
    """Seconds of a call, and whether nothing took the processor away meanwhile."""

    seconds: float
    calm: bool


def stolen() -> int:
    """Ticks that the host took from this machine; 0 where it does not say."""
    path = Path("/proc/stat")
    return int(path.read_text(encoding="ascii").split("\n", 1)[0].split()[8]) if path.exists() else 0


def sample(run: Callable[[], object], calls: int) -> Sample:
    """The mean of some calls after one another."""
    ticks, switches = stolen(), resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    began = time.perf_counter()
    for _ in range(calls):
        run()
    seconds = time.perf_counter() - began
    switched = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches
    return Sample(seconds / calls, stolen() == ticks and switched <= _SWITCHES * seconds)


def device_state() -> dict[str, float]:
    """The clock (MHz) and the power (W) of the first NVIDIA GPU; nothing where `nvidia-smi` does not say."""
    query = ("--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "--id=0")
    try:
        done = subprocess.run(("nvidia-smi", *query), capture_output=True, text=True, timeout=5, check=True)
        return dict(zip(("clock_mhz", "watts"), map(float, done.stdout.split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def orders(names: Iterable[Name]) -> Iterator[list[Name]]:
    """An order of rivals for each round, none with neighbours of its own.

    Who runs after whom makes a difference of up to a tenth: the one before has left his data in caches, or
    ours. Turned around like a wheel, an order would keep its neighbours.
    """
    order, shuffled = list(names), random.Random(0)
    while True:
        yield list(order)
        shuffled.shuffle(order)


def warmed(run: Callable[[], object]) -> int:
    """Call until everything is compiled and allocated; how many calls make a sample."""
    seconds = 0.0
    for _ in range(3):
        began = time.perf_counter()
        run()
        seconds = time.perf_counter() - began
    return max(1, round(SHORTEST / seconds))


def runner(fn: Callable[..., Any], inputs: Sequence[Tensor], backward: bool) -> Callable[[], list[Any]]:
    """A call that returns its results, and the inputs' gradients where they are wanted."""
    if not backward:
        return lambda: flat(fn(*inputs))
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    generator = torch.Generator(inputs[0].device).manual_seed(1)

    def cotangent(made: Tensor) -> Tensor:
        if not made.dim():
            return torch.ones_like(made)  # a loss', as `backward` has it
        # The same numbers for all, whatever the layout of a rival's results.
        drawn = torch.empty(made.shape, device=made.device).normal_(generator=generator)
        return torch.empty_like(made).copy_(drawn)

    cotangents = [cotangent(made) for made in flat(fn(*inputs))]

    def both() -> list[Any]:
        made = flat(fn(*inputs))
        return [*made, *torch.autograd.grad(made, wanted, cotangents)]

    return both


def flat(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple | list) else [made]
