"""Assign the loops of a kernel to the rows and columns of a program's tile.

Outer loops are rows. The inner loops of reductions, scans and stores are columns; steps with equally many
inner iterations share a `ColumnSpace`. If memory is contiguous along an outer loop instead, only that loop
makes the rows, and each iteration of the other outer loops has a program of its own. In an elementwise
kernel the last loop is the columns, or all loops are where a tile would be half empty.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from burnt.codegen.ir import (
    Buffer,
    Index,
    IndexExpr,
    Kernel,
    OnlineReduction,
    Reduction,
    ReductionStep,
    ScanStep,
    Store,
    Var,
    index_exprs,
    substitute,
    walk,
)
from burnt.codegen.ir.loops import max_index
from burnt.codegen.render.triton.tile_config import TileConfig, TileStructure, next_power_of_two

INT32_INDEX_LIMIT = 2**31 - 2**20
"""Larger indices need 64 bits. The margin keeps an index plus the offsets within a tile below 2^31."""


class ColumnSpace:
    """The columns of all steps with `total` inner iterations, whatever loops these consist of."""

    def __init__(self, total: int, index: int) -> None:
        self.total = total
        self.index = index
        self.loops: dict[tuple[int, ...], tuple[Var, ...]] = {}

    def shared_loops(self, inner: Sequence[Var]) -> tuple[Var, ...]:
        """Return the loops that replace a step's inner loops, the same for all steps."""
        extents = tuple(v.extent for v in inner)
        return self.loops.setdefault(extents, tuple(Var(e) for e in extents))


