"""Printing kernels as Metal: a dispatch for each, whose threads share rows, columns or nothing.

*Elementwise*: a thread for each element, or for four neighbours. *Rows*: a simdgroup folds a short row, a
threadgroup a long one; what each thread has found goes around by shuffles and threadgroup memory. *Columns*:
where memory runs along an outer loop, neighbouring threads take neighbouring columns, and several share one.
*Split*: few rows of many elements are cut into chunks; a dispatch leaves what each chunk comes to in scratch
memory, and the next puts that together. *Scans*: a thread walks a column, a simdgroup or a threadgroup a row.
Nothing is atomic, so a result is the same in every run.

Arithmetic is torch's: 16-bit floats are computed in float, sums of floats keep what rounding takes from them.
Metal has no double, which is refused.

This has been run as C++ on `tests/codegen/render/metal/shim.h`, which emulates threadgroups and simdgroups.
It has not been run on a Mac.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from burnt.codegen.ir import (
    Buffer,
    Index,
    IndexExpr,
    Kernel,
    OnlineReduction,
    Reduction,
    ReductionStep,
    ScanStep,
    Split,
    Store,
    Var,
    index_exprs,
    walk,
)
from burnt.codegen.render.metal.dtypes import COMPUTE, MEMORY
from burnt.codegen.render.metal.expr import Elements, Scratch
from burnt.codegen.render.metal.reduction import OnlineSum, ReductionState
from burnt.codegen.render.metal.scan import State, lane_of_scans
from burnt.codegen.render.shape_params import mark_size
from burnt.errors import UnsupportedError

__all__ = ["HEAD", "Dispatch", "Scratch", "print_kernel"]

HEAD = """#include <metal_stdlib>
using namespace metal;

// Tests for NaN, and sums that keep what rounding takes, must mean what they say. torch asks for safe math,
// too, unless PYTORCH_MPS_FAST_MATH is set. Compilers before Metal 3.2 pass over this line.
#pragma METAL fp math_mode(safe)

