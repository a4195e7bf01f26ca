"""The interface of a target: `Target` says what its kernels can do, `BuiltKernels` holds compiled kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch

from burnt.codegen.frontend.trace import Traced
from burnt.codegen.ir import Buffer, Check, Kernel
from burnt.codegen.render.shape_params import SizeTemplates
from burnt.codegen.schedule.passes import OnlineThresholds
from burnt.codegen.schedule.scheduler import Plan, schedule

Launcher = Callable[[Sequence[torch.Tensor | None], Sequence[float]], None]


@dataclasses.dataclass(frozen=True)
class BuiltKernels:
    """Compiled kernels.

    Args:
        source: the generated code of all kernels, to show to users.
        texts: the generated code of each kernel.
        launchers: for each kernel, a callable of the tensors of all buffers in order (None for a buffer that
            is not allocated at that step) and the run-time numbers.
    """

    source: str
    texts: dict[Kernel, str]
    launchers: dict[Kernel, Launcher]


@dataclasses.dataclass(frozen=True)
class Target:
    """A language that kernels are generated in, and what its kernels can do.

    Args:
        name: ``"c"``, ``"triton"`` or ``"metal"``.
        build: compiles kernels: ``build(kernels, buffers, number_positions)``, with the buffers and the
            argument positions of run-time numbers in the order in which launchers take them.
        why_unavailable: returns why the target cannot be used on this machine, or None if it can.
        scratch_bytes: maximum bytes of local buffers per iteration of a kernel's outer loops; 0 for none.
        max_chunks: maximum number of chunks for partial sums over the outer loops; 0 if unsupported.
        splits_passes: whether a pass over one row can be split across all threads. If not, reductions of few
            long rows get kernels of their own.
        has_fast_float64: whether float32 ops may compute in float64 where they need its range.
        online_thresholds: sizes from which a reduction is computed online, in the same pass as the reduction
            that it depends on; None for never.
        why_torch_call: returns why a node that can be lowered is faster as torch's own call, or None.
        why_torch_matmul: the same for a matmul; None for a target without matmul kernels.
        show: returns the generated code of each kernel without compiling it:
            ``show(kernels, number_positions)``.
    """

    name: str
    build: Callable[[Sequence[Kernel], Sequence[Buffer], Sequence[int]], BuiltKernels]
    why_unavailable: Callable[[], str | None]
    scratch_bytes: int = 0
    max_chunks: int = 0
    splits_passes: bool = False
    has_fast_float64: bool = False
    online_thresholds: OnlineThresholds | None = None
    why_torch_call: Callable[[torch.fx.Node], str | None] = lambda node: None
    why_torch_matmul: Callable[[torch.fx.Node], str | None] | None = None
    show: Callable[[Sequence[Kernel], Sequence[int]], dict[Kernel, str]] = lambda kernels, positions: {}

    def schedule(self, traced: Traced, captured: Sequence[torch.Tensor]) -> Plan:
        """Schedule a traced function for this target, with the tensors that it captured."""
        return schedule(
            traced,
            captured,
            scratch_bytes=self.scratch_bytes,
            max_chunks=self.max_chunks,
            splits_passes=self.splits_passes,
            has_fast_float64=self.has_fast_float64,
            online_thresholds=self.online_thresholds,
            why_torch_call=self.why_torch_call,
            why_torch_matmul=self.why_torch_matmul,
        )


def raise_failed_check(checks: Sequence[Check], failed: Iterable[int]) -> None:
    """Raise the error of the first failed check. A check's word is 0 if it passed, or ``2 * value + 1``."""
    for check, word in zip(checks, failed, strict=False):
        if word:
            raise check.error(word >> 1)


size_templates = SizeTemplates()
