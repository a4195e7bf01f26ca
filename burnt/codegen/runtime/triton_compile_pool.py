"""Compile Triton kernels ahead of their launch, in a pool of worker processes.

A worker runs ``python -m burnt.codegen.runtime.triton_compile_pool``. It reads jobs from stdin and compiles
them for a device that it never uses, into Triton's cache, where a later launch of the same kernel finds them.
A worker inherits only the environment: a fork would share the parent's CUDA context, and Python's spawn would
run the user's program again.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from burnt.codegen.frontend.trace import PLANNING_LOCK
from burnt.codegen.ir import Buffer, Expr, Kernel
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.source import (
    AnyConfig,
    FailedFlag,
    ScalarArg,
    TritonSource,
    Workspace,
    neighbouring_configs,
    why_too_large,
)
from burnt.codegen.render.triton.tile_config import Limits
from burnt.errors import CompileError

_WORK_SECONDS = 60.0
"""Time limit for one function; a kernel takes 0.1 to 0.5 seconds."""
_START_SECONDS = 120.0  # time limit for a worker to start: it imports torch
_IDLE_SECONDS = 60.0  # after which a worker without work ends
_MAX_WORKERS = 16


class Job(NamedTuple):
    """A function to compile."""

    text: str  # the source of its module
    name: str  # its name in the module
    # For each tensor its dtype (``"float32"``), for each number a value; a list for a tuple of these, and for
    # a named tuple ``{"name": ..., "parts": ...}``, the name of its class in `text` and that list.
    arguments: list[Any]
    # Block sizes, flags and tuples of them, as above; a function is given as ``{"name": ...}``.
    constants: dict[str, Any]
    options: dict[str, int]  # compile options such as num_warps


def jobs_of(kernel: Kernel, config: AnyConfig) -> list[Job]:
    """Return the jobs that compile a scheduled kernel, for tensors with aligned addresses."""
    with PLANNING_LOCK:
        Expr.restore_interned(kernel.exprs)
        printed = print_kernel(kernel, config)
        Expr.clear_interned()
    return source_jobs(printed)


def source_jobs(printed: TritonSource) -> list[Job]:
    """Return the jobs that compile a printed kernel, for tensors with aligned addresses."""

    def describe(argument: Any) -> str | float:
        if isinstance(argument, Buffer | Workspace):
            return str(argument.dtype).removeprefix("torch.")
        if isinstance(argument, FailedFlag):
            return "int64"
        return 1.5 if isinstance(argument, ScalarArg) else int(argument)

    sizes = printed.config
    return [
        Job(printed.text, f.name, [describe(a) for a in f.arguments], f.constants, sizes.options)
        for f in printed.functions
    ]


def job_of(
    kernel: Any, arguments: Sequence[Any], constants: Mapping[str, Any], options: Mapping[str, int]
) -> Job:
    """Return the job that compiles a hand-written kernel, a Triton function in an importable module.

    `arguments` are what it is launched with, by position: tensors, numbers, tuples, None for a tensor that is
    absent, and constants, which may be functions of modules. Further constants are given by name.
    """
    imports = [kernel]

    def describe(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return bundle(argument, [describe(each) for each in argument])
        if isinstance(argument, torch.Tensor):
            return str(argument.dtype).removeprefix("torch.")
        return 1.5 if isinstance(argument, float) else argument

    def bundle(value: tuple[Any, ...], parts: list[Any]) -> Any:
        if not hasattr(value, "_fields"):
            return parts
        imports.append(type(value))
        return {"name": type(value).__name__, "parts": parts}

    def constant(value: Any) -> Any:
        if isinstance(value, tuple):
            return bundle(value, list(value))
        if not hasattr(value, "fn"):
            return value
        imports.append(value)
        return {"name": value.fn.__name__}

    given = dict(zip(kernel.arg_names, arguments, strict=False))
    constexpr_names = {kernel.arg_names[n] for n in kernel.constexprs}
    constexpr_names |= {name for name, value in given.items() if value is None}
    known = {name: value for name, value in given.items() if name in constexpr_names} | dict(constants)
    described_constants = {name: constant(value) for name, value in known.items()}
    described = [describe(value) for name, value in given.items() if name not in constexpr_names]
    return Job(
        "".join(dict.fromkeys(f"from {each.__module__} import {each.__name__}\n" for each in imports)),
        kernel.fn.__name__,
        described,
        described_constants,
        dict(options),
    )


def limits_of(device: torch.device) -> Limits:
    """Return the limits that a CUDA or ROCm device sets for kernels."""
    found = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        # A compute unit has four SIMD units with 512 registers per lane; a wavefront uses at most half of
        # them.
        shared = found.shared_memory_per_block
        registers = 2048 * found.warp_size
        return Limits(found.multi_processor_count, registers, 256, shared, found.warp_size, is_rocm=True)
    # Triton opts in to the maximum shared memory per block: all of a multiprocessor's but 1 KiB for the
    # driver.
    shared = found.shared_memory_per_multiprocessor - 1024
    return Limits(
        found.multi_processor_count, shared_memory=shared, warp_size=found.warp_size, has_tma=found.major >= 9
    )


class Choice(NamedTuple):
    """A candidate for the block sizes of one kernel."""

    kernel: str  # its name
    blocks: str  # the block sizes, in the format of the tuning tables
    skip_reason: str | None  # why they are not worth measuring; None if they are


def choices_of(kernels: Sequence[Kernel], limits: Limits) -> list[Choice]:
    """Return candidates for block sizes other than the heuristic's.

    The nearest candidates of all kernels come first. Kernels with less than a sixteenth of the work of the
    largest one have no candidates.
    """
    with PLANNING_LOCK:
        structures = {kernel.name: structure_of(kernel) for kernel in kernels}
        Expr.clear_interned()
    work_of = {name: structure.work for name, structure in structures.items()}
    expensive = [name for name in structures if 16 * work_of[name] >= max(work_of.values())]
    found = [
        [
            Choice(name, str(v), why_too_large(structures[name], v, limits))
            for v in neighbouring_configs(structures[name], limits)[1:]
        ]
        for name in expensive
    ]
    return [choice for row in itertools.zip_longest(*found) for choice in row if choice is not None]


# --- the pool ---------------------------------------------------------------------------------------------


class _WorkerLostError(Exception):
    """A worker ended, or did not answer in time."""


class Pool:
    """A pool of worker processes that compile Triton functions for a `triton.backends.compiler.GPUTarget`.

    Workers start when there is work. They end after a minute without work, or with this process. One that
    takes more than `seconds` for a function is killed; killed and crashed workers are replaced.
    """

    def __init__(
        self, target: tuple[str, int | str, int], workers: int | None = None, seconds: float = _WORK_SECONDS
    ) -> None:
        self.target, self.seconds = target, seconds
        self.workers = workers or min(max((os.cpu_count() or 2) - 1, 1), _MAX_WORKERS)
        self._work: queue.SimpleQueue[tuple[Job, Future[None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0
        self._closed = False
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._requested: dict[str, tuple[Future[None], int]] = {}  # with the number of waiters

    def submit(self, jobs: Sequence[Job]) -> Future[None]:
        """Compile functions in parallel, each only once even if submitted again.

        The future is done when all functions are, or fails with `CompileError` when one does not compile.
        Cancelling it cancels those that no other future waits for.
        """
        combined: Future[None] = Future()
        keyed_parts = []
        for job in jobs:
            key = hashlib.sha256(json.dumps(job).encode()).hexdigest()  # the sources would add up
            part, waiting = self._requested.get(key, (None, 0))
            if part is None or part.cancelled() or (part.done() and part.exception() is not None):
                part, waiting = self._enqueue(job), 0
            self._requested[key] = part, waiting + 1
            keyed_parts.append((key, part))
        left = [len(keyed_parts)]
        lock = threading.Lock()

        def on_part_done(part: Future[None]) -> None:
            error = CompileError("a kernel was not compiled") if part.cancelled() else part.exception()
            with lock:
                left[0] -= 1
                if combined.done():
                    return
                if error is not None:
                    combined.set_exception(error)
                elif not left[0]:
                    combined.set_result(None)

        def on_cancel(combined: Future[None]) -> None:
            for key, part in keyed_parts if combined.cancelled() else ():
                known, waiting = self._requested[key]
                self._requested[key] = known, waiting - 1
                if known is part and waiting == 1:
                    part.cancel()

        combined.add_done_callback(on_cancel)
        for _, part in keyed_parts:
            part.add_done_callback(on_part_done)
        if not keyed_parts:
            combined.set_result(None)
        return combined

    def _enqueue(self, job: Job) -> Future[None]:
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._work.put((job, future))
            if self._work.qsize() > self._idle and self._threads < self.workers:
                self._threads += 1
                threading.Thread(target=self._serve, name="burnt compiles", daemon=True).start()
        return future

    def close(self) -> None:
        """Kill the workers, and cancel what was not compiled yet."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(queue.Empty):
                while True:
                    self._work.get_nowait()[1].cancel()
            for process in self._processes:
                process.kill()

    def _serve(self) -> None:
        """Pass work to one worker, until there is none for a while."""
        process: subprocess.Popen[bytes] | None = None
        while (work := self._next_work()) is not None:
            job, future = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if process is None:
                    process = self._start_process()
                error = self._compile_in_process(process, job)
            except (_WorkerLostError, OSError) as lost:
                error = str(lost)
                self._end(process)
                process = None
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(CompileError("a kernel does not compile", where=job.name, found=error))
        self._end(process)

    def _next_work(self) -> tuple[Job, Future[None]] | None:
        """Wait for work and return it; None if this thread should end."""
        with self._lock:
            self._idle += 1
        try:
            return self._work.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            with self._lock:
                if not self._work.empty() and not self._closed:
                    return self._work.get()
                self._threads -= 1
                return None
        finally:
            with self._lock:
                self._idle -= 1

    def _start_process(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[3])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # Hide the devices: a worker must not create a context on one.
        environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "burnt.codegen.runtime.triton_compile_pool", json.dumps(self.target)]
        with self._lock:
            if self._closed:
                raise _WorkerLostError("the pool was closed")
            process = subprocess.Popen(
                [*command, str(self.seconds)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C goes to the parent only
            )
            self._processes.add(process)
        try:
            self._read_answer(process, _START_SECONDS)
        except BaseException:
            self._end(process)
            raise
        return process

    def _compile_in_process(self, process: subprocess.Popen[bytes], job: Job) -> str | None:
        """Compile a function in a worker; return the error, or None."""
        assert process.stdin is not None
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        answer: dict[str, str | None] = json.loads(self._read_answer(process, self.seconds + 10))
        return answer["error"]

    def _read_answer(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        assert process.stdout is not None
        end, text = time.monotonic() + seconds, b""
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        while not text.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1e3):
                raise _WorkerLostError(f"the compiler did not answer within {seconds:.0f} s")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                code = process.wait()
                hung = code == -signal.SIGALRM
                reason = f"took longer than {self.seconds:.0f} s" if hung else f"died with exit code {code}"
                raise _WorkerLostError(f"the compiler's process {reason}")
            text += part
        return text

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # the worker did not read all of it
                pipe.close()
        with self._lock:
            self._processes.discard(process)


@cache
def pool_of(index: int) -> Pool:
    """Return this process's pool that compiles for the CUDA device with this index."""
    from triton.runtime import driver

    with torch.cuda.device(index):
        target = driver.active.get_current_target()
    pool = Pool((target.backend, target.arch, target.warp_size))
    atexit.register(pool.close)
    return pool


# Threads do not survive a fork: the child needs new pools.
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=pool_of.cache_clear)


