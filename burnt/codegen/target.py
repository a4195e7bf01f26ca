"""Targets: what a plan is printed for, and how its kernels are built and launched.

A target is chosen by the device of the tensors; `Target.build` turns kernels into source and callables.
Nothing is imported here before it is needed: a Mac has no Triton.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import torch

from burnt.codegen import toolchain
from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.sizes import Forms, parameters, plain

__all__ = ["Built", "C", "Target", "target_of"]

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
    """

    name: str
    build: Callable[[Sequence[Kernel], Sequence[Buffer], Sequence[int]], Built]
    missing: Callable[[], str | None]
    scratch: int = 0


def _build_c(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> Built:
    from burnt.codegen.print_c import print_kernels

    marked = print_kernels(kernels, buffers, numbers)
    general = _forms.is_general(marked)
    source, values = _with_parameters(marked, len(buffers) + len(numbers)) if general else (plain(marked), ())
    library = toolchain.load(toolchain.PREAMBLE + source, [kernel.name for kernel in kernels])

    def launch(kernel: Kernel) -> Launch:
        call = toolchain.launcher(
            library[kernel.name], pointers=len(buffers), floats=len(numbers), sizes=values
        )
        return lambda memory, given: call(*[0 if t is None else t.data_ptr() for t in memory], *given)

    texts = {kernel: _function(source, kernel.name) for kernel in kernels}
    return Built(source, texts, {kernel: launch(kernel) for kernel in kernels})


def _function(source: str, name: str) -> str:
    """A function of generated C: from its name to the brace that closes it."""
    start = source.index(f"void {name}(")
    return source[start : source.index("\n}\n", start) + 2]


_forms = Forms()


def _with_parameters(marked: str, first: int) -> tuple[str, tuple[int, ...]]:
    """The text with its sizes as arguments from place `first` on, read once at the top of each kernel."""
    texts: list[str] = []
    values: list[int] = []
    for text in re.split(r"(?=^void )", marked, flags=re.M):
        start = len(values)
        text, found = parameters(text, lambda k, start=start: f"n{start + k}")  # type: ignore[misc]
        values += found
        head, brace, body = text.partition("{\n")
        reads = [f"    const int64_t n{k} = a[{first + k}].i;\n" for k in range(start, len(values))]
        texts.append("".join([head, brace, *reads, body]))
    return "".join(texts), tuple(values)


def _no_compiler() -> str | None:
    return f"no C compiler: {toolchain.why_no_compiler()}" if toolchain.find_compiler() is None else None


# Of the 8 MiB of a thread's stack, and such that rows stay in a core's second cache beside what is read.
_SCRATCH = 1 << 16

C = Target("c", _build_c, _no_compiler, _SCRATCH)


def target_of(device: torch.device) -> Target | str:
    """The target for tensors of a device, or why there is none."""
    chosen: dict[str, Target] = {"cpu": C}
    target = chosen.get(device.type)
    if target is None:
        return f"a tensor on {device}: kernels are printed for {', '.join(chosen)} only"
    return target.missing() or target
