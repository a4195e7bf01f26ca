"""Scheduling: from a traced graph to a plan, the kernels and calls that compute it.

A plan is legal first, then as few bytes moved as possible: everything elementwise and every view is computed
where it is needed, folds over the same rows share a kernel with what is made from them, and only what torch's
own calls read or make, results, and folds that other rows need go through memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from burnt.codegen.column_sums import join_columns
from burnt.codegen.ir import (
    Buffer,
    Expr,
    Fold,
    Index,
    Ix,
    Kept,
    Kernel,
    Pooled,
    Product,
    Reduction,
    Running,
    Scan,
    Split,
    Store,
    Value,
    Var,
    load,
    places,
    rebuilt,
    reduced,
    replaced,
    scanned,
    unraveled,
    walk,
)
from burnt.codegen.lower import LOWERINGS, Number, Unlowered
from burnt.codegen.lower.products import MATRICES, PRODUCTS, dear_rows, factors_of, is_cheap
from burnt.codegen.lower.random import Source
from burnt.codegen.lower.table import cast
from burnt.codegen.partials import join_sums
from burnt.codegen.passes import Joins, arrange, join, keep, multiply, pick
from burnt.codegen.trace import Traced, is_random

__all__ = ["NO_COPY", "Call", "Plan", "schedule"]

# Few rows of many elements are folded by all threads together, in a kernel of their own.
_SPLIT_ROWS, _SPLIT_ELEMENTS = 16, 1 << 15
# Loads of an element beyond which a kept value goes through memory rather than being computed in place.
_MOST_LOADS = 64
# Operations of an element, all and one after another, beyond which it goes through memory.
_MOST_EXPRS, _MOST_DEEP = 2000, 200


@dataclasses.dataclass(eq=False)
class Call:
    """A call of torch's own for a node: what is not lowered.

    Args:
        node: the op with its arguments; those that are tensors are given by `inputs`.
        inputs: FX node -> buffer that holds it.
        outputs: the buffers of its results; None for a result that is no tensor.
        why: torch's own call serves.
    """

    node: torch.fx.Node
    inputs: dict[torch.fx.Node, Buffer]
    outputs: list[Buffer | None]
    why: str = "not lowered"


@dataclasses.dataclass(eq=False)
class Plan:
    """What is run for a traced function.

    Args:
        inputs: the tensors that are given, captured ones after them, and last the seed where there is one.
        outputs: for each result, the buffer that holds it, or a constant.
        steps: kernels and calls, in order.
        numbers: how many run-time numbers the kernels take.
        seed: what random numbers are drawn from, where there are any.
        viewed: the shapes of those results that kernels know by another one; both are contiguous.
    """

    inputs: list[Buffer]
    outputs: list[Buffer | Any]
    steps: list[Kernel | Call]
    numbers: list[int]
    seed: Buffer | None = None
    viewed: dict[Buffer, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def schedule(
    traced: Traced,
    captured: Sequence[torch.Tensor],
    *,
    scratch: int = 0,
    runs: int = 0,
    cuts: bool = False,
    joins: Joins | None = None,
    torch_is_best: Callable[[torch.fx.Node], str | None] = lambda node: None,
    products: Callable[[torch.fx.Node], str | None] | None = None,
) -> Plan:
    """The plan of a traced function.

    Args:
        traced: the trace.
        captured: the tensors that it captured, in the order of `traced.captured`.
        scratch: bytes of local buffers that a turn of a kernel's outer loops may have.
        runs: into how many runs of turns a kernel may be cut for sums over turns.
        cuts: whether each pass of a kernel may be cut for all threads.
        joins: from when on folds share a pass with one that they need; None for never.
        torch_is_best: why a node that is lowered is better torch's own call, or None.
        products: why a matrix product is better torch's own call, or None where it is a kernel, with what is
            computed of its elements; None for a target that has no such kernels.
    """
    return _Scheduler(traced, captured, scratch, runs, cuts, joins, torch_is_best, products).plan()


VIEWS = (
    torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims,
)  # fmt: skip

# Views that go through memory in another order, or through a part of it.
_TURNED = torch.ops.aten.t.default, torch.ops.aten.transpose.int, torch.ops.aten.permute.default
_PARTS = torch.ops.aten.select.int, torch.ops.aten.slice.Tensor, torch.ops.aten.expand.default
NO_COPY = (*VIEWS, *_TURNED, *_PARTS)


class _Scheduler:
    def __init__(
        self,
        traced: Traced,
        captured: Sequence[torch.Tensor],
        scratch: int,
        runs: int,
        cuts: bool,
        joins: Joins | None,
        torch_is_best: Callable[[torch.fx.Node], str | None],
        products: Callable[[torch.fx.Node], str | None] | None,
    ) -> None:
        self.traced = traced
        self.torch_is_best = torch_is_best
        self.torch_multiplies = products
        self.most_scratch, self.most_runs, self.cuts, self.joins = scratch, runs, cuts, joins
        self.captured = dict(zip(traced.captured, captured, strict=True))
        self.env: dict[torch.fx.Node, Any] = {}
        self.probes: dict[tuple[int, ...], Index] = {}
        self.inputs: list[Buffer] = []
        self.steps: list[Kernel | Call] = []
        self.pending: list[tuple[Buffer, Value]] = []
        self.in_memory: dict[int, tuple[Value, Buffer]] = {}
        self.folded: dict[Reduction | Scan | Kept, Buffer] = {}
        self.rows_kept: dict[tuple[Kernel, Kept, Index], Buffer] = {}
        self.homes: dict[Product, Kernel] = {}
        self.light: dict[tuple[int, int], tuple[Value, Value]] = {}
        self.statistics: dict[Expr, Buffer] = {}
        self.seed: Buffer | None = None
        self.count = 0
        self.viewed: dict[Buffer, tuple[int, ...]] = {}
        self.views: dict[torch.fx.Node, Buffer] = {}

    def plan(self) -> Plan:
        nodes = list(self.traced.graph.graph.nodes)
        captured: dict[str, Value] = {}
        for node in nodes:
            if node.op == "placeholder":
                self.env[node] = self.given(node.meta["val"])
        for node in nodes:
            if node.op == "get_attr" and node not in self.env:
                # Wherever it is read there is a node; it is one tensor.
                name = str(node.target)
                if name not in captured:
                    captured[name] = self.given(self.captured[name])
                self.env[node] = captured[name]
            elif node.op == "call_function":
                self.env[node] = self.lower(node)
        (results,) = nodes[-1].args
        outputs = [self.result(node, i) for i, node in enumerate(results)]
        self.flush()
        inputs = [*self.inputs, *([self.seed] if self.seed is not None else [])]
        return Plan(inputs, outputs, self.steps, sorted(self.traced.numbers.values()), self.seed, self.viewed)

    # --- values -------------------------------------------------------------------------------------------

    def given(self, tensor: torch.Tensor) -> Value:
        position = len(self.inputs)
        buffer = Buffer(
            f"x{position}", "input", position, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
        )
        self.inputs.append(buffer)
        return self.loaded(buffer)

    def loaded(self, buffer: Buffer) -> Value:
        value = Value(
            buffer.shape,
            buffer.dtype,
            lambda index: load(buffer, buffer.at(index)),
        )
        self.in_memory[id(value)] = (value, buffer)
        return value

    def lower(self, node: torch.fx.Node) -> Any:
        lowering = LOWERINGS.get(node.target)
        metas = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
        plain = all(not isinstance(m, torch.Tensor) or _plain(m) for m in metas)
        why = self.torch_is_best(node)
        if why is not None:
            return self.call(node, why)
        if node.target in PRODUCTS and plain and self.torch_multiplies is not None:
            return self.product(node)
        if lowering is not None and plain:
            args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), self.argument)
            if is_random(node):
                kwargs = {**kwargs, "source": self.source(node)}  # type: ignore[dict-item]
            if "keeps_places" in node.meta:
                kwargs = {**kwargs, "keeps_places": True}
            try:
                return self.bounded(node, lowering(node.meta["val"], *args, **kwargs))
            except Unlowered:
                # This use of the op is beyond the table: torch's own call serves, as for any other op.
                return self.call(node)
        return self.call(node)

    def product(self, node: torch.fx.Node) -> Any:
        """A matrix product. Factors that are dear are computed once, before it."""
        assert self.torch_multiplies is not None
        why = self.torch_multiplies(node)
        if why is not None:
            return self.call(node, why)
        lighter: dict[torch.fx.Node, Value] = {}
        for factor, along in zip(factors_of(node), (-1, -2), strict=False):
            value = self.env[factor]
            if is_cheap(value.at(_fresh(value.shape))):
                continue
            light = self.lightened(value, len(value.shape) + along) if node.target in MATRICES else None
            if light is not None:
                lighter[factor] = light
            else:
                self.realized(value, factor)

        def argument(given: Any) -> Any:
            light = lighter.get(given) if isinstance(given, torch.fx.Node) else None
            return self.argument(given) if light is None else light

        args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), argument)
        try:
            return self.bounded(node, PRODUCTS[node.target](node.meta["val"], *args, **kwargs))
        except Unlowered:
            return self.call(node)

    def lightened(self, value: Value, along: int) -> Value | None:
        """A factor whose dear parts are in memory, as long as these are the same along an axis.

        So are a norm's statistics. None where that is not all that is dear.

        Args:
            value: the factor.
            along: the axis of the product's terms.
        """
        known = self.light.get((id(value), along))
        if known is not None:
            return known[1]
        index = _fresh(value.shape)
        term = index[along].variables()
        dear = dear_rows(value.at(index), term)
        # Rows of a tensor of more axes are loops of their own, as its folds have them.
        parts = _in_parts(ix for e in walk(dear) if e.op == "reduced" for ix in e.extra[1])  # type: ignore[attr-defined]
        if parts:
            index = tuple(ix.replaced(parts) for ix in index)
            dear = dear_rows(value.at(index), term)
        axes = [tuple(v for v in ix.terms if isinstance(v, Var)) for ix in index]
        loops = [v for axis, each in enumerate(axes) if axis != along for v in each]
        if not dear or not term or any(e.dtype != torch.float32 for e in dear):
            return None
        shape = tuple(v.extent for v in loops)
        loaded: dict[Expr, Expr] = {}
        made: list[tuple[Buffer, Value]] = []
        probe = self.probes.setdefault(shape, _fresh(shape))
        for e in dear:

            def at(other: Index, e: Expr = e) -> Expr:
                return replaced(e, dict(zip(loops, other, strict=True)))

            # Several products may read what is one value, each through a view of its own.
            buffer = self.statistics.get(at(probe))
            if buffer is None:
                self.count += 1
                buffer = Buffer(f"t{self.count}", "between", self.count, shape, _dense(shape), e.dtype)
                made.append((buffer, Value(shape, e.dtype, at)))
            loaded[e] = load(buffer, buffer.at(tuple(map(Ix.of, loops))))
        light = rebuilt(value.at(index), swap=loaded.get)
        if not is_cheap(light):
            return None

        def whole(other: Index) -> Expr:
            mapping: dict[Var, Ix] = {}
            for each, ix in zip(axes, other, strict=True):
                mapping |= zip(each, unraveled(ix, [v.extent for v in each]), strict=True) if each else {}
            return rebuilt(replaced(light, mapping), lambda ix: _flat(ix, {}))

        self.pending += made
        self.statistics |= {statistic.at(probe): buffer for buffer, statistic in made}
        result = Value(value.shape, value.dtype, whole)
        self.light[id(value), along] = value, result
        return result

    def source(self, node: torch.fx.Node) -> Source:
        """What an op that draws random numbers draws from."""
        if self.seed is None:
            position = sum(n.op == "placeholder" for n in self.traced.graph.graph.nodes) + len(self.captured)
            self.seed = Buffer("seed", "input", position, (1,), (1,), torch.int64)
        return Source(load(self.seed, Ix()), node.meta["stream"])

    def bounded(self, node: torch.fx.Node, made: Any) -> Any:
        """A value, by way of memory where its element has grown too large to be computed wherever it is read.

        A look-up or a sum of neighbours has several elements of what it reads, each with indices of its own:
        a few of them in a row make thousands.
        """
        if not isinstance(made, Value) or id(made) in self.in_memory or not made.numel:
            return made
        # One index for all values of a shape: what was asked for it before is known.
        index = self.probes.setdefault(made.shape, _fresh(made.shape))
        if not _too_large(made.at(index)):
            return made
        self.realized(made, node)
        self.flush()
        return self.env[node]

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.env[value]
        if isinstance(value, float) and value in self.traced.numbers:
            return Number(self.traced.numbers[value])
        return value

    def call(self, node: torch.fx.Node, why: str = "not lowered") -> Any:
        inputs = {n: self.realized(self.env[n], n) for n in node.all_input_nodes if _is_tensor(n)}
        self.flush()
        meta = node.meta["val"]
        metas = list(meta) if isinstance(meta, tuple | list) else [meta]
        outputs = [self.between(m) if isinstance(m, torch.Tensor) else None for m in metas]
        self.steps.append(Call(node, inputs, outputs, why))
        values = [None if buffer is None else self.loaded(buffer) for buffer in outputs]
        return values if isinstance(meta, tuple | list) else values[0]

    def between(self, meta: torch.Tensor) -> Buffer:
        self.count += 1
        return Buffer(
            f"t{self.count}", "between", self.count, tuple(meta.shape), tuple(meta.stride()), meta.dtype
        )

    def realized(self, value: Value, node: torch.fx.Node) -> Buffer:
        """The buffer that holds a value, which is computed before the next call if it is not there yet."""
        if self.is_viewed(node):
            return self.view(node)
        if id(value) in self.in_memory:
            buffer = self.in_memory[id(value)][1]
            meta = node.meta["val"]
            if buffer.strides == tuple(meta.stride()):
                return buffer
        buffer = self.between(node.meta["val"])
        self.pending.append((buffer, value))
        self.env[node] = self.loaded(buffer)
        return buffer

    def is_viewed(self, node: torch.fx.Node, *, alone: bool = False) -> bool:
        """Whether a node is a view of an argument or of what a call has made; `alone`: of the latter, whose
        memory nothing else is a view of."""
        if (
            node.target not in ((*VIEWS, *_TURNED) if alone else NO_COPY)
            or id(self.env[node]) in self.in_memory
        ):
            return False
        (base,) = node.all_input_nodes
        if alone and len(base.users) > 1:
            return False
        held = self.in_memory.get(id(self.env[base]))
        if held is None:
            return self.is_viewed(base, alone=alone)
        made = {buffer for step in self.steps if isinstance(step, Call) for buffer in step.outputs}
        return held[1] in made or (held[1].role == "input" and not alone)

    def view(self, node: torch.fx.Node) -> Buffer:
        """The buffer of a view, which is no copy: torch's own call makes it."""
        if node not in self.views:
            (base,) = node.all_input_nodes
            buffer = self.between(node.meta["val"])
            self.steps.append(Call(node, {base: self.realized(self.env[base], base)}, [buffer]))
            self.views[node] = buffer
        return self.views[node]

    def result(self, node: Any, position: int) -> Any:
        if not isinstance(node, torch.fx.Node):
            return node
        value, meta = self.env[node], node.meta["val"]
        known = position < len(self.traced.results)  # and not one that only the backward wants
        described = self.traced.results[position] if known else None
        strides = tuple(meta.stride()) if described is None else described[0]
        held = self.in_memory.get(id(value))
        # What becomes of an argument must not be seen in a result that was the argument before.
        before = held is not None and held[1].position in self.traced.changed and node.op != "placeholder"
        if held is not None and held[1].strides == strides and not (before and held[1].role == "input"):
            return held[1]
        if self.is_viewed(node, alone=True) and strides == tuple(meta.stride()):
            return self.view(node)
        shape = tuple(meta.shape)
        while node.target in VIEWS and strides == _dense(shape) and _folds(value.at(_fresh(shape))):
            # It lies in memory as what it is a view of, whose axes are more likely those of its folds' rows.
            node = node.args[0]
            value, shape = self.env[node], tuple(node.meta["val"].shape)
            strides = _dense(shape)
        buffer = Buffer(f"y{position}", "output", position, shape, strides, meta.dtype)
        if shape != tuple(meta.shape):
            self.viewed[buffer] = tuple(meta.shape)
        self.pending.append((buffer, value))
        return buffer

    # --- kernels ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make the kernels of what is pending, sharing them where rows are the same."""
        pending, self.pending = self.pending, []
        fresh: list[Kernel] = []
        for buffer, value in pending:
            if math.prod(buffer.shape):
                self.store(buffer, value, fresh)
        self.count = join_sums(fresh, self.most_runs, self.count)
        self.count = join_columns(fresh, self.count)
        made = [step for step in self.steps if isinstance(step, Kernel)]
        folded = Counter(f.reduction for k in (*made, *fresh) for f in k.steps if isinstance(f, Fold))
        several = {reduction for reduction, kernels in folded.items() if kernels > 1}
        for kernel in fresh:
            if kernel.kind not in ("scan", "matmul"):
                pick(kernel)
                arrange(kernel)
                multiply(kernel)
                keep(kernel, self.most_scratch)
                if self.joins is not None:
                    join(kernel, self.joins, several)
            collapse(kernel)
        self.steps += fresh
        self.homes.clear()

    def store(self, buffer: Buffer, value: Value, kernels: list[Kernel]) -> None:
        axes = sorted(range(len(buffer.shape)), key=lambda a: (-buffer.strides[a], a))
        # An axis that is expanded is one element in memory, and is written once.
        loops = [Var(size if stride else 1) for size, stride in zip(value.shape, buffer.strides, strict=True)]
        element = value.at(tuple(map(Ix.of, loops)))
        if self.scanned(buffer, value, loops, kernels):
            return
        if self.torch_multiplies is not None and self.with_pool(buffer, value, loops, kernels):
            return
        self.settle(element, kernels, [loops[a] for a in axes])
        if self.torch_multiplies is not None and self.with_product(buffer, value, loops, kernels):
            return
        rows = self.rows(element, kernels)
        if not _folds(self.resolved(element)):
            rows = None  # what others needed has put them all into memory
        if rows is None and (kept := self.kept_rows(element, [loops[a] for a in axes])) is not None:
            self.store_with_scratch(buffer, value, loops, kept, kernels)
            return
        if rows is None and self.beside(buffer, value, loops, kernels):
            return
        outer = [loops[a] for a in axes if (loops[a] in rows if rows is not None else True)]
        outer = [v for v in outer if v.extent > 1]
        inner = [loops[a] for a in axes if loops[a] not in outer and loops[a].extent > 1]
        kernel = self.home(buffer, value, outer, rows is not None, kernels)
        mapping = dict(zip(outer, kernel.outer, strict=True))
        index = tuple(Ix.of(mapping.get(v, v)) for v in loops)
        self.add_folds(kernel, [self.resolved(value.at(index))])
        own = [v for v in loops if v in inner]
        mapping |= dict(zip(own, self.inner(kernel, [v.extent for v in own]), strict=True))
        loops = [mapping.get(v, v) for v in loops]
        index = tuple(map(Ix.of, loops))
        expr = self.resolved(value.at(index))
        walked = tuple(mapping[v] for v in inner)
        kernel.steps.append(Store(buffer, walked, buffer.at(index), expr, tuple(loops)))

    def with_product(self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]) -> bool:
        """Store a value of a matrix product's elements where these are made, if each is made for one turn.

        Other products are put into memory, and all of them where something else is folded.
        """
        where = tuple(map(Ix.of, loops))
        found = _folds(self.resolved(value.at(where)))
        phased = _phased(found)
        if phased:
            # Loops in two parts of which a product takes quotients and remainders.
            where = tuple(ix.replaced(phased) for ix in where)
            loops = [part for v in loops for part in (phased[v].terms if v in phased else [v])]  # type: ignore[misc]
            found = _folds(self.resolved(value.at(where)))
        place = buffer.at(where)
        turns = sorted((v for v in loops if v.extent > 1), key=lambda v: -place.terms.get(v, 0))
        chosen: tuple[Reduction, Index] | None = None
        if all(isinstance(fold, Product) for fold, _ in found):
            alike = [(f, i) for f, i in found if all(g is not f or j == i for g, j in found)]
            chosen = next(((f, i) for f, i in alike if _covers(i, f.shape, turns)), None)
        for fold, index in found:
            for inner, _ in self.products_below(fold, index):
                self.materialise(inner, kernels)
            if isinstance(fold, Product) and (fold, index) != chosen:
                self.materialise(fold, kernels)
        if chosen is None:
            return False
        product, index = chosen
        assert isinstance(product, Product)
        kernel = self.homes.get(product)
        if kernel is None:
            kernel = self.homes[product] = Kernel("", tuple(turns), [])
            kernels.append(kernel)
        mapping = {v: Ix.of(w) for v, w in zip(turns, kernel.outer, strict=False)}
        step = kernel.product
        if step is not None:
            same = [v.extent for v in turns] == [v.extent for v in kernel.outer]
            same = same and step.index == tuple(ix.replaced(mapping) for ix in index)
            reads = {e.extra[0] for e in self.reached([self.resolved(value.at(where))])}
            later = kernels[kernels.index(kernel) :]
            written = {s.buffer for k in later for s in k.steps if isinstance(s, Store)}
            if not same or reads & written:
                self.materialise(product, kernels)
                return False
        where = tuple(ix.replaced(mapping) for ix in where)
        made = self.resolved(value.at(where))
        self.add_folds(kernel, [made])
        walked = tuple(next(iter(mapping[v].terms)) if v in mapping else v for v in loops)
        kernel.steps.append(Store(buffer, (), buffer.at(where), made, walked))  # type: ignore[arg-type]
        return True

    def with_pool(self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]) -> bool:
        """Store what is made of windows of a product's elements where these are made, if the product's rows
        can be taken window by window."""
        where = tuple(map(Ix.of, loops))

        def only(expr: Expr) -> tuple[Reduction, Index] | None:
            """The one fold that an expression needs, if it needs nothing else that is no load."""
            found = [e for e in walk([expr]) if e.op in ("reduced", "scanned", "kept")]
            return found[0].extra if len(found) == 1 and found[0].op == "reduced" else None  # type: ignore[return-value]

        found = only(self.resolved(value.at(where), inline=False, pools=True))
        if found is None or not isinstance(found[0], Pooled):
            return False
        pool, at = found
        over = tuple(Var(size) for size in pool.extents if size > 1)
        walked = iter(over)
        inner = tuple(Ix.of(next(walked)) if size > 1 else Ix() for size in pool.extents)
        below = only(self.resolved(pool.body(at, inner), inline=False))
        if below is None or not isinstance(below[0], Product) or below[0] in self.homes:
            return False
        product, index = below
        assert isinstance(product, Product)
        turns = sorted((v for v in loops if v.extent > 1), key=lambda v: -buffer.at(where).terms.get(v, 0))
        in_rows = set(over) <= index[-2].variables()
        if not in_rows or not _covers(index, product.shape, [*turns, *over]):
            return False
        if self.products_below(product, index):
            return False
        self.settle(reduced(product, index), kernels)
        kernel = self.homes[product] = Kernel("", (*turns, *over), [])
        kernels.append(kernel)
        body = self.resolved(pool.body(at, inner))
        self.add_folds(kernel, [body])
        kernel.steps.append(Fold(pool, at, over, body))
        made = self.resolved(value.at(where), pools=True)
        kernel.steps.append(Store(buffer, (), buffer.at(where), made, tuple(loops)))
        return True

    def products_below(self, fold: Reduction, index: Index) -> list[tuple[Reduction, Index]]:
        """The matrix products that a fold's elements are made of."""
        inside = _folds(self.resolved(fold.body(index, _fresh(fold.extents))))
        below = [found for inner in inside for found in self.products_below(*inner)]
        return [*below, *(f for f in inside if isinstance(f[0], Product))]

    def beside(self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]) -> bool:
        """Store a value without folds in the loops of another store of its shape that reads the same."""
        reads = {e.extra[0] for e in self.reached([self.resolved(value.at(_fresh(value.shape)))])}
        for i, kernel in enumerate(kernels):
            if kernel.kind == "scan":
                continue
            written = {s.buffer for k in kernels[i:] for s in k.steps if isinstance(s, Store)}
            for step in kernel.steps:
                if not isinstance(step, Store) or step.buffer.role == "local":
                    continue
                if [v.extent for v in step.loops] != [v.extent for v in loops]:
                    continue
                if reads & written or not reads & {e.extra[0] for e in self.reached([step.value])}:
                    continue
                index = tuple(map(Ix.of, step.loops))
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
            _folds(self.resolved(expr)), key=lambda f: -math.prod(f[0].shape + f[0].extents)
        ):
            # Where more rows are gone through than the fold has, as in a pad, it would read beyond its own.
            fits = all(ix.bounds()[1] < size for ix, size in zip(index, fold.shape, strict=True))
            rows = _plain_rows(index) if fits else None
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
        body = fold.body(index, _fresh(fold.extents))
        inside = self.rows(body, kernels)
        if inside is not None and inside != rows:
            for inner, _ in _folds(self.resolved(body)):
                self.materialise(inner, kernels)

    def materialise(self, fold: Reduction, kernels: list[Kernel]) -> None:
        if fold in self.folded:
            return
        self.count += 1
        dtype = fold.stored if isinstance(fold, Product) else fold.dtype
        buffer = Buffer(f"t{self.count}", "between", self.count, fold.shape, _dense(fold.shape), dtype)
        if isinstance(fold, Product) and fold in self.homes:
            kernel = self.homes[fold]
            step = kernel.product
            assert step is not None
            made = cast(reduced(fold, step.index), dtype)
            kernel.steps.append(Store(buffer, (), buffer.at(step.index), made, kernel.outer))
            self.folded[fold] = buffer
            return
        loops = [Var(size) for size in fold.shape]
        index = tuple(map(Ix.of, loops))
        self.nested(fold, index, {v for v in loops if v.extent > 1}, kernels)
        outer = tuple(v for v in loops if v.extent > 1)
        kernel = Kernel("", outer, [])
        kernels.append(kernel)
        made = reduced(fold, index)
        self.add_folds(kernel, [made])
        kernel.steps.append(Store(buffer, (), buffer.at(index), cast(made, dtype), tuple(loops)))
        self.folded[fold] = buffer

    def home(
        self,
        buffer: Buffer,
        value: Value,
        outer: list[Var],
        folding: bool,
        kernels: list[Kernel],
        *,
        scratch: bool = False,
    ) -> Kernel:
        """A kernel with the same rows that this store may join, or a new one.

        Kernels with rows in scratch stay apart: by columns there would be as many as a tile is wide.
        """
        extents = [v.extent for v in outer]
        reads = {e.extra[0] for e in self.reached([self.resolved(value.at(_fresh(value.shape)))])}
        for kernel in kernels:
            if kernel.kind in ("scan", "matmul"):
                continue
            if [v.extent for v in kernel.outer] != extents or bool(kernel.scratch) != scratch:
                continue
            stores = {step.buffer for step in kernel.steps if isinstance(step, Store)}
            later = kernels[kernels.index(kernel) :]
            written = {s.buffer for k in later for s in k.steps if isinstance(s, Store)}
            shared = reads & {e.extra[0] for e in self.reached(kernel.exprs)}
            if shared and not reads & written and stores:
                return kernel
        kernel = Kernel("", tuple(outer), [])
        kernels.append(kernel)
        return kernel

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
                    todo.append(self.resolved(fold.body(index, _fresh(fold.extents))))  # type: ignore[arg-type]
        return loads

    def add_folds(self, kernel: Kernel, exprs: Sequence[Expr]) -> None:
        """Put the folds that expressions need into the kernel, those that others need first."""
        known = {(step.reduction, step.index) for step in kernel.steps if isinstance(step, Fold)}
        for fold, index in _folds(*exprs):
            if (fold, index) in known:
                continue
            inner = self.inner(kernel, fold.extents)
            body = self.resolved(fold.body(index, tuple(map(Ix.of, inner))))
            self.add_folds(kernel, [body])
            known = {(step.reduction, step.index) for step in kernel.steps if isinstance(step, Fold)}
            kernel.steps.append(Fold(fold, index, tuple(v for v in inner if v.extent > 1), body))

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
            if e.op not in ("reduced", "scanned", "kept"):
                return None
            held, index = e.extra
            if held in self.folded:
                buffer = self.folded[held]
                return cast(load(buffer, buffer.at(index)), e.dtype)  # type: ignore[arg-type]
            if inline and isinstance(held, Kept):
                return self.resolved(held.value.at(index))  # type: ignore[arg-type]
            if isinstance(held, Pooled) and not pools:
                return self.resolved(held.otherwise(index), inline=inline)  # type: ignore[arg-type]
            return None

        return rebuilt(expr, swap=swap)

    # --- scans --------------------------------------------------------------------------------------------

    def scanned(self, buffer: Buffer, value: Value, loops: Sequence[Var], kernels: list[Kernel]) -> bool:
        """Store a value of scans while they run, if it walks as they do; others are put into memory first."""
        axes = sorted(range(len(buffer.shape)), key=lambda a: (-buffer.strides[a], a))
        element = self.resolved(value.at(tuple(map(Ix.of, loops))), inline=False)
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
            inside = scan.body(_fresh(scan.shape))
            self.settle(inside, kernels)
            for fold, _ in _folds(self.resolved(inside)):
                self.materialise(fold, kernels)
        if chosen is None:
            return False
        for e in walk([element]):
            if e.op == "kept":
                self.settle(e, kernels)
        last, backwards = chosen
        for fold, index in _folds(self.resolved(element, inline=False)):
            self.settle(fold.body(index, _fresh(fold.extents)), kernels)
            self.materialise(fold, kernels)
        if not any(e.op == "scanned" for e in walk([self.resolved(element)])):
            return False  # what was put into memory needed it there
        outer = [loops[a] for a in axes if loops[a] is not last and loops[a].extent > 1]
        kernel = self.scan_home(value, outer, last.extent, kernels)
        ((along,),) = {step.inner for step in kernel.steps} or {(Var(last.extent),)}
        here = Ix.of(along) * -1 + (last.extent - 1) if backwards else Ix.of(along)
        mapping = dict(zip(outer, kernel.outer, strict=True))
        index = tuple(here if v is last else Ix.of(mapping.get(v, v)) for v in loops)
        made = self.resolved(value.at(index))
        known = {(step.scan, step.index) for step in kernel.steps if isinstance(step, Running)}
        for e in walk([made]):
            if e.op == "scanned" and e.extra not in known:
                scan, place = e.extra  # type: ignore[assignment]
                body = self.resolved(scan.body(place))  # type: ignore[arg-type]
                kernel.steps.append(Running(scan, place, (along,), body))  # type: ignore[arg-type]
        walked = tuple(along if v is last else mapping.get(v, v) for v in loops)
        kernel.steps.append(Store(buffer, (along,), buffer.at(index), made, walked))
        return True

    def put_scan(self, scan: Scan, kernels: list[Kernel]) -> None:
        """Put a scan into memory."""
        if scan in self.folded:
            return
        self.count += 1
        buffer = Buffer(f"t{self.count}", "between", self.count, scan.shape, _dense(scan.shape), scan.dtype)
        self.store(buffer, Value(scan.shape, scan.dtype, lambda index: scanned(scan, index)), kernels)
        self.folded[scan] = buffer

    def scan_home(self, value: Value, outer: Sequence[Var], turns: int, kernels: list[Kernel]) -> Kernel:
        """A kernel that runs scans over the same rows and reads the same, or a new one."""
        reads = {e.extra[0] for e in self.reached([self.resolved(value.at(_fresh(value.shape)))])}
        for i, kernel in enumerate(kernels):
            alike = kernel.kind == "scan" and kernel.steps[0].inner[0].extent == turns
            if not alike or [v.extent for v in kernel.outer] != [v.extent for v in outer]:
                continue
            written = {s.buffer for k in kernels[i:] for s in k.steps if isinstance(s, Store)}
            if not reads & written and reads & {e.extra[0] for e in self.reached(kernel.exprs)}:
                return kernel
        kernel = Kernel("", tuple(outer), [])
        kernels.append(kernel)
        return kernel

    # --- kept values --------------------------------------------------------------------------------------

    def settle(self, expr: Expr, kernels: list[Kernel], loops: Sequence[Var] = ()) -> None:
        """Put kept values into memory, unless scratch or computing them in place will do."""
        for e in walk([self.resolved(expr, inline=False)]):
            if e.op == "scanned" and e.extra[0] not in self.folded:
                self.put_scan(e.extra[0], kernels)  # type: ignore[arg-type]
            elif e.op == "reduced":
                fold, index = e.extra
                self.settle(fold.body(index, _fresh(fold.extents)), kernels)  # type: ignore[attr-defined]
            elif e.op == "kept" and e.extra[0] not in self.folded:
                held: Kept = e.extra[0]  # type: ignore[assignment]
                inside = held.value.at(_fresh(held.value.shape))
                self.settle(inside, kernels)
                cheap = len(self.reached([self.resolved(expr)])) <= _MOST_LOADS
                if not held.rows or not (cheap or self.kept_rows(expr, loops) is not None):
                    self.keep(held, kernels)

    def keep(self, held: Kept, kernels: list[Kernel]) -> None:
        """Put a kept value into memory."""
        self.count += 1
        shape = held.value.shape
        buffer = Buffer(f"t{self.count}", "between", self.count, shape, _dense(shape), held.value.dtype)
        self.store(buffer, held.value, kernels)
        self.folded[held] = buffer

    def kept_rows(self, expr: Expr, loops: Sequence[Var]) -> Var | None:
        """The loop that walks along rows of the kept values in an expression, if all others make the row.

        Args:
            expr: a stored element.
            loops: of the store, outermost first.
        """
        loops = [v for v in loops if v.extent > 1]
        found = [e for e in walk([self.resolved(expr, inline=False)]) if e.op in ("kept", "reduced")]
        if not found or not loops or not self.most_scratch:
            return None
        last = loops[-1]
        for e in found:
            held, index = e.extra
            if not isinstance(held, Kept) or not held.rows:
                return None
            if held.value.shape[-1] * held.value.dtype.itemsize > self.most_scratch:
                return None
            place: Index = index  # type: ignore[assignment]
            if _plain_rows(place[:-1]) != set(loops[:-1]) or place[-1].variables() != {last}:
                return None
        return last

    def store_with_scratch(
        self, buffer: Buffer, value: Value, loops: Sequence[Var], last: Var, kernels: list[Kernel]
    ) -> None:
        """A store in a kernel whose turns first compute the rows that it reads into scratch."""
        axes = sorted(range(len(buffer.shape)), key=lambda a: (-buffer.strides[a], a))
        outer = [loops[a] for a in axes if loops[a].extent > 1 and loops[a] is not last]
        kernel = self.home(buffer, value, outer, True, kernels, scratch=True)
        mapping = dict(zip(outer, kernel.outer, strict=True))
        at = [mapping.get(v, v) for v in loops]

        def swap(e: Expr) -> Expr | None:
            return self.in_scratch(kernel, e.extra[0], e.extra[1]) if e.op == "kept" else None  # type: ignore[arg-type]

        index = tuple(map(Ix.of, at))
        expr = rebuilt(self.resolved(value.at(index), inline=False), swap=swap)
        kernel.steps.append(Store(buffer, (last,), buffer.at(index), expr, tuple(at)))

    def in_scratch(self, kernel: Kernel, held: Kept, index: Index) -> Expr:
        """An element of a kept value's row, which the kernel computes in every turn."""
        *lead, along = index
        place = (kernel, held, tuple(lead))
        if place not in self.rows_kept:
            self.count += 1
            size = held.value.shape[-1]
            row = Var(size)
            buffer = Buffer(f"s{self.count}", "local", self.count, (size,), (1,), held.value.dtype)
            made = self.resolved(held.value.at((*lead, Ix.of(row))))
            inner = (row,) if size > 1 else ()
            kernel.steps.append(Store(buffer, inner, Ix.of(row), made, (row,)))
            self.rows_kept[place] = buffer
        return load(self.rows_kept[place], along)


