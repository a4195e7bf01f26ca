"""The tuner: measure the candidates of an op, and look up earlier measurements.

The tuning policy decides when to measure: ``off`` uses only the heuristic; ``cached``, the default, uses
earlier measurements, from this machine or shipped with the package; ``quick`` and ``full`` also measure at
the first call with a tuning key. It is set by ``BURNT_TUNE`` or `tuning`. Nothing is measured while a CUDA
graph is captured, while ops are traced, or in a process whose rank is not 0.
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
from burnt.errors import CacheError, ConfigError, did_you_mean
from burnt.kernels.autotune.accuracy import ReferenceResult
from burnt.kernels.autotune.database import Row, TuningDatabase, shipped_rows
from burnt.kernels.autotune.timers import Clock, EventClock, NotCapturedError, default_clock
from burnt.kernels.interface.candidate import Alternative
from burnt.kernels.interface.tuning_key import format_choice, parse_choice, runnable_candidates, tuning_key

if TYPE_CHECKING:
    from burnt.kernels.interface.candidate import AnyOp, Candidate


POLICIES = ("off", "cached", "quick", "full")


@dataclasses.dataclass(frozen=True)
class _Effort:
    """The budget for a tuning key: seconds of sampling, configurations per candidate, and samples of each."""

    seconds: float
    configs: int
    rounds: int


_EFFORTS = {"quick": _Effort(2.0, 12, 7), "full": _Effort(30.0, 1 << 30, 31)}
_CPU_INPUT_BYTES = 64 << 20
"""Total bytes of the input sets on a CPU: more than its caches hold, so that inputs are not cached."""
_MAX_INPUT_SETS = 8  # on a CPU; four times as many on a GPU, where calls with small inputs take little time
_DROP_RATIO = 3.0  # a candidate this many times slower than the fastest is no longer sampled
_MAX_SCATTER = 0.25  # the interquartile range of calm samples is at most this share of their median
_COMPILE_TIMEOUT = 90.0  # seconds: some to start the compilers, and 0.3 for each configuration

_active = threading.local()
_policy: str | None = None
_unsaved_rows: dict[tuple[str, str], Row] = {}  # measurements that could not be stored
_warned = False


def policy() -> str:
    """Return the tuning policy in effect; raise a `ConfigError` if ``BURNT_TUNE`` is not one."""
    if _policy is not None:
        return _policy
    return _validate_policy(os.environ.get("BURNT_TUNE") or "cached", "BURNT_TUNE")


def _validate_policy(name: str, where: str) -> str:
    if name not in POLICIES:
        raise ConfigError(
            "no such tuning policy",
            where=where,
            expected=", ".join(POLICIES),
            found=repr(name),
            hint=did_you_mean(name, POLICIES),
        )
    return name


@contextmanager
def tuning(name: str) -> Iterator[None]:
    """Set the tuning policy of the whole process within a context.

    Every op selects its candidates again when the context begins and when it ends.

    Args:
        name: ``"off"``, ``"cached"``, ``"quick"`` or ``"full"``.

    Raises:
        ConfigError: the name is not a policy.

    >>> from burnt import kernels
    >>> with kernels.tuning("off"):
    ...     kernels.softmax.chosen(torch.zeros(3, 5)).why
    'heuristic'
    """
    global _policy
    before, _policy = _policy, _validate_policy(name, "burnt.kernels.tuning")
    _clear_selections()
    try:
        yield
    finally:
        _policy = before
        _clear_selections()


def _clear_selections() -> None:
    from burnt.kernels.interface.candidate import OPS

    for op in OPS.values():
        op.forget()


def can_measure() -> bool:
    """Whether anything can be measured now: by rank 0, and not while tuning, capturing or tracing."""
    is_traced = torch.compiler.is_compiling() or not _torch.is_plain_call()
    return not (getattr(_active, "tuning", False) or is_capturing() or is_traced or _rank())


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _rank() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


class Measurements(NamedTuple):
    """The measurements for a tuning key.

    `wrong` maps candidates, with their configurations, to what was wrong: these failed the accuracy check on
    this machine for any arguments of the op, and are not selected until the op's sources change. `source` is
    ``"measured"`` in this call or ``"measured before"``.
    """

    rows: Sequence[Row] = ()
    wrong: Mapping[str, str] = {}
    source: str = ""

    def best(
        self, candidates: Sequence[Candidate], args: Sequence[Any]
    ) -> tuple[Candidate, dict[str, Any] | None, str] | None:
        """Return the fastest correct candidate, its configuration and why; None if too few were measured."""
        timed = [(row.ms, row.config) for row in self.rows if row.status == "ok" and row.ms is not None]
        # A single time does not tell whether another candidate is faster.
        if len(timed) < min(len(candidates), 2):
            return None
        for ms, text in sorted(timed):
            choice = None if text in self.wrong else parse_choice(candidates, args, text)
            if choice is not None:
                return (*choice, f"{self.source}: {ms:.3g} ms")
        return None


def lookup_or_measure(
    op: AnyOp, args: Sequence[Any], key: str, candidates: Sequence[Candidate]
) -> Measurements:
    """Look up the measurements for a tuning key, and measure what is missing if the policy says so."""
    current_policy = policy()
    if current_policy == "off" or getattr(_active, "tuning", False):
        return Measurements()
    known = lookup_measurements(key)
    if current_policy in _EFFORTS and len(candidates) > 1 and can_measure():
        new_rows = tune(op, args, current_policy, known=known.rows)
        wrong = {row.config: row.note for row in new_rows if row.status == "wrong"}
        return Measurements([*known.rows, *new_rows], {**known.wrong, **wrong}, "measured")
    return known


def lookup_measurements(key: str) -> Measurements:
    """Look up the measurements for a tuning key: those shipped with the package, overridden by the user's."""
    prefix = "|".join(key.split("|", 3)[:3]) + "|"  # the op, its sources and the machine, for any arguments
    stored: list[Row] = []
    try:
        store = _store()
        stored = [] if store is None else [*store.rows(key), *store.wrong(prefix)]
    except CacheError as error:  # an unreadable table must not stop a program
        build_cache.add_note(str(error))
    known = [*shipped_rows(), *stored, *_unsaved_rows.values()]
    rows = [row for row in known if row.key == key]
    wrong = [row for row in known if row.status == "wrong" and row.key.startswith(prefix)]
    by_config = {row.config: row for row in rows}
    return Measurements(list(by_config.values()), {row.config: row.note for row in wrong}, "measured before")


