"""The C target: kernels printed as C, compiled by the machine's compiler, called through ctypes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence

import torch

from burnt.codegen.eager_policy import why_eager_is_faster
from burnt.codegen.ir import Buffer, Check, Kernel
from burnt.codegen.render.shape_params import sizes_as_parameters, with_constant_sizes
from burnt.codegen.runtime import c_library
from burnt.codegen.runtime.target import Built, Launch, Target, raise_failed_check, size_templates
from burnt.codegen.schedule.passes import OnlineThresholds

__all__ = ["C"]


def _build_c(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> Built:
    from burnt.codegen.render.c.kernel import print_kernels

    marked = print_kernels(kernels, buffers, numbers)
    general = size_templates.needs_parameters(marked)
    pointers = len(buffers) + any(kernel.checks for kernel in kernels)
    source, values = (
        _with_parameters(marked, pointers + len(numbers)) if general else (with_constant_sizes(marked), ())
    )
    library = c_library.load(c_library.PREAMBLE + source, [kernel.name for kernel in kernels])

    def launch(kernel: Kernel) -> Launch:
        call = c_library.launcher(library[kernel.name], pointers=pointers, floats=len(numbers), sizes=values)
        if pointers == len(buffers):
            return lambda memory, given: call(*[0 if t is None else t.data_ptr() for t in memory], *given)
        return _with_checks(call, kernel.checks)

    texts = {kernel: _function(source, kernel.name) for kernel in kernels}
    return Built(source, texts, {kernel: launch(kernel) for kernel in kernels})


def _function(source: str, name: str) -> str:
    """A function of generated C: from its name to the brace that closes it."""
    start = source.index(f"void {name}(")
    return source[start : source.index("\n}\n", start) + 2]


def _with_checks(call: Callable[..., None], checks: Sequence[Check]) -> Launch:
    """A launch that raises what the kernel's checks say."""
    words = ctypes.c_int64 * max(len(checks), 1)

    def launch(memory: Sequence[torch.Tensor | None], given: Sequence[float]) -> None:
        failed = words()
        call(*[0 if t is None else t.data_ptr() for t in memory], ctypes.addressof(failed), *given)
        raise_failed_check(checks, failed)

    return launch


def _with_parameters(marked: str, first: int) -> tuple[str, tuple[int, ...]]:
    """The text with its sizes as arguments from place `first` on, read once at the top of each kernel."""
    texts: list[str] = []
    values: list[int] = []
    for text in re.split(r"(?=^void )", marked, flags=re.M):
        start = len(values)
        text, found = sizes_as_parameters(text, lambda k, start=start: f"n{start + k}")  # type: ignore[misc]
        values += found
        head, brace, body = text.partition("{\n")
        reads = [f"    const int64_t n{k} = a[{first + k}].i;\n" for k in range(start, len(values))]
        texts.append("".join([head, brace, *reads, body]))
    return "".join(texts), tuple(values)


def _show_c(kernels: Sequence[Kernel], numbers: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.render.c.kernel import print_kernels

    buffers = dict.fromkeys(b for kernel in kernels for b in (*kernel.buffers_read, *kernel.buffers_written))
    source = with_constant_sizes(print_kernels(kernels, list(buffers), numbers))
    return {kernel: _function(source, kernel.name) for kernel in kernels}


def _no_compiler() -> str | None:
    return f"no C compiler: {c_library.why_no_compiler()}" if c_library.find_compiler() is None else None


# Of the 8 MiB of a thread's stack, and such that a row stays in a core's second cache beside what is read.
_SCRATCH = 1 << 19


# Even for as many threads, and few beside the rows that are summed.
_RUNS = 64


# Measured with one thread. A sum of exponentials alone takes cheaper ones: 1.2 times as fast for rows of 256
# float32, 1.7 times for 32000. Squares are two instructions, and as fast in two passes while all rows are in
# a cache; 1.2 to 1.4 times as fast where they come from memory. Columns: 1.1 to 4 times from 2000 float32 on.
_JOINS = OnlineThresholds(exp=1 << 9, squares=1 << 14, total=1 << 25, columns=120_000)


C = Target(
    "c",
    _build_c,
    _no_compiler,
    scratch=_SCRATCH,
    runs=_RUNS,
    cuts=True,
    joins=_JOINS,
    torch_is_best=why_eager_is_faster,
    show=_show_c,
)
