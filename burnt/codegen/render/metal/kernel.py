"""Print kernels as Metal: each is one or more dispatches.

*Elementwise*: one thread for each element, or for four adjacent ones. *Rows*: a simdgroup reduces a short
row, a threadgroup a long one; threads combine their results by shuffles and threadgroup memory. *Columns*:
where memory is contiguous along an outer loop, adjacent threads take adjacent columns, and several threads
share a column. *Split*: where there are few rows of many elements, rows are cut into chunks; a dispatch saves
each chunk's result in scratch memory, and the next one combines them. *Scans*: a thread scans a column; a
simdgroup or a threadgroup scans a row. No atomics are used, so results are the same in every run.

Arithmetic is torch's: 16-bit floats are computed in float, and float sums are compensated (they carry the
rounding error along). Metal has no double: kernels that need it are refused.

The generated code has been run as C++ on `tests/codegen/render/metal/shim.h`, which emulates threadgroups and
simdgroups. It has not been run on a Mac.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from burnt.codegen.ir import (
    Buffer,
    Index,
    Kernel,
    OnlineReduction,
    Reduction,
    ReductionStep,
    ScanStep,
    Store,
    Var,
    walk,
)
from burnt.codegen.ir.loops import max_index
from burnt.codegen.render.metal.expr import ExprPrinter, Scratch
from burnt.codegen.render.metal.prelude import MEMORY_TYPES, METAL_TYPES
from burnt.codegen.render.metal.reduction import OnlineSum, ReductionState, ScanState, select_scan_lane
from burnt.codegen.render.shape_params import mark_size
from burnt.errors import UnsupportedError

PREAMBLE = """#include <metal_stdlib>
using namespace metal;

// NaN tests and compensated sums need safe math. torch requests it, too, unless PYTORCH_MPS_FAST_MATH is set.
// Compilers before Metal 3.2 ignore this line.
#pragma METAL fp math_mode(safe)

