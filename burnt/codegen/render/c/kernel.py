"""Print kernels as C: loops with OpenMP, and loop bodies that the compiler can vectorise.

A kernel is printed with one of these loop structures:

*Elementwise*: no reduction. Where loads are contiguous along another loop than stores, in square tiles.
*Scan*: the inner loop runs in order; the threads share the iterations of the outer loops.
*Rows*: the threads share the iterations of the outer loops; each iteration runs its passes along the inner
loops. *Columns*: where memory is contiguous along an outer loop, an iteration takes a tile of that loop, with
one accumulator for each of its lanes. *Split*: where there are few iterations with many elements, each pass
is cut into chunks for the threads, with rows or with columns. *Partial sums*: the threads share chunks of
consecutive iterations, and each chunk accumulates sums over its iterations.

Arithmetic is torch's: no fast-math; 16-bit floats are computed in float32. Float32 sums are added to a double
after every 16 or 32 additions to a lane, and for each element where loads are not vectorised.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Expr,
    IndexExpr,
    Kernel,
    PartialSum,
    ReductionStep,
    ScanStep,
    Store,
    Var,
    variables,
    walk,
)
from burnt.codegen.render.c import prelude
from burnt.codegen.render.c.bounds_and_prefetch import (
    index_period,
    interior_range,
    next_output_rows,
    next_pooling_rows,
    next_reduction_rows,
    unroll_period,
)
from burnt.codegen.render.c.expr import ExprPrinter, has_adjacent_stores
from burnt.codegen.render.c.prelude import (
    C_TYPES,
    MEMORY_TYPES,
    RANDOM_BLOCK,
    SIXTEEN_BIT_FLOATS,
    RandomWords,
    find_random_words,
)
from burnt.codegen.render.c.reduction import (
    ONLINE_HELPERS,
    Accumulator,
    OnlineExpSum,
    OnlineSquareSum,
    create_accumulators,
    create_scan_states,
    select_scan_lane,
)
from burnt.codegen.render.shape_params import mark_size
from burnt.codegen.schedule.passes import LANES, lane_loop, unconditional_exprs

_MIN_PARALLEL = 1 << 15  # minimum number of elements for which several threads are faster than one
_NUM_CHUNKS = 64  # chunks of a split pass: enough to balance the load for any number of threads
_FEW_ITERATIONS = 16  # with fewer iterations of the outer loops, each pass is split among the threads
# Elements of a block, whose sums are float32 and are added to a double at its end.
_SUM_BLOCK = 256  # 32 for each lane of a 256-bit vector
_SCALAR_SUM_BLOCK = 32  # where the loop may not be vectorised, and so has one lane
_NO_SUM_BLOCK = 8192
_ARG_BLOCK = 256  # the block is read again to find the index of its extreme
_EXP_BLOCK = 1024  # the block is read twice
_FLOAT16_BLOCK = 512  # the block is converted to an array of float32
_ONLINE_LANE_BLOCK = 64  # times as many lanes: half of the L1 cache
_LANE_SUM_BLOCK, _LANE_NO_SUM_BLOCK = 16, 128
_TILE_WIDTH = 1024  # lanes of a tile
_SPLIT_TILE_WIDTH = 256  # lanes of a tile where each chunk has its own accumulators
_REGISTER_LANES = 64  # lanes that can stay in registers during a block
_TRANSPOSE_TILE = 64  # side of the square tiles of a transposing copy
_FLOAT16_STRIP = 16  # float16 elements that are converted at once: one vector of the widest kind
_CACHE_LINE = 64  # bytes
# Limits of a tile with several passes: bytes that stay in the caches between passes, and bytes of scratch.
# Where rows are pages apart, wide tiles need fewer page look-ups: softmax of the first axis, 4096 x 1024, one
# thread, takes 14.6 ms with 16 lanes of float32 and 9.8 with 32; of bfloat16 (16 are half a line), 15.1
# and 7.2.
_TILE_CACHE_BYTES = 1 << 21
_TILE_SCRATCH_BYTES = 1 << 19

# What is computed where it is used: it has an effect, or words that are generated for a block.
_NOT_HOISTED = ("checked", "uniform", "random", "scanned")

# When an iteration stores adjacent elements, gcc packs the values they are computed from into vectors. gcc
# before 14 (but for 11.5, 12.4 and 13.3; its bug 114375) loses the order of packed loads that are under a
# test. An empty asm statement in the loop keeps gcc from packing; there is no other way to do so.
_HELPERS = """
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 14
#define GUARDED_LOADS __asm__ volatile("")
#else
#define GUARDED_LOADS
#endif
static inline int64_t select_i64(int t, int64_t a, int64_t b)
{
    return (a & -(int64_t)t) | (b & ((int64_t)t - 1));
}
static inline int32_t select_i32(int t, int32_t a, int32_t b) { return (a & -t) | (b & (t - 1)); }
static inline float select_f32(int t, float a, float b)
{
    return float_of_bits((bits_f32(a) & -(uint32_t)t) | (bits_f32(b) & ((uint32_t)t - 1)));
}
static inline double select_f64(int t, double a, double b)
{
    return double_of_bits((bits_f64(a) & -(uint64_t)t) | (bits_f64(b) & ((uint64_t)t - 1)));
}
static inline double log_add_exp_f64(double a, double b)
{
    const double high = a > b ? a : b, low = a > b ? b : a;
    return low == high && __builtin_isinf(low) ? b : high + log1p_f64(exp_f64(low - high));
}
static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t floor_mod(int64_t a, int64_t b) { const int64_t m = a % b; return m < 0 ? m + b : m; }
"""
for _t in ("int64", "uint64"):
    _HELPERS += f"""
static inline {_t}_t power_{_t}({_t}_t a, {_t}_t b)
{{
    {_t}_t result = 1;
    for (; b; b >>= 1, a *= a) result *= b & 1 ? a : 1;
    return result;
}}
"""
for _t, _f in (("float", "f32"), ("double", "f64")):
    _HELPERS += f"""
