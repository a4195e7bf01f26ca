"""A whole model beside itself: eager, compiled by Inductor, swapped; in turns, forward and training step."""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from burnt.swapping.api import as_arguments, swap
from burnt.swapping.report import Report

__all__ = ["RIVALS", "Comparison", "compare"]

RIVALS = ("eager", "inductor", "swapped")
_LEAST = 5  # rounds, whatever they take
_SHORTEST = 5e-3  # seconds of a sample


@dataclass
class Comparison:
    """What `compare` found.

    Args:
        train: whether it is of training steps.
        seconds: of each round, by rival.
        failed: why a rival is missing.
        report: of the swapped model.
        error: the largest difference between the results of the eager model and the swapped one, relative to
            the largest number.
        peaks: bytes of memory that a call holds at its most, with the parameters, by rival; on accelerators.
    """

    train: bool
    report: Report
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    error: float | None = None
    peaks: dict[str, int] = field(default_factory=dict)

    def median(self, rival: str) -> float:
        """Seconds of a call."""
        return statistics.median(self.seconds[rival])

    def ratio(self, rival: str, to: str = "eager") -> tuple[float, float, float]:
        """How many times as fast as another one: the median of the rounds' ratios, and its quartiles."""
        pairs = zip(self.seconds[to], self.seconds[rival], strict=True)
        ratios = [other / own for other, own in pairs]
        low, _, high = (
            statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        )
        return statistics.median(ratios), low, high


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
    """Take the time of a model as it is, compiled and swapped, in turns.

    A training step is the forward, the loss that the model returns (without one, the mean square of what it
    returns) and the backward; there is no optimizer, which would be the same for all.

    Args:
        model: not swapped. It is left as it is; the rivals are copies that share its parameters.
        batch: as `swap` takes it in `verify`.
        train: a training step with the model in training mode, or the forward in evaluation, without
            gradients.
        rivals: of `RIVALS`.
        seconds: after which no other round begins; five there are always.
        rounds: at most.
        say: told what is being done.
        patches: other rivals, by name: what puts them into a copy, in place.
        defer_logits: as `swap` takes it.

    Raises:
        SwapError: the model fails with the batch.
    """
    patches = patches or {}
    shared = {id(p): p for p in model.parameters()}
    say("swapping")
    ours = copy.deepcopy(model, dict(shared))
    mode: Any = "train" if train else "infer"
    comparison = Comparison(train, swap(ours, mode=mode, verify=batch, defer_logits=defer_logits))
    eager = copy.deepcopy(model, dict(shared))
    models: dict[str, Callable[..., Any]] = {"swapped": ours.train(train), "eager": eager.train(train)}
    args, kwargs = as_arguments(batch)
    first = {name: _flat(_forward(models[name], args, kwargs)) for name in ("eager", "swapped")}
    comparison.error = None if train else _difference(first["swapped"], first["eager"])
    if "inductor" in rivals:
        say("compiling")
        compiled = copy.deepcopy(model, dict(shared)).train(train)
        models["inductor"] = torch.compile(compiled)
    for name, patch in patches.items():
        other = copy.deepcopy(model, dict(shared)).train(train)
        patch(other)
        models[name] = other
    calls: dict[str, Callable[[], None]] = {}
    counts: dict[str, int] = {}
    device = next((t.device for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)), None)
    for name in (*rivals, *patches):
        call = _step(models[name], list(shared.values()), args, kwargs, train)
        try:
            call()
            counts[name] = max(1, round(_SHORTEST / max(_sample(call, 1, device), 1e-7)))
            if device is not None and device.type != "cpu":
                comparison.peaks[name] = _peak(call, device)
        except Exception as error:  # of any kind: compilers fail in many ways
            comparison.failed[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            if name in ("eager", "swapped"):
                raise
        else:
            calls[name] = call
    say("measuring")
    comparison.seconds = {name: [] for name in calls}
    order, shuffled, began = list(calls), random.Random(0), time.perf_counter()
    for done in range(rounds):
        if done >= _LEAST and time.perf_counter() - began > seconds:
            break
        for name in order:
            comparison.seconds[name].append(_sample(calls[name], counts[name], device))
        shuffled.shuffle(order)  # who runs after whom makes a difference: what it has left in caches
    for parameter in shared.values():
        parameter.grad = None
    return comparison


def _step(
    model: Callable[..., Any],
    parameters: Sequence[Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    train: bool,
) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            model(*args, **kwargs)

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            _loss(model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]

    return step if train else forward


def _forward(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with torch.no_grad():
        return model(*args, **kwargs)


def _loss(made: Any) -> Tensor:
    """The loss that a model returns, or the mean square of what it returns."""
    given = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
    if isinstance(given, Tensor):
        return given
    tensors = [t for t in _flat(made) if t.is_floating_point() and t.requires_grad]
    if len(tensors) == 1 and tensors[0].dim() == 0:
        return tensors[0]
    total = torch.zeros((), device=tensors[0].device if tensors else None)
    for tensor in tensors:
        total = total + tensor.float().square().mean()
    return total


def _flat(made: Any) -> list[Tensor]:
    values = dict(made) if isinstance(made, Mapping) else made
    return [t for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]


def _difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float | None:
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if b.is_floating_point() and b.numel()]
    largest = max((float(b.abs().max()) for _, b in pairs), default=0.0) or 1.0
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs), default=0.0) / largest


def _peak(call: Callable[[], None], device: torch.device) -> int:
    """Bytes that are held at most while something is called."""
    torch.accelerator.synchronize(device)
    torch.accelerator.reset_peak_memory_stats(device)
    call()
    torch.accelerator.synchronize(device)
    return int(torch.accelerator.max_memory_allocated(device))


def _sample(call: Callable[[], None], count: int, device: torch.device | None) -> float:
    def wait() -> None:
        if device is not None and device.type != "cpu":
            torch.accelerator.synchronize(device)

    wait()
    began = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - began) / count