// No contraction of a * b + c to fma: two kernels that compute the same value must get the same result.
#pragma METAL fp contract(off)
"""

_SIMD_WIDTH = 32  # lanes of a simdgroup, on every Apple GPU
_GROUP_SIZE = 256  # threads of a threadgroup: also available to kernels that use many registers
_SHORT_ROW = 256  # elements up to which one simdgroup reduces a row
_COLUMN_TEAM = 8  # threads that share a column
_NUM_CHUNKS = 64
_FEW_GROUPS, _SPLIT_ELEMENTS = 32, 1 << 14  # rows are split if there are fewer groups, with more elements
_SHORT_SCAN = 16  # elements up to which one thread scans a row
_MANY_ROWS = 256  # rows from which on one thread scans a column, and one simdgroup a long row
_MANY_ELEMENTS = 1 << 16  # elements from which on a thread computes four adjacent ones
_MAX_BUFFERS = 31


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """A kernel function of the source, and how to launch it."""

    name: str
    text: str  # its source; integers that come from shapes are marked (`burnt.codegen.render.shape_params`)
    buffers: tuple[Buffer | Scratch, ...]  # the tensors and scratch memory to bind, in order
    numbers: bool  # whether the run-time numbers are bound after them
    wide: bool  # whether its indices need 64 bits
    threads: tuple[int, int, int]  # size of the grid in threads, along x, y, z
    group: tuple[int, int, int]  # size of a threadgroup in threads, along x, y, z


def print_kernel(kernel: Kernel, numbers: Sequence[int]) -> list[Dispatch]:
    """Return the dispatches of a kernel, in the order in which they run.

    If the kernel has checks, the scratch memory ``failed`` has one int64 for each. If a check fails, the
    kernel stores ``2 * shown + 1`` of one failing element there. `numbers` are the positions of the run-time
    numbers, in the order in which they are passed.

    Raises:
        UnsupportedError: Metal lacks a dtype, or a kernel needs more buffers than Metal can bind.
    """
    dtypes = [e.extra[0].dtype if e.op == "load" else e.dtype for e in walk(kernel.exprs) if e.op != "number"]
    for dtype in [*dtypes, *(step.buffer.dtype for step in kernel.stores)]:
        if dtype not in METAL_TYPES:
            raise UnsupportedError(f"Metal has no {str(dtype).removeprefix('torch.')}", where=kernel.name)
    if kernel.kind == "elementwise":
        return [_ElementwisePrinter(kernel, numbers).dispatch()]
    if kernel.kind == "scan":
        return [_ScanPrinter(kernel, numbers).dispatch()]
    layout = _ThreadLayout.of(kernel)
    all_steps = [step for step in kernel.steps if not isinstance(step, ScanStep)]
    stages = _split_into_stages(all_steps) if layout.num_chunks > 1 else [all_steps]
    dispatches, num_previous = [], 0
    for i, steps in enumerate(stages):
        name = kernel.name if i == len(stages) - 1 else f"{kernel.name}_part{i}"
        printer = _ReductionPrinter(kernel, numbers, name, layout, steps, num_previous)
        dispatches.append(printer.dispatch())
        num_previous += sum(isinstance(step, ReductionStep) for step in steps)
    return dispatches


def _split_into_stages(steps: Sequence[ReductionStep | Store]) -> list[list[ReductionStep | Store]]:
    """Group the steps of a split kernel: independent reductions together, all stores in the last stage."""
    stages: list[list[ReductionStep | Store]] = [[]]
    stage_results: set[tuple[Reduction, Index]] = set()
    for step in steps:
        if isinstance(step, Store):
            continue
        if any(e.op == "reduced" and e.extra in stage_results for e in walk([step.body])):
            stages.append([])
            stage_results = set()
        stages[-1].append(step)
        stage_results.add((step.reduction, step.index))
    return [*stages, [step for step in steps if isinstance(step, Store)]]


@dataclasses.dataclass(frozen=True)
class _ThreadLayout:
    """How threads share the work of a kernel with reductions."""

    lane: Var | None  # with columns, the outer loop that adjacent threads share; None with rows
    team_size: int  # number of threads that reduce one row or column together
    num_chunks: int  # number of chunks that reductions are cut into; 1 if they are not split

    @staticmethod
    def of(kernel: Kernel) -> _ThreadLayout:
        """Choose the thread layout of a kernel."""
        rows = math.prod(v.extent for v in kernel.outer)
        inner = max(math.prod(v.extent for v in step.inner) for step in kernel.steps)
        lane = _select_lane(kernel)
        if lane is not None:
            team = _COLUMN_TEAM if inner >= 2 * _COLUMN_TEAM else 1
            groups = rows // lane.extent * -(-lane.extent // _SIMD_WIDTH)
        else:
            team = _SIMD_WIDTH if inner <= _SHORT_ROW else _GROUP_SIZE
            groups = rows * team // _GROUP_SIZE
        is_split = groups < _FEW_GROUPS and inner >= _SPLIT_ELEMENTS
        return _ThreadLayout(lane, team, _NUM_CHUNKS if is_split else 1)


def _select_lane(kernel: Kernel) -> Var | None:
    """Return the outer loop along which most reductions' loads are contiguous; None if it is an inner one."""
    votes: Counter[Var | None] = Counter()
    for step in kernel.reductions.values():
        for e in walk([step.body]):
            if e.op == "load":
                contiguous = [v for v in (*step.inner[-1:], *kernel.outer) if e.extra[1].stride(v) == 1]
                votes.update(None if v in step.inner else v for v in contiguous)
    best = max(votes, key=lambda v: votes[v], default=None)
    return best if best is not None and best.extent >= 8 else None


class _DispatchPrinter(ExprPrinter):
    """Print one dispatch: base class of the loop structures."""

    def __init__(self, kernel: Kernel, numbers: Sequence[int], name: str) -> None:
        super().__init__(kernel, numbers, wide=_needs_64_bit_indices(kernel))
        self.name = name

    def build_dispatch(self, threads: tuple[int, int, int], group: tuple[int, int, int]) -> Dispatch:
        """Return the dispatch of the lines emitted so far, with the function's signature."""
        if len(self.buffers) > _MAX_BUFFERS - 2:
            raise UnsupportedError(
                "the kernel has more tensors than Metal can bind",
                where=self.name,
                expected=f"{_MAX_BUFFERS - 2}",
                found=f"{len(self.buffers)}",
            )
        if any(size >= 1 << 32 for size in threads):
            raise UnsupportedError(
                "the kernel needs more threads than a Metal grid can have", where=self.name, found=threads
            )
        parameters = []
        for i, memory in enumerate(self.buffers):
            const = "" if memory in self.written else "const "
            metal_type = MEMORY_TYPES[memory.dtype]
            parameters.append(f"    device {const}{metal_type} *{memory.name} [[buffer({i})]],")
        if self.has_numbers:
            parameters.append(f"    constant float *numbers [[buffer({len(self.buffers)})]],")
        parameters.append("    uint3 at [[thread_position_in_grid]])")
        text = "\n".join([f"kernel void {self.name}(", *parameters, "{", *self.lines, "}", ""])
        return Dispatch(
            self.name, text, tuple(self.buffers), self.has_numbers, self.wide, threads, group
        )  # fmt: skip


