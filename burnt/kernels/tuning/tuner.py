"""Tuning: measuring candidates, and choosing by what was measured.

The policy says when: ``off`` (the heuristic alone), ``cached`` (what was measured before, here or for the
tables in the package; the default), ``quick`` and ``full`` (measure what is not known yet, at the first call
with a tuning key). It is set by ``BURNT_TUNE`` or `tuning`. Nothing is measured while a CUDA graph is
captured, while ops are traced, or in a process whose rank is not 0: the heuristic answers there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.runtime import build_cache
from burnt.errors import CacheError, ConfigError, nearest
from burnt.kernels.interface.candidate import Alternative
from burnt.kernels.interface.tuning_key import format_choice, parse_choice, runnable_candidates, tuning_key
from burnt.kernels.tuning.accuracy import ReferenceResult
from burnt.kernels.tuning.database import Row, Store, shipped, shipped_wrong
from burnt.kernels.tuning.timers import Clock, EventClock, NotCapturedError, clock_of

if TYPE_CHECKING:
    from burnt.kernels.interface.candidate import Candidate
    from burnt.kernels.interface.op_protocol import AnyOp

__all__ = ["POLICIES", "measured", "policy", "tune", "tuning", "why_not_now"]

POLICIES = ("off", "cached", "quick", "full")


@dataclasses.dataclass(frozen=True)
class _Effort:
    """Seconds of samples for a key, how many configurations of a candidate, and how often each is sampled."""

    seconds: float
    configs: int
    rounds: int


_EFFORTS = {"quick": _Effort(2.0, 12, 7), "full": _Effort(30.0, 1 << 30, 31)}
_ROTATED = 64 << 20
"""Bytes of inputs that calls take turns with on a CPU, so that none finds its own in a cache."""
_MOST_SETS = 8  # of inputs, on a CPU; on a GPU four times as many, as small ones take no time
_DROPPED_AT = 3.0  # times the best
_CALM = 0.25  # of the median: what the middle half of samples may span
_PATIENCE = 90.0  # seconds that compilers are waited for: some to start them, and for each configuration 0.3

_active = threading.local()
_policy: str | None = None
_unkept: dict[tuple[str, str], Row] = {}  # what this process measured, where there is no table to keep it
_warned = False


def policy() -> str:
    """The policy in force.

    Raises:
        ConfigError: ``BURNT_TUNE`` names none.
    """
    if _policy is not None:
        return _policy
    return _checked(os.environ.get("BURNT_TUNE") or "cached", "BURNT_TUNE")


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
    from burnt.kernels.interface.registry import OPS

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


class Known(NamedTuple):
    """What measuring has told of a tuning key.

    Args:
        rows: of this key.
        wrong: what gave wrong results, for this key or for other arguments of the op on this machine, and
            how; by candidate, with its configuration as JSON. It is not trusted with any arguments, until the
            op's sources change.
        source: when it was measured.
    """

    rows: Sequence[Row] = ()
    wrong: Mapping[str, str] = {}
    source: str = ""

    def best(
        self, able: Sequence[Candidate], args: Sequence[Any]
    ) -> tuple[Candidate, dict[str, Any] | None, str] | None:
        """The fastest that is right, if enough of these candidates was measured."""
        timed = [(row.ms, row.config) for row in self.rows if row.status == "ok" and row.ms is not None]
        # The time of one alone says nothing of the others.
        if len(timed) < min(len(able), 2):
            return None
        for ms, text in sorted(timed):
            found = None if text in self.wrong else parse_choice(able, args, text)
            if found is not None:
                return (*found, f"{self.source}: {ms:.3g} ms")
        return None


def measured(op: AnyOp, args: Sequence[Any], key: str, able: Sequence[Candidate]) -> Known:
    """What is known of a key, measured now where the policy says so."""
    wanted = policy()
    if wanted == "off" or getattr(_active, "tuning", False):
        return Known()
    known = known_of(key)
    if wanted in _EFFORTS and len(able) > 1 and why_not_now() is None:
        fresh = tune(op, args, wanted, known=known.rows)
        wrong = {row.config: row.note for row in fresh if row.status == "wrong"}
        return Known([*known.rows, *fresh], {**known.wrong, **wrong}, "measured")
    return known


def known_of(key: str) -> Known:
    """What is known of a key, here or in the package; here counts where both know a configuration."""
    alike = "|".join(key.split("|", 3)[:3]) + "|"  # the op and its sources, the machine
    rows, wrong = shipped(key), shipped_wrong(alike)
    try:
        store = _store()
        if store is not None:
            rows, wrong = [*rows, *store.rows(key)], [*wrong, *store.wrong(alike)]
    except CacheError as error:  # a table that cannot be read must not stop a program that computes
        build_cache.note(str(error))
    rows = [*rows, *(row for row in _unkept.values() if row.key == key)]
    wrong = [*wrong, *(r for r in _unkept.values() if r.status == "wrong" and r.key.startswith(alike))]
    by_config = {row.config: row for row in rows}
    return Known(list(by_config.values()), {row.config: row.note for row in wrong}, "measured before")


def tune(
    op: AnyOp,
    args: Sequence[Any],
    effort: str = "quick",
    *,
    known: Sequence[Row] = (),
    store: Store | None = None,
    clock: Clock | None = None,
) -> list[Row]:
    """Measure the candidates of an op for some arguments, and keep what was found.

    Args:
        op: the op.
        args: its arguments; those with defaults may be left out at the end. Where one requires a gradient,
            forward and backward are measured together.
        effort: ``"quick"`` or ``"full"``.
        known: rows that need not be measured again.
        store: where rows are kept, by default the user's table.
        clock: what takes the time, by default what suits the device.

    Returns:
        a row for each candidate and configuration that was tried; those that were estimated not to be worth
        it have the status ``"pruned"``, and are not kept.
    """
    settings = _EFFORTS[_checked(effort, "effort")]
    device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
    race = _Race(op, list(op.bound(args, {})), clock or clock_of(device), settings)
    _active.tuning = True
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            race.run({row.config for row in known})
    finally:
        _active.tuning = False
        now = time.time()
        race.rows = [row._replace(at=now) for row in race.rows]
        # Also what is known when a kernel has broken the device, so that it is not tried again.
        _keep(race.rows, store)
    return [*race.rows, *(row._replace(at=now) for row in race.pruned)]


def _keep(rows: Sequence[Row], store: Store | None) -> None:
    if not rows:
        return
    try:
        kept = store or _store()
        if kept is not None:
            kept.add(rows)
            return
    except CacheError as error:
        if store is not None:
            raise
        build_cache.note(str(error))
    # What was measured still serves this process.
    _unkept.update({(row.key, row.config): row for row in rows})


def _store() -> Store | None:
    """The user's table; without a folder for it None, and a warning the first time."""
    global _warned
    try:
        return Store()
    except CacheError as error:
        build_cache.note(str(error))
        if not _warned:
            _warned = True
            warnings.warn(
                f"burnt: kernels run, but nothing that is measured is kept\n{error}",
                RuntimeWarning,
                stacklevel=2,
            )
        return None