def tune(
    op: AnyOp,
    args: Sequence[Any],
    effort: str = "quick",
    *,
    known: Sequence[Row] = (),
    store: TuningDatabase | None = None,
    clock: Clock | None = None,
) -> list[Row]:
    """Measure the candidates of an op for some arguments, and store the measurements.

    Args:
        op: the op to tune.
        args: its arguments; trailing arguments with defaults may be omitted. If one requires a gradient,
            forward and backward are measured together.
        effort: how much to measure, ``"quick"`` or ``"full"``.
        known: rows of configurations that are not measured again.
        store: where to store the rows; by default the user's table.
        clock: measures the time; by default the most precise clock for the device.

    Returns:
        a row for each candidate and configuration that was tried. Configurations estimated to be too slow or
        too large have the status ``"pruned"``; their rows are not stored.
    """
    settings = _EFFORTS[_validate_policy(effort, "effort")]
    device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
    benchmark = _Benchmark(op, list(op.bind(args, {})), clock or default_clock(device), settings)
    _active.tuning = True
    try:
        on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        # What is measured draws other random numbers than the program.
        rng = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with on_device, rng, _torch.without_saved_tensor_hooks():
            benchmark.run({row.config for row in known})
    finally:
        _active.tuning = False
        now = time.time()
        benchmark.rows = [row._replace(at=now) for row in benchmark.rows]
        # Also if a kernel has broken the device: its row is stored, so that it is not tried again.
        _save(benchmark.rows, store)
    return [*benchmark.rows, *(row._replace(at=now) for row in benchmark.pruned)]


