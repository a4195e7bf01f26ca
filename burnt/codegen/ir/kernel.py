"""A kernel: loops over `outer`, and in each iteration the steps that belong to it.

Its steps are in an order in which they can run one after another. Steps that walk the same extents have the
same `inner` loops, so that what they load or compute alike is one expression; neighbours among these that do
not need one another can share one pass over memory (`Kernel.passes`), and so can a sum that needs the largest
element or the mean (`OnlineReduction`). Where the target has scratch, a value that a later pass needs again
is stored into a buffer of role ``local`` and loaded from it. Where it has chunks, sums over the outer loops
come out in parts, one for each chunk of iterations (`PartialSum`), which another kernel adds up. Any other
store never comes back as a load in the same kernel.
"""

from __future__ import annotations

import dataclasses
import math

import torch

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
    index_value,
    reduction_result,
    walk,
)


@dataclasses.dataclass(eq=False)
class ReductionStep:
    """A step of a kernel: `reduction` at `index_value`, made of the outer loops, over the loops `inner`.

    The places that argmax and argmin give count turns of `inner` as they are nested.
    """

    reduction: Reduction
    index: Index
    inner: tuple[Var, ...]
    body: Expr

    @property
    def turns(self) -> int:
        """How many elements are folded."""
        return math.prod(v.extent for v in self.inner)


@dataclasses.dataclass(eq=False)
class OnlineReduction(ReductionStep):
    """A sum whose elements need the result of another fold over the same loops, taken in one pass with it.

    `kind` says what is summed, with x for an element of `body`, which is an element of the other fold, too:

    ======== ================ ===========================
    kind     beside           sum of
    ======== ================ ===========================
    exp      the largest x    exp(x - largest)
    squares  the sum of all x (x - sum / turns) squared
    ======== ================ ===========================

    While elements come, the sum is about a *reference*, the largest element or the mean so far; where that
    goes from a to b, the sum s of n elements becomes s * exp(a - b), or s + n * (a - b) squared. So it goes,
    too, with parts of a sum, each about its part's own reference. (Milakov and Gimelshein, 2018; Chan, Golub
    and LeVeque, 1979.)

    Args:
        kind: ``exp`` or ``squares``.
        beside: the other fold, in the same pass.
        finite: whether an infinite largest element is not subtracted, as logsumexp wants it.
    """

    kind: str
    beside: ReductionStep
    finite: bool = False

    @property
    def element(self) -> Expr:
        """What is summed, where the result of the other fold is known already."""
        x, dtype = self.body, self.body.dtype
        other = reduction_result(self.beside.reduction, self.beside.index)
        if self.kind == "squares":
            turns = Expr.make("cast", (index_value(IndexExpr(const=self.turns)),), dtype)
            off = Expr.make("sub", (x, Expr.make("div", (other, turns), dtype)), dtype)
            return Expr.make("mul", (off, off), dtype)
        if self.finite:
            zero, infinity = (Expr.make("const", (), dtype, n) for n in (0.0, math.inf))
            is_infinite = Expr.make("eq", (Expr.make("abs", (other,), dtype), infinity), torch.bool)
            other = Expr.make("where", (is_infinite, zero, other), dtype)
        return Expr.make("exp", (Expr.make("sub", (x, other), dtype),), dtype)


@dataclasses.dataclass(eq=False)
class ScanStep:
    """A step of a kernel: the value of a scan at every turn of its one inner loop, whose turns are in order.

    Its place in `index_value` along the scan's axis is that loop. Stores over the same loop see the value of
    their turn. A kernel with such steps has no folds and one inner loop.
    """

    scan: Scan
    index: Index
    inner: tuple[Var, ...]
    body: Expr


@dataclasses.dataclass(eq=False)
class Store:
    """A step of a kernel: an element for every turn of the loops `inner`; `loops` are those of each axis."""

    buffer: Buffer
    inner: tuple[Var, ...]
    place: IndexExpr
    value: Expr
    loops: tuple[Var, ...]