_Entrant: TypeAlias = "tuple[Candidate, dict[str, Any] | None]"


@dataclasses.dataclass
class _Run:
    """A candidate being measured."""

    candidate: Candidate
    config: dict[str, Any] | None
    call: Callable[[Sequence[Any]], object]
    sample: Callable[[int], float]
    times: list[float] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """What its row is called."""
        return format_choice(self.candidate, self.config)

    @property
    def seconds(self) -> float:
        """The median of its samples."""
        return statistics.median(self.times)

    @property
    def scatter(self) -> float:
        """What the middle half of its samples spans, as a part of the median."""
        if len(self.times) < 2:
            return 0.0
        low, median, high = statistics.quantiles(self.times, n=4)
        return (high - low) / median

    def row(self, key: str) -> Row:
        """What the table keeps of it."""
        note = "" if self.scatter <= _CALM else f"disturbed: samples differ by {self.scatter:.0%}"
        return Row(key, self.name, "ok", self.seconds * 1e3, note)


class _Race:
    """The candidates of an op for some arguments: checked, and timed beside one another.

    Each that is ready takes its place beside those before it, while others are compiled elsewhere; when all
    are there they take turns. Whoever is far behind the best drops out, in both parts.
    """

    def __init__(self, op: AnyOp, args: list[Any], clock: Clock, settings: _Effort) -> None:
        self.op, self.args, self.clock, self.settings = op, args, clock, settings
        self.key = tuning_key(op, args)
        self.rows: list[Row] = []
        self.pruned: list[Row] = []
        self.runs: list[_Run] = []
        self.alive: list[_Run] = []
        self.left = settings.seconds
        self.patience = _PATIENCE

    def run(self, known: set[str]) -> None:
        """Measure what is not known."""
        entrants, risky = self.entrants(known)
        if not entrants and not risky:
            return
        self.inputs = rotated(self.args)
        self.truth = ReferenceResult(self.op, self.inputs[0])
        try:
            self.admit(entrants)
            self.take_turns()
            for candidate in {run.candidate.name: run.candidate for run in self.alive}.values():
                timed = [(r.config, r.seconds) for r in self.runs if r.candidate is candidate]
                config = candidate.combined(timed)
                if config is not None and format_choice(candidate, config) not in known:
                    self.enter(candidate, config, self.compiling(candidate, config))
                    self.take_turns()
            for entrant in risky:  # one by one, so that nothing else is under way beside it
                self.admit([entrant])
            if risky:
                self.take_turns()
        finally:  # what was measured is kept, also if a configuration has broken the device
            self.rows += [run.row(self.key) for run in self.runs if run.times]

    def admit(self, entrants: Sequence[_Entrant]) -> None:
        """Check and time each once, as soon as it is compiled."""
        # The slow part, on other cores, while those are timed that need none of it.
        waiting = [(c, config, self.compiling(c, config)) for c, config in entrants]
        while waiting and self.left > 0:
            ready = next((w for w in waiting if w[2] is None or w[2].done()), None)
            if ready is not None:
                waiting.remove(ready)
                self.enter(*ready)
            elif not self.wait([future for *_, future in waiting if future is not None]):
                break
        for *_, future in waiting:  # of which nothing is noted: another time they are tried
            if future is not None:
                future.cancel()

    def entrants(self, known: set[str]) -> tuple[list[_Entrant], list[_Entrant]]:
        """What is to be measured: not known yet, and estimated to be worth it; what is risky comes second."""
        found: list[_Entrant] = []
        risky: list[_Entrant] = []
        broken: dict[str, str] = {}
        for candidate in runnable_candidates(self.op, self.args, broken):
            worth = 0
            try:
                alternatives = candidate.alternatives(self.args)
            except Exception:  # of any kind: a candidate that fails does so again when it is checked
                alternatives = [Alternative(None)]
            for config, left_out, is_risky in alternatives:
                name = format_choice(candidate, config)
                if left_out is not None:
                    self.pruned.append(Row(self.key, name, "pruned", None, left_out))
                    continue
                worth += 1
                if worth <= self.settings.configs and name not in known:
                    (risky if is_risky else found).append((candidate, config))
        self.rows += [Row(self.key, name, "failed", None, why) for name, why in broken.items()]
        return found, risky

    def compiling(self, candidate: Candidate, config: dict[str, Any] | None) -> Future[None] | None:
        """The work of compiling a candidate, if it can be done elsewhere; what goes wrong is the work's."""
        try:
            return candidate.compiling(config, self.args)
        except Exception as error:  # of any kind, as a kernel that cannot be printed with these block sizes
            failed: Future[None] = Future()
            failed.set_exception(error)
            return failed

    def wait(self, futures: Sequence[Future[None]]) -> bool:
        """Wait for one of them; whether there is patience left."""
        began = time.perf_counter()
        wait(futures, max(self.patience, 0), FIRST_COMPLETED)
        self.patience -= time.perf_counter() - began
        return self.patience > 0

    def enter(self, candidate: Candidate, config: dict[str, Any] | None, future: Future[None] | None) -> None:
        """Check a candidate, and time it once beside the best so far; a row where it is of no use."""
        from burnt.kernels.interface.binding import bound_call

        name = format_choice(candidate, config)
        try:
            if future is not None:
                future.result(_PATIENCE)
            call = bound_call(self.op, candidate, config, self.args)
            wrong = self.truth.wrong(call)
        except Exception as error:  # of any kind: a candidate that fails is noted, and the others measured
            self.rows.append(Row(self.key, name, "failed", None, f"{type(error).__name__}: {error}"[:500]))
            _refuse_broken(self.inputs[0])
            return
        if wrong is not None:
            self.rows.append(Row(self.key, name, "wrong", None, wrong))
            return
        whole = functools.partial(_whole, call)
        run = _Run(candidate, config, whole, self.sampler(whole))
        self.runs.append(run)
        self.alive.append(run)
        if future is not None:
            best = min(self.alive, key=lambda r: statistics.median(r.times or [math.inf]))
            self.round([run] if run is best else [best, run], 0)

    def sampler(self, call: Callable[[Sequence[Any]], object]) -> Callable[[int], float]:
        """The clock's for a call; where it cannot have one, all candidates get another clock."""
        try:
            return self.clock.sampler(call, self.inputs)
        except NotCapturedError:
            self.clock = EventClock()
            for run in self.runs:
                run.sample, run.times = self.clock.sampler(run.call, self.inputs), []
            self.alive = list(self.runs)
            return self.clock.sampler(call, self.inputs)

    def take_turns(self) -> None:
        """Rounds until the time is up, up to twice as many where something else disturbs them."""
        for turn in range(2 * self.settings.rounds):
            if turn >= self.settings.rounds and all(run.scatter <= _CALM for run in self.alive):
                break
            self.round(self.alive, turn)
            if self.left <= 0:
                break

    def round(self, runs: Sequence[_Run], turn: int) -> None:
        """A sample of each; those that are far behind drop out."""
        began = self.clock.now()
        for run in runs:
            run.times.append(run.sample(turn))
        self.left -= self.clock.now() - began
        timed = [run.seconds for run in self.alive if run.times]
        best = min(timed, default=0.0)
        self.alive = [run for run in self.alive if not run.times or run.seconds <= _DROPPED_AT * best]