def _save(rows: Sequence[Row], store: TuningDatabase | None) -> None:
    if not rows:
        return
    try:
        table = store or _store()
        if table is not None:
            table.add(rows)
            return
    except CacheError as error:
        if store is not None:
            raise
        build_cache.add_note(str(error))
    # This process can still use the measurements.
    _unsaved_rows.update({(row.key, row.config): row for row in rows})


def _store() -> TuningDatabase | None:
    """Return the user's table; if there is no folder for it, warn once and return None."""
    global _warned
    try:
        return TuningDatabase()
    except CacheError as error:
        build_cache.add_note(str(error))
        if not _warned:
            _warned = True
            warnings.warn(
                f"burnt: kernels run, but measurements are not stored\n{error}", RuntimeWarning, stacklevel=2
            )
        return None


_Variant: TypeAlias = "tuple[Candidate, dict[str, Any] | None]"


@dataclasses.dataclass
class _TimedCandidate:
    """A candidate with a configuration, and the times of its samples in seconds."""

    candidate: Candidate
    config: dict[str, Any] | None
    call: Callable[[Sequence[Any]], object]
    sample: Callable[[int], float]
    times: list[float] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The candidate and its configuration as text."""
        return format_choice(self.candidate, self.config)

    @property
    def seconds(self) -> float:
        """The median of its samples."""
        return statistics.median(self.times)

    @property
    def scatter(self) -> float:
        """The interquartile range of its samples, relative to the median."""
        if len(self.times) < 2:
            return 0.0
        low, median, high = statistics.quantiles(self.times, n=4)
        return (high - low) / median

    def row(self, key: str) -> Row:
        """Return its row for the table."""
        note = "" if self.scatter <= _MAX_SCATTER else f"disturbed: samples differ by {self.scatter:.0%}"
        return Row(key, self.name, "ok", self.seconds * 1e3, note)


class _Benchmark:
    """Checks the candidates of an op for some arguments, and times them against each other.

    While some variants (candidates with a configuration) compile in other processes, those that are ready are
    checked and timed once, next to the fastest so far. Then all are sampled in rounds, one sample each, so
    that a disturbance affects all of them. In both phases a variant far slower than the fastest is dropped.
    """

    def __init__(self, op: AnyOp, args: list[Any], clock: Clock, settings: _Effort) -> None:
        self.op, self.args, self.clock, self.settings = op, args, clock, settings
        self.key = tuning_key(op, args)
        self.rows: list[Row] = []
        self.pruned: list[Row] = []
        self.timed: list[_TimedCandidate] = []
        self.alive: list[_TimedCandidate] = []
        self.seconds_left = settings.seconds
        self.compile_seconds_left = _COMPILE_TIMEOUT

    def run(self, known: set[str]) -> None:
        """Measure all variants but the known ones, which are named as by `format_choice`."""
        variants, risky = self.variants_to_measure(known)
        if not variants and not risky:
            return
        self.inputs = make_input_sets(self.args)
        self.reference = ReferenceResult(self.op, self.inputs[0])
        try:
            self.add_when_compiled(variants)
            self.sample_in_rounds()
            for candidate in {t.candidate.name: t.candidate for t in self.alive}.values():
                timed = [(t.config, t.seconds) for t in self.timed if t.candidate is candidate]
                config = candidate.suggest_config(timed)
                if config is not None and format_choice(candidate, config) not in known:
                    self.add(candidate, config, self.start_compiling(candidate, config))
                    self.sample_in_rounds()
            for variant in risky:  # one at a time, so that a crash affects nothing else
                self.add_when_compiled([variant])
            if risky:
                self.sample_in_rounds()
        finally:  # store the measurements even if a configuration has broken the device
            self.rows += [t.row(self.key) for t in self.timed if t.times]

    def add_when_compiled(self, variants: Sequence[_Variant]) -> None:
        """Check each variant and time it once, as soon as it is compiled."""
        # Compiling is the slow part: it runs on other cores while variants that are ready are timed.
        waiting = [(c, config, self.start_compiling(c, config)) for c, config in variants]
        while waiting and self.seconds_left > 0:
            ready = next((w for w in waiting if w[2] is None or w[2].done()), None)
            if ready is not None:
                waiting.remove(ready)
                self.add(*ready)
            elif not self.wait_for_any([future for *_, future in waiting if future is not None]):
                break
        for *_, future in waiting:  # no row is stored for these: they are tried again another time
            if future is not None:
                future.cancel()

    def variants_to_measure(self, known: set[str]) -> tuple[list[_Variant], list[_Variant]]:
        """Return the variants that are not known yet and worth measuring, and separately the risky ones."""
        variants: list[_Variant] = []
        risky: list[_Variant] = []
        broken: dict[str, str] = {}
        for candidate in runnable_candidates(self.op, self.args, broken):
            num_worthwhile = 0
            try:
                alternatives = candidate.alternatives(self.args)
            except Exception:  # whatever it raises, the accuracy check raises it again and reports it
                alternatives = [Alternative(None)]
            for config, skip_reason, is_risky in alternatives:
                name = format_choice(candidate, config)
                if skip_reason is not None:
                    self.pruned.append(Row(self.key, name, "pruned", None, skip_reason))
                    continue
                num_worthwhile += 1
                if num_worthwhile <= self.settings.configs and name not in known:
                    (risky if is_risky else variants).append((candidate, config))
        self.rows += [Row(self.key, name, "failed", None, why) for name, why in broken.items()]
        return variants, risky

    def start_compiling(self, candidate: Candidate, config: dict[str, Any] | None) -> Future[None] | None:
        """Start compiling a candidate in other processes, if it can be; errors are set on the future."""
        try:
            return candidate.start_compiling(config, self.args)
        except Exception as error:  # of any class, for example if code generation fails
            failed: Future[None] = Future()
            failed.set_exception(error)
            return failed

    def wait_for_any(self, futures: Sequence[Future[None]]) -> bool:
        """Wait for one of the futures; return False if the time for compiling is used up."""
        began = time.perf_counter()
        wait(futures, max(self.compile_seconds_left, 0), FIRST_COMPLETED)
        self.compile_seconds_left -= time.perf_counter() - began
        return self.compile_seconds_left > 0

    def add(self, candidate: Candidate, config: dict[str, Any] | None, future: Future[None] | None) -> None:
        """Check a variant, and time it once next to the fastest so far; add a row if it fails or is wrong."""
        from burnt.kernels.interface.binding import bind_candidate

        name = format_choice(candidate, config)
        try:
            if future is not None:
                future.result(_COMPILE_TIMEOUT)
            call = bind_candidate(self.op, candidate, config, self.args)
            wrong = self.reference.find_error(call)
        except Exception as error:  # of any class: record that it failed, and measure the others
            self.rows.append(Row(self.key, name, "failed", None, f"{type(error).__name__}: {error}"[:500]))
            _raise_if_device_broken(self.inputs[0])
            return
        if wrong is not None:
            self.rows.append(Row(self.key, name, "wrong", None, wrong))
            return
        timed_call = functools.partial(_forward_and_backward, call)
        timed = _TimedCandidate(candidate, config, timed_call, self.sampler(timed_call))
        self.timed.append(timed)
        self.alive.append(timed)
        if future is not None:
            fastest = min(self.alive, key=lambda t: statistics.median(t.times or [math.inf]))
            self.sample_round([timed] if timed is fastest else [fastest, timed], 0)

    def sampler(self, call: Callable[[Sequence[Any]], object]) -> Callable[[int], float]:
        """Return a sampler of a call; if it cannot be captured, time all variants with `EventClock`."""
        try:
            return self.clock.sampler(call, self.inputs)
        except NotCapturedError:
            self.clock = EventClock()
            for timed in self.timed:
                timed.sample, timed.times = self.clock.sampler(timed.call, self.inputs), []
            self.alive = list(self.timed)
            return self.clock.sampler(call, self.inputs)

    def sample_in_rounds(self) -> None:
        """Sample in rounds until the time is up; in up to twice as many rounds if the samples scatter."""
        for i in range(2 * self.settings.rounds):
            if i >= self.settings.rounds and all(t.scatter <= _MAX_SCATTER for t in self.alive):
                break
            self.sample_round(self.alive, i)
            if self.seconds_left <= 0:
                break

    def sample_round(self, variants: Sequence[_TimedCandidate], first: int) -> None:
        """Take a sample of each variant, starting at an input set, then drop the ones that are far slower."""
        began = self.clock.now()
        for timed in variants:
            timed.times.append(timed.sample(first))
        self.seconds_left -= self.clock.now() - began
        medians = [t.seconds for t in self.alive if t.times]
        fastest = min(medians, default=0.0)
        self.alive = [t for t in self.alive if not t.times or t.seconds <= _DROP_RATIO * fastest]


def _raise_if_device_broken(args: Sequence[Any]) -> None:
    """Raise if a kernel has broken the device's context: every later call would fail, too."""
    if any(isinstance(a, Tensor) and a.device.type == "cuda" for a in args):
        torch.cuda.synchronize()