# --- the worker process -----------------------------------------------------------------------------------


class CompileOnlyDriver:
    """A Triton driver that only knows the target, which is enough to compile. It launches nothing."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        """Return what Triton compiles for."""
        return self.target

    def get_current_device(self) -> int:
        """Return 0, as there is one target."""
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        """Return 0, as nothing is launched."""
        return 0


class _AlignedTensor:
    """A stand-in for a tensor with an aligned address."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 0

    def ptr_range(self) -> int:
        return 0  # reachable with 32 bits, which Triton checks on ROCm


def compile_job(job: Job) -> Any:
    """Compile a function for the active driver's target into Triton's cache, or raise what Triton raises.

    Returns Triton's compiled kernel.
    """
    from burnt.codegen.runtime.triton_launch import load

    def argument(described: Any) -> Any:
        if isinstance(described, dict):
            return namespace[described["name"]](*map(argument, described["parts"]))
        if isinstance(described, list):
            return tuple(map(argument, described))
        if isinstance(described, str):
            return _AlignedTensor(getattr(torch, described))
        return described

    def constant(described: Any) -> Any:
        if isinstance(described, dict):
            named = namespace[described["name"]]
            return named(*described["parts"]) if "parts" in described else named
        return tuple(described) if isinstance(described, list) else described

    namespace = load.__wrapped__(job.text)  # functions remember what they were compiled for
    function = namespace[job.name]
    constexprs = {name: constant(c) for name, c in job.constants.items()}
    given = map(argument, job.arguments)
    # By name, because constants may be between them.
    arguments = {name: next(given) for name in function.arg_names if name not in constexprs}
    return function.warmup(grid=(1,), **arguments, **constexprs, **job.options)


def main(target: str, seconds: str) -> None:
    """Compile the job of each line from stdin and answer with the error; exit if a line takes too long."""
    # Answers go to the original stdout; what compilers print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    driver.set_active(CompileOnlyDriver(GPUTarget(*json.loads(target))))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
        error = None
        try:
            compile_job(Job(*json.loads(line)))
        except Exception as raised:  # any error is the answer
            error = f"{type(raised).__name__}: {raised}"[:500]
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