def collapse(kernel: Kernel) -> None:
    """Join neighbouring loops that every access walks as if they were one."""
    walked = [place for expr in walk(kernel.exprs) for place in places(expr)]
    walked += [step.place for step in kernel.steps if isinstance(step, Store)]
    mapping: dict[Var, Ix] = {}
    wholes: dict[tuple[Var, Var], Var] = {}
    nests = [kernel.outer, *(step.inner for step in kernel.steps)]
    ends = {v: (v, v) for nest in nests for v in nest}

    def neighbours(a: Var, b: Var) -> bool:
        """Whether one is inside of the other wherever either is a loop."""
        last, first = ends[a][1], ends[b][0]
        return all(
            (last, first) in itertools.pairwise(nest) for nest in nests if last in nest or first in nest
        )

    def joined(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        result: list[Var] = []
        for loop in loops:
            if result and (
                (result[-1], loop) in wholes
                or (
                    neighbours(result[-1], loop)
                    and _walk_as_one(result[-1], loop, [_flat(p, mapping) for p in walked])
                )
            ):
                last = result.pop()
                known = (last, loop) in wholes
                whole = wholes.setdefault((last, loop), Var(last.extent * loop.extent))
                ends[whole] = (ends[last][0], ends[loop][1])
                result.append(whole)
                if known:
                    continue
                mapping[last] = Ix.of(whole) // loop.extent
                mapping[loop] = Ix.of(whole) % loop.extent
                for var, ix in list(mapping.items()):
                    if var not in (last, loop):
                        mapping[var] = ix.replaced({last: mapping[last]})
            else:
                result.append(loop)
        return tuple(result)

    kernel.outer = joined(kernel.outer)
    for step in kernel.steps:
        step.inner = joined(step.inner)
    if mapping:
        for step in kernel.steps:
            if isinstance(step, Store):
                step.place = _flat(step.place, mapping)
                step.value = rebuilt(step.value, lambda ix: _flat(ix, mapping))
            else:
                step.body = rebuilt(step.body, lambda ix: _flat(ix, mapping))
                step.index = tuple(_flat(ix, mapping) for ix in step.index)


def _walk_as_one(a: Var, b: Var, places: list[Ix]) -> bool:
    for place in places:
        # What is computed is looked at where its own loads are.
        first, second = place.affine().stride(a), place.affine().stride(b)
        if first is None or second is None or first != second * b.extent:
            return False
    return True


def _flat(ix: Ix, mapping: dict[Var, Ix]) -> Ix:
    """An index over joined loops: a quotient and its remainder, weighted alike, are the whole again."""
    result = ix.replaced(mapping)
    changed = True
    while changed:
        changed = False
        for atom, c in list(result.terms.items()):
            if not isinstance(atom, Split) or atom.kind != "/":
                continue
            for other, d in list(result.terms.items()):
                same = isinstance(other, Split) and other.kind == "%" and other.inner == atom.inner
                if same and other.by == atom.by and c == d * atom.by:  # type: ignore[union-attr]
                    rest = {k: v for k, v in result.terms.items() if k not in (atom, other)}
                    result = Ix(rest, result.const) + atom.inner * d
                    changed = True
                    break
            if changed:
                break
    return result


def _folds(*exprs: Expr) -> list[tuple[Reduction, Index]]:
    return [e.extra for e in walk(exprs) if e.op == "reduced"]  # type: ignore[misc]


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _too_large(expr: Expr) -> bool:
    deep: dict[int, int] = {}
    for e in walk([expr]):
        deep[id(e)] = 1 + max((deep[id(a)] for a in e.args), default=0)
    return len(deep) > _MOST_EXPRS or deep[id(expr)] > _MOST_DEEP


def _fresh(extents: Sequence[int]) -> Index:
    return tuple(Ix.of(Var(size)) for size in extents)


def _way(scan: Scan, index: Index, loops: Sequence[Var]) -> tuple[Var, bool] | None:
    """The loop of a store that walks along a scan, all others making its rows; and whether backwards."""
    place = index[scan.axis]
    if len(place.terms) != 1:
        return None
    ((loop, step),) = place.terms.items()
    if not isinstance(loop, Var) or loop.extent != scan.shape[scan.axis] or abs(step) != 1:
        return None
    rows = _plain_rows((*index[: scan.axis], *index[scan.axis + 1 :]))
    if rows != {v for v in loops if v is not loop and v.extent > 1}:
        return None
    return (loop, step < 0) if place.const == (0 if step > 0 else loop.extent - 1) else None


def _phased(found: Sequence[tuple[Reduction, Index]]) -> dict[Var, Ix]:
    """Loops of which products take quotients and remainders, as two loops each."""
    return _in_parts(ix for fold, index in found if isinstance(fold, Product) for ix in index)


def _in_parts(places: Iterable[Ix]) -> dict[Var, Ix]:
    """Loops of which quotients and remainders are taken, as two loops each."""
    parts: dict[Var, int] = {}
    for atom in (a for ix in places for a in ix.terms):
        if isinstance(atom, Split) and len(atom.inner.terms) == 1 and not atom.inner.const:
            ((loop, weight),) = atom.inner.terms.items()
            if isinstance(loop, Var) and weight == 1 and loop.extent % atom.by == 0:
                parts[loop] = atom.by
    return {v: Ix.of(Var(v.extent // by)) * by + Ix.of(Var(by)) for v, by in parts.items()}


def _covers(index: Index, shape: Sequence[int], loops: Sequence[Var]) -> bool:
    """Whether the turns of loops are the places of a shape, each once: every axis is a number whose digits
    are loops of its own."""
    left = set(loops)
    for ix, size in zip(index, shape, strict=True):
        digit = 1
        for atom, weight in sorted(ix.terms.items(), key=lambda term: term[1]):
            if not isinstance(atom, Var) or atom not in left or weight != digit:
                return False
            left.remove(atom)
            digit *= atom.extent
        if ix.const or digit != size:
            return False
    return not left


def _plain_rows(index: Index) -> set[Var] | None:
    """The loops of an index that is made of different whole loops; None for any other."""
    rows: list[Var] = []
    for ix in index:
        if not ix.terms and not ix.const:
            continue
        ((atom, c), *rest) = ix.terms.items() or ((None, 0),)
        if rest or ix.const or c != 1 or not isinstance(atom, Var) or atom in rows:
            return None
        rows.append(atom)
    return set(rows)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _plain(meta: torch.Tensor) -> bool:
    return meta.layout == torch.strided and not meta.dtype.is_complex and not meta.is_quantized
