"""The C target: generate C, compile it with the machine's compiler, and call it through ctypes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from burnt.codegen.eager_policy import why_torch_is_faster
from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.render.shape_params import sizes_as_parameters, with_constant_sizes
from burnt.codegen.runtime import c_compiler, c_library
from burnt.codegen.runtime.host_code import HostCode
from burnt.codegen.runtime.target import BuiltKernels, Launcher, Target, raise_failed_check, size_templates
from burnt.codegen.schedule.capabilities import OnlineThresholds, PartialSumLimits


def _build_c(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], number_positions: Sequence[int]
) -> BuiltKernels:
    from burnt.codegen.render.c.kernel import print_kernels

    template = print_kernels(kernels, buffers, number_positions)
    has_size_parameters = size_templates.needs_parameters(template)
    pointers = len(buffers) + any(kernel.checks for kernel in kernels)
    source, values = (
        _parametrize_sizes(template, pointers + len(number_positions))
        if has_size_parameters
        else (with_constant_sizes(template), ())
    )
    library = c_library.load(c_compiler.PREAMBLE + source, [kernel.name for kernel in kernels])

    def launch(kernel: Kernel) -> Launcher:
        call = c_library.launcher(
            library[kernel.name], pointers=pointers, floats=len(number_positions), sizes=values
        )
        words = ctypes.c_int64 * max(len(kernel.checks), 1)
        used = kernel.buffers_read | kernel.buffers_written

        def append(code: HostCode, tensors: Sequence[str], numbers: Sequence[str]) -> None:
            pairs = zip(buffers, tensors, strict=True)
            arguments = [code.address(tensor) if buffer in used else "0" for buffer, tensor in pairs]
            if pointers == len(buffers):
                code.lines.append(code.call(call, *arguments, *numbers))
                return
            code.lines.append(f"failed = {code.call(words)}")
            arguments.append(code.call(ctypes.addressof, "failed"))
            code.lines.append(code.call(call, *arguments, *numbers))
            code.lines.append(code.call(raise_failed_check, code.name(kernel.checks), "failed"))

        return append

    texts = {kernel: _extract_function(source, kernel.name) for kernel in kernels}
    return BuiltKernels(texts, {kernel: launch(kernel) for kernel in kernels})


def _extract_function(source: str, name: str) -> str:
    """Return one function of generated C, from its ``void`` to its closing brace."""
    start = source.index(f"void {name}(")
    return source[start : source.index("\n}\n", start) + 2]


def _parametrize_sizes(template: str, first: int) -> tuple[str, tuple[int, ...]]:
    """Turn sizes into kernel arguments, from argument `first` on; return the code and the sizes' values.

    Each kernel reads its sizes once, at its top.
    """
    texts: list[str] = []
    values: list[int] = []
    for text in re.split(r"(?=^void )", template, flags=re.M):
        start = len(values)
        text, sizes = sizes_as_parameters(text, lambda k, start=start: f"n{start + k}")  # type: ignore[misc]
        values += sizes
        head, brace, body = text.partition("{\n")
        reads = [f"    const int64_t n{k} = a[{first + k}].i;\n" for k in range(start, len(values))]
        texts.append("".join([head, brace, *reads, body]))
    return "".join(texts), tuple(values)


def _show_c(kernels: Sequence[Kernel], number_positions: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.render.c.kernel import print_kernels

    buffers = dict.fromkeys(b for kernel in kernels for b in (*kernel.buffers_read, *kernel.buffers_written))
    source = with_constant_sizes(print_kernels(kernels, list(buffers), number_positions))
    return {kernel: _extract_function(source, kernel.name) for kernel in kernels}


def _why_no_compiler() -> str | None:
    return f"no C compiler: {c_compiler.why_no_compiler()}" if c_compiler.find_compiler() is None else None


# Local buffers are on the thread's stack of 8 MiB, and should fit a core's L2 cache together with the inputs.
_SCRATCH_BYTES = 1 << 19


# Enough chunks for this many threads, and few compared with the rows that are summed. The partial sums of one
# chunk fit a core's L2 cache.
_PARTIAL_SUMS = PartialSumLimits(max_chunks=64, min_chunk_rows=16, min_columns=0, max_columns=1 << 15)


# Speed of one online pass relative to two passes, measured with one thread. Sums of exponentials: 1.2 times
# for rows of 256 float32, 1.7 times for 32000, as the online sum uses a cheaper exponential. Sums of squares
# are two instructions per element: equal while all rows are in a cache, 1.2 to 1.4 times when they come from
# memory. Columns: 1.1 to 4 times from 2000 float32 on.
_ONLINE_THRESHOLDS = OnlineThresholds(
    exp_row_bytes=1 << 9, squares_row_bytes=1 << 14, squares_total_bytes=1 << 25, column_tile_bytes=120_000
)


C = Target(
    "c",
    _build_c,
    _why_no_compiler,
    scratch_bytes=_SCRATCH_BYTES,
    partial_sums=_PARTIAL_SUMS,
    splits_passes=True,
    has_fast_float64=True,
    online_thresholds=_ONLINE_THRESHOLDS,
    why_torch_call=why_torch_is_faster,
    show=_show_c,
)
