"""Worker processes and threads of loaders, which work ahead of the training without changing what it gets.

Task `k` belongs to a fixed worker, each worker does its tasks in order, and results are handed out in order:
neither the number of workers nor their speed shows in the batches. Threads share the global random states
with the training: where what they call draws from these, they load one batch at a time, while it waits.

Why not torch's DataLoader inside: it reports a dead worker by a signal handler that raises wherever the main
thread is, in the middle of a step, and not at the batch that is missing; it cannot say what the worker was
reading; its iterators exclude each other when workers persist; and it opens a connection and shares a
descriptor for each tensor, in /dev/shm, which containers limit to 64 MB. Here a message is one file in memory
that holds the pickle and the buffers, tensors and arrays; only its descriptor goes through the socket. So
sending never waits for the other side, and nothing depends on the sender once a message is sent.

Processes are forked on Linux: a start takes milliseconds, and datasets need not be pickled (functions defined
in a notebook, open files, gigabytes in memory). The dangers of a fork are those of the threads that it does
not take along: a worker computes with one thread, so that it never waits for OpenMP's; CUDA must not be used
in it, which torch refuses with a message. Elsewhere, and after `multiprocessing.set_start_method`, they are
started as that says.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import itertools
import multiprocessing
import multiprocessing.context
import multiprocessing.process
import multiprocessing.util
import os
import pickle
import random
import re
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from burnt._user_code import user_line
from burnt.data.seeds import seed_global_states, seed_of
from burnt.errors import BurntError, DataError, UnsupportedError

_ALIGNMENT = 64


def pickled(value: Any) -> list[memoryview]:
    """Return the parts of a message that holds `value`: the pickle, then its tensors and arrays, uncopied."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return [file.getbuffer(), *(buffer.raw() for buffer in buffers)]


def send(connection: socket.socket, parts: Sequence[memoryview]) -> None:
    """Send a message; OSError if the other side is gone."""
    lengths = [part.nbytes for part in parts]
    offsets, size = _layout(lengths)
    descriptor = _open_memory()
    try:
        os.ftruncate(descriptor, size)
        head = memoryview(struct.pack(f"<{len(parts) + 1}Q", len(parts), *lengths))
        for offset, part in zip([0, *offsets], [head, *parts], strict=True):
            while part.nbytes:  # Linux writes at most 2 GiB at once
                written = os.pwrite(descriptor, part, offset)
                part, offset = part[written:], offset + written
        socket.send_fds(connection, [b"m"], [descriptor])
    finally:
        os.close(descriptor)


def receive(connection: socket.socket) -> memoryview:
    """Wait for a message, and return its memory; EOFError if the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    except ConnectionResetError:  # it is gone, and has left messages unread
        data = b""
    if not data:
        raise EOFError
    if not descriptors:
        raise OSError("a batch of a worker could not be opened: too many open files; see ulimit -n")
    try:
        size = os.fstat(descriptors[0]).st_size
        # Unlike an mmap of Python, it keeps no descriptor open as long as the batch lives.
        memory = torch.from_file(f"/dev/fd/{descriptors[0]}", shared=True, size=size, dtype=torch.uint8)
    finally:
        os.close(descriptors[0])
    return memoryview(memory.numpy())  # type: ignore[arg-type]


def unpickled(view: memoryview) -> Any:
    """Return the value of a message, whose tensors lie in the message's memory."""
    (count,) = struct.unpack_from("<Q", view)
    lengths = struct.unpack_from(f"<{count}Q", view, 8)
    offsets, _ = _layout(lengths)
    first, *buffers = (view[at : at + length] for at, length in zip(offsets, lengths, strict=True))
    return pickle.loads(first, buffers=buffers)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if (
            type(value) is Tensor
            and value.device.type == "cpu"
            and value.layout == torch.strided
            and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg())
        ):
            dense = value if value.is_contiguous() else value.clone()  # a clone keeps channels_last
            elements = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
            return _tensor, (
                pickle.PickleBuffer(elements.numpy()),  # type: ignore[arg-type]
                value.dtype,
                tuple(dense.shape),
                dense.stride(),
            )
        return NotImplemented  # as torch and others pickle it: copied into the pickle


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype)
    storage = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


