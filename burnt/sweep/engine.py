"""The engine of a sweep: starts, watches and ends the processes of trials.

A trial is ``burnt train ... folder=SWEEP/0007`` in a session of its own. The files on the disk are the whole
state, each written before what it announces: the parameters before the process, the process before it may
run (it waits for a line from the engine, and ends without one), the decision to prune before the command.
So whatever is killed, the next engine knows what there was: it waits for trials that still run, concludes
those that have ended, and starts the others again, from their checkpoints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from burnt.errors import BurntError, MetricError, RunError, did_you_mean
from burnt.store.control import send
from burnt.store.ranking import better_direction
from burnt.store.reader import RunReader, training_seconds
from burnt.store.schema import TRIAL
from burnt.store.sweeps import LOG, SWEEP, Sweep, Trial, read_trials
from burnt.store.write_lease import ProcessName
from burnt.sweep.pruning import should_prune
from burnt.sweep.sampling import propose

POLL_SECONDS = 0.3
_MAX_FIRST_FAILURES, _MAX_FAILURES = 3, 10  # in a row: if no trial has succeeded, and else
_MAX_DEATHS = 3  # of a trial's process by a signal
_LOG_LINES = 4  # of a trial without a run, in its error
_WAITING_SHELL = 'read -r go && exec "$0" "$@" </dev/null'


@dataclasses.dataclass
class _Job:
    """A running trial."""

    trial: Trial
    slot: int
    process: subprocess.Popen[bytes] | None  # None: an earlier engine has started it
    values: list[float] = dataclasses.field(default_factory=list)
    has_stop: bool = False  # was sent

    def is_alive(self) -> bool:
        return self.trial.is_alive() if self.process is None else self.process.poll() is None


class _Run(NamedTuple):
    """What the run store says of a trial."""

    state: str  # as of `RunReader`; "none" without a run
    reason: str | None
    is_closed: bool  # by its process, which has not just vanished
    step: int
    seconds: float


class Engine:
    """Runs a sweep in a folder until its trials have ended, or until a signal.

    Args:
        folder: of the sweep; its ``sweep.json`` is written when `run` starts.
        sweep: what to search.
        message: shows a line.
        ended: shows a trial that has ended.
        running: shows the running trials; called several times per second.
    """

    COMMAND = (sys.executable, "-m", "burnt", "train")

    def __init__(
        self,
        folder: Path,
        sweep: Sweep,
        message: Callable[[str], None],
        ended: Callable[[Trial], None],
        running: Callable[[Sequence[Trial]], None],
    ) -> None:
        self.folder, self.sweep = folder, sweep
        self._message, self._ended, self._running = message, ended, running
        self.trials: dict[int, Trial] = {}
        self.signals = 0  # received
        self._jobs: list[_Job] = []
        self._waiting: list[Trial] = []  # to be started again
        self._curves: dict[int, list[float]] = {}  # of ended trials; lower is better
        self._deaths: dict[int, int] = {}
        self._failures: list[Trial] = []  # in a row
        self._error: BurntError | None = None
        self._has_announced_stop = self._has_warned = False

    def run(self) -> None:
        """Run the sweep.

        Raises:
            RunError: another process runs it, or trial after trial has failed.
            MetricError: the runs lack the metric, or which of its values are better is unknown.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone(self.folder), self._catching_signals():
            self._save(process=tuple(ProcessName.own()))
            self._take_up()
            while True:
                if self.signals and not self._has_announced_stop:
                    self._has_announced_stop = True
                    self._message("Stopping: the trials finish their step and save. Ctrl-C again kills them.")
                for job in list(self._jobs):
                    self._look_at(job)
                while not self._is_stopping and len(self._jobs) < self.sweep.jobs and self._start_next():
                    pass
                if not self._jobs:
                    break
                self._running([job.trial for job in self._jobs])
                time.sleep(POLL_SECONDS)
        if self._error is not None:
            raise self._error

    @property
    def _is_stopping(self) -> bool:
        return self.signals > 0 or self._error is not None

    def _save(self, **changes: object) -> None:
        self.sweep = self.sweep.replace(**changes)
        self.sweep.save(self.folder / SWEEP)

    def _run_folder(self, trial: Trial) -> Path:
        return self.folder / trial.name

    def _write(self, trial: Trial) -> Trial:
        self.trials[trial.number] = trial
        trial.save(self._run_folder(trial) / TRIAL)
        return trial

    # --- starting

    def _take_up(self) -> None:
        """Read the trials of earlier engines: wait for those that run, start others again."""
        for trial in read_trials(self.folder):
            self.trials[trial.number] = trial
            run = _read_run(self._run_folder(trial))
            if trial.state in ("complete", "pruned"):
                if run.state != "none":  # the metric may be another one now
                    value, step = self._measure(self._run_folder(trial))
                    if (value, step) != (trial.value, trial.step):
                        self._write(trial.replace(value=value, step=step))
            elif trial.state == "failed" and run.step == 0:  # a mistake in the program, which may be mended
                self._waiting.append(self._write(trial.replace(state="running", error=None)))
            elif trial.state == "running" and (trial.is_alive() or run.state in ("running", "stale")):
                self._message(f"{trial.name} still runs")
                self._jobs.append(_Job(trial, self._free_slot(), None))
            elif trial.state == "running":
                self._conclude(trial, None, was_watched=False)

    def _start_next(self) -> bool:
        """Start a trial; False if none is left."""
        if self._waiting:
            trial = self._waiting.pop(0)
        else:
            number = next(n for n in range(1, len(self.trials) + 2) if n not in self.trials)
            if number > self.sweep.trials:
                return False
            known = [self.trials[n] for n in sorted(self.trials)]
            trial = Trial(number=number, params=propose(self.sweep, known, number))
            (self._run_folder(trial) / LOG).parent.mkdir(parents=True, exist_ok=True)
            self._write(trial)
        self._start(trial)
        return True

    def _start(self, trial: Trial) -> None:
        folder, slot = self._run_folder(trial), self._free_slot()
        if _read_run(folder).state != "none":
            words = ["--resume", str(folder), "--trust"]
        else:
            words = [self.sweep.target, f"folder={folder}", *self.sweep.fixed, *trial.assignments()]
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WAITING_SHELL, *self.COMMAND, *words, "--monitor", "off"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(slot, self.sweep.jobs),
                start_new_session=True,  # Ctrl-C in the terminal is the engine's
            )
        import psutil

        name = ProcessName(socket.gethostname(), process.pid, psutil.Process(process.pid).create_time())
        trial = self._write(trial.replace(process=tuple(name), pruned_at=None))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(b"go\n")
        self._jobs.append(_Job(trial, slot, process))

    def _free_slot(self) -> int:
        taken = {job.slot for job in self._jobs}
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    # --- watching

    def _look_at(self, job: _Job) -> None:
        folder = self._run_folder(job.trial)
        if not job.is_alive() and (
            job.process is not None or _read_run(folder).state not in ("running", "stale")
        ):
            self._jobs.remove(job)
            self._conclude(job.trial, None if job.process is None else job.process.returncode)
            return
        if self.signals > 1:
            if job.is_alive() and job.trial.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.trial.process[1], signal.SIGKILL)
            else:  # somebody else goes on with it
                self._jobs.remove(job)
            return
        steps, values = self._read_values(folder)
        if len(values) != len(job.values) and math.isfinite(best := min(values, default=math.inf)):
            job.trial = job.trial.replace(value=self._sign * best, step=steps[-1])
            self.trials[job.trial.number] = job.trial
        job.values = values
        if job.trial.pruned_at is None and not self._is_stopping and self._should_prune(job):
            job.trial = self._write(job.trial.replace(pruned_at=steps[-1]))
        if (job.trial.pruned_at is not None or self._is_stopping) and not job.has_stop:
            job.has_stop = self._send_stop(job.trial)

    def _should_prune(self, job: _Job) -> bool:
        ended = self._ended_curves()
        complete = [curve for number, curve in ended.items() if self.trials[number].state == "complete"]
        others = [*ended.values(), *(other.values for other in self._jobs if other is not job)]
        return should_prune(self.sweep.prune, job.values, complete, others)

    def _ended_curves(self) -> dict[int, list[float]]:
        for trial in self.trials.values():
            if trial.state in ("complete", "pruned") and trial.number not in self._curves:
                self._curves[trial.number] = self._read_values(self._run_folder(trial))[1]
        return self._curves

    def _send_stop(self, trial: Trial) -> bool:
        """Ask a trial to save and stop; whether that is done."""
        try:
            user = "the sweep" if trial.pruned_at is None else "the sweep's pruning"
            send(self._run_folder(trial), "stop", user=user)
        except RunError:  # it has no run yet, or none any more
            if trial.pruned_at is not None or trial.process is None or not trial.is_alive():
                return False
            os.kill(trial.process[1], signal.SIGTERM)  # which a training takes for a stop command, too
        return True

    @property
    def _sign(self) -> float:
        return -1.0 if self.sweep.direction == "higher" else 1.0

    def _read_values(self, folder: Path) -> tuple[list[int], list[float]]:
        """Return the steps and values of the metric; lower is better."""
        split, _, name = (self.sweep.metric or "").partition("/")
        try:
            with RunReader(folder) as reader:
                if self.sweep.direction is None and reader.series():  # by then it has its configuration
                    self._choose_metric(reader)
                split, _, name = (self.sweep.metric or "").partition("/")
                points = reader.points(name, split)
        except (RunError, MetricError) as error:  # not yet
            is_late = split not in ("", "train") and f"{split}/" in f"{error.expected}"  # after a validation
            if is_late and not self._has_warned:
                self._has_warned = True
                self._message(f"warning: {error.what} so far; they have {error.expected}")
            return [], []
        return points.steps, [self._sign * v if math.isfinite(v) else math.inf for v in points.values]

    def _choose_metric(self, reader: RunReader) -> None:
        """Find out from a run what is compared: what it is ranked by, in the direction that it declares."""
        config = reader.config() or {}
        metric = self.sweep.metric or config.get("ranked_by") or "valid/loss"
        known = [f"{series.split}/{series.name}" for series in reader.series()]
        if metric not in known:
            raise MetricError(
                f"the trials have no metric {metric!r}",
                where=str(reader.folder),
                expected=", ".join(known) or "a metric, but none was logged",
                hint=did_you_mean(metric, known, "--metric NAME chooses another one"),
            )
        direction = self.sweep.direction or better_direction(metric, config)
        if direction is None:
            raise MetricError(
                f"which values of {metric} are better is unknown",
                where=str(reader.folder),
                expected="a metric that declares higher_is_better, or a name that tells",
                hint=f"--metric {metric}:higher or --metric {metric}:lower",
            )
        if (metric, direction) != (self.sweep.metric, self.sweep.direction):
            self._save(metric=metric, direction=direction)

    # --- ending

    def _conclude(self, trial: Trial, code: int | None, *, was_watched: bool = True) -> None:
        """Write how a trial has ended whose process is gone, or let it be started again.

        `code` is the exit code, if this engine has started the process.
        """
        run = _read_run(self._run_folder(trial))
        is_early = run.state == "stopped" and (run.reason or "").startswith("stopped early")
        if run.state == "finished" or is_early:
            self._end(trial, run, "complete")
        elif trial.pruned_at is not None:
            self._end(trial, run, "pruned")
        elif run.state == "crashed" and run.is_closed:
            self._end(trial, run, "failed", run.reason)
        elif self._is_stopping:
            return
        elif run.state == "stopped" and was_watched:
            self._end(trial, run, "pruned", "stopped by hand")
        elif run.state != "stopped" and code is not None and code >= 0:
            # An exception before the run, or no run in the folder; os._exit during it.
            self._end(trial, run, "failed", _last_lines(self._run_folder(trial) / LOG, code))
        else:
            deaths = self._deaths[trial.number] = self._deaths.get(trial.number, 0) + was_watched
            if deaths >= _MAX_DEATHS:
                self._end(
                    trial,
                    run,
                    "failed",
                    f"its process was killed {deaths} times, last by signal {-(code or 0)}",
                )
            else:
                self._waiting.append(trial)

    def _end(self, trial: Trial, run: _Run, state: str, error: str | None = None) -> None:
        folder = self._run_folder(trial)
        try:
            value, step = self._measure(folder) if run.state != "none" else (None, None)
        except MetricError as found:
            if state != "failed":
                self._error = self._error or found  # the trial stays unfinished, for another --metric
                return
            value, step = None, None
        if state == "complete" and value is None:
            state, error = "failed", f"{self.sweep.metric} has no finite value"
        ended = trial.replace(state=state, value=value, step=step, error=error, seconds=run.seconds)
        self._ended(self._write(ended))
        self._failures = [*self._failures, ended] if state == "failed" else []
        has_value = any(one.state == "complete" for one in self.trials.values())
        if len(self._failures) >= (_MAX_FAILURES if has_value else _MAX_FIRST_FAILURES):
            first = self._failures[0]
            self._error = self._error or RunError(
                f"{len(self._failures)} trials in a row have failed",
                where=str(self._run_folder(first)),
                found=first.error,
                hint=f"the output is in {self._run_folder(first) / LOG}; the same command goes on",
            )

    def _measure(self, folder: Path) -> tuple[float | None, int | None]:
        """Return the best value of the metric, and the step of the newest."""
        with RunReader(folder) as reader:
            self._choose_metric(reader)
            split, _, name = (self.sweep.metric or "").partition("/")
            best = reader.best(name, split, higher=self.sweep.direction == "higher")
            last = reader.last(name, split)
        return best and best.value, last and last.step

    @contextlib.contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """Let the first signal stop the trials, which save, and the second kill them."""

        def handle(number: int, frame: object) -> None:
            self.signals += 1

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            if before[number] is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other engines out of a folder; the lock ends with the process, however it ends."""
    import fcntl

    with contextlib.ExitStack() as stack:
        handle = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            process = Sweep.load(folder / SWEEP).process if (folder / SWEEP).is_file() else None
            raise RunError(
                "another process runs this sweep",
                where=str(folder),
                found=f"pid {process[1]} on {process[0]}" if process else None,
                hint=f"burnt monitor {folder} shows it; --name starts another sweep",
            ) from error
        yield


def _read_run(folder: Path) -> _Run:
    try:
        with RunReader(folder) as reader:
            attempts, progress = reader.attempts(), reader.progress()
            newest = attempts[-1]
            is_closed = newest.ended is not None
            step = max((head.point.step for head in reader.heads().values()), default=0)
            return _Run(
                reader.state(), newest.end_reason, is_closed, step, training_seconds(attempts, progress)
            )
    except RunError:  # there is none, or a process was killed while it made one
        return _Run("none", None, False, 0, 0.0)


def _last_lines(log: Path, code: int) -> str:
    text = log.read_text(errors="replace")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("(set BURNT_DEBUG")]
    start = max((i for i, line in enumerate(lines) if line.startswith("error: ")), default=-_LOG_LINES)
    return "; ".join(lines[start:][:_LOG_LINES]) or f"exit code {code}, without a run in {log.parents[1]}"


def _environment(slot: int, jobs: int) -> dict[str, str]:
    """Return the environment of a trial: its share of the cores, and one of several GPUs."""
    # macOS has no affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    env = {"OMP_NUM_THREADS": str(max(cores // jobs, 1)), **os.environ}
    if jobs > 1:
        all_gpus = [str(i) for i in range(len(glob.glob("/proc/driver/nvidia/gpus/*")))]
        gpus = (
            os.environ["CUDA_VISIBLE_DEVICES"].split(",")
            if "CUDA_VISIBLE_DEVICES" in os.environ
            else all_gpus
        )
        if len(gpus) > 1:
            env["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return env
