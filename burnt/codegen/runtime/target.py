"""What every target has: its kernels once built (`Built`), and what the scheduler must know (`Target`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch

from burnt.codegen.ir import Buffer, Check, Kernel
from burnt.codegen.render.shape_params import SizeTemplates
from burnt.codegen.schedule.passes import OnlineThresholds

__all__ = ["Built", "Target"]


Launch = Callable[[Sequence[torch.Tensor | None], Sequence[float]], None]


@dataclasses.dataclass(frozen=True)
class Built:
    """Kernels that can run.

    Args:
        source: the text of all of them, for people.
        texts: the text of each.
        launch: for each kernel, a callable of all buffers in their order (None for one that is not there
            yet) and the run-time numbers.
    """

    source: str
    texts: dict[Kernel, str]
    launch: dict[Kernel, Launch]


@dataclasses.dataclass(frozen=True)
class Target:
    """What kernels are printed for.

    Args:
        name: ``"c"``, ``"triton"`` or ``"metal"``.
        build: makes kernels run: ``build(kernels, buffers, numbers)``, the buffers and the positions of
            run-time numbers in the order in which launches get them.
        missing: why it cannot be used on this machine, or None.
        scratch: bytes of local buffers that a turn of a kernel's outer loops may have; 0 where rows are
            kept in registers, or not at all.
        runs: into how many runs of turns a kernel may be cut for sums over turns; 0 where it cannot.
        cuts: whether each pass of a kernel may be cut for all threads. Where not, few long rows are folded in
            kernels of their own.
        joins: from when on folds share a pass with one that they need; None for never.
        torch_is_best: why a node that is lowered is better torch's own call, or None.
        products: why a matrix product is better torch's own call, or None where it is a kernel; None for a
            target that has no such kernels.
        show: the text of each kernel, also where none can be built: ``show(kernels, numbers)``.
    """

    name: str
    build: Callable[[Sequence[Kernel], Sequence[Buffer], Sequence[int]], Built]
    missing: Callable[[], str | None]
    scratch: int = 0
    runs: int = 0
    cuts: bool = False
    joins: OnlineThresholds | None = None
    torch_is_best: Callable[[torch.fx.Node], str | None] = lambda node: None
    products: Callable[[torch.fx.Node], str | None] | None = None
    show: Callable[[Sequence[Kernel], Sequence[int]], dict[Kernel, str]] = lambda kernels, numbers: {}


def raise_failed_check(checks: Sequence[Check], failed: Iterable[int]) -> None:
    """Raise what the first check says that has failed: its word is then not 0."""
    for check, word in zip(checks, failed, strict=False):
        if word:
            raise check.error(word >> 1)


size_templates = SizeTemplates()
