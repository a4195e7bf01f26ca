"""Fusion: turn pending stores into kernels.

Elementwise expressions are inlined into whatever reads them. Reductions over the same rows are fused into
one kernel, together with the stores that read their results. What is computed from a matmul's elements is the
epilogue of its kernel. A value that a kernel needs at other rows than its own is materialized by an earlier
kernel.
"""

from __future__ import annotations

import bisect
import itertools
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
    cast,
    load,
    rebuild,
    reduction_result,
    scan_result,
    walk,
)
from burnt.codegen.ir.loops import (
    contiguous_strides,
    covers_shape,
    distinct_loops,
    merge_adjacent_loops,
    new_index,
    split_loops,
)
from burnt.codegen.schedule.capabilities import Capabilities
from burnt.codegen.schedule.matmul_column_sums import fuse_column_sums
from burnt.codegen.schedule.partial_sums import combine_partial_sums
from burnt.codegen.schedule.passes import (
    cache_shared_exprs,
    fuse_online_reductions,
    hoist_reciprocal,
    order_loops_and_steps,
    simplify_one_hot_sum,
)

# A reduction of fewer rows and at least this many elements per row gets a kernel of its own, for all threads.
_MAX_SPLIT_ROWS, _MIN_SPLIT_ELEMENTS = 16, 1 << 15
_MAX_PERMUTED_LOOPS = 3  # over rows, which are tried in any order
# If an expression has more loads, its `Materialized` values are stored in memory instead of inlined.
_MAX_INLINE_LOADS = 64


