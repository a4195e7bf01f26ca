"""Printing kernels as C: loops with OpenMP, bodies that the compiler's vectoriser takes.

A kernel is printed in one of five forms. *Elementwise*: nothing is folded; where what is loaded lies across
what is stored, square by square. *Rows*: turns of the outer loops
go to the threads, each makes its passes along the inner loops. *Columns*: where memory runs along an outer
loop, a turn takes a tile of it, and there is an accumulator for each of its lanes. *Split*: there are few
turns of many elements, so that each pass is cut into chunks for the threads, with rows or with columns.
*Runs*: runs of consecutive turns go to the threads, and sums over the turns gather beside their rows.

Arithmetic is torch's: no fast-math, 16-bit floats are computed in float32, float32 sums are gathered in
double after every 16 or 32 additions to a lane, and at once where they are not loaded as vectors.
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
from burnt.codegen.render.c.bounds_and_prefetch import inside, next_parts, next_rows, rows_to_write
from burnt.codegen.render.c.dtypes import C_TYPES, MEMORY, SHORT
from burnt.codegen.render.c.expr import Elements, has_neighbours
from burnt.codegen.render.c.philox import BLOCK, Words, words_of
from burnt.codegen.render.c.reduction import MOVES, Accumulator, Exponentials, Squares, accumulators
from burnt.codegen.render.c.scan import lane_of_scans, states
from burnt.codegen.render.c.stride_phases import period_of, phases
from burnt.codegen.render.shape_params import mark_size
from burnt.codegen.schedule.passes import LANES, lane_loop, unconditional_exprs

__all__ = ["print_kernels"]

_PARALLEL = 1 << 15  # elements below which one thread is faster than waking the others
_CHUNKS = 64  # of a pass that is cut for the threads: enough to be even, whatever their number
_FEW = 16  # turns of the outer loops below which passes are cut instead
_BLOCK = 256  # elements of a part: 32 for each lane of a vector of 256 bits
_BLOCK_ONE_BY_ONE = 32  # where there may be no vectors, and so one lane
_BLOCK_WITHOUT_SUMS = 8192
_BLOCK_OF_ARG = 256  # which is gone through again for the place of its extreme
_BLOCK_OF_EXP = 1024  # which is gone through twice
_BLOCK_OF_HALVES = 512  # whose floats are an array
_BLOCK_OF_ONLINE_LANES = 64  # with as many lanes, a half of the first cache
_BLOCK_OF_LANES, _BLOCK_OF_LANES_WITHOUT_SUMS = 16, 128
_TILE = 1024  # lanes of a tile; 256 where there is one for each chunk
_TILE_OF_CHUNKS = 256
_LANES = 64  # lanes that are kept in registers while a block is gone through
_SQUARE = 64  # sides of what is turned over at once
_STRIP = 16  # elements of float16 that are converted together: those of the widest vector
_LINE = 64  # bytes of memory that come together
# What several passes go through, of a tile of lanes: bytes that caches hold from one to the next, and of
# scratch. Where rows are pages apart, wide tiles look up fewer: softmax of the first axis, 4096 x 1024, one
# thread, takes 14.6 ms by 16 lanes of float32 and 9.8 by 32; of bfloat16 (16 are half a line) 15.1 and 7.2.
_CACHE = 1 << 21
_TILE_SCRATCH = 1 << 19

# When a turn stores neighbours, gcc packs what they come from into vectors. gcc before 14 (but for 11.5, 12.4
# and 13.3; its bug 114375) drops the order of packed loads that are under a test. It packs nothing in a loop
# with such a statement, and has no other way to be told so.
_HELPERS = """
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 14
#define LOADS_UNDER_TESTS __asm__ volatile("")
#else
#define LOADS_UNDER_TESTS
#endif
static inline int64_t pick_i64(int t, int64_t a, int64_t b)
{
    return (a & -(int64_t)t) | (b & ((int64_t)t - 1));
}
static inline int32_t pick_i32(int t, int32_t a, int32_t b) { return (a & -t) | (b & (t - 1)); }
static inline float pick_f32(int t, float a, float b)
{
    return float_of_bits((bits_f32(a) & -(uint32_t)t) | (bits_f32(b) & ((uint32_t)t - 1)));
}
static inline double pick_f64(int t, double a, double b)
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
    {_t}_t whole = 1;
    for (; b; b >>= 1, a *= a) whole *= b & 1 ? a : 1;
    return whole;
}}
"""
for _t, _f in (("float", "f32"), ("double", "f64")):
    _HELPERS += f"""