// Nothing is contracted: a number that two kernels compute must be the same in both.
#pragma METAL fp contract(off)
"""

_SIMD = 32  # lanes of a simdgroup, on every GPU of Apple's
_GROUP = 256  # threads of a threadgroup: what a kernel with many registers still gets
_SHORT_ROW = 256  # elements up to which a simdgroup folds a row
_WORKERS = 8  # threads that share a column
_CHUNKS = 64
_FEW_GROUPS, _SPLIT_ELEMENTS = 32, 1 << 14  # what is cut into chunks: fewer groups, of more elements
_SHORT_SCAN = 16  # elements up to which a thread walks a row alone
_MANY_ROWS = 256  # rows from which on a thread walks a column alone, and a simdgroup a long row
_MANY = 1 << 16  # elements from which on a thread takes four neighbours
_MOST_BUFFERS = 31


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """A function of the source, and how it is called.

    Args:
        name: the function's.
        text: its source; integers that come from shapes are marked (`burnt.codegen.render.shape_params`).
        memory: what is bound to its first buffers, in order.
        numbers: whether the run-time numbers are bound after them.
        wide: whether its indices need 64 bits.
        threads: of the grid, along x, y, z.
        group: threads of a threadgroup, along x, y, z.
    """

    name: str
    text: str
    memory: tuple[Buffer | Scratch, ...]
    numbers: bool
    wide: bool
    threads: tuple[int, int, int]
    group: tuple[int, int, int]


def print_kernel(kernel: Kernel, numbers: Sequence[int]) -> list[Dispatch]:
    """The dispatches of a kernel, in the order in which they run.

    Where the kernel has checks, the scratch memory ``failed`` has a word for each, into which goes
    ``2 * shown + 1`` of one element that fails, if any does.

    Args:
        kernel: what to print.
        numbers: positions of run-time numbers, in the order in which they are given.

    Raises:
        UnsupportedError: Metal has no such dtype, or binds fewer buffers.
    """
    for expr in walk(kernel.exprs):
        dtype = expr.extra[0].dtype if expr.op == "load" else expr.dtype  # type: ignore[attr-defined]
        if dtype not in COMPUTE and expr.op != "number":
            raise UnsupportedError(f"Metal has no {str(dtype).removeprefix('torch.')}", where=kernel.name)
    for step in kernel.steps:
        if isinstance(step, Store) and step.buffer.dtype not in COMPUTE:
            found = str(step.buffer.dtype).removeprefix("torch.")
            raise UnsupportedError(f"Metal has no {found}", where=kernel.name)
    if kernel.kind == "elementwise":
        return [_Elementwise(kernel, numbers).dispatch()]
    if kernel.kind == "scan":
        return [_Scanning(kernel, numbers).dispatch()]
    shape = _Shape.of(kernel)
    whole = [step for step in kernel.steps if not isinstance(step, ScanStep)]
    stages = _stages(whole) if shape.chunks > 1 else [whole]
    made, before = [], 0
    for i, steps in enumerate(stages):
        name = kernel.name if i == len(stages) - 1 else f"{kernel.name}_part{i}"
        printer = _Folding(kernel, numbers, name, shape, steps, before)
        made.append(printer.dispatch())
        before += sum(isinstance(step, ReductionStep) for step in steps)
    return made


def _stages(steps: Sequence[ReductionStep | Store]) -> list[list[ReductionStep | Store]]:
    """The steps of a kernel that is split: folds that do not need one another together, all stores last."""
    stages: list[list[ReductionStep | Store]] = [[]]
    here: set[tuple[Reduction, Index]] = set()
    for step in steps:
        if isinstance(step, Store):
            continue
        if any(e.op == "reduced" and e.extra in here for e in walk([step.body])):
            stages.append([])
            here = set()
        stages[-1].append(step)
        here.add((step.reduction, step.index))
    return [*stages, [step for step in steps if isinstance(step, Store)]]


@dataclasses.dataclass(frozen=True)
class _Shape:
    """How threads share the work of a kernel with folds.

    Args:
        lane: the outer loop that neighbouring threads take, in columns; None in rows.
        team: threads that fold one row or column together.
        chunks: into how many parts folds are cut; 1 for none.
    """

    lane: Var | None
    team: int
    chunks: int

    @staticmethod
    def of(kernel: Kernel) -> _Shape:
        rows = math.prod(v.extent for v in kernel.outer)
        inner = max(math.prod(v.extent for v in step.inner) for step in kernel.steps)
        lane = _lane(kernel)
        if lane is not None:
            team = _WORKERS if inner >= 2 * _WORKERS else 1
            groups = rows // lane.extent * -(-lane.extent // _SIMD)
        else:
            team = _SIMD if inner <= _SHORT_ROW else _GROUP
            groups = rows * team // _GROUP
        split = groups < _FEW_GROUPS and inner >= _SPLIT_ELEMENTS
        return _Shape(lane, team, _CHUNKS if split else 1)


def _lane(kernel: Kernel) -> Var | None:
    """The outer loop that memory runs along in most of what folds read; None where it is their own."""
    votes: dict[Var | None, int] = {}
    for step in kernel.steps:
        if not isinstance(step, ReductionStep):
            continue
        for e in walk([step.body]):
            if e.op != "load":
                continue
            place: IndexExpr = e.extra[1]  # type: ignore[assignment]
            for v in (*step.inner[-1:], *kernel.outer):
                if place.stride(v) == 1:
                    voted = None if v in step.inner else v
                    votes[voted] = votes.get(voted, 0) + 1
    best = max(votes, key=lambda v: votes[v], default=None)
    return best if best is not None and best.extent >= 8 else None


class _Printer(Elements):
    """A function of the source."""

    def __init__(self, kernel: Kernel, numbers: Sequence[int], name: str) -> None:
        super().__init__(kernel, numbers, wide=_is_wide(kernel))
        self.name = name

    def finished(self, threads: tuple[int, int, int], group: tuple[int, int, int]) -> Dispatch:
        if len(self.memory) > _MOST_BUFFERS - 2:
            raise UnsupportedError(
                "a kernel of more tensors than Metal binds",
                where=self.name,
                expected=f"{_MOST_BUFFERS - 2}",
                found=f"{len(self.memory)}",
            )
        if any(size >= 1 << 32 for size in threads):
            raise UnsupportedError("more threads than a grid of Metal's has", where=self.name, found=threads)
        head = []
        for i, memory in enumerate(self.memory):
            only = "" if memory in self.written else "const "
            kind = MEMORY[memory.dtype]
            head.append(f"    device {only}{kind} *{memory.name} [[buffer({i})]],")
        if self.has_numbers:
            head.append(f"    constant float *numbers [[buffer({len(self.memory)})]],")
        head.append("    uint3 at [[thread_position_in_grid]])")
        text = "\n".join([f"kernel void {self.name}(", *head, "{", *self.lines, "}", ""])
        return Dispatch(
            self.name, text, tuple(self.memory), self.has_numbers, self.wide, threads, group
        )  # fmt: skip


class _Elementwise(_Printer):
    """Stores alone: along x the last loop, along y the one before, along z all others."""

    def __init__(self, kernel: Kernel, numbers: Sequence[int]) -> None:
        super().__init__(kernel, numbers, kernel.name)

    def dispatch(self) -> Dispatch:
        loops = self.kernel.outer
        lead, last = loops[:-2], loops[-1] if loops else Var(1)
        second = loops[-2] if len(loops) > 1 else Var(1)
        x, y, z = last.extent, second.extent, math.prod(v.extent for v in lead)
        self.turns(lead, f"{self.index}(at.z)")
        if y > 1:
            self.line(f"const {self.index} {self.named(second)} = {self.index}(at.y);")
        four = self.takes_four(last)
        if four:
            name, end = self.named(last), mark_size(x)
            end = f"long({end})" if self.wide else end
            self.line(f"const {self.index} first = {self.index}(at.x) * 4, end = min(first + 4, {end});")
            self.open(f"for ({self.index} {name} = first; {name} < end; {name}++)")
            x = -(-x // 4)
        elif x > 1:
            self.line(f"const {self.index} {self.named(last)} = {self.index}(at.x);")
        stores = [step for step in self.kernel.steps if isinstance(step, Store)]
        for step, name in zip(stores, self.exprs([step.value for step in stores]), strict=True):
            self.put(step, name)
        if four:
            self.close()
        across = min(_GROUP, max(_SIMD, _power_of_two(x)))
        return self.finished((x, y, z), (across, min(_GROUP // across, _power_of_two(y)), 1))

    def takes_four(self, last: Var) -> bool:
        """Whether memory runs along the last loop everywhere, so that neighbours are worth a thread."""
        walked = [step.offset for step in self.kernel.steps if isinstance(step, Store)]
        walked += [p for e in walk(self.kernel.exprs) for p in index_exprs(e)]
        many = math.prod(v.extent for v in self.kernel.outer) >= _MANY
        return many and all(place.stride(last) in (0, 1) for place in walked)


class _Folding(_Printer):
    """Folds and what is made of them: all steps of a kernel, or one stage of a split one."""

    def __init__(
        self,
        kernel: Kernel,
        numbers: Sequence[int],
        name: str,
        shape: _Shape,
        steps: Sequence[ReductionStep | Store],
        before: int,
    ) -> None:
        super().__init__(kernel, numbers, name)
        self.shape = shape
        self.steps = steps
        self.before = [step for step in kernel.steps if isinstance(step, ReductionStep)][:before]
        self.shared: list[str] = []  # declarations of threadgroup memory, which come first

    def dispatch(self) -> Dispatch:
        shape, outer = self.shape, self.kernel.outer
        rows = math.prod(v.extent for v in outer)
        if shape.lane is None:
            self.line(f"const int lane = at.x % {shape.team};")
            if outer or shape.chunks > 1:
                self.line(f"const {self.index} row = {self.index}(at.x / {shape.team});")
            self.turns(outer, "row")
            self.chunk("at.y")
            threads, group = (rows * shape.team, self.depth_of_grid(), 1), (_GROUP, 1, 1)
        else:
            threads, group = self.columns(shape.lane, rows)
        for fold in self.before:
            self.gathered(fold, rows)
        for folds, stores in _groups(self.steps):
            if folds:
                self.fold(*folds, rows=rows)
            else:
                self.along(stores)
        self.lines[:0] = self.shared
        return self.finished(threads, group)

    def columns(self, lane: Var, rows: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        shape = self.shape
        lead = [v for v in self.kernel.outer if v is not lane]
        others = rows // lane.extent
        self.line(f"const {self.index} {self.named(lane)} = {self.index}(at.x);")
        if shape.team > 1:
            self.line("const int lane = at.y;")
        if others > 1:
            whole = "at.z" if shape.chunks == 1 else f"at.z % {mark_size(others)}"
            self.line(f"const {self.index} others = {self.index}({whole});")
            self.turns(lead, "others")
        self.chunk("at.z" if others == 1 else f"at.z / {mark_size(others)}")
        if shape.chunks > 1:
            row = self.named(lane)
            row += f" + others * {mark_size(lane.extent)}" if others > 1 else ""
            self.line(f"const {self.index} row = {row};")
        across = _SIMD if shape.team > 1 else _GROUP
        return (lane.extent, shape.team, others * self.depth_of_grid()), (across, shape.team, 1)

    def depth_of_grid(self) -> int:
        """How many chunks a grid has: one is enough to store what each row comes to."""
        return self.shape.chunks if any(isinstance(s, ReductionStep) or s.inner for s in self.steps) else 1

    def chunk(self, text: str) -> None:
        if self.shape.chunks > 1:
            self.line(f"const {self.index} chunk = {text};")

    # --- loops --------------------------------------------------------------------------------------------

    def loop(self, inner: tuple[Var, ...]) -> str:
        """A loop in which the team's threads, and the chunks, share all turns; the name of the turn."""
        size = math.prod(v.extent for v in inner)
        team, chunks = self.shape.team, self.shape.chunks
        turn = self.named(inner[0]) if len(inner) == 1 else "turn"
        start, end = "lane" if team > 1 else "0", mark_size(size)
        if chunks > 1:
            part, whole = mark_size(-(-size // chunks)), f"long({end})" if self.wide else end
            start = f"chunk * {part} + lane" if team > 1 else f"chunk * {part}"
            end = f"min((chunk + 1) * {part}, {whole})"
        step = f"{turn}++" if team == 1 else f"{turn} += {team}"
        self.open(f"for ({self.index} {turn} = {start}; {turn} < {end}; {step})")
        if len(inner) > 1:
            self.turns(inner, "turn")
        return turn

    def along(self, stores: list[Store]) -> None:
        """Stores for every turn of their inner loops; without such loops, by one thread of the team."""
        inner = stores[0].inner
        tests = ["lane == 0"] if self.shape.team > 1 else []
        tests += ["chunk == 0"] if self.shape.chunks > 1 else []
        if inner:
            self.loop(inner)
        elif tests:
            self.open(f"if ({' && '.join(tests)})")
        for step, name in zip(stores, self.exprs([step.value for step in stores]), strict=True):
            self.put(step, name)
        if inner or tests:
            self.close()

    # --- folds --------------------------------------------------------------------------------------------

    def fold(self, step: ReductionStep, *online: OnlineReduction, rows: int) -> None:
        """A fold, and sums in the same loop that need it."""
        state = self.state(step)
        if not step.inner and self.shape.chunks == 1:
            (value,) = self.exprs([step.body])
            if state.is_arg:
                value = "0"
            elif state.keeps_low:
                value += " + 0.0f"  # a sum begins with 0, and is never -0
            self.line(f"const {state.kind} {state.name} = {value};")
            return
        self.line_all(state.begun())
        sums = [OnlineSum(other, self.state(other), state.name) for other in online]
        for other in sums:
            self.line_all(other.begun())
        if step.inner:
            turn = self.loop(step.inner)
            value, *values = self.exprs([step.body, *(other.body for other in online)])
            self.line_all(state.taking(value, turn))
            for other, value in zip(sums, values, strict=True):
                self.line_all(other.taking(value))
            self.close()
        else:
            self.open("if (chunk == 0 && lane == 0)" if self.shape.team > 1 else "if (chunk == 0)")
            (value,) = self.exprs([step.body])
            self.line_all(state.taking(value, "0"))
            self.close()
        self.line_all(state.ended())
        self.together(state)
        self.leave(state, rows)
        for other in sums:
            self.line_all(other.moved(self.turns_of(other.step, "chunk")))
            self.line_all(other.state.ended())
            self.together(other.state)
            self.leave(other.state, rows)
            if self.shape.chunks == 1:
                self.line_all(other.settled())

    def state(self, step: ReductionStep) -> ReductionState:
        """A fold's state, named."""
        state = ReductionState.of(step, f"r{len(self.folds)}", self.index)
        self.folds[step.reduction, step.index] = state.name
        return state

    def leave(self, state: ReductionState, rows: int) -> None:
        """What a chunk comes to, for the next stage."""
        if self.shape.chunks == 1:
            return
        once = "if (lane == 0) " if self.shape.team > 1 else ""
        for scratch, value in self.scratch(state, rows):
            self.memory[scratch] = None
            self.written.add(scratch)
            self.line(f"{once}{scratch.name}[chunk * {mark_size(rows)} + row] = {value};")

    def turns_of(self, step: ReductionStep, chunk: str) -> str:
        """How many turns a chunk has, as a float that can be divided by."""
        if self.shape.chunks == 1:
            return f"float({mark_size(step.iterations)})"
        part = mark_size(-(-step.iterations // self.shape.chunks))
        whole = f"long({mark_size(step.iterations)})" if self.wide else mark_size(step.iterations)
        return f"float(max(min(({chunk} + 1) * {part}, {whole}) - {chunk} * {part}, {self.index}(1)))"

    def together(self, state: ReductionState) -> None:
        """What each thread of a team has found, put together, so that each has all of it."""
        shape = self.shape
        if shape.team == 1:
            return
        if shape.lane is None:
            self.open(f"for (ushort distance = {_SIMD // 2}; distance > 0; distance /= 2)")
            self.line_all(state.merging([f"of_lane({name}, distance)" for name in state.parts]))
            self.close()
            if shape.team == _SIMD:
                return
            count, mine, across, row = _GROUP // _SIMD, f"at.x % {_GROUP} / {_SIMD}", "", "lane % 32 == 0"
        else:
            count, mine, across, row = _WORKERS, "lane", f"[at.x % {_SIMD}]", ""
        for name, kind in state.parts.items():
            size = f"[{count}]" + (f"[{_SIMD}]" if across else "")
            self.shared.append(f"    threadgroup {kind} {name}_of{size};")
        if row:
            self.open(f"if ({row})")
        self.line_all([f"{name}_of[{mine}]{across} = {name};" for name in state.parts])
        if row:
            self.close()
        self.line("threadgroup_barrier(mem_flags::mem_threadgroup);")
        self.line_all([f"{name} = {name}_of[0]{across};" for name in state.parts])
        self.open(f"for (int part = 1; part < {count}; part++)")
        self.line_all(state.merging([f"{name}_of[part]{across}" for name in state.parts]))
        self.close()

    def scratch(self, state: ReductionState, rows: int) -> Iterator[tuple[Scratch, str]]:
        for name, dtype in zip(state.parts, state.dtypes, strict=True):
            yield Scratch(f"{name}_chunks", dtype, rows * self.shape.chunks), name

    def gathered(self, step: ReductionStep, rows: int) -> None:
        """A fold of an earlier stage, of what its chunks came to."""
        state = self.state(step)
        self.line_all(state.begun())
        self.open(f"for ({self.index} part = 0; part < {self.shape.chunks}; part++)")
        found = self.parts(state, rows)
        other = None
        if isinstance(step, OnlineReduction):
            beside = self.folds[step.reference.reduction, step.reference.index]
            other = OnlineSum(step, state, beside)
            (reference,) = self.parts(ReductionState.of(step.reference, beside, self.index), rows)
            found = [other.of_part(found[0], reference, self.turns_of(step, "part"))]
        self.line_all(state.taking(found[0], "0") if len(found) == 1 else state.merging(found))
        self.close()
        self.line_all(state.ended())
        if other is not None:
            self.line_all(other.settled())

    def parts(self, state: ReductionState, rows: int) -> list[str]:
        """What a chunk has left of a fold."""
        found = []
        for scratch, _ in self.scratch(state, rows):
            self.memory[scratch] = None
            found.append(f"{scratch.name}[part * {mark_size(rows)} + row]")
        return found


class _Scanning(_Printer):
    """Scans, and stores of what they have come to at each turn.

    Where memory runs along an outer loop and there are turns enough, a thread walks all of its own. Otherwise
    a team takes as many elements of a row as it has threads at a time: each simdgroup scans its own by
    shuffles, and what came before is carried on.
    """

    def __init__(self, kernel: Kernel, numbers: Sequence[int]) -> None:
        super().__init__(kernel, numbers, kernel.name)
        self.states = [
            State(step, f"s{i}") for i, step in enumerate(s for s in kernel.steps if isinstance(s, ScanStep))
        ]
        self.stores = [step for step in kernel.steps if isinstance(step, Store)]
        ((self.along,),) = {step.inner for step in kernel.steps}

    def dispatch(self) -> Dispatch:
        rows, turns = math.prod(v.extent for v in self.kernel.outer), self.along.extent
        lane = lane_of_scans(self.kernel)
        if turns < _SHORT_SCAN or (lane is not None and (rows >= _MANY_ROWS or turns <= _SHORT_ROW)):
            self.alone(lane)
            return self.finished((rows, 1, 1), (_GROUP, 1, 1))
        team = _SIMD if rows >= _MANY_ROWS or turns <= _SHORT_ROW else _GROUP
        self.as_team(team)
        return self.finished((rows * team, 1, 1), (_GROUP, 1, 1))

    def alone(self, lane: Var | None) -> None:
        """A thread for each turn of the outer loops, neighbours along `lane`."""
        lead = [v for v in self.kernel.outer if v is not lane]
        self.turns([*lead, *([lane] if lane is not None else [])], f"{self.index}(at.x)")
        for state in self.states:
            self.line_all(state.begun(state.parts))
        turn = self.named(self.along)
        self.open(f"for ({self.index} {turn} = 0; {turn} < {mark_size(self.along.extent)}; {turn}++)")
        for state, element in self.elements(turn):
            self.line_all(state.joined(state.parts, element))
        self.put_all()
        self.close()

    def as_team(self, team: int) -> None:
        """As many threads for each turn of the outer loops."""
        if team > _SIMD:
            for state in self.states:
                for name, kind in zip(state.named("_of"), state.kinds, strict=True):
                    self.line(f"threadgroup {kind} {name}[{team // _SIMD}];")
        self.line(f"const int lane = at.x % {_SIMD};")
        self.turns(self.kernel.outer, f"{self.index}(at.x / {team})")
        for state in self.states:
            self.line_all(state.begun(state.named("_before")))
        turn, end = self.named(self.along), mark_size(self.along.extent)
        end = f"long({end})" if self.wide else end
        self.open(f"for ({self.index} first = 0; first < {end}; first += {team})")
        self.line(f"const {self.index} own = first + at.x % {team};")
        # Threads past the end take the last element: what they come to goes nowhere.
        self.line(f"const {self.index} {turn} = min(own, {end} - 1);")
        elements = self.elements(turn)
        for state, element in elements:
            self.line_all(state.declared(state.parts, element))
        self.open(f"for (ushort distance = 1; distance < {_SIMD}; distance *= 2)")
        for state, _ in elements:
            below = state.named("_below")
            self.line_all(state.declared(below, [f"of_lane_below({p}, distance)" for p in state.parts]))
            self.line_all(state.joined(below, state.parts))
            self.open("if (lane >= distance)")
            self.line_all(state.copied(state.parts, below))
            self.close()
        self.close()
        if team > _SIMD:
            self.over_simdgroups(team // _SIMD, f"at.x % {team} / {_SIMD}")
        for state, _ in elements:
            before = state.named("_before")
            self.line_all(state.joined(before, state.parts))
            self.line_all(state.copied(state.parts, before))
            if team == _SIMD:
                self.line_all(state.copied(before, [f"of_last_lane({p})" for p in state.parts]))
            else:
                self.line_all(state.copied(before, state.named("_whole")))
        self.open(f"if (own < {end})")
        self.put_all()
        self.close()
        self.close()

    def over_simdgroups(self, count: int, mine: str) -> None:
        """What came before a simdgroup's own elements, and what has come with those of the whole tile."""
        self.line("threadgroup_barrier(mem_flags::mem_threadgroup);")
        self.open(f"if (lane == {_SIMD - 1})")
        for state in self.states:
            self.line_all(state.copied([f"{name}[{mine}]" for name in state.named("_of")], state.parts))
        self.close()
        self.line("threadgroup_barrier(mem_flags::mem_threadgroup);")
        for state in self.states:
            self.line_all(state.declared(state.named("_whole"), state.named("_before")))
        self.open(f"for (int part = 0; part < {count}; part++)")
        for state in self.states:
            whole = state.named("_whole")
            self.line_all(state.joined(whole, [f"{name}[part]" for name in state.named("_of")]))
            self.open(f"if (part + 1 == {mine})")
            self.line_all(state.copied(state.named("_before"), whole))
            self.close()
        self.close()

    def elements(self, turn: str) -> list[tuple[State, list[str]]]:
        """The elements of a turn as states of their own."""
        values = self.exprs([state.step.body for state in self.states])
        return [(s, s.element(v, turn)) for s, v in zip(self.states, values, strict=True)]

    def put_all(self) -> None:
        for state in self.states:
            self.scans[state.step.scan, state.step.index] = state.text()
        for step, name in zip(self.stores, self.exprs([step.value for step in self.stores]), strict=True):
            self.put(step, name)


def _groups(steps: Sequence[ReductionStep | Store]) -> list[tuple[list[Any], list[Store]]]:
    """The steps: a fold with what needs it in its loop, or neighbouring stores of the same loops."""
    groups: list[tuple[list[Any], list[Store]]] = []
    for step in steps:
        folds, stores = groups[-1] if groups else ([], [])
        if isinstance(step, OnlineReduction):
            folds.append(step)
        elif isinstance(step, ReductionStep):
            groups.append(([step], []))
        elif stores and stores[0].inner == step.inner:
            stores.append(step)
        else:
            groups.append(([], [step]))
    return groups


def _is_wide(kernel: Kernel) -> bool:
    """Whether an index, or what it is summed of, may be beyond 32 bits."""

    def reach(ix: IndexExpr) -> int:
        total = abs(ix.const)
        for atom, c in ix.terms.items():
            if isinstance(atom, Split):
                total = max(total, reach(atom.inner))
            low, high = IndexExpr({atom: c}).bounds()
            total += max(abs(low), abs(high))
        return total

    found = [reach(p) for e in walk(kernel.exprs) for p in index_exprs(e)]
    found += [reach(step.offset) for step in kernel.steps if isinstance(step, Store)]
    turns = [math.prod(v.extent for v in loops) for loops in (kernel.outer, *(s.inner for s in kernel.steps))]
    # A loop steps past its end by a team's width at most, and chunks are rounded up.
    return max([*found, *(t + _CHUNKS * _GROUP for t in turns)]) >= 1 << 31


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
