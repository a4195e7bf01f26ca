"""The interface of a target: `Target` says what its kernels can do, `BuiltKernels` holds compiled kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from burnt.codegen.frontend.trace import Traced
from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.render.shape_params import SizeTemplates
from burnt.codegen.runtime.host_code import HostCode
from burnt.codegen.schedule.capabilities import Capabilities
from burnt.codegen.schedule.scheduler import Plan, schedule

Launcher = Callable[[HostCode, Sequence[str], Sequence[str]], None]
"""Appends what launches a kernel to a function, in which these variables are the tensors of all buffers, in
order (``None`` for a buffer that is not allocated at that step), and these the run-time numbers."""


def launcher_of(function: Callable[[Sequence[torch.Tensor | None], Sequence[float]], None]) -> Launcher:
    """Return the launcher that calls a function with the tensors of all buffers and the run-time numbers."""

    def append(code: HostCode, tensors: Sequence[str], numbers: Sequence[str]) -> None:
        code.lines.append(code.call(function, f"[{', '.join(tensors)}]", f"[{', '.join(numbers)}]"))

    return append


@dataclasses.dataclass(frozen=True)
class BuiltKernels:
    """Compiled kernels."""

    texts: dict[Kernel, str]  # the generated code of each kernel
    launchers: dict[Kernel, Launcher]


@dataclasses.dataclass(frozen=True)
class Target(Capabilities):
    """A language that kernels are generated in, and what its kernels can do (`Capabilities`)."""

    name: str  # ``"c"``, ``"triton"`` or ``"metal"``
    # Compiles kernels: ``build(kernels, buffers, number_positions)``, with the buffers and the argument
    # positions of run-time numbers in the order in which launchers take them.
    build: Callable[[Sequence[Kernel], Sequence[Buffer], Sequence[int]], BuiltKernels]
    # Returns why the target cannot be used on this machine, or None if it can.
    why_unavailable: Callable[[], str | None]
    writes_in_place: bool = False  # whether kernels heed `Kernel.in_place`
    # Returns the generated code of each kernel without compiling it: ``show(kernels, number_positions)``.
    show: Callable[[Sequence[Kernel], Sequence[int]], dict[Kernel, str]] = lambda kernels, positions: {}

    def schedule(self, traced: Traced, captured: Sequence[torch.Tensor]) -> Plan:
        """Schedule a traced function for this target, with the tensors that it captured."""
        return schedule(traced, captured, self)


size_templates = SizeTemplates()