def _layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return where the parts begin, after the table of their lengths, and the size of the whole."""
    padded = [-(-length // _ALIGNMENT) * _ALIGNMENT for length in (8 * (len(lengths) + 1), *lengths)]
    *offsets, size = itertools.accumulate(padded)
    return offsets, size


def _open_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("burnt-loader")
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())


Cell = Any
"""A list or array of one integer: the index of the item that is being read, -1 for none."""

_SECONDS_TO_END = 2.0


@contextlib.contextmanager
def naming(place: str | Callable[[], str], what: str = "an item could not be loaded") -> Iterator[None]:
    """Name the place of an error: in the origin of those of burnt, else by a DataError of this one."""
    try:
        yield
    except BurntError as error:
        error.origin += (place if isinstance(place, str) else place(),)
        raise
    except Exception as error:  # of a dataset or a function of the user: anything
        where = place if isinstance(place, str) else place()
        raise user_error(what, where, error) from error


def user_error(what: str, where: str, error: Exception) -> DataError:
    """Return the DataError for an error of the user's code, with the line that raised it."""
    line = user_line(error)
    found = f"{type(error).__name__}: {error}"
    return DataError(what, where=where, found=found, origin=() if line is None else (line,))


_DRAWS = (
    "the threads of a loader draw from the global random states of torch, NumPy or Python, which they share "
    "with the training. From now on they load one batch at a time, while the training waits, so that batches "
    "are repeated exactly; those that were loaded before this warning may not be. Draw from the generator "
    "that a transform gets, or use worker processes"
)


class Target(Protocol):
    """What workers do. Without worker processes, it is called in this process."""

    def __call__(self, task: Any, cell: Cell) -> Any:
        """Return the result of a task; keep in `cell` the index of the item that is being read."""
        ...

    def key(self, task: Any) -> tuple[int, ...]:
        """Return the numbers that seed the global random states of a worker process for a task."""
        ...

    def describe(self, task: Any, index: int) -> str:
        """Return what is read for a task, and which item of it."""
        ...


class WorkerPool:
    """The workers of a loader, started when they are first needed; `target` is what they do.

    `workers` is a number of processes, or text such as ``"4 threads"`` or ``"2 processes"``; 0 for none.
    `prefetch` is how many tasks each is ahead; None is 2.
    """

    def __init__(self, target: Target, workers: int | str, prefetch: int | None) -> None:
        self.target = target
        self.count, self.kind = _parse(workers)
        if prefetch is not None and (prefetch < 1 or not self.count):
            raise DataError(
                "prefetch= is the number of batches that each worker is ahead",
                expected="at least 1, with workers=1 or more",
                found=f"prefetch={prefetch}, workers={workers!r}",
                hint='workers="1 thread" loads ahead in this process' if not self.count else None,
            )
        if self.count and self.kind == "processes" and not hasattr(socket, "send_fds"):
            raise UnsupportedError(
                "worker processes need a POSIX system", hint=f'use threads: workers="{self.count} threads"'
            )
        self.ahead = self.count * (prefetch or 2)
        self._started: _Started | None = None
        # Whether loading draws from the global random states, which threads share. None: the next batch is
        # loaded alone, to see that. Later, a thread sees a change of these that may be of the training, too.
        self._draws: bool | None = None if self.kind == "threads" else False
        self._suspicions = 0
        self._changes = [0]
        self._next_check = 1

    def run(self, tasks: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        """Iterate over the results of tasks in their order."""
        if not self.count:
            cell = [-1]
            for _, task in tasks:
                yield self.target(task, cell)
            return
        workers = self._workers()
        left = iter(tasks)
        pending: deque[Any] = deque()

        def submit(count: int) -> None:
            first = itertools.islice(left, count)
            pending.extend(workers[number % self.count].submit(task) for number, task in first)

        try:
            while True:
                is_observed = self._draws is None and not pending
                before = _global_states(True) if is_observed else None
                if self._draws is False:
                    submit(self.ahead - len(pending))
                elif not pending:
                    submit(1)
                if not pending:
                    return
                result = pending.popleft().result()
                if is_observed:
                    # Two batches, since the threads of another loader may draw in the meantime.
                    self._suspicions = self._suspicions + 1 if _global_states(True) != before else 0
                    self._draws = {0: False, 1: None}.get(self._suspicions, True)
                    if self._draws:
                        warnings.warn(_DRAWS, stacklevel=2)
                elif self._draws is False and self._changes[0] >= self._next_check:
                    self._draws, self._next_check = None, 2 * self._changes[0]
                if self._draws is False:
                    submit(self.ahead - len(pending))
                yield result
        finally:
            for future in pending:
                future.cancel()

    def close(self) -> None:
        """End the workers; another `run` starts new ones."""
        if self._started is not None:
            self._started.close()
            self._started = None

    def _workers(self) -> Sequence[Any]:
        # A process that was forked from this one needs workers of its own.
        if self._started is None or self._started.is_closed or self._started.process != os.getpid():
            self._started = _Started(self)
        return self._started.workers

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_started": None}


class _Started:
    """Running workers; they end with this object, at `close`, or with the process."""

    def __init__(self, pool: WorkerPool) -> None:
        self.process = os.getpid()
        self.workers: list[Any] = []
        # Runs before multiprocessing's own, which waits for processes that wait for this one to hang up.
        self.close = multiprocessing.util.Finalize(self, _end, (self.workers,), exitpriority=100)
        for number in range(pool.count):
            self.workers.append(
                _Worker(pool.target, self.close, number)
                if pool.kind == "processes"
                else _Thread(pool.target, number, pool._changes)
            )

    @property
    def is_closed(self) -> bool:
        return not self.close.still_active()


def _end(workers: Sequence[Any]) -> None:
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + _SECONDS_TO_END
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0.0))


