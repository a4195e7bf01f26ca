"""Grouping: from stores that are wanted to kernels, which share what has the same rows.

Everything elementwise is computed where it is needed, folds over the same rows share a kernel with what is
made from them, and a matrix product's kernel makes what is computed of its elements. What other rows need
goes through memory.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    Materialized,
    Matmul,
    PooledMatmul,
    Reduction,
    ReductionStep,
    Scan,
    ScanStep,
    Store,
    Value,
    Var,
    load,
    rebuild,
    reduction_result,
    scan_result,
    walk,
)
from burnt.codegen.ir.loops import (
    contiguous_strides,
    covers_shape,
    merge_adjacent_loops,
    new_index,
    split_loops,
    whole_loops,
)
from burnt.codegen.lower.registry import cast
from burnt.codegen.schedule.matmul_column_sums import fuse_column_sums
from burnt.codegen.schedule.partial_sums import combine_partial_sums
from burnt.codegen.schedule.passes import (
    OnlineThresholds,
    arrange,
    cache_shared_exprs,
    fuse_online_reductions,
    hoist_reciprocal,
    simplify_one_hot_sum,
)

__all__ = ["KernelBuilder", "reductions_of"]

# Few rows of many elements are folded by all threads together, in a kernel of their own.
_SPLIT_ROWS, _SPLIT_ELEMENTS = 16, 1 << 15
# Loads of an element beyond which a kept value goes through memory rather than being computed in place.
_MOST_LOADS = 64


class KernelBuilder:
    """The kernels of a plan, while they are made.

    Args:
        scratch, runs, cuts, joins: as in `burnt.codegen.schedule.scheduler.schedule`.
        products: whether matrix products are kernels.
    """

    def __init__(
        self, scratch: int, runs: int, cuts: bool, joins: OnlineThresholds | None, products: bool
    ) -> None:
        self.most_scratch, self.most_runs, self.cuts, self.joins = scratch, runs, cuts, joins
        self.products = products
        self.folded: dict[Reduction | Scan | Materialized, Buffer] = {}
        self.rows_kept: dict[tuple[Kernel, Materialized, Index], Buffer] = {}
        self.homes: dict[Matmul, Kernel] = {}
        self.count = 0

    def temporary(
        self, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None
    ) -> Buffer:
        """Memory between kernels and calls, contiguous if nothing else is said."""
        self.count += 1
        strides = contiguous_strides(shape) if strides is None else strides
        return Buffer(f"t{self.count}", "intermediate", self.count, tuple(shape), tuple(strides), dtype)

    def kernels(self, pending: Sequence[tuple[Buffer, Value]], before: Sequence[Kernel]) -> list[Kernel]:
        """The kernels that store values in buffers, shared where rows are the same.

        Args:
            pending: what is wanted, in order.
            before: the plan's other kernels.
        """
        made: list[Kernel] = []
        for buffer, value in pending:
            if math.prod(buffer.shape):
                self.store(buffer, value, made)
        self.count = combine_partial_sums(made, self.most_runs, self.count)
        self.count = fuse_column_sums(made, self.count)
        folded = Counter(
            f.reduction for k in (*before, *made) for f in k.steps if isinstance(f, ReductionStep)
        )
        several = {reduction for reduction, kernels in folded.items() if kernels > 1}
        for kernel in made:
            if kernel.kind not in ("scan", "matmul"):
                simplify_one_hot_sum(kernel)
                arrange(kernel)
                hoist_reciprocal(kernel)
                cache_shared_exprs(kernel, self.most_scratch)
                if self.joins is not None:
                    fuse_online_reductions(kernel, self.joins, several)
            merge_adjacent_loops(kernel)
        self.homes.clear()
        return made

    def store(self, buffer: Buffer, value: Value, kernels: list[Kernel]) -> None:
        """Add a store to the kernels: to one that has its rows or its product, or a new one."""
        axes = sorted(range(len(buffer.shape)), key=lambda a: (-buffer.strides[a], a))
        # An axis that is expanded is one element in memory, and is written once.
        loops = [Var(size if stride else 1) for size, stride in zip(value.shape, buffer.strides, strict=True)]
        element = value.at(tuple(map(IndexExpr.of, loops)))
        if self.scanned(buffer, value, loops, kernels):
            return
        if self.products and self.with_pool(buffer, value, loops, kernels):
            return
        self.materialize_values(element, kernels, [loops[a] for a in axes])
        if self.products and self.with_product(buffer, value, loops, kernels):
            return
        rows = self.rows(element, kernels)
        if not reductions_of(self.resolved(element)):
            rows = None  # what others needed has put them all into memory
        if rows is None and (kept := self.kept_rows(element, [loops[a] for a in axes])) is not None:
            self.store_with_scratch(buffer, value, loops, kept, kernels)
            return
        if rows is None and self.beside(buffer, value, loops, kernels):
            return
        outer = [loops[a] for a in axes if (loops[a] in rows if rows is not None else True)]
        outer = [v for v in outer if v.extent > 1]
        inner = [loops[a] for a in axes if loops[a] not in outer and loops[a].extent > 1]
        kernel = self.find_or_create_kernel(value, loops, outer, kernels)
        mapping = dict(zip(outer, kernel.outer, strict=True))
        index = tuple(IndexExpr.of(mapping.get(v, v)) for v in loops)
        self.add_folds(kernel, [self.resolved(value.at(index))])
        own = [v for v in loops if v in inner]
        mapping |= dict(zip(own, self.inner(kernel, [v.extent for v in own]), strict=True))
        loops = [mapping.get(v, v) for v in loops]
        index = tuple(map(IndexExpr.of, loops))
        expr = self.resolved(value.at(index))
        walked = tuple(mapping[v] for v in inner)
        kernel.steps.append(Store(buffer, walked, buffer.at(index), expr, tuple(loops)))

    # --- matrix products -----------------------------------------------------------------------------------

    def with_product(self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]) -> bool:
        """Store a value of a matrix product's elements where these are made, if each is made for one turn.

        Other products are put into memory, and all of them where something else is folded.
        """
        where = tuple(map(IndexExpr.of, loops))
        found = reductions_of(self.resolved(value.at(where)))
        phased = _phased(found)
        if phased:
            # Loops in two parts of which a product takes quotients and remainders.
            where = tuple(ix.substitute(phased) for ix in where)
            loops = [part for v in loops for part in (phased[v].terms if v in phased else [v])]  # type: ignore[misc]
            found = reductions_of(self.resolved(value.at(where)))
        place = buffer.at(where)
        turns = sorted((v for v in loops if v.extent > 1), key=lambda v: -place.terms.get(v, 0))
        chosen: tuple[Reduction, Index] | None = None
        if all(isinstance(fold, Matmul) for fold, _ in found):
            alike = [(f, i) for f, i in found if all(g is not f or j == i for g, j in found)]
            chosen = next(((f, i) for f, i in alike if covers_shape(i, f.shape, turns)), None)
        for fold, index in found:
            for inner, _ in self.products_below(fold, index):
                self.materialise(inner, kernels)
            if isinstance(fold, Matmul) and (fold, index) != chosen:
                self.materialise(fold, kernels)
        if chosen is None:
            return False
        product, index = chosen
        assert isinstance(product, Matmul)
        kernel = self.homes.get(product)
        if kernel is None:
            kernel = self.homes[product] = Kernel("", tuple(turns), [])
            kernels.append(kernel)
        mapping = {v: IndexExpr.of(w) for v, w in zip(turns, kernel.outer, strict=False)}
        step = kernel.matmul
        if step is not None:
            same = [v.extent for v in turns] == [v.extent for v in kernel.outer]
            same = same and step.index == tuple(ix.substitute(mapping) for ix in index)
            reads = {e.extra[0] for e in self.reached([self.resolved(value.at(where))])}
            later = kernels[kernels.index(kernel) :]
            written = {s.buffer for k in later for s in k.steps if isinstance(s, Store)}
            if not same or reads & written:
                self.materialise(product, kernels)
                return False
        where = tuple(ix.substitute(mapping) for ix in where)
        made = self.resolved(value.at(where))
        self.add_folds(kernel, [made])
        walked = tuple(next(iter(mapping[v].terms)) if v in mapping else v for v in loops)
        kernel.steps.append(Store(buffer, (), buffer.at(where), made, walked))  # type: ignore[arg-type]
        return True

    def with_pool(self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]) -> bool:
        """Store what is made of windows of a product's elements where these are made, if the product's rows
        can be taken window by window."""
        where = tuple(map(IndexExpr.of, loops))

        def only(expr: Expr) -> tuple[Reduction, Index] | None:
            """The one fold that an expression needs, if it needs nothing else that is no load."""
            found = [e for e in walk([expr]) if e.op in ("reduced", "scanned", "materialized")]
            return found[0].extra if len(found) == 1 and found[0].op == "reduced" else None  # type: ignore[return-value]

        found = only(self.resolved(value.at(where), inline=False, pools=True))
        if found is None or not isinstance(found[0], PooledMatmul):
            return False
        pool, at = found
        over = tuple(Var(size) for size in pool.extents if size > 1)
        walked = iter(over)
        inner = tuple(IndexExpr.of(next(walked)) if size > 1 else IndexExpr() for size in pool.extents)
        below = only(self.resolved(pool.body(at, inner), inline=False))
        if below is None or not isinstance(below[0], Matmul) or below[0] in self.homes:
            return False
        product, index = below
        assert isinstance(product, Matmul)
        turns = sorted((v for v in loops if v.extent > 1), key=lambda v: -buffer.at(where).terms.get(v, 0))
        in_rows = set(over) <= index[-2].variables()
        if not in_rows or not covers_shape(index, product.shape, [*turns, *over]):
            return False
        if self.products_below(product, index):
            return False
        self.materialize_values(reduction_result(product, index), kernels)
        kernel = self.homes[product] = Kernel("", (*turns, *over), [])
        kernels.append(kernel)
        body = self.resolved(pool.body(at, inner))
        self.add_folds(kernel, [body])
        kernel.steps.append(ReductionStep(pool, at, over, body))
        made = self.resolved(value.at(where), pools=True)
        kernel.steps.append(Store(buffer, (), buffer.at(where), made, tuple(loops)))
        return True

    def products_below(self, fold: Reduction, index: Index) -> list[tuple[Reduction, Index]]:
        """The matrix products that a fold's elements are made of."""
        inside = reductions_of(self.resolved(fold.body(index, new_index(fold.extents))))
        below = [found for inner in inside for found in self.products_below(*inner)]
        return [*below, *(f for f in inside if isinstance(f[0], Matmul))]

    # --- rows ----------------------------------------------------------------------------------------------

    def beside(self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]) -> bool:
        """Store a value without folds in the loops of another store of its shape that reads the same."""
        reads = self.read([self.resolved(value.at(tuple(map(IndexExpr.of, loops))))], loops)
        for i, kernel in enumerate(kernels):
            if kernel.kind == "scan":
                continue
            written = {s.buffer for k in kernels[i:] for s in k.steps if isinstance(s, Store)}
            for step in kernel.steps:
                if not isinstance(step, Store) or step.buffer.role == "local":
                    continue
                if [v.extent for v in step.loops] != [v.extent for v in loops]:
                    continue
                if reads.keys() & written or not _alike(reads, self.read([step.value], step.loops)):
                    continue
                index = tuple(map(IndexExpr.of, step.loops))
                expr = self.resolved(value.at(index))
                kernel.steps.append(Store(buffer, step.inner, buffer.at(index), expr, step.loops))
                return True
        return False

    def rows(self, expr: Expr, kernels: list[Kernel]) -> set[Var] | None:
        """The loops that make up the rows of the folds in an expression; None when it has none.

        Folds over other rows are put into memory first, by kernels of their own.
        """
        found: set[Var] | None = None
        # The one with the most work first: it is its rows that the kernel gets.
        for fold, index in sorted(
            reductions_of(self.resolved(expr)), key=lambda f: -math.prod(f[0].shape + f[0].extents)
        ):
            # Where more rows are gone through than the fold has, as in a pad, it would read beyond its own.
            fits = all(ix.bounds()[1] < size for ix, size in zip(index, fold.shape, strict=True))
            rows = whole_loops(index) if fits else None
            few = math.prod(fold.shape) < _SPLIT_ROWS and math.prod(fold.extents) >= _SPLIT_ELEMENTS
            few = few and not self.cuts
            alone = rows is None or few
            if not alone and rows is not None:
                self.nested(fold, index, rows, kernels)
                alone = found is not None and found != rows
            if alone:
                self.materialise(fold, kernels)
            else:
                found = rows
        return found

    def nested(self, fold: Reduction, index: Index, rows: set[Var], kernels: list[Kernel]) -> None:
        """Put the folds that a fold's body needs into memory, unless they have its own rows."""
        body = fold.body(index, new_index(fold.extents))
        inside = self.rows(body, kernels)
        if inside is not None and inside != rows:
            for inner, _ in reductions_of(self.resolved(body)):
                self.materialise(inner, kernels)

    def materialise(self, fold: Reduction, kernels: list[Kernel]) -> None:
        """Put a fold into memory."""
        if fold in self.folded:
            return
        dtype = fold.stored_dtype if isinstance(fold, Matmul) else fold.dtype
        buffer = self.temporary(fold.shape, dtype)
        if isinstance(fold, Matmul) and fold in self.homes:
            kernel = self.homes[fold]
            step = kernel.matmul
            assert step is not None
            made = cast(reduction_result(fold, step.index), dtype)
            kernel.steps.append(Store(buffer, (), buffer.at(step.index), made, kernel.outer))
            self.folded[fold] = buffer
            return
        loops = [Var(size) for size in fold.shape]
        index = tuple(map(IndexExpr.of, loops))
        self.nested(fold, index, {v for v in loops if v.extent > 1}, kernels)
        outer = tuple(v for v in loops if v.extent > 1)
        kernel = Kernel("", outer, [])
        kernels.append(kernel)
        made = reduction_result(fold, index)
        self.add_folds(kernel, [made])
        kernel.steps.append(Store(buffer, (), buffer.at(index), cast(made, dtype), tuple(loops)))
        self.folded[fold] = buffer

    def find_or_create_kernel(
        self,
        value: Value,
        loops: Sequence[Var],
        outer: list[Var],
        kernels: list[Kernel],
        *,
        scratch: bool = False,
    ) -> Kernel:
        """A kernel with the same rows that this store may join, or a new one.

        As many rows are not the same rows: a square matrix has as many columns. Kernels with rows in scratch
        stay apart: by columns there would be as many as a tile is wide.
        """
        extents = [v.extent for v in outer]
        reads = self.read([self.resolved(value.at(tuple(map(IndexExpr.of, loops))))], outer)
        for kernel in kernels:
            if kernel.kind in ("scan", "matmul"):
                continue
            if [v.extent for v in kernel.outer] != extents or bool(kernel.scratch) != scratch:
                continue
            stores = {step.buffer for step in kernel.steps if isinstance(step, Store)}
            later = kernels[kernels.index(kernel) :]
            written = {s.buffer for k in later for s in k.steps if isinstance(s, Store)}
            alike = _alike(reads, self.read(kernel.exprs, kernel.outer))
            if alike and not reads.keys() & written and stores:
                return kernel
        kernel = Kernel("", tuple(outer), [])
        kernels.append(kernel)
        return kernel

    def read(self, exprs: Sequence[Expr], loops: Sequence[Var]) -> dict[Buffer, set[tuple[int, ...]]]:
        """The buffers that some expressions read, and along which of their axes the loops walk there.

        Axes are counted from the innermost, 1; 0 is none, and -1 one walked in parts, as in a roll.
        """
        found: dict[Buffer, set[tuple[int, ...]]] = {}
        for e in self.reached(exprs):
            buffer, place = e.extra
            assert isinstance(buffer, Buffer)
            assert isinstance(place, IndexExpr)
            strides = sorted(set(buffer.strides) - {0})
            parts = place.variables() - place.terms.keys()
            axes = (-1 if v in parts else bisect.bisect(strides, abs(place.terms.get(v, 0))) for v in loops)
            found.setdefault(buffer, set()).add(tuple(axes))
        return found

    def reached(self, exprs: Sequence[Expr]) -> list[Expr]:
        """Every load below some expressions, also inside of folds."""
        loads, todo = [], list(exprs)
        while todo:
            for expr in walk([todo.pop()]):
                if expr.op == "load":
                    loads.append(expr)
                elif expr.op == "scanned":
                    scan, index = expr.extra
                    assert isinstance(scan, Scan)
                    todo.append(self.resolved(scan.body(index)))  # type: ignore[arg-type]
                elif expr.op == "reduced":
                    fold, index = expr.extra
                    assert isinstance(fold, Reduction)
                    todo.append(self.resolved(fold.body(index, new_index(fold.extents))))  # type: ignore[arg-type]
        return loads

    def add_folds(self, kernel: Kernel, exprs: Sequence[Expr]) -> None:
        """Put the folds that expressions need into the kernel, those that others need first."""
        known = {(step.reduction, step.index) for step in kernel.steps if isinstance(step, ReductionStep)}
        for fold, index in reductions_of(*exprs):
            if (fold, index) in known:
                continue
            inner = self.inner(kernel, fold.extents)
            body = self.resolved(fold.body(index, tuple(map(IndexExpr.of, inner))))
            self.add_folds(kernel, [body])
            known = {(step.reduction, step.index) for step in kernel.steps if isinstance(step, ReductionStep)}
            kernel.steps.append(ReductionStep(fold, index, tuple(v for v in inner if v.extent > 1), body))

    def inner(self, kernel: Kernel, extents: Sequence[int]) -> tuple[Var, ...]:
        """Loops over some extents in a kernel: those of its other steps where these walk the same."""
        wanted = [size for size in extents if size > 1]
        for step in kernel.steps:
            loops = [v for v in step.loops if v in step.inner] if isinstance(step, Store) else step.inner
            if [v.extent for v in loops] == wanted:
                known = iter(loops)
                return tuple(next(known) if size > 1 else Var(1) for size in extents)
        return tuple(Var(size) for size in extents)

    def resolved(self, expr: Expr, *, inline: bool = True, pools: bool = False) -> Expr:
        """With loads in place of what is in memory.

        Args:
            expr: an element.
            inline: compute kept values that are not in memory in place.
            pools: leave folds for products' kernels as they are.
        """

        def swap(e: Expr) -> Expr | None:
            if e.op not in ("reduced", "scanned", "materialized"):
                return None
            held, index = e.extra
            if held in self.folded:
                buffer = self.folded[held]
                return cast(load(buffer, buffer.at(index)), e.dtype)  # type: ignore[arg-type]
            if inline and isinstance(held, Materialized):
                return self.resolved(held.value.at(index))  # type: ignore[arg-type]
            if isinstance(held, PooledMatmul) and not pools:
                return self.resolved(held.from_memory(index), inline=inline)  # type: ignore[arg-type]
            return None

        return rebuild(expr, replace=swap)

    # --- scans ---------------------------------------------------------------------------------------------

    def scanned(self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]) -> bool:
        """Store a value of scans while they run, if it walks as they do; others are put into memory first."""
        axes = sorted(range(len(buffer.shape)), key=lambda a: (-buffer.strides[a], a))
        element = self.resolved(value.at(tuple(map(IndexExpr.of, loops))), inline=False)
        chosen: tuple[Var, bool] | None = None
        for e in walk([element]):
            if e.op != "scanned":
                continue
            scan: Scan = e.extra[0]  # type: ignore[assignment]
            way = _way(scan, e.extra[1], loops)  # type: ignore[arg-type]
            if way is None or way != (chosen or way):
                self.put_scan(scan, kernels)
                continue
            chosen = way
            inside = scan.body(new_index(scan.shape))
            self.materialize_values(inside, kernels)
            for fold, _ in reductions_of(self.resolved(inside)):
                self.materialise(fold, kernels)
        if chosen is None:
            return False
        for e in walk([element]):
            if e.op == "materialized":
                self.materialize_values(e, kernels)
        last, backwards = chosen
        for fold, index in reductions_of(self.resolved(element, inline=False)):
            self.materialize_values(fold.body(index, new_index(fold.extents)), kernels)
            self.materialise(fold, kernels)
        if not any(e.op == "scanned" for e in walk([self.resolved(element)])):
            return False  # what was put into memory needed it there
        outer = [loops[a] for a in axes if loops[a] is not last and loops[a].extent > 1]
        kernel = self.scan_home(value, loops, outer, last.extent, kernels)
        ((along,),) = {step.inner for step in kernel.steps} or {(Var(last.extent),)}
        here = IndexExpr.of(along) * -1 + (last.extent - 1) if backwards else IndexExpr.of(along)
        mapping = dict(zip(outer, kernel.outer, strict=True))
        index = tuple(here if v is last else IndexExpr.of(mapping.get(v, v)) for v in loops)
        made = self.resolved(value.at(index))
        known = {(step.scan, step.index) for step in kernel.steps if isinstance(step, ScanStep)}
        for e in walk([made]):
            if e.op == "scanned" and e.extra not in known:
                scan, place = e.extra  # type: ignore[assignment]
                body = self.resolved(scan.body(place))  # type: ignore[arg-type]
                kernel.steps.append(ScanStep(scan, place, (along,), body))  # type: ignore[arg-type]
        walked = tuple(along if v is last else mapping.get(v, v) for v in loops)
        kernel.steps.append(Store(buffer, (along,), buffer.at(index), made, walked))
        return True

    def put_scan(self, scan: Scan, kernels: list[Kernel]) -> None:
        """Put a scan into memory."""
        if scan in self.folded:
            return
        buffer = self.temporary(scan.shape, scan.dtype)
        self.store(buffer, Value(scan.shape, scan.dtype, lambda index: scan_result(scan, index)), kernels)
        self.folded[scan] = buffer

    def scan_home(
        self, value: Value, loops: Sequence[Var], outer: Sequence[Var], turns: int, kernels: list[Kernel]
    ) -> Kernel:
        """A kernel that runs scans over the same rows and reads the same, or a new one."""
        reads = self.read([self.resolved(value.at(tuple(map(IndexExpr.of, loops))))], outer)
        for i, kernel in enumerate(kernels):
            alike = kernel.kind == "scan" and kernel.steps[0].inner[0].extent == turns
            if not alike or [v.extent for v in kernel.outer] != [v.extent for v in outer]:
                continue
            written = {s.buffer for k in kernels[i:] for s in k.steps if isinstance(s, Store)}
            if not reads.keys() & written and _alike(reads, self.read(kernel.exprs, kernel.outer)):
                return kernel
        kernel = Kernel("", tuple(outer), [])
        kernels.append(kernel)
        return kernel

    # --- kept values ---------------------------------------------------------------------------------------

    def materialize_values(self, expr: Expr, kernels: list[Kernel], loops: Sequence[Var] = ()) -> None:
        """Put kept values into memory, unless scratch or computing them in place will do."""
        for e in walk([self.resolved(expr, inline=False)]):
            if e.op == "scanned" and e.extra[0] not in self.folded:
                self.put_scan(e.extra[0], kernels)  # type: ignore[arg-type]
            elif e.op == "reduced":
                fold, index = e.extra
                self.materialize_values(fold.body(index, new_index(fold.extents)), kernels)  # type: ignore[attr-defined]
            elif e.op == "materialized" and e.extra[0] not in self.folded:
                held: Materialized = e.extra[0]  # type: ignore[assignment]
                inside = held.value.at(new_index(held.value.shape))
                self.materialize_values(inside, kernels)
                cheap = len(self.reached([self.resolved(expr)])) <= _MOST_LOADS
                if not held.fits_row_scratch or not (cheap or self.kept_rows(expr, loops) is not None):
                    self.keep(held, kernels)

    def keep(self, held: Materialized, kernels: list[Kernel]) -> None:
        """Put a kept value into memory."""
        shape = held.value.shape
        buffer = self.temporary(shape, held.value.dtype)
        self.store(buffer, held.value, kernels)
        self.folded[held] = buffer

    def kept_rows(self, expr: Expr, loops: Sequence[Var]) -> Var | None:
        """The loop that walks along rows of the kept values in an expression, if all others make the row.

        Args:
            expr: a stored element.
            loops: of the store, outermost first.
        """
        loops = [v for v in loops if v.extent > 1]
        found = [e for e in walk([self.resolved(expr, inline=False)]) if e.op in ("materialized", "reduced")]
        if not found or not loops or not self.most_scratch:
            return None
        last = loops[-1]
        for e in found:
            held, index = e.extra
            if not isinstance(held, Materialized) or not held.fits_row_scratch:
                return None
            if held.value.shape[-1] * held.value.dtype.itemsize > self.most_scratch:
                return None
            place: Index = index  # type: ignore[assignment]
            if whole_loops(place[:-1]) != set(loops[:-1]) or place[-1].variables() != {last}:
                return None
        return last

    def store_with_scratch(
        self, buffer: Buffer, value: Value, loops: Sequence[Var], last: Var, kernels: list[Kernel]
    ) -> None:
        """A store in a kernel whose turns first compute the rows that it reads into scratch."""
        axes = sorted(range(len(buffer.shape)), key=lambda a: (-buffer.strides[a], a))
        outer = [loops[a] for a in axes if loops[a].extent > 1 and loops[a] is not last]
        kernel = self.find_or_create_kernel(value, loops, outer, kernels, scratch=True)
        mapping = dict(zip(outer, kernel.outer, strict=True))
        at = [mapping.get(v, v) for v in loops]

        def swap(e: Expr) -> Expr | None:
            return self.in_scratch(kernel, e.extra[0], e.extra[1]) if e.op == "materialized" else None  # type: ignore[arg-type]

        index = tuple(map(IndexExpr.of, at))
        expr = rebuild(self.resolved(value.at(index), inline=False), replace=swap)
        kernel.steps.append(Store(buffer, (last,), buffer.at(index), expr, tuple(at)))

    def in_scratch(self, kernel: Kernel, held: Materialized, index: Index) -> Expr:
        """An element of a kept value's row, which the kernel computes in every turn."""
        *lead, along = index
        place = (kernel, held, tuple(lead))
        if place not in self.rows_kept:
            self.count += 1
            size = held.value.shape[-1]
            row = Var(size)
            buffer = Buffer(f"s{self.count}", "local", self.count, (size,), (1,), held.value.dtype)
            made = self.resolved(held.value.at((*lead, IndexExpr.of(row))))
            inner = (row,) if size > 1 else ()
            kernel.steps.append(Store(buffer, inner, IndexExpr.of(row), made, (row,)))
            self.rows_kept[place] = buffer
        return load(self.rows_kept[place], along)