class KernelBuilder:
    """Builds the kernels of a plan from its stores.

    `add_store` tries the methods named ``fuse_*`` one after another; each returns whether it added the store
    to a kernel.
    """

    def __init__(self, target: Capabilities) -> None:
        self.target = target
        self.has_matmul_kernels = target.why_torch_matmul is not None
        # The buffer of each reduction, scan or `Materialized` value that is in memory.
        self.buffer_of: dict[Reduction | Scan | Materialized, Buffer] = {}
        # By kernel, value and row, the local buffer that holds a row of the value.
        self.scratch_buffers: dict[tuple[Kernel, Materialized, Index], Buffer] = {}
        self.matmul_kernels: dict[Matmul, Kernel] = {}  # of those being built
        self.num_buffers = 0  # temporary and local ones so far, which numbers their names

    def new_temporary(
        self, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None
    ) -> Buffer:
        """Return a new buffer between kernels and calls, contiguous unless strides are given."""
        self.num_buffers += 1
        strides = contiguous_strides(shape) if strides is None else strides
        return Buffer(
            f"t{self.num_buffers}", "intermediate", self.num_buffers, tuple(shape), tuple(strides), dtype
        )

    def build_kernels(
        self, pending: Sequence[tuple[Buffer, Value]], earlier_kernels: Sequence[Kernel]
    ) -> list[Kernel]:
        """Return kernels that store the pending values in their buffers, in order, fused where possible."""
        built: list[Kernel] = []
        for buffer, value in pending:
            if math.prod(buffer.shape):
                self.add_store(buffer, value, built)
        fuse_column_sums(built, self.new_temporary)
        combine_partial_sums(built, self.target.partial_sums, self.new_temporary)
        num_kernels = Counter(reduction for k in (*earlier_kernels, *built) for reduction, _ in k.reductions)
        computed_twice = {reduction for reduction, count in num_kernels.items() if count > 1}
        for kernel in built:
            if kernel.kind not in ("scan", "matmul"):
                simplify_one_hot_sum(kernel)
                order_loops_and_steps(kernel)
                hoist_reciprocal(kernel)
                cache_shared_exprs(kernel, self.target.scratch_bytes)
                if self.target.online_thresholds is not None:
                    fuse_online_reductions(kernel, self.target.online_thresholds, computed_twice)
            merge_adjacent_loops(kernel)
        self.matmul_kernels.clear()
        return built

    def add_store(self, buffer: Buffer, value: Value, kernels: list[Kernel]) -> None:
        """Add a store to the first kernel that it can be fused into, or to a new one."""
        axes = _memory_order(buffer)
        # An expanded axis (stride 0) is one element in memory: write it once.
        loops = [Var(size if stride else 1) for size, stride in zip(value.shape, buffer.strides, strict=True)]
        element = _element(value, loops)
        if self.fuse_into_scan(buffer, value, loops, kernels):
            return
        if self.has_matmul_kernels and self.fuse_into_pooled_matmul(buffer, value, loops, kernels):
            return
        self.materialize_values(element, kernels, [loops[a] for a in axes])
        if self.has_matmul_kernels and self.fuse_into_matmul(buffer, value, loops, kernels):
            return
        rows = self.reduction_rows(element, kernels)
        if not reductions_of(self.resolve(element)):
            rows = None  # all reductions were materialized meanwhile, for others that read them
        if rows is None and (row := self.scratch_row_loop(element, [loops[a] for a in axes])) is not None:
            self.store_with_scratch(buffer, value, loops, row, kernels)
            return
        if rows is None and self.fuse_elementwise(buffer, value, loops, kernels):
            return
        outer = [loops[a] for a in axes if (loops[a] in rows if rows is not None else True)]
        outer = [v for v in outer if v.extent > 1]
        inner = [loops[a] for a in axes if loops[a] not in outer and loops[a].extent > 1]
        kernel, mapping = self.find_or_create_kernel(value, loops, outer, kernels)
        index = tuple(IndexExpr.of(mapping.get(v, v)) for v in loops)
        self.add_reductions(kernel, [self.resolve(value.at(index))])
        inner_by_axis = [v for v in loops if v in inner]
        mapping |= dict(zip(inner_by_axis, self.inner_loops(kernel, _extents(inner_by_axis)), strict=True))
        loops = [mapping.get(v, v) for v in loops]
        index = tuple(map(IndexExpr.of, loops))
        expr = self.resolve(value.at(index))
        store_loops = tuple(mapping[v] for v in inner)
        kernel.steps.append(Store(buffer, store_loops, buffer.at(index), expr, tuple(loops)))

    # --- matmuls -------------------------------------------------------------------------------------------

    def fuse_into_matmul(
        self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]
    ) -> bool:
        """Make a store part of a matmul's epilogue, if the store reads each element of the matmul once.

        Other matmuls that the value reads are materialized; so is this one if the value also needs a
        reduction that is not a matmul.
        """
        store_index = tuple(map(IndexExpr.of, loops))
        reductions = reductions_of(self.resolve(value.at(store_index)))
        split = split_loops(
            ix for reduction, index in reductions if isinstance(reduction, Matmul) for ix in index
        )
        if split:
            # The matmul is read at quotients and remainders of these loops: make two loops of each.
            store_index = tuple(ix.substitute(split) for ix in store_index)
            loops = [part for v in loops for part in (split[v].terms if v in split else [v])]  # type: ignore[misc]
            reductions = reductions_of(self.resolve(value.at(store_index)))
        offset = buffer.at(store_index)
        outer = sorted((v for v in loops if v.extent > 1), key=lambda v: -offset.terms.get(v, 0))
        chosen: tuple[Reduction, Index] | None = None
        if all(isinstance(reduction, Matmul) for reduction, _ in reductions):
            at_one_index = [
                (reduction, index)
                for reduction, index in reductions
                if all(other is not reduction or i == index for other, i in reductions)
            ]
            chosen = next(
                (pair for pair in at_one_index if covers_shape(pair[1], pair[0].shape, outer)), None
            )
        for reduction, index in reductions:
            for inner, _ in self.matmuls_inside(reduction, index):
                self.materialize_reduction(inner, kernels)
            if isinstance(reduction, Matmul) and (reduction, index) != chosen:
                self.materialize_reduction(reduction, kernels)
        if chosen is None:
            return False
        matmul, index = chosen
        assert isinstance(matmul, Matmul)
        kernel = self.matmul_kernels.get(matmul)
        if kernel is None:
            kernel = self.matmul_kernels[matmul] = Kernel("", tuple(outer), [])
            kernels.append(kernel)
        mapping = {v: IndexExpr.of(w) for v, w in zip(outer, kernel.outer, strict=False)}
        step = kernel.matmul
        if step is not None:
            same_loops = _extents(outer) == _extents(kernel.outer)
            same_loops = same_loops and step.index == tuple(ix.substitute(mapping) for ix in index)
            reads = {e.extra[0] for e in self.loads_in([self.resolve(value.at(store_index))])}
            if not same_loops or reads & _written_by(kernels[kernels.index(kernel) :]):
                self.materialize_reduction(matmul, kernels)
                return False
        store_index = tuple(ix.substitute(mapping) for ix in store_index)
        element = self.resolve(value.at(store_index))
        self.add_reductions(kernel, [element])
        axis_loops = tuple(next(iter(mapping[v].terms)) if v in mapping else v for v in loops)
        kernel.steps.append(Store(buffer, (), buffer.at(store_index), element, axis_loops))  # type: ignore[arg-type]
        return True

    def fuse_into_pooled_matmul(
        self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]
    ) -> bool:
        """Make a store and the pooling that it reads part of a matmul's epilogue.

        This needs a matmul whose rows can be computed in the order of the pooling windows.
        """
        store_index = tuple(map(IndexExpr.of, loops))

        def only_reduction(expr: Expr) -> tuple[Reduction, Index] | None:
            """Return the single reduction in an expression; None if there are more, or scans or the like."""
            found = [e for e in walk([expr]) if e.op in ("reduced", "scanned", "materialized")]
            return found[0].extra if len(found) == 1 and found[0].op == "reduced" else None

        found = only_reduction(self.resolve(value.at(store_index), inline=False, keep_pooled=True))
        if found is None or not isinstance(found[0], PooledMatmul):
            return False
        pool, pool_index = found
        window = tuple(Var(size) for size in pool.extents if size > 1)
        window_loops = iter(window)
        inner = tuple(IndexExpr.of(next(window_loops)) if size > 1 else IndexExpr() for size in pool.extents)
        pooled = only_reduction(self.resolve(pool.body(pool_index, inner), inline=False))
        if pooled is None or not isinstance(pooled[0], Matmul) or pooled[0] in self.matmul_kernels:
            return False
        matmul, index = pooled
        assert isinstance(matmul, Matmul)
        outer = sorted(
            (v for v in loops if v.extent > 1), key=lambda v: -buffer.at(store_index).terms.get(v, 0)
        )
        in_rows = set(window) <= index[-2].variables()
        if not in_rows or not covers_shape(index, matmul.shape, [*outer, *window]):
            return False
        if self.matmuls_inside(matmul, index):
            return False
        self.materialize_values(reduction_result(matmul, index), kernels)
        kernel = self.matmul_kernels[matmul] = Kernel("", (*outer, *window), [])
        kernels.append(kernel)
        body = self.resolve(pool.body(pool_index, inner))
        self.add_reductions(kernel, [body])
        kernel.steps.append(ReductionStep(pool, pool_index, window, body))
        element = self.resolve(value.at(store_index), keep_pooled=True)
        kernel.steps.append(Store(buffer, (), buffer.at(store_index), element, tuple(loops)))
        return True

    def matmuls_inside(self, reduction: Reduction, index: Index) -> list[tuple[Reduction, Index]]:
        """Return the matmuls that a reduction's body reads, directly or inside other reductions."""
        inside = reductions_of(self.resolve(reduction.body(index, new_index(reduction.extents))))
        nested = [found for inner in inside for found in self.matmuls_inside(*inner)]
        return [*nested, *(pair for pair in inside if isinstance(pair[0], Matmul))]

    # --- rows ----------------------------------------------------------------------------------------------

    def fuse_elementwise(
        self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]
    ) -> bool:
        """Add an elementwise store to the loops of a store of the same shape that reads the same buffer."""
        reads = self.access_axes([self.resolve(_element(value, loops))], loops)
        for i, kernel in enumerate(kernels):
            if kernel.kind == "scan":
                continue
            written = _written_by(kernels[i:])
            for step in kernel.stores:
                if step.buffer.role == "local" or _extents(step.loops) != _extents(loops):
                    continue
                if reads.keys() & written or not _same_access(
                    reads, self.access_axes([step.body], step.loops)
                ):
                    continue
                index = tuple(map(IndexExpr.of, step.loops))
                expr = self.resolve(value.at(index))
                kernel.steps.append(Store(buffer, step.inner, buffer.at(index), expr, step.loops))
                return True
        return False

    def reduction_rows(self, expr: Expr, kernels: list[Kernel]) -> set[Var] | None:
        """Return the loops over the rows of an expression's reductions; None if no reduction is left in it.

        Reductions over other rows are materialized first, by kernels of their own.
        """
        chosen: set[Var] | None = None
        # The reduction with the most work comes first: the kernel gets its rows.
        for reduction, index in sorted(
            reductions_of(self.resolve(expr)), key=lambda pair: -math.prod(pair[0].shape + pair[0].extents)
        ):
            # Loops over more rows than the reduction has, as in a pad, would make it read out of bounds.
            fits = all(ix.bounds()[1] < size for ix, size in zip(index, reduction.shape, strict=True))
            rows = distinct_loops(index) if fits else None
            is_split = (
                math.prod(reduction.shape) < _MAX_SPLIT_ROWS
                and math.prod(reduction.extents) >= _MIN_SPLIT_ELEMENTS
            )
            is_split = is_split and not self.target.splits_passes
            needs_own_kernel = rows is None or is_split
            if not needs_own_kernel and rows is not None:
                self.materialize_inner_reductions(reduction, index, rows, kernels)
                needs_own_kernel = chosen is not None and chosen != rows
            if needs_own_kernel:
                self.materialize_reduction(reduction, kernels)
            else:
                chosen = rows
        return chosen

    def materialize_inner_reductions(
        self, reduction: Reduction, index: Index, rows: set[Var], kernels: list[Kernel]
    ) -> None:
        """Materialize the reductions in a reduction's body, unless they are over the same rows."""
        body = reduction.body(index, new_index(reduction.extents))
        inside = self.reduction_rows(body, kernels)
        if inside is not None and inside != rows:
            for inner, _ in reductions_of(self.resolve(body)):
                self.materialize_reduction(inner, kernels)

    def materialize_reduction(self, reduction: Reduction, kernels: list[Kernel]) -> None:
        """Store a reduction in memory, in its matmul's kernel if there is one, or else in a new kernel."""
        if reduction in self.buffer_of:
            return
        dtype = reduction.stored_dtype if isinstance(reduction, Matmul) else reduction.dtype
        buffer = self.new_temporary(reduction.shape, dtype)
        if isinstance(reduction, Matmul) and reduction in self.matmul_kernels:
            kernel = self.matmul_kernels[reduction]
            step = kernel.matmul
            assert step is not None
            result = cast(reduction_result(reduction, step.index), dtype)
            kernel.steps.append(Store(buffer, (), buffer.at(step.index), result, kernel.outer))
            self.buffer_of[reduction] = buffer
            return
        loops = [Var(size) for size in reduction.shape]
        index = tuple(map(IndexExpr.of, loops))
        self.materialize_inner_reductions(reduction, index, {v for v in loops if v.extent > 1}, kernels)
        outer = tuple(v for v in loops if v.extent > 1)
        kernel = Kernel("", outer, [])
        kernels.append(kernel)
        result = reduction_result(reduction, index)
        self.add_reductions(kernel, [result])
        kernel.steps.append(Store(buffer, (), buffer.at(index), cast(result, dtype), tuple(loops)))
        self.buffer_of[reduction] = buffer

    def find_or_create_kernel(
        self,
        value: Value,
        loops: Sequence[Var],
        outer: Sequence[Var],
        kernels: list[Kernel],
        *,
        uses_scratch: bool = False,
        scan_length: int | None = None,
    ) -> tuple[Kernel, dict[Var, Var]]:
        """Return a kernel over the same rows that this store can be fused into, or a new one.

        Also return its loop for each of `outer`; the rows may be stored in another order than the kernel's.

        The same number of rows is not enough: a square matrix has as many columns as rows, so the kernel must
        also iterate over the same axes of the largest buffer. A kernel with rows in scratch takes only stores
        that need scratch: a kernel by columns would need scratch for as many rows as a tile is wide. A scan,
        of `scan_length` elements, is fused with scans of that length.
        """
        element = self.resolve(_element(value, loops))
        orders = [tuple(outer)]
        if reductions_of(element) and len(outer) <= _MAX_PERMUTED_LOOPS:
            orders += [order for order in itertools.permutations(outer) if order != orders[0]]
        reads = {order: self.access_axes([element], order) for order in orders}
        for i, kernel in enumerate(kernels):
            if scan_length is None:
                fits = kernel.kind not in ("scan", "matmul") and bool(kernel.scratch) == uses_scratch
                fits = fits and bool(_written_by([kernel]))
            else:
                fits = kernel.kind == "scan" and kernel.steps[0].inner[0].extent == scan_length
            if not fits or reads[orders[0]].keys() & _written_by(kernels[i:]):
                continue
            own = self.access_axes(kernel.exprs, kernel.outer)
            for order in orders:
                if _extents(kernel.outer) == _extents(order) and _same_access(reads[order], own):
                    return kernel, dict(zip(order, kernel.outer, strict=True))
        kernel = Kernel("", tuple(outer), [])
        kernels.append(kernel)
        return kernel, dict(zip(outer, outer, strict=True))

    def access_axes(self, exprs: Sequence[Expr], loops: Sequence[Var]) -> dict[Buffer, set[tuple[int, ...]]]:
        """Return the buffers that expressions load, each with the axes of it that the loops iterate over.

        Axes are counted from the innermost, which is 1. 0 is not an axis; -1 is an axis indexed through
        quotients or remainders, as in a roll.
        """
        result: dict[Buffer, set[tuple[int, ...]]] = {}
        for e in self.loads_in(exprs):
            buffer, offset = e.extra
            strides = sorted(set(buffer.strides) - {0})
            split = offset.variables() - offset.terms.keys()
            axes = (-1 if v in split else bisect.bisect(strides, abs(offset.terms.get(v, 0))) for v in loops)
            result.setdefault(buffer, set()).add(tuple(axes))
        return result

    def loads_in(self, exprs: Sequence[Expr]) -> list[Expr]:
        """Return every load in some expressions, also inside reductions and scans."""
        loads, todo = [], list(exprs)
        while todo:
            for expr in walk([todo.pop()]):
                if expr.op == "load":
                    loads.append(expr)
                elif expr.op in ("scanned", "reduced"):
                    todo.append(self.resolve(_body_of(expr)))
        return loads

    def add_reductions(self, kernel: Kernel, exprs: Sequence[Expr]) -> None:
        """Add the reductions in some expressions to the kernel, each after those that it reads."""
        for reduction, index in reductions_of(*exprs):
            if (reduction, index) in kernel.reductions:
                continue
            inner = self.inner_loops(kernel, reduction.extents)
            body = self.resolve(reduction.body(index, tuple(map(IndexExpr.of, inner))))
            self.add_reductions(kernel, [body])
            kernel.steps.append(
                ReductionStep(reduction, index, tuple(v for v in inner if v.extent > 1), body)
            )

    def inner_loops(self, kernel: Kernel, extents: Sequence[int]) -> tuple[Var, ...]:
        """Return inner loops over some extents: another step's with these extents, or new ones."""
        long = [size for size in extents if size > 1]
        for step in kernel.steps:
            loops = [v for v in step.loops if v in step.inner] if isinstance(step, Store) else step.inner
            if _extents(loops) == long:
                shared = iter(loops)
                return tuple(next(shared) if size > 1 else Var(1) for size in extents)
        return tuple(Var(size) for size in extents)

    def resolve(self, expr: Expr, *, inline: bool = True, keep_pooled: bool = False) -> Expr:
        """Replace what is already in memory by loads, and inline `Materialized` values that are not.

        With `keep_pooled`, leave a `PooledMatmul` for a matmul's epilogue, instead of its alternative for
        others.
        """

        def replacement(e: Expr) -> Expr | None:
            if e.op not in ("reduced", "scanned", "materialized"):
                return None
            source, index = e.extra
            if source in self.buffer_of:
                buffer = self.buffer_of[source]
                return cast(load(buffer, buffer.at(index)), e.dtype)
            if inline and isinstance(source, Materialized):
                return self.resolve(source.value.at(index))
            if isinstance(source, PooledMatmul) and not keep_pooled:
                return self.resolve(source.from_memory(index), inline=inline)
            return None

        return rebuild(expr, replace=replacement)

    # --- scans ---------------------------------------------------------------------------------------------

    def fuse_into_scan(
        self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]
    ) -> bool:
        """Make a store part of a scan's kernel, if its loops are the scan's rows and the scan's axis.

        Scans in the value that run along another loop, or in the other direction, are materialized first.
        """
        axes = _memory_order(buffer)
        element = self.resolve(_element(value, loops), inline=False)
        chosen: tuple[Var, bool] | None = None
        for e in walk([element]):
            if e.op != "scanned":
                continue
            scan: Scan = e.extra[0]
            direction = _scan_loop(scan, e.extra[1], loops)
            if direction is None or direction != (chosen or direction):
                self.materialize_scan(scan, kernels)
                continue
            chosen = direction
            inside = scan.body(new_index(scan.shape))
            self.materialize_values(inside, kernels)
            for reduction, _ in reductions_of(self.resolve(inside)):
                self.materialize_reduction(reduction, kernels)
        if chosen is None:
            return False
        for e in walk([element]):
            if e.op == "materialized":
                self.materialize_values(e, kernels)
        scan_loop, is_reversed = chosen
        for reduction, index in reductions_of(self.resolve(element, inline=False)):
            self.materialize_values(reduction.body(index, new_index(reduction.extents)), kernels)
            self.materialize_reduction(reduction, kernels)
        if not any(e.op == "scanned" for e in walk([self.resolve(element)])):
            return False  # the values materialized above read the scans, which are now in memory too
        outer = [loops[a] for a in axes if loops[a] is not scan_loop and loops[a].extent > 1]
        kernel, mapping = self.find_or_create_kernel(
            value, loops, outer, kernels, scan_length=scan_loop.extent
        )
        ((inner,),) = {step.inner for step in kernel.steps} or {(Var(scan_loop.extent),)}
        position = IndexExpr.of(inner) * -1 + (scan_loop.extent - 1) if is_reversed else IndexExpr.of(inner)
        index = tuple(position if v is scan_loop else IndexExpr.of(mapping.get(v, v)) for v in loops)
        stored = self.resolve(value.at(index))
        known = {(step.scan, step.index) for step in kernel.steps if isinstance(step, ScanStep)}
        for e in walk([stored]):
            if e.op == "scanned" and e.extra not in known:
                scan, scan_index = e.extra
                body = self.resolve(scan.body(scan_index))
                kernel.steps.append(ScanStep(scan, scan_index, (inner,), body))
        axis_loops = tuple(inner if v is scan_loop else mapping.get(v, v) for v in loops)
        kernel.steps.append(Store(buffer, (inner,), buffer.at(index), stored, axis_loops))
        return True

    def materialize_scan(self, scan: Scan, kernels: list[Kernel]) -> None:
        """Store a scan in memory, by a kernel that runs it."""
        if scan in self.buffer_of:
            return
        buffer = self.new_temporary(scan.shape, scan.dtype)
        self.add_store(buffer, Value(scan.shape, scan.dtype, lambda index: scan_result(scan, index)), kernels)
        self.buffer_of[scan] = buffer

    # --- materialized values -------------------------------------------------------------------------------

    def materialize_values(self, expr: Expr, kernels: list[Kernel], loops: Sequence[Var] = ()) -> None:
        """Store the `Materialized` values in an expression in memory, unless they fit scratch or are cheap.

        Scans in it are always stored.
        """
        for e in walk([self.resolve(expr, inline=False)]):
            if e.op == "scanned" and e.extra[0] not in self.buffer_of:
                self.materialize_scan(e.extra[0], kernels)
            elif e.op == "reduced":
                self.materialize_values(_body_of(e), kernels)
            elif e.op == "materialized" and e.extra[0] not in self.buffer_of:
                materialized: Materialized = e.extra[0]
                inside = materialized.value.at(new_index(materialized.value.shape))
                self.materialize_values(inside, kernels)
                is_cheap = len(self.loads_in([self.resolve(expr)])) <= _MAX_INLINE_LOADS
                if not materialized.fits_row_scratch or not (
                    is_cheap or self.scratch_row_loop(expr, loops) is not None
                ):
                    buffer = self.new_temporary(materialized.value.shape, materialized.value.dtype)
                    self.add_store(buffer, materialized.value, kernels)
                    self.buffer_of[materialized] = buffer

    def scratch_row_loop(self, expr: Expr, loops: Sequence[Var]) -> Var | None:
        """Return the loop along the rows of the `Materialized` values in an element stored in these loops.

        The kernel can then compute these rows into scratch. None if they do not fit scratch, or if the other
        loops do not select one row of each value.
        """
        loops = [v for v in loops if v.extent > 1]
        found = [e for e in walk([self.resolve(expr, inline=False)]) if e.op in ("materialized", "reduced")]
        if not found or not loops or not self.target.scratch_bytes:
            return None
        row_loop = loops[-1]
        for e in found:
            materialized, index = e.extra
            if not isinstance(materialized, Materialized) or not materialized.fits_row_scratch:
                return None
            if materialized.value.shape[-1] * materialized.value.dtype.itemsize > self.target.scratch_bytes:
                return None
            value_index: Index = index
            if distinct_loops(value_index[:-1]) != set(loops[:-1]) or value_index[-1].variables() != {
                row_loop
            }:
                return None
        return row_loop

    def store_with_scratch(
        self, buffer: Buffer, value: Value, loops: Sequence[Var], row_loop: Var, kernels: list[Kernel]
    ) -> None:
        """Add a store to a kernel that first computes the rows which the store reads into scratch."""
        axes = _memory_order(buffer)
        outer = [loops[a] for a in axes if loops[a].extent > 1 and loops[a] is not row_loop]
        kernel, mapping = self.find_or_create_kernel(value, loops, outer, kernels, uses_scratch=True)
        axis_loops = [mapping.get(v, v) for v in loops]

        def replacement(e: Expr) -> Expr | None:
            return self.load_from_scratch(kernel, e.extra[0], e.extra[1]) if e.op == "materialized" else None

        index = tuple(map(IndexExpr.of, axis_loops))
        expr = rebuild(self.resolve(value.at(index), inline=False), replace=replacement)
        kernel.steps.append(Store(buffer, (row_loop,), buffer.at(index), expr, tuple(axis_loops)))

    def load_from_scratch(self, kernel: Kernel, materialized: Materialized, index: Index) -> Expr:
        """Return a load from scratch; the first load of a row adds the step that computes the row."""
        *row_index, column = index
        key = (kernel, materialized, tuple(row_index))
        if key not in self.scratch_buffers:
            self.num_buffers += 1
            size = materialized.value.shape[-1]
            row_loop = Var(size)
            buffer = Buffer(
                f"s{self.num_buffers}", "local", self.num_buffers, (size,), (1,), materialized.value.dtype
            )
            element = self.resolve(materialized.value.at((*row_index, IndexExpr.of(row_loop))))
            inner = (row_loop,) if size > 1 else ()
            kernel.steps.append(Store(buffer, inner, IndexExpr.of(row_loop), element, (row_loop,)))
            self.scratch_buffers[key] = buffer
        return load(self.scratch_buffers[key], column)