class _Thread:
    def __init__(self, target: Target, number: int, changes: list[int]) -> None:
        self._target = target
        self._changes = changes
        self._executor = ThreadPoolExecutor(1, f"burnt-loader-{number}")

    def submit(self, task: Any) -> Any:
        return self._executor.submit(self._load, task)

    def _load(self, task: Any) -> Any:
        before = _global_states()
        result = self._target(task, [-1])
        self._changes[0] += _global_states() != before
        return result

    def hang_up(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def join(self, seconds: float) -> None:
        """Nothing: a thread ends after the item that it is reading."""


class _Worker:
    """A worker process, and the results that are expected of it, oldest first."""

    def __init__(self, target: Target, close_all: multiprocessing.util.Finalize, number: int) -> None:
        context = _context()
        self._target = target
        self._close_all = close_all
        self._cell = context.RawArray(ctypes.c_int64, [-1])
        self._pending: deque[_Future] = deque()
        self._connection, theirs = socket.socketpair()
        _connections.add(self._connection)
        self._process: multiprocessing.process.BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, target, self._cell), daemon=True, name=f"burnt-loader-{number}"
        )
        try:
            with warnings.catch_warnings():
                # From Python 3.12 on, of forks next to threads; above is why this one is safe.
                warnings.simplefilter("ignore", DeprecationWarning)
                with _blocked_signals():
                    self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._connection.close()
            raise DataError(
                "the dataset or a function of the loader cannot be sent to a worker process",
                found=f"{type(error).__name__}: {error}",
                hint="define functions at the top level of a module, or use threads: workers='4 threads'",
            ) from error
        finally:
            theirs.close()

    def submit(self, task: Any) -> _Future:
        future = _Future(self, task)
        with self._in_step():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # raised with its result
                send(self._connection, pickled(task))
            self._pending.append(future)
        return future

    def receive(self) -> None:
        """Wait for the next result."""
        if self._connection.fileno() == -1:
            raise DataError("the workers of the loader were closed while a batch was awaited")
        with self._in_step():
            try:
                message = receive(self._connection)
            except EOFError:
                raise self._death() from None
            future = self._pending.popleft()
        try:
            future.set(*unpickled(message))
        except Exception as error:  # of a class of the user
            place = self._target.describe(future.task, -1)
            unreadable = DataError(
                "a batch of a worker process cannot be unpickled",
                where=place,
                found=f"{type(error).__name__}: {error}",
            )
            future.set(None, unreadable, "".join(traceback.format_exception(error)))

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        """End all workers if a message was exchanged and not counted, since all later ones would be mistaken.

        Ctrl-C in a notebook may come between the two.
        """
        try:
            yield
        except BaseException:
            self._close_all()
            raise

    def hang_up(self) -> None:
        self._connection.close()

    def join(self, seconds: float) -> None:
        self._process.join(seconds)
        if self._process.is_alive():  # in the middle of a long item
            self._process.kill()
            self._process.join()

    def _death(self) -> DataError:
        self._process.join()
        code, task = self._process.exitcode or 0, self._pending[0].task
        ending = f"ended with exit code {code}"
        if code < 0:
            ending = f"killed by {signal.Signals(-code).name}"
        return DataError(
            "a worker process of the loader died",
            where=self._target.describe(task, self._cell[0]),
            found=ending,
            hint="the system kills processes when memory runs out (see dmesg): use fewer workers or a "
            "smaller prefetch=" if code == -9 else "workers=0 reads the same item in this process",
        )  # fmt: skip