def _refuse_broken(args: Sequence[Any]) -> None:
    """Raise where a kernel has broken the device's context: whatever came next would fail in its place."""
    if any(isinstance(a, Tensor) and a.device.type == "cuda" for a in args):
        torch.cuda.synchronize()


def rotated(args: Sequence[Any]) -> list[list[Any]]:
    """Copies of arguments, more than a cache holds; each tensor as the original, also in its alignment."""
    size = sum(a.numel() * a.element_size() for a in args if isinstance(a, Tensor))
    device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
    if device.type == "cuda":
        cache_size = torch.cuda.get_device_properties(device).L2_cache_size
        # Results and what gradients need take as much again, and as much once more.
        room = torch.cuda.mem_get_info(device)[0] // 8
        count = sets(size, 2 * cache_size, 4 * _MOST_SETS, room)
    else:
        count = sets(size, _ROTATED, _MOST_SETS)
    return [[_copy(a) for a in args] for _ in range(count)]


def sets(size: int, wanted: int, most: int, room: int | None = None) -> int:
    """How many copies of so many bytes make what is wanted, as far as there is room for them.

    >>> sets(1 << 20, 64 << 20, 8), sets(48 << 20, 64 << 20, 8), sets(48 << 20, 64 << 20, 8, room=50 << 20)
    (8, 2, 1)
    """
    count = min(max(-(-wanted // max(size, 1)), 1), most)
    return count if room is None else max(min(count, room // max(size, 1)), 1)


def _copy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    reach = (
        1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    )
    skipped = value.data_ptr() % 16 // value.element_size()
    memory = torch.empty(reach + skipped, dtype=value.dtype, device=value.device)
    # All of the memory, for elements that share theirs cannot be copied one by one.
    memory[skipped:].copy_(value.detach().as_strided((reach,), (1,)))
    made = memory.as_strided(value.shape, value.stride(), skipped)
    return made.requires_grad_(value.requires_grad)


def _whole(call: Callable[..., Any], args: Sequence[Any]) -> object:
    """A call with its backward; returned is all that was made."""
    made = call(*args)
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    results = made if isinstance(made, tuple) else (made,)
    roots = [r for r in results if r.requires_grad]
    if not (wanted and roots):
        return made
    pulls = [torch.ones_like(r) for r in roots]
    return made, torch.autograd.grad(roots, wanted, pulls, allow_unused=True)
