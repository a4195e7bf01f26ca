"""A kernel: loops over `outer`, and in each iteration a list of steps (reductions, scans, stores).

The steps are in an order in which they can run one after another. Steps over the same extents share their
`inner` loops, so that common loads and subexpressions are one expression. Adjacent steps with the same inner
loops that do not depend on one another run in one pass over memory (`Kernel.passes`); so does a sum that
needs the row's maximum or mean (`OnlineReduction`).

A kernel never loads what it stores, with one exception: on targets with scratch memory, a value that a later
pass needs again is stored into a buffer of role ``local`` and loaded from there. On targets with chunks, sums
over the outer loops are written as one partial sum for each chunk of iterations (`PartialSum`), and another
kernel adds them up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from burnt.codegen.ir.expr import (
    Buffer,
    Check,
    Expr,
    Index,
    IndexExpr,
    Matmul,
    Reduction,
    Scan,
    Var,
    cast,
    index_exprs,
    index_value,
    rebuild,
    reduction_result,
    walk,
)


@dataclasses.dataclass(eq=False)
class ReductionStep:
    """Computes `reduction` at `index` (over the outer loops) by reducing `body` over the `inner` loops.

    argmax and argmin give the position in the flattened `inner` loops.
    """

    reduction: Reduction
    index: Index
    inner: tuple[Var, ...]
    body: Expr

    @property
    def iterations(self) -> int:
        """The number of elements that are reduced."""
        return math.prod(v.extent for v in self.inner)


@dataclasses.dataclass(eq=False)
class OnlineReduction(ReductionStep):
    """A sum relative to a row's maximum or mean, computed in the same pass as that maximum or mean.

    `kind` says what is summed; x is an element of `body`, which the reference reduces, too:

    ======== ================ ================================ kind     reference        sum of ========
    ================ ================================ exp      the maximum of x exp(x - maximum) squares  the
    sum of x     (x - sum / iterations) squared ======== ================ ================================

    The running sum is relative to the maximum or mean so far. When that changes from a to b, the sum s of n
    elements becomes s * exp(a - b), or s + n * (a - b) squared. Partial sums, each relative to its own
    reference, are combined in the same way. (Milakov and Gimelshein, 2018; Chan, Golub and LeVeque, 1979.)
    """

    kind: str  # ``exp`` or ``squares``
    reference: ReductionStep  # the reduction for the maximum or the sum, in the same pass
    ignores_infinite_max: bool = False  # whether an infinite maximum is not subtracted, as in logsumexp

    @property
    def element(self) -> Expr:
        """The element that is summed, in terms of the final result of the reference."""
        reference = reduction_result(self.reference.reduction, self.reference.index)
        if self.kind == "squares":
            count = cast(index_value(IndexExpr(const=self.iterations)), self.body.dtype)
            centered = self.body - reference / count
            return centered * centered
        if self.ignores_infinite_max:
            reference = reference.apply("abs").eq(math.inf).where(0, reference)
        return (self.body - reference).apply("exp")


@dataclasses.dataclass(eq=False)
class ScanStep:
    """Computes a scan over its one inner loop, whose iterations run in order.

    That loop is the element of `index` along the scan's axis. Stores over the same loop see the scan's value
    of their iteration. A kernel with scans has one inner loop and no reductions.
    """

    scan: Scan
    index: Index
    inner: tuple[Var, ...]
    body: Expr


@dataclasses.dataclass(eq=False)
class Store:
    """Stores `body` at `offset` (in elements) of `buffer`, for each iteration of the `inner` loops.

    `loops` has the loop of each axis of the stored tensor.
    """

    buffer: Buffer
    inner: tuple[Var, ...]
    offset: IndexExpr
    body: Expr
    loops: tuple[Var, ...]


@dataclasses.dataclass(eq=False)
class PartialSum(Store):
    """A store that adds up its value over the iterations of a chunk, in kernels with chunks.

    The first axis of the buffer counts the chunks; `offset` is within the current chunk's part. Each part
    ends up with the sum over the chunk's iterations: 0 for an empty chunk. `kind` is ``sum``, or in a
    matmul's kernel, where chunks are rows of the output, also ``squares``: the sum of the squared differences
    from the chunk's mean.
    """

    kind: str = "sum"


@dataclasses.dataclass(eq=False)
class Kernel:
    """Loops over `outer`, which run the steps in order in each iteration; iterations are independent.

    If `num_chunks` is not 0, the iterations, in nesting order, are split into that many chunks of consecutive
    iterations of nearly equal length, and some steps are `PartialSum`. In a matmul's kernel the rows of its
    output are split instead, into chunks of equal length.
    """

    name: str
    outer: tuple[Var, ...]
    steps: list[ReductionStep | ScanStep | Store]
    num_chunks: int = 0
    # Buffers that it writes in the memory of others, which it reads; only C kernels do.
    in_place: dict[Buffer, Buffer] = dataclasses.field(default_factory=dict)

    @property
    def exprs(self) -> list[Expr]:
        """The expressions that the steps compute."""
        return [step.body for step in self.steps]

    @property
    def stores(self) -> list[Store]:
        """The steps that store."""
        return [step for step in self.steps if isinstance(step, Store)]

    @property
    def reductions(self) -> dict[tuple[Reduction, Index], ReductionStep]:
        """The steps that reduce, by what they compute, in order."""
        return {(s.reduction, s.index): s for s in self.steps if isinstance(s, ReductionStep)}

    @property
    def indices(self) -> list[IndexExpr]:
        """The indices in its expressions and its stores."""
        used = [index for expr in walk(self.exprs) for index in index_exprs(expr)]
        return [*used, *(step.offset for step in self.stores)]

    @property
    def buffers_read(self) -> dict[Buffer, None]:
        """The buffers that the kernel reads, in order, without its scratch."""
        loaded: list[Buffer] = [e.extra[0] for e in walk(self.exprs) if e.op == "load"]
        return {buffer: None for buffer in loaded if buffer.role != "local"}

    @property
    def buffers_written(self) -> dict[Buffer, None]:
        """The buffers that the kernel writes, in order, without its scratch."""
        return {step.buffer: None for step in self.stores if step.buffer.role != "local"}

    @property
    def arguments(self) -> list[Buffer | int]:
        """What it takes, in order: buffers that it reads or writes, positions of run-time numbers."""
        numbers = dict.fromkeys(e.extra[0] for e in walk(self.exprs) if e.op == "number")
        return [*(self.buffers_read | self.buffers_written), *numbers]

    @property
    def scratch(self) -> list[Buffer]:
        """The buffers of role ``local``."""
        return list(dict.fromkeys(step.buffer for step in self.stores if step.buffer.role == "local"))

    def passes(self) -> list[list[ReductionStep | Store]]:
        """Group adjacent steps that can share a loop: same inner loops, no dependency on one another."""
        passes: list[list[ReductionStep | Store]] = []
        for step in self.steps:
            if isinstance(step, ScanStep):
                continue  # a kernel with scans is one pass with all its steps
            same_loops = passes and passes[-1][0].inner == step.inner
            if same_loops and not any(depends_on(step, other) for other in passes[-1]):
                passes[-1].append(step)
            else:
                passes.append([step])
        return passes

    @property
    def kind(self) -> str:
        """``matmul``, ``scan``, ``reduction``, ``pooling`` or ``elementwise``, for printers and `explain`.

        Without reductions, a kernel with scratch is ``pooling``, and one with inner loops ``reduction``.
        """
        if self.matmul is not None:
            return "matmul"
        if any(isinstance(step, ScanStep) for step in self.steps):
            return "scan"
        if self.num_chunks or self.reductions:
            return "reduction"
        if self.scratch:
            return "pooling"
        return "reduction" if any(step.inner for step in self.steps) else "elementwise"

    @property
    def matmul(self) -> ReductionStep | None:
        """The step that is a matrix multiplication; None if there is none."""
        return next((s for s in self.reductions.values() if isinstance(s.reduction, Matmul)), None)

    @property
    def checks(self) -> tuple[Check, ...]:
        """The run-time checks of its expressions, without duplicates."""
        checks = [e.extra[0] for e in walk(self.exprs) if e.op == "checked"]
        return tuple(dict.fromkeys(checks))


def replace_reductions(expr: Expr, results: Mapping[tuple[Reduction, Index], Expr]) -> Expr:
    """Replace the results of some reductions in an expression."""
    return rebuild(expr, replace=lambda e: results.get(e.extra) if e.op == "reduced" else None)


def depends_on(step: ReductionStep | ScanStep | Store, other: ReductionStep | ScanStep | Store) -> bool:
    """Whether a step of a kernel reads the result of another."""
    for e in walk([step.body]):
        if (
            e.op == "reduced"
            and isinstance(other, ReductionStep)
            and e.extra == (other.reduction, other.index)
        ):
            return True
        if e.op == "load" and isinstance(other, Store) and e.extra[0] is other.buffer:
            return True
    return False