class _Future:
    """A result to come, as of concurrent.futures."""

    def __init__(self, worker: _Worker, task: Any) -> None:
        self.task = task
        self._worker = worker
        self._outcome: tuple[Any, Any, str] | None = None

    def set(self, value: Any, error: BaseException | None, text: str) -> None:
        self._outcome = (value, error, text)

    def result(self) -> Any:
        while self._outcome is None:
            self._worker.receive()
        value, error, text = self._outcome
        if error is not None:
            raise error from _WorkerTraceback(text)
        return value

    def cancel(self) -> None:
        """Nothing: the worker finishes it, and what it sends is dropped when it comes."""


class _WorkerTraceback(Exception):
    """The traceback of an exception in a worker process."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


_connections = weakref.WeakSet[socket.socket]()
"""This process's ends of the sockets to its workers."""


_IGNORED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What worker processes ignore."""


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block the signals that a worker process ignores, since one may come before it does so."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: socket.socket, target: Target, cell: Cell) -> None:
    """Do the tasks that come, until the other side hangs up: the main function of a worker process."""
    # In a fork. As long as it held one, another worker would not notice the end of this process's parent.
    for end in list(_connections):
        end.close()
    # They reach all processes of a terminal or job. The training finishes its step, for which it may need a
    # batch, and its end is the end of its workers.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    torch.set_num_threads(1)
    gc.freeze()  # a collection would write to, and so copy, all memory that is shared with the parent
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = unpickled(receive(connection))
            cell[0] = -1
            try:
                seed_global_states(seed_of(*target.key(task)))
                parts = pickled((target(task, cell), None, ""))
            except Exception as error:  # of the user's dataset, or of a batch that cannot be pickled
                parts = _pickled_error(error, target.describe(task, -1))
            send(connection, parts)


def _pickled_error(error: Exception, place: str) -> list[memoryview]:
    """Return a message with the error, or with one of its text if that would not survive the way."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, BurntError):
        # A user's subclass may have attributes that cannot be pickled, or arguments that unpickling lacks.
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(error))
            return pickled((None, error, text))
    substitute = DataError(
        "a worker process could not return a batch", where=place, found=f"{type(error).__name__}: {error}"
    )
    return pickled((None, substitute, text))


def _global_states(is_exact: bool = False) -> tuple[Any, ...]:
    """Return something that differs after Python's, NumPy's or torch's global random state was drawn from.

    NumPy's state has a normal number that was drawn with the one before it only if `is_exact`.
    """
    numpy: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if isinstance(numpy, np.random.MT19937):  # 624 words and a position: `state` takes 170 microseconds
        of_numpy: Any = ctypes.string_at(numpy.ctypes.state_address, 2500)
    else:
        of_numpy = repr(numpy.state)
    if is_exact:
        of_numpy = of_numpy, np.random.get_state(legacy=False)["has_gauss"]
    return random.getstate(), of_numpy, torch.default_generator.get_state().numpy().tobytes()


def _context() -> multiprocessing.context.BaseContext:
    chosen = multiprocessing.get_start_method(allow_none=True)
    return multiprocessing.get_context(chosen or ("fork" if sys.platform == "linux" else "spawn"))


def _parse(workers: int | str) -> tuple[int, str]:
    if match := re.fullmatch(r"\s*([0-9]+)\s*(process|thread)(?:es|s)?\s*", str(workers)):
        return int(match[1]), {"process": "processes", "thread": "threads"}[match[2]]
    if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 0:
        return workers, "processes"
    raise DataError(
        "workers= is a number of processes or threads",
        expected='such as 4, "4 processes" or "4 threads"; 0 for none',
        found=repr(workers),
    )