class Layout:
    """Which loops of a kernel are rows, which are columns, and which get a program per iteration."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.has_inner_loop = any(
            isinstance(step, ReductionStep | ScanStep) or step.inner for step in kernel.steps
        )
        column_major_loop = None if kernel.num_chunks else self._find_column_major_loop()
        self.is_column_major = column_major_loop is not None
        outer = kernel.outer
        self.spaces: dict[int, ColumnSpace] = {}
        self.column_loops: tuple[Var, ...] = ()
        self.program_loops: tuple[Var, ...] = ()
        self.row_loops: tuple[Var, ...] = ()
        if self.has_inner_loop:
            self.row_loops = outer
            if column_major_loop is not None:
                self.row_loops, self.program_loops = (
                    (column_major_loop,),
                    tuple(v for v in outer if v is not column_major_loop),
                )
        elif column_major_loop is not None:
            self.row_loops = (*(v for v in outer[:-1] if v is not column_major_loop), column_major_loop)
            self.column_loops = outer[-1:]
        elif len(outer) > 1 and _fills_tile(outer[-1].extent):
            self.row_loops, self.column_loops = outer[:-1], outer[-1:]
        else:
            self.column_loops = outer
        if self.column_loops:
            self.spaces[-1] = ColumnSpace(math.prod(v.extent for v in self.column_loops), 0)
        self.steps: list[ReductionStep | ScanStep | Store] = []
        substituted_reductions: dict[ReductionStep, ReductionStep] = {}
        for step in kernel.steps:
            total = math.prod(v.extent for v in step.inner)
            if step.inner:
                space = self.spaces.setdefault(total, ColumnSpace(total, len(self.spaces)))
                inner_loops = space.shared_loops(step.inner)
                mapping = dict(zip(step.inner, map(IndexExpr.of, inner_loops), strict=True))
                new = dataclasses.replace(step, inner=inner_loops, body=substitute(step.body, mapping))
                if isinstance(new, OnlineReduction):
                    new.reference = substituted_reductions[new.reference]
                elif isinstance(step, ReductionStep):
                    substituted_reductions[step] = new  # type: ignore[assignment]
                elif isinstance(new, ScanStep):
                    new.index = tuple(ix.substitute(mapping) for ix in new.index)
                elif isinstance(new, Store):
                    new.offset = new.offset.substitute(mapping)
                step = new
            self.steps.append(step)

    def space_of(self, step: ReductionStep | ScanStep | Store) -> ColumnSpace | None:
        """Return the columns of a step; None for a single element of a row."""
        return self.spaces[math.prod(v.extent for v in step.inner)] if step.inner else None

    def block_name(self, space: ColumnSpace) -> str:
        """Return the name of the constant that holds a tile's width."""
        if self.column_loops and not self.row_loops:
            return "BLOCK"
        return f"COLS{space.index or ''}"

    @property
    def can_chunk(self) -> bool:
        """Whether several programs may share a row: all steps have equally many inner iterations."""
        return (
            not self.kernel.num_chunks
            and any(isinstance(step, ReductionStep) for step in self.steps)
            and len(self.spaces) == 1
            and all(step.inner for step in self.steps if isinstance(step, ReductionStep))
        )

    def structure(self) -> TileStructure:
        """Return what the choice of block sizes depends on."""
        cols = max((space.total for space in self.spaces.values()), default=1)
        tensors: dict[Buffer, None] = {}
        for step in self.steps:
            loops = set(step.inner or self.column_loops)
            for e in walk([step.body]):
                if e.op == "load" and loops & e.extra[1].variables():
                    tensors[e.extra[0]] = None
            if isinstance(step, Store) and loops & step.offset.variables():
                tensors[step.buffer] = None
        return TileStructure(
            rows=math.prod(v.extent for v in self.row_loops),
            cols=cols,
            programs=math.prod(v.extent for v in self.program_loops),
            has_inner_loop=self.has_inner_loop,
            is_column_major=self.is_column_major,
            num_tensors=len(tensors),
            itemsize=min((b.dtype.itemsize for b in tensors), default=4),
            can_chunk=self.can_chunk,
            row_chunks=self.kernel.num_chunks,
        )

    def group_steps(self, config: TileConfig) -> list[list[ReductionStep | ScanStep | Store]]:
        """Return the steps in executable order, those that share a loop grouped together."""
        if any(isinstance(step, ScanStep) for step in self.steps):
            return [list(self.steps)]
        remaining, done = list(self.steps), set[tuple[Reduction, Index]]()
        groups: list[list[ReductionStep | ScanStep | Store]] = []
        while remaining:
            first = next(step for step in remaining if self._is_ready(step, done, remaining))
            group = [first]
            space = self.space_of(first)
            if space is not None and (space.total > config.cols or config.chunks > 1):
                group = [
                    s for s in remaining if self.space_of(s) is space and self._is_ready(s, done, remaining)
                ]
                group.sort(key=lambda step: isinstance(step, Store))
            for step in group:
                remaining.remove(step)
            done |= {(s.reduction, s.index) for s in group if isinstance(s, ReductionStep)}
            groups.append(group)
        return groups

    def regroup_after_chunks(
        self, steps: list[ReductionStep | ScanStep | Store]
    ) -> list[list[ReductionStep | ScanStep | Store]]:
        """Group what follows chunked reductions: single elements one by one, the rest in one loop."""
        looped = [step for step in steps if step.inner]
        return [*([step] for step in steps if not step.inner), *([looped] if looped else [])]

    def _is_ready(
        self,
        step: ReductionStep | ScanStep | Store,
        done: set[tuple[Reduction, Index]],
        remaining: list[ReductionStep | ScanStep | Store],
    ) -> bool:
        """Whether a step's inputs are computed and no remaining step reads what it overwrites."""
        if any(e.extra not in done for e in walk([step.body]) if e.op == "reduced"):
            return False
        # A buffer is read before a store overwrites it.
        return not isinstance(step, Store) or not any(
            other is not step and _reads_buffer(other, step.buffer) for other in remaining
        )

    def _find_column_major_loop(self) -> Var | None:
        """Return the outer loop that memory is contiguous along, unless the inner or last loop is one."""
        outer = self.kernel.outer
        votes: dict[Var | None, int] = {}
        for step in self.kernel.steps:
            inner_loops = set(step.inner) if self.has_inner_loop else set(outer[-1:])
            indices: list[IndexExpr] = [e.extra[1] for e in walk([step.body]) if e.op == "load"]
            if isinstance(step, Store):
                indices.append(step.offset)
            for index in indices:
                # An index that is constant along a row says nothing about the memory order.
                if not index.variables() & inner_loops:
                    continue
                if any(index.stride(v) == 1 for v in inner_loops):
                    # An elementwise tile covers both loops, which suits both memory orders.
                    votes[None] = votes.get(None, 0) + self.has_inner_loop
                for v in outer:
                    if v not in inner_loops and index.stride(v) == 1:
                        votes[v] = votes.get(v, 0) + 1
        best = max(votes, key=lambda v: votes[v], default=None)
        return best if best is not None and votes[best] and best.extent >= 8 else None

    def needs_int64(self, config: TileConfig) -> bool:
        """Whether an index exceeds int32, including in the lanes of a tile beyond the end."""
        rows = math.prod(v.extent for v in self.row_loops)
        columns = [
            (loops, [min(config.cols, next_power_of_two(s.total))])
            for s in self.spaces.values()
            for loops in (*s.loops.values(), self.column_loops)
        ]
        overrun = loop_overrun([(self.row_loops, [min(config.rows, next_power_of_two(rows))]), *columns])
        indices = [index for s in self.steps for e in walk([s.body]) for index in index_exprs(e)]
        indices += [s.offset for s in self.steps if isinstance(s, Store)]
        largest = [max_index(index, overrun) for index in indices]
        largest += [math.prod(v.extent for v in self.kernel.outer) + config.rows]
        largest += [s.total + config.cols * (config.chunks + 1) for s in self.spaces.values()]
        return max(largest) > INT32_INDEX_LIMIT


def _reads_buffer(step: ReductionStep | ScanStep | Store, buffer: Buffer) -> bool:
    return any(e.op == "load" and e.extra[0] is buffer for e in walk([step.body]))


def loop_overrun(axes: Sequence[tuple[Sequence[Var], Sequence[int]]]) -> dict[Var, int]:
    """Return how far loops exceed their extents in the lanes of a tile beyond the end.

    `axes` has the loops of each flattened axis, with the block sizes that it may be divided into.
    """
    overrun = {}
    for loops, blocks in axes:
        total = math.prod(v.extent for v in loops)
        if loops and total:
            num_lanes = max(-total % block for block in blocks)
            overrun[loops[0]] = -(-num_lanes // (total // loops[0].extent))
    return overrun


def _fills_tile(extent: int) -> bool:
    """Whether a power-of-two tile leaves few lanes idle."""
    return extent >= 1024 or next_power_of_two(extent) <= 1.25 * extent
