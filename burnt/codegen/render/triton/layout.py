"""What a Triton kernel's programs take of a kernel's loops: rows, columns, and what is walked together.

The outer loops are rows; what folds and stores walk along are columns, in spaces of equal length. Where
memory runs along an outer loop instead, that loop alone makes the rows, and each turn of the others is a
program's own. An elementwise kernel has its last loop for columns, or all of them where a tile would be half
empty.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from burnt.codegen.ir import (
    Buffer,
    Expr,
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
    substitute,
    walk,
)
from burnt.codegen.render.triton.tile_config import TileConfig, TileStructure, next_power_of_two

__all__ = ["FAR", "Layout", "Space", "computed", "padding", "reach"]

FAR = 2**31 - 2**20
"""Indices beyond need 64 bits; what is added to one in a tile stays below 2^31."""


class Space:
    """What steps of a number of turns walk along: one tile, whatever loops it is made of."""

    def __init__(self, total: int, number: int) -> None:
        self.total = total
        self.number = number
        self.loops: dict[tuple[int, ...], tuple[Var, ...]] = {}

    def vars(self, inner: Sequence[Var]) -> tuple[Var, ...]:
        """The loops that stand for those of a step, the same for all steps."""
        extents = tuple(v.extent for v in inner)
        return self.loops.setdefault(extents, tuple(Var(e) for e in extents))


class Layout:
    """Which loops of a kernel are rows, which are columns, and which belong to a program each."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.folds = any(isinstance(step, ReductionStep | ScanStep) or step.inner for step in kernel.steps)
        across = self._across()
        self.across = across is not None
        outer = kernel.outer
        self.spaces: dict[int, Space] = {}
        self.grid: tuple[Var, ...] = ()
        self.lead: tuple[Var, ...] = ()
        self.rows: tuple[Var, ...] = ()
        if self.folds:
            self.rows = outer
            if across is not None:
                self.rows, self.lead = (across,), tuple(v for v in outer if v is not across)
        elif across is not None:
            self.rows = (*(v for v in outer[:-1] if v is not across), across)
            self.grid = outer[-1:]
        elif len(outer) > 1 and _fills(outer[-1].extent):
            self.rows, self.grid = outer[:-1], outer[-1:]
        else:
            self.grid = outer
        if self.grid:
            self.spaces[-1] = Space(math.prod(v.extent for v in self.grid), 0)
        self.steps: list[ReductionStep | ScanStep | Store] = []
        folds: dict[ReductionStep, ReductionStep] = {}
        for step in kernel.steps:
            total = math.prod(v.extent for v in step.inner)
            if step.inner:
                space = self.spaces.setdefault(total, Space(total, len(self.spaces)))
                mapping = dict(zip(step.inner, map(IndexExpr.of, space.vars(step.inner)), strict=True))
                inner = space.vars(step.inner)
                if isinstance(step, OnlineReduction):
                    body, beside = substitute(step.body, mapping), folds[step.reference]
                    step = dataclasses.replace(step, inner=inner, body=body, reference=beside)
                elif isinstance(step, ReductionStep):
                    fold = ReductionStep(step.reduction, step.index, inner, substitute(step.body, mapping))
                    folds[step], step = fold, fold
                elif isinstance(step, ScanStep):
                    index = tuple(ix.substitute(mapping) for ix in step.index)
                    step = ScanStep(step.scan, index, inner, substitute(step.body, mapping))
                else:
                    place, value = step.offset.substitute(mapping), substitute(step.value, mapping)
                    step = Store(step.buffer, inner, place, value, step.loops)
            self.steps.append(step)

    def space(self, step: ReductionStep | ScanStep | Store) -> Space | None:
        """What a step walks along; None for a single element of a row."""
        return self.spaces[math.prod(v.extent for v in step.inner)] if step.inner else None

    def block(self, space: Space) -> str:
        """The name of a tile's width."""
        if self.grid and not self.rows:
            return "BLOCK"
        return f"COLS{space.number or ''}"

    @property
    def divisible(self) -> bool:
        """Whether several programs may share a row: all that is walked is walked equally far."""
        return (
            any(isinstance(step, ReductionStep) for step in self.steps)
            and len(self.spaces) == 1
            and all(step.inner for step in self.steps if isinstance(step, ReductionStep))
        )

    def form(self) -> TileStructure:
        """What the choice of block sizes depends on."""
        cols = max((space.total for space in self.spaces.values()), default=1)
        walked: dict[Buffer, None] = {}
        for step in self.steps:
            along = set(step.inner or self.grid)
            for e in walk([computed(step)]):
                if e.op == "load" and along & e.extra[1].variables():  # type: ignore[attr-defined]
                    walked[e.extra[0]] = None  # type: ignore[index]
            if isinstance(step, Store) and along & step.offset.variables():
                walked[step.buffer] = None
        return TileStructure(
            rows=math.prod(v.extent for v in self.rows),
            cols=cols,
            programs=math.prod(v.extent for v in self.lead),
            folds=self.folds,
            across=self.across,
            tiles=len(walked),
            itemsize=min((b.dtype.itemsize for b in walked), default=4),
            chunks=self.divisible,
        )

    def groups(self, config: TileConfig) -> list[list[ReductionStep | ScanStep | Store]]:
        """The steps in an order that they can be taken in, those of one loop together."""
        if any(isinstance(step, ScanStep) for step in self.steps):
            return [list(self.steps)]
        left, done = list(self.steps), set[tuple[Reduction, Index]]()
        groups: list[list[ReductionStep | ScanStep | Store]] = []
        while left:
            first = next(step for step in left if self._ready(step, done, left))
            group = [first]
            space = self.space(first)
            if space is not None and (space.total > config.cols or config.chunks > 1):
                group = [s for s in left if self.space(s) is space and self._ready(s, done, left)]
                group.sort(key=lambda step: isinstance(step, Store))
            for step in group:
                left.remove(step)
            done |= {(s.reduction, s.index) for s in group if isinstance(s, ReductionStep)}
            groups.append(group)
        return groups

    def regrouped(
        self, steps: list[ReductionStep | ScanStep | Store]
    ) -> list[list[ReductionStep | ScanStep | Store]]:
        """What comes after the chunked folds: single rows one by one, what is walked in one loop."""
        walked = [step for step in steps if step.inner]
        return [*([step] for step in steps if not step.inner), *([walked] if walked else [])]

    def _ready(
        self,
        step: ReductionStep | ScanStep | Store,
        done: set[tuple[Reduction, Index]],
        left: list[ReductionStep | ScanStep | Store],
    ) -> bool:
        if any(e.extra not in done for e in walk([computed(step)]) if e.op == "reduced"):
            return False
        # What a store overwrites is read before.
        return not isinstance(step, Store) or not any(
            other is not step and _reads(other, step.buffer) for other in left
        )

    def _across(self) -> Var | None:
        """The outer loop that memory runs along, where the last one, or the folds' own loops, do not."""
        outer = self.kernel.outer
        votes: dict[Var | None, int] = {}
        for step in self.kernel.steps:
            along = set(step.inner) if self.folds else set(outer[-1:])
            placed: list[IndexExpr] = [e.extra[1] for e in walk([computed(step)]) if e.op == "load"]  # type: ignore[misc]
            if isinstance(step, Store):
                placed.append(step.offset)
            for place in placed:
                # What is the same for a whole row is no walk along memory.
                if not place.variables() & along:
                    continue
                if any(place.stride(v) == 1 for v in along):
                    # An elementwise walk takes a tile of both loops, which serves both.
                    votes[None] = votes.get(None, 0) + self.folds
                for v in outer:
                    if v not in along and place.stride(v) == 1:
                        votes[v] = votes.get(v, 0) + 1
        best = max(votes, key=lambda v: votes[v], default=None)
        return best if best is not None and votes[best] and best.extent >= 8 else None

    def wide(self, config: TileConfig) -> bool:
        """Whether an index reaches beyond int32, also in a tile that is partly beyond the end."""
        rows = math.prod(v.extent for v in self.rows)
        walked = [
            (loops, [min(config.cols, next_power_of_two(s.total))])
            for s in self.spaces.values()
            for loops in (*s.loops.values(), self.grid)
        ]
        beyond = padding([(self.rows, [min(config.rows, next_power_of_two(rows))]), *walked])
        found = [
            reach(place, beyond) for s in self.steps for e in walk([computed(s)]) for place in index_exprs(e)
        ]
        found += [reach(s.offset, beyond) for s in self.steps if isinstance(s, Store)]
        found += [math.prod(v.extent for v in self.kernel.outer) + config.rows]
        found += [s.total + config.cols * (config.chunks + 1) for s in self.spaces.values()]
        return max(found) > FAR


