"""Tuning: measuring candidates, and choosing by what was measured.

The policy says when: ``off`` (the heuristic alone), ``cached`` (what was measured before, here or for the
tables in the package; the default), ``quick`` and ``full`` (measure what is not known yet, at the first call
with a tuning key). It is set by ``BURNT_TUNE`` or `tuning`. Nothing is measured while a CUDA graph is
captured, while ops are traced, or in a process whose rank is not 0: the heuristic answers there.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import cache
from burnt.errors import CacheError, ConfigError, nearest
from burnt.kernels.agreement import Truth, results_of
from burnt.kernels.choice import configs_of, runnable, tuning_key, written
from burnt.kernels.store import Row, Store, shipped

if TYPE_CHECKING:
    from burnt.kernels.op import Candidate, Op

__all__ = ["POLICIES", "measured", "policy", "tune", "tuning", "why_not_now"]

POLICIES = ("off", "cached", "quick", "full")


@dataclasses.dataclass(frozen=True)
class _Effort:
    """How long a key is measured, and how many configurations of a candidate are tried."""

    seconds: float
    configs: int
    rounds: int


_EFFORTS = {"quick": _Effort(2.0, 8, 7), "full": _Effort(30.0, 1 << 30, 31)}
_ROTATED = 64 << 20
"""Bytes of inputs that calls take turns with, so that none finds its own in a cache."""
_DROPPED_AT = 3.0  # times the best
_SHORTEST = 2e-4  # seconds between two looks at the clock

_active = threading.local()
_policy: str | None = None


def policy() -> str:
    """The policy in force.

    Raises:
        ConfigError: ``BURNT_TUNE`` names none.
    """
    return _policy if _policy is not None else _checked(os.environ.get("BURNT_TUNE", "cached"), "BURNT_TUNE")


def _checked(name: str, where: str) -> str:
    if name not in POLICIES:
        close = nearest(name, POLICIES)
        raise ConfigError(
            "there is no such tuning policy",
            where=where,
            expected=", ".join(POLICIES),
            found=repr(name),
            hint=f"{close!r}?" if close else None,
        )
    return name


@contextmanager
def tuning(name: str) -> Iterator[None]:
    """A policy for a while, in the whole process: every op chooses anew when it begins, and when it ends.

    Args:
        name: ``"off"``, ``"cached"``, ``"quick"`` or ``"full"``.

    Raises:
        ConfigError: another name.

    >>> from burnt import kernels
    >>> with kernels.tuning("off"):
    ...     kernels.softmax.chosen(torch.zeros(3, 5)).why
    'heuristic'
    """
    global _policy
    before, _policy = _policy, _checked(name, "burnt.kernels.tuning")
    _forget()
    try:
        yield
    finally:
        _policy = before
        _forget()


def _forget() -> None:
    from burnt.kernels.op import OPS

    for op in OPS.values():
        op.forget()


def why_not_now() -> str | None:
    """Why nothing can be measured at this moment, or None."""
    if getattr(_active, "tuning", False):
        return "this thread is tuning already"
    if capturing():
        return "a CUDA graph is being captured"
    if torch.compiler.is_compiling() or not _torch.is_plain_call():
        return "ops are being traced"
    if _rank() != 0:
        return f"this is rank {_rank()}; rank 0 tunes"
    return None


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _rank() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def measured(
    op: Op[..., Any], args: Sequence[Any], key: str, able: Sequence[Candidate]
) -> tuple[Candidate, dict[str, Any] | None, str] | None:
    """The fastest of what was measured for a key, measured now where the policy says so."""
    wanted = policy()
    if wanted == "off" or getattr(_active, "tuning", False):
        return None
    try:
        known = _known(key)
    except CacheError as error:  # a table that cannot be read must not stop a program that computes
        cache.note(str(error))
        known = shipped(key)
    source = "measured before"
    if wanted in _EFFORTS and len(able) > 1 and why_not_now() is None:
        known, source = [*known, *tune(op, args, wanted, known=known)], "measured"
    best = _best(known, able, args)
    return None if best is None else (best[0], best[1], f"{source}: {best[2]:.3g} ms")


def _known(key: str) -> list[Row]:
    """What is known of a key, here or in the package; here counts where both know a configuration."""
    known = {row.config: row for row in shipped(key)}
    known |= {row.config: row for row in Store().rows(key)}
    return list(known.values())


def _best(
    rows: Sequence[Row], able: Sequence[Candidate], args: Sequence[Any]
) -> tuple[Candidate, dict[str, Any] | None, float] | None:
    times = {row.config: row.ms for row in rows if row.status == "ok" and row.ms is not None}
    found = [
        (candidate, config, times[written(candidate, config)])
        for candidate in able
        for config in configs_of(candidate, args)
        if written(candidate, config) in times
    ]
    # The time of one alone says nothing of the others.
    return min(found, key=lambda f: f[2]) if len(found) > 1 or (found and len(able) == 1) else None


def tune(
    op: Op[..., Any],
    args: Sequence[Any],
    effort: str = "quick",
    *,
    known: Sequence[Row] = (),
    store: Store | None = None,
) -> list[Row]:
    """Measure the candidates of an op for some arguments, and keep what was found.

    Args:
        op: the op.
        args: all its arguments. Where one requires a gradient, forward and backward are measured together.
        effort: ``"quick"`` or ``"full"``.
        known: rows that need not be measured again.
        store: where rows are kept, by default the user's table.

    Returns:
        a row for each candidate and configuration that was tried.
    """
    settings = _EFFORTS[_checked(effort, "effort")]
    key = tuning_key(op, args)
    tried = [
        (candidate, config)
        for candidate in runnable(op, args)
        for config in configs_of(candidate, args)[: settings.configs]
        if written(candidate, config) not in {row.config for row in known}
    ]
    if not tried:
        return []
    _active.tuning = True
    try:
        rows = _measured(op, list(args), key, tried, settings)
    finally:
        _active.tuning = False
    try:
        (store or Store()).add(rows)
    except CacheError as error:  # what was measured still serves this process
        if store is not None:
            raise
        cache.note(str(error))
    return rows


@dataclasses.dataclass
class _Run:
    """A candidate being measured."""

    name: str
    call: Callable[..., Any]
    inner: int = 1
    times: list[float] = dataclasses.field(default_factory=list)


def _measured(
    op: Op[..., Any],
    args: list[Any],
    key: str,
    tried: Sequence[tuple[Candidate, dict[str, Any] | None]],
    settings: _Effort,
) -> list[Row]:
    from burnt.kernels.op import bound_call

    inputs = _rotated(args)
    truth = Truth(op, inputs[0])
    rows, runs = [], []
    for candidate, config in tried:
        name = written(candidate, config)
        try:
            call = bound_call(op, candidate, config, args)
            wrong = truth.mismatch(results_of(call, inputs[0]))
        except Exception as error:  # of any kind: a candidate that fails is noted, and the others measured
            rows.append(Row(key, name, "failed", None, f"{type(error).__name__}: {error}"[:500]))
            continue
        if wrong is not None:
            rows.append(Row(key, name, "wrong", None, wrong))
            continue
        runs.append(_Run(name, call))
    rows += [
        Row(key, run.name, "ok", statistics.median(run.times) * 1e3) for run in _timed(runs, inputs, settings)
    ]
    return rows


def _rotated(args: Sequence[Any]) -> list[list[Any]]:
    size = sum(a.numel() * a.element_size() for a in args if isinstance(a, Tensor))
    count = min(max(-(-_ROTATED // max(size, 1)), 1), 8)

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        # Elements that share memory cannot be copied one by one.
        made = value.detach() if 0 in value.stride() else fresh.copy_(value.detach())
        return made.requires_grad_(value.requires_grad)

    return [[copy(a) for a in args] for _ in range(count)]


def _timed(runs: list[_Run], inputs: list[list[Any]], settings: _Effort) -> list[_Run]:
    """Run candidates in turn until the time is up; those that are far behind stop early."""
    alive = list(runs)
    for run in alive:
        run.inner = max(1, int(_SHORTEST / max(_seconds(run.call, inputs, 1, 0), 1e-7)))
    end = time.perf_counter() + settings.seconds
    for turn in range(settings.rounds):
        for run in alive:
            run.times.append(_seconds(run.call, inputs, run.inner, turn))
        best = min((statistics.median(run.times) for run in alive), default=0.0)
        alive = [run for run in alive if statistics.median(run.times) <= _DROPPED_AT * best]
        if time.perf_counter() > end:
            break
    return runs


def _seconds(call: Callable[..., Any], inputs: list[list[Any]], inner: int, turn: int) -> float:
    """Seconds of one call with its backward, over `inner` calls."""
    on = next((a.device for a in inputs[0] if isinstance(a, Tensor) and a.device.type != "cpu"), None)
    _synchronise(on)
    start = time.perf_counter()
    for i in range(inner):
        _whole(call, inputs[(turn + i) % len(inputs)])
    _synchronise(on)
    return (time.perf_counter() - start) / inner


def _synchronise(device: torch.device | None) -> None:
    if device is not None:
        torch.accelerator.synchronize(device)


def _whole(call: Callable[..., Any], args: Sequence[Any]) -> None:
    made = call(*args)
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    results = made if isinstance(made, tuple) else (made,)
    roots = [r for r in results if r.requires_grad]
    if wanted and roots:
        torch.autograd.grad(roots, wanted, [torch.ones_like(r) for r in roots], allow_unused=True)
