"""Launches of hand-written Triton kernels: run here, or compiled ahead in other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

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
        from burnt.codegen.runtime.bound_launch import with_scratch

        with_scratch(lambda: self.kernel[self.grid](*self.arguments, **self.constants, **self.options))

    def bind(self) -> BoundLaunch:
        """Return it for other tensors of the same dtypes and other floats, launched with less overhead."""
        from burnt.codegen.runtime.bound_launch import BoundLaunch

        return BoundLaunch(*self)


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context in which kernels are launched on a tensor's device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def run_all(launches: Iterable[Launch], tensor: Tensor) -> None:
    """Launch kernels, in order, on a tensor's device."""
    with on_device_of(tensor):
        for launch in launches:
            launch()


def compile_all(launches: Iterable[Launch], device: torch.device) -> Future[None]:
    """Start compiling the kernels of launches in other processes."""
    from burnt.codegen.runtime.triton_compile_pool import job_of, pool_of

    jobs = [job_of(step.kernel, step.arguments, step.constants, step.options) for step in launches]
    return pool_of(torch.cuda.current_device() if device.index is None else device.index).submit(jobs)


def on_meta(*args: Any) -> list[Any]:
    """Return arguments with tensors on the meta device, where nothing is allocated for results."""
    return [
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta") if isinstance(a, Tensor) else a
        for a in args
    ]