def computed(step: ReductionStep | ScanStep | Store) -> Expr:
    """What a step computes."""
    return step.value if isinstance(step, Store) else step.body


def _reads(step: ReductionStep | ScanStep | Store, buffer: Buffer) -> bool:
    return any(e.op == "load" and e.extra[0] is buffer for e in walk([computed(step)]))


def padding(flat: Sequence[tuple[Sequence[Var], Sequence[int]]]) -> dict[Var, int]:
    """How far loops go beyond their extents, for lanes of a tile that are beyond the end.

    Args:
        flat: the loops of flattened axes, each with the sizes of blocks that it may be gone through in.
    """
    found = {}
    for loops, blocks in flat:
        total = math.prod(v.extent for v in loops)
        if loops and total:
            lanes = max(-total % block for block in blocks)
            found[loops[0]] = -(-lanes // (total // loops[0].extent))
    return found


def reach(place: IndexExpr, beyond: Mapping[Var, int]) -> int:
    """The largest number that turns up while an index is computed.

    Args:
        place: the index.
        beyond: how far loops go beyond their extents.
    """
    total = abs(place.const)
    for atom, c in place.terms.items():
        low, high = IndexExpr({atom: c}).bounds(beyond)
        total += max(abs(low), abs(high))
        if isinstance(atom, Split):
            total = max(total, reach(atom.inner, beyond))
    return total


def _fills(extent: int) -> bool:
    """Whether a tile of a power of two leaves few lanes idle."""
    return extent >= 1024 or next_power_of_two(extent) <= 1.25 * extent
