"""The rows on the CPU: burnt and its rivals, in this process and in one of their own, round by round."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import burnt
from kernel_table import clock
from kernel_table.own import Own, own_of
from kernel_table.rival import Sibling, compiled
from kernel_table.rows import QUICK, SAME, SHIPPED, Row

FLOOR, FLOOR_FROM = 0.97, 100e-6
"""Of eager, wherever eager takes as many seconds."""
ENOUGH = 5  # calm samples; with fewer of them all samples count, and the row says so
COPIED = 1 << 24  # floats that a copy moves to measure the bandwidth
_TOLERANCE = 1e-3  # of the largest value: that rivals compute the same, no more


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured.

    Args:
        rounds: in each, every rival takes a sample.
        seconds: after as many, a row ends with the rounds that it has, at least `least`.
        least: rounds, whatever they take.
        divisor: of sizes.
    """

    rounds: int
    seconds: float
    least: int
    divisor: int


FULL_EFFORT = Effort(rounds=21, seconds=60, least=5, divisor=1)
QUICK_EFFORT = Effort(rounds=2, seconds=0, least=2, divisor=QUICK)


def ours(row: Row) -> tuple[Callable[..., Any], str]:
    """How burnt computes a row, and by what: its op where there is one, a fused function otherwise."""
    if row.plain:
        return row.fn, "torch"
    kernels = getattr(burnt, "kernels", None)
    if row.op is not None and kernels is not None:
        name, call = row.op
        op = getattr(kernels, name)
        return lambda *inputs: call(op, *inputs), f"burnt.kernels.{name}"
    return burnt.fuse(row.fn), "burnt.fuse"


