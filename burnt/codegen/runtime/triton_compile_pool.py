"""Compiling Triton kernels ahead of their launch, in processes of their own.

``python -m burnt.codegen.runtime.triton_compile_pool`` is such a process: it compiles what it reads for a
device that it never touches, and what it makes lies in Triton's cache, where the launch of the same kernel
finds it. It is started with nothing of its parent's but the environment: a fork would share the parent's CUDA
context, and Python's spawn would run the user's program again.
"""

from __future__ import annotations

import atexit
import contextlib
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

from burnt.codegen.frontend.trace import PLANNING
from burnt.codegen.ir import Buffer, Expr, Kernel
from burnt.codegen.render.triton.configs import AnyConfig, is_risky, neighbouring_configs, why_too_large
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.source import FailedFlag, ScalarArg, Workspace
from burnt.codegen.render.triton.tile_config import Limits
from burnt.errors import CompileError

__all__ = [
    "Choice",
    "Job",
    "Pool",
    "can_specialize_warps",
    "choices_of",
    "job_of",
    "jobs_of",
    "limits_of",
    "pool_of",
]

_SECONDS = 60.0
"""For a piece of work; a kernel takes 0.1 to 0.5 of them."""
_START = 120.0  # for a process to be there: it imports torch
_IDLE = 60.0  # after which a process ends
_MOST_WORKERS = 16


class Job(NamedTuple):
    """A function to compile.

    Args:
        text: the module that it is in.
        name: its name there.
        arguments: a dtype for each tensor (``"float32"``), None for each floating-point number, and integers;
            a list for a tuple of these.
        constants: block sizes and flags; a function that is a constant is a list of its name in `text`.
        options: of the compilation, such as num_warps.
    """

    text: str
    name: str
    arguments: list[Any]
    constants: dict[str, Any]
    options: dict[str, int]


def jobs_of(kernel: Kernel, config: AnyConfig) -> list[Job]:
    """The functions of a kernel that was planned before, for tensors whose addresses are aligned."""
    with PLANNING:
        Expr.recall(kernel.exprs)
        printed = print_kernel(kernel, config)
        Expr.forget()

    def described(argument: Any) -> str | int | None:
        if isinstance(argument, Buffer | Workspace):
            return str(argument.dtype).removeprefix("torch.")
        if isinstance(argument, FailedFlag):
            return "int64"
        return None if isinstance(argument, ScalarArg) else int(argument)

    sizes = printed.config
    return [
        Job(printed.text, f.name, [described(a) for a in f.arguments], f.constants, sizes.options)
        for f in printed.functions
    ]