def reductions_of(*exprs: Expr) -> list[tuple[Reduction, Index]]:
    """The folds in some expressions, not those inside of folds, each with where it is read."""
    return [e.extra for e in walk(exprs) if e.op == "reduced"]  # type: ignore[misc]


def _alike(ours: dict[Buffer, set[tuple[int, ...]]], theirs: dict[Buffer, set[tuple[int, ...]]]) -> bool:
    """Whether the largest of the buffers that both read is walked along the same axes, as `read` says."""
    shared = ours.keys() & theirs.keys()
    largest = max((math.prod(b.shape) for b in shared), default=0)
    pairs = ((a, b) for s in shared if math.prod(s.shape) == largest for a in ours[s] for b in theirs[s])
    return any(all(x == y or -1 in (x, y) for x, y in zip(a, b, strict=True)) for a, b in pairs)


def _way(scan: Scan, index: Index, loops: Sequence[Var]) -> tuple[Var, bool] | None:
    """The loop of a store that walks along a scan, all others making its rows; and whether backwards."""
    place = index[scan.axis]
    if len(place.terms) != 1:
        return None
    ((loop, step),) = place.terms.items()
    if not isinstance(loop, Var) or loop.extent != scan.shape[scan.axis] or abs(step) != 1:
        return None
    rows = whole_loops((*index[: scan.axis], *index[scan.axis + 1 :]))
    if rows != {v for v in loops if v is not loop and v.extent > 1}:
        return None
    return (loop, step < 0) if place.const == (0 if step > 0 else loop.extent - 1) else None


def _phased(found: Sequence[tuple[Reduction, Index]]) -> dict[Var, IndexExpr]:
    """Loops of which products take quotients and remainders, as two loops each."""
    return split_loops(ix for fold, index in found if isinstance(fold, Matmul) for ix in index)