def measure(row: Row, rivals: Sequence[str], sibling: Sibling, effort: Effort) -> dict[str, Any]:
    """A row of the table, as JSON can hold it."""
    inputs = row.inputs(effort.divisor)
    fn, by = ours(row)
    functions = {"burnt": fn} | {r: compiled(row.fn) if r == "inductor" else row.fn for r in rivals}
    own = own_candidate(row, inputs)
    if own is not None and own.candidate is not None:
        functions["own"] = functools.partial(own_call(row), own)
    runs = {name: clock.runner(function, inputs, row.backward) for name, function in functions.items()}
    check(row, runs)
    source, target = torch.randn(COPIED // effort.divisor), torch.empty(COPIED // effort.divisor)
    runs["copy"] = lambda: [target.copy_(source)]
    calls: dict[str, int] = {}
    for name, run in runs.items():
        say(f"  {name}")
        calls[name] = clock.warmed(run)
    for rival in rivals:
        say(f"  {rival} as shipped")
        sibling.prepare(row.name, effort.divisor, rival)

    takers: dict[tuple[str, str], Callable[[], clock.Sample]] = {
        (SAME, name): lambda name=name: clock.sample(runs[name], calls[name])  # type: ignore[misc]
        for name in runs
    }
    takers |= {(SHIPPED, r): lambda r=r: sibling.sample(r) for r in rivals}  # type: ignore[misc]
    samples: dict[tuple[str, str], list[clock.Sample]] = {place: [] for place in takers}
    began, orders = time.monotonic(), clock.orders(takers)
    for number in range(effort.rounds):
        if number >= effort.least and time.monotonic() - began > effort.seconds:
            break
        for place in next(orders):
            samples[place].append(takers[place]())
    sibling.forget()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    result = summary(row, by, samples, moved(row, effort.divisor), source.nbytes * 2)
    if own is not None:
        result["chosen"] = own.chosen
    if own is not None and own.candidate is not None:
        result["own"] |= {"candidate": own.candidate, "plain": own.plain}
    return result


def own_call(row: Row) -> Callable[..., Any]:
    """How the op of a row is called, or the one beneath it."""
    place = row.beneath or row.op
    assert place is not None
    return place[1]


def own_candidate(row: Row, inputs: Sequence[torch.Tensor]) -> Own | None:
    """What the op of a row chooses, and our own candidate where that is a library's; None without an op."""
    place = row.beneath or row.op
    if place is None or place[0] not in burnt.kernels.OPS:
        return None
    return own_of(*place, inputs)


def summary(
    row: Row, by: str, samples: dict[tuple[str, str], list[clock.Sample]], bytes_moved: int, copied: int
) -> dict[str, Any]:
    """Medians of calm samples, their quartiles, and ratios next to what is aimed at."""
    seconds = {place: calm_median(taken) for place, taken in samples.items()}
    own = seconds[SAME, "burnt"]
    result: dict[str, Any] = {
        "by": by,
        "burnt": {
            "ms": own * 1e3,
            "quartiles": [q * 1e3 for q in quartiles([s.seconds for s in used(samples[SAME, "burnt"])])],
            "rounds": len(samples[SAME, "burnt"]),
            "calm": sum(s.calm for s in samples[SAME, "burnt"]),
        },
        SAME: {},
        SHIPPED: {},
    }
    for (column, rival), taken in samples.items():
        if rival in ("burnt", "own", "copy"):
            continue
        ratio = seconds[column, rival] / own
        aim = row.targets.get((column, rival))
        long = (column, rival) == (SAME, "eager") and seconds[column, rival] >= FLOOR_FROM
        if aim is None and long and not row.plain:
            aim = FLOOR
        pairs = zip(taken, samples[SAME, "burnt"], strict=True)
        result[column][rival] = {
            "ms": seconds[column, rival] * 1e3,
            "ratio": ratio,
            "quartiles": quartiles([a.seconds / b.seconds for a, b in pairs]),
            "calm": sum(s.calm for s in taken),
            "target": aim,
            "met": None if aim is None else ratio >= aim,
        }
    if (SAME, "own") in samples:
        result["own"] = own_summary(samples)
    share = bytes_moved / own / (copied / seconds[SAME, "copy"])
    result["copy_gb_s"] = copied / seconds[SAME, "copy"] / 1e9
    result["share"] = {
        "ratio": share,
        "target": row.share,
        "met": None if row.share is None else share >= row.share,
    }
    return result


def own_summary(samples: dict[tuple[str, str], list[clock.Sample]]) -> dict[str, Any]:
    """Of our own candidate: its time, and eager's by it; nothing is aimed at."""
    taken, eager = samples[SAME, "own"], samples.get((SAME, "eager"))
    found = {"ms": calm_median(taken) * 1e3, "calm": sum(s.calm for s in taken)}
    if eager is None:
        return found
    pairs = zip(eager, taken, strict=True)
    return found | {
        "ratio": calm_median(eager) / calm_median(taken),
        "quartiles": quartiles([a.seconds / b.seconds for a, b in pairs]),
    }


def used(taken: Sequence[clock.Sample]) -> list[clock.Sample]:
    calm = [s for s in taken if s.calm]
    return calm if len(calm) >= ENOUGH else list(taken)


def calm_median(taken: Sequence[clock.Sample]) -> float:
    return statistics.median(s.seconds for s in used(taken))


def quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [low, high]


def check(row: Row, runs: dict[str, Callable[[], list[Any]]]) -> None:
    """That all compute the same; results of random functions have their mean in common."""
    made = {name: [t.detach() for t in run()] for name, run in runs.items()}
    for name, results in made.items():
        for found, expected in zip(results, made["burnt"], strict=True):
            close = (found.double() - expected.double()).abs().amax() <= _TOLERANCE * expected.abs().amax()
            if row.random:
                close = (found.mean() - expected.mean()).abs() <= 100 * _TOLERANCE
            if found.shape != expected.shape or not close:
                raise SystemExit(f"{row.name}: {name} and burnt compute different things")


def moved(row: Row, divisor: int) -> int:
    """Bytes of inputs and outputs, each once; backward reads the inputs again, and has its own outputs."""
    inputs = row.inputs(divisor)
    with torch.no_grad():
        made = clock.flat(row.fn(*inputs))
    once = sum(t.nbytes for t in inputs) + sum(t.nbytes for t in made)
    return once * 2 + sum(t.nbytes for t in inputs if t.requires_grad) if row.backward else once


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)
