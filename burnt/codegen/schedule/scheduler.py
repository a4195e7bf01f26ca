"""Scheduling: from a traced graph to a plan, the kernels and calls that compute it.

A plan is legal first, then as few bytes moved as possible: every view and everything elementwise is a value
that is computed where it is needed, and only what torch's own calls read or make, results, and what
`burnt.codegen.schedule.fusion` finds that other rows need go through memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from burnt.codegen.frontend.dtype_support import is_dtype_unsupported
from burnt.codegen.frontend.trace import Traced, is_random
from burnt.codegen.ir import (
    DTYPES,
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    Value,
    Var,
    load,
    rebuild,
    substitute,
    unravel,
    walk,
)
from burnt.codegen.ir.loops import contiguous_strides, merge_splits, new_index, split_loops
from burnt.codegen.lower import LOWERINGS, Scalar, Unlowered
from burnt.codegen.lower.matmul import (
    MATMUL_LOWERINGS,
    MM_OPS,
    expensive_row_parts,
    is_cheap_operand,
    operands_of,
)
from burnt.codegen.lower.random import RandomSource
from burnt.codegen.schedule.fusion import KernelBuilder, reductions_of
from burnt.codegen.schedule.passes import OnlineThresholds
from burnt.codegen.schedule.rounding_hazards import find_equality_sensitive_sums
from burnt.errors import DefinitionError

__all__ = ["NO_COPY", "Call", "Plan", "schedule"]

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
    joins: OnlineThresholds | None = None,
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
    grouping = KernelBuilder(scratch, runs, cuts, joins, products is not None)
    return _Scheduler(traced, captured, grouping, torch_is_best, products).plan()


VIEWS = (
    torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims,
)  # fmt: skip

# Views that go through memory in another order, or through a part of it.
_TURNED = torch.ops.aten.t.default, torch.ops.aten.transpose.int, torch.ops.aten.permute.default
_PARTS = torch.ops.aten.select.int, torch.ops.aten.slice.Tensor, torch.ops.aten.expand.default
NO_COPY = (*VIEWS, *_TURNED, *_PARTS)


def _check(node: torch.fx.Node, made: Any) -> None:
    """Whether a lowering gave what torch says of the op: another size would be read beyond its end.

    Raises:
        DefinitionError: it gave something else.
    """
    expected = node.meta["val"]
    pairs = zip(made, expected, strict=False) if isinstance(expected, tuple | list) else [(made, expected)]
    for value, meta in pairs:
        if not isinstance(meta, torch.Tensor):
            continue
        if not isinstance(value, Value) or (value.shape, value.dtype) != (tuple(meta.shape), meta.dtype):
            found = f"{value.shape} of {value.dtype}" if isinstance(value, Value) else repr(value)
            raise DefinitionError(
                f"the lowering of {node.target} gives another result than the op",
                where=node.name,
                expected=f"a Value of shape {tuple(meta.shape)} of {meta.dtype}",
                found=found,
            )


class _Scheduler:
    def __init__(
        self,
        traced: Traced,
        captured: Sequence[torch.Tensor],
        grouping: KernelBuilder,
        torch_is_best: Callable[[torch.fx.Node], str | None],
        products: Callable[[torch.fx.Node], str | None] | None,
    ) -> None:
        self.traced = traced
        self.torch_is_best = torch_is_best
        self.torch_multiplies = products
        self.grouping = grouping
        self.captured = dict(zip(traced.captured, captured, strict=True))
        self.env: dict[torch.fx.Node, Any] = {}
        self.probes: dict[tuple[int, ...], Index] = {}
        self.inputs: list[Buffer] = []
        self.steps: list[Kernel | Call] = []
        self.pending: list[tuple[Buffer, Value]] = []
        self.in_memory: dict[int, tuple[Value, Buffer]] = {}
        self.light: dict[tuple[int, int], tuple[Value, Value]] = {}
        self.statistics: dict[Expr, Buffer] = {}
        self.seed: Buffer | None = None
        self.viewed: dict[Buffer, tuple[int, ...]] = {}
        self.views: dict[torch.fx.Node, Buffer] = {}

    def plan(self) -> Plan:
        nodes = list(self.traced.graph.graph.nodes)
        once = find_equality_sensitive_sums(self.traced.graph.graph).sums
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
                if node in once and isinstance(self.env[node], Value):
                    self.realized(self.env[node], node)
        (results,) = nodes[-1].args
        outputs = [self.result(node, i) for i, node in enumerate(results)]
        self.flush()
        inputs = [*self.inputs, *([self.seed] if self.seed is not None else [])]
        return Plan(inputs, outputs, self.steps, sorted(self.traced.numbers.values()), self.seed, self.viewed)

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
        if lowering is not None and is_dtype_unsupported(node.target, metas[1:], metas[0]):
            return self.call(node, "torch refuses this dtype")
        if node.target in MATMUL_LOWERINGS and plain and self.torch_multiplies is not None:
            return self.product(node)
        if lowering is not None and plain:
            args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), self.argument)
            if is_random(node):
                kwargs = {**kwargs, "source": self.source(node)}  # type: ignore[dict-item]
            if "needs_indices" in node.meta:
                kwargs = {**kwargs, "needs_indices": True}
            try:
                made = lowering(node.meta["val"], *args, **kwargs)
            except Unlowered:
                # This use of the op is beyond the table: torch's own call serves, as for any other op.
                return self.call(node)
            _check(node, made)
            return self.bounded(node, made)
        return self.call(node)

    def product(self, node: torch.fx.Node) -> Any:
        """A matrix product. Factors that are dear are computed once, before it."""
        assert self.torch_multiplies is not None
        why = self.torch_multiplies(node)
        if why is not None:
            return self.call(node, why)
        lighter: dict[torch.fx.Node, Value] = {}
        for factor, along in zip(operands_of(node), (-1, -2), strict=False):
            value = self.env[factor]
            if is_cheap_operand(value.at(new_index(value.shape))):
                continue
            light = (
                self.hoist_row_statistics(value, len(value.shape) + along) if node.target in MM_OPS else None
            )
            if light is not None:
                lighter[factor] = light
            else:
                self.realized(value, factor)

        def argument(given: Any) -> Any:
            light = lighter.get(given) if isinstance(given, torch.fx.Node) else None
            return self.argument(given) if light is None else light

        args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), argument)
        try:
            return self.bounded(node, MATMUL_LOWERINGS[node.target](node.meta["val"], *args, **kwargs))
        except Unlowered:
            return self.call(node)

    def hoist_row_statistics(self, value: Value, along: int) -> Value | None:
        """A factor whose dear parts are in memory, as long as these are the same along an axis.

        So are a norm's statistics. None where that is not all that is dear.

        Args:
            value: the factor.
            along: the axis of the product's terms.
        """
        if not value.numel:
            return None  # an axis without elements has no index: its rows would be taken for one
        known = self.light.get((id(value), along))
        if known is not None:
            return known[1]
        index = new_index(value.shape)
        term = index[along].variables()
        dear = expensive_row_parts(value.at(index), term)
        # Rows of a tensor of more axes are loops of their own, as its folds have them.
        parts = split_loops(ix for e in walk(dear) if e.op == "reduced" for ix in e.extra[1])  # type: ignore[attr-defined]
        if parts:
            index = tuple(ix.substitute(parts) for ix in index)
            dear = expensive_row_parts(value.at(index), term)
        axes = [tuple(v for v in ix.terms if isinstance(v, Var)) for ix in index]
        loops = [v for axis, each in enumerate(axes) if axis != along for v in each]
        if not dear or not term or any(e.dtype != torch.float32 for e in dear):
            return None
        shape = tuple(v.extent for v in loops)
        loaded: dict[Expr, Expr] = {}
        made: list[tuple[Buffer, Value]] = []
        probe = self.probes.setdefault(shape, new_index(shape))
        for e in dear:

            def at(other: Index, e: Expr = e) -> Expr:
                return substitute(e, dict(zip(loops, other, strict=True)))

            # Several products may read what is one value, each through a view of its own.
            buffer = self.statistics.get(at(probe))
            if buffer is None:
                buffer = self.grouping.temporary(shape, e.dtype)
                made.append((buffer, Value(shape, e.dtype, at)))
            loaded[e] = load(buffer, buffer.at(tuple(map(IndexExpr.of, loops))))
        light = rebuild(value.at(index), replace=loaded.get)
        if not is_cheap_operand(light):
            return None

        def whole(other: Index) -> Expr:
            mapping: dict[Var, IndexExpr] = {}
            for each, ix in zip(axes, other, strict=True):
                mapping |= zip(each, unravel(ix, [v.extent for v in each]), strict=True) if each else {}
            return rebuild(substitute(light, mapping), lambda ix: merge_splits(ix, {}))

        self.pending += made
        self.statistics |= {statistic.at(probe): buffer for buffer, statistic in made}
        result = Value(value.shape, value.dtype, whole)
        self.light[id(value), along] = value, result
        return result

    def source(self, node: torch.fx.Node) -> RandomSource:
        """What an op that draws random numbers draws from."""
        if self.seed is None:
            position = sum(n.op == "placeholder" for n in self.traced.graph.graph.nodes) + len(self.captured)
            self.seed = Buffer("seed", "input", position, (1,), (1,), torch.int64)
        return RandomSource(load(self.seed, IndexExpr()), node.meta["stream"])

    def bounded(self, node: torch.fx.Node, made: Any) -> Any:
        """A value, by way of memory where its element has grown too large to be computed wherever it is read.

        A look-up or a sum of neighbours has several elements of what it reads, each with indices of its own:
        a few of them in a row make thousands.
        """
        if not isinstance(made, Value) or id(made) in self.in_memory or not made.numel:
            return made
        # One index for all values of a shape: what was asked for it before is known.
        index = self.probes.setdefault(made.shape, new_index(made.shape))
        if not _too_large(made.at(index)):
            return made
        self.realized(made, node)
        self.flush()
        return self.env[node]

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.env[value]
        if isinstance(value, float) and value in self.traced.numbers:
            return Scalar(self.traced.numbers[value])
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
        return self.grouping.temporary(meta.shape, meta.dtype, meta.stride())

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
        before = held is not None and held[1].position in self.traced.mutated and node.op != "placeholder"
        if held is not None and held[1].strides == strides and not (before and held[1].role == "input"):
            return held[1]
        if self.is_viewed(node, alone=True) and strides == tuple(meta.stride()):
            return self.view(node)
        shape = tuple(meta.shape)
        while (
            node.target in VIEWS
            and strides == contiguous_strides(shape)
            and reductions_of(value.at(new_index(shape)))
        ):
            # It lies in memory as what it is a view of, whose axes are more likely those of its folds' rows.
            node = node.args[0]
            value, shape = self.env[node], tuple(node.meta["val"].shape)
            strides = contiguous_strides(shape)
        buffer = Buffer(f"y{position}", "output", position, shape, strides, meta.dtype)
        if shape != tuple(meta.shape):
            self.viewed[buffer] = tuple(meta.shape)
        self.pending.append((buffer, value))
        return buffer

    def flush(self) -> None:
        """Make the kernels of what is pending."""
        pending, self.pending = self.pending, []
        self.steps += self.grouping.kernels(pending, [s for s in self.steps if isinstance(s, Kernel)])


def _too_large(expr: Expr) -> bool:
    deep: dict[int, int] = {}
    for e in walk([expr]):
        deep[id(e)] = 1 + max((deep[id(a)] for a in e.args), default=0)
    return len(deep) > _MOST_EXPRS or deep[id(expr)] > _MOST_DEEP


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _plain(meta: torch.Tensor) -> bool:
    return meta.layout == torch.strided and meta.dtype in DTYPES and not meta.is_quantized
