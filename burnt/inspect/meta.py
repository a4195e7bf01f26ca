"""Run a model on meta tensors, which have shapes but no memory, and record each layer.

The model is not changed: a copy runs whose parameters, buffers and other tensors are replaced by meta
tensors. A model that cannot be copied runs itself, with its tensors replaced temporarily.

User code caches tensors: in `functools.lru_cache`, in a global dictionary, on a class, in a closure. A meta
tensor there would be used by the training that follows, and fail. So a function runs in a forked process,
where that is safe, which has copies of all of them, and ends.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import random
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.overrides import TorchFunctionMode

from burnt._torch import compiler_is_loaded
from burnt.device import random_states_of
from burnt.inspect.call_trace import Call, CallTrace
from burnt.inspect.crossings import CrossingTrace
from burnt.inspect.specs import TensorSpec, is_list_of_tensors, map_tensors, named_tensors

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
            # Of forks next to threads, from Python 3.12 on. The process needs no other thread.
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
            # The answer comes as a whole, at the end. `select.select` refuses descriptors from 1024 on.
            waiting = select.poll()
            waiting.register(pipe, select.POLLIN)
            if not waiting.poll(1000 * _MOST_SECONDS):
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


def meta_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor of the same class, shape, strides and dtype.

    Quantized and nested tensors cannot be meta: they are copied, and layers that use them stay unchecked.
    """
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        kind: Any = type(tensor)
        lazy: torch.Tensor = kind(requires_grad=tensor.requires_grad, device="meta", dtype=tensor.dtype)
        return lazy
    source = tensor.detach()
    if source.is_quantized or is_list_of_tensors(source):
        return source.clone()
    if source.layout == torch.strided:
        meta = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device="meta")
    else:
        meta = torch.empty_like(source, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(meta, requires_grad=tensor.requires_grad)
    return meta.requires_grad_(tensor.requires_grad)


def meta_inputs(inputs: Any, batch: tuple[int, int] | None = None) -> Any:
    """Replace the tensors and specs in nested inputs by meta tensors.

    With ``batch=(old, new)``, each tensor whose leading axis has size ``old`` gets ``new``.
    """

    def resized(value: torch.Tensor | TensorSpec) -> torch.Tensor:
        shape = list(value.shape)
        if batch is not None and shape and shape[0] == batch[0]:
            shape[0] = batch[1]
        if isinstance(value, TensorSpec):
            return torch.empty(shape, dtype=value.dtype, device="meta")
        if shape == list(value.shape) or value.layout != torch.strided:
            return meta_copy(value)
        # The memory order of the axes is the example's, since it decides what .view accepts.
        strides = value.stride()
        order = sorted(range(value.dim()), key=lambda axis: -strides[axis])
        tensor = torch.empty_permuted(shape, order, dtype=value.dtype, device="meta")
        return tensor.requires_grad_(value.requires_grad)

    return map_tensors(inputs, resized)


def batch_size_of(tensors: list[Any]) -> int | None:
    """Return the leading size of the first tensor that has axes."""
    return next((tensor.shape[0] for tensor in tensors if len(tensor.shape)), None)


class MetaModel:
    """A copy of a model that runs on meta tensors; `trace` has its last module calls, for error messages."""

    def __init__(self, model: nn.Module, trace_class: type[CallTrace] = CallTrace) -> None:
        self._copies: dict[int, Any] | None = None  # of the tensors of a model that cannot be copied, by id
        try:
            self.model = copy_to_meta(model)
        except Exception:
            # Attributes may hold objects that cannot be copied, such as locks or files, with any exception.
            self.model = model
            self._copies = {id(t): meta_copy(t) for t in (*model.parameters(), *model.buffers())}
        self.trace = trace_class(self.model)
        self.crossings = CrossingTrace(model, self.model)

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The meta parameters by path; lazy ones get their shape in the first run."""
        named = self.model.named_parameters()
        return {name: p if self._copies is None else self._copies[id(p)] for name, p in named}

    def run(self, call: Call | None, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the model, or ``call(model, *inputs)``, on meta inputs.

        A shape that does not fit raises ShapeError, arguments that a ``forward`` does not take ArgumentError;
        the model's other exceptions pass.
        """
        self.trace.clear()
        self.trace.given = _named_inputs("input" if call is None else "batch", inputs, kwargs)
        target = self.model if call is None else functools.partial(call, self.model)
        with self._tensors_replaced():
            try:
                with self.crossings.following(), self.trace.following():
                    return target(*inputs, **kwargs)
            except Exception as error:
                mismatch = self.trace.shape_error(error, call) or self.trace.argument_error(error)
                if mismatch is None or mismatch is error:
                    raise
                raise mismatch from error

    @contextmanager
    def _tensors_replaced(self) -> Iterator[None]:
        """Context that replaces the tensors of a model that could not be copied by meta tensors."""
        if self._copies is None:
            yield
            return
        saved = [(module, dict(vars(module))) for module in self.model.modules()]
        memo = dict(self._copies)
        try:
            for module, attributes in saved:
                for name, value in attributes.items():
                    if name != "_modules" and isinstance(value, (torch.Tensor, list, tuple, dict)):
                        vars(module)[name] = map_tensors(value, meta_copy, memo)
            yield
        finally:
            for module, attributes in saved:
                vars(module).clear()
                vars(module).update(attributes)


def _named_inputs(name: str, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors in the arguments of a call by name: ``batch.x``, or ``batch0.x`` of several."""
    names = [name] if len(inputs) == 1 else [f"{name}{i}" for i in range(len(inputs))]
    arguments = [*zip(names, inputs, strict=True), *kwargs.items()]
    return {path: t for root, value in arguments for path, t in named_tensors(value, root).items()}


class _CopiesAreMeta(TorchFunctionMode):
    """Makes copy.deepcopy return meta tensors, also for tensors that are not parameters or buffers."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.__deepcopy__, torch.Tensor.clone):
            tensor = args[0]
            new = meta_copy(tensor)
            if func is torch.Tensor.__deepcopy__:
                args[1][id(tensor)] = new
            return new
        return func(*args, **(kwargs or {}))


def copy_to_meta(model: nn.Module) -> nn.Module:
    """Deep-copy a model with meta tensors; shared tensors stay shared."""
    tensors = [*model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {id(tensor): meta_copy(tensor) for tensor in tensors}
    with _CopiesAreMeta():
        return copy.deepcopy(model, memo)


@contextmanager
def preserved_random_states() -> Iterator[None]:
    """Context that restores the global random generators of Python, NumPy and torch, on every device."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        stack.callback(random.setstate, python_state)
        stack.callback(np.random.set_state, numpy_state)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        device = accelerator_in_use()
        if device is not None and random_states_of(device.type) is not None:
            devices = range(torch.accelerator.device_count())
            stack.enter_context(torch.random.fork_rng(devices, device_type=device.type))
        yield


@contextmanager
def meta_context() -> Iterator[None]:
    """Context with meta as the default device, without compilation; restores random states."""
    with preserved_random_states(), torch.inference_mode(False), uncompiled(), torch.device("meta"):
        yield


def uncompiled() -> Any:
    """Return a context in which modules and functions from `torch.compile` run as the original ones."""
    return torch.compiler.set_stance("force_eager") if compiler_is_loaded() else nullcontext()