def job_of(
    kernel: Any, arguments: Sequence[Any], constants: Mapping[str, Any], options: Mapping[str, int]
) -> Job:
    """A launch of a kernel that is written by hand, in a module that can be imported.

    Args:
        kernel: the Triton function.
        arguments: what it is launched with, by position: tensors, numbers, tuples, and constants among them,
            which may be functions of modules.
        constants: the others, by name.
        options: of the compilation, such as num_warps.
    """
    imports = [kernel]

    def described(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return [described(each) for each in argument]
        if isinstance(argument, torch.Tensor):
            return str(argument.dtype).removeprefix("torch.")
        return None if isinstance(argument, float) else argument

    def constant(value: Any) -> Any:
        if not hasattr(value, "fn"):
            return value
        imports.append(value)
        return [value.fn.__name__]

    fixed = {kernel.arg_names[n] for n in kernel.constexprs}
    given = dict(zip(kernel.arg_names, arguments, strict=False))
    known = {name: value for name, value in given.items() if name in fixed} | dict(constants)
    described_constants = {name: constant(value) for name, value in known.items()}
    return Job(
        "".join(f"from {f.fn.__module__} import {f.fn.__name__}\n" for f in imports),
        kernel.fn.__name__,
        [described(value) for name, value in given.items() if name not in fixed],
        described_constants,
        dict(options),
    )


def limits_of(device: torch.device) -> Limits:
    """What a CUDA or ROCm device has for programs."""
    found = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        # Four SIMD units with 512 registers for each lane; a wavefront takes half of them at the most.
        shared = found.shared_memory_per_block
        registers = 2048 * found.warp_size
        return Limits(found.multi_processor_count, registers, 256, shared, found.warp_size, is_rocm=True)
    # What a block has is what it may have without asking for more, as Triton does; 1 KiB is the driver's.
    shared = found.shared_memory_per_multiprocessor - 1024
    copies = found.major >= 9
    return Limits(
        found.multi_processor_count,
        shared_memory=shared,
        warp_size=found.warp_size,
        has_tma=copies,
        can_specialize_warps=copies and can_specialize_warps(_triton_version()),
    )


def can_specialize_warps(version: str) -> bool:
    """Whether a version of Triton compiles products whose warps are specialized.

    3.6 fails for all tiles of 128 rows whose terms are not split; 3.7 compiles all that are offered.

    >>> can_specialize_warps("3.6.0"), can_specialize_warps("3.7.1"), can_specialize_warps("4.0.0+git1234")
    (False, True, True)
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    return (major, minor) >= (3, 7)


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


class Choice(NamedTuple):
    """Other block sizes of one kernel.

    Args:
        kernel: its name.
        blocks: the sizes, as tables hold them.
        left_out: why they are not worth a try; None where they are.
        risky: compilers are known to fail with them, or to make wrong kernels.
    """

    kernel: str
    blocks: str
    left_out: str | None
    risky: bool


def choices_of(kernels: Sequence[Kernel], limits: Limits) -> list[Choice]:
    """Other block sizes than the picked ones.

    The nearest of all kernels come first, the risky ones of all last. Kernels that do little beside the
    largest one are left alone.
    """
    with PLANNING:
        forms = {kernel.name: structure_of(kernel) for kernel in kernels}
        Expr.forget()
    work = {name: form.work for name, form in forms.items()}
    large = [name for name in forms if 16 * work[name] >= max(work.values())]
    found = [
        [
            Choice(name, str(v), why_too_large(forms[name], v, limits), is_risky(v))
            for v in neighbouring_configs(forms[name], limits)[1:]
        ]
        for name in large
    ]
    made = [choice for turn in itertools.zip_longest(*found) for choice in turn if choice is not None]
    return sorted(made, key=lambda choice: choice.risky)


# --- the pool ---------------------------------------------------------------------------------------------


class _LostError(Exception):
    """A process ended, or did not answer in time."""


class Pool:
    """Processes that compile.

    They are started when there is work, and end when there has been none for a while or this process ends.

    Args:
        target: the backend, architecture and lanes of a warp, as `triton.backends.compiler.GPUTarget`.
        workers: how many at the most.
        seconds: for a piece of work. A process that takes longer is ended, as one that dies is replaced.
    """

    def __init__(
        self, target: tuple[str, int | str, int], workers: int | None = None, seconds: float = _SECONDS
    ) -> None:
        self.target, self.seconds = target, seconds
        self.workers = workers or min(max((os.cpu_count() or 2) - 1, 1), _MOST_WORKERS)
        self._work: queue.SimpleQueue[tuple[Sequence[Job], Future[None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0
        self._closed = False
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._asked_for: dict[str, tuple[Future[None], int]] = {}  # and how many wait for it

    def submit(self, jobs: Sequence[Job]) -> Future[None]:
        """Compile some functions; the future's exception is a `CompileError` where one cannot be."""
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._work.put((jobs, future))
            if self._work.qsize() > self._idle and self._threads < self.workers:
                self._threads += 1
                threading.Thread(target=self._serve, name="burnt compiles", daemon=True).start()
        return future

    def submit_once(self, jobs: Sequence[Job]) -> Future[None]:
        """Compile functions side by side, but none again that was asked for before.

        The future is done when all of them are. Where it is cancelled, so is what no other one waits for.
        """
        whole: Future[None] = Future()
        parts = []
        for job in jobs:
            key = json.dumps(job)
            part, waiting = self._asked_for.get(key, (None, 0))
            if part is None or part.cancelled() or (part.done() and part.exception() is not None):
                part, waiting = self.submit([job]), 0
            self._asked_for[key] = part, waiting + 1
            parts.append((key, part))
        left = [len(parts)]
        lock = threading.Lock()

        def ended(part: Future[None]) -> None:
            error = CompileError("a kernel was not compiled") if part.cancelled() else part.exception()
            with lock:
                left[0] -= 1
                if whole.done():
                    return
                if error is not None:
                    whole.set_exception(error)
                elif not left[0]:
                    whole.set_result(None)

        def given_up(whole: Future[None]) -> None:
            for key, part in parts if whole.cancelled() else ():
                known, waiting = self._asked_for[key]
                self._asked_for[key] = known, waiting - 1
                if known is part and waiting == 1:
                    part.cancel()

        whole.add_done_callback(given_up)
        for _, part in parts:
            part.add_done_callback(ended)
        return whole

    def close(self) -> None:
        """End the processes; what was not compiled yet is cancelled."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(queue.Empty):
                while True:
                    self._work.get_nowait()[1].cancel()
            for process in self._processes:
                process.kill()

    def _serve(self) -> None:
        """Hand work to a process of its own, until there is none for a while."""
        process: subprocess.Popen[bytes] | None = None
        while (taken := self._taken()) is not None:
            jobs, future = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if process is None:
                    process = self._started()
                error = self._asked(process, jobs)
            except (_LostError, OSError) as lost:
                error = str(lost)
                self._end(process)
                process = None
            if error is None:
                future.set_result(None)
            else:
                where = ", ".join(job.name for job in jobs)
                future.set_exception(CompileError("a kernel does not compile", where=where, found=error))
        self._end(process)

    def _taken(self) -> tuple[Sequence[Job], Future[None]] | None:
        with self._lock:
            self._idle += 1
        try:
            return self._work.get(timeout=_IDLE)
        except queue.Empty:
            with self._lock:
                if not self._work.empty() and not self._closed:
                    return self._work.get()
                self._threads -= 1
                return None
        finally:
            with self._lock:
                self._idle -= 1

    def _started(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[3])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # The process has no use for a device, and shall not find one.
        environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "burnt.codegen.runtime.triton_compile_pool", json.dumps(self.target)]
        with self._lock:
            if self._closed:
                raise _LostError("the pool was closed")
            process = subprocess.Popen(
                [*command, str(self.seconds)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard is the parent's matter
            )
            self._processes.add(process)
        try:
            self._answer(process, _START)
        except BaseException:
            self._end(process)
            raise
        return process

    def _asked(self, process: subprocess.Popen[bytes], jobs: Sequence[Job]) -> str | None:
        """What went wrong when a process compiled functions, or None."""
        assert process.stdin is not None
        process.stdin.write(json.dumps(jobs).encode() + b"\n")
        process.stdin.flush()
        answer: dict[str, str | None] = json.loads(self._answer(process, self.seconds + 10))
        return answer["error"]

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        assert process.stdout is not None
        end, text = time.monotonic() + seconds, b""
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        while not text.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1e3):
                raise _LostError(f"the compiler did not answer within {seconds:.0f} s")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                code = process.wait()
                hung = code == -signal.SIGALRM
                reason = f"took longer than {self.seconds:.0f} s" if hung else f"died with exit code {code}"
                raise _LostError(f"the compiler's process {reason}")
            text += part
        return text

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what was not read any more
                pipe.close()
        with self._lock:
            self._processes.discard(process)


@cache
def pool_of(index: int) -> Pool:
    """The pool of this process that compiles for a CUDA device."""
    from triton.runtime import driver

    with torch.cuda.device(index):
        target = driver.active.get_current_target()
    pool = Pool((target.backend, target.arch, target.warp_size))
    atexit.register(pool.close)
    return pool


# A fork has none of the threads.
os.register_at_fork(after_in_child=pool_of.cache_clear)


# --- a process of the pool --------------------------------------------------------------------------------


class _Driver:
    """As much of a driver as compiling asks for: the target. Nothing is launched."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


class _Memory:
    """Stands for a tensor whose address is aligned."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 0

    def ptr_range(self) -> int:
        return 0  # within what 32 bits reach, which Triton asks for on ROCm


def compile_job(job: Job) -> None:
    """Compile a function for the target of the driver that is active, into Triton's cache.

    Raises:
        Exception: whatever Triton raises where it cannot.
    """
    from burnt.codegen.runtime.triton_launch import load

    def argument(described: Any) -> Any:
        if isinstance(described, list):
            return tuple(map(argument, described))
        if isinstance(described, str):
            return _Memory(getattr(torch, described))
        return 1.5 if described is None else described

    space = load(job.text)
    function = space[job.name]
    fixed = {name: space[c[0]] if isinstance(c, list) else c for name, c in job.constants.items()}
    given = map(argument, job.arguments)
    # By name, since constants may stand between.
    arguments = {name: next(given) for name in function.arg_names if name not in fixed}
    function.warmup(grid=(1,), **arguments, **fixed, **job.options)


def main(target: str, seconds: str) -> None:
    """Answer each line of jobs with what went wrong; end where a line takes too long, or none comes."""
    # What a compiler prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    driver.set_active(_Driver(GPUTarget(*json.loads(target))))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
        error = None
        try:
            for job in json.loads(line):
                compile_job(Job(*job))
        except Exception as raised:  # of any kind: it is the answer
            error = f"{type(raised).__name__}: {raised}"[:500]
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
