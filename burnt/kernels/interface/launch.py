"""Launches of hand-written Triton kernels: run here, or compiled ahead in other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from burnt import _torch
from burnt.codegen.runtime.host_code import HostCode

if TYPE_CHECKING:
    from burnt.codegen.runtime.bound_launch import BoundLaunch


class Launch(NamedTuple):
    """A launch of a Triton function; ``tl.constexpr`` values and compile options are by name."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, Any]

    def __call__(self) -> None:
        """Launch the kernel."""
        self.kernel[self.grid](*self.arguments, **self.constants, **self.options)

    def bind(self) -> BoundLaunch:
        """Return it for other tensors of the same dtypes and other floats, launched with less overhead."""
        from burnt.codegen.runtime.bound_launch import BoundLaunch

        return BoundLaunch(*self)


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context in which kernels are launched on a tensor's device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def run_all(launches: Iterable[Launch], tensor: Tensor) -> None:
    """Launch kernels, in order, on a tensor's device."""
    from burnt.codegen.runtime.bound_launch import with_scratch

    with on_device_of(tensor):
        for launch in launches:
            with_scratch(launch.__call__)


def compile_all(launches: Iterable[Launch], device: torch.device) -> Future[None]:
    """Start compiling the kernels of launches in other processes."""
    from burnt.codegen.runtime.triton_compile_pool import job_of, pool_of

    jobs = [job_of(step.kernel, step.arguments, step.constants, step.options) for step in launches]
    return pool_of(torch.cuda.current_device() if device.index is None else device.index).submit(jobs)


def bind_launches(
    build: Callable[..., tuple[Iterable[Launch], Any]], args: Sequence[Any], device: torch.device
) -> Callable[..., Any] | None:
    """Generate a function of arguments like `args`, which runs the launches that `build` returns.

    `build` takes the arguments on the meta device, and returns launches and the function's result: a tensor,
    or a tuple of tensors and None. It runs once, and for each call with tensors that are not aligned to 16
    bytes. The function is for the same values of all arguments but tensors. None where `build` does more with
    tensors than to allocate and view them.
    """
    from burnt.codegen.runtime.bound_launch import IS_INTERPRETED, add_launch, varying

    code = HostCode([f"x{i}" for i in range(len(args))], device)
    meta_args = on_meta(*args)
    with _Allocations() as allocations:
        launches, result = build(*meta_args)
    if not allocations.is_all:
        return None
    owners = [(x, a) for x, a in zip(code.parameters, meta_args, strict=True) if isinstance(a, Tensor)]

    def run(*args: Any) -> Any:
        launches, result = build(*args)
        run_all(launches, next(a for a in args if isinstance(a, Tensor)))
        return result

    addresses = " | ".join([code.address(x) for x, _ in owners])
    code.lines += [f"if ({addresses}) & 15:", f"    return {code.call(run, *code.parameters)}"]
    for i, tensor in enumerate(allocations.found):
        owners.append((f"y{i}", tensor))
        code.empty(f"y{i}", tensor.shape, tensor.stride(), tensor.dtype)

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return f"({''.join(f'{text(v)}, ' for v in value)})"
        if not isinstance(value, Tensor):
            return code.name(value)
        variable, owner = next((v, o) for v, o in owners if _torch.share_memory(value, o))
        layout, whole = ((t.dtype, tuple(t.shape), t.stride(), t.storage_offset()) for t in (value, owner))
        return variable if layout == whole else code.call(_view, variable, *map(code.name, layout))

    def argument(value: Any) -> str:
        if IS_INTERPRETED or not isinstance(value, Tensor):
            return text(value)
        variable = next(v for v, owner in owners if _torch.share_memory(value, owner))
        offset = value.storage_offset() * value.element_size()
        return code.address(variable) + (f" + {offset}" if offset else "")

    for launch in launches:
        arguments = [argument(value) for value in varying(launch.arguments)]
        add_launch(code, launch.bind(), arguments)
    return code.build(text(result))


class _Allocations(TorchDispatchMode):
    """Notes the tensors that are allocated, and whether all other operations are views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Tensor] = []
        self.is_all = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATE:
            self.found.append(result)
        elif not func.is_view:
            self.is_all = False
        return result


_ATEN = torch.ops.aten
_ALLOCATE = _ATEN.empty, _ATEN.new_empty, _ATEN.empty_strided, _ATEN.new_empty_strided, _ATEN.empty_like


def _view(
    tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Tensor:
    """Return a view that begins at an offset from a tensor's first element."""
    return tensor.view(dtype).as_strided(shape, strides, tensor.storage_offset() + offset)


def on_meta(*args: Any) -> list[Any]:
    """Return arguments with tensors on the meta device, where nothing is allocated for results."""
    return [
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta") if isinstance(a, Tensor) else a
        for a in args
    ]