@dataclasses.dataclass(eq=False)
class PartialSum(Store):
    """A store that adds up over the turns of a run, in kernels that are cut into runs.

    The first axis of the buffer counts the runs; `place` is within the part of the turn's own run. What a
    part holds in the end is the sum over the run's turns: 0 for a run without turns. Its `kind` may also be
    ``squares``: of what elements differ by from the mean of their run, where runs are a product's rows.
    """

    kind: str = "sum"


@dataclasses.dataclass(eq=False)
class Kernel:
    """Loops over `outer`; in every turn the steps, in order. Turns do not depend on one another.

    Where `runs` is not 0, the turns, in the order in which the loops are nested, are cut into that many runs
    of consecutive turns, as even as can be, and there are steps of kind `PartialSum`. Where there is a
    product, its rows are, all runs equal.
    """

    name: str
    outer: tuple[Var, ...]
    steps: list[ReductionStep | ScanStep | Store]
    runs: int = 0

    @property
    def exprs(self) -> list[Expr]:
        """What the steps compute."""
        return [step.value if isinstance(step, Store) else step.body for step in self.steps]

    @property
    def read(self) -> dict[Buffer, None]:
        """The buffers outside of the kernel that it reads, in order."""
        loaded: list[Buffer] = [e.extra[0] for e in walk(self.exprs) if e.op == "load"]  # type: ignore[misc]
        return {buffer: None for buffer in loaded if buffer.role != "local"}

    @property
    def written(self) -> dict[Buffer, None]:
        """The buffers outside of the kernel that it writes, in order."""
        stores = [step for step in self.steps if isinstance(step, Store)]
        return {step.buffer: None for step in stores if step.buffer.role != "local"}

    @property
    def scratch(self) -> list[Buffer]:
        """The local buffers that it writes."""
        written = [step.buffer for step in self.steps if isinstance(step, Store)]
        return list(dict.fromkeys(buffer for buffer in written if buffer.role == "local"))

    def passes(self) -> list[list[ReductionStep | Store]]:
        """The steps, together those that can share a loop: neighbours that need no result of one another."""
        found: list[list[ReductionStep | Store]] = []
        for step in self.steps:
            if isinstance(step, ScanStep):
                continue  # a loop of scans is one pass, with all its steps
            together = found and found[-1][0].inner == step.inner
            if together and not any(depends_on(step, other) for other in found[-1]):
                found[-1].append(step)
            else:
                found.append([step])
        return found

    @property
    def kind(self) -> str:
        """``matmul``, ``scan``, ``reduction``, ``pooling`` (rows are kept in scratch) or ``elementwise``."""
        if self.product is not None:
            return "matmul"
        if any(isinstance(step, ScanStep) for step in self.steps):
            return "scan"
        if self.runs or any(isinstance(step, ReductionStep) for step in self.steps):
            return "reduction"
        if self.scratch:
            return "pooling"
        return "reduction" if any(step.inner for step in self.steps) else "elementwise"

    @property
    def product(self) -> ReductionStep | None:
        """The step that is a matrix product, if it has one."""
        return next(
            (s for s in self.steps if isinstance(s, ReductionStep) and isinstance(s.reduction, Matmul)), None
        )

    @property
    def checks(self) -> tuple[Check, ...]:
        """What may fail in it, each once."""
        found = [e.extra[0] for e in walk(self.exprs) if e.op == "checked"]
        return tuple(dict.fromkeys(found))  # type: ignore[arg-type]


def depends_on(step: ReductionStep | ScanStep | Store, other: ReductionStep | ScanStep | Store) -> bool:
    """Whether a step of a kernel reads what another one has made."""
    for e in walk([step.value if isinstance(step, Store) else step.body]):
        if (
            e.op == "reduced"
            and isinstance(other, ReductionStep)
            and e.extra == (other.reduction, other.index)
        ):
            return True
        if e.op == "load" and isinstance(other, Store) and e.extra[0] is other.buffer:
            return True
    return False