static inline {_t} trunc_div_{_f}({_t} a, {_t} b) {{ return trunc_{_f}(a / b); }}
static inline {_t} floor_div_{_f}({_t} a, {_t} b)
{{
    const {_t} m = fmod_{_f}(a, b), quotient = (a - m) / b, lower = quotient - (m != 0 && (b < 0) != (m < 0));
    const {_t} down = floor_{_f}(lower), near = lower - down > ({_t})0.5 ? down + 1 : down;
    return b == 0 ? a / b : lower == 0 ? copysign_{_f}(0, a / b) : near;
}}
"""


def print_helpers() -> str:
    """Return what precedes generated functions in a C file, after `PREAMBLE`."""
    return "\n".join([prelude.source(), _HELPERS, ONLINE_HELPERS, ""])


def print_kernel(kernel: Kernel) -> str:
    """Return a kernel in C, from the parameter of its function ``void name(const burnt_arg *a)`` on.

    The arguments are `Kernel.arguments`, addresses and numbers. If the kernel has checks, the address of one
    uint64 for each of them follows. If a check fails, the kernel stores ``2 * reported + 1`` of one failing
    element there. Integers that come from shapes are marked (`burnt.codegen.render.shape_params`).

    Equal kernels give equal text: it contains no names of the kernel, of its buffers or of loops.
    """
    return _KernelPrinter(kernel).source()


class _KernelPrinter(ExprPrinter):
    """Print one kernel: choose its loop structure, and emit its loops, passes and stores."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.passes: list[list[ReductionStep | Store]] = []
        self.part_width = 1  # lanes of a part of a tile, which stay in registers during a block
        self.lane_values = itertools.count()  # numbers of what is computed once for each lane
        self.in_tile_part = False  # whether a loop over the parts of a tile is open
        self.prefetched: set[Buffer] = set()  # buffers whose rows an earlier pass prefetches

    def source(self) -> str:
        """Return the kernel's C function."""
        kernel = self.kernel
        self.passes = kernel.passes()
        num_iterations = math.prod(v.extent for v in kernel.outer)
        inner = max((math.prod(v.extent for v in step.inner) for step in kernel.steps), default=1)
        if kernel.kind == "scan":
            self.emit_scan_kernel(num_iterations * inner >= _MIN_PARALLEL)
        elif kernel.num_chunks:
            self.emit_partial_sum_kernel(parallel=num_iterations * inner >= _MIN_PARALLEL)
        elif kernel.kind == "elementwise":
            self.emit_elementwise_kernel(num_iterations)
        else:
            self.lane = lane_loop(kernel)
            count, split = num_iterations, num_iterations < _FEW_ITERATIONS
            if self.lane is not None:
                self.tile_width = self.select_tile_width(inner, _TILE_WIDTH)
                count = num_iterations // self.lane.extent * -(-self.lane.extent // self.tile_width)
                split = count < _FEW_ITERATIONS and inner * self.tile_width >= _MIN_PARALLEL
                if num_iterations == self.lane.extent and not self.keeps_tile_in_cache(inner, count):
                    self.tile_width, split = self.select_row_width(inner), True
                elif split:
                    self.tile_width = self.select_tile_width(inner, _SPLIT_TILE_WIDTH)
                self.part_width = _part_width(self.tile_width)
            self.emit_reduction_kernel(
                parallel=num_iterations * inner >= _MIN_PARALLEL,
                split=split and inner * self.tile_width >= _MIN_PARALLEL,
            )
        head = ["(const burnt_arg *a)", "{"]
        # One variable for buffers in the same memory: the compiler takes two for different memory.
        written = {kernel.in_place.get(buffer, buffer) for buffer in kernel.buffers_written}
        for buffer in dict.fromkeys(kernel.in_place.get(b, b) for b in self.used_buffers):
            only = "" if buffer in written else "const "
            name = self.buffer_name(buffer)
            head.append(
                f"    {only}{MEMORY_TYPES[buffer.dtype]} *restrict {name} = a[{self.slots[buffer]}].p;"
            )
        if self.has_computed_index:
            # In SIMD loops gcc 12 mistakes an index that comes from a comparison for a mask, and reads from
            # a wrong address. An xor with a zero that gcc cannot see makes it an integer.
            head.append('    int64_t zero = 0; __asm__("" : "+r"(zero));')
        head += [f"    uint64_t {name} = 0;" for name in self.failure_names.values()]
        for i, name in enumerate(self.failure_names.values()):
            self.emit(f"if ({name}) ((uint64_t *)a[{len(self.slots)}].p)[{i}] = {name};")
        return "\n".join([*head, *self.lines, "}", ""])

    def select_tile_width(self, inner: int, max_width: int) -> int:
        """Return the lanes of a tile: few are computed twice, and the tile stays in cache between passes."""
        assert self.lane is not None
        extent, kernel = self.lane.extent, self.kernel
        widths = [max_width >> k for k in range(max_width.bit_length()) if max_width >> k <= extent]
        item_sizes = {e.extra: e.dtype.itemsize for e in walk(kernel.exprs) if e.op == "load"}
        if sum(bool(steps[0].inner) for steps in self.passes) > 1:
            bytes_per_lane = inner * sum(item_sizes.values())
            scratch_per_lane = sum(math.prod(b.shape) * b.dtype.itemsize for b in kernel.scratch)
            rows = math.prod(v.extent for v in kernel.outer) // extent
            # Enough tiles for the threads, unless even the narrowest width gives too few.
            min_tiles = min(_FEW_ITERATIONS, rows * -(-extent // LANES))
            widths = [
                w
                for w in widths
                if w <= LANES
                or (
                    w * bytes_per_lane <= _TILE_CACHE_BYTES
                    and w * scratch_per_lane <= _TILE_SCRATCH_BYTES
                    and rows * -(-extent // w) >= min_tiles
                )
            ]
        # A tile costs its number of vectors, plus about one.
        return min(widths, key=lambda w: -(-extent // w) * (-(-w // 16) + 1))

    def keeps_tile_in_cache(self, inner: int, count: int) -> bool:
        """Whether tiles of the selected width stay in cache between passes, and are enough for threads."""
        bytes_per_lane = inner * sum(
            {e.extra: e.dtype.itemsize for e in walk(self.kernel.exprs) if e.op == "load"}.values()
        )
        return count >= _FEW_ITERATIONS and bytes_per_lane * self.tile_width <= _TILE_CACHE_BYTES

    def select_row_width(self, inner: int) -> int:
        """Return the lanes of a tile that is not in cache: a row, or nearly equal parts, read as they lie."""
        assert self.lane is not None
        extent = self.lane.extent
        scratch_per_lane = sum(math.prod(b.shape) * b.dtype.itemsize for b in self.kernel.scratch)
        widths = [
            w
            for w in {extent, *range(LANES, extent + 1, LANES)}
            if w <= _SPLIT_TILE_WIDTH
            and _part_width(w)
            and (w <= LANES or w * scratch_per_lane <= _TILE_SCRATCH_BYTES)
        ]
        best: int = min(widths, key=lambda w: (-(-extent // w) * (-(-w // 16) + 1), -w))
        return best

    # --- loop structures ----------------------------------------------------------------------------------

    def emit_elementwise_kernel(self, count: int) -> None:
        """Emit a kernel of `count` iterations that only stores."""
        loops = list(self.kernel.outer)
        stores = self.kernel.stores
        if not loops:
            self.emit_stores(stores)
            return
        *lead, last = loops
        transposed_loop = self.find_transposed_loop(lead, last, stores)
        if transposed_loop is not None:
            self.emit_transposed_tiles(lead, transposed_loop, last, stores, parallel=count >= _MIN_PARALLEL)
            return
        rows = math.prod(v.extent for v in lead)
        if count >= _MIN_PARALLEL and rows < 8:
            self.open_loops(lead)
            self.emit_threaded_loop(last, stores)
            self.close(len(lead))
            return
        period = index_period(lead[-1], stores) if lead else 1
        if period == 1:
            self.emit_rows(lead, last, [stores], parallel=count >= _MIN_PARALLEL)
            return
        periods, bodies, remainder = unroll_period(lead[-1], period, stores)
        self.emit_rows([*lead[:-1], periods], last, bodies, parallel=count >= _MIN_PARALLEL)
        if remainder:
            self.emit_rows(lead[:-1], last, remainder, parallel=False)

    def emit_rows(
        self, lead: Sequence[Var], last: Var, bodies: Sequence[Sequence[Store]], *, parallel: bool
    ) -> None:
        """Emit loops over rows: an iteration of `lead` computes a row along `last` for each of `bodies`."""
        if parallel and lead:
            self.emit(f"#pragma omp parallel for collapse({len(lead)}) schedule(static)")
        self.open_loops(lead)
        for stores in bodies:
            self.emit_loop_with_borders(last, stores)
        self.close(len(lead))

    def find_transposed_loop(self, lead: Sequence[Var], last: Var, stores: Sequence[Store]) -> Var | None:
        """Return the outer loop along which most strided loads are contiguous, or None.

        These loads become `transposed_loads`.
        """
        candidates: dict[Var, list[Expr]] = {}
        for e in unconditional_exprs([step.body for step in stores]):
            if e.op != "load" or e.args or e.extra[1].stride(last) in (None, 0, 1):
                continue
            for v in lead:
                if e.extra[1].stride(v) == 1 and min(v.extent, last.extent) >= _TRANSPOSE_TILE // 2:
                    candidates.setdefault(v, []).append(e)
        best = max(candidates, key=lambda v: len(candidates[v]), default=None)
        if best is not None:
            self.transposed_loads = {e: f"q{i}" for i, e in enumerate(candidates[best])}
        return best

    def emit_transposed_tiles(
        self, lead: Sequence[Var], transposed_loop: Var, last: Var, stores: Sequence[Store], *, parallel: bool
    ) -> None:
        """Emit stores in square tiles, each first copied in the order in which it lies in memory.

        Without the copy, cache lines of a tile whose rows are a power of two apart would evict each other.
        """
        others = [v for v in lead if v is not transposed_loop]
        if parallel:
            self.emit(f"#pragma omp parallel for collapse({len(others) + 1}) schedule(static)")
        self.open_loops(others)
        ends = {}
        for var, start in ((transposed_loop, "down"), (last, "right")):
            size = mark_size(var.extent)
            self.open(f"for (int64_t {start} = 0; {start} < {size}; {start} += {_TRANSPOSE_TILE})")
            ends[var] = f"({start} + {_TRANSPOSE_TILE} < {size} ? {start} + {_TRANSPOSE_TILE} : {size})"
        down = Var(transposed_loop.extent + 1)
        self.loop_names[down] = "down"
        for e, name in self.transposed_loads.items():
            buffer: Buffer = e.extra[0]
            is_float16 = buffer.dtype == torch.float16
            row, column = f"{self.loop_name(last)} - right", f"{self.loop_name(transposed_loop)} - down"
            self.emit(
                f"{'float' if is_float16 else MEMORY_TYPES[buffer.dtype]} "
                f"{name}[{_TRANSPOSE_TILE}][{_TRANSPOSE_TILE + 1}];"
            )
            self.open_loop(last, "right", ends[last])
            if is_float16:
                offset: IndexExpr = e.extra[1]
                start = self.element_text(buffer, offset.substitute({transposed_loop: IndexExpr.of(down)}))
                self.emit(f"f32_of_f16_row({name}[{row}], &{start}, {ends[transposed_loop]} - down);")
            else:
                self.emit("#pragma omp simd")
                self.open_loop(transposed_loop, "down", ends[transposed_loop])
                self.emit(f"{name}[{row}][{column}] = {self.element_text(buffer, e.extra[1])};")
                self.close()
            self.close()
            self.transposed_loads[e] = f"{name}[{row}][{column}]"
            if is_float16:
                self.f32_copies[buffer, e.extra[1]] = self.transposed_loads[e]
        self.open_loop(transposed_loop, "down", ends[transposed_loop])
        self.emit("#pragma omp simd")
        self.open_loop(last, "right", ends[last])
        self.emit_stores(stores)
        self.close(4 + len(others))
        self.transposed_loads, self.f32_copies = {}, {}

    def emit_stores(self, stores: Sequence[Store]) -> None:
        """Emit the body of a loop: compute the values of stores and store them."""
        values = [_value_before_rounding(step) for step in stores]
        first: list[Expr] = []
        if has_adjacent_stores(stores):
            # Between two selects by the same test, gcc would move these loads under it (`GUARDED_LOADS`).
            first = [e for e in unconditional_exprs(values) if e.op == "load" and not e.args]
        value_names = self.emit_exprs(values, first)
        for step, name in zip(stores, value_names, strict=True):
            self.emit_store(step, name)
        self.end_body(stores)

    def emit_threaded_loop(self, last: Var, stores: Sequence[Store]) -> None:
        """Emit a loop whose iterations the threads share."""
        if self.emit_in_blocks(last, (0, last.extent), stores, parallel=True):
            return
        self.emit("#pragma omp parallel for simd schedule(static)")
        self.open_loop(last)
        self.emit_stores(stores)
        self.close()

    def emit_in_blocks(
        self, last: Var, span: tuple[int, int], stores: Sequence[Store], *, parallel: bool
    ) -> bool:
        """Emit a loop in blocks if that is useful, and return whether it is.

        For each block, random words are generated first, and float16 elements are converted before and after.
        With conversions only, blocks are so small that their floats stay in registers.
        """
        words = find_random_words(last, [step.body for step in stores])
        if not words and not any(_find_float16_rows(last, [step.body for step in stores], stores)):
            return False
        saved = self.begin_hoisting(last, span, stores)
        first, stop = map(mark_size, span)
        size = RANDOM_BLOCK if words else _FLOAT16_STRIP
        is_full = not words and span[1] - span[0] >= size
        if words or is_full:
            if parallel:
                self.emit("#pragma omp parallel for schedule(static)")
            last_start = f"{stop} - {size - 1}" if is_full else stop
            self.open(f"for (int64_t block = {first}; block < {last_start}; block += {size})")
            if words:
                self.emit(f"const int64_t end = block + {size} < {stop} ? block + {size} : {stop};")
            self.emit_block(last, stores, words, size, is_full=is_full)
            self.close()
        if not words:
            self.open()
            count = f"({stop} - {first})" if span[0] else stop
            self.emit(f"const int64_t end = {stop}, block = end - {count} % {size};")
            self.emit_block(last, stores, words, size, is_full=False)
            self.close()
        self.end_hoisting(saved)
        return True

    def begin_hoisting(self, last: Var, span: tuple[int, int], stores: Sequence[Store]) -> list[str]:
        """Start collecting loop-invariant lines separately; return the lines emitted so far."""
        saved, self.lines, self.hoisted, self.uniform_cache, self.hoisted_names = (self.lines, [], [], {}, {})
        exprs = unconditional_exprs([step.body for step in stores])
        self.unconditional_loads = {e for e in exprs if e.op == "load"}
        self.span, self.hoist_depth = (last, *span), self.depth
        return saved

    def end_hoisting(self, saved: list[str]) -> None:
        """Put the loop-invariant lines between the saved lines and the loop."""
        self.span, self.unconditional_loads, self.hoisted_names = None, set(), {}
        self.lines = saved + self.hoisted + self.lines

    def emit_block(
        self, last: Var, stores: Sequence[Store], words: Sequence[RandomWords], size: int, *, is_full: bool
    ) -> None:
        """Emit the loop over one block, from `block` to `end`, or over `size` iterations if `is_full`."""
        name, block_start = self.loop_name(last), Var(last.extent + 1)
        self.loop_names[block_start] = "block"
        at_block_start = {last: IndexExpr.of(block_start)}
        for i, group in enumerate(words):
            (seed,) = self.emit_exprs([group.seed])
            w, start = f"w{i}", self.index_text(group.first.substitute(at_block_start))
            self.emit(f"const int64_t {w}_from = {start};")
            self.emit(f"uint32_t {w}[{size * group.step + group.reach + 8}];")
            count = f"({w}_from % 4 + (end - block) * {group.step} + {group.reach + 3}) / 4"
            self.emit(f"philox_fill({w}, {seed}, {w}_from / 4, {count}, {group.stream});")
            self.emit(f"const uint32_t *{w}_at = {w} + {w}_from % 4;")
            for e, offset in group.offsets.items():
                self.random_words[id(e)] = f"{w}_at[({name} - block) * {group.step} + {offset}]"
        loads, stored = _find_float16_rows(last, [step.body for step in stores], stores)
        store_lines = self.emit_f32_copies(loads, stored, last, size, is_full=is_full)
        runs_full = is_full or (not words and self.can_compute_past_end(stores))
        self.emit("#pragma omp simd")
        self.open_loop(last, "block", f"block + {size}" if runs_full else "end")
        self.emit_stores(stores)
        self.close()
        self.emit_all(store_lines)
        self.random_words, self.f32_copies = {}, {}

    def can_compute_past_end(self, stores: Sequence[Store]) -> bool:
        """Whether the loop may run past its end, to the end of a vector.

        True if whatever varies is in arrays of float32 copies, and nothing is checked (integer divisors are).
        """

        def is_harmless(e: Expr) -> bool:
            if self.is_uniform(e):
                return True
            if e.op == "load":
                return e.extra in self.f32_copies
            return e.op != "checked"

        only_f32_copies = all((step.buffer, step.offset) in self.f32_copies for step in stores)
        return only_f32_copies and all(map(is_harmless, walk([step.body for step in stores])))

    def emit_f32_copies(
        self,
        loads: Sequence[tuple[Buffer, IndexExpr]],
        stored: Sequence[tuple[Buffer, IndexExpr]],
        last: Var,
        size: int,
        *,
        is_full: bool,
    ) -> list[str]:
        """Declare and fill arrays of a block's float16 elements as float32; return the lines that store them.

        Array sizes are multiples of a vector: a conversion may go past the end of the block.
        """
        name, block_start = self.loop_name(last), Var(last.extent + 1)
        self.loop_names[block_start] = "block"
        kind, count = ("strip", "") if is_full else ("row", ", end - block")
        store_lines = []
        for i, (buffer, offset) in enumerate(dict.fromkeys([*loads, *stored])):
            row, start = (
                f"h{i}",
                self.element_text(buffer, offset.substitute({last: IndexExpr.of(block_start)})),
            )
            self.emit(f"float {row}[{size}] __attribute__((aligned(64)));")
            if (buffer, offset) in loads:
                self.emit(f"f32_of_f16_{kind}({row}, &{start}{count});")
            if (buffer, offset) in stored:
                store_lines.append(f"f16_of_f32_{kind}(&{start}, {row}{count});")
            self.f32_copies[buffer, offset] = f"{row}[{name} - block]"
        return store_lines

    def emit_loop_with_borders(self, last: Var, stores: Sequence[Store]) -> None:
        """Emit a loop in up to three parts: its interior, where all bounds tests hold, and two borders."""
        period = index_period(last, stores)
        if period > 1:
            periods, bodies, remainder = unroll_period(last, period, stores)
            self.emit_loop_with_borders(periods, [step for iteration in bodies for step in iteration])
            for iteration in remainder:
                self.emit_stores(iteration)
            return
        name, size = self.loop_name(last), last.extent
        start, end, tests = interior_range(last, [step.body for step in stores])
        for first, stop, known in (0, start, ()), (start, end, tests), (end, size, ()):
            if first >= stop:
                continue
            long = stop - first >= 8 and not known
            if long and self.emit_in_blocks(last, (first, stop), stores, parallel=False):
                continue
            saved = self.begin_hoisting(last, (first, stop), stores)
            if stop - first >= 8:
                self.emit("#pragma omp simd")
            begin = mark_size(first) if first else "0"
            self.open(f"for (int64_t {name} = {begin}; {name} < {mark_size(stop)}; {name}++)")
            self.true_tests = {id(test) for test in known}
            self.emit_stores(stores)
            self.true_tests = set()
            self.close()
            self.end_hoisting(saved)

    def emit_reduction_kernel(self, *, parallel: bool, split: bool) -> None:
        """Emit the outer loops, tiled along the lane. The threads share them unless each pass is split."""
        outer = [v for v in self.kernel.outer if v is not self.lane]
        count = len(outer) + (self.lane is not None)
        if parallel and count and not split:
            self.emit(f"#pragma omp parallel for collapse({count}) schedule(static)")
        self.open_loops(outer)
        if self.lane is not None:
            self.open_tiles(self.lane, self.tile_width)
        self.emit_iteration(split=split)
        self.close(count)

    def open_tiles(self, lane: Var, width: int) -> None:
        """Open a loop over tiles of one width: the last one overlaps the one before it."""
        size = mark_size(lane.extent)
        self.open(f"for (int64_t next = 0; next < {size}; next += {width})")
        self.emit(f"const int64_t tile = next + {width} < {size} ? next : {size} - {width};")

    def emit_partial_sum_kernel(self, *, parallel: bool) -> None:
        """Emit the outer loops in chunks of consecutive iterations, each with its own partial sums."""
        kernel = self.kernel
        sums = [step for step in kernel.steps if isinstance(step, PartialSum)]
        num_iterations = mark_size(math.prod(v.extent for v in kernel.outer))
        if parallel:
            self.emit("#pragma omp parallel for schedule(static)")
        self.open(f"for (int64_t chunk = 0; chunk < {mark_size(kernel.num_chunks)}; chunk++)")
        for i, step in enumerate(sums):
            self.partial_sums[step] = f"s{i}_block"
            count = math.prod(step.buffer.shape[1:])
            capacity = 1 << (count - 1).bit_length()
            self.emit(f"{C_TYPES[step.buffer.dtype]} s{i}_block[{capacity}] __attribute__((aligned(64)));")
            self.emit(f"double s{i}[{capacity}] __attribute__((aligned(64)));")
            self.emit(f"for (int64_t j = 0; j < {mark_size(count)}; j++) s{i}[j] = s{i}_block[j] = 0;")
        self.emit(f"const int64_t stop = (chunk + 1) * {num_iterations} / {mark_size(kernel.num_chunks)};")
        first = f"chunk * {num_iterations} / {mark_size(kernel.num_chunks)}"
        self.open(f"for (int64_t block = {first}; block < stop; block += {_LANE_SUM_BLOCK})")
        self.emit(f"const int64_t end = block + {_LANE_SUM_BLOCK} < stop ? block + {_LANE_SUM_BLOCK} : stop;")
        self.open("for (int64_t iteration = block; iteration < end; iteration++)")
        stride = 1
        for var in reversed(kernel.outer):
            quotient = "iteration" if stride == 1 else f"iteration / {mark_size(stride)}"
            rest = "" if var is kernel.outer[0] else f" % {mark_size(var.extent)}"
            self.emit(f"const int64_t {self.loop_name(var)} = {quotient}{rest};")
            stride *= var.extent
        self.emit_iteration(split=False)
        self.close()
        sizes = [mark_size(math.prod(step.buffer.shape[1:])) for step in sums]
        for i, size in enumerate(sizes):
            self.emit(f"for (int64_t j = 0; j < {size}; j++) s{i}[j] += s{i}_block[j], s{i}_block[j] = 0;")
        self.close()
        for i, (step, size) in enumerate(zip(sums, sizes, strict=True)):
            self.used_buffers[step.buffer] = None
            value = f"s{i}[j]"
            if step.buffer.dtype in SIXTEEN_BIT_FLOATS:
                value = f"{SIXTEEN_BIT_FLOATS[step.buffer.dtype]}_of_f32({value})"
            name = self.buffer_name(step.buffer)
            self.emit(f"for (int64_t j = 0; j < {size}; j++) {name}[chunk * {size} + j] = {value};")
        self.close()

    def emit_iteration(self, *, split: bool) -> None:
        """Emit the body of the outer loops: scratch arrays, then the passes that share them."""
        for buffer in self.kernel.scratch:
            self.scratch_offsets[buffer] = self.scratch_offset(buffer)
            # A power of two, so that many shapes share the same source.
            capacity = (
                1
                << (math.prod(buffer.shape) * self.tile_width + self.scratch_offsets[buffer] - 1).bit_length()
            )
            name = self.buffer_name(buffer)
            self.emit(f"{MEMORY_TYPES[buffer.dtype]} {name}[{capacity}] __attribute__((aligned(64)));")
        for buffer, start, extent in next_pooling_rows(self.kernel) if self.lane is None else ():
            self.emit(self.prefetch_text(buffer, start, "0", mark_size(extent)))
        for steps in self.passes:
            self.emit_pass(steps, split=split)

    def scratch_offset(self, buffer: Buffer) -> int:
        """Return the index at which a scratch row starts, such that its interior loop is cache-line aligned.

        Otherwise gcc peels scalar iterations up to the first line: for a row of 2 KB as long as the rest.
        """
        line = _CACHE_LINE // buffer.dtype.itemsize
        starts = [
            interior_range(step.inner[0], [step.body])[0]
            for step in self.kernel.stores
            if step.buffer is buffer and len(step.inner) == 1
        ]
        return -starts[0] % line if starts and self.lane is None else 0

    def emit_scan_kernel(self, parallel: bool) -> None:
        """Emit a kernel of scans: the inner loop in order, for each outer iteration or a tile of them."""
        scan_steps = [step for step in self.kernel.steps if isinstance(step, ScanStep)]
        ((along,),) = {step.inner for step in self.kernel.steps}
        lane, tile_width, is_vectorized = select_scan_lane(self.kernel)
        lead = [v for v in self.kernel.outer if v is not lane]
        count = len(lead) + (lane is not None)
        if parallel and count:
            self.emit(f"#pragma omp parallel for collapse({count}) schedule(static)")
        self.open_loops(lead)
        if lane is not None:
            self.open_tiles(lane, tile_width)
        states = create_scan_states(scan_steps, tile_width if lane is not None else 0, is_vectorized)
        for state in states:
            self.emit_all(state.declarations())
        lanes = f"for (int64_t l = 0; l < {tile_width}; l++)"
        if lane is not None:
            self.open(lanes)
        self.emit_all([line for state in states for line in state.initial_values()])
        self.close(lane is not None)
        self.open_loop(along)
        if lane is not None:
            if is_vectorized:
                self.emit("#pragma omp simd")
            self.open(lanes)
            self.emit(f"const int64_t {self.loop_name(lane)} = tile + l;")
        values = self.emit_exprs([step.body for step in scan_steps])
        for state, value in zip(states, values, strict=True):
            self.emit_all(state.update(value, self.loop_name(along)))
            self.scan_results[state.step.scan, state.step.index] = state.result_text()
        self.emit_stores(self.kernel.stores)
        self.close(count + 1 + (lane is not None))

    # --- passes -------------------------------------------------------------------------------------------

    def emit_pass(self, steps: Sequence[ReductionStep | Store], *, split: bool) -> None:
        """Emit one pass along the inner loops: reductions that share them, or stores."""
        inner = steps[0].inner
        reductions = [step for step in steps if isinstance(step, ReductionStep)]
        stores = [step for step in steps if isinstance(step, Store)]
        split = split and math.prod(v.extent for v in inner) * self.tile_width >= _MIN_PARALLEL
        if self.lane is not None and inner:
            self.emit_lane_values(inner, [step.body for step in steps])
        if not reductions:
            self.emit_store_loops(inner, stores, parallel=split)
            self.hoisted_names = {}
            return
        lanes = self.tile_width if self.lane is not None else 0
        accs = create_accumulators(
            reductions, len(self.reduction_results), lanes, self.part_width if lanes else 0
        )
        exp_sums = [acc for acc in accs if isinstance(acc, OnlineExpSum)]
        if split:
            for acc in accs:
                self.emit_all(acc.declarations("chunks", _NUM_CHUNKS))
            chunked_loop = next(
                (v for v in inner if v.extent >= _NUM_CHUNKS), max(inner, key=lambda v: v.extent)
            )
            self.emit("#pragma omp parallel for schedule(static)")
            self.open(f"for (int64_t chunk = 0; chunk < {_NUM_CHUNKS}; chunk++)")
            self.declare_totals(accs)
            self.emit_reduction_loops(accs, stores, inner, chunked_loop)
            self.emit_in_lanes([line for acc in accs for line in acc.copy_to_chunk("[chunk]")])
            self.close()
            self.declare_totals(accs)
            # Sums of exponentials come second: they are rescaled by the maximum of all chunks.
            for group in ([acc for acc in accs if acc not in exp_sums], exp_sums):
                if not group:
                    continue
                self.open(f"for (int64_t chunk = 0; chunk < {_NUM_CHUNKS}; chunk++)")
                self.emit_in_lanes([line for acc in group for line in acc.merge("chunks", "[chunk]")])
                self.close()
        else:
            self.declare_totals(accs)
            self.emit_reduction_loops(accs, stores, inner, None)
        for acc in accs:
            if not acc.lanes:
                self.emit_all(acc.result_definition())
            self.reduction_results[acc.step.reduction, acc.step.index] = acc.result_text()
        self.hoisted_names = {}

    def emit_lane_values(self, inner: Sequence[Var], exprs: Sequence[Expr]) -> None:
        """Compute once for each lane what does not vary along a pass's inner loops, such as scales."""
        found: dict[Expr, None] = {}
        visited: set[Expr] = set()

        def visit(e: Expr) -> None:
            if e in visited:
                return
            visited.add(e)
            used = variables([e])
            if (
                self.lane in used
                and not used.intersection(inner)
                and not any(x.op in _NOT_HOISTED for x in walk([e]))
            ):
                if e.op not in ("load", "index"):
                    found[e] = None
                return
            for i, argument in enumerate(e.args):
                if e.op != "masked" or i != 1:  # what is computed where a test holds may not be elsewhere
                    visit(argument)

        for e in exprs:
            visit(e)
        if not found:
            return
        names = [f"c{next(self.lane_values)}" for _ in found]
        for e, name in zip(found, names, strict=True):
            self.emit(f"{C_TYPES[e.dtype]} {name}[{self.tile_width}];")
        num_opened = self.open_lane_loops()
        for name, value in zip(names, self.emit_exprs(list(found)), strict=True):
            self.emit(f"{name}[u + l] = {value};")
        self.end_body(())
        self.close(num_opened)
        self.hoisted_names = {id(e): f"{name}[u + l]" for e, name in zip(found, names, strict=True)}

    def declare_totals(self, accs: Sequence[Accumulator]) -> None:
        """Declare and initialize the totals of reductions."""
        for acc in accs:
            self.emit_all(acc.declarations("total"))
            if acc.is_arg and not acc.lanes:
                self.emit(f"{acc.index_type} {acc.name}_total_at = 0;")
        if self.lane is not None:
            self.emit_in_lanes([line for acc in accs for line in acc.reset("total")])

    def emit_reduction_loops(
        self,
        accs: Sequence[Accumulator],
        stores: Sequence[Store],
        inner: tuple[Var, ...],
        chunked_loop: Var | None,
    ) -> None:
        """Emit the loops that compute totals; with a `chunked_loop`, of its current chunk."""

        def bounds(var: Var) -> tuple[str, str]:
            size = mark_size(var.extent)
            if var is not chunked_loop:
                return "0", size
            return f"chunk * {size} / {_NUM_CHUNKS}", f"(chunk + 1) * {size} / {_NUM_CHUNKS}"

        flat_index = _flat_index(inner)
        if not inner:
            self.emit_reduction_body(accs, stores, flat_index, is_blocked=False)
            return
        *lead, last = inner
        arg_reductions = [acc for acc in accs if acc.is_arg and not acc.lanes]
        exp_sums = [acc for acc in accs if isinstance(acc, OnlineExpSum)]
        square_sums = [acc for acc in accs if isinstance(acc, OnlineSquareSum)]
        accs = [acc for acc in accs if acc not in exp_sums]
        for acc in arg_reductions:
            for var in inner:
                self.emit(f"int64_t {acc.name}_{self.loop_name(var)} = {bounds(var)[0]};")
        last_name = self.loop_name(last)
        has_block_sums = any(acc.block_type != acc.type for acc in accs)
        block_size = _SUM_BLOCK if has_block_sums else _NO_SUM_BLOCK
        if exp_sums and not has_block_sums:
            block_size = _EXP_BLOCK
        if has_block_sums and _converts_int64_to_float([acc.step.body for acc in accs]):
            block_size = _SCALAR_SUM_BLOCK
        if self.lane is not None:
            block_size = _LANE_SUM_BLOCK if has_block_sums else _LANE_NO_SUM_BLOCK
            if exp_sums or square_sums:
                block_size = _ONLINE_LANE_BLOCK
        if arg_reductions:
            block_size = min(block_size, _ARG_BLOCK)
        float16_rows: list[tuple[Buffer, IndexExpr]] = []
        if self.lane is None:
            float16_rows, _ = _find_float16_rows(last, [acc.step.body for acc in (*accs, *exp_sums)])
        if float16_rows:
            block_size = min(block_size, _FLOAT16_BLOCK)
        start, stop = bounds(last)
        if square_sums:
            self.emit_initial_means(
                square_sums, [(var, bounds(var)[0]) for var in lead], last, block_size, bounds(last)
            )
        for var in lead:
            self.open_loop(var, *bounds(var))
        self.open(f"for (int64_t block = {start}; block < {stop}; block += {block_size})")
        self.emit(f"const int64_t end = block + {block_size} < {stop} ? block + {block_size} : {stop};")
        if lead and self.lane is None:
            rows = next_reduction_rows(lead[-1], last, [acc.step.body for acc in (*accs, *exp_sums)])
            self.emit_prefetch(rows, f"{self.loop_name(lead[-1])} + 1 < {bounds(lead[-1])[1]}")
        if not lead and self.lane is None:
            for buffer, row_start in next_output_rows(self.kernel, stores, last):
                self.emit(self.prefetch_text(buffer, row_start, "block", "end", ", 1"))
        self.emit_f32_copies(float16_rows, [], last, block_size, is_full=False)
        for acc in square_sums:
            self.emit(f"{acc.name}_count += end - block;")
        if self.lane is not None:
            self.open_tile_parts()
            self.in_tile_part = True
        for group in (accs, exp_sums) if exp_sums else (accs,):
            if group is exp_sums:
                self.emit_in_lanes([line for acc in exp_sums for line in acc.rescale()])
            for acc in group:
                self.emit_all(acc.declarations("block"))
            if self.lane is not None:
                self.emit_in_lanes([line for acc in group for line in acc.reset("block")])
            else:
                self.emit("#pragma omp simd" + "".join(acc.omp_clauses("block") for acc in group))
            self.open_loop(last, "block", "end")
            self.emit_reduction_body(group, stores if group is accs else [], flat_index, is_blocked=True)
            self.close()
            self.emit_in_lanes(
                [line for acc in group if acc not in arg_reductions for line in acc.merge("block", "")]
            )
        self.f32_copies = {}
        if self.lane is not None:
            self.close()
            self.in_tile_part = False
        for acc in arg_reductions:
            self.open(f"if ({acc.improvement_test()})")
            self.emit_all(acc.take_block())
            for var in lead:
                self.emit(f"{acc.name}_{self.loop_name(var)} = {self.loop_name(var)};")
            self.emit(f"{acc.name}_{last_name} = block;")
            self.close()
        self.close(len(inner))
        for acc in arg_reductions:
            self.emit_arg_search(acc, inner, block_size, bounds(last)[1])

    def emit_prefetch(self, rows: Sequence[tuple[Buffer, IndexExpr]], condition: str) -> None:
        """Emit prefetches of the next iteration's rows, under a condition that there is a next iteration."""
        new_rows = [row for row in rows if row[0] not in self.prefetched]
        self.prefetched |= {buffer for buffer, _ in new_rows}  # a later pass finds them in the cache
        if new_rows:
            self.open(f"if ({condition})")
            for buffer, start in new_rows:
                self.emit(self.prefetch_text(buffer, start, "block", "end", ", 0, 2"))
            self.close()

    def prefetch_text(
        self, buffer: Buffer, row_start: IndexExpr, start: str, stop: str, hints: str = ""
    ) -> str:
        """Return a loop that prefetches the cache lines of part of a buffer."""
        step, first_element = _CACHE_LINE // buffer.dtype.itemsize, self.element_text(buffer, row_start)
        loop = f"for (int64_t p = {start}; p < {stop}; p += {step})"
        return f"{loop} __builtin_prefetch(&{first_element} + p{hints});"

    def emit_initial_means(
        self,
        square_sums: Sequence[OnlineSquareSum],
        lead: Sequence[tuple[Var, str]],
        last: Var,
        block_size: int,
        bounds: tuple[str, str],
    ) -> None:
        """Emit the mean of the first block, the first reference of sums of squares."""
        start, stop = bounds
        self.open()
        for var, value in lead:
            self.emit(f"const int64_t {self.loop_name(var)} = {value};")
        self.emit(f"const int64_t end = {start} + {block_size} < {stop} ? {start} + {block_size} : {stop};")
        if self.lane is not None:
            self.open_tile_parts()
            self.in_tile_part = True
        for acc in square_sums:
            self.emit_all(acc.declarations("block"))
        if self.lane is not None:
            self.emit_in_lanes([line for acc in square_sums for line in acc.reset("block")])
        else:
            self.emit("#pragma omp simd" + "".join(acc.omp_clauses("block") for acc in square_sums))
        self.open_loop(last, start, "end")
        num_opened = self.open_lane_loops()
        for acc, value in zip(
            square_sums, self.emit_exprs([acc.step.body for acc in square_sums]), strict=True
        ):
            self.emit_all(acc.add_to_first_sum(value))
        self.end_body(())
        self.close(num_opened + 1)
        self.emit_in_lanes([line for acc in square_sums for line in acc.set_first_mean(f"end - ({start})")])
        if self.lane is not None:
            self.close()
            self.in_tile_part = False
        self.close()

    def emit_arg_search(self, acc: Accumulator, inner: tuple[Var, ...], block_size: int, stop: str) -> None:
        """Emit a scalar search for the index of the first extreme in its block.

        The vector loop may have computed values that differ in the last bit, so its extreme is not used here.
        """
        *lead, last = inner
        self.open()
        for var in lead:
            self.emit(f"const int64_t {self.loop_name(var)} = {acc.name}_{self.loop_name(var)};")
        start = f"{acc.name}_{self.loop_name(last)}"
        self.emit(f"const int64_t end = {start} + {block_size} < {stop} ? {start} + {block_size} : {stop};")
        self.emit(f"{acc.type} best = {acc.start};")
        flat_index = _flat_index(inner)
        self.emit(f"{acc.name}_total_at = {flat_index(lambda v: start if v is last else self.loop_name(v))};")
        self.open_loop(last, start, "end")
        (value,) = self.emit_exprs([acc.step.body])
        nan = f" || ({value} != {value} && best == best)" if acc.propagates_nan else ""
        self.emit(f"if ({value} {acc.comparison} best{nan}) {{")
        self.emit(f"    best = {value};")
        self.emit(f"    {acc.name}_total_at = {flat_index(self.loop_name)};")
        self.emit("}")
        self.end_body(())
        self.close(2)

    def emit_reduction_body(
        self,
        accs: Sequence[Accumulator],
        stores: Sequence[Store],
        flat_index: Callable[..., str],
        *,
        is_blocked: bool,
    ) -> None:
        """Emit the body of the inner loops: add to each reduction, then the stores of the same pass."""
        num_opened = self.open_lane_loops()
        level = "block" if is_blocked else "total"
        operands = [acc.step.body.args if acc.uses_fma(level) else (acc.step.body,) for acc in accs]
        values = iter(self.emit_exprs([*itertools.chain(*operands), *(step.body for step in stores)]))
        for acc, pair in zip(accs, operands, strict=True):
            if len(pair) == 2:
                self.emit_all(acc.add_with_fma(next(values), next(values), level))
            else:
                self.emit_all(acc.add(next(values), level, flat_index(self.loop_name)))
        for step, value in zip(stores, values, strict=True):
            self.emit_store(step, value)
        self.end_body(stores)
        self.close(num_opened)

    def emit_store_loops(self, inner: tuple[Var, ...], stores: Sequence[Store], *, parallel: bool) -> None:
        """Emit stores for each iteration of their inner loops."""
        if inner:
            *lead, last = inner
            if self.lane is not None:
                lead = list(inner)
            if parallel and lead:
                self.emit(f"#pragma omp parallel for collapse({len(lead)}) schedule(static)")
            self.open_loops(lead)
            if self.lane is None:
                if parallel and not lead:
                    self.emit_threaded_loop(last, stores)
                else:
                    self.emit_loop_with_borders(last, stores)
                self.close(len(lead))
                return
        num_opened = self.open_lane_loops()
        self.emit_stores(stores)
        self.close(len(inner) + num_opened)

    def open_lane_loops(self) -> int:
        """Open loops over the lanes, if any, and define the lane's loop variable; return their number."""
        if self.lane is None:
            return 0
        num_opened = self.open_lanes()
        self.emit(f"const int64_t {self.loop_name(self.lane)} = tile + u + l;")
        return num_opened

    def open_tile_parts(self) -> None:
        """Open a loop over the parts of a tile, each of which fits into registers."""
        self.open(f"for (int64_t u = 0; u < {self.tile_width}; u += {self.part_width})")

    def open_lanes(self) -> int:
        """Open loops over the lanes of a tile, or of its current part; return their number."""
        assert self.lane is not None
        num_opened = 1 if self.in_tile_part else 2
        if not self.in_tile_part:
            self.open_tile_parts()
        self.emit("#pragma omp simd")
        self.open(f"for (int64_t l = 0; l < {self.part_width}; l++)")
        return num_opened

    def emit_in_lanes(self, lines: Sequence[str]) -> None:
        """Emit lines in a loop over the lanes, or as they are where there are none."""
        num_opened = self.open_lanes() if lines and self.lane is not None else 0
        self.emit_all(lines)
        self.close(num_opened)


def _part_width(width: int) -> int:
    """Return the lanes of a part of a tile, which stay in registers; 0 if the tile has no equal parts."""
    if width <= _REGISTER_LANES:
        return width
    return next((w for w in range(_REGISTER_LANES, 0, -8) if width % w == 0), 0)


def _value_before_rounding(step: Store) -> Expr:
    """Return the value of a store without its cast to the buffer's 16-bit dtype: the store rounds anyway."""
    value = step.body
    rounds = value.op == "cast" and value.dtype == step.buffer.dtype and value.dtype in SIXTEEN_BIT_FLOATS
    return value.args[0] if rounds else value


def _converts_int64_to_float(exprs: Sequence[Expr]) -> bool:
    """Whether int64 values are converted to float32, which cannot be vectorised without AVX-512."""
    casts = [e for e in walk(exprs) if e.op == "cast" and e.dtype == torch.float32]
    return any(e.args[0].dtype == torch.int64 and variables(e.args) for e in casts)


def _find_float16_rows(
    loop: Var, exprs: Sequence[Expr], stores: Sequence[Store] = ()
) -> tuple[list[tuple[Buffer, IndexExpr]], list[tuple[Buffer, IndexExpr]]]:
    """Return the float16 loads of expressions, and the float16 stores, that are contiguous along a loop."""
    all_accesses: list[list[tuple[Buffer, IndexExpr]]] = [[], []]
    for e in unconditional_exprs(exprs):
        if e.op == "load" and not e.args:
            all_accesses[0].append(e.extra)
    all_accesses[1] += [(step.buffer, step.offset) for step in stores if type(step) is Store]

    def is_row(buffer: Buffer, offset: IndexExpr) -> bool:
        return buffer.dtype == torch.float16 and buffer.role != "local" and offset.stride(loop) == 1

    loads, stored = ([access for access in accesses if is_row(*access)] for accesses in all_accesses)
    return loads, stored


def _flat_index(inner: tuple[Var, ...]) -> Callable[[Callable[[Var], str]], str]:
    """Return a function that gives the flattened iteration number of nested loops, from their names."""

    def text(loop_name: Callable[[Var], str]) -> str:
        parts, step = [], 1
        for var in reversed(inner):
            parts.append(loop_name(var) if step == 1 else f"{loop_name(var)} * {mark_size(step)}")
            step *= var.extent
        return " + ".join(reversed(parts)) or "0"

    return text
