"""Run a function on meta tensors so that it leaves nothing behind: in a forked process, where that is safe.

User code caches tensors: in `functools.lru_cache`, in a global dictionary, on a class, in a closure. A meta
tensor there would be used by the training that follows, and fail. A forked process has copies of all of them,
and ends.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar, cast

import torch

_T = TypeVar("_T")
_CACHE: Any = type(functools.lru_cache(len))

_MOST_SECONDS = 120.0
"""How long a forked process may run before its function runs in this one instead."""

_is_isolated: ContextVar[bool] = ContextVar("is_isolated", default=False)


def run_isolated(function: Callable[[], _T]) -> _T:
    """Call a function in a copy of this process, and return what it returns or raise what it raises.

    The result or exception is pickled, so that of a tensor of a graph only the values come back. The function
    runs in this process instead where a fork is not safe or not possible: on macOS and Windows; after CUDA,
    another accelerator or `torch.distributed` has been started; and if the result cannot be pickled. Then
    `functools` caches that hold meta tensors are cleared; other places where code stores tensors are not
    known, and keep them. A call inside of another one runs as a part of that.
    """
    if _is_isolated.get():
        return function()
    if _can_fork() and (answer := _call_in_fork(function)) is not None:
        result, error, trace = answer
        if error is not None:
            raise error from _TraceOfProcess(trace)
        return cast(_T, result)
    token = _is_isolated.set(True)
    try:
        return function()
    finally:
        _is_isolated.reset(token)
        _clear_caches_of_meta_tensors()


def accelerator_in_use() -> torch.device | None:
    """Return this machine's accelerator; None if there is none or its runtime has not started yet."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return None
    runtime = torch.get_device_module(device)
    has_started = getattr(runtime, "is_initialized", runtime.is_available)
    return device if has_started() else None


def _can_fork() -> bool:
    distributed = torch.distributed
    is_distributed = distributed.is_available() and distributed.is_initialized()
    return sys.platform == "linux" and accelerator_in_use() is None and not is_distributed


class _TraceOfProcess(Exception):
    """Shows the traceback of an exception that was raised in a forked process."""


def _call_in_fork(function: Callable[[], Any]) -> tuple[Any, BaseException | None, str] | None:
    """Return a function's result in a forked process, or its exception with the traceback.

    None if there can be no such process, its result cannot be copied, or it takes too long: a lock that
    another thread held at the fork is never released in it. RuntimeError if it was killed.
    """
    for stream in (sys.stdout, sys.stderr):  # or both processes would write what is buffered
        if stream is not None:
            stream.flush()
    torch.empty(1, device="meta") + 1  # the first such op imports for seconds; each process would do it again
    read, write = os.pipe()
    try:
        with warnings.catch_warnings():
            # Of forks beside threads, from Python 3.12 on. The process needs no other thread.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
    except OSError:  # no memory
        os.close(read)
        os.close(write)
        return None
    if process == 0:
        _answer(function, write)
    os.close(write)
    status = 0
    try:
        with os.fdopen(read, "rb") as pipe:
            # The answer comes as a whole, at the end.
            if not select.select([pipe], [], [], _MOST_SECONDS)[0]:
                os.kill(process, signal.SIGKILL)
                return None
            answer = pipe.read()
    except BaseException:
        os.kill(process, signal.SIGKILL)
        raise
    finally:
        with suppress(ChildProcessError):  # where SIGCHLD is ignored
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status < 0:
        raise RuntimeError(f"the process that ran the model on meta tensors ended with signal {-status}")
    return pickle.loads(answer) if answer else None


def _answer(function: Callable[[], Any], write: int) -> NoReturn:
    """Write the pickled result or exception of a function to a pipe, or nothing; end this forked process."""
    _is_isolated.set(True)
    try:
        gc.freeze()  # finalizers of the other process's objects are that process's
        torch.set_num_threads(1)  # the threads of OpenMP were not forked, and would be waited for
        # With a GPU, the engine of autograd has threads from the first backward on, and then raises here.
        torch.zeros((), device="meta", requires_grad=True).backward()  # type: ignore[no-untyped-call]
        answer: tuple[Any, BaseException | None, str]
        try:
            answer = function(), None, ""
        except BaseException as error:
            answer = None, error, "".join(traceback.format_exception(error))
        data = pickle.dumps(answer)
        pickle.loads(data)
        with os.fdopen(write, "wb") as pipe:
            pipe.write(data)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit(0)


def _clear_caches_of_meta_tensors() -> None:
    """Clear each `functools.lru_cache` that holds a meta tensor, of whatever module."""
    for cache in [value for value in gc.get_objects() if type(value) is _CACHE]:
        if any(map(_holds_meta, gc.get_referents(cache))):
            cache.cache_clear()


def _holds_meta(value: Any, depth: int = 3) -> bool:
    """Whether a value is a meta tensor or a container of one."""
    if isinstance(value, torch.Tensor):
        return value.is_meta
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return depth > 0 and any(_holds_meta(part, depth - 1) for part in list(parts))
