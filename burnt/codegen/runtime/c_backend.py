"""The C target: generate C, compile it with the machine's compiler, and call it through ctypes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from burnt.codegen.eager_policy import why_torch_is_faster
from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.render.shape_params import sizes_as_parameters, with_constant_sizes
from burnt.codegen.runtime import c_compiler, c_library
from burnt.codegen.runtime.host_code import CCall, HostCode
from burnt.codegen.runtime.target import BuiltKernels, Launcher, Target, size_templates
from burnt.codegen.schedule.capabilities import OnlineThresholds, PartialSumLimits

_FILE_LENGTH = 24_000  # characters of functions in a file that is worth compiling next to another
_MAX_FILES = 8


def _build_c(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], number_positions: Sequence[int]
) -> BuiltKernels:
    from burnt.codegen.render.c.kernel import print_helpers, print_kernel

    templates = {kernel: print_kernel(kernel) for kernel in kernels}
    has_size_parameters = size_templates.needs_parameters(
        # Plans of another name have their own; those of a graph's sizes differ in what follows ``_size``.
        "\n".join([kernels[0].name.partition("_size")[0], *templates.values()])
    )
    sizes: dict[Kernel, tuple[int, ...]] = dict.fromkeys(kernels, ())
    bodies = {}
    for kernel, template in templates.items():
        if has_size_parameters:
            bodies[kernel], sizes[kernel] = _parametrize_sizes(template, kernel)
        else:
            bodies[kernel] = with_constant_sizes(template)
    # Equal kernels are one function. Its name is the same in any plan, so that equal plans are one library.
    names = {body: f"kernel{i}" for i, body in enumerate(dict.fromkeys(bodies.values()))}
    functions = _compile({name: f"void {name}{body}" for body, name in names.items()}, print_helpers())
    slots = {buffer: i for i, buffer in enumerate(buffers)}
    number_slots = {number: i for i, number in enumerate(number_positions)}

    def launch(kernel: Kernel) -> Launcher:
        address, arguments = c_library.address_of(functions[names[bodies[kernel]]]), kernel.arguments
        used = [slots[a] for a in arguments if isinstance(a, Buffer)]
        used_numbers = [number_slots[a] for a in arguments if not isinstance(a, Buffer)]

        def append(code: HostCode, tensors: Sequence[str], numbers: Sequence[str]) -> None:
            code.c_calls.append(
                CCall(
                    address,
                    [tensors[slot] for slot in used],
                    [numbers[slot] for slot in used_numbers],
                    sizes[kernel],
                    kernel.checks,
                )
            )

        return append

    texts = {kernel: f"void {kernel.name}{body}" for kernel, body in bodies.items()}
    return BuiltKernels(texts, {kernel: launch(kernel) for kernel in kernels})


def _compile(texts: Mapping[str, str], helpers: str) -> dict[str, c_compiler.CFunction]:
    """Compile functions, many of them in several files at once: a file more takes 50 ms."""
    count = min(os.cpu_count() or 1, -(-sum(map(len, texts.values())) // _FILE_LENGTH), _MAX_FILES)
    # Neighbours differ little in length, so each file gets about as much as the others.
    parts = [list(texts)[i::count] for i in range(count)]

    def load(names: Sequence[str]) -> Mapping[str, c_compiler.CFunction]:
        source = "".join([c_compiler.PREAMBLE, helpers, *[texts[name] for name in names]])
        return c_library.load(source, names).functions

    if count == 1:
        return dict(load(parts[0]))
    with ThreadPoolExecutor(count) as pool:
        return {name: function for found in pool.map(load, parts) for name, function in found.items()}


def _parametrize_sizes(template: str, kernel: Kernel) -> tuple[str, tuple[int, ...]]:
    """Turn sizes into arguments, after the kernel's others; return the code and the sizes' values.

    A kernel reads its sizes once, at its top.
    """
    first = len(kernel.arguments) + bool(kernel.checks)
    text, sizes = sizes_as_parameters(template, lambda k: f"n{k}")
    head, brace, body = text.partition("{\n")
    reads = [f"    const int64_t n{k} = a[{first + k}].i;\n" for k in range(len(sizes))]
    return "".join([head, brace, *reads, body]), sizes


def _show_c(kernels: Sequence[Kernel], number_positions: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.render.c.kernel import print_kernel

    return {kernel: f"void {kernel.name}{with_constant_sizes(print_kernel(kernel))}" for kernel in kernels}


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
    writes_in_place=True,
    show=_show_c,
)