def _body_of(result: Expr) -> Expr:
    """Return the element that a reduction or scan reads for one of its results, in new inner loops."""
    node, index = result.extra
    body: Expr = node.body(index, *([] if isinstance(node, Scan) else [new_index(node.extents)]))
    return body


def _memory_order(buffer: Buffer) -> list[int]:
    """Return a buffer's axes, those with the largest strides first."""
    return sorted(range(len(buffer.shape)), key=lambda a: (-buffer.strides[a], a))


def _element(value: Value, loops: Sequence[Var]) -> Expr:
    """Return a value's element in terms of one loop for each axis."""
    return value.at(tuple(map(IndexExpr.of, loops)))


def _extents(loops: Sequence[Var]) -> list[int]:
    return [v.extent for v in loops]


def _written_by(kernels: Sequence[Kernel]) -> set[Buffer]:
    """Return the buffers that some kernels write, their scratch included."""
    return {step.buffer for kernel in kernels for step in kernel.stores}


def reductions_of(*exprs: Expr) -> list[tuple[Reduction, Index]]:
    """Return the reductions in some expressions, outside other reductions, each with its index."""
    return [e.extra for e in walk(exprs) if e.op == "reduced"]


def _same_access(
    ours: dict[Buffer, set[tuple[int, ...]]], theirs: dict[Buffer, set[tuple[int, ...]]]
) -> bool:
    """Whether the loops iterate over the same axes (`access_axes`) of the largest buffer that both read."""
    shared = ours.keys() & theirs.keys()
    largest = max((math.prod(b.shape) for b in shared), default=0)
    pairs = ((a, b) for s in shared if math.prod(s.shape) == largest for a in ours[s] for b in theirs[s])
    return any(all(x == y or -1 in (x, y) for x, y in zip(a, b, strict=True)) for a, b in pairs)


def _scan_loop(scan: Scan, index: Index, loops: Sequence[Var]) -> tuple[Var, bool] | None:
    """Return the loop of a store that runs along the scan's axis, and whether it runs backwards.

    None if the scan is read in another way, or if the other loops are not its rows.
    """
    position = index[scan.axis]
    if len(position.terms) != 1:
        return None
    ((loop, step),) = position.terms.items()
    if not isinstance(loop, Var) or loop.extent != scan.shape[scan.axis] or abs(step) != 1:
        return None
    rows = distinct_loops((*index[: scan.axis], *index[scan.axis + 1 :]))
    if rows != {v for v in loops if v is not loop and v.extent > 1}:
        return None
    return (loop, step < 0) if position.const == (0 if step > 0 else loop.extent - 1) else None