static inline {_t} trunc_div_{_f}({_t} a, {_t} b) {{ return trunc_{_f}(a / b); }}
static inline {_t} floor_div_{_f}({_t} a, {_t} b)
{{
    const {_t} m = fmod_{_f}(a, b), whole = (a - m) / b, lower = whole - (m != 0 && (b < 0) != (m < 0));
    const {_t} down = floor_{_f}(lower), near = lower - down > ({_t})0.5 ? down + 1 : down;
    return b == 0 ? a / b : lower == 0 ? copysign_{_f}(0, a / b) : near;
}}
"""


def print_kernels(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> str:
    """The C of kernels, each a function ``void name(const burnt_arg *a)`` as `toolchain.load` wants it.

    Integers that come from shapes are marked (`burnt.codegen.render.shape_params`).

    Where a kernel has checks, an address follows those of the buffers: of a word for each of the kernel's
    checks, into which goes ``2 * shown + 1`` (as uint64) of one element that fails, if any does.

    Args:
        kernels: what to print; their names are the functions'.
        buffers: in the order in which their addresses are given.
        numbers: positions of run-time numbers, in the order in which they follow the addresses.
    """
    slots: dict[object, int] = {buffer: i for i, buffer in enumerate(buffers)}
    if any(kernel.checks for kernel in kernels):
        slots["failed"] = len(buffers)
    slots |= {number: len(slots) + i for i, number in enumerate(numbers)}
    return "\n".join(
        [prelude.source(), _HELPERS, MOVES, *(_Printer(kernel, slots).text() for kernel in kernels)]
    )


class _Printer(Elements):
    def __init__(self, kernel: Kernel, slots: dict[object, int]) -> None:
        super().__init__(kernel, slots)
        self.passes: list[list[ReductionStep | Store]] = []
        self.inside = False  # of a part of a tile
        self.fetched: set[Buffer] = set()  # whose rows are asked for ahead of their turn

    def text(self) -> str:
        kernel = self.kernel
        self.passes = kernel.passes()
        turns = math.prod(v.extent for v in kernel.outer)
        inner = max((math.prod(v.extent for v in step.inner) for step in kernel.steps), default=1)
        if kernel.kind == "scan":
            self.scans(turns * inner >= _PARALLEL)
        elif kernel.num_chunks:
            self.runs(parallel=turns * inner >= _PARALLEL)
        elif kernel.kind == "elementwise":
            self.elementwise(turns)
        else:
            self.lane = lane_loop(kernel)
            count, split = turns, turns < _FEW
            if self.lane is not None:
                self.tile = self.width(inner, _TILE)
                count = turns // self.lane.extent * -(-self.lane.extent // self.tile)
                split = count < _FEW and inner * self.tile >= _PARALLEL
                if split:
                    self.tile = self.width(inner, _TILE_OF_CHUNKS)
            self.turns(parallel=turns * inner >= _PARALLEL, split=split and inner * self.tile >= _PARALLEL)
        head = [f"void {kernel.name}(const burnt_arg *a)", "{"]
        written = kernel.buffers_written
        for buffer in self.used:
            only = "" if buffer in written else "const "
            head.append(
                f"    {only}{MEMORY[buffer.dtype]} *restrict {buffer.name} = a[{self.slots[buffer]}].p;"
            )
        if self.opaque:
            # gcc 12 takes an index that comes from a comparison for a mask in loops of SIMD, and reads
            # elsewhere; a number that it does not know makes an integer of it.
            head.append('    int64_t zero = 0; __asm__("" : "+r"(zero));')
        head += [f"    uint64_t {name} = 0;" for name in self.failed.values()]
        for i, name in enumerate(self.failed.values()):
            self.line(f"if ({name}) ((uint64_t *)a[{self.slots['failed']}].p)[{i}] = {name};")
        return "\n".join([*head, *self.lines, "}", ""])

    def width(self, inner: int, most: int) -> int:
        """How many lanes a tile has: few go twice at the end, and several passes find it in the cache."""
        assert self.lane is not None
        extent, kernel = self.lane.extent, self.kernel
        widths = [most >> k for k in range(most.bit_length()) if most >> k <= extent]
        loaded = {e.extra: e.dtype.itemsize for e in walk(kernel.exprs) if e.op == "load"}
        if sum(bool(steps[0].inner) for steps in self.passes) > 1:
            size = inner * sum(loaded.values())
            scratch = sum(math.prod(b.shape) * b.dtype.itemsize for b in kernel.scratch)
            rows = math.prod(v.extent for v in kernel.outer) // extent
            # There are enough tiles for the threads, unless there are too few of any width.
            least = min(_FEW, rows * -(-extent // LANES))
            widths = [
                w
                for w in widths
                if w <= LANES
                or (w * size <= _CACHE and w * scratch <= _TILE_SCRATCH and rows * -(-extent // w) >= least)
            ]
        # The last tile overlaps the one before it, so that the compiler knows how wide all of them are. A
        # tile costs its vectors, and about one more.
        return min(widths, key=lambda w: -(-extent // w) * (-(-w // 16) + 1))

    # --- forms --------------------------------------------------------------------------------------------

    def elementwise(self, count: int) -> None:
        loops = list(self.kernel.outer)
        stores = [step for step in self.kernel.steps if isinstance(step, Store)]
        if not loops:
            self.bodies(stores)
            return
        *lead, last = loops
        across = self.across(lead, last, stores)
        if across is not None:
            self.tiled(lead, across, last, stores, parallel=count >= _PARALLEL)
            return
        rows = math.prod(v.extent for v in lead)
        if count >= _PARALLEL and rows < 8:
            self.loops(lead)
            self.threaded(last, stores)
            self.close(len(lead))
            return
        period = period_of(lead[-1], stores) if lead else 1
        if period == 1:
            self.rows(lead, last, [stores], parallel=count >= _PARALLEL)
            return
        periods, along, rest = phases(lead[-1], period, stores)
        self.rows([*lead[:-1], periods], last, along, parallel=count >= _PARALLEL)
        if rest:
            self.rows(lead[:-1], last, rest, parallel=False)

    def rows(
        self, lead: Sequence[Var], last: Var, bodies: Sequence[Sequence[Store]], *, parallel: bool
    ) -> None:
        """Stores for all turns of some loops, row after row; of several bodies, several rows in each turn."""
        if parallel and lead:
            self.line(f"#pragma omp parallel for collapse({len(lead)}) schedule(static)")
        self.loops(lead)
        for stores in bodies:
            self.spans(last, stores)
        self.close(len(lead))

    def across(self, lead: Sequence[Var], last: Var, stores: Sequence[Store]) -> Var | None:
        """The loop along which what is loaded lies, where stores go along another one."""
        found: dict[Var, list[Expr]] = {}
        for e in unconditional_exprs([step.value for step in stores]):
            if e.op != "load" or e.args or e.extra[1].stride(last) in (None, 0, 1):  # type: ignore[attr-defined]
                continue
            for v in lead:
                if e.extra[1].stride(v) == 1 and min(v.extent, last.extent) >= _SQUARE // 2:  # type: ignore[attr-defined]
                    found.setdefault(v, []).append(e)
        across = max(found, key=lambda v: len(found[v]), default=None)
        if across is not None:
            self.squares = {e: f"q{i}" for i, e in enumerate(found[across])}
        return across

    def tiled(
        self, lead: Sequence[Var], across: Var, last: Var, stores: Sequence[Store], *, parallel: bool
    ) -> None:
        """Stores square by square, each loaded the way it lies first: the lines of memory of a square whose
        rows are a power of two apart would drive each other out of the cache."""
        others = [v for v in lead if v is not across]
        if parallel:
            self.line(f"#pragma omp parallel for collapse({len(others) + 1}) schedule(static)")
        self.loops(others)
        ends = {}
        for var, start in ((across, "down"), (last, "right")):
            size = mark_size(var.extent)
            self.line(f"for (int64_t {start} = 0; {start} < {size}; {start} += {_SQUARE}) {{")
            self.depth += 1
            ends[var] = f"({start} + {_SQUARE} < {size} ? {start} + {_SQUARE} : {size})"
        down = Var(across.extent + 1)
        self.names[down] = "down"
        for e, name in self.squares.items():
            buffer: Buffer = e.extra[0]  # type: ignore[assignment]
            half = buffer.dtype == torch.float16
            row, column = f"{self.named(last)} - right", f"{self.named(across)} - down"
            self.line(f"{'float' if half else MEMORY[buffer.dtype]} {name}[{_SQUARE}][{_SQUARE + 1}];")
            self.loop(last, "right", ends[last])
            if half:
                start = self.element(buffer, e.extra[1].substitute({across: IndexExpr.of(down)}))  # type: ignore[attr-defined]
                self.line(f"f32_of_f16_row({name}[{row}], &{start}, {ends[across]} - down);")
            else:
                self.line("#pragma omp simd")
                self.loop(across, "down", ends[across])
                self.line(f"{name}[{row}][{column}] = {self.element(buffer, e.extra[1])};")  # type: ignore[arg-type]
                self.close(1)
            self.close(1)
            self.squares[e] = f"{name}[{row}][{column}]"
            if half:
                self.halves[buffer, e.extra[1]] = self.squares[e]  # type: ignore[index]
        self.loop(across, "down", ends[across])
        self.line("#pragma omp simd")
        self.loop(last, "right", ends[last])
        self.bodies(stores)
        self.close(4 + len(others))
        self.squares, self.halves = {}, {}

    def bodies(self, stores: Sequence[Store]) -> None:
        values = [_unrounded(step) for step in stores]
        first: list[Expr] = []
        if has_neighbours(stores):
            # Between two choices by the same test they would come under it (`LOADS_UNDER_TESTS`).
            first = [e for e in unconditional_exprs(values) if e.op == "load" and not e.args]
        names = self.exprs(values, first)
        for step, name in zip(stores, names, strict=True):
            self.put(step, name)
        self.end_of_body(stores)

    def threaded(self, last: Var, stores: Sequence[Store]) -> None:
        """Stores for every turn of a loop, which is cut for the threads."""
        if self.in_blocks(last, (0, last.extent), stores, parallel=True):
            return
        self.line("#pragma omp parallel for simd schedule(static)")
        self.loop(last)
        self.bodies(stores)
        self.close(1)

    def in_blocks(self, last: Var, span: tuple[int, int], stores: Sequence[Store], *, parallel: bool) -> bool:
        """Stores for some turns of a loop in blocks; whether there is any use in blocks.

        For each block random numbers are made first, and what is float16 in memory is converted before and
        after. Where that is all, blocks are so small that their floats stay in registers.
        """
        words = words_of(last, [step.value for step in stores])
        if not words and not any(_halves(last, [step.value for step in stores], stores)):
            return False
        before = self.hoist(last, span, stores)
        first, stop = map(mark_size, span)
        size = BLOCK if words else _STRIP
        whole = not words and span[1] - span[0] >= size
        if words or whole:
            if parallel:
                self.line("#pragma omp parallel for schedule(static)")
            last_start = f"{stop} - {size - 1}" if whole else stop
            self.line(f"for (int64_t block = {first}; block < {last_start}; block += {size}) {{")
            self.depth += 1
            if words:
                self.line(f"const int64_t end = block + {size} < {stop} ? block + {size} : {stop};")
            self.block(last, stores, words, size, whole=whole)
            self.close(1)
        if not words:
            self.line("{")
            self.depth += 1
            count = f"({stop} - {first})" if span[0] else stop
            self.line(f"const int64_t end = {stop}, block = end - {count} % {size};")
            self.block(last, stores, words, size, whole=False)
            self.close(1)
        self.hoisted_before(before)
        return True

    def hoist(self, last: Var, span: tuple[int, int], stores: Sequence[Store]) -> list[str]:
        """Begin to gather what is the same for all turns of a loop; the lines before."""
        before, self.lines, self.hoisted, self.uniform, self.lifted = self.lines, [], [], {}, {}
        self.sure = {e for e in unconditional_exprs([step.value for step in stores]) if e.op == "load"}
        self.span, self.outside = (last, *span), self.depth
        return before

    def hoisted_before(self, before: list[str]) -> None:
        """End it: the lines before, what was gathered, and the loop."""
        self.span, self.sure, self.lifted = None, set(), {}
        self.lines = before + self.hoisted + self.lines

    def block(
        self, last: Var, stores: Sequence[Store], words: Sequence[Words], size: int, *, whole: bool
    ) -> None:
        """Stores for the turns of a loop from `block` to `end`, or for as many as a whole block has."""
        name, begin = self.named(last), Var(last.extent + 1)
        self.names[begin] = "block"
        here = {last: IndexExpr.of(begin)}
        for i, group in enumerate(words):
            (seed,) = self.exprs([group.seed])
            w, start = f"w{i}", self.place(group.first.substitute(here))
            self.line(f"const int64_t {w}_from = {start};")
            self.line(f"uint32_t {w}[{size * group.step + group.reach + 8}];")
            count = f"({w}_from % 4 + (end - block) * {group.step} + {group.reach + 3}) / 4"
            self.line(f"philox_fill({w}, {seed}, {w}_from / 4, {count}, {group.stream});")
            self.line(f"const uint32_t *{w}_at = {w} + {w}_from % 4;")
            for e, offset in group.offsets.items():
                self.words[id(e)] = f"{w}_at[({name} - block) * {group.step} + {offset}]"
        loads, stored = _halves(last, [step.value for step in stores], stores)
        after = self.rows_of_floats(loads, stored, last, size, whole=whole)
        full = whole or (not words and self.in_arrays(stores))
        self.line("#pragma omp simd")
        self.loop(last, "block", f"block + {size}" if full else "end")
        self.bodies(stores)
        self.close(1)
        self.put_lines(after)
        self.words, self.halves = {}, {}

    def in_arrays(self, stores: Sequence[Store]) -> bool:
        """Whether stores can be computed beyond the end, for a loop of whole vectors.

        What varies is in arrays of floats then, and nothing is checked, as divisors of whole numbers are.
        """

        def is_harmless(e: Expr) -> bool:
            if self.is_uniform(e):
                return True
            if e.op == "load":
                return e.extra in self.halves
            return e.op != "checked"

        written = all((step.buffer, step.offset) in self.halves for step in stores)
        return written and all(map(is_harmless, walk([step.value for step in stores])))

    def rows_of_floats(
        self,
        loads: Sequence[tuple[Buffer, IndexExpr]],
        stored: Sequence[tuple[Buffer, IndexExpr]],
        last: Var,
        size: int,
        *,
        whole: bool,
    ) -> list[str]:
        """Arrays of the floats that a block of what is float16 in memory is; the lines that store them.

        Their size is a multiple of a vector's: a conversion may go beyond the end of the block.
        """
        name, begin = self.named(last), Var(last.extent + 1)
        self.names[begin] = "block"
        form, count = ("strip", "") if whole else ("row", ", end - block")
        after = []
        for i, (buffer, place) in enumerate(dict.fromkeys([*loads, *stored])):
            row, start = f"h{i}", self.element(buffer, place.substitute({last: IndexExpr.of(begin)}))
            self.line(f"float {row}[{size}] __attribute__((aligned(64)));")
            if (buffer, place) in loads:
                self.line(f"f32_of_f16_{form}({row}, &{start}{count});")
            if (buffer, place) in stored:
                after.append(f"f16_of_f32_{form}(&{start}, {row}{count});")
            self.halves[buffer, place] = f"{row}[{name} - block]"
        return after

    def spans(self, last: Var, stores: Sequence[Store]) -> None:
        """Stores for every turn of a loop, its middle, where tests of its place hold, apart from its ends."""
        period = period_of(last, stores)
        if period > 1:
            periods, along, rest = phases(last, period, stores)
            self.spans(periods, [step for turn in along for step in turn])
            for turn in rest:
                self.bodies(turn)
            return
        name, size = self.named(last), last.extent
        start, end, tests = inside(last, [step.value for step in stores])
        for first, stop, known in (0, start, ()), (start, end, tests), (end, size, ()):
            if first >= stop:
                continue
            long = stop - first >= 8 and not known
            if long and self.in_blocks(last, (first, stop), stores, parallel=False):
                continue
            before = self.hoist(last, (first, stop), stores)
            if stop - first >= 8:
                self.line("#pragma omp simd")
            begin = mark_size(first) if first else "0"
            self.line(f"for (int64_t {name} = {begin}; {name} < {mark_size(stop)}; {name}++) {{")
            self.depth += 1
            self.known = {id(test) for test in known}
            self.bodies(stores)
            self.known = set()
            self.close(1)
            self.hoisted_before(before)

    def turns(self, *, parallel: bool, split: bool) -> None:
        """Turns of the outer loops, of tiles of a lane, for the threads unless each pass is split."""
        outer = [v for v in self.kernel.outer if v is not self.lane]
        count = len(outer) + (self.lane is not None)
        if parallel and count and not split:
            self.line(f"#pragma omp parallel for collapse({count}) schedule(static)")
        self.loops(outer)
        if self.lane is not None:
            size = mark_size(self.lane.extent)
            self.line(f"for (int64_t next = 0; next < {size}; next += {self.tile}) {{")
            self.depth += 1
            self.line(f"const int64_t tile = next + {self.tile} < {size} ? next : {size} - {self.tile};")
        self.turn(split=split)
        self.close(count)

    def runs(self, *, parallel: bool) -> None:
        """Turns in runs, whose partial sums gather beside what each turn makes."""
        kernel = self.kernel
        sums = [step for step in kernel.steps if isinstance(step, PartialSum)]
        turns = mark_size(math.prod(v.extent for v in kernel.outer))
        if parallel:
            self.line("#pragma omp parallel for schedule(static)")
        self.line(f"for (int64_t run = 0; run < {mark_size(kernel.num_chunks)}; run++) {{")
        self.depth += 1
        for i, step in enumerate(sums):
            self.partials[step] = f"s{i}_part"
            count = math.prod(step.buffer.shape[1:])
            room = 1 << (count - 1).bit_length()
            self.line(f"{C_TYPES[step.buffer.dtype]} s{i}_part[{room}] __attribute__((aligned(64)));")
            self.line(f"double s{i}[{room}] __attribute__((aligned(64)));")
            self.line(f"for (int64_t j = 0; j < {mark_size(count)}; j++) s{i}[j] = s{i}_part[j] = 0;")
        self.line(f"const int64_t stop = (run + 1) * {turns} / {mark_size(kernel.num_chunks)};")
        first = f"run * {turns} / {mark_size(kernel.num_chunks)}"
        self.line(f"for (int64_t block = {first}; block < stop; block += {_BLOCK_OF_LANES}) {{")
        self.depth += 1
        self.line(f"const int64_t end = block + {_BLOCK_OF_LANES} < stop ? block + {_BLOCK_OF_LANES} : stop;")
        self.line("for (int64_t turn = block; turn < end; turn++) {")
        self.depth += 1
        stride = 1
        for var in reversed(kernel.outer):
            quotient = "turn" if stride == 1 else f"turn / {mark_size(stride)}"
            rest = "" if var is kernel.outer[0] else f" % {mark_size(var.extent)}"
            self.line(f"const int64_t {self.named(var)} = {quotient}{rest};")
            stride *= var.extent
        self.turn(split=False)
        self.close(1)
        sizes = [mark_size(math.prod(step.buffer.shape[1:])) for step in sums]
        for i, size in enumerate(sizes):
            self.line(f"for (int64_t j = 0; j < {size}; j++) s{i}[j] += s{i}_part[j], s{i}_part[j] = 0;")
        self.close(1)
        for i, (step, size) in enumerate(zip(sums, sizes, strict=True)):
            self.used[step.buffer] = None
            value = f"s{i}[j]"
            if step.buffer.dtype in SHORT:
                value = f"{SHORT[step.buffer.dtype]}_of_f32({value})"
            self.line(f"for (int64_t j = 0; j < {size}; j++) {step.buffer.name}[run * {size} + j] = {value};")
        self.close(1)

    def turn(self, *, split: bool) -> None:
        """What one turn of the outer loops does: its passes, with the arrays that they share."""
        for buffer in self.kernel.scratch:
            self.shifts[buffer] = self.shift(buffer)
            # Of a size that many shapes share.
            room = 1 << (math.prod(buffer.shape) * self.tile + self.shifts[buffer] - 1).bit_length()
            self.line(f"{MEMORY[buffer.dtype]} {buffer.name}[{room}] __attribute__((aligned(64)));")
        for buffer, start, extent in next_rows(self.kernel) if self.lane is None else ():
            self.line(self.asked(buffer, start, "0", mark_size(extent)))
        for steps in self.passes:
            self.one_pass(steps, split=split)

    def shift(self, buffer: Buffer) -> int:
        """Where a row in scratch begins, for the loop along its middle to store whole lines.

        Otherwise gcc takes elements one by one up to the first line: of a row of 2 KB as long as the rest.
        """
        line = _LINE // buffer.dtype.itemsize
        starts = [
            inside(step.inner[0], [step.value])[0]
            for step in self.kernel.steps
            if isinstance(step, Store) and step.buffer is buffer and len(step.inner) == 1
        ]
        return -starts[0] % line if starts and self.lane is None else 0

    def scans(self, parallel: bool) -> None:
        """Turns of the inner loop in order, for every turn of the outer ones or a tile of them."""
        running = [step for step in self.kernel.steps if isinstance(step, ScanStep)]
        stores = [step for step in self.kernel.steps if isinstance(step, Store)]
        ((along,),) = {step.inner for step in self.kernel.steps}
        lane, tile, vectors = lane_of_scans(self.kernel)
        lead = [v for v in self.kernel.outer if v is not lane]
        count = len(lead) + (lane is not None)
        if parallel and count:
            self.line(f"#pragma omp parallel for collapse({count}) schedule(static)")
        self.loops(lead)
        if lane is not None:
            size = mark_size(lane.extent)
            self.line(f"for (int64_t next = 0; next < {size}; next += {tile}) {{")
            self.depth += 1
            # The last tile overlaps the one before it, so that the compiler knows how wide all of them are.
            self.line(f"const int64_t tile = next + {tile} < {size} ? next : {size} - {tile};")
        made = states(running, tile if lane is not None else 0, vectors)
        for state in made:
            self.put_lines(state.declared())
        lanes = f"for (int64_t l = 0; l < {tile}; l++) {{"
        if lane is not None:
            self.line(lanes)
            self.depth += 1
        self.put_lines([line for state in made for line in state.begun()])
        self.close(lane is not None)
        self.loop(along)
        if lane is not None:
            if vectors:
                self.line("#pragma omp simd")
            self.line(lanes)
            self.depth += 1
            self.line(f"const int64_t {self.named(lane)} = tile + l;")
        values = self.exprs([step.body for step in running])
        for state, value in zip(made, values, strict=True):
            self.put_lines(state.joined(value, self.named(along)))
            self.scanned[state.step.scan, state.step.index] = state.text()
        self.bodies(stores)
        self.close(count + 1 + (lane is not None))

    # --- passes -------------------------------------------------------------------------------------------

    def one_pass(self, steps: Sequence[ReductionStep | Store], *, split: bool) -> None:
        """A loop over the inner loops of some steps."""
        inner = steps[0].inner
        folds = [step for step in steps if isinstance(step, ReductionStep)]
        stores = [step for step in steps if isinstance(step, Store)]
        split = split and math.prod(v.extent for v in inner) * self.tile >= _PARALLEL
        if not folds:
            self.along(inner, stores, parallel=split)
            return
        lanes = self.tile if self.lane is not None else 0
        made = accumulators(folds, len(self.folds), lanes, min(lanes, _LANES))
        later = [acc for acc in made if isinstance(acc, Exponentials)]
        if split:
            for acc in made:
                self.put_lines(acc.declared("parts", _CHUNKS))
            cut = next((v for v in inner if v.extent >= _CHUNKS), max(inner, key=lambda v: v.extent))
            self.line("#pragma omp parallel for schedule(static)")
            self.line(f"for (int64_t chunk = 0; chunk < {_CHUNKS}; chunk++) {{")
            self.depth += 1
            self.whole(made)
            self.folded(made, stores, inner, cut)
            self.in_lanes([line for acc in made for line in acc.copied("[chunk]")])
            self.close(1)
            self.whole(made)
            # Exponentials are about the largest element, which has to be known before.
            for several in ([acc for acc in made if acc not in later], later):
                if not several:
                    continue
                self.line(f"for (int64_t chunk = 0; chunk < {_CHUNKS}; chunk++) {{")
                self.depth += 1
                self.in_lanes([line for acc in several for line in acc.merge("parts", "[chunk]")])
                self.close(1)
        else:
            self.whole(made)
            self.folded(made, stores, inner, None)
        for acc in made:
            if not acc.lanes:
                self.put_lines(acc.ended())
            self.folds[acc.step.reduction, acc.step.index] = acc.text()

    def whole(self, made: Sequence[Accumulator]) -> None:
        for acc in made:
            self.put_lines(acc.declared("whole"))
            if acc.is_arg and not acc.lanes:
                self.line(f"{acc.place_type} {acc.name}_whole_at = 0;")
        if self.lane is not None:
            self.in_lanes([line for acc in made for line in acc.reset("whole")])

    def folded(
        self, made: Sequence[Accumulator], stores: Sequence[Store], inner: tuple[Var, ...], cut: Var | None
    ) -> None:
        """The wholes of folds, of a chunk of one of the inner loops where it is cut."""

        def bounds(var: Var) -> tuple[str, str]:
            size = mark_size(var.extent)
            if var is not cut:
                return "0", size
            return f"chunk * {size} / {_CHUNKS}", f"(chunk + 1) * {size} / {_CHUNKS}"

        place = _flat_place(inner)
        if not inner:
            self.elements(made, stores, place, blocked=False)
            return
        *lead, last = inner
        args = [acc for acc in made if acc.is_arg and not acc.lanes]
        later = [acc for acc in made if isinstance(acc, Exponentials)]
        squares = [acc for acc in made if isinstance(acc, Squares)]
        made = [acc for acc in made if acc not in later]
        for acc in args:
            for var in inner:
                self.line(f"int64_t {acc.name}_{self.named(var)} = {bounds(var)[0]};")
        along = self.named(last)
        sums = any(acc.part_type != acc.type for acc in made)
        block = _BLOCK if sums else _BLOCK_WITHOUT_SUMS
        if later and not sums:
            block = _BLOCK_OF_EXP
        if sums and _has_wide_integers([acc.step.body for acc in made]):
            block = _BLOCK_ONE_BY_ONE
        if self.lane is not None:
            block = _BLOCK_OF_LANES if sums else _BLOCK_OF_LANES_WITHOUT_SUMS
            if later or squares:
                block = _BLOCK_OF_ONLINE_LANES
        if args:
            block = min(block, _BLOCK_OF_ARG)
        halves: list[tuple[Buffer, IndexExpr]] = []
        if self.lane is None:
            halves, _ = _halves(last, [acc.step.body for acc in (*made, *later)])
        if halves:
            block = min(block, _BLOCK_OF_HALVES)
        start, stop = bounds(last)
        if squares:
            self.references(squares, [(var, bounds(var)[0]) for var in lead], last, block, bounds(last))
        for var in lead:
            self.loop(var, *bounds(var))
        self.line(f"for (int64_t block = {start}; block < {stop}; block += {block}) {{")
        self.depth += 1
        self.line(f"const int64_t end = block + {block} < {stop} ? block + {block} : {stop};")
        if lead and self.lane is None:
            rows = next_parts(lead[-1], last, [acc.step.body for acc in (*made, *later)])
            self.fetch(rows, f"{self.named(lead[-1])} + 1 < {bounds(lead[-1])[1]}")
        if not lead and self.lane is None:
            for buffer, begin in rows_to_write(self.kernel, stores, last):
                self.line(self.asked(buffer, begin, "block", "end", ", 1"))
        self.rows_of_floats(halves, [], last, block, whole=False)
        for acc in squares:
            self.line(f"{acc.name}_turns += end - block;")
        if self.lane is not None:
            self.parts_of_tile()
            self.inside = True
        for several in (made, later) if later else (made,):
            if several is later:
                self.in_lanes([line for acc in later for line in acc.moved()])
            for acc in several:
                self.put_lines(acc.declared("part"))
            if self.lane is not None:
                self.in_lanes([line for acc in several for line in acc.reset("part")])
            else:
                self.line("#pragma omp simd" + "".join(acc.clauses("part") for acc in several))
            self.loop(last, "block", "end")
            self.elements(several, stores if several is made else [], place, blocked=True)
            self.close(1)
            self.in_lanes([line for acc in several if acc not in args for line in acc.merge("part", "")])
        self.halves = {}
        if self.lane is not None:
            self.close(1)
            self.inside = False
        for acc in args:
            self.line(f"if ({acc.improved()}) {{")
            self.depth += 1
            self.put_lines(acc.take_part())
            for var in lead:
                self.line(f"{acc.name}_{self.named(var)} = {self.named(var)};")
            self.line(f"{acc.name}_{along} = block;")
            self.close(1)
        self.close(len(inner))
        for acc in args:
            self.found(acc, inner, block, bounds(last)[1])

    def fetch(self, rows: Sequence[tuple[Buffer, IndexExpr]], test: str) -> None:
        """Ask for what comes a turn after the current block of rows, if there is such a turn."""
        fresh = [row for row in rows if row[0] not in self.fetched]
        self.fetched |= {buffer for buffer, _ in fresh}  # a later pass finds them in the cache
        if fresh:
            self.line(f"if ({test}) {{")
            self.depth += 1
            for buffer, start in fresh:
                self.line(self.asked(buffer, start, "block", "end", ", 0, 2"))
            self.close(1)

    def asked(self, buffer: Buffer, start: IndexExpr, first: str, stop: str, how: str = "") -> str:
        """The loop that asks for the lines of a stretch of a buffer before they are used."""
        step, place = _LINE // buffer.dtype.itemsize, self.element(buffer, start)
        loop = f"for (int64_t p = {first}; p < {stop}; p += {step})"
        return f"{loop} __builtin_prefetch(&{place} + p{how});"

    def references(
        self,
        squares: Sequence[Squares],
        lead: Sequence[tuple[Var, str]],
        last: Var,
        block: int,
        bounds: tuple[str, str],
    ) -> None:
        """What the first block's squares are about."""
        start, stop = bounds
        self.line("{")
        self.depth += 1
        for var, value in lead:
            self.line(f"const int64_t {self.named(var)} = {value};")
        self.line(f"const int64_t end = {start} + {block} < {stop} ? {start} + {block} : {stop};")
        if self.lane is not None:
            self.parts_of_tile()
            self.inside = True
        for acc in squares:
            self.put_lines(acc.declared("part"))
        if self.lane is not None:
            self.in_lanes([line for acc in squares for line in acc.reset("part")])
        else:
            self.line("#pragma omp simd" + "".join(acc.clauses("part") for acc in squares))
        self.loop(last, start, "end")
        begun = self.lane_by_lane()
        for acc, value in zip(squares, self.exprs([acc.step.body for acc in squares]), strict=True):
            self.put_lines(acc.first(value))
        self.end_of_body(())
        self.close(begun + 1)
        self.in_lanes([line for acc in squares for line in acc.begun(f"end - ({start})")])
        if self.lane is not None:
            self.close(1)
            self.inside = False
        self.close(1)

    def found(self, acc: Accumulator, inner: tuple[Var, ...], block: int, stop: str) -> None:
        """The place of an extreme, the first of its block. What a vector has computed need not be equal to
        the last bit, so the block is gone through again without the value that was found."""
        *lead, last = inner
        self.line("{")
        self.depth += 1
        for var in lead:
            self.line(f"const int64_t {self.named(var)} = {acc.name}_{self.named(var)};")
        start = f"{acc.name}_{self.named(last)}"
        self.line(f"const int64_t end = {start} + {block} < {stop} ? {start} + {block} : {stop};")
        self.line(f"{acc.type} best = {acc.start};")
        place = _flat_place(inner)
        self.line(f"{acc.name}_whole_at = {place(lambda v: start if v is last else self.named(v))};")
        self.loop(last, start, "end")
        (value,) = self.exprs([acc.step.body])
        nan = f" || ({value} != {value} && best == best)" if acc.sees_nan else ""
        self.line(f"if ({value} {acc.sign} best{nan}) {{")
        self.line(f"    best = {value};")
        self.line(f"    {acc.name}_whole_at = {place(self.named)};")
        self.line("}")
        self.end_of_body(())
        self.close(2)

    def elements(
        self,
        made: Sequence[Accumulator],
        stores: Sequence[Store],
        place: Callable[..., str],
        *,
        blocked: bool,
    ) -> None:
        """What is done at one turn of the inner loops."""
        begun = self.lane_by_lane()
        level = "part" if blocked else "whole"
        factors = [acc.step.body.args if acc.takes_products(level) else (acc.step.body,) for acc in made]
        values = iter(self.exprs([*itertools.chain(*factors), *(step.value for step in stores)]))
        for acc, of in zip(made, factors, strict=True):
            if len(of) == 2:
                self.put_lines(acc.add_product(next(values), next(values), level))
            else:
                self.put_lines(acc.add(next(values), level, place(self.named)))
        for step, value in zip(stores, values, strict=True):
            self.put(step, value)
        self.end_of_body(stores)
        self.close(begun)

    def along(self, inner: tuple[Var, ...], stores: Sequence[Store], *, parallel: bool) -> None:
        """Stores for every turn of their inner loops."""
        if inner:
            *lead, last = inner
            if self.lane is not None:
                lead = list(inner)
            if parallel and lead:
                self.line(f"#pragma omp parallel for collapse({len(lead)}) schedule(static)")
            self.loops(lead)
            if self.lane is None:
                if parallel and not lead:
                    self.threaded(last, stores)
                else:
                    self.spans(last, stores)
                self.close(len(lead))
                return
        begun = self.lane_by_lane()
        self.bodies(stores)
        self.close(len(inner) + begun)

    def lane_by_lane(self) -> int:
        """Begin loops over the lanes, if there are any, with the lane's own variable; their number."""
        if self.lane is None:
            return 0
        begun = self.lanes()
        self.line(f"const int64_t {self.named(self.lane)} = tile + u + l;")
        return begun

    def parts_of_tile(self) -> None:
        """Begin a loop over the parts of a tile that fit into registers."""
        self.line(f"for (int64_t u = 0; u < {self.tile}; u += {min(self.tile, _LANES)}) {{")
        self.depth += 1

    def lanes(self) -> int:
        """Begin loops over the lanes of a tile, or of the part of it that is gone through; their number."""
        assert self.lane is not None
        begun = 1 if self.inside else 2
        if not self.inside:
            self.parts_of_tile()
        self.line("#pragma omp simd")
        self.line(f"for (int64_t l = 0; l < {min(self.tile, _LANES)}; l++) {{")
        self.depth += 1
        return begun

    def in_lanes(self, lines: Sequence[str]) -> None:
        """Lines for every lane, or as they are where there are none."""
        begun = self.lanes() if lines and self.lane is not None else 0
        self.put_lines(lines)
        self.close(begun)