def make_input_sets(args: Sequence[Any]) -> list[list[Any]]:
    """Copy the arguments into several sets, together larger than the cache, with strides and alignment."""
    size = sum(a.numel() * a.element_size() for a in args if isinstance(a, Tensor))
    device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
    if device.type == "cuda":
        cache_size = torch.cuda.get_device_properties(device).L2_cache_size
        # An eighth of the free memory: results and tensors saved for backward need as much as the inputs,
        # each.
        max_bytes = torch.cuda.mem_get_info(device)[0] // 8
        count = num_input_sets(size, 2 * cache_size, 4 * _MAX_INPUT_SETS, max_bytes)
    else:
        count = num_input_sets(size, _CPU_INPUT_BYTES, _MAX_INPUT_SETS)
    return [[_copy_with_layout(a) for a in args] for _ in range(count)]


def num_input_sets(size: int, total_bytes: int, max_sets: int, max_bytes: int | None = None) -> int:
    """Return how many sets of `size` bytes reach `total_bytes`, within both limits and at least one.

    >>> num_input_sets(1 << 20, 64 << 20, 8), num_input_sets(48 << 20, 64 << 20, 8)
    (8, 2)
    >>> num_input_sets(48 << 20, 64 << 20, 8, max_bytes=50 << 20)
    1
    """
    count = min(max(-(-total_bytes // max(size, 1)), 1), max_sets)
    return count if max_bytes is None else max(min(count, max_bytes // max(size, 1)), 1)


def _copy_with_layout(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    num_elements = (
        1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    )
    offset = value.data_ptr() % 16 // value.element_size()
    memory = torch.empty(num_elements + offset, dtype=value.dtype, device=value.device)
    # Copy the whole memory range: torch cannot copy into overlapping elements, such as an expanded tensor's.
    memory[offset:].copy_(value.detach().as_strided((num_elements,), (1,)))
    copy = memory.as_strided(value.shape, value.stride(), offset)
    return copy.requires_grad_(value.requires_grad)


def _forward_and_backward(call: Callable[..., Any], args: Sequence[Any]) -> object:
    """Run a call and its backward; return the results and the gradients."""
    returned = call(*args)
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    results = returned if isinstance(returned, tuple) else (returned,)
    roots = [r for r in results if r.requires_grad]
    if not (leaves and roots):
        return returned
    grad_outs = [torch.ones_like(r) for r in roots]
    return returned, torch.autograd.grad(roots, leaves, grad_outs, allow_unused=True)
