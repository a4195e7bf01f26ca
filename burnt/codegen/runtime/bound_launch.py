"""Launch a Triton function by its compiled C launcher, with all arguments bound but those that vary.

Triton's own launch takes 8 microseconds and more: it specializes each argument on its type, value and
alignment, looks the compiled kernel up, and prepares metadata for hooks. A `BoundLaunch` takes one.
"""

from __future__ import annotations

import contextvars
import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime import driver

from burnt import _torch
from burnt.codegen.runtime.host_code import HostCode

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's interpreter runs functions: launches take tensors instead of their addresses then."""


class Pointer(NamedTuple):
    """Stands for a tensor argument: its dtype, and the bytes from its first to its last element."""

    dtype: torch.dtype
    extent: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Pointer:
        """Return what stands for a tensor."""
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return cls(tensor.dtype, (last + 1) * tensor.element_size())


class _Address:
    """What Triton asks of a tensor argument when it compiles."""

    def __init__(self, pointer: Pointer, address: int) -> None:
        self.dtype, self.extent, self.address = *pointer, address

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return self.extent


class BoundLaunch:
    """A launch of a Triton function on one device, as a function of the arguments that vary.

    Tensors (or a `Pointer` for each) and floats vary, in the order of `arguments`, in tuples or not. Other
    arguments, constants and the grid are fixed. The kernel is compiled at the first call, once for each
    alignment of the addresses. Triton's launch hooks are called.
    """

    __slots__ = ("arguments", "call", "compiled", "constants", "function", "grid", "options", "varying")

    def __init__(
        self,
        function: Any,
        grid: Sequence[int],
        arguments: tuple[Any, ...],
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.function, self.grid = function, (*grid, 1, 1)[:3]
        self.constants, self.options = constants, options
        self.varying = [Pointer.of(v) if isinstance(v, torch.Tensor) else v for v in varying(arguments)]
        self.arguments = _slots(arguments)
        self.compiled: dict[tuple[int, ...], Any] = {}  # by the addresses' remainders of 16
        # Takes the stream and what varies: addresses and numbers. The device must be the current one.
        self.call: Callable[..., None] = self._interpret if IS_INTERPRETED else self._launch

    def _interpret(self, stream: int, *values: Any) -> None:
        self.function[self.grid](*_fill(self.arguments, iter(values)), **self.constants)

    def _launch(self, stream: int, *values: Any) -> None:
        """Launch by Triton's runner, whatever the alignment and hooks; compile first where needed."""
        pairs = list(zip(self.varying, values, strict=True))
        alignment = tuple(value & 15 for kind, value in pairs if isinstance(kind, Pointer))
        runner = self.compiled.get(alignment)
        if runner is None:
            examples = [_Address(kind, value) if isinstance(kind, Pointer) else kind for kind, value in pairs]
            arguments = _fill(self.arguments, iter(examples))
            kernel = self.function.warmup(*arguments, grid=self.grid, **self.constants, **self.options)
            runner = self.compiled[alignment] = kernel[self.grid]
            if not any(alignment) and not getattr(kernel.metadata, "profile_scratch_size", 0):
                self.call = self._generate(kernel)
        arguments = self._all_arguments(values)
        with_scratch(lambda: runner(*arguments, stream=stream))

    def _all_arguments(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments by position, constants included."""
        given = _fill(self.arguments, iter(values))
        return *given, *[self.constants[name] for name in self.function.arg_names[len(given) :]]

    def _generate(self, kernel: Any) -> Callable[..., None]:
        """Generate the function that calls the C launcher of a kernel compiled for aligned addresses.

        The C launcher's arguments depend on Triton's version and backend. Triton's Python launcher knows
        them: it is run once with objects in place of what varies, and a function that records its call.
        """
        values = [object() for _ in self.varying]
        stream, workspace = object(), object()
        parameters = [f"v{i}" for i in range(len(values))]
        code = HostCode(["stream", *parameters])
        for value, parameter in zip([stream, *values], code.parameters, strict=True):
            code.alias(value, parameter)

        def allocate(size: int, alignment: int, stream: object) -> object:
            device = code.name(driver.active.get_current_device())
            code.alias(workspace, code.call(scratch, str(size), str(alignment), "stream", device))
            return workspace

        recorded: list[Any] = []
        launcher: Any = copy.copy(kernel.run)
        launcher.launch = lambda *arguments: recorded.extend(arguments)
        given = kernel.function, kernel.packed_metadata, None, None, None, *self._all_arguments(values)
        with_scratch(lambda: launcher(*self.grid, stream, *given), allocate)
        pointers = [p for p, kind in zip(parameters, self.varying, strict=True) if isinstance(kind, Pointer)]
        knobs = code.name(triton.knobs.runtime)
        hooks = [f"{knobs}.launch_{when}_hook" for when in ("enter", "exit")]  # chains, which may be empty
        special = [f"getattr({hook}, 'calls', {hook})" for hook in hooks]
        special += [f"({' | '.join(pointers)}) & 15"] if pointers else []
        code.lines = [
            f"if {' or '.join(special)}:",
            f"    {code.call(self._launch, *code.parameters)}",
            "else:",
            f"    {code.call(kernel.run.launch, *map(code.name, _without_names(recorded)))}",
        ]
        return code.build()


def add_launch(code: HostCode, bound: BoundLaunch, arguments: Sequence[str]) -> None:
    """Append a launch on the current stream of the device of `code`, which becomes the current device."""
    stream = "0"
    if not IS_INTERPRETED:
        index = code.name(code.device.index)
        again = f"    return {code.call(_run_on_device, 'run', index, *code.parameters)}"
        code.first[f"if {code.call(_torch.current_device())} != {index}:"] = None
        code.first[again] = None
        code.first[f"stream = {code.call(driver.active.get_current_stream, index)}"] = None
        stream = "stream"
    code.lines.append(f"{code.name(bound)}.call({', '.join([stream, *arguments])})")


def _run_on_device(function: Callable[..., Any], device: int, *arguments: Any) -> Any:
    with torch.cuda.device(device):
        return function(*arguments)


_VARIES = object()


def varying(arguments: Iterable[Any]) -> list[Any]:
    """Return the arguments that vary, in order, of tuples too."""
    found: list[Any] = []
    for a in arguments:
        if _varies(a):
            found.append(a)
        elif isinstance(a, tuple):
            found += varying(a)
    return found


def _varies(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor | Pointer | float)


def _slots(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace what varies by `_VARIES`."""
    parts = [_VARIES if _varies(a) else _slots(a) if isinstance(a, tuple) else a for a in arguments]
    return _rebuild(arguments, parts)


def _fill(arguments: tuple[Any, ...], values: Iterator[Any]) -> tuple[Any, ...]:
    """Replace `_VARIES` by values, in order."""
    return _rebuild(
        arguments,
        (
            _fill(a, values) if isinstance(a, tuple) else next(values) if a is _VARIES else a
            for a in arguments
        ),
    )


def _without_names(arguments: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(_without_names(a) if isinstance(a, tuple) else a for a in arguments)


def _rebuild(arguments: tuple[Any, ...], parts: Iterable[Any]) -> tuple[Any, ...]:
    """Return a tuple of the same class, which kernels know the fields by, with other parts."""
    return type(arguments)(*parts) if hasattr(arguments, "_fields") else tuple(parts)


_workspaces: dict[tuple[Any, int], torch.Tensor] = {}
_PER_THREAD_STREAM = 2


def scratch(size: int, alignment: int, stream: int, device: int | None = None) -> torch.Tensor:
    """Return memory for a kernel's tensor descriptors, on the current device and stream, like the launch.

    Kernels on one stream run one after another, and share it. A graph's kernels have their own: the graph may
    be replayed on any stream.
    """
    if device is None:
        device = driver.active.get_current_device()
    found = _workspaces.get((device, stream))
    is_shared = stream != _PER_THREAD_STREAM and not torch.cuda.is_current_stream_capturing()
    if found is None or not is_shared or found.numel() < size:
        found = torch.empty(size, dtype=torch.int8, device=driver.active.get_active_torch_device())
        if is_shared:
            _workspaces[device, stream] = found
    return found


def with_scratch(launch: Callable[[], object], allocate: Callable[..., object] = scratch) -> None:
    """Launch a kernel that may need memory for tensor descriptors."""
    # Triton's allocator is a context variable, which the user's code may have set: use a copy.
    context = contextvars.copy_context()
    context.run(triton.set_allocator, allocate)
    context.run(launch)