def _unrounded(step: Store) -> Expr:
    """What is stored, before it is rounded to the buffer's dtype, which storing does."""
    value = step.value
    rounded = value.op == "cast" and value.dtype == step.buffer.dtype and value.dtype in SHORT
    return value.args[0] if rounded else value


def _has_wide_integers(exprs: Sequence[Expr]) -> bool:
    """Whether floats are made of 64-bit integers, of which there are no vectors before AVX-512."""
    casts = [e for e in walk(exprs) if e.op == "cast" and e.dtype == torch.float32]
    return any(e.args[0].dtype == torch.int64 and variables(e.args) for e in casts)


def _halves(
    loop: Var, exprs: Sequence[Expr], stores: Sequence[Store] = ()
) -> tuple[list[tuple[Buffer, IndexExpr]], list[tuple[Buffer, IndexExpr]]]:
    """What a loop loads for some expressions, and stores, of float16, an element after the other."""
    found: list[list[tuple[Buffer, IndexExpr]]] = [[], []]
    for e in unconditional_exprs(exprs):
        if e.op == "load" and not e.args:
            found[0].append(e.extra)  # type: ignore[arg-type]
    found[1] += [(step.buffer, step.offset) for step in stores if type(step) is Store]

    def is_row(buffer: Buffer, place: IndexExpr) -> bool:
        return buffer.dtype == torch.float16 and buffer.role != "local" and place.stride(loop) == 1

    loads, stored = ([access for access in accesses if is_row(*access)] for accesses in found)
    return loads, stored


def _flat_place(inner: tuple[Var, ...]) -> Callable[[Callable[[Var], str]], str]:
    """The number of a turn of nested loops."""

    def text(named: Callable[[Var], str]) -> str:
        parts, step = [], 1
        for var in reversed(inner):
            parts.append(named(var) if step == 1 else f"{named(var)} * {mark_size(step)}")
            step *= var.extent
        return " + ".join(reversed(parts)) or "0"

    return text
