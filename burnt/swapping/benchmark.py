"""Time a model eager, compiled by Inductor and burnt, and swapped, in alternating forwards or steps."""

from __future__ import annotations

import copy
import random
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from burnt.codegen.verification import compare as compare_results
from burnt.swapping.api import as_arguments, swap
from burnt.swapping.first_call import loss_or_output
from burnt.swapping.measure import Call
from burnt.swapping.report import Report

RIVALS = ("eager", "inductor", "compiled", "swapped")
_BACKENDS = {"inductor": "inductor", "compiled": "burnt"}
"""What `torch.compile` is called with."""
_MIN_ROUNDS = 5  # even if they take longer than the time limit
_SHORTEST = 5e-3  # seconds of a sample, at least


@dataclass
class Comparison:
    """The result of `compare`: by rival the seconds of a call in each round, and why a rival is missing.

    `error` is the largest difference between the results of the eager and the swapped model, relative to the
    largest number; `peaks` is the peak memory of a call in bytes with the parameters, on accelerators.
    """

    train: bool
    report: Report
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    tracebacks: dict[str, str] = field(default_factory=dict)
    error: float | None = None
    peaks: dict[str, int] = field(default_factory=dict)

    def median(self, rival: str) -> float:
        """Return the median seconds of a rival's call."""
        return statistics.median(self.seconds[rival])

    def speedup(self, rival: str, to: str = "eager") -> tuple[float, float, float]:
        """Return the ratio of two rivals' medians, and its 90 % interval by resampling the rounds.

        The ratio agrees with the medians, and the interval with the ratio.
        """
        rounds = list(zip(self.seconds[to], self.seconds[rival], strict=True))
        resample = random.Random(0)
        ratios = sorted(_ratio_of_medians(resample.choices(rounds, k=len(rounds))) for _ in range(400))
        return _ratio_of_medians(rounds), ratios[20], ratios[-21]


def compare(
    model: nn.Module,
    batch: Any,
    train: bool,
    rivals: Sequence[str] = RIVALS,
    seconds: float = 10.0,
    rounds: int = 25,
    say: Callable[[str], None] = lambda text: None,
    patches: Mapping[str, Callable[[nn.Module], object]] | None = None,
    defer_logits: bool = False,
) -> Comparison:
    """Time a model eager, compiled and swapped, in alternating calls, on copies with its parameters.

    A training step (`train`) is the forward and the backward, of the loss that the model returns or else of
    its outputs; else it is the forward in evaluation mode. The optimizer is left out,
    because it would be the same for all. `batch` and `defer_logits` are as in `swap`; `rivals` is a selection
    of `RIVALS`, and `patches` are functions that modify a further copy in place, by name. After `seconds` of
    measuring no further round starts, but there are at least five; `say` is called with progress messages.
    """
    patches = patches or {}
    shared = {id(p): p for p in model.parameters()}

    def copied() -> nn.Module:
        return copy.deepcopy(model, dict(shared))

    say("swapping, and measuring what is swapped")
    swapped, eager = copied(), copied()
    mode: Any = "train" if train else "infer"
    report = swap(swapped, mode=mode, verify=batch, defer_logits=defer_logits, remeasure=True)
    comparison = Comparison(train, report)
    models: dict[str, Any] = {"swapped": swapped.train(train), "eager": eager.train(train)}
    args, kwargs = as_arguments(batch)
    if not train:
        theirs, ours = (Call(models[name], args, kwargs, train).forward() for name in ("eager", "swapped"))
        comparison.error = compare_results(ours, theirs, None).error
    for name in _BACKENDS.keys() & set(rivals):
        models[name] = torch.compile(copied().train(train), backend=_BACKENDS[name])
    for name, patch in patches.items():
        models[name] = copied().train(train)
        patch(models[name])
    calls: dict[str, Callable[[], object]] = {}
    counts: dict[str, int] = {}
    round_seconds = 0.0
    device = next((t.device for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)), None)
    for name in (*rivals, *patches):
        call = Call(models[name], args, kwargs, train, select_output=loss_or_output).run
        backend = _BACKENDS.get(name)
        say(f"compiling with {backend}" if backend else f"running {name} for the first time")
        try:
            call()
            once = max(_sample(call, 1, device), 1e-7)
            counts[name] = max(1, round(_SHORTEST / once))
            round_seconds += counts[name] * once
            if device is not None and device.type != "cpu":
                comparison.peaks[name] = _peak(call, device)
        except Exception as error:  # compilers raise any exception
            comparison.failed[name] = _reason(error)
            comparison.tracebacks[name] = "".join(traceback.format_exception(error))
            if name in ("eager", "swapped"):
                raise
        else:
            calls[name] = call
    expected = max(min(seconds, rounds * round_seconds), _MIN_ROUNDS * round_seconds)
    say(f"measuring, for about {expected:.{0 if expected >= 10 else 1}f} s")
    comparison.seconds = {name: [] for name in calls}
    order, shuffled, began = list(calls), random.Random(0), time.perf_counter()
    for done in range(rounds):
        if done >= _MIN_ROUNDS and time.perf_counter() - began > seconds:
            break
        for name in order:
            comparison.seconds[name].append(_sample(calls[name], counts[name], device))
        shuffled.shuffle(order)  # a call is affected by what the one before it has left in the caches
    return comparison


def _ratio_of_medians(rounds: Sequence[tuple[float, float]]) -> float:
    others, own = zip(*rounds, strict=True)
    return float(statistics.median(others) / statistics.median(own))


def _reason(error: Exception) -> str:
    """Return an error in one line: its first line, and the first error of a compiler in the others."""
    first, *others = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    detail = next((line for line in others if "error:" in line.lower()), None)
    if detail is None and first.endswith(":") and others:  # "backend='inductor' raised:"
        detail = others[0]
    return f"{type(error).__name__}: {first}" + (f" {detail}" if detail else "")


def _peak(call: Callable[[], object], device: torch.device) -> int:
    """Return the peak memory of a call in bytes."""
    torch.accelerator.synchronize(device)
    torch.accelerator.reset_peak_memory_stats(device)
    call()
    torch.accelerator.synchronize(device)
    return int(torch.accelerator.max_memory_allocated(device))


def _sample(call: Callable[[], object], count: int, device: torch.device | None) -> float:
    def wait() -> None:
        if device is not None and device.type != "cpu":
            torch.accelerator.synchronize(device)

    wait()
    began = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - began) / count