class _ElementwisePrinter(_DispatchPrinter):
    """Print a kernel that only stores. The grid's x is the last loop, y the one before, z all others."""

    def __init__(self, kernel: Kernel, numbers: Sequence[int]) -> None:
        super().__init__(kernel, numbers, kernel.name)

    def dispatch(self) -> Dispatch:
        loops = self.kernel.outer
        lead, last = loops[:-2], loops[-1] if loops else Var(1)
        second = loops[-2] if len(loops) > 1 else Var(1)
        x, y, z = last.extent, second.extent, math.prod(v.extent for v in lead)
        self.emit_loop_variables(lead, f"{self.index_type}(at.z)")
        if y > 1:
            self.emit(f"const {self.index_type} {self.loop_name(second)} = {self.index_type}(at.y);")
        takes_four = self.takes_four_elements(last)
        if takes_four:
            name, end = self.loop_name(last), mark_size(x)
            end = f"long({end})" if self.wide else end
            self.emit(
                f"const {self.index_type} first = {self.index_type}(at.x) * 4, end = min(first + 4, {end});"
            )
            self.open(f"for ({self.index_type} {name} = first; {name} < end; {name}++)")
            x = -(-x // 4)
        elif x > 1:
            self.emit(f"const {self.index_type} {self.loop_name(last)} = {self.index_type}(at.x);")
        self.emit_all_stores(self.kernel.stores)
        if takes_four:
            self.close()
        width, height = (1 << (size - 1).bit_length() for size in (x, y))
        width = min(_GROUP_SIZE, max(_SIMD_WIDTH, width))
        return self.build_dispatch((x, y, z), (width, min(_GROUP_SIZE // width, height), 1))

    def takes_four_elements(self, last: Var) -> bool:
        """Whether there are many elements and all accesses are contiguous along the last loop."""
        is_large = math.prod(v.extent for v in self.kernel.outer) >= _MANY_ELEMENTS
        return is_large and all(index.stride(last) in (0, 1) for index in self.kernel.indices)


class _ReductionPrinter(_DispatchPrinter):
    """Print reductions and the stores that use them: all steps of a kernel, or one stage of a split one."""

    def __init__(
        self,
        kernel: Kernel,
        numbers: Sequence[int],
        name: str,
        layout: _ThreadLayout,
        steps: Sequence[ReductionStep | Store],
        num_previous: int,
    ) -> None:
        super().__init__(kernel, numbers, name)
        self.layout = layout
        self.steps = steps
        self.previous = list(kernel.reductions.values())[:num_previous]
        self.shared_declarations: list[str] = []  # declarations of threadgroup memory, at the function's top

    def dispatch(self) -> Dispatch:
        layout, outer = self.layout, self.kernel.outer
        rows = math.prod(v.extent for v in outer)
        if layout.lane is None:
            self.emit(f"const int lane = at.x % {layout.team_size};")
            if outer or layout.num_chunks > 1:
                self.emit(f"const {self.index_type} row = {self.index_type}(at.x / {layout.team_size});")
            self.emit_loop_variables(outer, "row")
            self.emit_chunk_index("at.y")
            threads, group = (rows * layout.team_size, self.num_grid_chunks(), 1), (_GROUP_SIZE, 1, 1)
        else:
            threads, group = self.emit_column_indices(layout.lane, rows)
        for reduction in self.previous:
            self.combine_chunks(reduction, rows)
        for reductions, stores in _group_steps(self.steps):
            if reductions:
                self.emit_reduction(*reductions, rows=rows)
            else:
                self.emit_stores(stores)
        self.lines[:0] = self.shared_declarations
        return self.build_dispatch(threads, group)

    def emit_column_indices(self, lane: Var, rows: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Define the indices of a column's thread; return the sizes of the grid and of a threadgroup."""
        layout = self.layout
        lead = [v for v in self.kernel.outer if v is not lane]
        num_outer = rows // lane.extent
        self.emit(f"const {self.index_type} {self.loop_name(lane)} = {self.index_type}(at.x);")
        if layout.team_size > 1:
            self.emit("const int lane = at.y;")
        if num_outer > 1:
            flat_index = "at.z" if layout.num_chunks == 1 else f"at.z % {mark_size(num_outer)}"
            self.emit(f"const {self.index_type} outer = {self.index_type}({flat_index});")
            self.emit_loop_variables(lead, "outer")
        self.emit_chunk_index("at.z" if num_outer == 1 else f"at.z / {mark_size(num_outer)}")
        if layout.num_chunks > 1:
            row = self.loop_name(lane)
            row += f" + outer * {mark_size(lane.extent)}" if num_outer > 1 else ""
            self.emit(f"const {self.index_type} row = {row};")
        group_width = _SIMD_WIDTH if layout.team_size > 1 else _GROUP_SIZE
        return (lane.extent, layout.team_size, num_outer * self.num_grid_chunks()), (
            group_width,
            layout.team_size,
            1,
        )

    def num_grid_chunks(self) -> int:
        """Return the number of chunks in the grid: one if the stage only stores one result for each row."""
        return (
            self.layout.num_chunks if any(isinstance(s, ReductionStep) or s.inner for s in self.steps) else 1
        )

    def emit_chunk_index(self, text: str) -> None:
        """Define the chunk's index, where reductions are split."""
        if self.layout.num_chunks > 1:
            self.emit(f"const {self.index_type} chunk = {text};")

    # --- loops --------------------------------------------------------------------------------------------

    def open_loop(self, inner: tuple[Var, ...]) -> str:
        """Open a loop whose iterations the team's threads and the chunks share; return its variable."""
        size = math.prod(v.extent for v in inner)
        team_size, num_chunks = self.layout.team_size, self.layout.num_chunks
        iteration = self.loop_name(inner[0]) if len(inner) == 1 else "iteration"
        start, end = "lane" if team_size > 1 else "0", mark_size(size)
        if num_chunks > 1:
            chunk_size, total = mark_size(-(-size // num_chunks)), f"long({end})" if self.wide else end
            start = f"chunk * {chunk_size} + lane" if team_size > 1 else f"chunk * {chunk_size}"
            end = f"min((chunk + 1) * {chunk_size}, {total})"
        step = f"{iteration}++" if team_size == 1 else f"{iteration} += {team_size}"
        self.open(f"for ({self.index_type} {iteration} = {start}; {iteration} < {end}; {step})")
        if len(inner) > 1:
            self.emit_loop_variables(inner, "iteration")
        return iteration

    def emit_stores(self, stores: list[Store]) -> None:
        """Emit stores in their inner loops; where there are none, by one thread of the team."""
        inner = stores[0].inner
        conditions = ["lane == 0"] if self.layout.team_size > 1 else []
        conditions += ["chunk == 0"] if self.layout.num_chunks > 1 else []
        if inner:
            self.open_loop(inner)
        elif conditions:
            self.open(f"if ({' && '.join(conditions)})")
        self.emit_all_stores(stores)
        if inner or conditions:
            self.close()

    # --- reductions ---------------------------------------------------------------------------------------

    def emit_reduction(self, step: ReductionStep, *online: OnlineReduction, rows: int) -> None:
        """Emit a reduction, and the sums in the same loop that depend on it."""
        state = self.create_state(step)
        if not step.inner and self.layout.num_chunks == 1:
            (value,) = self.emit_exprs([step.body])
            if state.is_arg:
                value = "0"
            elif state.is_compensated:
                value += " + 0.0f"  # a sum starts from 0, so it is never -0
            self.emit(f"const {state.metal_type} {state.name} = {value};")
            return
        self.emit_all(state.declare())
        online_sums = [OnlineSum(sum_step, self.create_state(sum_step), state.name) for sum_step in online]
        for online_sum in online_sums:
            self.emit_all(online_sum.declare())
        if step.inner:
            iteration = self.open_loop(step.inner)
            value, *values = self.emit_exprs([step.body, *(sum_step.body for sum_step in online)])
            self.emit_all(state.add(value, iteration))
            for online_sum, value in zip(online_sums, values, strict=True):
                self.emit_all(online_sum.add(value))
            self.close()
        else:
            self.open("if (chunk == 0 && lane == 0)" if self.layout.team_size > 1 else "if (chunk == 0)")
            (value,) = self.emit_exprs([step.body])
            self.emit_all(state.add(value, "0"))
            self.close()
        self.emit_all(state.finish())
        self.combine_team(state)
        self.save_chunk_results(state, rows)
        for online_sum in online_sums:
            self.emit_all(online_sum.rescale(self.count_text(online_sum.step, "chunk")))
            self.emit_all(online_sum.state.finish())
            self.combine_team(online_sum.state)
            self.save_chunk_results(online_sum.state, rows)
            if self.layout.num_chunks == 1:
                self.emit_all(online_sum.handle_non_finite())

    def create_state(self, step: ReductionStep) -> ReductionState:
        """Create the state of a reduction, and record the name of its result."""
        state = ReductionState.of(step, f"r{len(self.reduction_results)}", self.index_type)
        self.reduction_results[step.reduction, step.index] = state.name
        return state

    def save_chunk_results(self, state: ReductionState, rows: int) -> None:
        """Emit lines that save a chunk's result in scratch memory for the next stage."""
        if self.layout.num_chunks == 1:
            return
        once = "if (lane == 0) " if self.layout.team_size > 1 else ""
        for scratch, value in self.chunk_buffers(state, rows):
            self.buffers[scratch] = None
            self.written.add(scratch)
            self.emit(f"{once}{scratch.name}[chunk * {mark_size(rows)} + row] = {value};")

    def count_text(self, step: ReductionStep, chunk: str) -> str:
        """Return the text of the number of iterations of a chunk, as a float, at least 1."""
        if self.layout.num_chunks == 1:
            return f"float({mark_size(step.iterations)})"
        chunk_size = mark_size(-(-step.iterations // self.layout.num_chunks))
        total = f"long({mark_size(step.iterations)})" if self.wide else mark_size(step.iterations)
        return (
            f"float(max(min(({chunk} + 1) * {chunk_size}, {total}) - {chunk} * {chunk_size}, "
            f"{self.index_type}(1)))"
        )

    def combine_team(self, state: ReductionState) -> None:
        """Emit lines that combine the results of a team's threads, so that each thread has the total."""
        layout = self.layout
        if layout.team_size == 1:
            return
        if layout.lane is None:
            self.open(f"for (ushort distance = {_SIMD_WIDTH // 2}; distance > 0; distance /= 2)")
            self.emit_all(state.merge([f"shuffle_xor({name}, distance)" for name in state.variables]))
            self.close()
            if layout.team_size == _SIMD_WIDTH:
                return
            count, own_part, column, condition = (
                _GROUP_SIZE // _SIMD_WIDTH,
                f"at.x % {_GROUP_SIZE} / {_SIMD_WIDTH}",
                "",
                "lane % 32 == 0",
            )
        else:
            count, own_part, column, condition = _COLUMN_TEAM, "lane", f"[at.x % {_SIMD_WIDTH}]", ""
        for name, metal_type in state.variables.items():
            size = f"[{count}]" + (f"[{_SIMD_WIDTH}]" if column else "")
            self.shared_declarations.append(f"    threadgroup {metal_type} {name}_shared{size};")
        if condition:
            self.open(f"if ({condition})")
        self.emit_all([f"{name}_shared[{own_part}]{column} = {name};" for name in state.variables])
        if condition:
            self.close()
        self.emit("threadgroup_barrier(mem_flags::mem_threadgroup);")
        self.emit_all([f"{name} = {name}_shared[0]{column};" for name in state.variables])
        self.open(f"for (int part = 1; part < {count}; part++)")
        self.emit_all(state.merge([f"{name}_shared[part]{column}" for name in state.variables]))
        self.close()

    def chunk_buffers(self, state: ReductionState, rows: int) -> Iterator[tuple[Scratch, str]]:
        """Yield the scratch memory and the variable of each value that a chunk saves."""
        for name, dtype in zip(state.variables, state.dtypes, strict=True):
            yield Scratch(f"{name}_chunks", dtype, rows * self.layout.num_chunks), name

    def combine_chunks(self, step: ReductionStep, rows: int) -> None:
        """Emit lines that compute an earlier stage's reduction from the results of its chunks."""
        state = self.create_state(step)
        self.emit_all(state.declare())
        self.open(f"for ({self.index_type} part = 0; part < {self.layout.num_chunks}; part++)")
        values = self.load_chunk_results(state, rows)
        online_sum = None
        if isinstance(step, OnlineReduction):
            reference = self.reduction_results[step.reference.reduction, step.reference.index]
            online_sum = OnlineSum(step, state, reference)
            (chunk_reference,) = self.load_chunk_results(
                ReductionState.of(step.reference, reference, self.index_type), rows
            )
            values = [online_sum.rescale_chunk(values[0], chunk_reference, self.count_text(step, "part"))]
        self.emit_all(state.add(values[0], "0") if len(values) == 1 else state.merge(values))
        self.close()
        self.emit_all(state.finish())
        if online_sum is not None:
            self.emit_all(online_sum.handle_non_finite())

    def load_chunk_results(self, state: ReductionState, rows: int) -> list[str]:
        """Return the texts that load a chunk's saved result."""
        texts = []
        for scratch, _ in self.chunk_buffers(state, rows):
            self.buffers[scratch] = None
            texts.append(f"{scratch.name}[part * {mark_size(rows)} + row]")
        return texts


class _ScanPrinter(_DispatchPrinter):
    """Print scans, and stores of the running value at each iteration.

    Where memory is contiguous along an outer loop with enough iterations, each thread scans a column.
    Otherwise a team scans a row, as many elements at a time as it has threads: each simdgroup scans its
    elements by shuffles, and the total is carried to the next elements.
    """

    def __init__(self, kernel: Kernel, numbers: Sequence[int]) -> None:
        super().__init__(kernel, numbers, kernel.name)
        self.states = [
            ScanState(step, f"s{i}")
            for i, step in enumerate(s for s in kernel.steps if isinstance(s, ScanStep))
        ]
        ((self.scan_loop,),) = {step.inner for step in kernel.steps}

    def dispatch(self) -> Dispatch:
        rows, extent = math.prod(v.extent for v in self.kernel.outer), self.scan_loop.extent
        lane = select_scan_lane(self.kernel)
        if extent < _SHORT_SCAN or (lane is not None and (rows >= _MANY_ROWS or extent <= _SHORT_ROW)):
            self.emit_thread_scan(lane)
            return self.build_dispatch((rows, 1, 1), (_GROUP_SIZE, 1, 1))
        team_size = _SIMD_WIDTH if rows >= _MANY_ROWS or extent <= _SHORT_ROW else _GROUP_SIZE
        self.emit_team_scan(team_size)
        return self.build_dispatch((rows * team_size, 1, 1), (_GROUP_SIZE, 1, 1))

    def emit_thread_scan(self, lane: Var | None) -> None:
        """Emit a scan by one thread for each iteration of the outer loops; adjacent threads along `lane`."""
        lead = [v for v in self.kernel.outer if v is not lane]
        self.emit_loop_variables([*lead, *([lane] if lane is not None else [])], f"{self.index_type}(at.x)")
        for state in self.states:
            self.emit_all(state.declare_initial(state.variables))
        iteration = self.loop_name(self.scan_loop)
        self.open(
            f"for ({self.index_type} {iteration} = 0; {iteration} < {mark_size(self.scan_loop.extent)}; "
            f"{iteration}++)"
        )
        for state, element in self.emit_elements(iteration):
            self.emit_all(state.combine(state.variables, element))
        self.emit_scan_stores()
        self.close()

    def emit_team_scan(self, team_size: int) -> None:
        """Emit a scan by a team of threads for each iteration of the outer loops."""
        if team_size > _SIMD_WIDTH:
            for state in self.states:
                for name, metal_type in zip(state.variable_names("_shared"), state.types, strict=True):
                    self.emit(f"threadgroup {metal_type} {name}[{team_size // _SIMD_WIDTH}];")
        self.emit(f"const int lane = at.x % {_SIMD_WIDTH};")
        self.emit_loop_variables(self.kernel.outer, f"{self.index_type}(at.x / {team_size})")
        for state in self.states:
            self.emit_all(state.declare_initial(state.variable_names("_before")))
        iteration, end = self.loop_name(self.scan_loop), mark_size(self.scan_loop.extent)
        end = f"long({end})" if self.wide else end
        self.open(f"for ({self.index_type} first = 0; first < {end}; first += {team_size})")
        self.emit(f"const {self.index_type} own = first + at.x % {team_size};")
        # Threads past the end load the last element; their results are not stored.
        self.emit(f"const {self.index_type} {iteration} = min(own, {end} - 1);")
        elements = self.emit_elements(iteration)
        for state, element in elements:
            self.emit_all(state.declare(state.variables, element))
        self.open(f"for (ushort distance = 1; distance < {_SIMD_WIDTH}; distance *= 2)")
        for state, _ in elements:
            below = state.variable_names("_below")
            self.emit_all(state.declare(below, [f"shuffle_up({p}, distance)" for p in state.variables]))
            self.emit_all(state.combine(below, state.variables))
            self.open("if (lane >= distance)")
            self.emit_all(state.assign(state.variables, below))
            self.close()
        self.close()
        if team_size > _SIMD_WIDTH:
            self.combine_simdgroups(team_size // _SIMD_WIDTH, f"at.x % {team_size} / {_SIMD_WIDTH}")
        for state, _ in elements:
            before = state.variable_names("_before")
            self.emit_all(state.combine(before, state.variables))
            self.emit_all(state.assign(state.variables, before))
            if team_size == _SIMD_WIDTH:
                self.emit_all(state.assign(before, [f"broadcast_last_lane({p})" for p in state.variables]))
            else:
                self.emit_all(state.assign(before, state.variable_names("_total")))
        self.open(f"if (own < {end})")
        self.emit_scan_stores()
        self.close()
        self.close()

    def combine_simdgroups(self, count: int, own_part: str) -> None:
        """Emit lines that compute the running value before a simdgroup's elements, and at the tile's end."""
        self.emit("threadgroup_barrier(mem_flags::mem_threadgroup);")
        self.open(f"if (lane == {_SIMD_WIDTH - 1})")
        for state in self.states:
            self.emit_all(
                state.assign(
                    [f"{name}[{own_part}]" for name in state.variable_names("_shared")], state.variables
                )
            )
        self.close()
        self.emit("threadgroup_barrier(mem_flags::mem_threadgroup);")
        for state in self.states:
            self.emit_all(state.declare(state.variable_names("_total"), state.variable_names("_before")))
        self.open(f"for (int part = 0; part < {count}; part++)")
        for state in self.states:
            total = state.variable_names("_total")
            self.emit_all(state.combine(total, [f"{name}[part]" for name in state.variable_names("_shared")]))
            self.open(f"if (part + 1 == {own_part})")
            self.emit_all(state.assign(state.variable_names("_before"), total))
            self.close()
        self.close()

    def emit_elements(self, iteration: str) -> list[tuple[ScanState, list[str]]]:
        """Emit the elements of an iteration, and return each as the values of a scan state."""
        values = self.emit_exprs([state.step.body for state in self.states])
        return [(s, s.element_values(v, iteration)) for s, v in zip(self.states, values, strict=True)]

    def emit_scan_stores(self) -> None:
        """Emit the stores that use the running values."""
        for state in self.states:
            self.scan_results[state.step.scan, state.step.index] = state.result_text()
        self.emit_all_stores(self.kernel.stores)


def _group_steps(steps: Sequence[ReductionStep | Store]) -> list[tuple[list[Any], list[Store]]]:
    """Group steps: a reduction with the online sums that depend on it, or adjacent stores in equal loops."""
    groups: list[tuple[list[Any], list[Store]]] = []
    for step in steps:
        reductions, stores = groups[-1] if groups else ([], [])
        if isinstance(step, OnlineReduction):
            reductions.append(step)
        elif isinstance(step, ReductionStep):
            groups.append(([step], []))
        elif stores and stores[0].inner == step.inner:
            stores.append(step)
        else:
            groups.append(([], [step]))
    return groups


def _needs_64_bit_indices(kernel: Kernel) -> bool:
    """Whether an index, or a term of one, may exceed 32 bits."""
    nests = kernel.outer, *(step.inner for step in kernel.steps)
    # A loop variable exceeds its end by at most the team size, and chunk sizes are rounded up.
    ends = [math.prod(v.extent for v in loops) + _NUM_CHUNKS * _GROUP_SIZE for loops in nests]
    return max([*map(max_index, kernel.indices), *ends]) >= 1 << 31
